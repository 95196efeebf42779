/* SPDX-License-Identifier: Apache-2.0 */
/* The norm and the gate of a group of outputs of which several ranks have a part: each computes the
 * squares of its part, these are summed over the ranks, and each scales its part. A block computes
 * a row. */
#include "mixers/recurrence/cuda/gated.cuh"

#define WARPS 8

namespace
{

template <typename T>
__device__ __forceinline__ source_of<recur_out, T, false> source(const recur_out &a, uint32_t row)
{
	return {a, a.y + row * a.ldy, (const T *)a.gate + row * a.ld_gate + a.source.off, 0};
}

template <typename T>
__global__ void __launch_bounds__(WARPS * 32) squares(const recur_out a, const recur_share share)
{
	__shared__ float sums[WARPS];
	const uint32_t row = blockIdx.x;
	const bool first = a.norm.gate != MX_RECUR_GATE_NONE && a.norm.gate_first;
	mx_pdl_launch();
	mx_pdl_wait();
	const source_of<recur_out, T, false> s = source<T>(a, row);
	float sum = 0;
	for (uint32_t i = threadIdx.x; i < a.norm.dim; i += WARPS * 32) {
		const float y = first ? s.output(i) * s.gated(i) : s.output(i);
		sum = __fmaf_rn(y, y, sum);
	}
	sum = warp_sum(sum);
	if (!(threadIdx.x & 31))
		sums[threadIdx.x >> 5] = sum;
	__syncthreads();
	sum = 0;
	for (uint32_t i = 0; i < WARPS; i++)
		sum += sums[i];
	for (uint32_t g = threadIdx.x; g < share.groups; g += WARPS * 32)
		share.sums[(size_t)row * share.groups + g] = g == share.group ? sum : 0;
}

template <typename T>
__global__ void __launch_bounds__(WARPS * 32) scaled(const recur_out a, const recur_share share)
{
	const uint32_t row = blockIdx.x;
	const bool gate = a.norm.gate != MX_RECUR_GATE_NONE;
	mx_pdl_launch();
	mx_pdl_wait();
	const source_of<recur_out, T, false> s = source<T>(a, row);
	const float sum =
		((const volatile float *)share.sums)[(size_t)row * share.groups + share.group];
	const float scale = 1 / sqrtf(sum / (float)share.dim + a.norm.eps);
	for (uint32_t i = threadIdx.x; i < a.norm.dim; i += WARPS * 32) {
		const float z = gate ? s.gated(i) : 1;
		float v = a.norm.gate_first ? s.output(i) * z * scale : s.output(i) * scale;
		v *= a.norm.weight ? a.norm.weight[i] : 1;
		((T *)a.out)[(size_t)row * a.norm.dim + i] =
			mx_from_float<T>(a.norm.gate_first ? v : v * z);
	}
}

} // namespace

cudaError_t recur_cuda_squares(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a,
                               const struct recur_share *s)
{
	const dim3 grid(a->n_rows), block(WARPS * 32);
	return act == MX_F32 ? mx_launch(squares<float>, grid, block, 0, stream, *a, *s)
	                     : mx_launch(squares<__nv_bfloat16>, grid, block, 0, stream, *a, *s);
}

cudaError_t recur_cuda_scaled(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a,
                              const struct recur_share *s)
{
	const dim3 grid(a->n_rows), block(WARPS * 32);
	return act == MX_F32 ? mx_launch(scaled<float>, grid, block, 0, stream, *a, *s)
	                     : mx_launch(scaled<__nv_bfloat16>, grid, block, 0, stream, *a, *s);
}
