/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gated short convolutions: a thread computes a channel of a row. Products B x are rounded to f32
 * wherever they come from, so it makes no difference which of them are the slot's.
 */
#include "device/cuda/launch.cuh"
#include "mixers/shortconv/cuda/conv.h"

#define THREADS 128

namespace
{

template <typename T>
__device__ __forceinline__ float product(const shortconv_args &a, uint32_t row, uint32_t c)
{
	const T *in = (const T *)a.in + (size_t)row * 3 * a.width + c;
	return __fmul_rn(mx_to_float(in[0]), mx_to_float(in[2 * (size_t)a.width]));
}

/* COMPUTE: writes outputs. KEEP: writes the products of a span's last tokens to its slot. In one
 * launch, only if no product takes the place of one that other threads read. */
template <typename T, bool COMPUTE, bool KEEP>
__global__ void __launch_bounds__(THREADS) convolve(const shortconv_args a)
{
	const uint32_t c = blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= a.width)
		return;
	const mx_device_span &span = a.spans[a.row_span[row]];
	if (row < span.row || row - span.row >= span.n)
		return;
	const uint32_t t = row - span.row, pos = span.pos + t;
	float *ring = (float *)(a.slot_base + span.slot * a.slot_stride) + c;
	const float now = product<T>(a, row, c);
	if (COMPUTE) {
		const float *w = a.weight + (size_t)c * a.taps;
		float y = a.bias ? a.bias[c] : 0;
		for (uint32_t back = a.taps - 1; back > 0; back--) {
			float x = 0;
			if (t >= back)
				x = product<T>(a, row - back, c);
			else if (pos >= back)
				x = ring[(size_t)((pos - back) % a.cap) * a.width];
			y = __fmaf_rn(w[a.taps - 1 - back], x, y);
		}
		y = __fmaf_rn(w[a.taps - 1], now, y);
		const float gate = mx_to_float(((const T *)a.in)[((size_t)row * 3 + 1) * a.width + c]);
		((T *)a.out)[(size_t)row * a.width + c] = mx_from_float<T>(__fmul_rn(gate, y));
	}
	if (KEEP && (span.kind == MX_SPAN_DRAFT || t + a.taps >= span.n))
		ring[(size_t)(pos % a.cap) * a.width] = now;
}

template <typename T> cudaError_t launch(cudaStream_t stream, const shortconv_args &a)
{
	const dim3 grid(a.n_rows, (a.width + THREADS - 1) / THREADS), block(THREADS);
	/* positions pos - taps + 1 .. pos + longest - 1 have places of their own */
	if (a.longest + a.taps - 1 <= a.cap)
		return mx_launch(convolve<T, true, true>, grid, block, 0, stream, a);
	cudaError_t e = mx_launch(convolve<T, true, false>, grid, block, 0, stream, a);
	return e != cudaSuccess ? e : mx_launch(convolve<T, false, true>, grid, block, 0, stream, a);
}

} // namespace

cudaError_t shortconv_cuda(cudaStream_t stream, enum mx_dtype act, const struct shortconv_args *a)
{
	return act == MX_BF16 ? launch<__nv_bfloat16>(stream, *a) : launch<float>(stream, *a);
}
