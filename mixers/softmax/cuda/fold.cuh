/* SPDX-License-Identifier: Apache-2.0 */
/* Folds two partial results of a softmax into one: m = max s, and sums of 2^(s - m) ... */
#ifndef MX_MIXERS_SOFTMAX_CUDA_FOLD_CUH
#define MX_MIXERS_SOFTMAX_CUDA_FOLD_CUH

#include "mixers/softmax/cuda/mma.cuh"

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

#endif
