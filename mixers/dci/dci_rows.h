/* SPDX-License-Identifier: Apache-2.0 */
/* What all levels' kernels of rows have: prefetches and the softmax of a list of scores. The
 * includer has defined v16 and its operations (dci_rows_body.h). */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LINE          64

/* Fetches the rows of a later part: they lie anywhere in memory. */
ALWAYS_INLINE void fetch(const unsigned char *const *rows, uint32_t first, uint32_t n, uint32_t end,
                         size_t offset, size_t bytes)
{
	for (uint32_t i = first; i < first + n && i < end; i++)
		for (size_t at = 0; at < bytes; at += LINE)
			__builtin_prefetch(rows[i] + offset + at);
}

/* ---- softmax ---- */

/* cap tanh(x / cap) = cap - 2 cap / (1 + exp(2 x / cap)), as in mixers/softmax. */
static void cap_scores(uint32_t n, float *s, float scale, float top)
{
	v16 factor = v_set1(scale * (-2.885390081777927f / top)), least = v_set1(-60);
	v16 cap = v_set1(top), twice = v_set1(-2 * top), one = v_set1(1), minus = v_set1(-1);
	for (uint32_t i = 0; i < n; i += 16) {
		v16 x = v_mul(v_max(v_mul(v_load(s + i), factor), least), minus);
		v_store(s + i, v_add(cap, v_div(twice, v_add(one, v_exp2(x)))));
	}
}

static float softmax(uint32_t n, float *s, float scale, float cap, float *m)
{
	v16 top = v_set1(-INFINITY), sum = v_zero();
	uint32_t end = (n + 15) / 16 * 16;
	for (uint32_t i = n; i < end; i++)
		s[i] = 0;
	if (cap > 0) {
		cap_scores(end, s, scale, cap);
		scale = 1;
	}
	for (uint32_t i = n; i < end; i++)
		s[i] = -INFINITY;
	for (uint32_t i = 0; i < end; i += 16)
		top = v_max(top, v_load(s + i));
	float best = v_hmax(top) * scale;
	v16 minus = v_set1(best == -INFINITY ? 0 : -best), factor = v_set1(scale);
	for (uint32_t i = 0; i < end; i += 16) {
		v16 p = v_exp2(v_fma(v_load(s + i), factor, minus));
		sum = v_add(sum, p);
		v_store(s + i, p);
	}
	*m = best;
	return v_hsum(sum);
}
