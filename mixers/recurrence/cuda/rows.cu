/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything between the products of a layer's input and the recurrence: convolution, activation,
 * feature map, norm and rotation of q and k, the factors a and the numbers beta. A warp computes a
 * head of a row, or 128 elements where elements do not depend on each other.
 */
#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/elements.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"
#include "mixers/recurrence/cuda/slot.cuh"

#define WARPS 4
#define PIECE 128 /* elements of a warp in streams without heads */

namespace
{

/* A row of the step. */
struct place {
	uint32_t row, t, pos; /* t: number within its span */
	const unsigned char *slot;
	mx_device_span span;
};

/* Returns element i of a stream's head after convolution and activation. */
template <typename T>
__device__ __forceinline__ float element(const recur_rows &a, const recur_source &s, const place &p,
                                         uint32_t h, uint32_t i)
{
	const uint32_t at = s.off + h / s.per * s.stride + h % s.per * s.dim + i, n = h * s.dim + i;
	float x = 0;
	if (s.gates)
		x = ((const float *)a.gates)[p.row * a.ld_gates + at];
	else if (!s.conv)
		x = mx_to_float(((const T *)a.proj)[p.row * a.ld_proj + at]);
	else {
		const T *ring = (const T *)(p.slot + a.conv.at) + s.channel + n;
		const float *w = s.w + (size_t)n * a.conv.taps;
		x = s.conv_bias ? s.conv_bias[n] : 0;
		for (uint32_t tap = 0; tap < a.conv.taps; tap++) {
			const uint32_t back = a.conv.taps - 1 - tap;
			const uint32_t token = token_before(a.step, p.span, p.t, back);
			float in = 0;
			if (token != UINT32_MAX)
				in = mx_to_float(((const T *)a.proj)[(p.span.row + token) * a.ld_proj + at]);
			else if (p.pos >= back)
				in = mx_to_float(ring[(size_t)((p.pos - back) % a.conv.cap) * a.conv.channels]);
			x = __fmaf_rn(w[tap], in, x);
		}
	}
	if (s.bias)
		x += s.bias[n];
	return s.silu ? silu(x) : x;
}

/* The feature of element i of the head x [dim]; x2 is the second product. Not for DPFP's and
 * hedgehog's larger heads. */
__device__ __forceinline__ float feature(enum mx_recur_feature f, float x, float x2)
{
	switch (f) {
	case MX_RECUR_FEATURE_RELU:
	case MX_RECUR_FEATURE_T2R: return x > 0 ? x : 0;
	case MX_RECUR_FEATURE_SIGMOID: return sigmoid(x);
	case MX_RECUR_FEATURE_SILU: return silu(x);
	case MX_RECUR_FEATURE_ELU: return x > 0 ? x + 1 : expf(x);
	case MX_RECUR_FEATURE_PRODUCT: return x * x2;
	default: return x;
	}
}

/* Turns the pair (i, i + half) of a head. */
__device__ __forceinline__ void turn(const recur_rows &a, uint32_t pos, uint32_t i, uint32_t half,
                                     float *x)
{
	float s, c;
	sincosf((float)pos * a.inv_freq[i], &s, &c);
	const float lo = x[i], hi = x[i + half];
	x[i] = __fmaf_rn(lo, c, -__fmul_rn(hi, s));
	x[i + half] = __fmaf_rn(hi, c, __fmul_rn(lo, s));
}

__device__ __forceinline__ float dpfp_part(const float *x, uint32_t n, uint32_t i)
{
	const float z = i < n ? x[i] : -x[i - n];
	return z > 0 ? z : 0;
}

/* Maps a head of q or k: x [dim] to y [features]. Both are the warp's. */
__device__ void map_head(const recur_rows &a, int qk, const place &p, uint32_t dim, float *x,
                         const float *x2, float *y)
{
	const uint32_t lane = threadIdx.x & 31, n = a.features;
	const bool l2 = a.norm[qk] == MX_RECUR_QK_L2, l1 = a.norm[qk] == MX_RECUR_QK_L1;
	float sum = 0, scale = a.scale[qk];
	__syncwarp();
	if (a.feature == MX_RECUR_FEATURE_HEDGEHOG) {
		float most = 0;
		for (uint32_t i = lane; i < dim; i += 32)
			most = fmaxf(most, fabsf(x[i]));
		most = warp_max(most);
		for (uint32_t i = lane; i < dim; i += 32) {
			y[i] = expf(2 * x[i] - 2 * most);
			y[dim + i] = expf(-2 * x[i] - 2 * most);
			sum += y[i] + y[dim + i];
		}
		sum = 1 / warp_sum(sum);
		for (uint32_t i = lane; i < dim; i += 32) {
			y[i] *= sum;
			y[dim + i] *= sum;
		}
	} else if (a.feature == MX_RECUR_FEATURE_DPFP) {
		for (uint32_t i = lane; i < n; i += 32) {
			const uint32_t both = 2 * dim, j = i / both + 1, e = i % both;
			y[i] = dpfp_part(x, dim, e) * dpfp_part(x, dim, (e + 4 * dim - j % both) % both);
		}
	} else
		for (uint32_t i = lane; i < dim; i += 32)
			y[i] = feature(a.feature, x[i], x2 ? x2[i] : 0);
	__syncwarp();
	if (a.inv_freq) {
		for (uint32_t i = lane; i < dim / 2; i += 32)
			turn(a, p.pos, i, dim / 2, y);
		__syncwarp();
	}
	if (a.norm[qk] != MX_RECUR_QK_NONE) {
		sum = 0;
		for (uint32_t i = lane; i < n; i += 32)
			sum = l2 ? __fmaf_rn(y[i], y[i], sum) : sum + (l1 ? fabsf(y[i]) : y[i]);
		sum = warp_sum(sum);
		scale /= l2 ? sqrtf(sum + 1e-6f) : l1 ? fmaxf(sum, 1e-6f) : sum + 1e-4f;
	}
	for (uint32_t i = lane; i < n; i += 32)
		y[i] *= scale;
	__syncwarp();
}

/* Reads and maps head h of q (qk = 0) or k (1) and writes it. */
template <typename T>
__device__ void key(const recur_rows &a, int qk, const place &p, uint32_t h, float *x)
{
	const recur_source &s = a.source[qk];
	const uint32_t lane = threadIdx.x & 31, n = a.features;
	float *x2 = x + RECUR_MAX_HEAD, *y = x + 2 * RECUR_MAX_HEAD;
	if (a.first) {
		T *to = (T *)a.plain[qk] + ((size_t)p.row * s.heads + h) * s.dim;
		for (uint32_t i = lane; i < s.dim; i += 32)
			to[i] = mx_from_float<T>(element<T>(a, s, p, h, i));
		return;
	}
	for (uint32_t i = lane; i < s.dim; i += 32) {
		const size_t at = ((size_t)p.row * s.heads + h) * s.dim + i;
		x[i] = a.second ? mx_to_float(((const T *)a.layers[qk][0])[at]) : element<T>(a, s, p, h, i);
		if (a.second && a.layers[qk][1])
			x2[i] = mx_to_float(((const T *)a.layers[qk][1])[at]);
	}
	map_head(a, qk, p, s.dim, x, a.layers[qk][1] ? x2 : NULL, y);
	T *to = (T *)(qk ? a.k : a.q) + ((size_t)p.row * s.heads + h) * a.kpad;
	for (uint32_t i = lane; i < a.kpad; i += 32)
		to[i] = mx_from_float<T>(i < n ? y[i] : 0);
}

template <typename T>
__device__ void value(const recur_rows &a, const place &p, uint32_t h, uint32_t first)
{
	const recur_source &s = a.source[MX_RECUR_V];
	T *to = (T *)a.v + ((size_t)p.row * s.heads + h) * a.vpad;
	for (uint32_t i = first + (threadIdx.x & 31); i < first + PIECE && i < a.vpad; i += 32) {
		float x = 0;
		if (i < s.dim)
			x = element<T>(a, s, p, h, i);
		else if (a.one && i == s.dim)
			x = 1;
		to[i] = mx_from_float<T>(x);
	}
}

/* Vectors of factors; HGRN2's k. */
template <typename T>
__device__ void factors(const recur_rows &a, const place &p, uint32_t h, uint32_t first)
{
	const recur_source &s = a.source[MX_RECUR_A];
	const uint32_t pad = a.channel ? a.vpad : a.kpad;
	const size_t at = ((size_t)p.row * s.heads + h) * pad;
	for (uint32_t i = first + (threadIdx.x & 31); i < first + PIECE && i < pad; i += 32) {
		const float f = i < s.dim ? factor(a, h * s.dim + i, element<T>(a, s, p, h, i)) : 1;
		a.a[at + i] = f;
		if (a.k_is_rest)
			((T *)a.k)[at + i] = mx_from_float<T>(1 - f);
		if (a.v_times_rest && i < s.dim)
			((T *)a.v)[at + i] =
				mx_from_float<T>((1 - f) * element<T>(a, a.source[MX_RECUR_V], p, h, i));
	}
}

/* Numbers of a head: a, beta and Mamba's step. */
template <typename T>
__device__ void numbers(const recur_rows &a, const place &p, int stream, uint32_t first)
{
	const recur_source &s = a.source[stream];
	for (uint32_t h = first + (threadIdx.x & 31); h < first + PIECE && h < s.heads; h += 32) {
		const float z = element<T>(a, s, p, h, 0);
		if (stream == MX_RECUR_A) {
			a.a[(size_t)p.row * s.heads + h] = factor(a, h, z);
			continue;
		}
		float b =
			a.beta == MX_RECUR_BETA_STEP ? softplus(z * a.beta_scale) : sigmoid(z) * a.beta_scale;
		if (a.beta == MX_RECUR_BETA_STEP) {
			b = b < a.step_min ? a.step_min : b > a.step_max ? a.step_max : b;
			a.a[(size_t)p.row * s.heads + h] = expf(b * a.mul[h]);
		}
		a.b[(size_t)p.row * s.heads + h] = b;
	}
}

__host__ __device__ __forceinline__ uint32_t pieces(uint32_t n)
{
	return (n + PIECE - 1) / PIECE;
}

/* Numbers of warps of a row for each stream. */
struct jobs {
	uint32_t q, k, v, a, b;
};

__host__ __device__ __forceinline__ jobs jobs_of(const recur_rows &a)
{
	const recur_source *s = a.source;
	jobs j = {s[MX_RECUR_Q].heads, s[MX_RECUR_K].heads, 0, 0, 0};
	if (a.second)
		return j;
	j.v = a.v_times_rest ? 0 : s[MX_RECUR_V].heads * pieces(a.vpad);
	j.a = a.channel  ? s[MX_RECUR_A].heads * pieces(a.vpad)
	      : a.vector ? s[MX_RECUR_A].heads * pieces(a.kpad)
	                 : pieces(s[MX_RECUR_A].heads);
	j.b = pieces(s[MX_RECUR_BETA].heads);
	return j;
}

template <typename T> __global__ void __launch_bounds__(WARPS * 32) rows(const recur_rows a)
{
	extern __shared__ float heads[];
	const uint32_t row = blockIdx.y, warp = threadIdx.x >> 5;
	mx_pdl_launch();
	const mx_device_span span = a.step.spans[a.step.row_span[row]];
	/* false for rows that pad a recorded step */
	const bool there = row >= span.row && row - span.row < span.n;
	const place p = {row, row - span.row, there ? position_of(a.step, span, row - span.row) : 0,
	                 a.step.slot_base + span.slot * a.step.slot_stride, span};
	uint32_t job = blockIdx.x * WARPS + warp;
	const jobs j = jobs_of(a);
	float *mine = heads + warp * (2 * RECUR_MAX_HEAD + a.kpad);
	mx_pdl_wait();
	if (!there)
		return;
	if (job < j.q)
		return key<T>(a, 0, p, job, mine);
	if ((job -= j.q) < j.k)
		return key<T>(a, 1, p, job, mine);
	if ((job -= j.k) < j.v)
		return value<T>(a, p, job / pieces(a.vpad), job % pieces(a.vpad) * PIECE);
	if ((job -= j.v) < j.a) {
		const uint32_t each = pieces(a.channel ? a.vpad : a.kpad);
		if (a.channel || a.vector)
			return factors<T>(a, p, job / each, job % each * PIECE);
		return numbers<T>(a, p, MX_RECUR_A, job * PIECE);
	}
	if ((job -= j.a) < j.b)
		numbers<T>(a, p, MX_RECUR_BETA, job * PIECE);
}

template <typename T> cudaError_t launch(cudaStream_t stream, const recur_rows &a)
{
	const jobs j = jobs_of(a);
	const uint32_t all = j.q + j.k + j.v + j.a + j.b;
	const size_t smem = WARPS * sizeof(float) * (2 * RECUR_MAX_HEAD + a.kpad);
	if (!all)
		return cudaSuccess;
	return mx_launch(rows<T>, dim3((all + WARPS - 1) / WARPS, a.step.n_rows), dim3(WARPS * 32),
	                 smem, stream, a);
}

} // namespace

cudaError_t recur_cuda_rows(cudaStream_t stream, enum mx_dtype act, const struct recur_rows *a)
{
	return act == MX_F32 ? launch<float>(stream, *a) : launch<__nv_bfloat16>(stream, *a);
}
