/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of numbers and sums over a warp, for the kernels of recurrent layers. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_MATH_CUH
#define MX_MIXERS_RECURRENCE_CUDA_MATH_CUH

static __device__ __forceinline__ float sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

static __device__ __forceinline__ float silu(float x)
{
	return x / (1 + expf(-x));
}

/* The same for values that are rounded to T: of bf16 by faster instructions. */
template <typename T> static __device__ __forceinline__ float sigmoid_of(float x)
{
	if (sizeof(T) == 4)
		return sigmoid(x);
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * -1.44269504f));
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + y));
	return y;
}
template <typename T> static __device__ __forceinline__ float silu_of(float x)
{
	return x * sigmoid_of<T>(x);
}

static __device__ __forceinline__ float softplus(float x)
{
	return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

static __device__ __forceinline__ float log_sigmoid(float x)
{
	return -softplus(-x);
}

/* Every lane gets the sum: one tree, whatever the lanes hold. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
	for (int d = 16; d; d /= 2)
		x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
	return x;
}

#endif
