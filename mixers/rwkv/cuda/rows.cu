/* SPDX-License-Identifier: Apache-2.0 */
/* The token shift and the functions of low-rank products. */
#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/math.cuh"
#include "mixers/rwkv/cuda/rwkv_kernels.h"

namespace
{

#define THREADS   128
#define MANY      1024 /* rows from which on a thread computes several */
#define MANY_EACH 8

template <typename T, int V> struct alignas(V * sizeof(T)) elements {
	T e[V];
};

template <typename T, int V> __device__ __forceinline__ elements<T, V> *at(void *p, size_t i)
{
	return (elements<T, V> *)((T *)p + i);
}

/* Copies the inputs of a span's last tokens to the slot: two, since a saved state may go on one
 * token earlier, or a draft's. */
template <typename T, int V>
__device__ __forceinline__ void keep_inputs(const rwkv_shift_args &a, const mx_device_span &span,
                                            T *ring, uint32_t c)
{
	const uint32_t keep = span.kind == MX_SPAN_DRAFT || span.n < 2 ? span.n : 2;
	for (uint32_t t = span.n - keep; t < span.n; t++)
		*at<T, V>(ring, (size_t)((span.pos + t) % a.cap) * a.width) =
			*at<T, V>((void *)a.x, (size_t)(span.row + t) * a.width + c);
}

/* A thread has V channels of `each` rows. The thread of a span's first row keeps the inputs of the
 * last: it is the only one that reads the ring. */
template <typename T, int V, int N>
__global__ void __launch_bounds__(THREADS) shift(const rwkv_shift_args a, uint32_t each)
{
	const uint32_t c = (blockIdx.y * THREADS + threadIdx.x) * V, first = blockIdx.x * each;
	const uint32_t last = first + each < a.step.n_rows ? first + each : a.step.n_rows;
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= a.width)
		return;
	float mu[N][V];
#pragma unroll
	for (int n = 0; n < N; n++) {
		const elements<float, V> in = *at<float, V>((void *)a.mu[n], c);
#pragma unroll
		for (int i = 0; i < V; i++)
			mu[n][i] = in.e[i];
	}
	for (uint32_t row = first; row < last; row++) {
		const mx_device_span &span = a.step.spans[a.step.row_span[row]];
		if (row < span.row || row - span.row >= span.n)
			continue;
		const elements<T, V> now = *at<T, V>((void *)a.x, (size_t)row * a.width + c);
		elements<T, V> before = {};
		if (row > span.row)
			before = *at<T, V>((void *)a.x, (size_t)(row - 1) * a.width + c);
		else {
			T *ring = (T *)(a.step.slot_base + span.slot * a.step.slot_stride) + c;
			if (span.pos)
				before = *at<T, V>(ring, (size_t)((span.pos - 1) % a.cap) * a.width);
			keep_inputs<T, V>(a, span, ring, c);
		}
#pragma unroll
		for (int n = 0; n < N; n++) {
			elements<T, V> y;
#pragma unroll
			for (int i = 0; i < V; i++) {
				const float x = mx_to_float(now.e[i]), d = mx_to_float(before.e[i]) - x;
				y.e[i] = mx_from_float<T>(__fmaf_rn(d, mu[n][i], x));
			}
			*at<T, V>(a.y[n], (size_t)row * a.width + c) = y;
		}
	}
}

template <typename T> __global__ void __launch_bounds__(THREADS) low(const rwkv_low_args a)
{
	const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
	const uint32_t c = i < a.tanh ? i : a.sigmoid + (i - a.tanh);
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= a.end)
		return;
	T *p = (T *)a.low + (size_t)blockIdx.x * a.ld + c;
	const float x = mx_to_float(*p);
	*p = mx_from_float<T>(i < a.tanh ? tanhf(x) : sigmoid(x));
}

template <typename T, int V, int N>
cudaError_t launch(cudaStream_t stream, const rwkv_shift_args &a)
{
	const uint32_t each = a.step.n_rows < MANY ? 1 : MANY_EACH;
	const dim3 grid((a.step.n_rows + each - 1) / each, (a.width + THREADS * V - 1) / (THREADS * V));
	return mx_launch(shift<T, V, N>, grid, dim3(THREADS), 0, stream, a, each);
}

template <typename T> cudaError_t shift_rows(cudaStream_t stream, const rwkv_shift_args &a)
{
	constexpr int V = 8 / sizeof(T);
	if (a.n == 1)
		return a.width % V ? launch<T, 1, 1>(stream, a) : launch<T, V, 1>(stream, a);
	return a.width % V ? launch<T, 1, RWKV_SHIFTED>(stream, a)
	                   : launch<T, V, RWKV_SHIFTED>(stream, a);
}

} // namespace

cudaError_t rwkv_cuda_shift(cudaStream_t stream, enum mx_dtype act, const struct rwkv_shift_args *a)
{
	return act == MX_BF16 ? shift_rows<__nv_bfloat16>(stream, *a) : shift_rows<float>(stream, *a);
}

cudaError_t rwkv_cuda_low(cudaStream_t stream, enum mx_dtype act, const struct rwkv_low_args *a)
{
	const uint32_t n = a->tanh + (a->end - a->sigmoid);
	const dim3 grid(a->n_rows, (n + THREADS - 1) / THREADS), block(THREADS);
	return act == MX_BF16 ? mx_launch(low<__nv_bfloat16>, grid, block, 0, stream, *a)
	                      : mx_launch(low<float>, grid, block, 0, stream, *a);
}
