/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), absorbed:
 * a query is multiplied by its head's part of kv_b, so that it meets latents instead of keys, and
 * the weighted sum of latents is multiplied by the part of the values. Each row is computed alone
 * and in the same way in a prompt and in decode.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "mixers/mla/mla.h"

#define TASK_ROWS 8 /* of a task that takes rows apart */

struct mx_softmax_shape mla_softmax_shape(const struct mla_params *p)
{
	return (struct mx_softmax_shape){
		.heads = p->heads,
		.kv_heads = 1,
		.key_dim = p->rank + p->rope,
		.value_dim = p->rank,
		.values_in_keys = true,
		.skip_first = p->skip_first,
		.scale = p->scale,
		.dtype = p->dtype,
		.contexts = p->contexts,
		.context = p->context,
	};
}

void mla_scratch_layout(const struct mx_layer_desc *layer, const struct mla_params *p,
                        unsigned threads, struct mla_scratch *out)
{
	const struct mx_softmax_shape shape = mla_softmax_shape(p);
	const size_t row = layer->max_rows * sizeof(float), heads = p->heads;
	const size_t per_head = p->nope + p->rope > p->v ? p->nope + p->rope : p->v;
	struct mla_scratch s = {0};
	size_t at = 0;
	s.q_latent = at, at = mx_round_up(at + row * p->q_rank, 64);
	s.q = at, at = mx_round_up(at + row * heads * per_head, 64);
	s.absorbed = at, at = mx_round_up(at + row * heads * (p->rank + p->rope), 64);
	s.latent = at, at = mx_round_up(at + row * p->rank, 64);
	s.k_rope = at, at = mx_round_up(at + row * p->rope, 64);
	s.key = at, at = mx_round_up(at + row * (p->rank + p->rope), 64);
	s.gates = at, at = mx_round_up(at + (p->head_gate ? row * heads : 0), 64);
	s.softmax = at, at += mx_softmax_scratch_bytes(layer, &shape, threads);
	s.bytes = at;
	*out = s;
}

/* The arrays of a step, as struct mla_scratch has them. */
struct run {
	const struct mx_mixer *m;
	uint32_t n;
	float *q_latent, *q, *absorbed, *latent, *k_rope, *key, *gates;
};

/* Computes queries, latents, the rope elements of keys, and gates. */
static mx_status project(const struct run *r, const void *x)
{
	const struct mx_mixer *m = r->m;
	const struct mla_params *p = &m->params;
	const struct mla_weights *w = &m->weights;
	const struct mx_ops *ops = m->device->ops;
	const size_t ldq = (size_t)p->heads * (p->nope + p->rope);
	const float *k_bias = w->kv_a_bias ? w->kv_a_bias + p->rank : NULL;
	struct mx_linear_out in[] = {
		{.w = &m->kv_latent, .bias = w->kv_a_bias, .y = r->latent, .ldy = p->rank},
		{.w = &m->k_rope, .bias = k_bias, .y = r->k_rope, .ldy = p->rope},
		{.w = w->q, .y = r->q, .ldy = ldq},
		{.w = w->gate, .y = r->gates, .ldy = p->heads},
	};
	if (p->q_rank)
		in[2] = (struct mx_linear_out){
			.w = w->q_a, .bias = w->q_a_bias, .y = r->q_latent, .ldy = p->q_rank};
	mx_status s = ops->linear(m->device, x, m->width, r->n, in, p->head_gate ? 4 : 3);
	if (s == MX_OK)
		s = ops->rmsnorm(m->device, r->latent, w->kv_norm, p->norm_eps, r->n, p->rank, r->latent);
	if (s != MX_OK || !p->q_rank)
		return s;
	s = ops->rmsnorm(m->device, r->q_latent, w->q_norm, p->norm_eps, r->n, p->q_rank, r->q_latent);
	const struct mx_linear_out up = {.w = w->q, .y = r->q, .ldy = ldq};
	return s != MX_OK ? s : ops->linear(m->device, r->q_latent, p->q_rank, r->n, &up, 1);
}

/* Rotates the rope elements of queries and keys. */
static mx_status rotate(const struct run *r, const uint32_t *pos)
{
	const struct mx_mixer *m = r->m;
	const struct mla_params *p = &m->params;
	const uint32_t dim = p->nope + p->rope;
	const struct mx_rope rope = {m->inv_freq, p->rope, p->rope_factor};
	if (!p->rotates)
		return MX_OK;
	if (p->pairs) {
		mx_softmax_split_pairs(r->q + p->nope, r->n * p->heads, dim, p->rope);
		mx_softmax_split_pairs(r->k_rope, r->n, p->rope, p->rope);
	}
	mx_status s = m->device->ops->rope(m->device, r->q + p->nope, (size_t)p->heads * dim, r->n,
	                                   p->heads, dim, &rope, pos, NULL, 0);
	return s != MX_OK ? s
	                  : m->device->ops->rope(m->device, r->k_rope, p->rope, r->n, 1, p->rope, &rope,
	                                         pos, NULL, 0);
}

