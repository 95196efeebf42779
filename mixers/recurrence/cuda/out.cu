/* SPDX-License-Identifier: Apache-2.0 */
/* The norm and the gate of the recurrence's outputs. A warp, or a block, computes a group of a row.
 */
#include "mixers/recurrence/cuda/gated.cuh"

#define WARPS      4
#define NARROW     512 /* a larger group is computed by a block */
#define WIDE_WARPS 16

namespace
{

template <typename T> __device__ __forceinline__ const T *gates_of(const recur_out &a, uint32_t row)
{
	return (const T *)a.gate + row * a.ld_gate + a.source.off;
}

/* True if recur_cuda_step or recur_cuda_few computes the row. */
__device__ __forceinline__ bool elsewhere(const recur_out &a, uint32_t row)
{
	const mx_device_span *s = a.spans ? a.spans + a.row_span[row] : NULL;
	return s && s->n <= a.few && !(a.trees && s->n > 1 && s->parent_begin != UINT32_MAX);
}

template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WARPS * 32) narrow(const recur_out a)
{
	const uint32_t at = blockIdx.x * WARPS + (threadIdx.x >> 5);
	mx_pdl_launch();
	mx_pdl_wait();
	const uint32_t row = at / a.norm.groups, g = at % a.norm.groups;
	if (row >= a.n_rows || elsewhere(a, row))
		return;
	group<T, PLAIN, false, 4>(a, a.y + row * a.ldy + (PLAIN ? g * a.norm.dim : 0),
	                          gates_of<T>(a, row), row, g, threadIdx.x & 31, 32, NULL);
}

template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WIDE_WARPS * 32) wide(const recur_out a)
{
	__shared__ float sums[WIDE_WARPS];
	mx_pdl_launch();
	mx_pdl_wait();
	const uint32_t row = blockIdx.x / a.norm.groups, g = blockIdx.x % a.norm.groups;
	group<T, PLAIN, true, 10>(a, a.y + row * a.ldy + (PLAIN ? g * a.norm.dim : 0),
	                          gates_of<T>(a, row), row, g, threadIdx.x, WIDE_WARPS * 32, sums);
}

/* Heads of 128 in order, bf16. */
__global__ void __launch_bounds__(WARPS * 32) heads_of_128(const recur_out a)
{
	const uint32_t at = blockIdx.x * WARPS + (threadIdx.x >> 5), i = (threadIdx.x & 31) * 4;
	const uint32_t row = at / a.norm.groups, head = at % a.norm.groups;
	float4 weight = make_float4(1, 1, 1, 1);
	if (a.norm.weight)
		weight = load4(a.norm.weight + (a.norm.weight_per_group ? head * 128 : 0) + i);
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows || elsewhere(a, row))
		return;
	uint2 gates = make_uint2(0, 0);
	if (a.norm.gate != MX_RECUR_GATE_NONE)
		gates = *(const uint2 *)(gates_of<__nv_bfloat16>(a, row) + head * 128 + i);
	head_of_128(a, row, head, load4(a.y + row * a.ldy + head * 128 + i), weight,
	            gates_of_128(a, gates));
}

template <typename T, bool PLAIN> cudaError_t launch(cudaStream_t stream, const recur_out &a)
{
	const uint32_t n = a.n_rows * a.norm.groups;
	if (a.norm.dim > NARROW)
		return mx_launch(wide<T, PLAIN>, dim3(n), dim3(WIDE_WARPS * 32), 0, stream, a);
	return mx_launch(narrow<T, PLAIN>, dim3((n + WARPS - 1) / WARPS), dim3(WARPS * 32), 0, stream,
	                 a);
}

} // namespace

bool recur_cuda_out_of_128(const struct recur_out *a)
{
	return in_order(*a) && a->norm.dim == 128 && a->source.off % 4 == 0 && a->ld_gate % 4 == 0;
}

cudaError_t recur_cuda_out(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a)
{
	const bool plain = in_order(*a);
	if (act == MX_BF16 && recur_cuda_out_of_128(a))
		return mx_launch(heads_of_128, dim3((a->n_rows * a->norm.groups + WARPS - 1) / WARPS),
		                 dim3(WARPS * 32), 0, stream, *a);
	if (act == MX_F32)
		return plain ? launch<float, true>(stream, *a) : launch<float, false>(stream, *a);
	return plain ? launch<__nv_bfloat16, true>(stream, *a)
	             : launch<__nv_bfloat16, false>(stream, *a);
}
