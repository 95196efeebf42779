/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer's function table on CUDA devices: memory, life cycle, and
 * which kernel computes which spans of a step.
 */
#include "mixers/attention/cuda/attention_cuda.h"

#include <stdlib.h>

#include "mixers/softmax/heads.h"
#include "mixers/tree.h"

/* Where things are in the step's scratch memory, in bytes from its start. */
struct scratch {
	size_t qkv, raw, gates, out, sums, values, squares, sent, rows, tails, tail_base, bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct attn_params params;
	struct attn_weights weights;
	struct mx_device *device;
	struct mx_comm *comm;    /* of the ranks; NULL without */
	struct mx_comm *context; /* of those that share pages; NULL = none do */
	struct attn_launch launch;
	struct attn_args args; /* everything that is the same in every step */
	struct scratch scratch;
	float *inv_freq;   /* device memory, owned; NULL without rope */
	float *long_freq;  /* likewise; NULL without longrope */
	uint32_t *arrived; /* likewise, see attn_args; NULL = a decode step takes three kernels */
	uint32_t *tiles;   /* likewise; NULL = prompts have no kernel of their own */
	struct attn_pages
		*pages; /* likewise, of all layers of the module: the first layer's; or NULL */
	uint32_t width, max_rows, max_spans;
	uint32_t tree_rows; /* rows of trees that are computed at once; 0 = there are no trees */
	bool plain;         /* no tensor cores */
	bool prefill;       /* prompts have a kernel of their own */
};

/* Reads and checks a layer's parameters. Every function that needs them calls this again: there is
 * no state before create. */
static mx_status read_params(const struct mx_layer_desc *layer, struct attn_params *out,
                             struct mx_err *err)
{
	static const uint32_t dims[] = {32, 64, 96, 128, 256, 512}; /* that kernels are compiled for */
	mx_status status = attn_params_read(layer, out, err);
	if (status != MX_OK)
		return status;
	if (out->head_dim > ATTN_CUDA_MAX_DIM)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: head_dim must be 1..%d on GPUs, not %u",
		                     ATTN_CUDA_MAX_DIM, out->head_dim);
	if (out->adapter_rank || out->input_width)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: adapters and wider inputs run on CPUs only");
	if (out->shared_kv)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: layers that read the keys of others run on CPUs only");
	if (out->dtype != MX_F32 && out->dtype != MX_BF16 && out->dtype != MX_F8E4M3)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: keys and values in %s",
		                     mx_dtype_name(out->dtype));
	for (size_t i = 0; out->dpad < out->head_dim; i++)
		out->dpad = dims[i];
	return MX_OK;
}

static mx_status attn_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_err *err)
{
	struct attn_params p;
	enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: this module runs on CUDA devices in bf16 or f32");
	return read_params(layer, &p, err);
}

static struct attn_launch launch_of(const struct attn_params *p, const struct mx_device *device)
{
	const struct mx_cuda_base *cuda = (const struct mx_cuda_base *)device;
	return (struct attn_launch){
		.stream = (cudaStream_t)cuda->stream,
		.sms = cuda->sms,
		.sm = cuda->sm,
		.smem = cuda->smem,
		.act = device->info.act_dtype,
		.kv = p->dtype,
		.shared = p->contexts > 1,
	};
}

/* True if prompts have a kernel of their own. */
static bool has_prefill(const struct attn_params *p, const struct mx_device *device)
{
	const struct attn_launch l = launch_of(p, device);
	return !(p->cap > 0) && attn_prefill_can(&l, p->dpad, p->head_dim);
}

