/* SPDX-License-Identifier: Apache-2.0 */
/* What comes before attention and after it: projections of a step's rows, gates, output. */
#include "mixers/softmax/heads.h"

#include <stdlib.h>

#include "base/mem.h"

void attn_heads_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                       struct attn_heads_scratch *out)
{
	struct attn_heads_scratch s = {0};
	size_t rows = layer->max_rows, at = 0;
	size_t raw = attn_params_raw(p);
	size_t kv = p->shared_kv ? 0 : rows * p->kv_heads * p->head_dim * 4;

	s.q = at, at = mx_round_up(at + rows * p->heads * p->head_dim * 4, 64);
	s.k = at, at = mx_round_up(at + kv, 64);
	s.v = at, at = mx_round_up(at + kv, 64);
	s.raw = at, at = mx_round_up(at + rows * raw * 4, 64);
	s.gates = at, at = mx_round_up(at + rows * attn_params_gates(p) * 4, 64);
	s.low = at, at = mx_round_up(at + 3 * rows * p->adapter_rank * 4, 64);
	s.sums = at, at = mx_round_up(at + (p->summed ? 2 * rows * 4 : 0), 64);
	s.bytes = at;
	*out = s;
}

mx_status attn_heads_init(const struct mx_mixer_init *init, const struct attn_params *p,
                          struct attn_heads *out)
{
	size_t half = p->rope_dim / 2;
	*out = (struct attn_heads){
		.params = *p,
		.device = init->device,
		.comm = init->comm,
		.inv_freq = calloc(half + 1, sizeof(float)),
		.long_freq = calloc(half + 1, sizeof(float)),
		.dynamic_freq = calloc(half + 1, sizeof(float)),
		.width = init->layer->width,
		.max_rows = init->layer->max_rows,
	};
	if (!out->inv_freq || !out->long_freq || !out->dynamic_freq)
		return MX_E_NOMEM;
	for (size_t i = 0; i < half; i++)
		out->inv_freq[i] = (float)p->inv_freq[i];
	for (size_t i = 0; p->rope == ATTN_ROPE_LONG && i < half; i++)
		out->long_freq[i] = (float)p->long_inv_freq[i];
	out->params.inv_freq = out->params.long_inv_freq =
		NULL; /* the description is valid during create only */
	attn_params_take(&out->params, init->weights, &out->weights);
	attn_heads_layout(init->layer, &out->params, &out->scratch);
	return MX_OK;
}

void attn_heads_free(struct attn_heads *h)
{
	free(h->inv_freq);
	free(h->long_freq);
	free(h->dynamic_freq);
}

static float *scratch_at(const struct mx_step *step, size_t at)
{
	return (float *)((unsigned char *)step->scratch + at);
}

/* Adds the adapters' products to queries, keys and values. `low` is scratch memory. */
static mx_status adapt(const struct attn_heads *h, uint32_t n_rows, const struct attn_rows *rows,
                       float *low, const void *x)
{
	const struct attn_params *p = &h->params;
	const struct mx_ops *ops = h->device->ops;
	size_t rank = p->adapter_rank;
	float *const to[3] = {rows->q, rows->k, rows->v};
	struct mx_linear_out in[3];
	for (size_t i = 0; i < 3; i++)
		in[i] = (struct mx_linear_out){
			.w = h->weights.adapters[i][0], .y = low + i * n_rows * rank, .ldy = rank};
	mx_status status = ops->linear(h->device, x, attn_params_input(p, h->width), n_rows, in, 3);
	for (size_t i = 0; i < 3 && status == MX_OK; i++) {
		const struct mx_weight *w = h->weights.adapters[i][1];
		const struct mx_linear_out out = {.w = w, .y = to[i], .ldy = w->rows, .accumulate = true};
		status = ops->linear(h->device, in[i].y, rank, n_rows, &out, 1);
	}
	return status;
}

mx_status attn_heads_project(const struct attn_heads *h, const struct mx_step *step, const void *x,
                             struct attn_rows *out)
{
	const struct attn_params *p = &h->params;
	const struct attn_weights *w = &h->weights;
	size_t ldq = (size_t)p->heads * p->head_dim, ldk = (size_t)p->kv_heads * p->head_dim;
	size_t ldr = attn_params_raw(p);
	if (step->n_rows > h->max_rows)
		return MX_E_RANGE;
	const struct attn_rows rows = {
		.q = scratch_at(step, h->scratch.q),
		.k = p->shared_kv ? NULL : scratch_at(step, h->scratch.k),
		.v = p->shared_kv ? NULL : scratch_at(step, h->scratch.v),
	};
	float *raw = scratch_at(step, h->scratch.raw);
	struct mx_linear_out in[4] = {
		{.w = w->q, .bias = w->q_bias, .y = ldr ? raw : rows.q, .ldy = ldr ? ldr : ldq},
		{.w = w->k, .bias = w->k_bias, .y = rows.k, .ldy = ldk},
		{.w = w->v, .bias = w->v_bias, .y = rows.v, .ldy = ldk},
	};
	size_t n_in = p->per_head || p->shared_kv ? 1 : p->k_is_v ? 2 : 3;
	if (w->gate)
		in[n_in++] = (struct mx_linear_out){
			.w = w->gate, .y = scratch_at(step, h->scratch.gates), .ldy = w->gate->rows};
	size_t ldx = attn_params_input(p, h->width);
	mx_status status = h->device->ops->linear(h->device, x, ldx, step->n_rows, in, n_in);
	if (status == MX_OK && p->adapter_rank)
		status = adapt(h, step->n_rows, &rows, scratch_at(step, h->scratch.low), x);
	if (status != MX_OK)
		return status;
	attn_rows_arrange(h, step->n_rows, raw, rows.q, rows.k, rows.v);
	*out = rows;
	return attn_rows_rotate(h, step, rows.q, rows.k);
}

mx_status attn_heads_output(const struct attn_heads *h, const struct mx_step *step, void *y)
{
	size_t ldq = (size_t)h->params.heads * h->params.head_dim;
	float *rows = scratch_at(step, h->scratch.q);
	const size_t first = h->params.first_out - h->params.first_head;
	const struct mx_linear_out out = {
		.w = h->weights.o, .bias = h->weights.o_bias, .y = y, .ldy = h->width};
	attn_rows_gate(h, step->n_rows, scratch_at(step, h->scratch.raw),
	               scratch_at(step, h->scratch.gates), rows);
	return h->device->ops->linear(h->device, rows + first * h->params.head_dim, ldq, step->n_rows,
	                              &out, 1);
}
