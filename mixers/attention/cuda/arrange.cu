/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the rows of products beside attention, for models that need it: products that
 * hold q, k and v head by head, or q and its gates, are taken apart; all heads of q and k are
 * normalised together; outputs are multiplied by their gates.
 */
#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"

#define BLOCK 256

namespace
{

/* Returns the element of a row of raw that element e of a row of q, k and v comes from; of q only
 * if there are gates. */
__device__ __forceinline__ uint32_t source(const attn_args &a, uint32_t e)
{
	uint32_t head = e / a.head_dim, d = e - head * a.head_dim;
	if (a.gate)
		return 2 * head * a.head_dim + d;
	/* [group queries | key | value] for each key head */
	uint32_t of = head < a.heads                ? head / a.group
	              : head < a.heads + a.kv_heads ? head - a.heads
	                                            : head - a.heads - a.kv_heads;
	uint32_t part = head < a.heads                ? head % a.group
	                : head < a.heads + a.kv_heads ? a.group
	                                              : a.group + 1;
	return (of * (a.group + 2) + part) * a.head_dim + d;
}

/* Returns the sum of the squares of n elements to all threads of the block, which all call it. */
template <typename A> __device__ float square_sum(const A *x, uint32_t n, float *part)
{
	float sum = 0;
	for (uint32_t i = threadIdx.x; i < n; i += BLOCK) {
		float f = mx_to_float<A>(x[i]);
		sum = fmaf(f, f, sum);
	}
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(~0u, sum, d);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	sum = 0;
	for (uint32_t i = 0; i < BLOCK / 32; i++)
		sum += part[i];
	return sum;
}

/* Normalises n elements (RMS), of `all` whose squares have this sum. */
template <typename A>
__device__ void norm(A *x, uint32_t n, float sum, uint32_t all, const float *weight, float eps)
{
	float scale = 1.0f / sqrtf(sum / (float)all + eps);
	for (uint32_t i = threadIdx.x; i < n; i += BLOCK)
		x[i] = mx_from_float<A>(mx_to_float<A>(x[i]) * scale * weight[i]);
}

/* A thread block a row. */
template <typename A> __global__ void __launch_bounds__(BLOCK) arrange(const attn_args a)
{
	__shared__ float part[2][BLOCK / 32];
	uint32_t q = a.heads * a.head_dim, k = a.kv_heads * a.head_dim;
	const A *raw = (const A *)a.raw + (size_t)blockIdx.x * a.ld_raw;
	A *row = (A *)a.qkv + (size_t)blockIdx.x * a.ld;
	mx_pdl_launch();
	mx_pdl_wait();
	if (a.raw)
		for (uint32_t e = threadIdx.x; e < (a.gate ? q : q + 2 * k); e += BLOCK)
			row[e] = raw[source(a, e)];
	if (!a.norm_whole)
		return;
	__syncthreads(); /* the row is there */
	norm<A>(row, q, square_sum<A>(row, q, part[0]), q, a.q_norm, a.norm_eps);
	norm<A>(row + q, k, square_sum<A>(row + q, k, part[1]), k, a.k_norm, a.norm_eps);
}

/* Thread block (row, q or k). */
template <typename A> __global__ void __launch_bounds__(BLOCK) squares(const attn_summed a)
{
	__shared__ float part[BLOCK / 32];
	const uint32_t which = blockIdx.y;
	const A *x = (const A *)a.qkv + blockIdx.x * a.ld + which * a.n[0];
	mx_pdl_launch();
	mx_pdl_wait();
	const float sum = square_sum<A>(x, a.n[which], part);
	if (!threadIdx.x)
		a.sums[blockIdx.x * 2 + which] = sum;
}

/* Likewise. */
template <typename A> __global__ void __launch_bounds__(BLOCK) scaled(const attn_summed a)
{
	const uint32_t which = blockIdx.y;
	A *x = (A *)a.qkv + blockIdx.x * a.ld + which * a.n[0];
	mx_pdl_launch();
	mx_pdl_wait();
	const float sum = ((const volatile float *)a.sums)[blockIdx.x * 2 + which];
	norm<A>(x, a.n[which], sum, a.all[which], a.weight[which], a.eps);
}

template <typename A> __global__ void __launch_bounds__(BLOCK) gates(const attn_args a)
{
	uint32_t e = blockIdx.y * BLOCK + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	if (e >= a.ldo)
		return;
	const A *raw = (const A *)a.raw + (size_t)blockIdx.x * a.ld_raw;
	A *y = (A *)a.out + (size_t)blockIdx.x * a.ldo + e;
	float value = mx_to_float<A>(*y);
	e += a.first_out * a.head_dim; /* among all heads' */
	const uint32_t head = e / a.head_dim;
	if (a.gate)
		value /= 1.0f + expf(-mx_to_float<A>(raw[(head + 1) * a.head_dim + e]));
	if (a.gates)
		value /= 1.0f + expf(-(a.wide_gate ? a.gates[(size_t)blockIdx.x * a.heads * a.head_dim + e]
		                                   : a.gates[(size_t)blockIdx.x * a.heads + head]));
	*y = mx_from_float<A>(value);
}

} // namespace

cudaError_t attn_arrange(const attn_launch *l, const attn_args *a)
{
	dim3 grid(a->n_rows), block(BLOCK);
	if (!a->raw && !a->norm_whole)
		return cudaSuccess;
	return l->act == MX_BF16 ? mx_launch(arrange<__nv_bfloat16>, grid, block, 0, l->stream, *a)
	                         : mx_launch(arrange<float>, grid, block, 0, l->stream, *a);
}

cudaError_t attn_squares(const attn_launch *l, const attn_summed *a)
{
	dim3 grid(a->n_rows, 2), block(BLOCK);
	return l->act == MX_BF16 ? mx_launch(squares<__nv_bfloat16>, grid, block, 0, l->stream, *a)
	                         : mx_launch(squares<float>, grid, block, 0, l->stream, *a);
}

cudaError_t attn_scaled(const attn_launch *l, const attn_summed *a)
{
	dim3 grid(a->n_rows, 2), block(BLOCK);
	return l->act == MX_BF16 ? mx_launch(scaled<__nv_bfloat16>, grid, block, 0, l->stream, *a)
	                         : mx_launch(scaled<float>, grid, block, 0, l->stream, *a);
}

cudaError_t attn_gates(const attn_launch *l, const attn_args *a)
{
	dim3 grid(a->n_rows, (a->ldo + BLOCK - 1) / BLOCK), block(BLOCK);
	if (!a->gate && !a->gates)
		return cudaSuccess;
	return l->act == MX_BF16 ? mx_launch(gates<__nv_bfloat16>, grid, block, 0, l->stream, *a)
	                         : mx_launch(gates<float>, grid, block, 0, l->stream, *a);
}
