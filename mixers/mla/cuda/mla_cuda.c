/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer mla on CUDA devices: memory, life cycle, and which kernel computes which
 * spans of a step. As on CPUs everything is absorbed (../README.md): kv_b's part for keys is
 * applied to queries, its part for values to sums of latents.
 */
#include "mixers/mla/cuda/mla_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "device/comm.h"
#include "device/cuda/cuda.h"
#include "mixers/mla/mla_params.h"

#define WAVES     2  /* splits: at most this many thread blocks a multiprocessor */
#define MOST_ROWS 64 /* of a thread block */

/* Where things are in the step's scratch memory, in bytes from its start. */
struct scratch {
	size_t q_latent, q, latent, absorbed, sums, stats, values, sent, bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct mla_params params;
	struct mla_weights weights;
	struct mx_device *device;
	struct mx_comm *context; /* of the ranks that share pages; NULL = none do */
	struct mla_launch launch;
	struct mla_args args; /* everything that is the same in every step */
	struct scratch scratch;
	struct mx_weight *uk, *uv;   /* [heads], owned: each [rank, nope] and [v, rank] */
	struct mx_linear_each *each; /* [heads], owned: arguments of one call */
	void *uk_data;               /* device memory, owned: the keys' part of kv_b, transposed */
	float *inv_freq;             /* device memory, owned; NULL without rotation */
	uint32_t width, max_rows, max_spans;
	uint32_t sms;
	bool plain;      /* no tensor cores */
	bool wide;       /* there is room for four blocks of queries at a time */
	bool fast_heads; /* the products of heads have a kernel of their own */
	bool fixed;      /* splits are fixed */
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct mla_params p;
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "mla: this module runs on CUDA devices in bf16 or f32");
	mx_status status = mla_params_read(layer, &p, err);
	if (status == MX_OK && p.head_gate)
		status = mx_mixer_fail(err, MX_E_UNSUPPORTED, "mla: head_gate runs on CPUs only");
	if (status == MX_OK && p.contexts > 1 && p.rank % 4)
		status = mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                       "mla: latents of %u elements are not shared by GPUs: must be a "
		                       "multiple of 4",
		                       p.rank);
	return status;
}

/* ---- sizes ---- */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* Elements of a row of a page: rows are multiples of 128 bytes. */
static uint32_t row_elements(const struct mla_params *p)
{
	const size_t size = mx_dtype_size(p->dtype);
	return (uint32_t)(round_up((p->rank + p->rope) * size, 128) / size);
}

/* Splits of a deterministic device: few enough that the partials of all spans have room. */
static void fix_splits(const struct mx_layer_desc *layer, const struct mla_params *p,
                       struct mla_args *a)
{
	const uint32_t most = p->heads <= 16 ? 16 : p->heads >= 128 ? 2 : 256 / p->heads;
	const struct mx_places places = mx_places_of_rank(p->contexts, p->context);
	const uint32_t keys = mx_most_places(&places, layer->max_context ? layer->max_context : 1);
	a->split = (uint32_t)round_up((keys + most - 1) / most, MLA_KEYS);
	a->parts = (keys + a->split - 1) / a->split;
}

static size_t partial_rows(const struct mx_layer_desc *layer, const struct mla_params *p,
                           const struct mx_device *device)
{
	const struct mx_cuda_base *cuda = (const struct mx_cuda_base *)device;
	struct mla_args a;
	if (!device->info.deterministic)
		return (size_t)WAVES * (size_t)cuda->sms * MOST_ROWS;
	fix_splits(layer, p, &a);
	return a.parts == 1 ? 0
	                    : layer->max_spans * a.parts *
	                          round_up(p->heads, p->heads >= 2 * MLA_ROWS ? MOST_ROWS : MLA_ROWS);
}

static size_t take(size_t *at, size_t bytes)
{
	const size_t from = *at;
	*at += round_up(bytes, 256);
	return from;
}

