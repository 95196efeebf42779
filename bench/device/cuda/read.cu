/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/device/cuda/read.h"

static __global__ void __launch_bounds__(512) sum_all(const uint4 *p, size_t n, unsigned *out)
{
	size_t step = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	unsigned sum = 0;
	for (; i + 7 * step < n; i += 8 * step) {
		uint4 v[8];
#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] = p[i + k * step];
#pragma unroll
		for (int k = 0; k < 8; k++)
			sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < n; i += step)
		sum += p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
	if (sum == 0x5eed5eed)
		*out = sum;
}

cudaError_t read_all(const void *p, size_t bytes, unsigned *out, int sms, cudaStream_t stream)
{
	sum_all<<<sms * 4, 512, 0, stream>>>((const uint4 *)p, bytes / 16, out);
	return cudaGetLastError();
}
