/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the recurrence in chunks share: a unit's work, S in registers. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_CHUNK_CUH
#define MX_MIXERS_RECURRENCE_CUDA_CHUNK_CUH

#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/halves.cuh"
#include "mixers/recurrence/cuda/math.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"
#include "mixers/recurrence/cuda/slot.cuh"
#include "mixers/recurrence/cuda/tile.cuh"

#define Q   MX_RECUR_CHUNK
#define LDM 20 /* floats between rows of a [16][16] matrix in shared memory */

namespace
{

/* Operands of products with S, in shared memory, rows of tokens: k and q decayed by all tokens of
 * the chunk up to their own, and k by those after it. Without vectors of factors they are not
 * decayed, and sums are. d [kpad]: products of all factors, with vectors of them. */
template <typename T> struct operands {
	T *wk, *wq, *kd;
	float *d;
	uint32_t ld;
};

/* A unit and its span. */
struct work {
	uint32_t head, col;                /* first column of the unit */
	uint32_t row, pos, end, keep_from; /* keep_from: positions from here on go to the rings */
	unsigned char *unit;
	/* [Q] of a path of a tree: entries in rings and rows of the chunk's tokens, in shared memory */
	const uint32_t *entries = nullptr, *rows = nullptr;
};

/* A chunk that a span touches: tokens r0 .. r1 - 1 belong to the step, earlier ones to the rings.
 */
struct part {
	uint32_t from, r0, r1;
	bool whole; /* further tokens follow: the chunk is folded into S */
};

/* Returns which of the shared heads head h uses; `per` is one of recur_core's numbers for that. */
__device__ __forceinline__ uint32_t shared_head(uint32_t h, uint64_t per)
{
	return (uint32_t)(h * per >> 32);
}

/* Entry of a chunk's first token in rings. */
__device__ __forceinline__ uint32_t ring_of(const recur_core &a, uint32_t from)
{
	return a.unit.cap == Q ? 0 : from % a.unit.cap;
}

/* Entry in rings of token j of a chunk. */
__device__ __forceinline__ size_t entry_of(const recur_core &a, const work &w, const part &p,
                                           uint32_t j)
{
	return w.entries ? w.entries[j] : ring_of(a, p.from) + j;
}

/* Row of the step of token j of a chunk, which is one of the step's. */
__device__ __forceinline__ size_t row_of(const work &w, const part &p, uint32_t j)
{
	return w.rows ? w.rows[j] : w.row + (p.from + j - w.pos);
}

/* Returns the product of factors of tokens `last` down to first + 1. */
__device__ __forceinline__ float product(const float *a, int last, int first)
{
	float x = 1;
	for (int i = last; i > first; i--)
		x = __fmul_rn(x, a[i]);
	return x;
}

/* The columns of a warp: 16 from `col` on. Element (column, token) of `x` is in C's place. */
template <typename T, int P, int KT> struct columns {
	float S[KT][2][4]; /* S^T: 16 columns, keys 16 i + 8 half .. */

	__device__ __forceinline__ float4 *place(const recur_core &a, const work &w, uint32_t warp,
	                                         int i, int half) const
	{
		return (float4 *)(w.unit + a.unit.S) + ((size_t)(warp * KT + i) * 2 + half) * 32 +
		       (threadIdx.x & 31);
	}

	__device__ __forceinline__ void read(const recur_core &a, const work &w, uint32_t warp)
	{
		if constexpr (P == 1) {
#pragma unroll
			for (int i = 0; i < KT; i++)
				whole_of({load_now(high_at(a.unit, w.unit, warp * KT + i)),
				          load_now(low_at(a.unit, w.unit, warp * KT + i))},
				         S[i]);
		} else {
#pragma unroll
			for (int i = 0; i < KT; i++)
#pragma unroll
				for (int half = 0; half < 2; half++)
					asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
					             : "=f"(S[i][half][0]), "=f"(S[i][half][1]), "=f"(S[i][half][2]),
					               "=f"(S[i][half][3])
					             : "l"(place(a, w, warp, i, half)));
		}
	}

	__device__ __forceinline__ void write(const recur_core &a, const work &w, uint32_t warp) const
	{
		if constexpr (P == 1) {
#pragma unroll
			for (int i = 0; i < KT; i++) {
				const halves h = halves_of(S[i]);
				*high_at(a.unit, w.unit, warp * KT + i) = h.high;
				*low_at(a.unit, w.unit, warp * KT + i) = h.low;
			}
		} else {
#pragma unroll
			for (int i = 0; i < KT; i++)
#pragma unroll
				for (int half = 0; half < 2; half++)
					*place(a, w, warp, i, half) =
						make_float4(S[i][half][0], S[i][half][1], S[i][half][2], S[i][half][3]);
		}
	}

