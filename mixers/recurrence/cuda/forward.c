/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a recurrent layer on a CUDA device. */
#include "device/comm.h"
#include "device/cuda/cuda.h"
#include "mixers/recurrence/cuda/layer_cuda.h"
#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/tree.h"

/* What the functions of a step share. */
struct run {
	const struct mx_mixer *m;
	const struct mx_step *step;
	unsigned char *scratch;
	size_t act; /* bytes of an activation */
	cudaStream_t stream;
};

static void *at(const struct run *r, size_t offset)
{
	return r->scratch + offset;
}

/* Returns the product of a stream, or of the streams of a packed one. */
static struct mx_linear_out product(const struct run *r, const struct mx_weight *w,
                                    const float *bias, uint32_t off, bool gates)
{
	const struct recur_cuda_sizes *z = &r->m->sizes;
	unsigned char *base = at(r, gates ? z->scratch.gates : z->scratch.proj);
	return (struct mx_linear_out){.w = w,
	                              .bias = bias,
	                              .y = base + off * (gates ? sizeof(float) : r->act),
	                              .ldy = gates ? z->ld_gates : z->ld_proj,
	                              .y_f32 = gates};
}

/* Computes all products of the layer's input, with its norm if the step says so, then the second
 * ones of low-rank streams. Biases of `gates` are added later, so that its products can be one. */
static mx_status project(const struct run *r, const void *x)
{
	static const int order[] = {MX_RECUR_Q, MX_RECUR_K,    MX_RECUR_V,
	                            MX_RECUR_A, MX_RECUR_BETA, MX_RECUR_GATE};
	const struct mx_mixer *m = r->m;
	const struct recur_cuda_weights *w = &m->w;
	const struct mx_ops *ops = m->device->ops;
	struct mx_linear_out outs[MX_RECUR_STREAMS + 2];
	const size_t n_rows = r->step->n_rows;
	const bool gate_first = m->source[MX_RECUR_GATE].off < m->packed_at[0];
	size_t n = 0;

	if (gate_first)
		outs[n++] =
			product(r, w->streams[MX_RECUR_GATE].w, w->streams[MX_RECUR_GATE].bias, 0, false);
	for (int i = 0; i < 2; i++)
		if (w->packed[i])
			outs[n++] = product(r, w->packed[i], i ? NULL : w->packed_bias, m->packed_at[i], i);
	for (int i = 0; i < MX_RECUR_STREAMS; i++) {
		const int s = order[i];
		const struct recur_cuda_stream *from = &w->streams[s];
		const struct recur_source *to = &m->source[s];
		if (!from->w || (s == MX_RECUR_GATE && gate_first))
			continue;
		if (from->up)
			outs[n++] = (struct mx_linear_out){
				.w = from->w, .y = at(r, m->sizes.scratch.low[s]), .ldy = from->w->rows};
		else
			outs[n++] = product(r, from->w, to->gates ? NULL : from->bias, to->off, to->gates);
	}
	const struct mx_linear_in in = {.x = x,
	                                .ldx = m->width,
	                                .norm = r->step->norm,
	                                .norm_eps = r->step->norm_eps,
	                                .room = r->step->norm_room};
	mx_status status = in.norm ? ops->linear_normed(m->device, &in, n_rows, outs, n)
	                           : ops->linear(m->device, x, m->width, n_rows, outs, n);
	for (int s = 0; s < MX_RECUR_STREAMS && status == MX_OK; s++) {
		const struct recur_cuda_stream *from = &w->streams[s];
		const struct recur_source *to = &m->source[s];
		if (!from->up)
			continue;
		const struct mx_linear_out up =
			product(r, from->up, to->gates ? NULL : from->bias, to->off, to->gates);
		status =
			ops->linear(m->device, at(r, m->sizes.scratch.low[s]), from->w->rows, n_rows, &up, 1);
	}
	return status;
}

static struct recur_step step_of(const struct run *r)
{
	const struct mx_device_tables *t = r->step->tables;
	return (struct recur_step){
		.spans = t->spans,
		.row_span = t->row_span,
		.pos = t->pos,
		.parents = t->parents,
		.n_rows = r->step->n_rows,
		.n_spans = r->step->n_spans,
		.slot_base = r->m->slots.first,
		.slot_stride = r->m->slots.stride,
	};
}

static struct recur_conv conv_of(const struct mx_mixer *m)
{
	return (struct recur_conv){
		.taps = m->desc.taps,
		.channels = m->sizes.channels,
		.cap = m->desc.taps + m->desc.core.max_draft,
		.at = m->sizes.conv_at,
	};
}

