/* SPDX-License-Identifier: Apache-2.0 */
/* A step of few tokens (few.cu): its shared memory; the rows' own k, q, v, factors and beta. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_FEW_CUH
#define MX_MIXERS_RECURRENCE_CUDA_FEW_CUH

#include "mixers/recurrence/cuda/own.cuh"

#define ROWS 4                /* most rows of a part */
#define LDY  (RECUR_UNIT + 4) /* elements between rows of v and y in shared memory */

namespace
{

/* A part of a span: rows of one chunk, which a unit computes together. n: rows of the part; row,
 * pos: of its first. */
struct part_place : place {
	uint32_t begin, total; /* the span's first position and rows; total 0: not computed here */
	uint32_t offset;       /* the part's first row in the span */
	uint32_t border;       /* of S in shared memory when the part begins */
};

/* Shared memory of a block; as of step.cu, for several rows. */
template <int KT, bool VECTOR> struct few_board {
	static constexpr uint32_t kpad = KT * 16, ld = kpad + 8, vectors = VECTOR ? 1 : 0;
	uint64_t arrived[RECUR_UNIT / 16 / TILES]; /* S of each warp */
	part_place places[3];                      /* the last part's, this one's, the next one's */
	alignas(16) float beta[ROWS], gamma[ROWS]; /* from here on members are multiples of 16 bytes */
	float m[ROWS * Q];                         /* rows of M */
	/* scores of k and q with the chunk's keys, [token][row]; later L and what M is made of */
	alignas(16) float sk[Q * ROWS], sq[Q * ROWS];
	float a[Q], b[Q], end[Q]; /* of a whole chunk: factor, gain, product of the factors after it */
	float t[Q * LDM];
	float y[ROWS * LDY];
	T k[Q * ld], q[ROWS * ld], v[ROWS * LDY]; /* [Q][ld] keys of the chunk's tokens */
	T wk[vectors * ROWS * ld + 8], wq[vectors * ROWS * ld + 8]; /* k and q, decayed to the border */
	float av[vectors * Q * kpad + 4], d[vectors * kpad + 4];
	alignas(128) uint4 S[8]; /* the first of its high halves, as in struct board */
};

template <int KT, bool VECTOR> constexpr size_t few_bytes(uint32_t cols)
{
	typedef few_board<KT, VECTOR> whole;
	return sizeof(whole) - sizeof(whole::S) + (size_t)cols * KT * 16 * sizeof(T);
}

/* Rows `offset` .. of unit number u of all spans, as many as belong to one chunk; behind a part of
 * the chunk at `border`, if it is not the span's first. */
__device__ __forceinline__ part_place part_of(const one_args &a, uint32_t u, uint32_t offset,
                                              uint32_t border)
{
	part_place p;
	(place &)p = place_of(a, u);
	const bool tree = a.trees && p.n > 1 && p.parents;
	p.begin = p.pos, p.total = p.n <= a.few && !tree ? p.n : 0, p.offset = offset;
	p.row += offset, p.pos += offset;
	p.from = p.pos / Q * Q, p.r = p.pos - p.from;
	p.first = entry_of(a, p.from), p.entry = p.first + p.r;
	const uint32_t left = p.total > offset ? p.total - offset : 0;
	const uint32_t most = Q - p.r < ROWS ? Q - p.r : ROWS;
	p.n = left < most ? left : most;
	p.border = offset ? border : p.n ? *(const volatile uint32_t *)p.unit : 0;
	return p;
}

/* Begins to bring the lines of what rows after the first are made of. By the row's warp. */
__device__ __forceinline__ void later_numbers_near(const one_args &a, const place &w)
{
	const uint32_t lane = threadIdx.x & 31, row = 1 + lane / 4, what = lane % 4;
	const one_stream &sa = a.streams[ONE_A], &sb = a.streams[ONE_BETA];
	if (row >= w.n)
		return;
	const float *gates = a.gates + (size_t)(w.row + row) * a.ld_gates;
	const T *proj = a.proj + (size_t)(w.row + row) * a.ld_proj;
	if (what == 0 && a.has_beta)
		line_near(gates + number_at(sb, w.head));
	else if (what == 1 && sa.there && !sa.dim)
		line_near(gates + number_at(sa, shared_head(w.head, sa.shared)));
	else if (what > 1 && a.finish && a.streams[ONE_GATE].there && (what - 2) * 64 < a.norm.dim)
		line_near(proj + a.streams[ONE_GATE].at + w.head * a.norm.dim + (what - 2) * 64);
}

/* The same of a stream's elements, by the stream's warp. */
__device__ __forceinline__ void later_parts_near(const one_args &a, uint32_t job, const place &w)
{
	const one_stream &s = a.streams[job];
	const uint32_t head = shared_head(w.head, s.shared), h = shared_head(head, s.per);
	const uint32_t i = (job == ONE_V ? w.col : 0) + (threadIdx.x & 31) * 4;
	const uint32_t at = s.at + h * s.stride + (head - h * s.n) * s.dim + i;
	if (i >= s.dim)
		return;
	for (uint32_t row = w.row + 1; row < w.row + w.n; row++)
		if (s.gates)
			line_near(a.gates + (size_t)row * a.ld_gates + at);
		else
			line_near(a.proj + (size_t)row * a.ld_proj + at);
}

template <int KT, bool VECTOR>
__device__ __forceinline__ void share_key(const one_args &a, const place &w,
                                          few_board<KT, VECTOR> &s, uint32_t row, uint32_t i,
                                          uint2 k)
{
	*(uint2 *)(s.k + (w.r + row) * s.ld + i) = k;
	*(uint2 *)((T *)(w.unit + a.unit.k) + (w.entry + row) * s.kpad + i) = k;
}

/* ---- elements that another kernel computed ---- */

template <int KT, bool VECTOR>
__device__ __forceinline__ void load_own(const one_args &p, const recur_core &a, const place &w,
                                         few_board<KT, VECTOR> &s)
{
	constexpr uint32_t parts = KT * 4; /* of 4 elements of a key */
	const uint32_t cols = a.unit.cols / 4;
	for (uint32_t i = threadIdx.x; i < w.n * parts; i += blockDim.x) {
		const uint32_t n = i / parts, e = i % parts * 4;
		const size_t row = w.row + n;
		const T *k = (const T *)a.k + (row * a.k_heads + shared_head(w.head, a.per_k)) * s.kpad;
		const T *q = (const T *)a.q + (row * a.q_heads + shared_head(w.head, a.per_q)) * s.kpad;
		const uint2 of_k = *(const uint2 *)(k + e), of_q = *(const uint2 *)(q + e);
		share_key(p, w, s, n, e, of_k);
		*(uint2 *)(s.q + n * s.ld + e) = of_q;
	}
	for (uint32_t i = threadIdx.x; i < w.n * cols; i += blockDim.x) {
		const uint32_t n = i / cols, e = i % cols * 4;
		const size_t row = w.row + n;
		const T *v = (const T *)a.v + (row * a.v_heads + shared_head(w.head, a.per_v)) * a.vpad;
		*(uint2 *)(s.v + n * LDY + e) = *(const uint2 *)(v + w.col + e);
	}
	if (VECTOR)
		for (uint32_t i = threadIdx.x; i < w.n * s.kpad; i += blockDim.x) {
			const uint32_t n = i / s.kpad, e = i % s.kpad;
			const size_t row = w.row + n;
			const float *from = a.a + (row * a.a_heads + shared_head(w.head, a.per_a)) * s.kpad;
			((float *)(w.unit + a.unit.a))[(w.entry + n) * s.kpad + e] =
				s.av[(w.r + n) * s.kpad + e] = from[e];
		}
}

/* Begins to bring the lines of what another kernel computed of rows. By the block. */
__device__ __forceinline__ void own_near(const recur_core &a, const place &w)
{
	const uint32_t lines = a.kpad / 64, each = 2 * lines + 2, n = threadIdx.x / each;
	const uint32_t i = threadIdx.x % each;
	const size_t row = w.row + n;
	if (n >= w.n)
		return;
	const T *k = (const T *)a.k + (row * a.k_heads + shared_head(w.head, a.per_k)) * a.kpad;
	const T *q = (const T *)a.q + (row * a.q_heads + shared_head(w.head, a.per_q)) * a.kpad;
	const T *v = (const T *)a.v + (row * a.v_heads + shared_head(w.head, a.per_v)) * a.vpad;
	if (i < lines)
		line_near(k + i * 64);
	else if (i < 2 * lines)
		line_near(q + (i - lines) * 64);
	else if ((i - 2 * lines) * 64 < a.unit.cols)
		line_near(v + w.col + (i - 2 * lines) * 64);
}

/* ---- elements of a stream, by a warp as in own.cuh; a lane has 4 neighbours of each row ---- */

/* The elements of the part's rows after convolution and activation; n: the first one's number in
 * the stream, there: the lane has some. */
__device__ __forceinline__ void rows_elements(const one_args &a, uint32_t job, const part_place &w,
                                              uint32_t *n, bool *there, float4 (&x)[ROWS])
{
	const one_stream &s = a.streams[job];
	const uint32_t head = shared_head(w.head, s.shared), taps = s.conv ? a.conv.taps : 0;
	const uint32_t i = (job == ONE_V ? w.col : 0) + (threadIdx.x & 31) * 4;
	const uint32_t h = shared_head(head, s.per);
	const uint32_t at = s.at + h * s.stride + (head - h * s.n) * s.dim + i;
	const bool is = i < s.dim;
	*n = head * s.dim + i, *there = is;
	if (s.gates) { /* f32, without convolution */
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++)
			x[r] = load_if(is && r < w.n,
			               (const float4 *)(a.gates + (size_t)(w.row + r) * a.ld_gates + at));
		const float4 bias = load_if(is && s.bias, (const float4 *)(s.bias + *n));
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++)
			x[r] = make_float4(bias.x + x[r].x, bias.y + x[r].y, bias.z + x[r].z, bias.w + x[r].w);
	} else {
		T *ring = (T *)(a.slots + w.slot * a.slot_stride + a.conv.at) + s.channel + *n;
		const T *proj = a.proj + (size_t)w.row * a.ld_proj + at;
		const uint32_t here = taps ? w.pos % a.conv.cap : 0;
		uint2 in[TAPS - 1 + ROWS]; /* inputs of the tokens before the part, of its rows */
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++)
			in[TAPS - 1 + r] =
				load_if(is && r < w.n, (const uint2 *)(proj + (size_t)r * a.ld_proj));
