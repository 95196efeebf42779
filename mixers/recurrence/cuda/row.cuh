/* SPDX-License-Identifier: Apache-2.0 */
/* A row of step.cu and pair.cu: k and q with the chunk's keys, and with S. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_ROW_CUH
#define MX_MIXERS_RECURRENCE_CUDA_ROW_CUH

#include "mixers/recurrence/cuda/one.cuh"

namespace
{

/* Columns of an operand B: row 0 is `x`, row 1 is `y`, the others are zero. Two operands, of
 * columns col .. col + 15 and of the next 16. */
__device__ __forceinline__ void pair_b(const T *x, const T *y, const T *zero, uint32_t col,
                                       operand_b<1> (&b)[2])
{
	const uint32_t lane = threadIdx.x & 31, part = lane / 8 * 8;
	const T *row = lane % 8 == 0 ? x + col + part : lane % 8 == 1 ? y + col + part : zero;
	load_matrices(b[0].r[0][0], b[0].r[0][1], b[1].r[0][0], b[1].r[0][1], row);
}

/* Products of k_r and q with the chunk's keys; by one warp. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void row_scores(board<KT, VECTOR> &s, uint32_t r)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
	float c[4] = {0, 0, 0, 0};
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[2];
		operand_a<1> k[2];
		pair_b(s.k + r * s.ld, s.q, s.zero, 16 * i, b);
#pragma unroll
		for (int half = 0; half < 2; half++)
			load_matrices(k[half].r[0][0], k[half].r[0][1], k[half].r[0][2], k[half].r[0][3],
			              s.k + lane % 16 * s.ld + 16 * (i + half) + lane / 16 * 8);
		mma(c, k[0].r[0], b[0].r[0]);
		mma(c, k[1].r[0], b[1].r[0]);
	}
	if (lane % 4 == 0) {
		s.sk[g] = c[0], s.sq[g] = c[1];
		s.sk[g + 8] = c[2], s.sq[g + 8] = c[3];
	}
	__syncwarp();
}

/* What S says of k (c[0], c[2]) and q (c[1], c[3]) in lanes t = 0, columns g and g + 8, of each of
 * the warp's tiles. */
template <int KT>
__device__ __forceinline__ void ask(const uint4 *S, uint32_t tiles, const T *wk, const T *wq,
                                    const T *zero, float (&c)[TILES][4])
{
	ask_tiles<KT>(
		S, tiles, [&](uint32_t col, operand_b<1>(&b)[2]) { pair_b(wk, wq, zero, col, b); }, c);
}

} // namespace

#endif
