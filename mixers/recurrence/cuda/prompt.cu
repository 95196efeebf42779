/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of long spans, bf16: the arithmetic of chunk.cu, divided so that little is left to
 * do one chunk after the other.
 *
 *     prepare   what a chunk's tokens are to each other (T, M, products of factors): all chunks of
 *               all heads at once, a warp each, to records in scratch
 *     chain     S through the chunks; a warp has 16 columns, a block two such, and copies of the
 *               next chunks' operands are on their way
 *     keep      what the units of the heads keep: several blocks of chain share a unit
 */
#include "mixers/recurrence/cuda/chunk.cuh"

#define WARPS  4 /* of a block of prepare */
#define PAIR   2 /* warps of a block of chain */
#define STAGES 3

namespace
{

typedef __nv_bfloat16 T;

/* What prepare writes of a chunk of a head. With vectors of factors wk, wq and kd follow, act
 * [Q][kpad] each, and d, f32 [kpad]. */
struct record {
	float m[Q * LDM], t[Q * LDM];
	float gamma[Q], to_end[Q], b[Q]; /* to_end is multiplied by the gain */
	float d, pad[15];
};

__host__ __device__ __forceinline__ size_t record_bytes(uint32_t kpad, bool vector)
{
	return sizeof(record) + (vector ? 3 * Q * kpad * sizeof(T) + kpad * sizeof(float) : 0);
}

__device__ __forceinline__ bool is_long(const mx_device_span &s)
{
	return s.n >= RECUR_LONG && s.kind != MX_SPAN_DRAFT;
}

/* The first record of a span; a span of n tokens has room for those of its chunks. */
__device__ __forceinline__ uint32_t first_record(const recur_core &a, const mx_device_span &s,
                                                 uint32_t span)
{
	return s.row / Q + span * a.extra_chunks;
}

__device__ __forceinline__ unsigned char *record_at(const recur_core &a, uint32_t n, uint32_t head)
{
	return (unsigned char *)a.records +
	       ((size_t)n * a.heads + head) * record_bytes(a.kpad, a.vector);
}

/* A chunk of a long span: of its unit only the border and rings are read. */
__device__ __forceinline__ bool find(const recur_core &a, const mx_device_span &span, uint32_t head,
                                     uint32_t n, work *w, part *p)
{
	w->head = head, w->row = span.row, w->pos = span.pos, w->end = span.pos + span.n;
	w->unit = a.step.slot_base + span.slot * a.step.slot_stride +
	          (size_t)head * a.unit.per_head * a.unit.bytes;
	const uint32_t border = *(const volatile uint32_t *)w->unit, at = border + n * Q;
	if (at >= w->end)
		return false;
	p->from = at;
	p->r0 = span.pos > at ? span.pos - at : 0;
	p->r0 = p->r0 < Q ? p->r0 : Q;
	p->whole = at + Q < w->end;
	p->r1 = p->whole ? Q : w->end - at;
	return true;
}

/* Row j of the chunk's keys or NULL if there is none. */
__device__ __forceinline__ const T *key_row(const recur_core &a, const work &w, const part &p,
                                            uint32_t j)
{
	const uint32_t hk = shared_head(w.head, a.per_k);
	if (j < p.r0)
		return (const T *)(w.unit + a.unit.k) + (size_t)(ring_of(a, p.from) + j) * a.kpad;
	if (j >= p.r1)
		return NULL;
	return (const T *)a.k + ((size_t)(w.row + (p.from + j - w.pos)) * a.k_heads + hk) * a.kpad;
}

__device__ __forceinline__ const T *query_row(const recur_core &a, const work &w, const part &p,
                                              uint32_t j)
{
	const uint32_t hq = shared_head(w.head, a.per_q);
	if (j < p.r0 || j >= p.r1)
		return NULL;
	return (const T *)a.q + ((size_t)(w.row + (p.from + j - w.pos)) * a.q_heads + hq) * a.kpad;
}

__device__ __forceinline__ uint32_t two_of(const T *row, uint32_t at)
{
	return row ? *(const uint32_t *)(row + at) : 0;
}

/* ---- prepare ---- */

/* What a warp of prepare has in shared memory. */
struct mine {
	float sq[Q * LDM], sk[Q * LDM];
	float a[Q], b[Q], gamma[Q], to_end[Q];
};

/* Scores without decay. The rows of k are operand A and, as columns, operand B. */
__device__ __forceinline__ void all_scores(const recur_core &a, const work &w, const part &p,
                                           mine &s)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
	const T *k0 = key_row(a, w, p, g), *k1 = key_row(a, w, p, g + 8);
	const T *q0 = query_row(a, w, p, g), *q1 = query_row(a, w, p, g + 8);
	float c[4][4] = {};
#pragma unroll 4
	for (uint32_t i = 2 * t; i < a.kpad; i += 16) {
		const uint32_t at[4] = {two_of(k0, i), two_of(k1, i), two_of(k0, i + 8), two_of(k1, i + 8)};
		const uint32_t b0[2] = {two_of(q0, i), two_of(q0, i + 8)};
		const uint32_t b1[2] = {two_of(q1, i), two_of(q1, i + 8)};
		mma(c[0], at, b0);
		mma(c[1], at, b1);
		if (a.delta) {
			const uint32_t b2[2] = {at[0], at[2]}, b3[2] = {at[1], at[3]};
			mma(c[2], at, b2);
			mma(c[3], at, b3);
		}
	}
#pragma unroll
	for (int tile = 0; tile < 4; tile++) {
		float *to = (tile < 2 ? s.sq : s.sk) + (tile % 2 * 8 + 2 * t) * LDM + g;
		to[0] = c[tile][0], to[LDM] = c[tile][1];
		to[8] = c[tile][2], to[LDM + 8] = c[tile][3];
	}
}