#pragma unroll
		for (uint32_t back = 1; back < TAPS; back++) {
			const uint32_t entry = here >= back ? here - back : here + a.conv.cap - back;
			const T *from = back <= w.offset ? proj - (size_t)back * a.ld_proj
			                                 : ring + (size_t)entry * a.conv.channels;
			in[TAPS - 1 - back] = load_if(is && back < taps && w.pos >= back, (const uint2 *)from);
		}
		const float4 bias = load_if(is && s.bias, (const float4 *)(s.bias + *n));
		float4 f[4] = {};
		if (taps == TAPS)
#pragma unroll
			for (int e = 0; e < 4; e++)
				f[e] = load_if(is, (const float4 *)(s.w + (size_t)(*n + e) * TAPS));
		else if (taps && is)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float *end = s.w + (size_t)(*n + e + 1) * taps;
				f[e] = make_float4(0, taps > 2 ? end[-3] : 0, taps > 1 ? end[-2] : 0, end[-1]);
			}
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++) {
			x[r] = bias;
			const float4 i0 = widen4(in[r]), i1 = widen4(in[r + 1]), i2 = widen4(in[r + 2]);
			const float4 now = widen4(in[r + 3]);
			if (taps)
				each4(x[r], [&](float &e, int c) {
					e = taps > 3 ? __fmaf_rn(f[c].x, (&i0.x)[c], e) : e;
					e = taps > 2 ? __fmaf_rn(f[c].y, (&i1.x)[c], e) : e;
					e = taps > 1 ? __fmaf_rn(f[c].z, (&i2.x)[c], e) : e;
					e = __fmaf_rn(f[c].w, (&now.x)[c], e);
				});
			else
				x[r] = make_float4(bias.x + now.x, bias.y + now.y, bias.z + now.z, bias.w + now.w);
		}
		const bool keeps = taps && is && (job == ONE_V || !w.col) &&
		                   (!w.head || shared_head(w.head - 1, s.shared) != head);
		if (keeps)