/* Sets how the keys of a row are split, see attn_split_shift. */
static void plan_parts(const struct mx_layer_desc *layer, const struct attn_params *p,
                       const struct mx_device *device, struct attn_args *a)
{
	const struct mx_places places = mx_places_of_rank(p->contexts, p->context);
	const uint32_t keys = mx_most_places(&places, layer->max_context);
	a->max_rows = 1;
	a->fixed_shift = 0;
	a->ladder = device->info.deterministic && has_prefill(p, device) && p->dtype == MX_BF16;
	if (a->ladder) {
		a->max_parts = attn_rung(keys ? keys - 1 : 0) + 1;
		return;
	}
	if (device->info.deterministic) {
		uint64_t last = keys ? keys - 1 : 0;
		a->fixed_shift = ATTN_EXACT_SHIFT;
		while ((last >> a->fixed_shift) * p->kv_heads >= ATTN_EXACT_PARTS)
			a->fixed_shift++;
		a->max_parts = (uint32_t)(last >> a->fixed_shift) + 1;
		return;
	}
	a->max_parts = (ATTN_PARTS + p->kv_heads - 1) / p->kv_heads;
	if (layer->max_draft > 1)
		a->max_rows = layer->max_draft < ATTN_SHORT ? layer->max_draft : ATTN_SHORT;
}

/* Most rows of trees in a step; ranks that share pages have none. */
static uint32_t most_tree_rows(const struct mx_layer_desc *layer)
{
	if (mx_layer_contexts(layer) > 1)
		return 0;
	const uint32_t each = layer->max_draft < MX_TREE_TOKENS ? layer->max_draft : MX_TREE_TOKENS;
	const uint64_t all = each > 1 ? (uint64_t)layer->max_spans * each : 0;
	return all < layer->max_rows ? (uint32_t)all : layer->max_rows;
}

/* Returns how many rows of trees a launch takes: their partials and their list have room. */
static uint32_t tree_rows_at_once(const struct mx_layer_desc *layer, const struct attn_args *a,
                                  int sm)
{
	const uint32_t rows = most_tree_rows(layer), most = rows < 1024 ? rows : 1024;
	if (!rows)
		return 0;
	return a->fixed_shift || sm < 90 || most < layer->max_spans ? layer->max_spans : most;
}

static size_t round_up(size_t n)
{
	return (n + 255) / 256 * 256;
}

static void lay_out(const struct mx_layer_desc *layer, const struct attn_params *p,
                    const struct mx_device *device, struct scratch *out)
{
	struct attn_args a = {0};
	size_t act = mx_dtype_size(device->info.act_dtype), rows = layer->max_rows;
	size_t q = (size_t)p->heads * p->head_dim, kv = (size_t)p->kv_heads * p->head_dim;
	plan_parts(layer, p, device, &a);
	size_t partials = (size_t)layer->max_spans * a.max_parts * a.max_rows * p->heads;
	out->qkv = 0;
	out->raw = round_up(rows * (q + 2 * kv) * act);
	out->gates = out->raw + round_up(rows * attn_params_raw(p) * act);
	out->out = out->gates + round_up(rows * attn_params_gates(p) * sizeof(float));
	out->sums = out->out + round_up(rows * q * act);
	out->values = out->sums + round_up(partials * 2 * sizeof(float));
	out->squares = out->values + round_up(partials * p->dpad * sizeof(float));
	out->sent = out->squares + round_up(p->summed ? rows * 2 * sizeof(float) : 0);
	out->rows = out->sent;
	if (p->contexts > 1)
		out->rows += round_up(rows * p->heads * (p->dpad + 4) * sizeof(float));
	const size_t trees = most_tree_rows(layer), line = p->dpad * mx_dtype_size(p->dtype);
	out->tails = out->rows + round_up(trees * sizeof(struct mx_device_span));
	out->tail_base = out->tails + round_up(trees ? rows * sizeof(struct attn_tail) : 0);
	out->bytes = out->tail_base + round_up(trees * attn_tail_bytes(p->kv_heads, (uint32_t)line));
}

static mx_status attn_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct attn_params p;
	struct scratch scratch;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	lay_out(layer, &p, device, &scratch);
	*out = (struct mx_state_spec){
		.bytes_per_token = (size_t)2 * p.kv_heads * p.dpad * mx_dtype_size(p.dtype),
		.page_multiple = p.contexts > 1 ? MX_TURN : ATTN_CUDA_WARP_KEYS,
		.scratch_bytes = scratch.bytes,
	};
	return MX_OK;
}