/* The same with vectors of factors, with what goes to the border and to the chunk's end. */
__device__ void all_vector_scores(const recur_core &a, const work &w, const part &p, mine &s,
                                  unsigned char *more)
{
	const uint32_t lane = threadIdx.x & 31, each = a.kpad / 32;
	const uint32_t ha = shared_head(w.head, a.per_a);
	T *wk = (T *)more, *wq = wk + Q * a.kpad, *kd = wq + Q * a.kpad;
	float *d = (float *)(kd + Q * a.kpad);
	const float *ring = (const float *)(w.unit + a.unit.a) + (size_t)(ring_of(a, p.from)) * a.kpad;
	const float *own = a.a + (((int64_t)w.row + p.from - w.pos) * a.a_heads + ha) * a.kpad;
	const size_t ld = (size_t)a.a_heads * a.kpad;
	constexpr uint32_t most = RECUR_MAX_KEYS / 32;
	for (uint32_t r = p.r0; r < p.r1; r++) {
		const T *q_row = query_row(a, w, p, r), *k_row = key_row(a, w, p, r);
		float q[most], k[most];
#pragma unroll
		for (uint32_t e = 0; e < most; e++)
			if (e < each) {
				q[e] = __bfloat162float(q_row[e * 32 + lane]);
				k[e] = __bfloat162float(k_row[e * 32 + lane]);
			}
		for (int j = (int)r; j >= 0; j--) {
			const T *key = key_row(a, w, p, j);
			const float *f = j < (int)p.r0 ? ring + (size_t)j * a.kpad : own + j * ld;
			float sq = 0, sk = 0;
#pragma unroll
			for (uint32_t e = 0; e < most; e++)
				if (e < each) {
					const float x = __bfloat162float(key[e * 32 + lane]);
					sq = __fmaf_rn(q[e], x, sq);
					sk = __fmaf_rn(k[e], x, sk);
					q[e] = __fmul_rn(q[e], f[e * 32 + lane]);
					k[e] = __fmul_rn(k[e], f[e * 32 + lane]);
				}
			sq = warp_sum(sq);
			if (a.delta)
				sk = warp_sum(sk);
			if (lane == 0)
				s.sq[r * LDM + j] = sq, s.sk[r * LDM + j] = sk;
		}
#pragma unroll
		for (uint32_t e = 0; e < most; e++)
			if (e < each) {
				wq[r * a.kpad + e * 32 + lane] = __float2bfloat16_rn(q[e]);
				wk[r * a.kpad + e * 32 + lane] = __float2bfloat16_rn(k[e]);
			}
	}
	/* rows that are not computed are operands too */
	for (uint32_t i = lane; i < Q * a.kpad; i += 32)
		if (i / a.kpad < p.r0 || i / a.kpad >= p.r1)
			wk[i] = wq[i] = __float2bfloat16_rn(0);
	if (p.whole)
		for (uint32_t e = lane; e < a.kpad; e += 32) {
			float f = 1;
			for (int j = Q - 1; j >= 0; j--) {
				kd[j * a.kpad + e] =
					__float2bfloat16_rn(__fmul_rn(__bfloat162float(key_row(a, w, p, j)[e]), f));
				f = __fmul_rn(f, j < (int)p.r0 ? ring[(size_t)j * a.kpad + e] : own[j * ld + e]);
			}
			d[e] = f;
		}
}