	/* Adds S^T times the rows of wk (with `delta`) and wq to ck and cq. */
	__device__ __forceinline__ void meet(const operands<T> &s, const part &p, bool delta,
	                                     float (&ck)[2][4], float (&cq)[2][4]) const
	{
		const bool low = p.r0 < 8;
		const bool high = p.r1 > 8;
#pragma unroll
		for (int i = 0; i < KT; i += 2) {
			const operand_a<P> a0 = sums_a<P>(S[i]), a1 = sums_a<P>(S[i + 1]);
			operand_b<P> q[2][2], k[2][2]; /* [half of the rows][half of the keys] */
			if (low)
				two_rows_b(s.wq, s.ld, 0, 16 * i, q[0]);
			if (high)
				two_rows_b(s.wq, s.ld, 8, 16 * i, q[1]);
			if (low && delta)
				two_rows_b(s.wk, s.ld, 0, 16 * i, k[0]);
			if (high && delta)
				two_rows_b(s.wk, s.ld, 8, 16 * i, k[1]);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const operand_a<P> &at = half ? a1 : a0;
				if (low)
					multiply(cq[0], at, q[0][half]);
				if (high)
					multiply(cq[1], at, q[1][half]);
				if (low && delta)
					multiply(ck[0], at, k[0][half]);
				if (high && delta)
					multiply(ck[1], at, k[1][half]);
			}
		}
	}

	/* S <- d S + u kd */
	__device__ __forceinline__ void fold(const operands<T> &s, bool vector, float d,
	                                     const float (&u)[2][4])
	{
		const uint32_t t = threadIdx.x & 3;
		constexpr int PU = P > 2 ? P : 2;
		const operand_a<PU> at = sums_a<PU>(u);
#pragma unroll
		for (int i = 0; i < KT; i += 2) {
			operand_b<P> b[4];
			two_columns_b(s.kd, s.ld, 16 * i, b);
			two_columns_b(s.kd, s.ld, 16 * i + 16, b + 2);
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const uint32_t k = 16 * i + 8 * n;
				const float d0 = vector ? s.d[k + 2 * t] : d, d1 = vector ? s.d[k + 2 * t + 1] : d;
				float(&c)[4] = S[i + n / 2][n % 2];
				c[0] *= d0, c[1] *= d1, c[2] *= d0, c[3] *= d1;
			}
			multiply_4(S[i][0], S[i][1], S[i + 1][0], S[i + 1][1], at, b);
			if (P == 1)
#pragma unroll
				for (int n = 0; n < 4; n++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						S[i + n / 2][n % 2][e] = no_tie(S[i + n / 2][n % 2][e]);
		}
	}
};

/* Elements of a chunk's x in the place of C: f(i, token, column) for each. */
template <typename F> __device__ __forceinline__ void each_of(F f)
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
	for (int half = 0; half < 2; half++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			f(half, i, 8 * half + 2 * t + (i & 1), g + 8 * (i >> 1));
}

/* Shared memory of a block. */
template <typename T> struct shared : operands<T> {
	T *k, *q;              /* [Q][ld] of the chunk's tokens; zero where there is none, or old (q) */
	float *av;             /* [Q][kpad] vectors of factors */
	float *a, *b;          /* [Q] factor; beta or gain */
	float *sq, *sk;        /* [Q][LDM] scores of q and k with the chunk's keys */
	float *t, *m;          /* [Q][LDM] T and M */
	float *gamma, *to_end; /* [Q] product of factors up to a token; of those after it */
};

template <typename T>
__host__ __device__ __forceinline__ size_t share(unsigned char *base, uint32_t kpad, bool vector,
                                                 shared<T> *out)
{
	shared<T> s;
	const uint32_t ld = kpad + 16 / sizeof(T);
	size_t at = 0;
	s.ld = ld;
	s.k = (T *)(base + at), at += Q * ld * sizeof(T);
	s.q = (T *)(base + at), at += Q * ld * sizeof(T);
	s.wk = s.wq = s.kd = NULL;
	s.av = s.d = NULL;
	if (vector) {
		s.wk = (T *)(base + at), at += Q * ld * sizeof(T);
		s.wq = (T *)(base + at), at += Q * ld * sizeof(T);
		s.kd = (T *)(base + at), at += Q * ld * sizeof(T);
		s.av = (float *)(base + at), at += Q * kpad * sizeof(float);
		s.d = (float *)(base + at), at += kpad * sizeof(float);
	}
	float *f = (float *)(base + at);
	s.sq = f, s.sk = f + Q * LDM, s.t = f + 2 * Q * LDM, s.m = f + 3 * Q * LDM;
	f += 4 * Q * LDM;
	s.a = f, s.b = f + Q, s.gamma = f + 2 * Q, s.to_end = f + 3 * Q;
	at += (4 * Q * LDM + 4 * Q) * sizeof(float);
	if (!vector) {
		s.wk = s.kd = s.k;
		s.wq = s.q;
	}
	if (out)
		*out = s;
	return at;
}

