/* SPDX-License-Identifier: Apache-2.0 */
/* The norm and the gate of the recurrence's outputs. A warp, or a block, computes a group of a row.
 */
#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/math.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"

#define WARPS      4
#define NARROW     512 /* a larger group is computed by a block */
#define WIDE_WARPS 16

namespace
{

/* Where a row's outputs and gates are. PLAIN: in order, so that an element's number is its place.
 */
template <typename T, bool PLAIN> struct source_of {
	const recur_out &a;
	const float *y;
	const T *gate;

	__device__ __forceinline__ source_of(const recur_out &args, uint32_t row)
		: a(args), y(args.y + row * args.ldy),
		  gate((const T *)args.gate + row * args.ld_gate + args.source.off)
	{
	}
	__device__ __forceinline__ float output(uint32_t at) const
	{
		if (PLAIN)
			return y[at];
		const float *head = y + (size_t)(at / a.head_dim) * a.head_ld;
		const float v = head[at % a.head_dim];
		return a.divide ? v / (head[a.head_dim] + 1e-10f) : v;
	}
	__device__ __forceinline__ float gated(uint32_t at) const
	{
		uint32_t n = at;
		if (!PLAIN) {
			const uint32_t h = at / a.source.dim;
			n = h / a.source.per * a.source.stride + h % a.source.per * a.source.dim +
			    at % a.source.dim;
		}
		const float z = a.gate_scale * mx_to_float(gate[n]);
		return a.norm.gate == MX_RECUR_GATE_SILU ? silu_of<T>(z) : sigmoid_of<T>(z);
	}
};

/* `lanes` threads, of which this is number `lane`, compute a group; SHARED: they are a block. EACH:
 * elements of a thread that stay in registers; others are computed twice. */
template <typename T, bool PLAIN, bool SHARED, int EACH>
__device__ __forceinline__ void group(const recur_out &a, uint32_t row, uint32_t g, uint32_t lane,
                                      uint32_t lanes, float *sums)
{
	const bool gate = a.norm.gate != MX_RECUR_GATE_NONE, first = gate && a.norm.gate_first;
	const uint32_t dim = a.norm.dim, from = g * dim;
	const source_of<T, PLAIN> s(a, row);
	float y[EACH], z[EACH], sum = 0, scale = 1;
	T *out = (T *)a.out + (size_t)row * a.norm.groups * dim + from;
	for (uint32_t base = 0; base < dim; base += EACH * lanes) {
#pragma unroll
		for (uint32_t e = 0; e < EACH; e++) {
			const uint32_t i = base + e * lanes + lane;
			y[e] = i < dim ? s.output(from + i) : 0;
			z[e] = gate && i < dim ? s.gated(from + i) : 1;
		}
#pragma unroll
		for (uint32_t e = 0; e < EACH; e++) {
			y[e] = first ? y[e] * z[e] : y[e];
			sum = __fmaf_rn(y[e], y[e], sum);
		}
	}
	if (a.has_norm) {
		sum = warp_sum(sum);
		if (SHARED) {
			if (!(lane & 31))
				sums[lane >> 5] = sum;
			__syncthreads();
			sum = 0;
			for (uint32_t i = 0; i < lanes / 32; i++)
				sum += sums[i];
		}
		scale = 1 / sqrtf(sum / (float)dim + a.norm.eps);
	}
	for (uint32_t base = 0; base < dim; base += EACH * lanes)
#pragma unroll
		for (uint32_t e = 0; e < EACH; e++) {
			const uint32_t i = base + e * lanes + lane;
			if (i >= dim)
				break;
			if (dim > EACH * lanes) {
				y[e] = s.output(from + i);
				z[e] = gate ? s.gated(from + i) : 1;
				y[e] = first ? y[e] * z[e] : y[e];
			}
			float v = y[e] * scale;
			if (a.norm.weight)
				v *= a.norm.weight[a.norm.weight_per_group ? from + i : i];
			if (gate && !first)
				v *= z[e];
			out[i] = mx_from_float<T>(v);
		}
}

template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WARPS * 32) narrow(const recur_out a)
{
	const uint32_t at = blockIdx.x * WARPS + (threadIdx.x >> 5);
	mx_pdl_launch();
	mx_pdl_wait();
	if (at < a.n_rows * a.norm.groups)
		group<T, PLAIN, false, 4>(a, at / a.norm.groups, at % a.norm.groups, threadIdx.x & 31, 32,
		                          NULL);
}

