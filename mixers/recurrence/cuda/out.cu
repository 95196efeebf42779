/* SPDX-License-Identifier: Apache-2.0 */
/* The norm and the gate of the recurrence's outputs. A warp, or a block, computes a group of a row.
 */
#include "mixers/recurrence/cuda/gated.cuh"

#define WARPS      4
#define NARROW     512 /* a larger group is computed by a block */
#define WIDE_WARPS 16
#define MANY       512 /* rows from which on half a warp has EACH heads of 128 */
#define EACH       4

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

/* True if the row's outputs are bf16: of a long span that recur_cuda_stretch computed. */
__device__ __forceinline__ bool in_half(const recur_out &a, uint32_t row)
{
	if (!a.half || !a.half_spans)
		return a.half;
	const mx_device_span &s = a.half_spans[a.row_span[row]];
	return s.n >= RECUR_LONG && s.kind != MX_SPAN_DRAFT;
}

/* A head of 128 in order, bf16: a warp has it. */
__global__ void __launch_bounds__(WARPS * 32) heads_of_128(const recur_out a)
{
	const uint32_t at = blockIdx.x * WARPS + (threadIdx.x >> 5);
	const uint32_t row = at / a.norm.groups, head = at % a.norm.groups;
	const uint32_t i = head * 128 + (threadIdx.x & 31) * 4;
	const float4 weight = a.norm.weight
	                          ? load4(a.norm.weight + (a.norm.weight_per_group ? i : i % 128))
	                          : make_float4(1, 1, 1, 1);
	uint2 gates = make_uint2(0, 0);
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows || elsewhere(a, row))
		return;
	const float *from = a.y + row * a.ldy;
	if (a.norm.gate != MX_RECUR_GATE_NONE)
		gates = *(const uint2 *)(gates_of<__nv_bfloat16>(a, row) + i);
	const float4 y = in_half(a, row) ? widen4(*(const uint2 *)((const __nv_bfloat16 *)from + i))
	                                 : load4(from + i);
	head_of_128(a, row, head, y, weight, gates_of_128(a, gates));
}

/* 8 neighbours of a row's head, whose outputs are y and gates `gates`: what head_of_128 does, half
 * a warp for a head. The sum has its order. */
__device__ __forceinline__ void half_of_128(const recur_out &a, uint32_t row, uint32_t head,
                                            float4 (&y)[2], const float4 (&weight)[2], uint4 gates)
{
	const uint32_t at = row * a.norm.groups + group_place(a, head);
	const bool first = a.norm.gate != MX_RECUR_GATE_NONE && a.norm.gate_first;
	float4 z[2] = {gates_of_128(a, make_uint2(gates.x, gates.y)),
	               gates_of_128(a, make_uint2(gates.z, gates.w))};
	float sum[2], scale = 1;
#pragma unroll
	for (int n = 0; n < 2; n++)
		if (first)
			y[n] = make_float4(y[n].x * z[n].x, y[n].y * z[n].y, y[n].z * z[n].z, y[n].w * z[n].w);
	if (a.has_norm) {
#pragma unroll
		for (int n = 0; n < 2; n++) {
			sum[n] = __fmaf_rn(
				y[n].w, y[n].w,
				__fmaf_rn(y[n].z, y[n].z, __fmaf_rn(y[n].y, y[n].y, __fmul_rn(y[n].x, y[n].x))));
#pragma unroll
			for (int d = 8; d; d /= 2)
				sum[n] += __shfl_xor_sync(~0u, sum[n], d);
		}
		scale = 1 / sqrtf((sum[0] + sum[1]) / 128 + a.norm.eps);
	}
	uint2 out[2];
#pragma unroll
	for (int n = 0; n < 2; n++) {
		if (first)
			z[n] = make_float4(1, 1, 1, 1);
		out[n] = round4(make_float4(
			y[n].x * scale * weight[n].x * z[n].x, y[n].y * scale * weight[n].y * z[n].y,
			y[n].z * scale * weight[n].z * z[n].z, y[n].w * scale * weight[n].w * z[n].w));
	}
	*(uint4 *)((__nv_bfloat16 *)a.out + (size_t)at * 128 + threadIdx.x % 16 * 8) =
		make_uint4(out[0].x, out[0].y, out[1].x, out[1].y);
}

