/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a layer: streams, decay, recurrence, norm, output projection. */
#include <math.h>

#include "mixers/gla/gla.h"

/* Returns n floats at base + *at and advances *at; NULL if there is nothing to place. */
static float *place(unsigned char *base, size_t *at, size_t n)
{
	float *p = base && n ? (float *)(void *)(base + *at) : NULL;
	*at += (n * sizeof(float) + 63) / 64 * 64;
	return p;
}

size_t gla_layout(const struct gla_params *p, size_t max_rows, unsigned threads,
                  unsigned char *base, struct gla_buffers *out)
{
	const struct mx_recur_spec *l = &p->recur;
	const uint32_t heads[2] = {l->q_heads, l->k_heads};
	struct gla_buffers b = {0};
	size_t at = 0;

	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		b.streams[s] = place(base, &at, max_rows * p->streams[s].ld);
		b.low[s] = place(base, &at, max_rows * p->streams[s].rank);
	}
	for (int i = 0; i < 2; i++) {
		if (l->k_dim > p->k_dim)
			b.features[i] = place(base, &at, max_rows * heads[i] * l->k_dim);
		if (i < mx_recur_feature_layers(p->feature))
			b.layers[i] = place(base, &at, max_rows * l->q_heads * p->k_dim);
	}
	b.y = place(base, &at, max_rows * l->heads * l->v_dim);
	if (p->ranks > 1 && p->variant->norm_whole)
		b.sums = place(base, &at, max_rows);
	if (p->form == GLA_TENSORS_QWEN3_NEXT) {
		b.qkvz =
			place(base, &at, max_rows * 2 * (p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n));
		b.ba = place(base, &at, max_rows * 2 * l->heads);
	}
	if (p->form == GLA_TENSORS_MINIMAX)
		b.qkvz =
			place(base, &at, max_rows * (2 * p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n));
	b.core = base ? base + at : NULL;
	if (out)
		*out = b;
	return at + mx_recur_scratch_bytes(l, threads);
}

/* Computes Qwen3-Next's two products and takes the streams from them. */
static mx_status project_packed(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows,
                                const float *x)
{
	const struct gla_weights *w = &m->w;
	const struct mx_linear_out outs[2] = {{.w = w->qkvz, .y = b->qkvz, .ldy = w->qkvz->rows},
	                                      {.w = w->ba, .y = b->ba, .ldy = w->ba->rows}};
	mx_status status =
		m->common.device->ops->linear(m->common.device, x, m->width, n_rows, outs, 2);
	if (status == MX_OK)
		gla_unpack(m->common.device, &m->params, n_rows, b, w->streams[MX_RECUR_A].bias);
	return status;
}

/* Computes MiniMax's two products and takes q, k and v from the first. */
static mx_status project_qkv(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows,
                             const float *x)
{
	const struct gla_weights *w = &m->w;
	const struct mx_weight *gate = w->streams[MX_RECUR_GATE].w;
	const struct mx_linear_out outs[2] = {
		{.w = w->qkvz, .y = b->qkvz, .ldy = w->qkvz->rows},
		{.w = gate, .y = b->streams[MX_RECUR_GATE], .ldy = m->params.streams[MX_RECUR_GATE].ld}};
	mx_status status =
		m->common.device->ops->linear(m->common.device, x, m->width, n_rows, outs, 2);
	if (status == MX_OK)
		gla_unpack_qkv(m->common.device, &m->params, n_rows, b);
	return status;
}