template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WIDE_WARPS * 32) wide(const recur_out a)
{
	__shared__ float sums[WIDE_WARPS];
	mx_pdl_launch();
	mx_pdl_wait();
	group<T, PLAIN, true, 10>(a, blockIdx.x / a.norm.groups, blockIdx.x % a.norm.groups,
	                          threadIdx.x, WIDE_WARPS * 32, sums);
}

/* Heads of 128 in order, bf16: a lane has four neighbours. */
__global__ void __launch_bounds__(WARPS * 32) heads_of_128(const recur_out a)
{
	const uint32_t at = blockIdx.x * WARPS + (threadIdx.x >> 5), i = (threadIdx.x & 31) * 4;
	const bool gate = a.norm.gate != MX_RECUR_GATE_NONE, first = gate && a.norm.gate_first;
	float4 weight = make_float4(1, 1, 1, 1), z = weight;
	const uint32_t row = at / a.norm.groups, head = at % a.norm.groups;
	if (a.norm.weight)
		weight = *(const float4 *)(a.norm.weight + (a.norm.weight_per_group ? head * 128 : 0) + i);
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows)
		return;
	float4 y = *(const float4 *)(a.y + row * a.ldy + head * 128 + i);
	if (gate) {
		const uint2 v = *(const uint2 *)((const __nv_bfloat16 *)a.gate + row * a.ld_gate +
		                                 a.source.off + head * 128 + i);
		const float2 lo = __bfloat1622float2(*(const __nv_bfloat162 *)&v.x);
		const float2 hi = __bfloat1622float2(*(const __nv_bfloat162 *)&v.y);
		const bool silus = a.norm.gate == MX_RECUR_GATE_SILU;
		const auto f = [&](float x) {
			const float s = sigmoid_of<__nv_bfloat16>(a.gate_scale * x);
			return silus ? a.gate_scale * x * s : s;
		};
		z = make_float4(f(lo.x), f(lo.y), f(hi.x), f(hi.y));
	}
	if (first)
		y = make_float4(y.x * z.x, y.y * z.y, y.z * z.z, y.w * z.w);
	const float sum = warp_sum(
		__fmaf_rn(y.w, y.w, __fmaf_rn(y.z, y.z, __fmaf_rn(y.y, y.y, __fmul_rn(y.x, y.x)))));
	const float scale = a.has_norm ? 1 / sqrtf(sum / 128 + a.norm.eps) : 1;
	if (first)
		z = make_float4(1, 1, 1, 1);
	const __nv_bfloat162 lo =
		__floats2bfloat162_rn(y.x * scale * weight.x * z.x, y.y * scale * weight.y * z.y);
	const __nv_bfloat162 hi =
		__floats2bfloat162_rn(y.z * scale * weight.z * z.z, y.w * scale * weight.w * z.w);
	*(uint2 *)((__nv_bfloat16 *)a.out + (size_t)at * 128 + i) =
		make_uint2(*(const uint32_t *)&lo, *(const uint32_t *)&hi);
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

cudaError_t recur_cuda_out(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a)
{
	const bool plain = !a->divide && a->head_ld == a->head_dim &&
	                   (!a->source.heads || a->source.per >= a->source.heads);
	if (act == MX_BF16 && plain && a->norm.dim == 128 && a->source.off % 4 == 0 &&
	    a->ld_gate % 4 == 0)
		return mx_launch(heads_of_128, dim3((a->n_rows * a->norm.groups + WARPS - 1) / WARPS),
		                 dim3(WARPS * 32), 0, stream, *a);
	if (act == MX_F32)
		return plain ? launch<float, true>(stream, *a) : launch<float, false>(stream, *a);
	return plain ? launch<__nv_bfloat16, true>(stream, *a)
	             : launch<__nv_bfloat16, false>(stream, *a);
}
