/* SPDX-License-Identifier: Apache-2.0 */
/* One step of attention: projections, rope, softmax over pages (mixers/softmax), gates, output
 * projection. */
#include "base/mem.h"
#include "mixers/attention/attention.h"

struct mx_softmax_shape attn_softmax_shape(const struct attn_params *p)
{
	return (struct mx_softmax_shape){
		.heads = p->heads,
		.kv_heads = p->kv_heads,
		.key_dim = p->head_dim,
		.value_dim = p->head_dim,
		.window = p->window,
		.scale = p->scale,
		.cap = p->cap,
		.dtype = p->dtype,
	};
}

void attn_scratch_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                         unsigned threads, struct attn_scratch *out)
{
	const struct mx_softmax_shape shape = attn_softmax_shape(p);
	struct attn_scratch s = {0};
	size_t rows = layer->max_rows, at = 0;
	size_t raw = attn_params_raw(p);
	size_t kv = p->shared_kv ? 0 : rows * p->kv_heads * p->head_dim * 4;

	s.q = at, at = mx_round_up(at + rows * p->heads * p->head_dim * 4, 64);
	s.k = at, at = mx_round_up(at + kv, 64);
	s.v = at, at = mx_round_up(at + kv, 64);
	s.raw = at, at = mx_round_up(at + rows * raw * 4, 64);
	s.gates = at, at = mx_round_up(at + rows * attn_params_gates(p) * 4, 64);
	s.low = at, at = mx_round_up(at + 3 * rows * p->adapter_rank * 4, 64);
	s.softmax = at, at += mx_softmax_scratch_bytes(layer, &shape, threads);
	s.bytes = at;
	*out = s;
}

/* Queries, keys and values of a step's rows; k and v are NULL with shared_kv. */
struct attn_rows {
	float *q, *k, *v;
};

/* Adds the adapters' products to queries, keys and values. `low` is scratch memory. */
static mx_status adapt(const struct mx_mixer *m, uint32_t n_rows, const struct attn_rows *rows,
                       float *low, const void *x)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	size_t rank = p->adapter_rank;
	float *const to[3] = {rows->q, rows->k, rows->v};
	struct mx_linear_out in[3];
	for (size_t i = 0; i < 3; i++)
		in[i] = (struct mx_linear_out){
			.w = m->weights.adapters[i][0], .y = low + i * n_rows * rank, .ldy = rank};
	mx_status status = ops->linear(m->device, x, attn_params_input(p, m->width), n_rows, in, 3);
	for (size_t i = 0; i < 3 && status == MX_OK; i++) {
		const struct mx_weight *w = m->weights.adapters[i][1];
		const struct mx_linear_out out = {.w = w, .y = to[i], .ldy = w->rows, .accumulate = true};
		status = ops->linear(m->device, in[i].y, rank, n_rows, &out, 1);
	}
	return status;
}

/* Computes queries, keys and values of the step's rows. */
static mx_status project(const struct mx_mixer *m, const struct mx_step *step,
                         const struct attn_rows *rows, float *raw, float *gates, const void *x)
{
	const struct attn_params *p = &m->params;
	const struct attn_weights *w = &m->weights;
	size_t ldq = (size_t)p->heads * p->head_dim, ldk = (size_t)p->kv_heads * p->head_dim;
	size_t ldr = attn_params_raw(p);
	struct mx_linear_out in[4] = {
		{.w = w->q, .bias = w->q_bias, .y = ldr ? raw : rows->q, .ldy = ldr ? ldr : ldq},
		{.w = w->k, .bias = w->k_bias, .y = rows->k, .ldy = ldk},
		{.w = w->v, .bias = w->v_bias, .y = rows->v, .ldy = ldk},
	};
	size_t n_in = p->per_head || p->shared_kv ? 1 : p->k_is_v ? 2 : 3;
	if (w->gate)
		in[n_in++] = (struct mx_linear_out){.w = w->gate, .y = gates, .ldy = w->gate->rows};
	size_t ldx = attn_params_input(p, m->width);
	mx_status status = m->device->ops->linear(m->device, x, ldx, step->n_rows, in, n_in);
	if (status == MX_OK && p->adapter_rank)
		status = adapt(m, step->n_rows, rows,
		               (float *)((unsigned char *)step->scratch + m->scratch.low), x);
	if (status != MX_OK)
		return status;
	attn_rows_arrange(m, step->n_rows, raw, rows->q, rows->k, rows->v);
	return attn_rows_rotate(m, step, rows->q, rows->k);
}

mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	size_t ldq = (size_t)p->heads * p->head_dim;
	unsigned char *scratch = step->scratch;

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	const struct attn_rows rows = {
		.q = (float *)(scratch + m->scratch.q),
		.k = p->shared_kv ? NULL : (float *)(scratch + m->scratch.k),
		.v = p->shared_kv ? NULL : (float *)(scratch + m->scratch.v),
	};
	const struct mx_linear_out out = {
		.w = m->weights.o, .bias = m->weights.o_bias, .y = y, .ldy = m->width};
	float *raw = (float *)(scratch + m->scratch.raw),
		  *gates = (float *)(scratch + m->scratch.gates);

	mx_status status = project(m, step, &rows, raw, gates, x);
	if (status != MX_OK)
		return status;
	mx_softmax_run(&m->softmax, step, scratch + m->scratch.softmax, rows.q, rows.k, rows.v);
	attn_rows_gate(m, step->n_rows, raw, gates, rows.q);
	return ops->linear(m->device, rows.q, ldq, step->n_rows, &out, 1);
}