static void attn_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (m->device) {
		m->device->ops->release(m->device, m->inv_freq);
		m->device->ops->release(m->device, m->long_freq);
		m->device->ops->release(m->device, m->arrived);
		m->device->ops->release(m->device, m->tiles);
		m->device->ops->release(m->device, m->pages);
	}
	free(m);
}

/* Puts a table of inverse frequencies into device memory. */
static mx_status load_table(struct mx_mixer *m, const double *freq, float **out)
{
	float table[ATTN_CUDA_MAX_DIM / 2];
	size_t n = m->params.rope_dim / 2;
	void *to = NULL;
	for (size_t i = 0; i < n; i++)
		table[i] = (float)freq[i];
	mx_status status = mx_upload_array(m->device, table, n * sizeof(*table), &to);
	*out = to;
	return status;
}

static mx_status load_frequencies(struct mx_mixer *m)
{
	const struct attn_params *p = &m->params;
	mx_status status = p->rope != ATTN_ROPE_NONE ? load_table(m, p->inv_freq, &m->inv_freq) : MX_OK;
	if (status == MX_OK && p->rope == ATTN_ROPE_LONG)
		status = load_table(m, p->long_inv_freq, &m->long_freq);
	return status;
}

/* Allocates n counters of 0. */
static mx_status make_zeros(struct mx_mixer *m, size_t n, uint32_t **out)
{
	void *to = NULL;
	mx_status status = m->device->ops->alloc(m->device, n * sizeof(**out), &to);
	*out = to;
	return status == MX_OK ? m->device->ops->zero(m->device, to, n * sizeof(**out)) : status;
}

/* Makes the counters with which a decode step is one kernel, and thread blocks share the tiles of
 * prompts, if the layer can have that. */
static mx_status make_counters(struct mx_mixer *m)
{
	mx_status status = m->prefill ? make_zeros(m, 1, &m->tiles) : MX_OK;
	m->args.tiles = m->tiles;
	if (status != MX_OK || m->plain || !attn_newest_can(&m->launch, &m->args))
		return status;
	status = make_zeros(m, (size_t)m->max_spans * m->params.kv_heads, &m->arrived);
	m->args.arrived = m->arrived;
	return status;
}

/* Sets the kernel arguments that are the same in every step. */
static void set_args(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const struct attn_params *p = &m->params;
	struct attn_args a = {
		.ld = (p->heads + 2 * p->kv_heads) * p->head_dim,
		.ldo = p->out_heads * p->head_dim,
		.places = mx_places_of_rank(p->contexts, p->context),
		.first_out = p->context * p->out_heads,
		.heads = p->heads,
		.kv_heads = p->kv_heads,
		.group = p->group,
		.head_dim = p->head_dim,
		.dim = p->dpad,
		.window = p->window,
		.skip_first = p->skip_first,
		.scale = p->scale,
		.cap = p->cap,
		.sinks = m->weights.sinks,
		.ld_raw = attn_params_raw(p),
		.gate = p->gate,
		.wide_gate = p->wide_gate,
		.norm_whole = p->qk_norm_whole,
		.norm_last = p->norm_last,
		.long_freq = m->long_freq,
		.original = p->original,
		.v_norm = p->v_norm,
		.k_is_v = p->k_is_v,
		.rope_pairs = p->rope_pairs,
		.q_beta = p->q_beta,
		.q_length = p->q_length,
		.page_base = init->page_base,
		.page_stride = init->page_stride,
		.page_tokens = init->page_tokens,
		.q_norm = m->weights.q_norm,
		.k_norm = m->weights.k_norm,
		.inv_freq = m->inv_freq,
		.norm_eps = p->norm_eps,
		.rope_scale = p->rope_attention_factor,
		.rope_dim = p->rope_dim,
		.rope_dynamic = p->rope == ATTN_ROPE_DYNAMIC,
		.theta = p->theta,
		.factor = p->factor,
		.max_position = p->max_position,
	};
	plan_parts(init->layer, p, m->device, &a);
	m->args = a;
}

