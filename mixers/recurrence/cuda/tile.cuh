/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a warp on tensor cores, m16n8k16 with bf16 operands and f32 sums. Lane = 4 g + t:
 * - operand A [16][16]: a0 row g, columns 2t and 2t + 1; a1 row g + 8; a2, a3 columns 8 further
 * - operand B [16][8]: b0 column g, rows 2t and 2t + 1; b1 rows 8 further
 * - sums C [16][8]: c0, c1 row g, columns 2t and 2t + 1; c2, c3 row g + 8
 * So two C side by side are an A.
 *
 * An f32 operand is a sum of bf16 numbers, its pieces: three hold all of its 24 bits. A product of
 * operands in several pieces is the sum of the products of pieces that matter, smallest first.
 * A sum's bits depend on its row of A and its column of B only.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_TILE_CUH
#define MX_MIXERS_RECURRENCE_CUDA_TILE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

template <int P> struct operand_a {
	uint32_t r[P][4];
};
template <int P> struct operand_b {
	uint32_t r[P][2];
};

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4],
                                           const uint32_t (&b)[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c += a b */
template <int PA, int PB>
static __device__ __forceinline__ void multiply(float (&c)[4], const operand_a<PA> &a,
                                                const operand_b<PB> &b)
{
	constexpr int most = PA > PB ? PA : PB;
#pragma unroll
	for (int sum = most - 1; sum >= 0; sum--)
#pragma unroll
		for (int i = 0; i < PA; i++)
			if (sum - i >= 0 && sum - i < PB)
				mma(c, a.r[i], b.r[sum - i]);
}

/* The same for four sums with one a, piece by piece: no product waits for the one before. */
template <int PA, int PB>
static __device__ __forceinline__ void multiply_4(float (&c0)[4], float (&c1)[4], float (&c2)[4],
                                                  float (&c3)[4], const operand_a<PA> &a,
                                                  const operand_b<PB> *b)
{
	constexpr int most = PA > PB ? PA : PB;
#pragma unroll
	for (int sum = most - 1; sum >= 0; sum--)
#pragma unroll
		for (int i = 0; i < PA; i++)
			if (sum - i >= 0 && sum - i < PB) {
				mma(c0, a.r[i], b[0].r[sum - i]);
				mma(c1, a.r[i], b[1].r[sum - i]);
				mma(c2, a.r[i], b[2].r[sum - i]);
				mma(c3, a.r[i], b[3].r[sum - i]);
			}
}

/* Splits two numbers into pieces; `low` goes to the low halves. */
template <int P, int N>
static __device__ __forceinline__ void split(float low, float high, uint32_t (&r)[P][N], int at)
{
#pragma unroll
	for (int p = 0; p < P; p++) {
		const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
		r[p][at] = *(const uint32_t *)&h;
		if (p + 1 < P) {
			low -= __low2float(h);
			high -= __high2float(h);
		}
	}
}

/* Two neighbours in shared memory, or two numbers. Of bf16 there is one piece. */
template <int P, int N>
static __device__ __forceinline__ void take(const float *x, uint32_t (&r)[P][N], int at)
{
	split<P, N>(x[0], x[1], r, at);
}
template <int P, int N>
static __device__ __forceinline__ void take(const __nv_bfloat16 *x, uint32_t (&r)[P][N], int at)
{
	static_assert(P == 1, "bf16 is one piece");
	r[0][at] = *(const uint32_t *)x;
}
template <int P, int N>
static __device__ __forceinline__ void take(const float *x, const float *y, uint32_t (&r)[P][N],
                                            int at)
{
	split<P, N>(*x, *y, r, at);
}
template <int P, int N>
static __device__ __forceinline__ void take(const __nv_bfloat16 *x, const __nv_bfloat16 *y,
                                            uint32_t (&r)[P][N], int at)
{
	static_assert(P == 1, "bf16 is one piece");
	r[0][at] = *(const uint16_t *)x | (uint32_t) * (const uint16_t *)y << 16;
}

/* A from rows g and g + 8 of m [16][ld], columns from `col` on. */
template <int P, typename T>
static __device__ __forceinline__ operand_a<P> rows_a(const T *m, uint32_t ld, uint32_t col)
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	operand_a<P> a;
	take<P>(m + g * ld + col + 2 * t, a.r, 0);
	take<P>(m + (g + 8) * ld + col + 2 * t, a.r, 1);
	take<P>(m + g * ld + col + 8 + 2 * t, a.r, 2);
	take<P>(m + (g + 8) * ld + col + 8 + 2 * t, a.r, 3);
	return a;
}