/* The trained products of feature maps, for all heads of a row at once. */
static mx_status feature_products(const struct run *r, const struct recur_rows *a)
{
	const struct mx_mixer *m = r->m;
	const uint32_t heads[2] = {m->desc.core.q_heads, m->desc.core.k_heads}, dim = m->desc.k_dim;
	mx_status status = MX_OK;
	for (int qk = 0; qk < 2 && status == MX_OK; qk++) {
		struct mx_linear_out outs[2];
		const int n = mx_recur_feature_layers(m->desc.feature);
		for (int i = 0; i < n; i++)
			outs[i] = (struct mx_linear_out){.w = m->w.feature[qk][i],
			                                 .bias = m->w.feature_bias[qk][i],
			                                 .y = (void *)a->layers[qk][i],
			                                 .ldy = dim};
		status = m->device->ops->linear(m->device, a->plain[qk], dim,
		                                (size_t)r->step->n_rows * heads[qk], outs, (size_t)n);
	}
	return status;
}

/* What becomes of streams before the recurrence. */
static struct recur_rows rows_of(const struct run *r)
{
	const struct mx_mixer *m = r->m;
	const struct mx_recur_layer *d = &m->desc;
	const struct recur_cuda_scratch *s = &m->sizes.scratch;
	const int layers = mx_recur_feature_layers(d->feature);
	struct recur_rows a = {
		.step = step_of(r),
		.conv = conv_of(m),
		.proj = at(r, s->proj),
		.gates = at(r, s->gates),
		.ld_proj = m->sizes.ld_proj,
		.ld_gates = m->sizes.ld_gates,
		.first = layers > 0,
		.feature = d->feature,
		.features = d->core.k_dim,
		.norm = {d->norm_q, d->norm_k},
		.scale = {d->q_scale, 1},
		.inv_freq = m->tables.inv_freq,
		.decay = d->decay,
		.pre = m->tables.pre,
		.mul = m->tables.mul,
		.add = m->tables.add,
		.decay_min = d->decay_min,
		.beta = d->beta,
		.beta_scale = d->beta_scale,
		.step_min = d->step_min,
		.step_max = d->step_max,
		.k_is_rest = d->k_is_rest,
		.v_times_rest = d->v_times_rest,
		.vector = d->core.decay == MX_RECUR_VECTOR,
		.channel = d->core.decay == MX_RECUR_CHANNEL,
		.one = d->normalize,
		.q = at(r, s->q),
		.k = at(r, s->k),
		.v = at(r, s->v),
		.a = at(r, s->a),
		.b = at(r, s->b),
		.kpad = m->sizes.kpad,
		.vpad = m->sizes.vpad,
	};
	memcpy(a.source, m->source, sizeof a.source);
	for (int qk = 0; qk < 2 && layers; qk++) {
		a.plain[qk] = at(r, s->plain[qk]);
		for (int i = 0; i < layers; i++)
			a.layers[qk][i] = at(r, s->layers[qk][i]);
	}
	return a;
}

/* Computes what the recurrence takes. */
static mx_status prepare_rows(const struct run *r, struct recur_rows a)
{
	const struct mx_mixer *m = r->m;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const enum mx_dtype act = m->device->info.act_dtype;
	const cudaError_t e = recur_cuda_heads_can(&a) ? recur_cuda_heads(r->stream, act, &a)
	                                               : recur_cuda_rows(r->stream, act, &a);
	mx_status status = cuda->check(m->device, e, "recurrence, rows");
	if (status != MX_OK || !a.first)
		return status;
	status = feature_products(r, &a);
	a.first = false;
	a.second = true;
	if (status == MX_OK)
		status =
			cuda->check(m->device, recur_cuda_rows(r->stream, act, &a), "recurrence, features");
	return status;
}

/* The kinds of spans in a step: of no more than `few` tokens (0: there are none), how many are
 * long, trees, others. Only decode steps are recorded: of one token each, or of drafts. */
struct mixture {
	uint32_t few, longs;
	bool trees, others;
};

/* True if recur_cuda_chunks is the faster one for a recording of drafts, although recur_cuda_few
 * can: a third part of a span costs narrow units more. The only sequence of a step with trees is a
 * tree, so that other kernels have nothing to do. */
static bool takes_chunks(const struct run *r, bool trees)
{
	const struct mx_step *step = r->step;
	const bool narrow = r->m->sizes.unit.cols < RECUR_UNIT;
	if (step->n_spans == 1)
		return trees;
	return narrow && step->n_rows > (RECUR_FEW - 1) * step->n_spans;
}