/* Decays the rows of scores; lane r has row r, lane 15 the products to the chunk's end. */
__device__ __forceinline__ void decay_rows(const recur_core &a, const part &p, mine &s)
{
	const uint32_t r = threadIdx.x & 31;
	if (r >= Q)
		return;
	const bool row = r >= p.r0 && r < p.r1;
	const float b = s.b[r];
	float f = 1;
	for (int j = Q - 1; j >= 0; j--) {
		const bool sees = row && j <= (int)r, past = row && j < (int)r;
		float *q = s.sq + r * LDM + j, *k = s.sk + r * LDM + j;
		*q = sees ? __fmul_rn(*q, f) : 0;
		if (a.delta)
			*k = past ? __fmul_rn(__fmul_rn(*k, f), b) : 0;
		if (r == Q - 1)
			s.to_end[j] = f;
		if (!a.vector && j <= (int)r)
			f = __fmul_rn(f, s.a[j]);
	}
	s.gamma[r] = f;
}

/* T and M; both halves of the warp have the columns of T, and every other row of M. */
__device__ __forceinline__ void solve(const recur_core &a, const work &w, const part &p, mine &s,
                                      record *out)
{
	const uint32_t lane = threadIdx.x & 31, c = lane & 15;
	const float *ring = (const float *)(w.unit + a.unit.t) + (size_t)(ring_of(a, p.from)) * Q + c;
	float t[Q];
	if (a.delta) {
#pragma unroll
		for (uint32_t r = 0; r < Q; r++) {
			float x = 0;
#pragma unroll
			for (uint32_t j = 0; j < r; j++)
				x = __fmaf_rn(s.sk[r * LDM + j], t[j], x);
			t[r] = (r == c ? 1 : 0) - x;
			if (r < p.r0)
				t[r] = ring[r * Q];
			if (r >= p.r1)
				t[r] = 0;
			if (lane < Q)
				out->t[r * LDM + c] = t[r];
		}
	}
	for (uint32_t r = lane >> 4; r < Q; r += 2) {
		float x = 0;
		if (a.delta) {
#pragma unroll
			for (uint32_t j = 0; j < Q; j++)
				x = __fmaf_rn(s.sq[r * LDM + j], t[j], x);
		} else {
			x = a.gain ? __fmul_rn(s.sq[r * LDM + c], s.b[c]) : s.sq[r * LDM + c];
			if (a.skip && c == r && r >= p.r0 && r < p.r1)
				x += a.skip[w.head];
		}
		out->m[r * LDM + c] = x;
	}
}

/* Factors and beta of the chunk's tokens. */
__device__ __forceinline__ void take_numbers(const recur_core &a, const work &w, const part &p,
                                             mine &s)
{
	const uint32_t n = threadIdx.x & 31;
	if (n >= Q)
		return;
	const size_t row = w.row + (p.from + n - w.pos), entry = ring_of(a, p.from) + n;
	const bool old = n < p.r0, own = n >= p.r0 && n < p.r1;
	float f = 1, b = a.fixed_b;
	if (a.decays && !a.vector && n < p.r1)
		f = a.fixed_a ? a.fixed_a[w.head]
		    : own     ? a.a[row * a.a_heads + shared_head(w.head, a.per_a)]
		              : ((const float *)(w.unit + a.unit.a))[entry];
	if (own && a.b)
		b = a.b[row * a.heads + w.head];
	else if (!own && a.gain)
		b = old ? ((const float *)(w.unit + a.unit.b))[entry] : 0;
	s.a[n] = f;
	s.b[n] = b;
}

