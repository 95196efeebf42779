/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product of each head with a matrix of its own, as one launch. A warp computes 16 outputs of 8
 * or 64 rows with mma.m16n8k16. Operands go from memory to registers without a detour: the order of
 * the sum is free, so a lane takes 8 elements that lie together and are two operands of each of two
 * instructions. A row's bits depend on that row alone.
 */
#include "device/cuda/launch.cuh"
#include "mixers/mla/cuda/mla_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"

#define WARPS 4
#define TILE  32 /* rows and columns of a tile of a transpose */

namespace
{

template <int N> __global__ void __launch_bounds__(WARPS * 32) multiply_heads(const mla_product a)
{
	const uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, head = blockIdx.y;
	const uint32_t first = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * 16;
	const uint32_t row0 = blockIdx.z * 8 * N;
	mx_pdl_launch();
	mx_pdl_wait();
	if (first >= a.rows)
		return;
	const __nv_bfloat16 *w =
		(const __nv_bfloat16 *)a.w + head * a.w_head + (size_t)(first + g) * a.cols + 8 * t;
	const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.x + head * a.ldx + 8 * t;
	const size_t next = a.heads * a.ldx;
	float c[N][4] = {};
#pragma unroll 4
	for (uint32_t k = 0; k < a.cols; k += 32) {
		const uint4 lo = *(const uint4 *)(w + k), hi = *(const uint4 *)(w + 8 * a.cols + k);
		const uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
#pragma unroll
		for (int i = 0; i < N; i++) {
			const uint32_t row = row0 + 8 * i + g;
			const uint4 b =
				row < a.n ? *(const uint4 *)(x + row * next + k) : make_uint4(0, 0, 0, 0);
			multiply<false>(c[i], a0, b.x, b.y);
			multiply<false>(c[i], a1, b.z, b.w);
		}
	}
	__nv_bfloat16 *y = (__nv_bfloat16 *)a.y + head * a.ldy + first + g;
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const uint32_t row = row0 + 8 * i + 2 * t + j % 2;
			if (row < a.n)
				y[(size_t)row * a.heads * a.ldy + 8 * (j / 2)] = __float2bfloat16_rn(c[i][j]);
		}
}

template <typename T>
__global__ void transpose_heads(const T *from, size_t from_head, uint32_t rows, uint32_t cols,
                                T *to)
{
	__shared__ T tile[TILE][TILE + 1];
	const uint32_t r0 = blockIdx.x * TILE, c0 = blockIdx.y * TILE;
	mx_pdl_launch();
	mx_pdl_wait();
	from += blockIdx.z * from_head;
	to += (size_t)blockIdx.z * rows * cols;
	for (uint32_t i = threadIdx.y; i < TILE; i += blockDim.y)
		if (r0 + i < rows && c0 + threadIdx.x < cols)
			tile[i][threadIdx.x] = from[(size_t)(r0 + i) * cols + c0 + threadIdx.x];
	__syncthreads();
	for (uint32_t i = threadIdx.y; i < TILE; i += blockDim.y)
		if (c0 + i < cols && r0 + threadIdx.x < rows)
			to[(size_t)(c0 + i) * rows + r0 + threadIdx.x] = tile[threadIdx.x][i];
}

} // namespace

cudaError_t mla_heads(cudaStream_t stream, const struct mla_product *a)
{
	const uint32_t most = a->n <= 8 ? 8 : 64;
	const dim3 grid((a->rows + 16 * WARPS - 1) / (16 * WARPS), a->heads, (a->n + most - 1) / most);
	return most == 8 ? mx_launch(multiply_heads<1>, grid, dim3(WARPS * 32), 0, stream, *a)
	                 : mx_launch(multiply_heads<8>, grid, dim3(WARPS * 32), 0, stream, *a);
}

cudaError_t mla_transpose(cudaStream_t stream, size_t size, const void *from, size_t from_head,
                          uint32_t heads, uint32_t rows, uint32_t cols, void *to)
{
	const dim3 grid((rows + TILE - 1) / TILE, (cols + TILE - 1) / TILE, heads), block(TILE, 8);
	return size == 2 ? mx_launch(transpose_heads<uint16_t>, grid, block, 0, stream,
	                             (const uint16_t *)from, from_head, rows, cols, (uint16_t *)to)
	                 : mx_launch(transpose_heads<uint32_t>, grid, block, 0, stream,
	                             (const uint32_t *)from, from_head, rows, cols, (uint32_t *)to);
}
