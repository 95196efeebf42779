/* SPDX-License-Identifier: Apache-2.0 */
/* The norm and the gate of a group of a row's outputs, by a warp or a block. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_GATED_CUH
#define MX_MIXERS_RECURRENCE_CUDA_GATED_CUH

#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/elements.cuh"

namespace
{

/* Where a group's outputs and gates are. PLAIN: in order, so that an element's number is its place.
 * A: recur_out, or if PLAIN a struct with its members. */
template <typename A, typename T, bool PLAIN> struct source_of {
	const A &a;
	const float *y; /* of the row; PLAIN: of the group */
	const T *gate;  /* of the row */
	uint32_t from;  /* first element of the group */

	__device__ __forceinline__ float output(uint32_t i) const
	{
		if constexpr (PLAIN)
			return y[i];
		else {
			const uint32_t at = from + i;
			const float *head = y + (size_t)(at / a.head_dim) * a.head_ld;
			const float v = head[at % a.head_dim];
			return a.divide ? v / (head[a.head_dim] + 1e-10f) : v;
		}
	}
	__device__ __forceinline__ float gated(uint32_t i) const
	{
		const uint32_t at = from + i;
		uint32_t n = at;
		if constexpr (!PLAIN) {
			const uint32_t h = at / a.source.dim;
			n = h / a.source.per * a.source.stride + h % a.source.per * a.source.dim +
			    at % a.source.dim;
		}
		const float z = a.gate_scale * mx_to_float(gate[n]);
		return a.norm.gate == MX_RECUR_GATE_SILU ? silu_of<T>(z) : sigmoid_of<T>(z);
	}
};

/* Returns the place of group g of a row among the outputs. A: a struct with recur_out's members. */
template <typename A> __device__ __forceinline__ uint32_t group_place(const A &a, uint32_t g)
{
	return a.by_turns ? g % a.by_turns * (a.norm.groups / a.by_turns) + g / a.by_turns : g;
}

/* `lanes` threads, of which this is number `lane`, compute group g of a row; SHARED: they are a
 * block. EACH: elements of a thread that stay in registers; others are computed twice. */
template <typename T, bool PLAIN, bool SHARED, int EACH, typename A>
__device__ __forceinline__ void group(const A &a, const float *y_of, const T *gates, uint32_t row,
                                      uint32_t g, uint32_t lane, uint32_t lanes, float *sums)
{
	const bool gate = a.norm.gate != MX_RECUR_GATE_NONE, first = gate && a.norm.gate_first;
	const uint32_t dim = a.norm.dim, from = g * dim;
	const source_of<A, T, PLAIN> s = {a, y_of, gates, from};
	float y[EACH], z[EACH], sum = 0, scale = 1;
	T *out = (T *)a.out + ((size_t)row * a.norm.groups + group_place(a, g)) * dim;
	for (uint32_t base = 0; base < dim; base += EACH * lanes) {
#pragma unroll
		for (uint32_t e = 0; e < EACH; e++) {
			const uint32_t i = base + e * lanes + lane;
			y[e] = i < dim ? s.output(i) : 0;
			z[e] = gate && i < dim ? s.gated(i) : 1;
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
				y[e] = s.output(i);
				z[e] = gate ? s.gated(i) : 1;
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

/* Four neighbours of a gate, mapped. A: a struct with recur_out's members. */
template <typename A> __device__ __forceinline__ float4 gates_of_128(const A &a, uint2 gates)
{
	const bool silus = a.norm.gate == MX_RECUR_GATE_SILU;
	float4 z = make_float4(1, 1, 1, 1);
	if (a.norm.gate == MX_RECUR_GATE_NONE)
		return z;
	z = widen4(gates);
	each4(z, [&](float &x, int) {
		const float s = sigmoid_of<__nv_bfloat16>(a.gate_scale * x);
		x = silus ? a.gate_scale * x * s : s;
	});
	return z;
}

/* A lane's part of a head of 128 in order, bf16: 4 neighbours of a row's head, whose outputs are y
 * and mapped gates z. */
template <typename A>
__device__ __forceinline__ void head_of_128(const A &a, uint32_t row, uint32_t head, float4 y,
                                            float4 weight, float4 z)
{
	const uint32_t at = row * a.norm.groups + group_place(a, head);
	const bool first = a.norm.gate != MX_RECUR_GATE_NONE && a.norm.gate_first;
	if (first)
		y = make_float4(y.x * z.x, y.y * z.y, y.z * z.z, y.w * z.w);
	const float sum = warp_sum(
		__fmaf_rn(y.w, y.w, __fmaf_rn(y.z, y.z, __fmaf_rn(y.y, y.y, __fmul_rn(y.x, y.x)))));
	const float scale = a.has_norm ? 1 / sqrtf(sum / 128 + a.norm.eps) : 1;
	if (first)
		z = make_float4(1, 1, 1, 1);
	store4((__nv_bfloat16 *)a.out + (size_t)at * 128 + (threadIdx.x & 31) * 4,
	       make_float4(y.x * scale * weight.x * z.x, y.y * scale * weight.y * z.y,
	                   y.z * scale * weight.z * z.z, y.w * scale * weight.w * z.w));
}

/* True if outputs and gates lie in order. */
__host__ __device__ __forceinline__ bool in_order(const recur_out &a)
{
	return !a.divide && a.head_ld == a.head_dim &&
	       (!a.source.heads || a.source.per >= a.source.heads);
}

} // namespace

#endif
