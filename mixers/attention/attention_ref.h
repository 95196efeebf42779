/* SPDX-License-Identifier: Apache-2.0 */
/* Attention directly from its equation, for tests and benchmarks; not part of the module. */
#ifndef MX_MIXERS_ATTENTION_ATTENTION_REF_H
#define MX_MIXERS_ATTENTION_ATTENTION_REF_H

#include <stdint.h>

/* Computes y[n, heads, dim] of one whole sequence from q[n, heads, dim] and k, v[n, kv_heads, dim]:
 * causal, over the last `window` positions only (0 = all). With cap > 0 scores become cap
 * tanh(score / cap). sinks [heads], or NULL: each head has one more key, of this score and of value
 * 0. score[n] is workspace. */
void mx_attention_ref(uint32_t n, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t window,
                      double scale, double cap, const float *sinks, const float *q, const float *k,
                      const float *v, double *score, float *y);

/* Computes row i only: q[heads, dim] and y[heads, dim] are that row's, k and v the sequence's.
 * score[i + 1]. */
void mx_attention_ref_row(uint32_t i, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                          uint32_t window, double scale, double cap, const float *sinks,
                          const float *q, const float *k, const float *v, double *score, float *y);

#endif