#pragma unroll
			for (uint32_t r = 0; r < ROWS; r++) {
				const uint32_t entry = here + r < a.conv.cap ? here + r : here + r - a.conv.cap;
				if (r < w.n)
					*(uint2 *)(ring + (size_t)entry * a.conv.channels) = in[TAPS - 1 + r];
			}
	}
	if (s.silu)
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++)
			each4(x[r], [](float &e, int) { e = silu_of<T>(e); });
}

/* Computes a stream's rows for this unit, and puts what stays in the rings. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void rows_of_job(const one_args &a, uint32_t job, const part_place &w,
                                            few_board<KT, VECTOR> &s)
{
	constexpr uint32_t kpad = KT * 16;
	const uint32_t i = (threadIdx.x & 31) * 4;
	uint32_t first;
	bool there;
	float4 x[ROWS];
	rows_elements(a, job, w, &first, &there, x);
	if (job == ONE_V) {
#pragma unroll
		for (uint32_t r = 0; r < ROWS; r++) {
			if (!there)
				each4(x[r], [&](float &f, int n) {
					f = a.ones && w.col + i + n == a.streams[ONE_V].dim ? 1 : 0;
				});
			if (i < a.unit.cols && r < w.n)
				*(uint2 *)(s.v + r * LDY + i) = round4(x[r]);
		}
		return;
	}
	float sum[ROWS];
	const enum mx_recur_qk_norm norm = a.norm_of[job];
#pragma unroll
	for (uint32_t r = 0; r < ROWS; r++) {
		if (a.feature != MX_RECUR_FEATURE_IDENTITY)
			each4(x[r], [&](float &e, int) { e = feature(a.feature, e); });
		if (!there)
			x[r] = make_float4(0, 0, 0, 0);
		const float4 one[1] = {x[r]};
		sum[r] = norm_part(norm, one);
	}
	if (norm != MX_RECUR_QK_NONE)
#pragma unroll
		for (int d = 16; d; d /= 2)
#pragma unroll
			for (uint32_t r = 0; r < ROWS; r++)
				sum[r] += __shfl_xor_sync(~0u, sum[r], d);
#pragma unroll
	for (uint32_t r = 0; r < ROWS; r++) {
		float scale = a.scale_of[job];
		if (norm != MX_RECUR_QK_NONE)
			scale *= norm_factor(norm, sum[r]);
		each4(x[r], [&](float &f, int) { f *= scale; });
		if (i >= kpad || r >= w.n)
			continue;
		if (job == ONE_K)
			share_key(a, w, s, r, i, round4(x[r]));
		else
			*(uint2 *)(s.q + r * s.ld + i) = round4(x[r]);
	}
}

/* What a row's vector of factors is made of, a lane's 4 neighbours. */
struct row_factors {
	float4 z;
	factor_terms terms[4];
};

