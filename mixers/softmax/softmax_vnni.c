/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over keys and values in 8 bits, with VPDPBUSD. */
#include <float.h>
#include <string.h>

#include "mixers/softmax/softmax_avx512.h"
#include "mixers/softmax/softmax_kernels.h"

#define v_exp2             v_exp2_f32
#define v_store_p(s, i, p) v_store((s) + (i), p)

#include "mixers/softmax/softmax_rows.h"

static inline vi vi_dot_keys(vi sum, vi keys, int32_t quad)
{
	return _mm512_dpbusd_epi32(sum, keys, _mm512_set1_epi32(quad));
}

static inline vi vi_dot_values(vi sum, vi values, int32_t quad)
{
	return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(quad), values);
}

#define INT8_FOLD attn_avx512_int8.fold
#include "mixers/softmax/softmax_int8.h"

static void nothing(void)
{
}

static void fold(uint32_t rows, uint32_t dim, float *m, float *l, float *o, const float *mb,
                 const float *lb, const float *ob)
{
	attn_avx512_int8.fold(rows, dim, m, l, o, mb, lb, ob);
}

static void finish(uint32_t head_dim, float l, const float *o, float *y)
{
	attn_avx512_int8.finish(head_dim, l, o, y);
}

const struct attn_kernels attn_vnni_int8 = {
	.name = "avx512-vnni",
	.q_size = 4,
	.begin = nothing,
	.end = nothing,
	.append = append_int8,
	.pack_q = pack_q_int8,
	.block = block_int8,
	.fold = fold,
	.finish = finish,
};