static struct mixture sort_spans(const struct run *r)
{
	const struct mx_step *step = r->step;
	const uint32_t most = r->m->sizes.few;
	struct mixture mix = {0};
	if (step->recording) {
		const uint32_t longest = r->m->desc.core.max_draft ? step->longest : 1;
		mix.trees = longest > 1 && step->tables->parents;
		mix.others = longest > 1 && (longest > most || takes_chunks(r, mix.trees));
		mix.few = mix.others ? 0 : longest > 1 ? most : 1;
		return mix;
	}
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *s = &step->spans[i];
		if (s->parent && s->n > 1)
			mix.trees = true;
		else if (s->n == 1 || s->n <= most)
			mix.few = s->n > 1 ? most : mix.few ? mix.few : 1;
		else if (s->n >= RECUR_LONG && s->kind != MX_SPAN_DRAFT)
			mix.longs++;
		else
			mix.others = true;
	}
	return mix;
}

/* Launches the kernels of the spans that are there. */
static cudaError_t recur_spans(const struct run *r, enum mx_dtype act, const struct recur_one *one)
{
	const struct recur_core *a = &one->core;
	const struct mixture mix = sort_spans(r);
	cudaError_t e = cudaSuccess;
	if (a->all)
		return recur_cuda_chunks(r->stream, act, a);
	if (mix.few)
		e = mix.few > 1 ? recur_cuda_few(r->stream, one) : recur_cuda_step(r->stream, one);
	if (e == cudaSuccess && (mix.others || mix.trees))
		e = recur_cuda_chunks(r->stream, act, a);
	if (e == cudaSuccess && mix.longs)
		e = r->m->sizes.stretches ? recur_cuda_stretch(r->stream, a)
		                          : recur_cuda_prompt(r->stream, a);
	return e;
}

/* Returns 2^32 over `all` / `n`, rounded up. */
static uint64_t quotient(uint32_t all, uint32_t n)
{
	const uint64_t each = n ? all / n : 1;
	return (((uint64_t)1 << 32) + each - 1) / each;
}

static struct recur_core core_of(const struct run *r)
{
	const struct mx_mixer *m = r->m;
	const struct mx_recur_layer *d = &m->desc;
	const struct mx_recur_spec *c = &d->core;
	const struct recur_cuda_scratch *s = &m->sizes.scratch;
	const enum mx_dtype act = m->device->info.act_dtype;
	const struct mixture mix = sort_spans(r);
	struct recur_core a = {
		.step = step_of(r),
		.conv = conv_of(m),
		.proj = at(r, s->proj),
		.ld_proj = m->sizes.ld_proj,
		.unit = m->sizes.unit,
		.heads = c->heads,
		.q_heads = c->q_heads,
		.k_heads = c->k_heads,
		.v_heads = c->v_heads,
		.a_heads = c->a_heads,
		.per_q = quotient(c->heads, c->q_heads),
		.per_k = quotient(c->heads, c->k_heads),
		.per_v = quotient(c->heads, c->v_heads),
		.per_a = quotient(c->heads, c->a_heads),
		.per_unit = quotient(m->sizes.unit.per_head, 1),
		.keep_channels = (m->sizes.channels + m->sizes.units - 1) / m->sizes.units,
		.kpad = m->sizes.kpad,
		.vpad = m->sizes.vpad,
		.v_dim = c->v_dim,
		.delta = c->delta,
		.gain = c->gain,
		.vector = c->decay == MX_RECUR_VECTOR,
		.decays = c->decay != MX_RECUR_NO_DECAY,
		.q = at(r, s->q),
		.k = at(r, s->k),
		.v = at(r, s->v),
		.a = at(r, s->a),
		.b = d->beta == MX_RECUR_BETA_FIXED ? NULL : at(r, s->b),
		.fixed_a = m->tables.fixed_a,
		.fixed_b = d->beta_scale,
		.skip = m->w.skip,
		.y = at(r, s->y),
		.all = act != MX_BF16 || (r->step->recording && mix.others),
		.few = mix.few ? mix.few : 1,
		.records = at(r, s->records),
		.n_records =
			r->step->n_rows / MX_RECUR_CHUNK + r->step->n_spans * m->sizes.extra_chunks + 1,
		.note_bytes = recur_cuda_note_bytes(m->sizes.kpad, c->decay == MX_RECUR_VECTOR, c->delta),
		.n_notes = r->step->n_rows / RECUR_STRETCH + r->step->n_spans * m->sizes.extra_chunks + 1,
		.extra_chunks = m->sizes.extra_chunks,
		.pieces = at(r, s->pieces),
		.n_pieces = m->sizes.stretches && !c->delta ? RECUR_PIECES : 0,
	};
	memcpy(a.source, m->source, sizeof a.source);
	return a;
}