static const struct mx_mixer_ops attn_ops;

static mx_status attn_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                             struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));

	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "attention: out of memory");
	m->base.ops = &attn_ops;
	m->base.layer = layer->index;
	m->device = init->device;
	m->comm = init->comm;
	m->context = init->context;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	m->max_spans = layer->max_spans;
	mx_status status = read_params(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	const uint32_t multiple = m->params.contexts > 1 ? MX_TURN : ATTN_CUDA_WARP_KEYS;
	if (init->page_tokens == 0 || init->page_tokens % multiple) {
		status =
			mx_mixer_fail(err, MX_E_INVALID, "attention: pages of %u tokens", init->page_tokens);
		goto fail;
	}
	attn_params_take(&m->params, init->weights, &m->weights);
	status = load_frequencies(m);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "attention: no memory on the device");
		goto fail;
	}
	m->params.inv_freq = m->params.long_inv_freq = NULL; /* the description ends with this call */
	set_args(m, init);
	lay_out(layer, &m->params, m->device, &m->scratch);
	m->launch = launch_of(&m->params, m->device);
	m->plain = m->launch.act != MX_BF16 || m->launch.kv == MX_F32 || m->params.dpad > ATTN_MMA_DIM;
	m->tree_rows = tree_rows_at_once(layer, &m->args, m->launch.sm);
	m->prefill = !m->args.fixed_shift && has_prefill(&m->params, m->device);
	status = make_counters(m);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "attention: no memory on the device");
		goto fail;
	}
	*out = m;
	return MX_OK;
fail:
	attn_destroy(m);
	return status;
}

/* Opts the layer's kernels into the shared memory that they use. */
static cudaError_t prepare_kernels(const struct mx_mixer *m)
{
	const uint32_t spans = m->tree_rows > m->max_spans ? m->tree_rows : m->max_spans;
	cudaError_t e = cudaSuccess;
	if (m->args.ladder)
		e = attn_rungs_prepare(&m->launch, m->params.dpad, spans);
	else if (!m->plain)
		e = attn_decode_prepare(&m->launch, m->params.dpad, spans);
	return e == cudaSuccess && m->prefill ? attn_prefill_prepare(m->params.dpad) : e;
}

/* Makes the list of all layers' pages, for commit. */
static mx_status list_pages(struct mx_mixer *const *layers, uint32_t n_layers)
{
	struct attn_pages *list = calloc(n_layers, sizeof *list);
	void *to = NULL;
	if (!list)
		return MX_E_NOMEM;
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct attn_args *a = &layers[i]->args;
		const size_t line = a->dim * mx_dtype_size(layers[i]->launch.kv);
		list[i] = (struct attn_pages){a->page_base, a->page_stride, a->page_tokens, a->kv_heads,
		                              (uint32_t)line};
	}
	mx_status status =
		mx_upload_array(layers[0]->device, (const void *)list, n_layers * sizeof *list, &to);
	layers[0]->pages = to;
	free(list);
	return status;
}

/* Once for each head size of the model: layers of one size have the same kernels. */
static mx_status attn_prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	mx_status status = n_layers ? mx_cuda_base(layers[0]->device)->bind(layers[0]->device) : MX_OK;
	if (status != MX_OK)
		return mx_mixer_fail(err, status, "attention: the device cannot be made current");
	for (uint32_t i = 0; i < n_layers; i++) {
		uint32_t same = 0; /* an earlier layer of this head size, or i itself */
		while (layers[same]->params.head_dim != layers[i]->params.head_dim)
			same++;
		cudaError_t e = same == i ? prepare_kernels(layers[i]) : cudaSuccess;
		if (e != cudaSuccess)
			return mx_mixer_fail(err, MX_E_DEVICE, "attention: kernels for heads of %u: %s",
			                     layers[i]->params.head_dim, cudaGetErrorString(e));
	}
	if (n_layers && layers[0]->tree_rows && (status = list_pages(layers, n_layers)) != MX_OK)
		return mx_mixer_fail(err, status, "attention: no memory on the device");
	return MX_OK;
}