/* Computes all products of the layer's input, then the second products of low-rank streams. */
static mx_status project(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows,
                         const float *x)
{
	const struct gla_params *p = &m->params;
	struct mx_linear_out outs[MX_RECUR_STREAMS];
	size_t n = 0;

	if (p->form == GLA_TENSORS_QWEN3_NEXT)
		return project_packed(m, b, n_rows, x);
	if (p->form == GLA_TENSORS_MINIMAX)
		return project_qkv(m, b, n_rows, x);
	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		const struct mx_recur_stream_desc *shape = &p->streams[s];
		const struct gla_stream_weights *w = &m->w.streams[s];
		if (shape->n)
			outs[n++] = shape->rank
			                ? (struct mx_linear_out){.w = w->w, .y = b->low[s], .ldy = shape->rank}
			                : (struct mx_linear_out){
								  .w = w->w, .bias = w->bias, .y = b->streams[s], .ldy = shape->ld};
	}
	mx_status status =
		m->common.device->ops->linear(m->common.device, x, m->width, n_rows, outs, n);
	for (int s = 0; s < MX_RECUR_STREAMS && status == MX_OK; s++) {
		const struct mx_recur_stream_desc *shape = &p->streams[s];
		const struct gla_stream_weights *w = &m->w.streams[s];
		const struct mx_linear_out up = {
			.w = w->up, .bias = w->bias, .y = b->streams[s], .ldy = shape->ld};
		if (shape->n && shape->rank)
			status = m->common.device->ops->linear(m->common.device, b->low[s], shape->rank, n_rows,
			                                       &up, 1);
	}
	return status;
}

struct mx_conv_spec gla_conv_spec(const struct gla_params *p, int stream)
{
	return (struct mx_conv_spec){.channels = p->streams[stream].n,
	                             .width = p->conv_size,
	                             .silu = p->streams[stream].silu,
	                             .max_draft = p->recur.max_draft};
}

static void convolve(struct mx_mixer *m, const struct gla_buffers *b, const struct mx_step *step)
{
	unsigned char *slot = mx_recur_slots_part(&m->common.slots, 1);

	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		const struct mx_recur_stream_desc *shape = &m->params.streams[s];
		const struct gla_stream_weights *w = &m->w.streams[s];
		float *x = b->streams[s];
		if (shape->conv) {
			mx_conv_forward(m->kernels, m->common.device, &m->convs[s], step, slot,
			                m->common.slots.stride, w->conv, w->conv_bias, x, shape->ld, x,
			                shape->ld);
			slot += mx_conv_slot_bytes(&m->convs[s]);
		} else if (shape->silu) {
			mx_recur_map(m->kernels, m->common.device, MX_RECUR_SILU, step->n_rows, shape->n, x,
			             shape->ld);
		}
	}
}

/* Computes the trained products of a feature map: one small product a head. */
static mx_status feature_layers(struct mx_mixer *m, const struct gla_buffers *b, int qk,
                                size_t n_rows, uint32_t heads)
{
	uint32_t dim = m->params.k_dim;
	int layers = mx_recur_feature_layers(m->params.feature);
	mx_status status = MX_OK;

	for (uint32_t h = 0; h < heads && status == MX_OK; h++) {
		struct mx_linear_out outs[2];
		for (int i = 0; i < layers; i++)
			outs[i] = (struct mx_linear_out){.w = m->w.feature[qk][i],
			                                 .bias = m->w.feature_bias[qk][i],
			                                 .y = b->layers[i] + (size_t)h * dim,
			                                 .ldy = (size_t)heads * dim};
		status = m->common.device->ops->linear(m->common.device, b->streams[qk] + (size_t)h * dim,
		                                       (size_t)heads * dim, n_rows, outs, (size_t)layers);
	}
	return status;
}

