/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The partial result of attention over some keys, and how two of them are folded
 * into one. In powers of two, with s the scaled scores:
 *     m = max s    l = sum 2^(s - m)    o = sum 2^(s - m) v
 * Folding is associative except for rounding (Milakov and Gimelshein 2018,
 * arXiv:1805.02867), so keys may be spread over thread blocks, kernels or GPUs.
 * For the same bits, fold in the same order. In memory: sums f32 [.., 2], values
 * f32 [.., dim].
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_PARTIAL_CUH
#define MX_MIXERS_ATTENTION_CUDA_PARTIAL_CUH

#include "mixers/attention/cuda/mma.cuh"

struct partial {
	float m, l, o; /* o: one dimension; without keys: -inf, 0, 0 */
};

struct fold_factors {
	float old, add;
};

/* Returns what the old and the added sums are multiplied by. */
static __device__ __forceinline__ fold_factors factors(float old_m, float add_m)
{
	float m = fmaxf(old_m, add_m), use = m == -INFINITY ? 0 : m;
	return {exp2_fast(__fsub_rn(old_m, use)), exp2_fast(__fsub_rn(add_m, use))};
}

static __device__ __forceinline__ float fold_number(float old, float f_old, float add, float f_add)
{
	return __fmaf_rn(add, f_add, __fmul_rn(old, f_old));
}

static __device__ __forceinline__ float finish(partial p)
{
	return __fdiv_rn(p.o, p.l);
}

#endif