__global__ void __launch_bounds__(WARPS * 32) prepare(const recur_core a)
{
	__shared__ mine all[WARPS];
	const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockIdx.y;
	const uint32_t head = blockIdx.x * WARPS + warp;
	uint32_t low = 0, high = a.step.n_spans; /* the last span whose records begin at n or before */
	mx_pdl_launch();
	mx_pdl_wait();
	while (high - low > 1) {
		const uint32_t mid = (low + high) / 2;
		if (first_record(a, a.step.spans[mid], mid) <= n)
			low = mid;
		else
			high = mid;
	}
	const mx_device_span span = a.step.spans[low];
	const uint32_t first = first_record(a, span, low);
	work w;
	part p;
	mine &s = all[warp];
	if (head >= a.heads || n < first || !is_long(span) || !find(a, span, head, n - first, &w, &p))
		return;
	record *out = (record *)record_at(a, n, head);
	take_numbers(a, w, p, s);
	if (a.vector)
		all_vector_scores(a, w, p, s, (unsigned char *)(out + 1));
	else
		all_scores(a, w, p, s);
	__syncwarp();
	decay_rows(a, p, s);
	__syncwarp();
	solve(a, w, p, s, out);
	if (lane < Q) {
		out->gamma[lane] = s.gamma[lane];
		out->to_end[lane] = a.gain ? s.to_end[lane] * s.b[lane] : s.to_end[lane];
		out->b[lane] = s.b[lane];
		if (lane == 0)
			out->d = s.to_end[0] * s.a[0];
	}
}

/* ---- chain ---- */

/* A stage of operands in shared memory. */
struct stage : operands<T> {
	record *rec;
	T *v; /* [Q][PAIR * 16 + 8] */
};

#define LDV (PAIR * 16 + 8)

__host__ __device__ __forceinline__ size_t stage_at(unsigned char *base, uint32_t kpad, bool vector,
                                                    stage *out)
{
	const uint32_t ld = kpad + 8;
	const size_t tile = Q * ld * sizeof(T);
	size_t at = 0;
	stage s;
	s.ld = ld;
	s.rec = (record *)(base + at), at += sizeof(record);
	s.v = (T *)(base + at), at += Q * LDV * sizeof(T);
	s.wk = (T *)(base + at), at += tile;
	s.wq = (T *)(base + at), at += tile;
	s.kd = s.wk;
	s.d = NULL;
	if (vector) {
		s.kd = (T *)(base + at), at += tile;
		s.d = (float *)(base + at), at += kpad * sizeof(float);
	}
	if (out)
		*out = s;
	return at;
}

/* Where a block's operands come from: rows of the step by position, earlier ones from a ring. */
struct origin {
	const T *k, *q, *v, *ring;
	size_t ld_k, ld_q, ld_v;
	const unsigned char *records;
	size_t ld_record;
	uint32_t v_parts; /* of 16 bytes that there are */
};

__device__ __forceinline__ origin origin_of(const recur_core &a, const work &w, uint32_t first,
                                            uint32_t col)
{
	const int64_t row = (int64_t)w.row - w.pos; /* of position 0 */
	origin o;
	o.ld_k = (size_t)a.k_heads * a.kpad;
	o.ld_q = (size_t)a.q_heads * a.kpad;
	o.ld_v = (size_t)a.v_heads * a.vpad;
	o.k = (const T *)a.k + row * (int64_t)o.ld_k + shared_head(w.head, a.per_k) * a.kpad;
	o.q = (const T *)a.q + row * (int64_t)o.ld_q + shared_head(w.head, a.per_q) * a.kpad;
	o.v = (const T *)a.v + row * (int64_t)o.ld_v + shared_head(w.head, a.per_v) * a.vpad + col;
	o.ring = (const T *)(w.unit + a.unit.k);
	o.ld_record = a.heads * record_bytes(a.kpad, a.vector);
	o.records = record_at(a, first, w.head);
	o.v_parts = (a.vpad - col) / 8;
	return o;
}