static struct recur_out out_of(const struct run *r)
{
	const struct mx_mixer *m = r->m;
	const struct mx_recur_layer *d = &m->desc;
	const struct recur_cuda_scratch *s = &m->sizes.scratch;
	struct recur_out a = {
		.n_rows = r->step->n_rows,
		.norm = d->out,
		.has_norm = d->norm,
		.y = at(r, s->y),
		.ldy = (size_t)d->core.heads * d->core.v_dim,
		.heads = d->core.heads,
		.head_dim = d->v_dim,
		.head_ld = d->core.v_dim,
		.divide = d->normalize,
		.gate = at(r, s->proj),
		.ld_gate = m->sizes.ld_proj,
		.source = m->source[MX_RECUR_GATE],
		.gate_scale = d->gate_scale,
		.by_turns = d->by_turns,
		.out = at(r, s->out),
	};
	a.norm.weight = m->w.norm;
	return a;
}

/* Norm and gate; the squares of a norm that ranks share are summed up over them. */
static mx_status finish(const struct run *r, const struct recur_out *a)
{
	const struct mx_mixer *m = r->m;
	const struct mx_recur_layer *d = &m->desc;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const enum mx_dtype act = m->device->info.act_dtype;
	const struct recur_share share = {.sums = at(r, m->sizes.scratch.sums),
	                                  .group = d->share_group,
	                                  .groups = d->share_groups,
	                                  .dim = d->share_dim};
	if (!share.groups)
		return cuda->check(m->device, recur_cuda_out(r->stream, act, a), "recurrence, norm");
	mx_status status = cuda->check(m->device, recur_cuda_squares(r->stream, act, a, &share),
	                               "recurrence, squares");
	if (status == MX_OK)
		status =
			m->comm->ops->all_reduce_f32(m->comm, share.sums, (size_t)a->n_rows * share.groups);
	return status == MX_OK ? cuda->check(m->device, recur_cuda_scaled(r->stream, act, a, &share),
	                                     "recurrence, norm")
	                       : status;
}

/* True if the norm is left to the last product (`linear_normed`), as pays in steps of few rows: a
 * norm of all heads behind their gates. The device computes it in the product's kernel where the
 * rows fit there, else in a kernel of its own. Either way the gated outputs are rounded once more,
 * so a deterministic device has the norm in `out` always. */
static bool norm_later(const struct run *r)
{
	const struct mx_mixer *m = r->m;
	const struct mx_recur_layer *d = &m->desc;
	return m->device->ops->linear_normed && r->step->n_rows <= m->device->info.fused_rows &&
	       !m->device->info.deterministic && d->norm && d->out.groups == 1 && !d->share_groups &&
	       d->out.gate_first && !d->out.center && m->w.norm && !d->by_turns;
}

/* Makes each head a group of its own, which has a gate and no norm. */
static void leave_norm(struct recur_out *a)
{
	a->has_norm = false;
	a->norm.groups = a->heads;
	a->norm.dim = a->head_dim;
	a->norm.weight = NULL;
}

/* True if a stream of rows that are `ld` apart is what the recurrence takes: heads of `pad`
 * elements, one behind the other, with which nothing is to be done. */
static bool in_place(const struct recur_source *s, uint32_t pad, size_t ld)
{
	return s->heads && !s->gates && !s->conv && !s->silu && !s->bias && s->dim == pad &&
	       (s->per >= s->heads || s->stride == s->per * s->dim) && s->off % 8 == 0 && ld % 8 == 0;
}

/* Lets recur_cuda_stretch read k and v in the products where they are the same: they are not
 * written then. Only for steps of which no other kernel takes them. */
