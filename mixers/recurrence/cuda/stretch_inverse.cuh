/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the preparations of stretches share: a thread block's stretch, and T = (1 + L)^-1. T is made
 * of inverses of blocks of 16, by substitution; a pair of blocks, then of pairs, is put together by
 * T_21 = -T_22 L_21 T_11  with operands in two pieces. T is kept transposed: sums of one product
 * are then an operand of the next.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_STRETCH_INVERSE_CUH
#define MX_MIXERS_RECURRENCE_CUDA_STRETCH_INVERSE_CUH

#include "mixers/recurrence/cuda/stretch.cuh"
#include "mixers/recurrence/cuda/warpgroup.cuh"

#define PREPARE_THREADS 128 /* of a team, which computes a stretch */
#define LDS             68  /* floats between rows of L and T in shared memory */

namespace
{

/* L, below the diagonal, and T transposed, on it and above. */
struct triangle {
	float m[STRETCH * LDS], pad[16];
};

/* The threads of a team wait for each other. */
__device__ __forceinline__ void team_meet(uint32_t team)
{
	asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(PREPARE_THREADS) : "memory");
}

struct place {
	mx_device_span span;
	division all;
	stretch s;
	bool last;
	uint32_t head; /* the first */
	const unsigned char *slot;
};

__device__ __forceinline__ const unsigned char *unit_of(const recur_core &a, const place &w,
                                                        uint32_t head)
{
	return w.slot + (size_t)head * a.unit.per_head * a.unit.bytes;
}

/* Inverses of the blocks on the diagonal: warp b block b, half a warp a head, a lane a column. */
__device__ __forceinline__ void substitute(const recur_core &a, const place &w, uint32_t head,
                                           uint32_t block, triangle &tri, note *to)
{
	const uint32_t c = threadIdx.x & 15;
	const float *l = tri.m + 16 * block * LDS + 16 * block;
	const float *ring = (const float *)(unit_of(a, w, head) + a.unit.t) +
	                    (w.s.r0 ? (size_t)ring_of(a, w.s.from) * Q : 0) + c;
	float t[Q];
#pragma unroll
	for (uint32_t r = 0; r < Q; r++) {
		float row[Q], x = 0;
#pragma unroll
		for (uint32_t j = 0; j < r; j += 4)
			*(float4 *)(row + j) = *(const float4 *)(l + r * LDS + j);
#pragma unroll
		for (uint32_t j = 0; j < r; j++)
			x = __fmaf_rn(row[j], t[j], x);
		t[r] = (r == c ? 1 : 0) - x;
		if (block == 0 && r < w.s.r0)
			t[r] = ring[r * Q];
		if (block == 0 && w.last)
			to->t16[r * Q + c] = t[r];
	}
	float *out = tri.m + (16 * block + c) * LDS + 16 * block;
	__syncwarp(); /* L's block is not needed any more */
#pragma unroll
	for (uint32_t r = 0; r < Q; r += 4)
		*(float4 *)(out + r) = make_float4(t[r], t[r + 1], t[r + 2], t[r + 3]);
}

/* Puts together inverses of N x 16 rows: rows 16 .. of strip `c` of the block below and right of
 * `at`, transposed. */
template <int N> __device__ __forceinline__ void join(triangle &tri, uint32_t at, uint32_t strip)
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, low = at + 16 * N;
	float y[2 * N][4] = {}, x[2 * N][4] = {};
	float *out = tri.m + (at + 16 * strip) * LDS;
#pragma unroll
	for (uint32_t k = 0; k < N; k++) {
		if (k < strip)
			continue; /* zero: T transposed is an upper triangle */
		const operand_a<2> left = rows_a<2>(out, LDS, at + 16 * k);
#pragma unroll
		for (uint32_t n = 0; n < 2 * N; n++)
			multiply(y[n], left, rows_b<2>(tri.m, LDS, low + 8 * n, at + 16 * k));
	}