/* Brings k, q, factors and beta of the chunk's tokens to shared memory, and new ones to the rings.
 */
template <typename T>
__device__ void load(const recur_core &a, const work &w, const part &p, const shared<T> &s)
{
	const uint32_t n = threadIdx.x, threads = blockDim.x, kpad = a.kpad;
	constexpr uint32_t each = 16 / sizeof(T);
	const uint32_t hq = shared_head(w.head, a.per_q);
	const uint32_t hk = shared_head(w.head, a.per_k);
	const uint32_t ha = a.decays ? shared_head(w.head, a.per_a) : 0;
	T *ring = (T *)(w.unit + a.unit.k);
	float *ring_a = (float *)(w.unit + a.unit.a), *ring_b = (float *)(w.unit + a.unit.b);

	for (uint32_t i = n; i < Q * kpad / each; i += threads) {
		const uint32_t j = i / (kpad / each), e = i % (kpad / each) * each, pos = p.from + j;
		const size_t row = row_of(w, p, j);
		uint4 k = make_uint4(0, 0, 0, 0), q = k;
		uint4 *entry = (uint4 *)(ring + entry_of(a, w, p, j) * kpad + e);
		if (j < p.r0)
			k = *entry;
		else if (j < p.r1) {
			k = *(const uint4 *)((const T *)a.k + (row * a.k_heads + hk) * kpad + e);
			q = *(const uint4 *)((const T *)a.q + (row * a.q_heads + hq) * kpad + e);
			if (pos >= w.keep_from)
				*entry = k;
		}
		*(uint4 *)(s.k + j * s.ld + e) = k;
		*(uint4 *)(s.q + j * s.ld + e) = q;
	}
	if (a.vector)
		for (uint32_t i = n; i < Q * kpad; i += threads) {
			const uint32_t j = i / kpad, e = i % kpad, pos = p.from + j;
			float f = 1, *entry = ring_a + entry_of(a, w, p, j) * kpad + e;
			if (j < p.r0)
				f = *entry;
			else if (j < p.r1) {
				f = a.a[(row_of(w, p, j) * a.a_heads + ha) * kpad + e];
				if (pos >= w.keep_from)
					*entry = f;
			}
			s.av[i] = f;
		}
	if (n < Q) {
		const uint32_t pos = p.from + n;
		const size_t row = row_of(w, p, n), at = entry_of(a, w, p, n);
		const bool own = n >= p.r0 && n < p.r1;
		float f = 1, b = a.fixed_b;
		if (a.decays && !a.vector && n < p.r1)
			f = a.fixed_a ? a.fixed_a[w.head] : own ? a.a[row * a.a_heads + ha] : ring_a[at];
		if (own && a.b)
			b = a.b[row * a.heads + w.head];
		else if (!own && a.gain)
			b = n < p.r1 ? ring_b[at] : 0;
		if (own && pos >= w.keep_from) {
			if (a.decays && !a.vector && !a.fixed_a)
				ring_a[at] = f;
			if (a.gain)
				ring_b[at] = b;
		}
		s.a[n] = f;
		s.b[n] = b;
	}
	if (a.delta)
		for (uint32_t i = n; i < Q * Q; i += threads) {
			const uint32_t j = i / Q, c = i % Q;
			const float *entry = (const float *)(w.unit + a.unit.t) + entry_of(a, w, p, j) * Q;
			s.t[j * LDM + c] = j < p.r0 ? entry[c] : 0;
		}
}

/* Scores of rows r0 .. r1 - 1 with the chunk's keys, without decay, by tensor cores: to sq and sk.
 */