/* ---- a step ---- */

/* The spans of a step by length, but for trees. Short spans have at most `most` tokens. A recorded
 * step may have spans of any length up to its `longest`; if there may be trees, all are computed
 * like those. */
struct mixture {
	uint32_t longest_short; /* tokens of the longest short span; 0 = there is none */
	uint32_t long_rows;     /* tokens of all long spans */
	uint32_t tree_rows;     /* tokens of all trees */
};

static struct mixture sort_spans(const struct mx_step *step, uint32_t most)
{
	struct mixture mix = {0};
	if (step->recording && step->tables->parents && step->longest > 1)
		return (struct mixture){.tree_rows = step->n_rows};
	if (step->recording)
		return step->longest <= most
		           ? (struct mixture){.longest_short = step->longest}
		           : (struct mixture){.longest_short = most, .long_rows = step->n_rows};
	for (uint32_t i = 0; i < step->n_spans; i++) {
		uint32_t n = step->spans[i].n;
		if (step->spans[i].parent && n > 1)
			mix.tree_rows += n;
		else if (n > most)
			mix.long_rows += n;
		else if (n > mix.longest_short)
			mix.longest_short = n;
	}
	return mix;
}

/* Attends for `rows` rows of trees, each as a span of one token. */
static cudaError_t attend_trees(const struct mx_mixer *m, const struct mx_step *step,
                                const struct attn_args *a, uint32_t rows)
{
	unsigned char *scratch = step->scratch;
	struct mx_device_span *spans = (void *)(scratch + m->scratch.rows);
	struct attn_args of = *a;
	of.tails = (void *)(scratch + m->scratch.tails);
	of.tail_base = scratch + m->scratch.tail_base;
	cudaError_t e = attn_tree(&m->launch, &of, spans, step->recording);
	of.parents = NULL;
	of.min_n = of.max_n = of.max_rows = 1;
	for (uint32_t at = 0; at < rows && e == cudaSuccess; at += of.n_spans) {
		of.spans = spans + at;
		of.n_spans = rows - at < m->tree_rows ? rows - at : m->tree_rows;
		of.min_shift = attn_min_shift(of.n_spans, of.kv_heads);
		/* there is room for the partials of max_spans rows */
		of.lead = of.n_spans > m->max_spans ? UINT32_MAX : attn_lead_for(of.n_spans, of.kv_heads);
		e = of.ladder ? attn_rungs(&m->launch, &of) : attn_decode(&m->launch, &of);
		if (e == cudaSuccess)
			e = attn_merge(&m->launch, &of, 1);
	}
	return e;
}

/* Normalises, rotates, stores and attends. */
static cudaError_t attend(const struct mx_mixer *m, const struct mx_step *step, struct attn_args *a)
{
	cudaError_t e = cudaSuccess;
	if (m->arrived && step->longest == 1 && step->n_spans <= ATTN_NEWEST_SPANS) {
		a->min_n = a->max_n = 1;
		return attn_newest(&m->launch, a);
	}
	e = attn_append(&m->launch, a);
	if (e != cudaSuccess)
		return e;
	if (m->plain)
		return attn_plain(&m->launch, a);
	/* On a deterministic device drafts are computed like prompts: there is room for the partials of
	 * one row a span. */
	uint32_t most = a->fixed_shift || a->ladder ? 1 : ATTN_SHORT;
	struct mixture mix = sort_spans(step, most);
	if (mix.tree_rows && (e = attend_trees(m, step, a, mix.tree_rows)) != cudaSuccess)
		return e;
	if (mix.longest_short) {
		a->min_n = 1;
		a->max_n = most;
		e = a->ladder ? attn_rungs(&m->launch, a) : attn_decode(&m->launch, a);
		if (e == cudaSuccess)
			e = attn_merge(&m->launch, a, mix.longest_short);
	}
	if (e == cudaSuccess && mix.long_rows) {
		a->min_n = most + 1;
		a->max_n = UINT32_MAX;
		e = m->prefill ? attn_prefill(&m->launch, a, mix.long_rows) : attn_whole(&m->launch, a);
	}
	return e;
}

