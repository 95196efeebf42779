/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of experts whose matrices are packed, with many links each, as in prompts: tiles of
 * linear_quant_tile.cuh. A CTA multiplies a tile of N links with 128 rows of its expert's matrices:
 * of a gated feed-forward's, 64 of gate and the same 64 of up. Compute capability 9.0a.
 */
#include "device/cuda/experts.cuh"
#include "device/cuda/experts_quant.h"
#include "device/cuda/linear_quant_tile.cuh"

#define ROWS    MX_TILE_ROWS
#define THREADS (MX_TILE_WARPS * 32)

namespace
{

typedef __nv_bfloat16 bf16;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Stores the feed-forward's products of rows first .. of the matrices. */
__device__ __forceinline__ void store_up(const mx_cuda_experts &p, const mx_expert_tile &tile,
                                         uint32_t first, const float *sums)
{
	const uint32_t rows = p.m.gated ? ROWS / 2 : ROWS, row = threadIdx.x % rows;
	const uint32_t at = first + row;
	if (at >= p.m.width)
		return;
	bf16 *to = (bf16 *)p.product + (size_t)tile.first * p.m.width + at;
#pragma unroll 1
	for (uint32_t l = threadIdx.x / rows; l < tile.n; l += THREADS / rows) {
		const float *of = sums + l * MX_TILE_PITCH + row;
		to[(size_t)l * p.m.width] =
			__float2bfloat16_rn(mx_feed(p.m, tile.w, at, of[0], p.m.gated ? of[ROWS / 2] : of[0]));
	}
}

/* Stores the experts' outputs likewise. */
__device__ __forceinline__ void store_down(const mx_cuda_experts &p, const mx_expert_tile &tile,
                                           uint32_t first, const float *sums)
{
	const uint32_t row = threadIdx.x % ROWS, at = first + row;
	if (at >= p.m.cols)
		return;
	const float bias = tile.w.down_bias ? tile.w.down_bias[at] : 0.0f;
#pragma unroll 1
	for (uint32_t l = threadIdx.x / ROWS; l < tile.n; l += THREADS / ROWS)
		((bf16 *)p.out)[(size_t)p.order[tile.first + l] * p.m.cols + at] =
			__float2bfloat16_rn(sums[l * MX_TILE_PITCH + row] + bias);
}
#endif

template <int CODES, int SCALING, int N, bool DOWN>
__global__ void __launch_bounds__(THREADS, N > 64 ? 1 : 2)
	many_packed(const mx_cuda_experts p, const mx_cuda_quant q)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(1024) unsigned char smem[];
	__shared__ uint32_t links[N]; /* rows of the tile's input */
	const bool pair = !DOWN && p.m.gated;
	const uint32_t cols = DOWN ? p.m.width : p.m.cols, rows = DOWN ? p.m.cols : p.m.width;
	const uint32_t blocks = (cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	const uint32_t first = blockIdx.x * (pair ? ROWS / 2 : ROWS), warp = threadIdx.x / 32;
	mx_pdl_launch();
	mx_pdl_wait();
	if (blockIdx.y >= *p.n_tiles)
		return;
	const mx_expert_tile tile = p.tiles[blockIdx.y];
	for (uint32_t l = threadIdx.x; l < N; l += THREADS)
		links[l] = l >= tile.n ? MX_TILE_NO_ROW
		           : DOWN      ? tile.first + l
		                       : p.order[tile.first + l] / p.m.rule.chosen;
	__syncthreads();
	const void *from = DOWN                               ? tile.w.down
	                   : pair && warp < MX_TILE_WARPS / 2 ? tile.w.gate
	                                                      : tile.w.up;
	const uint32_t of = first / MX_QUANT_ROWS + (pair ? warp % (MX_TILE_WARPS / 2) : warp);
	const uint32_t panel = min(of, (rows - 1) / MX_QUANT_ROWS);
	const mx_tile work = {.w = (const unsigned char *)from + (size_t)panel * blocks * q.super_bytes,
	                      .x = (const bf16 *)(DOWN ? p.product : p.x),
	                      .rows = links,
	                      .ldx = cols,
	                      .cols = cols,
	                      .first = 0,
	                      .steps = blocks};
	mx_tile_multiply<CODES, SCALING, N>(work, q, smem, false);
	__syncthreads();
	if (DOWN)
		store_down(p, tile, first, (const float *)smem);
	else
		store_up(p, tile, first, (const float *)smem);
#endif
}

typedef void many_f(const mx_cuda_experts, const mx_cuda_quant);

const uint32_t widths[] = {32, 64, 128}; /* N of the kernels */
enum { N_WIDTHS = sizeof widths / sizeof *widths };

many_f *const kernels[][2 * N_WIDTHS] = {
#define KERNEL(codes, by)                                                                          \
	{                                                                                              \
		many_packed<codes, by, 32, false>, many_packed<codes, by, 64, false>,                      \
			many_packed<codes, by, 128, false>, many_packed<codes, by, 32, true>,                  \
			many_packed<codes, by, 64, true>, many_packed<codes, by, 128, true>                    \
	}
	KERNEL(MX_CODES_4, MX_TILE_SUMS),     KERNEL(MX_CODES_8, MX_TILE_SUMS),
	KERNEL(MX_CODES_E4M3, MX_TILE_SUMS),  KERNEL(MX_CODES_4, MX_TILE_CODES),
	KERNEL(MX_CODES_8, MX_TILE_CODES),    KERNEL(MX_CODES_E4M3, MX_TILE_CODES),
	KERNEL(MX_CODES_E2M1, MX_TILE_CODES),
#undef KERNEL
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

uint32_t row_of(const mx_cuda_quant &q)
{
	const bool sums = q.group_shift == 7 && q.offset != MX_OFFSET_MIN;
	if (q.codes_as == MX_CODES_E2M1)
		return 6;
	return (q.codes_as == MX_CODES_4 ? 0 : q.codes_as == MX_CODES_8 ? 1 : 2) + (sums ? 0 : 3);
}

cudaError_t launch(const mx_cuda_experts &p, const mx_cuda_quant &q, bool down, cudaStream_t stream)
{
	const uint32_t rows = down ? p.m.cols : p.m.width, each = !down && p.m.gated ? ROWS / 2 : ROWS;
	const uint32_t width = p.tile <= 32 ? 0 : p.tile <= 64 ? 1 : 2;
	return mx_launch(kernels[row_of(q)][(down ? N_WIDTHS : 0) + width],
	                 dim3((rows + each - 1) / each, p.max_tiles), dim3(THREADS),
	                 mx_tile_smem(widths[width], q.super_bytes), stream, p, q);
}

} // namespace

cudaError_t mx_cuda_experts_quant_many_setup(void)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * 2 * N_WIDTHS && e == cudaSuccess; i++)
		e = cudaFuncSetAttribute(kernels[i / (2 * N_WIDTHS)][i % (2 * N_WIDTHS)],
		                         cudaFuncAttributeMaxDynamicSharedMemorySize,
		                         (int)mx_tile_smem(widths[i % N_WIDTHS], MX_TILE_SUPER));
	return e;
}

cudaError_t mx_cuda_experts_quant_many(const struct mx_cuda_experts *p,
                                       const struct mx_cuda_quant *up,
                                       const struct mx_cuda_quant *down, cudaStream_t stream)
{
	cudaError_t e = launch(*p, *up, false, stream);
	return e == cudaSuccess ? launch(*p, *down, true, stream) : e;
}