static void lay_out(const struct mx_layer_desc *layer, const struct mla_params *p,
                    const struct mx_device *device, struct scratch *out)
{
	const size_t row = layer->max_rows * mx_dtype_size(device->info.act_dtype);
	const size_t per_head = p->nope + p->rope > p->v ? p->nope + p->rope : p->v;
	const size_t partials = partial_rows(layer, p, device);
	struct scratch s = {0};
	s.q_latent = take(&s.bytes, row * p->q_rank);
	s.q = take(&s.bytes, row * p->heads * per_head);
	s.latent = take(&s.bytes, row * (p->rank + p->rope));
	s.absorbed = take(&s.bytes, row * p->heads * row_elements(p));
	s.sums = take(&s.bytes, row * p->heads * p->rank);
	s.stats = take(&s.bytes, partials * 2 * sizeof(float));
	s.values = take(&s.bytes, partials * p->rank * sizeof(float));
	if (p->contexts > 1)
		s.sent = take(&s.bytes, (size_t)layer->max_rows * p->heads * (p->rank + 4) * sizeof(float));
	*out = s;
}

static size_t uk_bytes(const struct mla_params *p, const struct mx_device *device)
{
	return (size_t)p->heads * p->rank * p->nope * mx_dtype_size(device->info.act_dtype);
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct mla_params p;
	struct scratch scratch;
	mx_status status = mla_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	lay_out(layer, &p, device, &scratch);
	*out = (struct mx_state_spec){
		.bytes_per_token = row_elements(&p) * mx_dtype_size(p.dtype),
		.page_multiple = p.contexts > 1 ? MX_TURN : MLA_GROUP,
		.scratch_bytes = scratch.bytes,
		.instance_bytes = uk_bytes(&p, device),
	};
	return MX_OK;
}

/* ---- life cycle ---- */

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (m->device) {
		m->device->ops->release(m->device, m->uk_data);
		m->device->ops->release(m->device, m->inv_freq);
	}
	free(m->uk);
	free(m->uv);
	free(m->each);
	free(m);
}

/* Takes kv_b apart: rows of a head are [nope of its keys | v of its values]. The keys' part is
 * applied to queries from the other side, so a transposed copy of it is made. */
static mx_status absorb(struct mx_mixer *m)
{
	const struct mla_params *p = &m->params;
	const struct mx_weight *kv = m->weights.kv_b;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const size_t size = mx_dtype_size(kv->dtype), head = (size_t)p->rank * p->nope * size;
	m->uk = calloc(p->heads, sizeof *m->uk);
	m->uv = calloc(p->heads, sizeof *m->uv);
	m->each = calloc(p->heads, sizeof *m->each);
	if (!m->uk || !m->uv || !m->each)
		return MX_E_NOMEM;
	mx_status status = m->device->ops->alloc(m->device, uk_bytes(p, m->device), &m->uk_data);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status != MX_OK)
		return status;
	for (uint32_t h = 0; h < p->heads; h++) {
		unsigned char *to = (unsigned char *)m->uk_data + h * head;
		m->uk[h] = (struct mx_weight){kv->dtype, p->rank, p->nope, to, NULL};
		m->uv[h] = mx_weight_rows(kv, h * (p->nope + p->v) + p->nope, p->v);
	}
	return cuda->check(m->device,
	                   mla_transpose(m->launch.stream, size, kv->data,
	                                 (size_t)(p->nope + p->v) * p->rank, p->heads, p->nope, p->rank,
	                                 m->uk_data),
	                   "mla: transpose");
}

static mx_status load_frequencies(struct mx_mixer *m)
{
	float table[MLA_MAX_DIM / 2];
	void *to = NULL;
	if (!m->params.rotates)
		return MX_OK;
	for (uint32_t i = 0; i < m->params.rope / 2; i++)
		table[i] = mla_params_frequency(&m->params, i);
	mx_status status = mx_upload_array(m->device, table, m->params.rope / 2 * sizeof(*table), &to);
	m->inv_freq = to;
	return status;
}