/* Takes products apart, and normalises all heads of a row, those of other ranks too. */
static mx_status arrange(const struct mx_mixer *m, const struct attn_args *a, void *scratch)
{
	const struct attn_params *p = &m->params;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const uint32_t d = p->head_dim;
	const struct attn_summed s = {
		.qkv = a->qkv,
		.ld = a->ld,
		.n_rows = a->n_rows,
		.n = {p->heads * d, p->kv_heads * d},
		.all = {p->all_heads * p->contexts * d, p->all_kv_heads * p->sharers * d},
		.weight = {a->q_norm, a->k_norm},
		.eps = a->norm_eps,
		.sums = (void *)((unsigned char *)scratch + m->scratch.squares)};
	struct attn_args apart = *a;
	apart.norm_whole &= !p->summed;
	mx_status status = cuda->check(m->device, attn_arrange(&m->launch, &apart), "attention");
	if (status != MX_OK || !p->summed)
		return status;
	status = cuda->check(m->device, attn_squares(&m->launch, &s), "attention");
	if (status == MX_OK)
		status = m->comm->ops->all_reduce_f32(m->comm, s.sums, (size_t)2 * s.n_rows);
	return status == MX_OK ? cuda->check(m->device, attn_scaled(&m->launch, &s), "attention")
	                       : status;
}

/* Folds what the rows found in the keys of each rank, for the heads that are this rank's. */
static mx_status fold_ranks(const struct mx_mixer *m, const struct attn_args *a)
{
	const struct mx_partials p = {
		.x = a->sent,
		.rows = a->n_rows,
		.heads = m->params.out_heads,
		.dim = a->dim,
		.sinks = a->sinks ? a->sinks + a->first_out : NULL,
		.y = a->out,
		.ldy = a->ldo,
		.out = a->head_dim,
	};
	return m->context->ops->fold_partials(m->context, &p);
}

static mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                              void *y)
{
	const struct mx_ops *ops = m->device->ops;
	const struct attn_weights *w = &m->weights;
	struct attn_args a = m->args;
	unsigned char *scratch = step->scratch;
	size_t act = mx_dtype_size(m->launch.act);

	if (step->n_rows > m->max_rows || step->n_spans > m->max_spans)
		return MX_E_RANGE;
	if (step->n_rows == 0)
		return MX_OK;
	if (step->tables->parents && m->context) /* the engine makes no trees where pages are shared */
		return MX_E_UNSUPPORTED;
	a.qkv = scratch + m->scratch.qkv;
	a.out = scratch + m->scratch.out;
	a.sums = (float *)(scratch + m->scratch.sums);
	a.values = (float *)(scratch + m->scratch.values);
	a.sent = m->context ? (float *)(scratch + m->scratch.sent) : NULL;
	a.spans = step->tables->spans;
	a.row_span = step->tables->row_span;
	a.pages = step->tables->pages;
	a.pos = step->tables->pos;
	a.parents = step->tables->parents;
	a.n_spans = step->n_spans;
	a.min_shift = attn_min_shift(step->n_spans, a.kv_heads);
	a.lead = attn_lead_for(step->n_spans, a.kv_heads);
	a.n_rows = step->n_rows;
	a.raw = a.ld_raw ? scratch + m->scratch.raw : NULL;
	const uint32_t gates = attn_params_gates(&m->params);
	a.gates = gates ? (float *)(scratch + m->scratch.gates) : NULL;
	unsigned char *k = (unsigned char *)a.qkv + (size_t)a.heads * a.head_dim * act;
	unsigned char *v = k + (size_t)a.kv_heads * a.head_dim * act;
	/* adjacent in memory, so that the device can compute them as one product */
	struct mx_linear_out in[4] = {
		{.w = w->q, .bias = w->q_bias, .y = a.raw ? a.raw : a.qkv, .ldy = a.raw ? a.ld_raw : a.ld},
		{.w = w->k, .bias = w->k_bias, .y = k, .ldy = a.ld},
		{.w = w->v, .bias = w->v_bias, .y = v, .ldy = a.ld},
	};
	size_t n_in = m->params.per_head ? 1 : m->params.k_is_v ? 2 : 3;
	if (a.gates)
		in[n_in++] =
			(struct mx_linear_out){.w = w->gate, .y = a.gates, .ldy = gates, .y_f32 = true};
	const struct mx_linear_out out = {
		.w = w->o, .bias = w->o_bias, .y = y, .ldy = m->width, .accumulate = step->add};
	const struct mx_linear_in from = {.x = x,
	                                  .ldx = m->width,
	                                  .norm = step->norm,
	                                  .norm_eps = step->norm_eps,
	                                  .room = step->norm_room};

	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	mx_status status = step->norm ? ops->linear_normed(m->device, &from, step->n_rows, in, n_in)
	                              : ops->linear(m->device, x, m->width, step->n_rows, in, n_in);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status == MX_OK)
		status = arrange(m, &a, scratch);
	if (status != MX_OK)
		return status;
	status = cuda->check(m->device, attend(m, step, &a), "attention");
	if (status == MX_OK && m->context)
		status = fold_ranks(m, &a);
	if (status == MX_OK)
		status = cuda->check(m->device, attn_gates(&m->launch, &a), "attention");
	if (status != MX_OK)
		return status;
	return ops->linear(m->device, a.out, a.ldo, step->n_rows, &out, 1);
}

static void attn_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "attention: %u heads, %u key heads of %u, keys and values in %s, %s%s%s",
	         m->params.heads, m->params.kv_heads, m->params.head_dim,
	         mx_dtype_name(m->params.dtype), m->plain ? "no tensor cores" : "tensor cores",
	         m->prefill ? ", prompts by warpgroups" : "",
	         m->args.fixed_shift || m->args.ladder ? ", fixed splits" : "");
}

/* Moves what trees left. Of chains nothing needs to be done: the caller tracks lengths, a row reads
 * no position after its own, and rejected positions are written again before they are read. */
static mx_status attn_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                             const struct mx_step *step, const struct mx_kept *kept)
{
	if (!n_layers || !mx_tree_any_moves(step, kept))
		return MX_OK;
	const struct mx_mixer *m = layers[0];
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	struct attn_moves moves = {.spans = step->tables->spans, .pages = step->tables->pages};
	mx_status status = cuda->bind(m->device);
	for (uint32_t next = 0; status == MX_OK;) {
		moves.n = mx_tree_take_moves(step, kept, &next, moves.of);
		if (!moves.n)
			break;
		status = cuda->check(m->device, attn_move(&m->launch, &moves, m->pages, n_layers),
		                     "attention, commit");
	}
	return status;
}

static const struct mx_mixer_ops attn_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "attention",
	.summary = "softmax attention over paged keys and values, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_SHARE_PAGES | MX_MIXER_ADD |
            MX_MIXER_NORM | MX_MIXER_RANKS | MX_MIXER_CONTEXT,
	.probe = attn_probe,
	.weights = attn_params_weights,
	.state = attn_state,
	.extent = mx_mixer_extent_all,
	.create = attn_create,
	.prepare = attn_prepare,
	.destroy = attn_destroy,
	.forward = attn_forward,
	.commit = attn_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = attn_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &attn_ops;
}