template <typename T, int P>
__device__ void scores(const recur_core &a, const part &p, const shared<T> &s)
{
	const uint32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31;
	const uint32_t g = lane >> 2, t = lane & 3;
	for (uint32_t tile = warp; tile < (a.delta ? 4 : 2); tile += warps) {
		const uint32_t row = tile % 2 * 8;
		float c[4] = {0, 0, 0, 0};
		if (row + 8 <= p.r0 || row >= p.r1)
			continue;
		for (uint32_t i = 0; i < a.kpad; i += 16)
			multiply(c, rows_a<P>(s.k, s.ld, i), rows_b<P>(tile < 2 ? s.q : s.k, s.ld, row, i));
		float *to = (tile < 2 ? s.sq : s.sk) + (row + 2 * t) * LDM;
		to[g] = c[0];
		to[LDM + g] = c[1];
		to[g + 8] = c[2];
		to[LDM + g + 8] = c[3];
	}
}

/* The same with vectors of factors: x_r is multiplied by those of token r, r - 1, .. on its way
 * down. A warp has a row. */
template <typename T>
__device__ void vector_scores(const recur_core &a, const part &p, const shared<T> &s)
{
	const uint32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31;
	constexpr uint32_t most = RECUR_MAX_KEYS / 32;
	for (uint32_t i = p.r0 + warp; i < p.r1; i += warps) {
		float q[most], k[most];
#pragma unroll
		for (uint32_t e = 0; e < most; e++) {
			const uint32_t at = e * 32 + lane;
			q[e] = at < a.kpad ? mx_to_float(s.q[i * s.ld + at]) : 0;
			k[e] = at < a.kpad ? mx_to_float(s.k[i * s.ld + at]) : 0;
		}
		for (int j = (int)i; j >= 0; j--) {
			float sq = 0, sk = 0;
#pragma unroll
			for (uint32_t e = 0; e < most; e++) {
				const uint32_t at = e * 32 + lane;
				if (at >= a.kpad)
					break;
				const float key = mx_to_float(s.k[j * s.ld + at]), f = s.av[j * a.kpad + at];
				sq = __fmaf_rn(q[e], key, sq);
				sk = __fmaf_rn(k[e], key, sk);
				q[e] = __fmul_rn(q[e], f);
				k[e] = __fmul_rn(k[e], f);
			}
			sq = warp_sum(sq);
			if (a.delta)
				sk = warp_sum(sk);
			if (lane == 0) {
				s.sq[i * LDM + j] = sq;
				s.sk[i * LDM + j] = sk;
			}
		}
#pragma unroll
		for (uint32_t e = 0; e < most; e++)
			if (e * 32 + lane < a.kpad) {
				s.wq[i * s.ld + e * 32 + lane] = mx_from_float<T>(q[e]);
				s.wk[i * s.ld + e * 32 + lane] = mx_from_float<T>(k[e]);
			}
	}
	if (p.whole)
		for (uint32_t e = threadIdx.x; e < a.kpad; e += blockDim.x) {
			float f = 1;
			for (int j = Q - 1; j >= 0; j--) {
				s.kd[j * s.ld + e] = mx_from_float<T>(__fmul_rn(mx_to_float(s.k[j * s.ld + e]), f));
				f = __fmul_rn(f, s.av[j * a.kpad + e]);
			}
			s.d[e] = f;
		}
}

/* Decays scores; entries above the diagonal, and for k on it, become zero. */
template <typename T>
__device__ void decay_scores(const recur_core &a, const part &p, const shared<T> &s)
{
	for (uint32_t i = threadIdx.x; i < Q * Q; i += blockDim.x) {
		const uint32_t r = i / Q, j = i % Q, at = r * LDM + j;
		const bool row = r >= p.r0 && r < p.r1;
		const float f = a.vector || !row || j > r ? 1 : product(s.a, (int)r, (int)j);
		s.sq[at] = row && j <= r ? __fmul_rn(s.sq[at], f) : 0;
		if (a.delta)
			s.sk[at] = row && j < r ? __fmul_rn(__fmul_rn(s.sk[at], f), s.b[r]) : 0;
	}
	if (threadIdx.x < Q) {
		s.gamma[threadIdx.x] = a.vector ? 1 : product(s.a, (int)threadIdx.x, -1);
		s.to_end[threadIdx.x] = a.vector ? 1 : product(s.a, Q - 1, (int)threadIdx.x);
	}
}

/* Rows r0 .. r1 - 1 of T = (1 + L)^-1 by substitution: a thread has a column. */
template <typename T>
__device__ void invert(const recur_core &a, const work &w, const part &p, const shared<T> &s)
{
	const uint32_t c = threadIdx.x;
	if (c >= Q)
		return;
	for (uint32_t r = p.r0; r < p.r1; r++) {
		float x = 0;
		for (uint32_t j = 0; j < r; j++)
			x = __fmaf_rn(s.sk[r * LDM + j], s.t[j * LDM + c], x);
		x = (r == c ? 1 : 0) - x;
		s.t[r * LDM + c] = x;
		if (p.from + r >= w.keep_from)
			((float *)(w.unit + a.unit.t))[entry_of(a, w, p, r) * Q + c] = x;
	}
}

