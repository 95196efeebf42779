/* SPDX-License-Identifier: Apache-2.0 */
/* Of stretch.cu and stretch_pieces.cu: S of a thread block's columns in the registers of a
 * warpgroup, and a span cut into pieces. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_STRETCH_STATE_CUH
#define MX_MIXERS_RECURRENCE_CUDA_STRETCH_STATE_CUH

#include "mixers/recurrence/cuda/stretch_copy.cuh"

namespace
{

/* What a piece adds to S, as registers have it, and the products of its factors: one, or one for
 * each element of a key. Of the entry in front of a span's pieces, S at its beginning. */
struct piece {
	float4 s[16 * GROUP];
	float d[256];
};
static_assert(sizeof(piece) == RECUR_PIECE_BYTES, "pieces and the room for them");

/* Entry `n` of a thread block's columns: 0 is S at the span's beginning, p + 1 piece p. */
__device__ __forceinline__ piece *piece_at(const recur_core &a, const segments &all, uint32_t n)
{
	return (piece *)a.pieces + blockIdx.x * entries_of(all) + n;
}

/* The stretches of pieces first .. first + count - 1. */
__device__ __forceinline__ void take_pieces(const segments &all, uint32_t first, uint32_t count,
                                            part_of_head *w)
{
	const uint32_t n = all.n * all.pieces;
	w->from = w->all.n * first / n;
	w->n = w->all.n * (first + count) / n - w->from;
}

/* Finds the columns of a thread block; false if its span is not long. All stretches are its own. */
__device__ __forceinline__ bool find_part(const recur_core &a, part_of_head *w)
{
	const uint32_t per_unit = (a.unit.cols + COLS - 1) / COLS, unit = blockIdx.x / per_unit;
	w->span = a.step.spans[blockIdx.y];
	w->beside = false;
	if (!is_long(w->span))
		return false;
	w->unit = a.step.slot_base + w->span.slot * a.step.slot_stride + unit * a.unit.bytes;
	w->head = unit / a.unit.per_head;
	w->unit_col = blockIdx.x % per_unit * COLS;
	w->col = unit % a.unit.per_head * a.unit.cols + w->unit_col;
	w->cols = a.unit.cols - w->unit_col < COLS ? a.unit.cols - w->unit_col : COLS;
	w->all = divide(w->span, *(const volatile uint32_t *)w->unit);
	w->from = 0, w->n = w->all.n;
	return true;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ uint32_t pack(float low, float high)
{
	const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
	return *(const uint32_t *)&h;
}

/* Sums as an operand: step s of 16 columns. */
template <int N> __device__ __forceinline__ void operand(const float (&d)[N], int s, uint32_t *a)
{
	a[0] = pack(d[8 * s], d[8 * s + 1]);
	a[1] = pack(d[8 * s + 2], d[8 * s + 3]);
	a[2] = pack(d[8 * s + 4], d[8 * s + 5]);
	a[3] = pack(d[8 * s + 6], d[8 * s + 7]);
}

/* The warp's tile of 16 keys, as high_at counts them. */
template <int KT> __device__ __forceinline__ size_t state_tile(const part_of_head &w, int i)
{
	return (size_t)(w.unit_col / 16 + (threadIdx.x >> 5)) * KT + i;
}

/* S as of the slot's border. */
template <int KT>
__device__ __forceinline__ void load_state(const recur_core &a, const part_of_head &w,
                                           float (&state)[KT * 8])
{
#pragma unroll
	for (int i = 0; i < KT; i++) {
		float x[2][4] = {};
		if (16 * (threadIdx.x >> 5) < w.cols) {
			const size_t tile = state_tile<KT>(w, i);
			whole_of({*high_at(a.unit, w.unit, tile), *low_at(a.unit, w.unit, tile)}, x);
		}
#pragma unroll
		for (int e = 0; e < 8; e++)
			state[8 * i + e] = x[e / 4][e % 4];
	}
}

/* Writes S to the slot. */
template <int KT>
__device__ __forceinline__ void store_state(const recur_core &a, const part_of_head &w,
                                            const float (&state)[KT * 8])
{
	if (16 * (threadIdx.x >> 5) >= w.cols)
		return;
#pragma unroll
	for (int i = 0; i < KT; i++) {
		float x[2][4];
#pragma unroll
		for (int e = 0; e < 8; e++)
			x[e / 4][e % 4] = no_tie(state[8 * i + e]);
		const halves h = halves_of(x);
		*high_at(a.unit, w.unit, state_tile<KT>(w, i)) = h.high;
		*low_at(a.unit, w.unit, state_tile<KT>(w, i)) = h.low;
	}
}

/* Fragments of v: operand step s has tokens 16 s .. */
__device__ __forceinline__ void load_v(uint32_t at, uint32_t (&v)[4][4])
{
	const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
	for (uint32_t s = 0; s < 4; s++) {
		const uint32_t row = 16 * s + lane / 16 * 8 + lane % 8, c = 2 * warp + lane / 8 % 2;
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		             : "=r"(v[s][0]), "=r"(v[s][1]), "=r"(v[s][2]), "=r"(v[s][3])
		             : "r"(at + swizzled(row, c))
		             : "memory");
	}
}

__device__ __forceinline__ float low_of(uint32_t two)
{
	return __uint_as_float(two << 16);
}
__device__ __forceinline__ float high_of(uint32_t two)
{
	return __uint_as_float(two & 0xffff0000u);
}

/* S by products of factors: one, or (VECTOR) a vector `d`. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void decay_state(float all, const float *d, float (&state)[KT * 8])
{
#pragma unroll
	for (int k = 0; k < KT * 2; k++) {
		float2 f = make_float2(all, all);
		if (VECTOR)
			f = *(const float2 *)(d + 8 * k + 2 * (threadIdx.x & 3));
		state[4 * k] *= f.x, state[4 * k + 1] *= f.y;
		state[4 * k + 2] *= f.x, state[4 * k + 3] *= f.y;
	}
}

#endif

} // namespace

#endif
