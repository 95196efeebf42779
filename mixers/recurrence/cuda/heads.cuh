/* SPDX-License-Identifier: Apache-2.0 */
/* What heads.cu and heads_many.cu share. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_HEADS_CUH
#define MX_MIXERS_RECURRENCE_CUDA_HEADS_CUH

#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/elements.cuh"
#include "mixers/recurrence/cuda/slot.cuh"

#define WARPS 4
#define WIDE  128 /* elements of a piece of a stream */
#define TAPS  4

namespace
{

/* Pieces of n elements of a head. */
__host__ __device__ __forceinline__ uint32_t pieces(uint32_t n)
{
	return (n + WIDE - 1) / WIDE;
}

/* A stream's head as a lane sees it, and the inputs of the last rows. */
template <typename X> struct window {
	const X *from; /* element of this lane in row 0 of the product */
	size_t ld;
	float4 w[TAPS], seen[TAPS], bias;
};

/* Takes the place of a lane's elements, their taps and biases. */
template <typename X>
__device__ __forceinline__ void open(const recur_rows &a, const recur_source &s, uint32_t head,
                                     uint32_t i, window<X> *out)
{
	const uint32_t n = head * s.dim + i, taps = s.conv ? a.conv.taps : 0;
	out->from = (const X *)(s.gates ? a.gates : a.proj) + s.off + head / s.per * s.stride +
	            head % s.per * s.dim + i;
	out->ld = s.gates ? a.ld_gates : a.ld_proj;
	out->bias = make_float4(0, 0, 0, 0);
	const float *bias = s.conv ? s.conv_bias : s.bias;
	if (bias)
		each4(out->bias, [&](float &x, int e) { x = bias[n + e]; });
#pragma unroll
	for (uint32_t t = 0; t < TAPS; t++)
		if (t < taps)
			each4(out->w[t], [&](float &x, int e) { x = s.w[(size_t)(n + e) * taps + t]; });
}

/* Brings the inputs of the tokens before token t of a span. */
template <typename T>
__device__ __forceinline__ void fill(const recur_rows &a, const recur_source &s, uint32_t n,
                                     const mx_device_span &span, uint32_t t,
                                     const unsigned char *slot, window<T> &w)
{
	const T *ring = (const T *)(slot + a.conv.at) + s.channel + n;
	const uint32_t pos = position_of(a.step, span, t);
#pragma unroll
	for (uint32_t i = 0; i + 1 < TAPS; i++) {
		const uint32_t back = a.conv.taps - 1 - i;
		if (i + 1 >= a.conv.taps)
			break;
		const uint32_t token = token_before(a.step, span, t, back);
		w.seen[i] = make_float4(0, 0, 0, 0);
		if (token != UINT32_MAX)
			w.seen[i] = load4(w.from + (size_t)(span.row + token) * w.ld);
		else if (pos >= back)
			w.seen[i] = load4(ring + (size_t)((pos - back) % a.conv.cap) * a.conv.channels);
	}
}

/* Returns a lane's part of the sum of a head's norm. */
__device__ __forceinline__ float norm_part(enum mx_recur_qk_norm norm, float4 v)
{
	if (norm == MX_RECUR_QK_L2)
		return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x))));
	if (norm == MX_RECUR_QK_L1)
		return fabsf(v.x) + fabsf(v.y) + fabsf(v.z) + fabsf(v.w);
	return v.x + v.y + v.z + v.w;
}

/* Numbers of heads: a, beta and Mamba's step. A lane has a head; 8 rows are read at a time. */
__device__ __forceinline__ void run_numbers(const recur_rows &a, int stream, uint32_t head,
                                            uint32_t first, uint32_t rows)
{
	constexpr uint32_t ahead = 8;
	const recur_source &s = a.source[stream];
	const uint32_t n = head + (threadIdx.x & 31);
	const uint32_t end = first + rows < a.step.n_rows ? first + rows : a.step.n_rows;
	if (n >= s.heads)
		return;
	const float *from = (const float *)a.gates + s.off + n / s.per * s.stride + n % s.per;
	const float bias = s.bias ? s.bias[n] : 0;
	for (uint32_t base = first; base < end; base += ahead) {
		float all[ahead];
#pragma unroll
		for (uint32_t u = 0; u < ahead; u++)
			all[u] = base + u < end ? from[(base + u) * a.ld_gates] : 0;
#pragma unroll 1
		for (uint32_t u = 0; u < ahead && base + u < end; u++) {
			const size_t to = (size_t)(base + u) * s.heads + n;
			const float z = all[0] + bias;
#pragma unroll
			for (uint32_t i = 0; i + 1 < ahead; i++)
				all[i] = all[i + 1];
			if (stream == MX_RECUR_A)
				a.a[to] = factor(a, n, z);
			else if (a.beta == MX_RECUR_BETA_STEP) {
				float b = softplus(z * a.beta_scale);
				b = b < a.step_min ? a.step_min : b > a.step_max ? a.step_max : b;
				a.a[to] = expf(b * a.mul[n]);
				a.b[to] = b;
			} else
				a.b[to] = sigmoid(z) * a.beta_scale;
		}
	}
}

} // namespace

/* Heads of q, k and v for many rows, bf16, and numbers; vectors of factors are left to `heads`. */
bool recur_heads_many_can(const recur_rows &a);
cudaError_t recur_heads_many(cudaStream_t stream, const recur_rows &a);

#endif