/* Begins the copies of a chunk; one group of them. */
template <int KT>
__device__ __forceinline__ void fetch(const recur_core &a, const origin &o, const part &p,
                                      uint32_t n, const stage &s)
{
	constexpr uint32_t parts = KT * 2, kpad = KT * 16;
	const unsigned char *rec = o.records + n * o.ld_record;
	const T *wide = (const T *)(rec + sizeof(record));
	const uint32_t first = p.r0 ? ring_of(a, p.from) : 0;
	for (uint32_t i = threadIdx.x; i < sizeof(record) / 16; i += PAIR * 32)
		copy16((uint4 *)s.rec + i, (const uint4 *)rec + i);
#pragma unroll
	for (uint32_t i = threadIdx.x; i < Q * PAIR * 2; i += PAIR * 32) {
		const uint32_t j = i / (PAIR * 2), e = i % (PAIR * 2);
		const bool own = j >= p.r0 && j < p.r1 && e < o.v_parts;
		copy16(s.v + j * LDV + e * 8, own ? o.v + (p.from + j) * o.ld_v + e * 8 : NULL);
	}
#pragma unroll
	for (uint32_t i = threadIdx.x; i < Q * parts; i += PAIR * 32) {
		const uint32_t j = i / parts, e = i % parts * 8;
		if (a.vector) {
			if (a.delta)
				copy16(s.wk + j * s.ld + e, wide + j * kpad + e);
			copy16(s.wq + j * s.ld + e, wide + (Q + j) * kpad + e);
			copy16(s.kd + j * s.ld + e, p.whole ? wide + (2 * Q + j) * kpad + e : NULL);
			continue;
		}
		const bool own = j >= p.r0 && j < p.r1;
		const T *k = own ? o.k + (p.from + j) * o.ld_k + e : NULL;
		copy16(s.wk + j * s.ld + e, j < p.r0 ? o.ring + (first + j) * kpad + e : k);
		copy16(s.wq + j * s.ld + e, own ? o.q + (p.from + j) * o.ld_q + e : NULL);
	}
	if (a.vector && p.whole)
		for (uint32_t i = threadIdx.x; i < kpad / 4; i += PAIR * 32)
			copy16(s.d + 4 * i, (const float *)(wide + 3 * Q * kpad) + 4 * i);
}

/* x of a chunk: v and what S says of k, or the ring's; new ones from `keep` on go to the ring. */
__device__ __forceinline__ void chain_inputs(const recur_core &a, const work &w, const part &p,
                                             const stage &s, uint32_t warp, uint32_t col,
                                             const float (&ck)[2][4], float (&x)[2][4])
{
	unsigned char *ring = w.unit + a.unit.x;
	size_t first = 0;
	if (p.r0 || p.from + Q > w.keep_from)
		first = (size_t)(ring_of(a, p.from)) * a.unit.cols + col;
	each_of([&](int half, int i, uint32_t j, uint32_t c) {
		float v = __bfloat162float(s.v[j * LDV + warp * 16 + c]);
		if (a.delta)
			v = __fmul_rn(s.rec->b[j], __fmaf_rn(-s.rec->gamma[j], ck[half][i], v));
		x[half][i] = j >= p.r0 && j < p.r1 ? v : 0;
	});
	if (p.r0)
		each_of([&](int half, int i, uint32_t j, uint32_t c) {
			const size_t at = first + j * a.unit.cols + c;
			if (j < p.r0)
				x[half][i] =
					a.delta ? ((const float *)ring)[at] : __bfloat162float(((const T *)ring)[at]);
		});
	if (p.from + Q > w.keep_from)
		each_of([&](int half, int i, uint32_t j, uint32_t c) {
			const size_t at = first + j * a.unit.cols + c;
			if (j < p.r0 || j >= p.r1 || p.from + j < w.keep_from)
				return;
			if (a.delta)
				((float *)ring)[at] = x[half][i];
			else
				((T *)ring)[at] = __float2bfloat16_rn(x[half][i]);
		});
}

