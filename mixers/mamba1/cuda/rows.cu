/* SPDX-License-Identifier: Apache-2.0 */
/* What a Mamba-1 layer does before its scan: the convolution, and the norms of dt, B and C. */
#include "device/cuda/launch.cuh"
#include "mixers/mamba1/cuda/mamba1_kernels.h"
#include "mixers/recurrence/cuda/math.cuh"

namespace
{

#define THREADS   128
#define MANY      1024 /* rows from which on a thread computes several */
#define MANY_EACH 8

template <typename T, int V> struct alignas(V * sizeof(T)) elements {
	T e[V];
};

template <typename T, int V> __device__ __forceinline__ void read(const void *p, float (&to)[V])
{
	constexpr int each = V * sizeof(T) <= 16 ? V : 16 / sizeof(T); /* elements of a load */
#pragma unroll
	for (int n = 0; n < V; n += each) {
		const elements<T, each> in = *(const elements<T, each> *)((const T *)p + n);
#pragma unroll
		for (int i = 0; i < each; i++)
			to[n + i] = mx_to_float(in.e[i]);
	}
}

/* Raw inputs of the tokens before the row's: past[b - 1] is that of b tokens before. */
template <typename T, int V, int TAPS>
__device__ __forceinline__ void read_past(const mamba1_args &a, const mx_device_span &span,
                                          uint32_t row, uint32_t c, float (&past)[TAPS][V])
{
	const uint32_t t = row - span.row, pos = span.pos + t;
	const T *ring = (const T *)(a.slot_base + span.slot * a.slot_stride + a.conv_at) + c;
#pragma unroll
	for (int b = 1; b < TAPS; b++) {
#pragma unroll
		for (int i = 0; i < V; i++)
			past[b - 1][i] = 0;
		if (b >= (int)a.taps)
			continue;
		if (t >= (uint32_t)b)
			read<T, V>((const T *)a.xz + (size_t)(row - b) * 2 * a.channels + c, past[b - 1]);
		else if (pos >= (uint32_t)b)
			read<T, V>(ring + (size_t)((pos - b) % a.conv_cap) * a.channels, past[b - 1]);
	}
}

/* x = silu(conv(raw x)): a thread has V channels of `each` rows. TAPS: at least the taps. */
template <typename T, int V, int TAPS>
__global__ void __launch_bounds__(THREADS) convolve(const mamba1_args a, uint32_t each)
{
	const uint32_t c = (blockIdx.y * THREADS + threadIdx.x) * V, first = blockIdx.x * each;
	const uint32_t last = first + each < a.n_rows ? first + each : a.n_rows;
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= a.channels)
		return;
	float w[TAPS][V], bias[V] = {}, past[TAPS][V], now[V];
	if (a.conv_bias)
		read<float, V>(a.conv_bias + c, bias);
#pragma unroll
	for (int b = 0; b < TAPS; b++)
		if (b < (int)a.taps)
			read<float, V>(a.conv + (size_t)b * a.channels + c, w[b]);
	uint32_t of = ~0u; /* the span whose inputs `past` has */
	for (uint32_t row = first; row < last; row++) {
		const uint32_t s = a.row_span[row];
		const mx_device_span &span = a.spans[s];
		if (row < span.row || row - span.row >= span.n) {
			of = ~0u;
			continue;
		}
		if (s != of)
			read_past<T, V, TAPS>(a, span, row, c, past);
		of = s;
		read<T, V>((const T *)a.xz + (size_t)row * 2 * a.channels + c, now);
		elements<T, V> out;
#pragma unroll
		for (int i = 0; i < V; i++) {
			float y = bias[i];
#pragma unroll
			for (int b = TAPS - 1; b > 0; b--)
				if (b < (int)a.taps)
					y = __fmaf_rn(w[b][i], past[b - 1][i], y);
			y = __fmaf_rn(w[0][i], now[i], y);
			out.e[i] = mx_from_float<T>(silu_of<T>(y));
#pragma unroll
			for (int b = TAPS - 1; b > 1; b--)
				past[b - 1][i] = past[b - 2][i];
			past[0][i] = now[i];
		}
		*(elements<T, V> *)((T *)a.x + (size_t)row * a.channels + c) = out;
	}
}

/* The factor of an RMS norm, for a row's part of one warp. */
__device__ __forceinline__ float norm_factor(const float *x, uint32_t n, float eps)
{
	float sum = 0;
	for (uint32_t i = threadIdx.x & 31; i < n; i += 32)
		sum = __fmaf_rn(x[i], x[i], sum);
	return rsqrtf(__fmaf_rn(warp_sum(sum), __frcp_rn((float)n), eps));
}

__device__ __forceinline__ float normed(const mamba1_args &a, float x, float factor,
                                        const float *weight, uint32_t i)
{
	return a.norm ? __fmul_rn(__fmul_rn(x, factor), weight ? weight[i] : 1) : x;
}

/* A warp has a row. */
template <typename T> __global__ void __launch_bounds__(THREADS) select(const mamba1_args a)
{
	const uint32_t row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
	const uint32_t padded = a.unit.padded, n = a.states;
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows)
		return;
	const float *dt = a.selected + (size_t)row * (a.rank + 2 * n), *b = dt + a.rank, *c = b + n;
	T *low = (T *)a.low + (size_t)row * a.rank;
	float *bc = a.bc + (size_t)row * 2 * padded;
	const float f_dt = a.norm ? norm_factor(dt, a.rank, a.norm_eps) : 1;
	const float f_b = a.norm ? norm_factor(b, n, a.norm_eps) : 1;
	const float f_c = a.norm ? norm_factor(c, n, a.norm_eps) : 1;
	for (uint32_t i = lane; i < a.rank; i += 32)
		low[i] = mx_from_float<T>(normed(a, dt[i], f_dt, a.norm_dt, i));
	for (uint32_t i = lane; i < padded; i += 32) {
		bc[i] = i < n ? normed(a, b[i], f_b, a.norm_b, i) : 0;
		bc[padded + i] = i < n ? normed(a, c[i], f_c, a.norm_c, i) : 0;
	}
}

template <typename T, int V, int TAPS> cudaError_t launch(cudaStream_t stream, const mamba1_args &a)
{
	const uint32_t each = a.n_rows < MANY ? 1 : MANY_EACH;
	const dim3 grid((a.n_rows + each - 1) / each, (a.channels + THREADS * V - 1) / (THREADS * V));
	return mx_launch(convolve<T, V, TAPS>, grid, dim3(THREADS), 0, stream, a, each);
}

template <typename T> cudaError_t convolve_rows(cudaStream_t stream, const mamba1_args &a)
{
	constexpr int V = 16 / sizeof(T);
	if (a.taps > 4)
		return launch<T, 1, 8>(stream, a);
	return a.channels % V ? launch<T, 1, 4>(stream, a) : launch<T, V, 4>(stream, a);
}

} // namespace

cudaError_t mamba1_cuda_conv(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a)
{
	return act == MX_BF16 ? convolve_rows<__nv_bfloat16>(stream, *a)
	                      : convolve_rows<float>(stream, *a);
}

cudaError_t mamba1_cuda_select(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a)
{
	const dim3 grid((a->n_rows + THREADS / 32 - 1) / (THREADS / 32)), block(THREADS);
	return act == MX_BF16 ? mx_launch(select<__nv_bfloat16>, grid, block, 0, stream, *a)
	                      : mx_launch(select<float>, grid, block, 0, stream, *a);
}
