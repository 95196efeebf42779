/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the products of experts with few links each: an item of work is a tile of links and
 * some rows of its expert's matrices, whose columns the warps of a CTA divide; their sums are added
 * in shared memory.
 */
#ifndef MX_DEVICE_CUDA_EXPERTS_FEW_CUH
#define MX_DEVICE_CUDA_EXPERTS_FEW_CUH

#include "device/cuda/experts.cuh"
#include "device/cuda/linear.cuh"

#define WARPS     MX_LINEAR_LANES
#define TILE      16 /* rows of a matrix that one instruction multiplies */
#define SUM_PITCH 20 /* floats from link to link: no bank conflicts */
#define SUM_TILE  (8 * SUM_PITCH)

namespace
{

typedef __nv_bfloat16 bf16;

/* What a launch multiplies: matrices [rows, cols] of each expert. */
struct matrices {
	uint32_t rows, cols, groups; /* groups: items of a tile */
};

/* An item has RUNS runs of TILE rows: of up and down, or one of gate and one of up. */
template <bool DOWN, int RUNS> __device__ __forceinline__ matrices matrices_of(const mx_experts &m)
{
	const uint32_t rows = DOWN ? m.cols : m.width, each = !DOWN && m.gated ? TILE : RUNS * TILE;
	return {rows, DOWN ? m.width : m.cols, (rows + each - 1) / each};
}

/* Stores this warp's parts of the sums. */
template <int RUNS, int NT>
__device__ __forceinline__ void store_parts(const float (&acc)[RUNS][NT][4], float *sums)
{
	const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int r = 0; r < RUNS; r++)
#pragma unroll
		for (int i = 0; i < NT; i++) {
			float *to = sums + ((warp * RUNS + r) * NT + i) * SUM_TILE + 2 * t * SUM_PITCH + g;
			to[0] = acc[r][i][0];
			to[SUM_PITCH] = acc[r][i][1];
			to[8] = acc[r][i][2];
			to[SUM_PITCH + 8] = acc[r][i][3];
		}
}

/* Returns the sum for row `row` of run r and a link: the lanes' parts in order. */
template <int RUNS, int NT>
__device__ __forceinline__ float sum_of(const float *sums, uint32_t r, uint32_t link, uint32_t row)
{
	const float *from = sums + (r * NT + link / 8) * SUM_TILE + link % 8 * SUM_PITCH + row;
	float v = from[0];
#pragma unroll
	for (int l = 1; l < WARPS; l++)
		v += from[l * RUNS * NT * SUM_TILE];
	return v;
}

/* Stores the feed-forward's products of an item, whose first run begins at row `first`. */
template <int RUNS, int NT>
__device__ __forceinline__ void store_up(const mx_cuda_experts &p, uint32_t first,
                                         const mx_expert_tile &tile, const float *sums)
{
	const mx_expert_weights &w = tile.w;
	bf16 *to = (bf16 *)p.product + (size_t)tile.first * p.m.width;
	const uint32_t runs = p.m.gated ? 1 : RUNS;
	for (uint32_t o = threadIdx.x; o < runs * NT * 8 * TILE; o += WARPS * 32) {
		const uint32_t row = o % TILE, link = o / TILE % (NT * 8), r = o / (TILE * NT * 8);
		const uint32_t at = first + r * TILE + row;
		if (link >= tile.n || at >= p.m.width)
			continue;
		const float a = sum_of<RUNS, NT>(sums, r, link, row);
		const float b = p.m.gated ? sum_of<RUNS, NT>(sums, 1, link, row) : a;
		to[(size_t)link * p.m.width + at] = __float2bfloat16_rn(mx_feed(p.m, w, at, a, b));
	}
}

/* Likewise the experts' outputs. */
template <int RUNS, int NT>
__device__ __forceinline__ void store_down(const mx_cuda_experts &p, uint32_t first,
                                           const mx_expert_tile &tile, const float *sums)
{
	const float *bias = tile.w.down_bias;
	for (uint32_t o = threadIdx.x; o < RUNS * NT * 8 * TILE; o += WARPS * 32) {
		const uint32_t row = o % TILE, link = o / TILE % (NT * 8), r = o / (TILE * NT * 8);
		const uint32_t at = first + r * TILE + row;
		if (link >= tile.n || at >= p.m.cols)
			continue;
		const float v = sum_of<RUNS, NT>(sums, r, link, row) + (bias ? bias[at] : 0.0f);
		((bf16 *)p.out)[(size_t)p.order[tile.first + link] * p.m.cols + at] =
			__float2bfloat16_rn(v);
	}
}

/* Returns the row of x, or of the feed-forward's products, of a link of a tile; NULL if the tile
 * has fewer. */
template <bool DOWN>
__device__ __forceinline__ const bf16 *row_of(const mx_cuda_experts &p, const mx_expert_tile &tile,
                                              uint32_t link)
{
	if (link >= tile.n)
		return NULL;
	return DOWN ? (const bf16 *)p.product + (size_t)(tile.first + link) * p.m.width
	            : (const bf16 *)p.x +
	                  (size_t)(p.order[tile.first + link] / p.m.rule.chosen) * p.m.cols;
}

} // namespace

#endif
