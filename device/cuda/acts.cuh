/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of feed-forwards, in f32. */
#ifndef MX_DEVICE_CUDA_ACTS_CUH
#define MX_DEVICE_CUDA_ACTS_CUH

#include "device/experts.h"

static __device__ __forceinline__ float mx_activation(enum mx_act act, float x)
{
	switch (act) {
	case MX_ACT_SILU: return x / (1.0f + expf(-x));
	case MX_ACT_GELU_TANH: {
		float u = x * fmaf(x * x, 0.07135481282247193f, 1.5957691216057308f);
		return x / (1.0f + expf(-u));
	}
	case MX_ACT_GELU: return 0.5f * x * erfcf(-x * 0.70710678118654752f);
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : x * 0.0f;
}

/* silu(g) u = g / (1 + exp(-g)) u for numbers of bf16: the fast functions are far more exact. */
static __device__ __forceinline__ float mx_silu_mul_fast(float g, float u)
{
	return __fdividef(g, 1.0f + __expf(-g)) * u;
}

#endif