/* Sets the kernel arguments that are the same in every step, and chooses the kernels. */
static void set_args(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const struct mla_params *p = &m->params;
	const size_t smem = mx_cuda_base(m->device)->smem;
	struct mla_args a = {
		.heads = p->heads,
		.rank = p->rank,
		.nope = p->nope,
		.rope = p->rope,
		.v = p->v,
		.dim = row_elements(p),
		.scale = p->scale,
		.norm_eps = p->norm_eps,
		.rope_factor = p->rope_factor,
		.q_beta = p->q_beta,
		.q_length = p->q_length,
		.pairs = p->pairs,
		.skip_first = p->skip_first,
		.inv_freq = m->inv_freq,
		.kv_norm = m->weights.kv_norm,
		.page_base = init->page_base,
		.page_stride = init->page_stride,
		.page_tokens = init->page_tokens,
		.places = mx_places_of_rank(p->contexts, p->context),
	};
	m->fixed = m->device->info.deterministic;
	if (m->fixed)
		fix_splits(init->layer, p, &a);
	a.stages = 2;
	if (mla_attend_smem(&a, 1, m->fixed) > smem)
		a.stages = 1;
	m->plain = m->launch.act != MX_BF16 || m->launch.kv != MX_BF16 || p->rank % 16 ||
	           mla_attend_smem(&a, 1, m->fixed) > smem;
	m->args = a;
	m->wide = mla_attend_smem(&a, 4, false) <= smem;
	m->fast_heads = m->launch.act == MX_BF16 && p->nope % 32 == 0 && p->rank % 32 == 0 &&
	                p->v % 16 == 0 && (p->nope + p->rope) % 8 == 0;
}

static const struct mx_mixer_ops mla_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	const struct mx_cuda_base *cuda = mx_cuda_base(init->device);
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "mla: out of memory");
	m->base = (struct mx_mixer_base){&mla_cuda_ops, layer->index};
	m->device = init->device;
	m->context = init->context;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	m->max_spans = layer->max_spans;
	m->sms = (uint32_t)cuda->sms;
	mx_status status = mla_params_read(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	const uint32_t multiple = m->params.contexts > 1 ? MX_TURN : MLA_GROUP;
	if (init->page_tokens == 0 || init->page_tokens % multiple) {
		status = mx_mixer_fail(err, MX_E_INVALID, "mla: pages of %u tokens", init->page_tokens);
		goto fail;
	}
	mla_params_take(&m->params, init->weights, &m->weights);
	m->launch =
		(struct mla_launch){(cudaStream_t)cuda->stream, m->device->info.act_dtype, m->params.dtype};
	status = absorb(m);
	if (status == MX_OK)
		status = load_frequencies(m);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "mla: no memory on the device");
		goto fail;
	}
	m->params.inv_freq = NULL; /* the description ends with this call */
	set_args(m, init);
	lay_out(layer, &m->params, m->device, &m->scratch);
	*out = m;
	return MX_OK;
fail:
	destroy(m);
	return status;
}

static mx_status prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	mx_status status = n_layers ? mx_cuda_base(layers[0]->device)->bind(layers[0]->device) : MX_OK;
	if (status != MX_OK)
		return mx_mixer_fail(err, status, "mla: the device cannot be made current");
	/* an attribute of a kernel is one for all layers */
	const struct mx_mixer *most = NULL;
	for (uint32_t i = 0; i < n_layers; i++)
		if (!layers[i]->plain && (!most || mla_attend_smem(&layers[i]->args, 1, false) >
		                                       mla_attend_smem(&most->args, 1, false)))
			most = layers[i];
	cudaError_t e =
		most ? mla_attend_prepare(&most->args, mx_cuda_base(most->device)->smem) : cudaSuccess;
	return e == cudaSuccess ? MX_OK
	                        : mx_mixer_fail(err, MX_E_DEVICE, "mla: kernels for latents of %u: %s",
	                                        most->args.rank, cudaGetErrorString(e));
}

/* ---- a step ---- */