#pragma unroll
	for (uint32_t k = 0; k < N; k++) {
		const float pair[2][4] = {
			{y[2 * k][0], y[2 * k][1], y[2 * k][2], y[2 * k][3]},
			{y[2 * k + 1][0], y[2 * k + 1][1], y[2 * k + 1][2], y[2 * k + 1][3]}};
		const operand_a<2> left = sums_a<2>(pair);
#pragma unroll
		for (uint32_t n = 2 * k; n < 2 * N; n++)
			multiply(x[n], left, columns_b<2>(tri.m + (low + 16 * k) * LDS, LDS, low + 8 * n));
	}
#pragma unroll
	for (uint32_t n = 0; n < 2 * N; n++) {
		*(float2 *)(out + g * LDS + low + 8 * n + 2 * t) = make_float2(-x[n][0], -x[n][1]);
		*(float2 *)(out + (g + 8) * LDS + low + 8 * n + 2 * t) = make_float2(-x[n][2], -x[n][3]);
	}
}

__device__ __forceinline__ void write_t(const triangle &tri, note *to)
{
	for (uint32_t i = threadIdx.x % PREPARE_THREADS; i < STRETCH * 8; i += PREPARE_THREADS) {
		const uint32_t j = i / 8, c = i % 8;
		float v[8];
		*(float4 *)v = *(const float4 *)(tri.m + j * LDS + 8 * c);
		*(float4 *)(v + 4) = *(const float4 *)(tri.m + j * LDS + 8 * c + 4);
		uint32_t two[4];
#pragma unroll
		for (uint32_t e = 0; e < 4; e++) {
			const uint32_t r = 8 * c + 2 * e;
			const __nv_bfloat162 h =
				__floats2bfloat162_rn(r < j ? 0 : v[2 * e], r + 1 < j ? 0 : v[2 * e + 1]);
			two[e] = *(const uint32_t *)&h;
		}
		*(uint4 *)(to->t + swizzled(j, c)) = make_uint4(two[0], two[1], two[2], two[3]);
	}
}

/* Finds the stretch of note n, of the heads from `head` on; false if there is none. */
__device__ __forceinline__ bool find_stretch(const recur_core &a, uint32_t n, uint32_t head,
                                             place *w)
{
	uint32_t low = 0, high = a.step.n_spans; /* the last span whose notes begin at n or before */
	while (high - low > 1) {
		const uint32_t mid = (low + high) / 2;
		if (first_note(a, a.step.spans[mid], mid) <= n)
			low = mid;
		else
			high = mid;
	}
	w->span = a.step.spans[low];
	w->slot = a.step.slot_base + w->span.slot * a.step.slot_stride;
	w->head = head;
	const uint32_t first = first_note(a, w->span, low);
	if (n < first || !is_long(w->span))
		return false;
	w->all = divide(w->span, *(const volatile uint32_t *)unit_of(a, *w, head));
	if (n - first >= w->all.n)
		return false;
	w->s = stretch_of(w->all, n - first);
	w->last = n - first + 1 == w->all.n;
	return true;
}

/* T of a team's heads, from L, to their notes. */
__device__ __forceinline__ void inverse(const recur_core &a, const place &w, uint32_t head,
                                        uint32_t more, uint32_t team, uint32_t warp, triangle *tri,
                                        note *to)
{
	/* half a warp may do the other's work once more, and so reads what that one does not change */
	const uint32_t half = (threadIdx.x & 31) >> 4, mine = half < more ? half : 0;
	substitute(a, w, head + mine, warp, tri[mine], to + mine);
	team_meet(team);
	if (warp / 2 < more)
		join<1>(tri[warp / 2], warp % 2 * 32, 0);
	team_meet(team);
	if (warp / 2 < more)
		join<2>(tri[warp / 2], 0, warp % 2);
	team_meet(team);
	for (uint32_t i = 0; i < more; i++)
		write_t(tri[i], to + i);
	team_meet(team);
}

} // namespace

#endif
