/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts as the CPU's engine computes it, one row after the other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/quant.h"
#include "engine/router.h"
#include "tests/fake/fake.h"

struct run {
	struct mx_device *cpu;
	const struct mx_experts *m;
	float *product, *up, *out; /* of one expert */
};

static mx_status multiply(const struct run *r, const void *w, const float *bias, uint32_t rows,
                          uint32_t cols, const float *x, float *y)
{
	const struct mx_weight weight = {MX_F32, rows, cols, w, NULL};
	const struct mx_linear_out out = {.w = &weight, .bias = bias, .y = y, .ldy = rows};
	return r->cpu->ops->linear(r->cpu, x, cols, 1, &out, 1);
}

static mx_status run_expert(const struct run *r, const struct mx_expert_weights *w, const float *x)
{
	const struct mx_experts *m = r->m;
	const uint32_t n = m->width;
	mx_status st = multiply(r, m->gated ? w->gate : w->up, m->gated ? w->gate_bias : w->up_bias, n,
	                        m->cols, x, r->product);
	if (st == MX_OK && m->gated)
		st = multiply(r, w->up, w->up_bias, n, m->cols, x, r->up);
	if (st == MX_OK)
		st = r->cpu->ops->act_mul(r->cpu, m->act, r->product, n, m->gated ? r->up : NULL, n, 1, n,
		                          r->product, n);
	return st == MX_OK ? multiply(r, w->down, w->down_bias, m->cols, n, r->product, r->out) : st;
}

static mx_status run_row(const struct run *r, const struct mx_experts_call *c, size_t row)
{
	const struct mx_experts *m = r->m;
	const float *x = (const float *)c->x + row * m->cols;
	float *y = (float *)c->y + row * m->cols, logits[MX_EXPERTS_MAX];
	const float share = c->share ? 1 / (1 + expf(-c->share[row])) : 1;
	struct mx_expert_link links[MX_EXPERTS_MAX_CHOSEN];
	memcpy(logits, c->logits + row * m->n, m->n * sizeof *logits);
	mx_router_choose(&m->rule, m->correction, m->n, logits, links);
	for (uint32_t i = 0; i < m->cols; i++)
		y[i] = c->add ? y[i] * share : 0;
	for (uint32_t e = 0; e < m->n; e++)
		for (uint32_t k = 0; k < m->rule.chosen; k++) {
			if (links[k].index != e || !m->weights[e].up)
				continue;
			const float weight = links[k].weight * (m->scales ? m->scales[e] : 1);
			mx_status st = run_expert(r, &m->weights[e], x);
			if (st != MX_OK)
				return st;
			for (uint32_t i = 0; i < m->cols; i++)
				y[i] += weight * r->out[i];
		}
	return MX_OK;
}

static const float *expand(const void *panels, uint32_t rows, uint32_t cols,
                           const struct mx_quant *q, float **at)
{
	const struct mx_weight w = {MX_QUANT, rows, cols, panels, q};
	float *to = *at;
	for (size_t r = 0; r < rows; r++)
		mx_quant_row(&w, r, to + r * cols);
	*at += (size_t)rows * cols;
	return to;
}

/* Expands packed experts, and computes with those. */
static mx_status run_packed(struct mx_device *cpu, const struct mx_experts *m,
                            const struct mx_experts_call *c)
{
	const size_t each = (m->gated ? 3 : 2) * (size_t)m->width * m->cols;
	float *memory = malloc(m->n * each * sizeof *memory), *at = memory;
	struct mx_expert_weights *table = malloc(m->n * sizeof *table);
	struct mx_experts plain = *m;
	plain.up_quant = plain.down_quant = NULL;
	plain.weights = table;
	for (uint32_t e = 0; e < m->n && memory && table; e++) {
		const struct mx_expert_weights *w = &m->weights[e];
		table[e] = *w;
		if (!w->up)
			continue;
		if (m->gated)
			table[e].gate = expand(w->gate, m->width, m->cols, m->up_quant, &at);
		table[e].up = expand(w->up, m->width, m->cols, m->up_quant, &at);
		table[e].down = expand(w->down, m->cols, m->width, m->down_quant, &at);
	}
	mx_status st = memory && table ? fake_experts(cpu, &plain, c) : MX_E_NOMEM;
	free(table);
	free(memory);
	return st;
}

mx_status fake_experts(struct mx_device *cpu, const struct mx_experts *m,
                       const struct mx_experts_call *c)
{
	if (m->limit != 0)
		return MX_E_UNSUPPORTED;
	if (m->up_quant)
		return run_packed(cpu, m, c);
	float *memory = malloc((2 * (size_t)m->width + m->cols) * sizeof *memory);
	const struct run r = {cpu, m, memory, memory + m->width, memory + 2 * (size_t)m->width};
	mx_status st = memory ? MX_OK : MX_E_NOMEM;
	for (size_t row = 0; row < c->n && st == MX_OK; row++)
		st = run_row(&r, c, row);
	free(memory);
	return st;
}