/* Multiplies each of so many heads of x, of ldx elements each, by its own weight. */
static mx_status each_head(const struct mx_mixer *m, uint32_t n, uint32_t heads,
                           const struct mx_weight *w, size_t w_head, const void *x, uint32_t ldx,
                           void *y, uint32_t ldy)
{
	const size_t act = mx_dtype_size(m->launch.act);
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	if (m->fast_heads) {
		const struct mla_product a = {.w = w[0].data,
		                              .x = x,
		                              .y = y,
		                              .w_head = w_head,
		                              .ldx = ldx,
		                              .ldy = ldy,
		                              .n = n,
		                              .heads = heads,
		                              .rows = w[0].rows,
		                              .cols = w[0].cols};
		return cuda->check(m->device, mla_heads(m->launch.stream, &a), "mla: heads");
	}
	for (uint32_t h = 0; h < heads; h++)
		m->each[h] = (struct mx_linear_each){.w = &w[h],
		                                     .x = (const unsigned char *)x + h * ldx * act,
		                                     .ldx = (size_t)heads * ldx,
		                                     .y = (unsigned char *)y + h * ldy * act,
		                                     .ldy = (size_t)heads * ldy};
	return m->device->ops->linear_each(m->device, n, m->each, heads);
}

/* Computes queries and latents. */
static mx_status project(const struct mx_mixer *m, const struct mx_step *step, const void *x)
{
	const struct mla_params *p = &m->params;
	const struct mla_weights *w = &m->weights;
	const struct mx_ops *ops = m->device->ops;
	unsigned char *scratch = step->scratch, *low = scratch + m->scratch.q_latent;
	const struct mx_linear_out q = {
		.w = w->q, .y = scratch + m->scratch.q, .ldy = (size_t)p->heads * (p->nope + p->rope)};
	struct mx_linear_out in[2] = {{.w = w->kv_a,
	                               .bias = w->kv_a_bias,
	                               .y = scratch + m->scratch.latent,
	                               .ldy = p->rank + p->rope},
	                              q};
	if (p->q_rank)
		in[1] =
			(struct mx_linear_out){.w = w->q_a, .bias = w->q_a_bias, .y = low, .ldy = p->q_rank};
	mx_status status = ops->linear(m->device, x, m->width, step->n_rows, in, 2);
	if (status != MX_OK || !p->q_rank)
		return status;
	status = ops->rmsnorm(m->device, low, w->q_norm, p->norm_eps, step->n_rows, p->q_rank, low);
	return status != MX_OK ? status : ops->linear(m->device, low, p->q_rank, step->n_rows, &q, 1);
}

/* Returns how many splits fill the multiprocessors best, for so many thread blocks a split. */
static uint32_t choose_parts(uint32_t sms, uint32_t blocks)
{
	uint32_t best = 1;
	double fill = 0;
	for (uint32_t n = 1; n == 1 || n * blocks <= WAVES * sms; n++) {
		const uint32_t waves = (n * blocks + sms - 1) / sms;
		const double f = (double)(n * blocks) / (double)(waves * sms);
		if (f > fill + 0.1) {
			fill = f;
			best = n;
		}
	}
	return best;
}

/* Computes the spans of at most MLA_SHORT tokens, or of one on a deterministic device. */
static cudaError_t attend_short(const struct mx_mixer *m, struct mla_args *a)
{
	const uint32_t rows = a->longest * a->heads;
	const int blocks = m->wide && rows >= 2 * MLA_ROWS ? 4 : 1;
	const uint32_t n = (uint32_t)blocks * MLA_ROWS;
	if (!m->fixed)
		a->parts = choose_parts(m->sms, a->n_spans * ((rows + n - 1) / n));
	cudaError_t e = mla_attend(&m->launch, a, blocks);
	return e != cudaSuccess ? e : mla_merge(&m->launch, a, blocks);
}