/* Multiplies queries by the factor of their position. */
static void scale_queries(const struct run *r, const uint32_t *pos)
{
	const struct mla_params *p = &r->m->params;
	const size_t ld = (size_t)p->heads * (p->nope + p->rope);
	for (uint32_t i = 0; p->q_beta != 0 && i < r->n; i++) {
		float factor = 1 + p->q_beta * logf(1 + (float)(pos[i] / p->q_length));
		for (size_t k = 0; factor != 1 && k < ld; k++)
			r->q[i * ld + k] *= factor;
	}
}

/* Puts the rope elements of queries and keys behind those of latents. */
static void gather_task(void *arg, size_t task, unsigned worker)
{
	const struct run *r = arg;
	const struct mla_params *p = &r->m->params;
	const size_t heads = p->heads, dim = p->rank + p->rope, bytes = p->rope * sizeof(float);
	(void)worker;
	for (uint32_t i = 0, row = (uint32_t)task * TASK_ROWS; i < TASK_ROWS && row < r->n;
	     i++, row++) {
		const float *q = r->q + row * heads * (p->nope + p->rope) + p->nope;
		float *to = r->absorbed + row * heads * dim + p->rank, *key = r->key + row * dim;
		for (size_t h = 0; h < heads; h++)
			memcpy(to + h * dim, q + h * (p->nope + p->rope), bytes);
		memcpy(key, r->latent + (size_t)row * p->rank, p->rank * sizeof(float));
		memcpy(key + p->rank, r->k_rope + (size_t)row * p->rope, bytes);
	}
}

/* Multiplies the outputs of heads by their gates. */
static void gate_task(void *arg, size_t task, unsigned worker)
{
	const struct run *r = arg;
	const uint32_t heads = r->m->params.heads, v = r->m->params.v;
	const uint32_t first = r->m->params.first_out, end = first + r->m->params.out_heads;
	(void)worker;
	for (uint32_t i = 0, row = (uint32_t)task * TASK_ROWS; i < TASK_ROWS && row < r->n; i++, row++)
		for (uint32_t h = first; h < end; h++) {
			float *y = r->q + ((size_t)row * heads + h) * v;
			const float divisor = 1 + expf(-r->gates[(size_t)row * heads + h]);
			for (uint32_t k = 0; k < v; k++)
				y[k] /= divisor;
		}
}

static void run_rows(struct run *r, void (*task)(void *, size_t, unsigned))
{
	size_t n = (r->n + TASK_ROWS - 1) / TASK_ROWS;
	if (n == 1) /* waking the threads costs more */
		task(r, 0, 0);
	else
		r->m->device->ops->parallel(r->m->device, n, task, r);
}

/* Multiplies heads [first, first + n) of x, of ldx elements each, by their own weights. */
static mx_status each_head(const struct run *r, const struct mx_weight *w, const float *x,
                           uint32_t ldx, float *y, uint32_t ldy, uint32_t first, uint32_t n)
{
	const struct mx_mixer *m = r->m;
	const uint32_t heads = m->params.heads;
	for (uint32_t h = first; h < first + n; h++)
		m->each[h] = (struct mx_linear_each){.w = &w[h],
		                                     .x = x + (size_t)h * ldx,
		                                     .ldx = (size_t)heads * ldx,
		                                     .y = y + (size_t)h * ldy,
		                                     .ldy = (size_t)heads * ldy};
	return m->device->ops->linear_each(m->device, r->n, m->each + first, n);
}

mx_status mla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mla_params *p = &m->params;
	const struct mla_weights *w = &m->weights;
	unsigned char *scratch = step->scratch;
	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	struct run r = {
		.m = m,
		.n = step->n_rows,
		.q_latent = (float *)(scratch + m->scratch.q_latent),
		.q = (float *)(scratch + m->scratch.q),
		.absorbed = (float *)(scratch + m->scratch.absorbed),
		.latent = (float *)(scratch + m->scratch.latent),
		.k_rope = (float *)(scratch + m->scratch.k_rope),
		.key = (float *)(scratch + m->scratch.key),
		.gates = (float *)(scratch + m->scratch.gates),
	};
	const struct mx_linear_out out = {.w = w->o, .bias = w->o_bias, .y = y, .ldy = m->width};
	mx_status s = project(&r, x);
	if (s == MX_OK)
		s = rotate(&r, step->pos);
	if (s == MX_OK)
		scale_queries(&r, step->pos);
	if (s == MX_OK)
		s = each_head(&r, m->uk, r.q, p->nope + p->rope, r.absorbed, p->rank + p->rope, 0,
		              p->heads);
	if (s != MX_OK)
		return s;
	run_rows(&r, gather_task);
	s = mx_softmax_run(&m->softmax, step, scratch + m->scratch.softmax, r.absorbed, r.key, NULL);
	if (s == MX_OK)
		s = each_head(&r, m->uv, r.absorbed, p->rank + p->rope, r.q, p->v, p->first_out,
		              p->out_heads);
	if (s == MX_OK && p->head_gate)
		run_rows(&r, gate_task);
	return s != MX_OK ? s
	                  : m->device->ops->linear(m->device, r.q + (size_t)p->first_out * p->v,
	                                           (size_t)p->heads * p->v, step->n_rows, &out, 1);
}
