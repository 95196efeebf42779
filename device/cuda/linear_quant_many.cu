/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of more rows with quantised weights than linear_quant_few.cu has, which read W's own
 * bytes, by tiles (linear_quant_tile.cuh). Where there are few tiles, the CTAs of a cluster divide
 * the columns, and add their sums through their shared memories.
 */
#include <cooperative_groups.h>

#include "device/cuda/linear_quant_tile.cuh"

#define ROWS         MX_TILE_ROWS
#define MOST_CLUSTER 4

namespace
{

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Stores the outputs of this CTA's share of x's rows: the sums of the cluster in the order of
 * columns. */
template <typename O>
__device__ __forceinline__ void store(const mx_cuda_product &p, uint32_t first_x, uint32_t n,
                                      uint32_t first, float *sums)
{
	namespace cg = cooperative_groups;
	const cg::cluster_group cluster = cg::this_cluster();
	const uint32_t parts = cluster.num_blocks(), rank = cluster.block_rank();
	const uint32_t r = threadIdx.x % ROWS, step = MX_TILE_WARPS * 32 / ROWS * parts;
#pragma unroll 2
	for (uint32_t i = threadIdx.x / ROWS * parts + rank; i < n; i += step) {
		float v = 0;
		for (uint32_t k = 0; k < parts; k++)
			v += cluster.map_shared_rank(sums, k)[i * MX_TILE_PITCH + r];
		if (first + r < p.rows)
			mx_linear_store<O>(p, first_x + i, first + r, v);
	}
}
#endif

template <int CODES_AS, int SCALING, int N>
__global__ void __launch_bounds__(MX_TILE_WARPS * 32, N > 64 ? 1 : 2)
	many(const mx_cuda_quant_product a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(1024) unsigned char smem[];
	__shared__ uint32_t rows[N];
	const mx_cuda_product &p = a.p;
	const uint32_t blocks = (p.cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	const uint32_t first_x = blockIdx.x * N, first = blockIdx.y * ROWS;
	const uint32_t begin = blocks * blockIdx.z / gridDim.z;
	const uint32_t end = blocks * (blockIdx.z + 1) / gridDim.z;
	const uint32_t panel =
		min(first / MX_QUANT_ROWS + threadIdx.x / 32, (p.rows - 1) / MX_QUANT_ROWS);
	mx_pdl_launch();
	for (uint32_t i = threadIdx.x; i < N; i += MX_TILE_WARPS * 32)
		rows[i] = first_x + i < p.n ? first_x + i : MX_TILE_NO_ROW;
	__syncthreads();
	const mx_tile tile = {.w = (const unsigned char *)p.w +
	                           ((size_t)panel * blocks + begin) * a.q.super_bytes,
	                      .x = (const __nv_bfloat16 *)p.x,
	                      .rows = rows,
	                      .ldx = p.ldx,
	                      .cols = p.cols,
	                      .first = begin,
	                      .steps = end - begin};
	mx_tile_multiply<CODES_AS, SCALING, N>(tile, a.q, smem, true);
	cooperative_groups::this_cluster().sync();
	const uint32_t n = min(p.n - first_x, (uint32_t)N);
	if (p.bf16_out)
		store<__nv_bfloat16>(p, first_x, n, first, (float *)smem);
	else
		store<float>(p, first_x, n, first, (float *)smem);
	cooperative_groups::this_cluster().sync(); /* others read this CTA's sums */
#endif
}

typedef void many_f(const mx_cuda_quant_product);

const uint32_t widths[] = {32, 64, 128}; /* N of the kernels */
enum { N_WIDTHS = sizeof widths / sizeof *widths };

many_f *const kernels[][N_WIDTHS] = {
#define KERNEL(codes, by)                                                                          \
	{                                                                                              \
		many<codes, by, 32>, many<codes, by, 64>, many<codes, by, 128>                             \
	}
	KERNEL(MX_CODES_4, MX_TILE_SUMS),    KERNEL(MX_CODES_8, MX_TILE_SUMS),
	KERNEL(MX_CODES_E4M3, MX_TILE_SUMS), KERNEL(MX_CODES_4, MX_TILE_CODES),
	KERNEL(MX_CODES_8, MX_TILE_CODES),   KERNEL(MX_CODES_E4M3, MX_TILE_CODES),
#undef KERNEL
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

uint32_t row_of(const mx_cuda_quant &q)
{
	const bool sums = q.group_shift == 7 && q.offset != MX_OFFSET_MIN;
	return (q.codes_as == MX_CODES_4 ? 0 : q.codes_as == MX_CODES_8 ? 1 : 2) + (sums ? 0 : 3);
}

} // namespace

extern "C" cudaError_t mx_cuda_quant_many_setup(void)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * N_WIDTHS && e == cudaSuccess; i++)
		e = cudaFuncSetAttribute(kernels[i / N_WIDTHS][i % N_WIDTHS],
		                         cudaFuncAttributeMaxDynamicSharedMemorySize,
		                         (int)mx_tile_smem(widths[i % N_WIDTHS], MX_TILE_SUPER));
	return e;
}

extern "C" cudaError_t mx_cuda_quant_many(const struct mx_cuda_quant_product *p, int sms,
                                          cudaStream_t stream)
{
	const uint32_t n = p->p.n, tiles = (p->p.rows + ROWS - 1) / ROWS;
	const uint32_t blocks = (p->p.cols + MX_QUANT_FRAGMENT - 1) / MX_QUANT_FRAGMENT;
	const int width = n <= 32 ? 0 : n <= 64 ? 1 : 2;
	const uint32_t wide = widths[width], x_tiles = (n + wide - 1) / wide;
	uint32_t parts = (uint32_t)sms * (wide > 64 ? 1 : 2) / (tiles * x_tiles);
	parts = parts > MOST_CLUSTER ? MOST_CLUSTER : parts == 3 ? 2 : parts;
	parts = parts > blocks ? blocks : parts ? parts : 1;
	return mx_launch_clusters(dim3(1, 1, parts), kernels[row_of(p->q)][width],
	                          dim3(x_tiles, tiles, parts), dim3(MX_TILE_WARPS * 32),
	                          mx_tile_smem(wide, p->q.super_bytes), stream, *p);
}