__device__ __forceinline__ void open_factors(const one_args &a, const place &w, uint32_t row,
                                             row_factors &o)
{
	const one_stream &s = a.streams[ONE_A];
	const uint32_t head = shared_head(w.head, s.shared), h = shared_head(head, s.per);
	const uint32_t i = (threadIdx.x & 31) * 4, n = head * s.dim + i;
	const uint32_t at = s.at + h * s.stride + (head - h * s.n) * s.dim + i;
	const bool there = i < s.dim && row < w.n;
	if (s.gates)
		o.z = load_if(there, (const float4 *)(a.gates + (size_t)(w.row + row) * a.ld_gates + at));
	else
		o.z = widen4(
			load_if(there, (const uint2 *)(a.proj + (size_t)(w.row + row) * a.ld_proj + at)));
	const float4 bias = load_if(there && s.bias, (const float4 *)(s.bias + n));
	o.z = make_float4(bias.x + o.z.x, bias.y + o.z.y, bias.z + o.z.z, bias.w + o.z.w);
#pragma unroll
	for (int e = 0; e < 4; e++)
		if (there)
			o.terms[e] = terms_of(a, n + e);
}

/* Computes the factors of a row, and puts them into the rings. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void close_factors(const one_args &a, const place &w, uint32_t row,
                                              few_board<KT, VECTOR> &s, const row_factors &o)
{
	constexpr uint32_t kpad = KT * 16;
	const uint32_t i = (threadIdx.x & 31) * 4;
	const bool there = i < a.streams[ONE_A].dim;
	float4 x = o.z;
	if (i >= kpad || row >= w.n)
		return;
	if (a.streams[ONE_A].silu)
		each4(x, [](float &e, int) { e = silu_of<T>(e); });
	each4(x, [&](float &f, int n) { f = there ? factor(a, o.terms[n], f) : 1; });
	store4(s.av + (w.r + row) * kpad + i, x);
	store4((float *)(w.unit + a.unit.a) + (w.entry + row) * kpad + i, x);
	if (a.k_is_rest)
		share_key(a, w, s, row, i, round4(make_float4(1 - x.x, 1 - x.y, 1 - x.z, 1 - x.w)));
}

/* Puts factor and gain of the row that a lane has into the rings. */
template <bool VECTOR>
__device__ __forceinline__ void keep_numbers(const one_args &a, const place &w, uint32_t row,
                                             float f, float b)
{
	if (a.decays && !VECTOR && !a.fixed_a)
		((float *)(w.unit + a.unit.a))[w.entry + row] = f;
	if (a.gain)
		((float *)(w.unit + a.unit.b))[w.entry + row] = b;
}

/* Three blocks of heads of 128 fit on a multiprocessor of compute capability 9.0. */
static_assert(RECUR_FEW <= MX_RECUR_CHUNK, "no two chunks of S begin in one call");
static_assert(few_bytes<8, false>(RECUR_UNIT) <= 228 * 1024 / 3 - 1024, "shared memory");

} // namespace

#endif
