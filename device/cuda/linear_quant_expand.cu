/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised panels as bf16 or f32: rows in order, for products of many rows, and rows of a table.
 * Limited by memory bandwidth. A thread has the eight columns that are one lane's (quant_pack.h).
 */
#include "device/cuda/linear_quant.cuh"

#define BLOCK 256

struct eight {
	float v[8];
};

/* The values of columns 8 k .. 8 k + 7 of a block, of row r, as mx_quant_value has them: each of
 * its operations is rounded. */
static __device__ __forceinline__ eight values(const mx_cuda_quant &q, const unsigned char *block,
                                               uint32_t r, uint32_t k)
{
	const uint32_t at = (k * 8 >> q.group_shift) * 16 + 2 * (r % 8) + r / 8;
	const uint32_t lane = 4 * (r % 8) + k % 4;
	const uint32_t *words = (const uint32_t *)(block + q.codes);
	const float scale = mx_scale(q, block, at);
	uint4 c;
	if (q.codes_as == MX_CODES_4 || q.codes_as == MX_CODES_E2M1) {
		const uint32_t w = words[k / 8 * 128 + 4 * lane + k / 4 % 2 * 2 + r / 8];
		c = q.codes_as == MX_CODES_4 ? mx_codes<MX_CODES_4>(w, 0, mx_zero_4(q, block, at) * 0x10001)
		                             : mx_codes<MX_CODES_E2M1>(w, 0, 0);
	} else {
		const uint2 w = *(const uint2 *)(words + k / 4 * 128 + 4 * lane + r / 8 * 2);
		c = q.codes_as == MX_CODES_8 ? mx_codes<MX_CODES_8>(w.x, w.y, 0)
		                             : mx_codes<MX_CODES_E4M3>(w.x, w.y, 0);
	}
	const uint32_t pairs[4] = {c.x, c.y, c.z, c.w};
	const float less = q.offset == MX_OFFSET_MIN ? mx_minimum(q, block, at) : 0;
	eight out;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		out.v[2 * i] = __fsub_rn(__fmul_rn(__uint_as_float(pairs[i] << 16), scale), less);
		out.v[2 * i + 1] =
			__fsub_rn(__fmul_rn(__uint_as_float(pairs[i] & 0xffff0000), scale), less);
	}
	return out;
}

template <typename T> static __device__ __forceinline__ void store(T *y, const eight &e);

template <> __device__ __forceinline__ void store<float>(float *y, const eight &e)
{
	((float4 *)y)[0] = make_float4(e.v[0], e.v[1], e.v[2], e.v[3]);
	((float4 *)y)[1] = make_float4(e.v[4], e.v[5], e.v[6], e.v[7]);
}

template <> __device__ __forceinline__ void store<__nv_bfloat16>(__nv_bfloat16 *y, const eight &e)
{
	alignas(16) __nv_bfloat162 v[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = __floats2bfloat162_rn(e.v[2 * i], e.v[2 * i + 1]);
	*(uint4 *)y = *(const uint4 *)v;
}

/* A CTA expands a block: blockIdx.x of panel blockIdx.y. A thread has eight columns. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	expand(const mx_cuda_quant q, const unsigned char *panels, uint32_t cols, uint32_t n, T *y)
{
	const unsigned char *block =
		panels + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * q.super_bytes;
	mx_pdl_launch();
	mx_pdl_wait();
	for (uint32_t i = threadIdx.x; i < MX_QUANT_ROWS * 16; i += BLOCK) {
		const uint32_t r = i / 16, k = i % 16, row = blockIdx.y * MX_QUANT_ROWS + r;
		const uint32_t col = blockIdx.x * MX_QUANT_FRAGMENT + k * 8;
		if (row < n && col < cols)
			store<T>(y + (size_t)row * cols + col, values(q, block, r, k));
	}
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	take_rows(const mx_cuda_quant q, const unsigned char *panels, uint32_t rows, uint32_t cols,
              const int32_t *ids, T *y)
{
	const uint32_t col = (blockIdx.y * BLOCK + threadIdx.x) * 8;
	const uint32_t blocks = (cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	mx_pdl_launch();
	mx_pdl_wait();
	if (col >= cols)
		return;
	const uint32_t row = (uint32_t)ids[blockIdx.x];
	eight e;
#pragma unroll
	for (int i = 0; i < 8; i++)
		e.v[i] = __int_as_float(0x7fffffff);
	if (row < rows)
		e = values(q,
		           panels + ((size_t)(row / MX_QUANT_ROWS) * blocks + col / MX_QUANT_FRAGMENT) *
		                        q.super_bytes,
		           row % MX_QUANT_ROWS, col % MX_QUANT_FRAGMENT / 8);
	store<T>(y + (size_t)blockIdx.x * cols + col, e);
}

extern "C" cudaError_t mx_cuda_quant_expand(const struct mx_cuda_quant *q, const void *panels,
                                            uint32_t cols, uint32_t first, uint32_t n, bool bf16,
                                            void *y, cudaStream_t stream)
{
	const uint32_t blocks = (cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	const unsigned char *from =
		(const unsigned char *)panels + (size_t)(first / MX_QUANT_ROWS) * blocks * q->super_bytes;
	const dim3 grid(blocks, (n + MX_QUANT_ROWS - 1) / MX_QUANT_ROWS);
	if (bf16)
		return mx_launch(expand<__nv_bfloat16>, grid, dim3(BLOCK), 0, stream, *q, from, cols, n,
		                 (__nv_bfloat16 *)y);
	return mx_launch(expand<float>, grid, dim3(BLOCK), 0, stream, *q, from, cols, n, (float *)y);
}

extern "C" cudaError_t mx_cuda_quant_rows(const struct mx_cuda_quant *q, const void *panels,
                                          uint32_t rows, uint32_t cols, const int32_t *ids,
                                          size_t n, bool bf16, void *y, cudaStream_t stream)
{
	const dim3 grid((uint32_t)n, (cols / 8 + BLOCK - 1) / BLOCK);
	const unsigned char *from = (const unsigned char *)panels;
	if (bf16)
		return mx_launch(take_rows<__nv_bfloat16>, grid, dim3(BLOCK), 0, stream, *q, from, rows,
		                 cols, ids, (__nv_bfloat16 *)y);
	return mx_launch(take_rows<float>, grid, dim3(BLOCK), 0, stream, *q, from, rows, cols, ids,
	                 (float *)y);
}