static cudaError_t attend(const struct mx_mixer *m, const struct mx_step *step, struct mla_args *a)
{
	const uint32_t most = m->fixed ? 1 : MLA_SHORT;
	uint32_t longest_short = 0, longest = 0;
	cudaError_t e = cudaSuccess;
	if (m->plain)
		return mla_plain(&m->launch, a);
	if (step->recording) { /* spans of any length up to `longest` */
		longest_short = step->longest < most ? step->longest : most;
		longest = step->longest > most ? step->longest : 0;
	}
	for (uint32_t i = 0; !step->recording && i < step->n_spans; i++) {
		uint32_t *of = step->spans[i].n > most ? &longest : &longest_short;
		*of = step->spans[i].n > *of ? step->spans[i].n : *of;
	}
	if (longest_short) {
		a->min_n = 1;
		a->max_n = most;
		a->longest = longest_short;
		e = attend_short(m, a);
	}
	if (e != cudaSuccess || !longest)
		return e;
	a->min_n = most + 1;
	a->max_n = UINT32_MAX;
	a->longest = longest;
	if (m->fixed)
		return mla_whole(&m->launch, a);
	a->parts = 1;
	return mla_attend(&m->launch, a, m->wide ? 4 : 1);
}

/* Folds what the rows found in the keys of each rank, for the heads that are this rank's. */
static mx_status fold_ranks(const struct mx_mixer *m, const struct mla_args *a)
{
	const struct mla_params *p = &m->params;
	const struct mx_partials partials = {
		.x = a->sent,
		.rows = a->n_rows,
		.heads = p->out_heads,
		.dim = p->rank,
		.y = a->sums,
		.ldy = (size_t)p->out_heads * p->rank,
		.out = p->rank,
	};
	return m->context->ops->fold_partials(m->context, &partials);
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mla_params *p = &m->params;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const uint32_t n = step->n_rows, dim = m->args.dim;
	unsigned char *scratch = step->scratch;
	struct mla_args a = m->args;
	if (n > m->max_rows || step->n_spans > m->max_spans)
		return MX_E_RANGE;
	if (n == 0)
		return MX_OK;
	a.spans = step->tables->spans;
	a.row_span = step->tables->row_span;
	a.pages = step->tables->pages;
	a.n_spans = step->n_spans;
	a.n_rows = n;
	a.q = scratch + m->scratch.q;
	a.latent = scratch + m->scratch.latent;
	a.absorbed = scratch + m->scratch.absorbed;
	a.sums = scratch + m->scratch.sums;
	a.stats = (float *)(scratch + m->scratch.stats);
	a.values = (float *)(scratch + m->scratch.values);
	a.sent = m->context ? (float *)(scratch + m->scratch.sent) : NULL;
	const struct mx_linear_out out = {
		.w = m->weights.o, .bias = m->weights.o_bias, .y = y, .ldy = m->width};

	mx_status s = project(m, step, x);
	if (s == MX_OK)
		s = cuda->bind(m->device);
	if (s == MX_OK)
		s = cuda->check(m->device, mla_arrange(&m->launch, &a), "mla: arrange");
	if (s == MX_OK)
		s = each_head(m, n, p->heads, m->uk, (size_t)p->rank * p->nope, a.q, p->nope + p->rope,
		              a.absorbed, dim);
	if (s == MX_OK)
		s = cuda->check(m->device, attend(m, step, &a), "mla: softmax");
	if (s == MX_OK)
		s = m->context ? fold_ranks(m, &a) : MX_OK;
	if (s == MX_OK)
		s = each_head(m, n, p->out_heads, m->uv + p->first_out, (size_t)(p->nope + p->v) * p->rank,
		              a.sums, p->rank, a.q, p->v);
	return s != MX_OK
	           ? s
	           : m->device->ops->linear(m->device, a.q, (size_t)p->out_heads * p->v, n, &out, 1);
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct mla_params *p = &m->params;
	snprintf(text, cap, "mla: %u heads, latents of %u + %u in %s, %s%s", p->heads, p->rank, p->rope,
	         mx_dtype_name(p->dtype), m->plain ? "no tensor cores" : "tensor cores",
	         m->fixed ? ", fixed splits" : "");
}

/* commit does nothing: the caller tracks lengths, a row reads no position after its own, and
 * positions that are taken back are written again before they are read. */
static const struct mx_mixer_ops mla_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mla",
	.summary = "multi-head latent attention over paged latents, for NVIDIA GPUs",
	.caps =
		MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_RANKS | MX_MIXER_CONTEXT,
	.probe = probe,
	.weights = mla_params_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = prepare,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mla_cuda_ops;
}
