/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to elements of streams between the products and the recurrence; 4 neighbours for
 * kernels whose lanes have so many. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_ELEMENTS_CUH
#define MX_MIXERS_RECURRENCE_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>

#include "mixers/recurrence/cuda/math.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"

/* Four neighbours in memory. */
static __device__ __forceinline__ float4 load4(const float *p)
{
	return *(const float4 *)p;
}
static __device__ __forceinline__ float4 widen4(uint2 v)
{
	const __nv_bfloat162 lo = *(const __nv_bfloat162 *)&v.x, hi = *(const __nv_bfloat162 *)&v.y;
	return make_float4(__low2float(lo), __high2float(lo), __low2float(hi), __high2float(hi));
}
static __device__ __forceinline__ float4 load4(const __nv_bfloat16 *p)
{
	return widen4(*(const uint2 *)p);
}
static __device__ __forceinline__ void store4(float *p, float4 v)
{
	*(float4 *)p = v;
}
static __device__ __forceinline__ uint2 round4(float4 v)
{
	const __nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
	return make_uint2(*(const uint32_t *)&lo, *(const uint32_t *)&hi);
}
static __device__ __forceinline__ void store4(__nv_bfloat16 *p, float4 v)
{
	*(uint2 *)p = round4(v);
}

template <typename F> static __device__ __forceinline__ void each4(float4 &v, F f)
{
	f(v.x, 0), f(v.y, 1), f(v.z, 2), f(v.w, 3);
}

static __device__ __forceinline__ float feature(enum mx_recur_feature f, float x)
{
	switch (f) {
	case MX_RECUR_FEATURE_RELU: return x > 0 ? x : 0;
	case MX_RECUR_FEATURE_SIGMOID: return sigmoid(x);
	case MX_RECUR_FEATURE_SILU: return silu(x);
	case MX_RECUR_FEATURE_ELU: return x > 0 ? x + 1 : expf(x);
	default: return x;
	}
}

/* Returns a lane's part of the sum of a head's norm. */
template <int N>
static __device__ __forceinline__ float norm_part(enum mx_recur_qk_norm norm, const float4 (&x)[N])
{
	float sum = 0;
#pragma unroll
	for (int half = 0; half < N; half++) {
		const float4 v = x[half];
		if (norm == MX_RECUR_QK_L2)
			sum = __fmaf_rn(v.w, v.w,
			                __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
		else if (norm == MX_RECUR_QK_L1)
			sum += fabsf(v.x) + fabsf(v.y) + fabsf(v.z) + fabsf(v.w);
		else
			sum += v.x + v.y + v.z + v.w;
	}
	return sum;
}

/* Returns the factor of a head's norm from its sum. */
static __device__ __forceinline__ float norm_factor(enum mx_recur_qk_norm norm, float sum)
{
	return norm == MX_RECUR_QK_L2   ? 1 / sqrtf(sum + 1e-6f)
	       : norm == MX_RECUR_QK_L1 ? 1 / fmaxf(sum, 1e-6f)
	                                : 1 / (sum + 1e-4f);
}

/* Returns the factor of a head's norm. */
template <int N>
static __device__ __forceinline__ float norm_of(enum mx_recur_qk_norm norm, const float4 (&x)[N])
{
	return norm_factor(norm, warp_sum(norm_part(norm, x)));
}

/* What the map of an element of stream A has in its tables. */
struct factor_terms {
	float pre, mul, add;
};

/* A: a struct with recur_rows' members for it. */
template <typename A>
static __device__ __forceinline__ factor_terms terms_of(const A &a, uint32_t n)
{
	const factor_terms t = {a.pre ? a.pre[n] : 1, a.mul ? a.mul[n] : 1, a.add ? a.add[n] : 0};
	return t;
}

/* Returns a factor from its stream's element z. */
template <typename A>
static __device__ __forceinline__ float factor(const A &a, const factor_terms &t, float z)
{
	float x = 0;
	switch (a.decay) {
	case MX_RECUR_A_LOGSIGMOID: x = log_sigmoid(z); break;
	case MX_RECUR_A_SOFTPLUS: x = softplus(z); break;
	default: x = sigmoid(z * t.pre); break;
	}
	x = __fadd_rn(__fmul_rn(x, t.mul), t.add);
	if (a.decay == MX_RECUR_A_SIGMOID)
		return x;
	return expf(a.decay == MX_RECUR_A_LOGSIGMOID ? fmaxf(x, a.decay_min) : x);
}

/* The same where the tables are read here: for kernels of many rows. n: the element's number in a
 * row. */
static __device__ __forceinline__ float factor(const recur_rows &a, uint32_t n, float z)
{
	float x = 0;
	switch (a.decay) {
	case MX_RECUR_A_LOGSIGMOID: x = log_sigmoid(z); break;
	case MX_RECUR_A_SOFTPLUS: x = softplus(z); break;
	default: x = sigmoid(a.pre ? z * a.pre[n] : z); break;
	}
	if (a.mul)
		x *= a.mul[n];
	if (a.add)
		x += a.add[n];
	if (a.decay == MX_RECUR_A_SIGMOID)
		return x;
	return expf(a.decay == MX_RECUR_A_LOGSIGMOID ? fmaxf(x, a.decay_min) : x);
}

/* Returns beta, or Mamba's step, from its stream's element z. */
template <typename A> static __device__ __forceinline__ float beta_of(const A &a, float z)
{
	if (a.beta != MX_RECUR_BETA_STEP)
		return sigmoid(z) * a.beta_scale;
	const float b = softplus(z * a.beta_scale);
	return b < a.step_min ? a.step_min : b > a.step_max ? a.step_max : b;
}

#endif