/* Applies feature map, rotation, norm and, for q, scale. *out points to the result. */
static mx_status prepare(struct mx_mixer *m, const struct gla_buffers *b, int qk,
                         const struct mx_step *step, const float **out)
{
	const struct gla_params *p = &m->params;
	uint32_t heads = qk == MX_RECUR_Q ? p->recur.q_heads : p->recur.k_heads, n = step->n_rows;
	enum mx_recur_qk_norm norm = qk == MX_RECUR_Q ? p->norm_q : p->norm_k;
	float scale = qk == MX_RECUR_Q && !p->variant->unscaled ? 1 / sqrtf((float)p->recur.k_dim) : 1;
	bool rope = p->variant->rope, l2 = norm == MX_RECUR_QK_L2;
	const struct gla_features f = {.feature = p->feature,
	                               .heads = heads,
	                               .dim = p->k_dim,
	                               .norm = l2 ? MX_RECUR_QK_NONE : norm,
	                               .scale = rope || l2 ? 1 : scale};
	float *x = b->streams[qk], *y = b->features[qk] ? b->features[qk] : x;
	mx_status status = MX_OK;

	if (mx_recur_feature_layers(p->feature)) {
		status = feature_layers(m, b, qk, n, heads);
		x = b->layers[0];
	}
	if (status == MX_OK &&
	    (f.feature != MX_RECUR_FEATURE_IDENTITY || f.norm != MX_RECUR_QK_NONE || f.scale != 1))
		gla_apply_features(m->common.device, &f, n, x, b->layers[1], y);
	if (status == MX_OK && rope) {
		const struct mx_rope r = {m->tables.inv_freq, p->k_dim, scale};
		status = m->common.device->ops->rope(m->common.device, y, (size_t)heads * p->k_dim, n,
		                                     heads, p->k_dim, &r, step->pos, NULL, 0);
	}
	if (l2)
		mx_recur_l2norm(m->kernels, m->common.device, n, heads, p->recur.k_dim, 1e-6f, scale, y,
		                (size_t)heads * p->recur.k_dim);
	*out = y;
	return status;
}

/* Turns stream A from z to a. */
static void decay(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows)
{
	const struct gla_params *p = &m->params;
	size_t n = p->streams[MX_RECUR_A].n;
	float *a = b->streams[MX_RECUR_A];
	bool bound = p->variant->decay == GLA_SOFTPLUS && p->has_bound;
	enum mx_recur_map map = p->variant->decay == GLA_LOGSIGMOID           ? MX_RECUR_LOGSIGMOID
	                        : p->variant->decay == GLA_SOFTPLUS && !bound ? MX_RECUR_SOFTPLUS
	                                                                      : MX_RECUR_SIGMOID;
	if (m->tables.pre)
		gla_affine(m->common.device, n_rows, n, m->tables.pre, NULL, -INFINITY, a);
	mx_recur_map(m->kernels, m->common.device, map, n_rows, n, a, n);
	if (m->tables.mul)
		gla_affine(m->common.device, n_rows, n, m->tables.mul, m->tables.add,
		           p->variant->decay == GLA_LOGSIGMOID ? p->clamp_min : -INFINITY, a);
	if (p->variant->decay != GLA_LOWER_BOUND)
		mx_recur_map(m->kernels, m->common.device, MX_RECUR_EXP, n_rows, n, a, n);
}

static void beta(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows)
{
	const struct gla_params *p = &m->params;
	size_t n = p->recur.heads;
	float *x = b->streams[MX_RECUR_BETA];
	mx_recur_map(m->kernels, m->common.device, MX_RECUR_SIGMOID, n_rows, n, x, n);
	if (p->neg_eigval)
		gla_affine(m->common.device, n_rows, n, m->beta_scale, NULL, -INFINITY, x);
}

static void recur(struct mx_mixer *m, const struct gla_buffers *b, const struct mx_step *step,
                  const float *q, const float *k)
{
	const struct gla_params *p = &m->params;
	const struct mx_recur_spec *l = &p->recur;
	const struct mx_recur_stream_desc *s = p->streams;
	struct mx_recur_in in = {
		.q = q,
		.k = k,
		.v = b->streams[MX_RECUR_V],
		.a = s[MX_RECUR_A].n ? b->streams[MX_RECUR_A] : m->tables.fixed_a,
		.beta = s[MX_RECUR_BETA].n ? b->streams[MX_RECUR_BETA] : m->beta_scale,
		.ldq = (size_t)l->q_heads * l->k_dim,
		.ldk = (size_t)l->k_heads * l->k_dim,
		.ldv = s[MX_RECUR_V].ld,
		.lda = s[MX_RECUR_A].n, /* 0: one row for all */
		.ldbeta = s[MX_RECUR_BETA].n,
	};
	mx_recur_forward(m->kernels, m->common.device, l, step, m->common.slots.base,
	                 m->common.slots.stride, &in, b->core, b->y, (size_t)l->heads * l->v_dim);
}