template <int KT>
__device__ __forceinline__ void chain_chunk(const recur_core &a, const work &w, const part &p,
                                            const stage &s, uint32_t warp, uint32_t col,
                                            columns<T, 1, KT> &state)
{
	float ck[2][4] = {}, cq[2][4] = {}, x[2][4];
	if (p.r0 < p.r1)
		state.meet(s, p, a.delta, ck, cq);
	chain_inputs(a, w, p, s, warp, col, ck, x);
	const operand_a<2> at = sums_a<2>(x);
	if (p.whole) {
		if (a.delta) {
			float u[2][4] = {};
			multiply(u[0], at, rows_b<2>(s.rec->t, LDM, 0, 0));
			multiply(u[1], at, rows_b<2>(s.rec->t, LDM, 8, 0));
			each_of([&](int half, int i, uint32_t, uint32_t) { x[half][i] = u[half][i]; });
		}
		if (!a.vector || a.gain)
			each_of([&](int half, int i, uint32_t j, uint32_t) { x[half][i] *= s.rec->to_end[j]; });
		state.fold(s, a.vector, s.rec->d, x);
	}
	if (p.r0 >= p.r1)
		return;
	each_of([&](int half, int i, uint32_t j, uint32_t) { cq[half][i] *= s.rec->gamma[j]; });
	multiply(cq[0], at, rows_b<2>(s.rec->m, LDM, 0, 0));
	multiply(cq[1], at, rows_b<2>(s.rec->m, LDM, 8, 0));
	/* the chunk may begin before the span, and so before y */
	float *y = a.y + (((int64_t)w.row + p.from - w.pos) * a.heads + w.head) * a.v_dim;
	each_of([&](int half, int i, uint32_t j, uint32_t c) {
		if (j >= p.r0 && j < p.r1 && w.col + col + c < a.v_dim)
			y[(size_t)j * a.heads * a.v_dim + w.col + col + c] = cq[half][i];
	});
}

template <int KT> __global__ void __launch_bounds__(PAIR * 32) chain(const recur_core a)
{
	extern __shared__ __align__(16) unsigned char memory[];
	const mx_device_span span = a.step.spans[blockIdx.y];
	const uint32_t warp = threadIdx.x >> 5, pairs = (a.unit.cols + PAIR * 16 - 1) / (PAIR * 16);
	const uint32_t unit = blockIdx.x / pairs, pair = blockIdx.x % pairs;
	const uint32_t col = pair * PAIR * 16 + warp * 16; /* of the unit */
	const bool works = col < a.unit.cols;
	const size_t size = stage_at(NULL, a.kpad, a.vector, NULL);
	mx_pdl_launch();
	if (!is_long(span)) {
		mx_pdl_wait();
		return;
	}
	work w;
	columns<T, 1, KT> state;
	w.head = unit / a.unit.per_head;
	w.col = unit % a.unit.per_head * a.unit.cols;
	w.row = span.row, w.pos = span.pos, w.end = span.pos + span.n;
	w.unit = a.step.slot_base + span.slot * a.step.slot_stride + unit * a.unit.bytes;
	const uint32_t border = *(const volatile uint32_t *)w.unit;
	const uint32_t next = border_after(span, border, Q), n = (w.end - border + Q - 1) / Q;
	w.keep_from = next > span.pos ? next : span.pos;
	if (works)
		state.read(a, w, col / 16);
	mx_pdl_wait();
	const uint32_t first = first_record(a, span, blockIdx.y);
	const origin o = origin_of(a, w, first, w.col + pair * PAIR * 16);
	const auto part_of = [&](uint32_t i) {
		const uint32_t at = border + i * Q;
		part p = {at, span.pos > at ? span.pos - at : 0, 0, at + Q < w.end};
		p.r0 = p.r0 < Q ? p.r0 : Q;
		p.r1 = p.whole ? Q : w.end - at;
		return p;
	};
	const auto fetch_part = [&](uint32_t i) {
		stage s;
		stage_at(memory + i % STAGES * size, a.kpad, a.vector, &s);
		if (i < n)
			fetch<KT>(a, o, part_of(i), i, s);
		asm volatile("cp.async.commit_group;" ::: "memory");
	};
	for (uint32_t i = 0; i < STAGES - 1; i++)
		fetch_part(i);
	for (uint32_t i = 0; i < n; i++) {
		asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
		__syncthreads(); /* the chunk is there, and the one before has been used */
		fetch_part(i + STAGES - 1);
		stage s;
		stage_at(memory + i % STAGES * size, a.kpad, a.vector, &s);
		const part p = part_of(i);
		if (!works)
			continue;
		if (p.from == next && p.from > border)
			state.write(a, w, col / 16);
		chain_chunk(a, w, p, s, warp, col, state);
	}
}

