/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of products in fp8 (e4m3): W from panels whose rows have one scale each, as it is,
 * and rows of x, rounded with a scale each, so that the largest magnitude becomes 448.
 */
#include <cuda_fp8.h>

#include "device/cuda/linear_quant.cuh"

#define BLOCK   256
#define LARGEST 448.0f /* of e4m3 */

/* A CTA unpacks a block: blockIdx.x of panel blockIdx.y. A thread has eight columns. */
static __global__ void __launch_bounds__(BLOCK)
	unpack(const mx_cuda_quant q, const unsigned char *panels, uint32_t cols, uint32_t n,
           unsigned char *y, float *scales)
{
	const unsigned char *block =
		panels + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * q.super_bytes;
	const uint32_t r = threadIdx.x / 16, k = threadIdx.x % 16;
	const uint32_t row = blockIdx.y * MX_QUANT_ROWS + r,
				   col = blockIdx.x * MX_QUANT_FRAGMENT + k * 8;
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= n)
		return;
	if (blockIdx.x == 0 && k == 0)
		scales[row] = mx_scale(q, block, 2 * (r % 8) + r / 8);
	if (col >= cols)
		return;
	/* columns 0, 2, 1, 3 and 4, 6, 5, 7 */
	const uint2 w =
		*(const uint2 *)(block + q.codes + k / 4 * 512 + 16 * (4 * (r % 8) + k % 4) + r / 8 * 8);
	*(uint2 *)(y + (size_t)row * cols + col) =
		make_uint2(__byte_perm(w.x, 0, 0x3120), __byte_perm(w.y, 0, 0x3120));
}

/* A CTA rounds a row of x. */
static __global__ void __launch_bounds__(BLOCK)
	round_rows(const __nv_bfloat16 *x, size_t ldx, uint32_t cols, unsigned char *y, float *scales)
{
	__shared__ float parts[BLOCK / 32];
	const __nv_bfloat16 *row = x + blockIdx.x * ldx;
	float most = 0;
	mx_pdl_launch();
	mx_pdl_wait();
	for (uint32_t i = threadIdx.x * 8; i < cols; i += BLOCK * 8) {
		const uint4 v = *(const uint4 *)(row + i);
		const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int k = 0; k < 4; k++) {
			most = fmaxf(most, fabsf(__uint_as_float(w[k] << 16)));
			most = fmaxf(most, fabsf(__uint_as_float(w[k] & 0xffff0000)));
		}
	}
#pragma unroll
	for (int m = 16; m; m /= 2)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
	if (threadIdx.x % 32 == 0)
		parts[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int k = 0; k < BLOCK / 32; k++)
		most = fmaxf(most, parts[k]);
	const float scale = most > 0 ? most / LARGEST : 1.0f, by = 1.0f / scale;
	if (threadIdx.x == 0)
		scales[blockIdx.x] = scale;
	for (uint32_t i = threadIdx.x * 8; i < cols; i += BLOCK * 8) {
		const uint4 v = *(const uint4 *)(row + i);
		const uint32_t w[4] = {v.x, v.y, v.z, v.w};
		uint32_t pairs[4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float2 f = make_float2(__uint_as_float(w[k] << 16) * by,
			                             __uint_as_float(w[k] & 0xffff0000) * by);
			pairs[k] = __nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, __NV_E4M3);
		}
		*(uint2 *)(y + (size_t)blockIdx.x * cols + i) =
			make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
	}
}

extern "C" cudaError_t mx_cuda_quant_e4m3(const struct mx_cuda_quant *q, const void *panels,
                                          uint32_t cols, uint32_t first, uint32_t n, void *y,
                                          float *scales, cudaStream_t stream)
{
	const uint32_t blocks = (cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	const unsigned char *from =
		(const unsigned char *)panels + (size_t)(first / MX_QUANT_ROWS) * blocks * q->super_bytes;
	return mx_launch(unpack, dim3(blocks, (n + MX_QUANT_ROWS - 1) / MX_QUANT_ROWS), dim3(BLOCK), 0,
	                 stream, *q, from, cols, n, (unsigned char *)y, scales);
}

extern "C" cudaError_t mx_cuda_quant_round(const void *x, size_t ldx, uint32_t cols, uint32_t n,
                                           void *y, float *scales, cudaStream_t stream)
{
	return mx_launch(round_rows, dim3(n), dim3(BLOCK), 0, stream, (const __nv_bfloat16 *)x, ldx,
	                 cols, (unsigned char *)y, scales);
}
