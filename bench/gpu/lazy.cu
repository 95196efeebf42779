/* SPDX-License-Identifier: Apache-2.0 */
/* A warp computes a channel for all sequences, so that its lags are read once. */
#include "bench/gpu/lazy.h"

#define THREADS 256
#define MOST    8

static __global__ void __launch_bounds__(THREADS)
	lazy(const float *z, const float *h, uint32_t sequences, uint32_t channels, uint32_t n,
         float *y)
{
	const uint32_t c = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
	if (c >= channels)
		return;
	const size_t each = (size_t)channels * n;
	const float4 *lags = (const float4 *)(h + (size_t)c * n);
	float sum[MOST] = {};
	for (uint32_t i = lane; i < n / 4; i += 32) {
		const float4 a = __ldcs(lags + i);
#pragma unroll
		for (uint32_t b = 0; b < MOST; b++)
			if (b < sequences) {
				const float4 x = __ldcs((const float4 *)(z + b * each + (size_t)c * n) + i);
				sum[b] += a.x * x.x + a.y * x.y + a.z * x.z + a.w * x.w;
			}
	}
#pragma unroll
	for (uint32_t b = 0; b < MOST; b++) {
		for (int d = 16; d; d /= 2)
			sum[b] += __shfl_xor_sync(~0u, sum[b], d);
		if (lane == 0 && b < sequences)
			y[(size_t)b * channels + c] = sum[b];
	}
}

cudaError_t lazy_step(cudaStream_t stream, const float *z, const float *h, uint32_t sequences,
                      uint32_t channels, uint32_t n, float *y)
{
	lazy<<<(channels * 32 + THREADS - 1) / THREADS, THREADS, 0, stream>>>(z, h, sequences, channels,
	                                                                      n, y);
	return cudaGetLastError();
}