static mx_status normalise(struct mx_mixer *m, const struct gla_buffers *b, size_t n_rows)
{
	const struct gla_params *p = &m->params;
	bool whole = p->variant->norm_whole;
	const struct mx_recur_norm norm = {
		.groups = whole ? 1 : p->recur.heads,
		.dim = whole ? p->recur.heads * p->v_dim : p->v_dim,
		.weight = m->w.norm,
		.eps = p->norm_eps,
		.gate = p->gate,
	};
	if (p->normalize)
		gla_divide(m->common.device, n_rows, p->recur.heads, p->v_dim, b->y);
	const struct mx_recur_norm_share share = {
		.comm = m->comm, .groups = 1, .dim = p->all_heads * p->v_dim};
	const float *gate = b->streams[MX_RECUR_GATE];
	const size_t ld_gate = p->streams[MX_RECUR_GATE].ld;
	const size_t ld = (size_t)p->recur.heads * p->recur.v_dim;
	if (b->sums)
		return mx_recur_norm_shared(m->kernels, m->common.device, &norm, &share, n_rows, gate,
		                            ld_gate, b->y, ld, b->sums);
	mx_recur_norm(m->kernels, m->common.device, &norm, n_rows, gate, ld_gate, b->y, ld);
	return MX_OK;
}

mx_status gla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct gla_params *p = &m->params;
	size_t n = step->n_rows;
	struct gla_buffers b;
	const float *q = NULL, *k = NULL;

	gla_layout(p, m->max_rows, m->common.device->info.threads, step->scratch, &b);
	mx_status status = project(m, &b, n, x);
	if (status != MX_OK)
		return status;
	convolve(m, &b, step);
	if (p->streams[MX_RECUR_A].n)
		decay(m, &b, n);
	if (p->streams[MX_RECUR_BETA].n)
		beta(m, &b, n);
	if (p->variant->shape == GLA_RATIO)
		gla_complement(m->common.device, n, p->streams[MX_RECUR_A].n, b.streams[MX_RECUR_A],
		               b.streams[MX_RECUR_K]);
	if (p->variant->shape == GLA_CHANNELS)
		gla_input_gate(m->common.device, n, p->streams[MX_RECUR_A].n, b.streams[MX_RECUR_A],
		               b.streams[MX_RECUR_V]);
	else
		status = prepare(m, &b, MX_RECUR_Q, step, &q);
	if (p->streams[MX_RECUR_K].ld && status == MX_OK)
		status = prepare(m, &b, MX_RECUR_K, step, &k);
	if (status != MX_OK)
		return status;
	if (p->normalize)
		gla_append_ones(m->common.device, n, p->recur.v_heads, p->v_dim, b.streams[MX_RECUR_V]);
	recur(m, &b, step, q, k);
	status = normalise(m, &b, n);
	if (status != MX_OK)
		return status;
	const float *values = b.y;
	if (p->by_turns) { /* the stream of v is read no more */
		gla_heads_by_turns(m->common.device, p, n, b.y, b.streams[MX_RECUR_V]);
		values = b.streams[MX_RECUR_V];
	}
	const struct mx_linear_out out = {.w = m->w.o, .y = y, .ldy = m->width};
	return m->common.device->ops->linear(m->common.device, values,
	                                     (size_t)p->recur.heads * p->recur.v_dim, n, &out, 1);
}