/* The same for many rows: a warp has 2 * EACH heads of a row, all of them read at first. IN_HALF:
 * outputs are bf16. */
template <bool IN_HALF>
__device__ __forceinline__ void run_128(const recur_out &a, uint32_t row, uint32_t head,
                                        const float4 (&common)[2])
{
	constexpr int parts = IN_HALF ? 1 : 2;
	const uint32_t e = threadIdx.x % 16 * 8, first = head * 128 + e;
	const float *from = a.y + row * a.ldy;
	uint4 y[EACH][parts], gates[EACH];
#pragma unroll
	for (uint32_t h = 0; h < EACH; h++) {
		const uint32_t i = first + h * 256;
		y[h][0] =
			*(const uint4 *)(IN_HALF ? (const float *)((const __nv_bfloat16 *)from + i) : from + i);
		if (!IN_HALF)
			y[h][parts - 1] = *(const uint4 *)(from + i + 4);
		gates[h] = make_uint4(0, 0, 0, 0);
		if (a.norm.gate != MX_RECUR_GATE_NONE)
			gates[h] = *(const uint4 *)(gates_of<__nv_bfloat16>(a, row) + i);
	}
#pragma unroll
	for (uint32_t h = 0; h < EACH; h++) {
		float4 weight[2] = {common[0], common[1]}, x[2];
		if (a.norm.weight && a.norm.weight_per_group) {
			weight[0] = load4(a.norm.weight + first + h * 256);
			weight[1] = load4(a.norm.weight + first + h * 256 + 4);
		}
		if (IN_HALF) {
			x[0] = widen4(make_uint2(y[h][0].x, y[h][0].y));
			x[1] = widen4(make_uint2(y[h][0].z, y[h][0].w));
		} else {
			x[0] = *(const float4 *)&y[h][0];
			x[1] = *(const float4 *)&y[h][parts - 1];
		}
		half_of_128(a, row, head + 2 * h, x, weight, gates[h]);
	}
}

__global__ void __launch_bounds__(WARPS * 32) many_of_128(const recur_out a)
{
	const uint32_t at = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * 2 * EACH;
	const uint32_t row = at / a.norm.groups, head = at % a.norm.groups + threadIdx.x % 32 / 16;
	float4 weight[2] = {make_float4(1, 1, 1, 1), make_float4(1, 1, 1, 1)};
	if (a.norm.weight && !a.norm.weight_per_group) {
		weight[0] = load4(a.norm.weight + threadIdx.x % 16 * 8);
		weight[1] = load4(a.norm.weight + threadIdx.x % 16 * 8 + 4);
	}
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows || elsewhere(a, row))
		return;
	if (in_half(a, row))
		run_128<true>(a, row, head, weight);
	else
		run_128<false>(a, row, head, weight);
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
	if (act == MX_BF16 && recur_cuda_out_of_128(a)) {
		const bool many = a->norm.groups % (2 * EACH) == 0 && a->n_rows >= MANY &&
		                  a->source.off % 8 == 0 && a->ld_gate % 8 == 0;
		const uint32_t warps = a->n_rows * a->norm.groups / (many ? 2 * EACH : 1);
		return mx_launch(many ? many_of_128 : heads_of_128, dim3((warps + WARPS - 1) / WARPS),
		                 dim3(WARPS * 32), 0, stream, *a);
	}
	if (act == MX_F32)
		return plain ? launch<float, true>(stream, *a) : launch<float, false>(stream, *a);
	return plain ? launch<__nv_bfloat16, true>(stream, *a)
	             : launch<__nv_bfloat16, false>(stream, *a);
}
