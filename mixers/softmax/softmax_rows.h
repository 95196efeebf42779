/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax of rows of scores, over vectors of 16 floats, for every level but AMX.
 *
 * The includer defines the vectors and operations that softmax_body.h lists, and
 * v_store_p(s, i, p), which stores the probabilities p of tokens i .. i + 15 of a
 * row of scores s; those of earlier tokens may be overwritten.
 */
#ifndef MX_MIXERS_SOFTMAX_ROWS_H
#define MX_MIXERS_SOFTMAX_ROWS_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Panels c0 .. c1 - 1 of the block for some rows. */
struct range {
	uint32_t c0, c1;
};

/* Scales and caps a row of scores in place: cap tanh(x / cap) = cap - 2 cap / (1 + exp(2 x / cap)).
 */
static void cap_row(const struct attn_task *t, struct range g, float *s)
{
	v16 scale = v_set1(t->scale * (-2.885390081777927f / t->cap)), least = v_set1(-60);
	v16 cap = v_set1(t->cap), twice = v_set1(-2 * t->cap), one = v_set1(1), minus = v_set1(-1);
	for (uint32_t i = g.c0 * ATTN_PANEL; i < g.c1 * ATTN_PANEL; i += 16) {
		v16 x = v_mul(v_max(v_mul(v_load(s + i), scale), least), minus);
		v_store(s + i, v_add(cap, v_div(twice, v_add(one, v_exp2(x)))));
	}
}

/* Computes the probabilities of one row of scores in place, their largest exponent and their sum.
 * Masked probabilities are exactly 0. */
static void softmax_row(const struct attn_task *t, struct range g, uint32_t row, float *s, float *m,
                        float *l)
{
	float factor = t->cap > 0 ? 1 : t->scale;
	if (t->cap > 0)
		cap_row(t, g, s);

	uint32_t end = g.c1 * ATTN_PANEL;
	uint32_t a = t->lo[row] > t->t0 ? t->lo[row] - t->t0 : 0;
	uint32_t b = t->hi[row] > t->t0 ? t->hi[row] - t->t0 : 0;
	v16 scale = v_set1(factor), top = v_set1(-INFINITY), sum = v_zero();

	b = b < end ? b : end;
	for (uint32_t i = g.c0 * ATTN_PANEL; i < end; i += 16) {
		v16 x = v_load(s + i);
		if (i < a || i + 16 > b) {
			uint32_t from = a > i ? a - i : 0, to = b > i ? b - i : 0;
			x = v_keep(x, from, to < 16 ? to : 16);
			v_store(s + i, x);
		}
		top = v_max(top, x);
	}
	float best = v_hmax(top) * factor;
	v16 minus = v_set1(best == -INFINITY ? 0 : -best);
	for (uint32_t i = g.c0 * ATTN_PANEL; i < end; i += 16) {
		v16 p = v_exp2(v_fma(v_load(s + i), scale, minus));
		sum = v_add(sum, p);
		v_store_p(s, i, p);
	}
	*m = best;
	*l = v_hsum(sum);
}

#endif