static void leave_in_place(const struct recur_rows *rows, struct recur_core *core,
                           struct recur_rows *out)
{
	const struct recur_source *k = &rows->source[MX_RECUR_K], *v = &rows->source[MX_RECUR_V];
	const uint16_t *proj = rows->proj; /* bf16 */
	if (in_place(k, rows->kpad, rows->ld_proj) && k->heads == core->k_heads &&
	    rows->feature == MX_RECUR_FEATURE_IDENTITY && rows->norm[1] == MX_RECUR_QK_NONE &&
	    rows->scale[1] == 1 && !rows->inv_freq && !rows->k_is_rest) {
		core->k = proj + k->off, core->ld_k = (uint32_t)rows->ld_proj;
		out->k = NULL;
	}
	if (in_place(v, rows->vpad, rows->ld_proj) && v->heads == core->v_heads &&
	    !rows->v_times_rest && !rows->one) {
		core->v = proj + v->off, core->ld_v = (uint32_t)rows->ld_proj;
		out->v = NULL;
	}
}

/* Everything between the products but the norm, if that is for `later`: one kernel if it can
 * compute the step alone. */
static mx_status recur(const struct run *r, bool later)
{
	const struct mx_mixer *m = r->m;
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const enum mx_dtype act = m->device->info.act_dtype;
	const bool scan = m->desc.core.decay == MX_RECUR_CHANNEL;
	const struct mixture mix = sort_spans(r);
	struct recur_one one = {.core = core_of(r), .rows = rows_of(r), .out = out_of(r)};
	mx_status status = MX_OK;

	if (later)
		leave_norm(&one.out);
	one.core.n_long = mix.longs;
	one.fused = !scan && !one.core.all && recur_cuda_step_can_fuse(&one);
	one.finish = one.fused && !m->desc.share_groups && recur_cuda_step_can_finish(&one);
	const bool alone = one.fused && !mix.longs && !mix.others && !mix.trees;
	one.core.y_half = one.out.half = mix.longs && !one.core.all && m->sizes.stretches &&
	                                 !m->desc.share_groups && recur_cuda_out_of_128(&one.out);
	struct recur_rows rows = one.rows;
	if (m->sizes.stretches && mix.longs && !one.core.all && !mix.others && !mix.trees &&
	    (!mix.few || one.fused) && recur_cuda_heads_can(&rows))
		leave_in_place(&one.rows, &one.core, &rows);
	if (!alone)
		status = prepare_rows(r, rows);
	if (status == MX_OK)
		status = cuda->check(m->device,
		                     scan ? recur_cuda_scan(r->stream, act, &one.core)
		                          : recur_spans(r, act, &one),
		                     "recurrence");
	if (status != MX_OK || (alone && one.finish))
		return status;
	one.out.row_span = one.core.step.row_span;
	if (one.out.half && (mix.few || mix.others || mix.trees))
		one.out.half_spans = one.core.step.spans;
	if (one.finish) {
		one.out.spans = one.core.step.spans;
		one.out.few = one.core.few;
		one.out.trees = mix.trees;
	}
	return finish(r, &one.out);
}

mx_status recur_cuda_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const struct run r = {
		.m = m,
		.step = step,
		.scratch = step->scratch,
		.act = mx_dtype_size(m->device->info.act_dtype),
		.stream = (cudaStream_t)cuda->stream,
	};
	const size_t n = (size_t)m->desc.core.heads * m->desc.v_dim;
	const struct mx_linear_out out = {
		.w = m->w.o, .bias = m->w.o_bias, .y = y, .ldy = m->width, .accumulate = step->add};
	const bool later = norm_later(&r);
	/* The norm's room: the streams, which nothing reads any more. */
	const struct mx_linear_in in = {.x = at(&r, m->sizes.scratch.out),
	                                .ldx = n,
	                                .norm = later ? m->w.norm : NULL,
	                                .norm_eps = m->desc.out.eps,
	                                .room = at(&r, m->sizes.scratch.proj)};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = project(&r, x);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status == MX_OK)
		status = recur(&r, later);
	if (status != MX_OK)
		return status;
	return later ? m->device->ops->linear_normed(m->device, &in, step->n_rows, &out, 1)
	             : m->device->ops->linear(m->device, in.x, n, step->n_rows, &out, 1);
}

mx_status recur_cuda_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                            const struct mx_step *step, const struct mx_kept *kept)
{
	if (!n_layers || !mx_tree_any_moves(step, kept))
		return MX_OK;
	const struct mx_mixer *m = layers[0];
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	struct recur_moves moves = {.spans = step->tables->spans};
	mx_status status = cuda->bind(m->device);
	for (uint32_t next = 0; status == MX_OK;) {
		moves.n = mx_tree_take_moves(step, kept, &next, moves.of);
		if (!moves.n)
			break;
		const cudaError_t e =
			recur_cuda_move((cudaStream_t)cuda->stream, &moves, m->rings, n_layers);
		status = cuda->check(m->device, e, "recurrence, commit");
	}
	return status;
}