/* B whose columns are rows `row` .. row + 7 of m [..][ld], from column `col` on. */
template <int P, typename T>
static __device__ __forceinline__ operand_b<P> rows_b(const T *m, uint32_t ld, uint32_t row,
                                                      uint32_t col)
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	const T *at = m + (row + g) * ld + col + 2 * t;
	operand_b<P> b;
	take<P>(at, b.r, 0);
	take<P>(at + 8, b.r, 1);
	return b;
}

/* B whose rows are rows 0 .. 15 of m [16][ld], columns `col` .. col + 7. */
template <int P, typename T>
static __device__ __forceinline__ operand_b<P> columns_b(const T *m, uint32_t ld, uint32_t col)
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	const T *at = m + 2 * t * ld + col + g;
	operand_b<P> b;
	take<P>(at, at + ld, b.r, 0);
	take<P>(at + 8 * ld, at + 9 * ld, b.r, 1);
	return b;
}

/* ---- several operands at once; the same elements, by ldmatrix where they are bf16 ---- */

static __device__ __forceinline__ void load_matrices(uint32_t &r0, uint32_t &r1, uint32_t &r2,
                                                     uint32_t &r3, const __nv_bfloat16 *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t &r0, uint32_t &r1, uint32_t &r2,
                                                       uint32_t &r3, const __nv_bfloat16 *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* rows_b of columns col .. col + 15 and of the next 16. */
static __device__ __forceinline__ void two_rows_b(const __nv_bfloat16 *m, uint32_t ld, uint32_t row,
                                                  uint32_t col, operand_b<1> (&b)[2])
{
	const uint32_t lane = threadIdx.x & 31;
	load_matrices(b[0].r[0][0], b[0].r[0][1], b[1].r[0][0], b[1].r[0][1],
	              m + (row + lane % 8) * ld + col + lane / 8 * 8);
}
static __device__ __forceinline__ void two_rows_b(const float *m, uint32_t ld, uint32_t row,
                                                  uint32_t col, operand_b<3> (&b)[2])
{
	b[0] = rows_b<3>(m, ld, row, col);
	b[1] = rows_b<3>(m, ld, row, col + 16);
}

/* columns_b of columns col .. col + 7 and of the next 8. */
static __device__ __forceinline__ void two_columns_b(const __nv_bfloat16 *m, uint32_t ld,
                                                     uint32_t col, operand_b<1> *b)
{
	const uint32_t lane = threadIdx.x & 31;
	load_transposed(b[0].r[0][0], b[0].r[0][1], b[1].r[0][0], b[1].r[0][1],
	                m + lane % 16 * ld + col + lane / 16 * 8);
}
static __device__ __forceinline__ void two_columns_b(const float *m, uint32_t ld, uint32_t col,
                                                     operand_b<3> *b)
{
	b[0] = columns_b<3>(m, ld, col);
	b[1] = columns_b<3>(m, ld, col + 8);
}

/* A from two C side by side. */
template <int P> static __device__ __forceinline__ operand_a<P> sums_a(const float (&c)[2][4])
{
	operand_a<P> a;
	split<P>(c[0][0], c[0][1], a.r, 0);
	split<P>(c[0][2], c[0][3], a.r, 1);
	split<P>(c[1][0], c[1][1], a.r, 2);
	split<P>(c[1][2], c[1][3], a.r, 3);
	return a;
}

/* Copies 16 bytes to shared memory, or zeros. */
static __device__ __forceinline__ void copy16(void *to, const void *from)
{
	const int bytes = from ? 16 : 0;
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
					 (uint32_t)__cvta_generic_to_shared(to)),
	             "l"(from ? from : to), "r"(bytes)
	             : "memory");
}

#endif