/* M of rows r0 .. r1 - 1. */
template <typename T>
__device__ void weights(const recur_core &a, const work &w, const part &p, const shared<T> &s)
{
	for (uint32_t i = threadIdx.x; i < Q * Q; i += blockDim.x) {
		const uint32_t r = i / Q, c = i % Q;
		float x = 0;
		if (r >= p.r0 && r < p.r1 && c <= r) {
			if (a.delta)
				for (uint32_t j = c; j <= r; j++)
					x = __fmaf_rn(s.sq[r * LDM + j], s.t[j * LDM + c], x);
			else {
				x = a.gain ? __fmul_rn(s.sq[r * LDM + c], s.b[c]) : s.sq[r * LDM + c];
				if (a.skip && c == r)
					x += a.skip[w.head];
			}
		}
		s.m[r * LDM + c] = x;
	}
}

/* x of the chunk: from the ring, or computed from v and what S says of k, which is stored. */
template <typename T>
__device__ __forceinline__ void inputs(const recur_core &a, const work &w, const part &p,
                                       const shared<T> &s, uint32_t col, const float (&ck)[2][4],
                                       float (&x)[2][4])
{
	const uint32_t hv = shared_head(w.head, a.per_v);
	unsigned char *ring = w.unit + a.unit.x;
	each_of([&](int half, int i, uint32_t j, uint32_t c) {
		const uint32_t pos = p.from + j;
		const size_t at = entry_of(a, w, p, j) * a.unit.cols + col + c;
		float v = 0;
		if (j < p.r0)
			v = a.delta ? ((const float *)ring)[at] : mx_to_float(((const T *)ring)[at]);
		else if (j < p.r1) {
			const size_t from = (row_of(w, p, j) * a.v_heads + hv) * a.vpad;
			v = mx_to_float(((const T *)a.v)[from + w.col + col + c]);
			if (a.delta)
				v = __fmul_rn(s.b[j], __fmaf_rn(-s.gamma[j], ck[half][i], v));
			if (pos >= w.keep_from) {
				if (a.delta)
					((float *)ring)[at] = v;
				else
					((T *)ring)[at] = mx_from_float<T>(v);
			}
		}
		x[half][i] = v;
	});
}

template <typename T, int P, int KT>
__device__ __forceinline__ void run_chunk(const recur_core &a, const work &w, const part &p,
                                          const shared<T> &s, uint32_t warp,
                                          columns<T, P, KT> &state)
{
	constexpr int PX = P > 2 ? P : 2;
	const uint32_t col = warp * 16;
	float ck[2][4] = {}, cq[2][4] = {}, x[2][4];
	if (p.r0 < p.r1)
		state.meet(s, p, a.delta, ck, cq);
	inputs(a, w, p, s, col, ck, x);
	if (p.r0 < p.r1) {
		const operand_a<PX> at = sums_a<PX>(x);
		each_of([&](int half, int i, uint32_t j, uint32_t) { cq[half][i] *= s.gamma[j]; });
		multiply(cq[0], at, rows_b<PX>(s.m, LDM, 0, 0));
		multiply(cq[1], at, rows_b<PX>(s.m, LDM, 8, 0));
		each_of([&](int half, int i, uint32_t j, uint32_t c) {
			const uint32_t to = w.col + col + c;
			if (j >= p.r0 && j < p.r1 && to < a.v_dim)
				a.y[(row_of(w, p, j) * a.heads + w.head) * a.v_dim + to] = cq[half][i];
		});
	}
	if (!p.whole)
		return;
	if (a.delta) {
		const operand_a<PX> at = sums_a<PX>(x);
		float u[2][4] = {};
		multiply(u[0], at, rows_b<PX>(s.t, LDM, 0, 0));
		multiply(u[1], at, rows_b<PX>(s.t, LDM, 8, 0));
		each_of([&](int half, int i, uint32_t, uint32_t) { x[half][i] = u[half][i]; });
	}
	if (!a.vector || a.gain)
		each_of([&](int half, int i, uint32_t j, uint32_t) {
			x[half][i] *= a.gain ? s.to_end[j] * s.b[j] : s.to_end[j];
		});
	state.fold(s, a.vector, s.to_end[0] * s.a[0], x);
}

} // namespace

#endif
