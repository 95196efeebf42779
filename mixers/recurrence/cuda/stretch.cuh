/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stretches: up to 64 tokens of a long span, which stretch.cu computes at once where sums may have
 * another order than decoding's. A span's first stretches end its ring's chunks, a chunk each; the
 * last one begins at the border that the step leaves and has what the rings keep.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_STRETCH_CUH
#define MX_MIXERS_RECURRENCE_CUDA_STRETCH_CUH

#include "mixers/recurrence/cuda/chunk.cuh"

#define STRETCH      RECUR_STRETCH
#define NOTE_NUMBERS 1024            /* bytes of gamma .. pad of a note */
#define MATRIX       (STRETCH * 128) /* bytes of a [64][64] matrix of bf16, swizzled */

namespace
{

/* What is noted of a stretch of a head. p: P[r][j], weights of u_j in output r; t: T[r][j] at
 * [j][r]; both bf16, swizzled (warpgroup.cuh). t16: T of the last stretch. */
struct note {
	unsigned char p[MATRIX], t[MATRIX];
	float gamma[STRETCH], to_end[STRETCH], b[STRETCH]; /* to_end is multiplied by the gain */
	float d;
	uint32_t done; /* set when the note is complete, if chain runs beside its preparation */
	float pad[62];
	float t16[Q * Q];
};

/* With vectors of factors: operands that are decayed, swizzled panels of 64 elements: q and k from
 * the stretch's beginning, k to its end; and the products of all factors. */
template <int KT> struct vector_note {
	note base;
	unsigned char k_to[STRETCH * KT * 32], q[STRETCH * KT * 32];
	float d[KT * 16 < 256 ? 256 : KT * 16];
	unsigned char k_from[STRETCH * KT * 32]; /* of the delta rule; else there is no room for it */
};

/* Tokens from .. from + len - 1, of which the first r0 are the rings'. */
struct stretch {
	uint32_t from, len, r0;
};

/* How a step's one long span is cut where there is no delta rule: into n segments, which thread
 * blocks compute at the same time, each of so many pieces, of which S is added up first. */
struct segments {
	uint32_t n, pieces;
};

/* Entries that are kept of a thread block's columns: S, and all pieces but the last segment's. */
__host__ __device__ __forceinline__ uint32_t entries_of(const segments &all)
{
	return 1 + (all.n - 1) * all.pieces;
}

/* How a long span is divided. */
struct division {
	uint32_t pos, border, first, next, end; /* first: where stretches of 64 begin */
	uint32_t heads, n;                      /* stretches before those; all */
};

__device__ __forceinline__ division divide(const mx_device_span &s, uint32_t border)
{
	division d;
	d.pos = s.pos, d.border = border, d.end = s.pos + s.n;
	d.next = border_after(s, border, Q);
	d.first = border < s.pos ? (s.pos + Q - 1) / Q * Q : border;
	d.heads = (d.first - border) / Q;
	d.n = d.heads + (d.next - d.first + STRETCH - 1) / STRETCH + 1;
	return d;
}

__device__ __forceinline__ stretch stretch_of(const division &d, uint32_t i)
{
	stretch s;
	if (i + 1 == d.n)
		s.from = d.next, s.len = d.end - d.next;
	else if (i < d.heads)
		s.from = d.border + i * Q, s.len = Q;
	else {
		s.from = d.first + (i - d.heads) * STRETCH;
		s.len = d.next - s.from < STRETCH ? d.next - s.from : STRETCH;
	}
	s.r0 = d.pos > s.from ? d.pos - s.from : 0;
	s.r0 = s.r0 < s.len ? s.r0 : s.len;
	return s;
}

__device__ __forceinline__ bool is_long(const mx_device_span &s)
{
	return s.n >= RECUR_LONG && s.kind != MX_SPAN_DRAFT;
}

/* 2^x, zero for x <= -128 */
__device__ __forceinline__ float power(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* The numbers of two tokens of a stretch. A product of factors is 2 to a difference of sums of
 * their logarithms; a factor that is zero, or below the least normal number, counts 2^-128, so that
 * such products are zero. */
struct pair_numbers {
	float2 sum, b, to_end; /* to_end: with the gain */
	float d;               /* product of all factors */
};

/* What they are made of: factors, beta or gains. */
struct pair_inputs {
	float f[2], b[2];
};

/* Reads those of tokens 2 lane and 2 lane + 1. */
__device__ __forceinline__ pair_inputs inputs_of(const recur_core &a, const mx_device_span &span,
                                                 const stretch &s, const unsigned char *unit,
                                                 uint32_t head)
{
	pair_inputs x;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint32_t n = 2 * (threadIdx.x & 31) + i;
		const bool old = n < s.r0, own = !old && n < s.len;
		const size_t row = span.row + (s.from + n - span.pos);
		const size_t entry = old ? ring_of(a, s.from) + n : 0;
		x.f[i] = 1;
		x.b[i] = own ? a.fixed_b : 0;
		if (a.decays && n < s.len)
			x.f[i] = a.fixed_a ? a.fixed_a[head]
			         : own     ? a.a[row * a.a_heads + shared_head(head, a.per_a)]
			                   : ((const float *)(unit + a.unit.a))[entry];
		if (own && a.b)
			x.b[i] = a.b[row * a.heads + head];
		if (old && a.gain)
			x.b[i] = ((const float *)(unit + a.unit.b))[entry];
	}
	return x;
}

/* Returns the numbers of a lane's tokens; a whole warp calls it. */
__device__ __forceinline__ pair_numbers numbers_of(const recur_core &a, const pair_inputs &x)
{
	const uint32_t lane = threadIdx.x & 31;
	float sum[2];
#pragma unroll
	for (int i = 0; i < 2; i++) /* false for what is not a number */
		sum[i] = fabsf(x.f[i]) < 1.17549435e-38f ? -128 : log2f(x.f[i]);
	sum[1] += sum[0];
	float before = sum[1];
#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		const float y = __shfl_up_sync(~0u, before, d);
		if (lane >= (uint32_t)d)
			before += y;
	}
	const float all = __shfl_sync(~0u, before, 31);
	before = __shfl_up_sync(~0u, before, 1);
	pair_numbers out;
	out.sum = make_float2(sum[0] + (lane ? before : 0), sum[1] + (lane ? before : 0));
	out.b = make_float2(x.b[0], x.b[1]);
	out.to_end = make_float2(power(all - out.sum.x), power(all - out.sum.y));
	if (a.gain)
		out.to_end = make_float2(out.to_end.x * x.b[0], out.to_end.y * x.b[1]);
	out.d = power(all);
	return out;
}

/* Elements from a row of k or v to the next. */
__host__ __device__ __forceinline__ uint32_t ld_k_of(const recur_core &a)
{
	return a.ld_k ? a.ld_k : a.k_heads * a.kpad;
}
__host__ __device__ __forceinline__ uint32_t ld_v_of(const recur_core &a)
{
	return a.ld_v ? a.ld_v : a.v_heads * a.vpad;
}

/* The first note of a span: there is room for those of its stretches. */
__device__ __forceinline__ uint32_t first_note(const recur_core &a, const mx_device_span &s,
                                               uint32_t span)
{
	return s.row / STRETCH + span * a.extra_chunks;
}

__device__ __forceinline__ note *note_at(const recur_core &a, uint32_t n, uint32_t head)
{
	return (note *)((unsigned char *)a.records + ((size_t)n * a.heads + head) * a.note_bytes);
}

} // namespace

#endif