/* ---- keep ---- */

__global__ void __launch_bounds__(Q * 32) keep(const recur_core a)
{
	const mx_device_span span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	mx_pdl_wait();
	if (!is_long(span))
		return;
	unsigned char *unit =
		a.step.slot_base + span.slot * a.step.slot_stride + blockIdx.x * a.unit.bytes;
	const uint32_t head = shared_head(blockIdx.x, a.per_unit), parts = a.kpad / 8;
	const uint32_t border = *(const volatile uint32_t *)unit, next = border_after(span, border, Q);
	const uint32_t end = span.pos + span.n, from = next > span.pos ? next : span.pos;
	const uint32_t hk = shared_head(head, a.per_k);
	const uint32_t ha = a.decays ? shared_head(head, a.per_a) : 0;
	const uint32_t lane = threadIdx.x & 31;
	__syncthreads(); /* every thread has read the border */
	for (uint32_t pos = from + (threadIdx.x >> 5); pos < end; pos += Q) { /* a warp has a token */
		const size_t row = span.row + (pos - span.pos), entry = pos % a.unit.cap;
		const record *rec = (const record *)record_at(
			a, first_record(a, span, blockIdx.y) + (pos - border) / Q, head);
		for (uint32_t i = lane; i < parts; i += 32)
			((uint4 *)(unit + a.unit.k))[entry * parts + i] =
				((const uint4 *)a.k)[(row * a.k_heads + hk) * parts + i];
		if (a.vector)
			for (uint32_t i = lane; i < a.kpad; i += 32)
				((float *)(unit + a.unit.a))[entry * a.kpad + i] =
					a.a[(row * a.a_heads + ha) * a.kpad + i];
		if (a.delta && lane < Q)
			((float *)(unit + a.unit.t))[entry * Q + lane] = rec->t[pos % Q * LDM + lane];
		if (lane == 0 && a.decays && !a.vector && !a.fixed_a)
			((float *)(unit + a.unit.a))[entry] = a.a[row * a.a_heads + ha];
		if (lane == 0 && a.gain)
			((float *)(unit + a.unit.b))[entry] = a.b[row * a.heads + head];
	}
	if (threadIdx.x == 0)
		*(uint32_t *)unit = next;
	keep_inputs<T>(a, span);
}

template <int KT> cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	const uint32_t pairs = (a.unit.cols + PAIR * 16 - 1) / (PAIR * 16);
	const uint32_t units = a.heads * a.unit.per_head;
	cudaError_t e = mx_launch(prepare, dim3((a.heads + WARPS - 1) / WARPS, a.n_records),
	                          dim3(WARPS * 32), 0, stream, a);
	if (e == cudaSuccess)
		e = mx_launch(chain<KT>, dim3(units * pairs, a.step.n_spans), dim3(PAIR * 32),
		              STAGES * stage_at(NULL, a.kpad, a.vector, NULL), stream, a);
	if (e == cudaSuccess)
		e = mx_launch(keep, dim3(units, a.step.n_spans), dim3(Q * 32), 0, stream, a);
	return e;
}

template <int KT> cudaError_t opt_in(uint32_t kpad)
{
	return cudaFuncSetAttribute(chain<KT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)(STAGES * stage_at(NULL, kpad, true, NULL)));
}

} // namespace

cudaError_t recur_cuda_prompt(cudaStream_t stream, const struct recur_core *a)
{
	switch (a->kpad) {
	case 32: return launch<2>(stream, *a);
	case 64: return launch<4>(stream, *a);
	case 128: return launch<8>(stream, *a);
	case 256: return launch<16>(stream, *a);
	default: return cudaErrorInvalidValue;
	}
}

cudaError_t recur_cuda_prompt_prepare(uint32_t kpad)
{
	switch (kpad) {
	case 32: return opt_in<2>(kpad);
	case 64: return opt_in<4>(kpad);
	case 128: return opt_in<8>(kpad);
	case 256: return opt_in<16>(kpad);
	default: return cudaErrorInvalidValue;
	}
}

size_t recur_cuda_record_bytes(uint32_t kpad, bool vector)
{
	return record_bytes(kpad, vector);
}
