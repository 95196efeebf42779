/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The equation, row by row, in double precision:
 *   y_i = sum_j softmax_j(scale q_i . k_j) v_j,  i - window < j <= i
 * (Vaswani et al. 2017; grouped queries: Ainslie et al. 2023; window: Jiang et al. 2023; softcap:
 * Gemma 2, 2024; sinks: gpt-oss, 2025, after Xiao et al. 2023).
 */
#include "mixers/attention/attention_ref.h"

#include <math.h>
#include <stddef.h>

static double dot(const float *a, const float *b, uint32_t dim)
{
	double sum = 0;
	for (uint32_t i = 0; i < dim; i++)
		sum += (double)a[i] * b[i];
	return sum;
}

void mx_attention_ref_row(uint32_t i, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                          uint32_t window, double scale, double cap, const float *sinks,
                          const float *q, const float *k, const float *v, double *score, float *y)
{
	uint32_t first = window && i + 1 > window ? i + 1 - window : 0;
	for (uint32_t h = 0; h < heads; h++) {
		size_t row = (size_t)h * dim, g = h / (heads / kv_heads);
		double top = sinks ? (double)sinks[h] : -INFINITY, total = 0;
		for (uint32_t j = first; j <= i; j++) {
			score[j] = scale * dot(q + row, k + (j * kv_heads + g) * dim, dim);
			if (cap > 0)
				score[j] = cap * tanh(score[j] / cap);
			top = fmax(top, score[j]);
		}
		for (uint32_t j = first; j <= i; j++)
			total += score[j] = exp(score[j] - top);
		if (sinks)
			total += exp((double)sinks[h] - top);
		for (uint32_t d = 0; d < dim; d++) {
			double sum = 0;
			for (uint32_t j = first; j <= i; j++)
				sum += score[j] * v[(j * kv_heads + g) * dim + d];
			y[row + d] = (float)(sum / total);
		}
	}
}

void mx_attention_ref(uint32_t n, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t window,
                      double scale, double cap, const float *sinks, const float *q, const float *k,
                      const float *v, double *score, float *y)
{
	size_t row = (size_t)heads * dim;
	for (uint32_t i = 0; i < n; i++)
		mx_attention_ref_row(i, heads, kv_heads, dim, window, scale, cap, sinks, q + i * row, k, v,
		                     score, y + i * row);
}
