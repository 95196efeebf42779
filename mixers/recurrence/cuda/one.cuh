/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of one token (step.cu) and of few (few.cu): their arguments, the shared memory of the
 * former, the tokens before those of the step. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_ONE_CUH
#define MX_MIXERS_RECURRENCE_CUDA_ONE_CUH

#include <stddef.h>

#include "mixers/recurrence/cuda/async.cuh"
#include "mixers/recurrence/cuda/chunk.cuh"
#include "mixers/recurrence/cuda/gated.cuh"

#define TAPS  4 /* most taps of convolutions that are computed here */
#define TILES 2 /* tiles of 16 columns of a warp */

namespace
{

typedef __nv_bfloat16 T;

/* Streams in the order in which warps take them, and those that the row's warp reads. */
enum one_job { ONE_K, ONE_Q, ONE_V, ONE_A, ONE_BETA, ONE_GATE };

/* A stream, or a number of each head, as the kernel sees it: element i of head h is at at + h / n *
 * stride + h % n * dim + i of the product's row, where per is 2^32 / n, rounded up. */
struct one_stream {
	const float *w, *bias; /* taps and bias, both of the convolution if there is one; NULL = none */
	uint64_t per, shared;  /* shared: recur_core's number for the heads that share an element's */
	uint32_t at, n, stride, dim, channel;
	bool there, gates, conv, silu;
};

/* What recur_one says, in the kernel's terms. */
struct one_args {
	const mx_device_span *spans;
	unsigned char *slots;
	size_t slot_stride;
	uint32_t units, n_units; /* of a span, of all spans */
	uint32_t few;            /* recur_core.few */
	bool trees;              /* spans with parents are computed elsewhere */
	uint64_t per_unit;
	recur_unit unit;
	recur_conv conv;
	bool delta, gain, decays, finish;
	float fixed_b;
	const float *fixed_a, *skip;
	one_stream streams[6]; /* of enum one_job */
	const T *proj;
	const float *gates;
	uint32_t ld_proj, ld_gates;
	/* of elements */
	enum mx_recur_feature feature;
	enum mx_recur_qk_norm norm_of[2]; /* of k, of q */
	float scale_of[2];
	enum mx_recur_decay_map decay;
	enum mx_recur_beta_map beta;
	float decay_min, beta_scale, step_min, step_max;
	const float *pre, *mul, *add;
	bool k_is_rest, ones, has_beta;
	/* of outputs, if they are finished here: recur_out's members */
	bool has_norm;
	struct mx_recur_norm norm;
	float gate_scale;
	uint32_t by_turns;
	uint32_t heads, v_dim;
	void *out;
	float *y; /* else */
};

/* What a block works on. */
struct place {
	uint32_t head, col, row, pos, slot; /* col: first of the unit's */
	uint32_t kind, n, number;           /* of the span; the unit's number in it */
	bool parents;                       /* the span has some, if there are trees */
	uint32_t from, r;                   /* the chunk's first token, and the row's number in it */
	uint32_t first, entry;              /* their entries in rings */
	unsigned char *unit;
};

/* What a lane's elements of a stream are made of, on its way from global memory (own.cuh). */
struct part_stage {
	uint4 w[TAPS][32], bias[32], read[32];
	uint2 seen[TAPS - 1][32];
};

/* Likewise the numbers of a lane of the row's warp. */
struct number_stage {
	float n[10][32];
};

/* Shared memory of a block of step.cu; all offsets but the end are the same for all units, S comes
 * last. Functions that take a B take few.cu's too. */
template <int KT, bool VECTOR> struct board {
	static constexpr uint32_t kpad = KT * 16, ld = kpad + 8, vectors = VECTOR ? 1 : 0;
	uint64_t arrived[RECUR_UNIT / 16 / TILES]; /* S of each warp */
	place places[2];                           /* the unit's, the next one's */
	alignas(16) T zero[8];
	float numbers[4];         /* beta, gamma */
	float sk[Q], sq[Q], m[Q]; /* scores of k and q with the chunk's keys; row r of M */
	float a[Q], b[Q], end[Q]; /* of a whole chunk: factor, gain, product of the factors after it */
	float t[Q * LDM];
	float y[RECUR_UNIT];
	T k[Q * ld], q[ld], v[RECUR_UNIT]; /* [Q][ld] keys of the chunk's tokens, [ld], [columns] */
	T wk[vectors * ld + 8], wq[vectors * ld + 8];            /* k_r and q, decayed to the border */
	float av[vectors * Q * kpad + 4], d[vectors * kpad + 4]; /* factors; the product of a chunk's */
	alignas(16) part_stage parts[3 + vectors];
	alignas(128) uint4 S[1]; /* the first of its high halves, [columns / 16][keys / 16][32 lanes] */
};

template <int KT, bool VECTOR> constexpr size_t board_bytes(uint32_t cols)
{
	typedef board<KT, VECTOR> whole;
	return offsetof(whole, S) + (size_t)cols * KT * 16 * sizeof(T);
}

/* Entry of a chunk's first token in rings. */
__device__ __forceinline__ uint32_t entry_of(const one_args &a, uint32_t from)
{
	return a.unit.cap == Q ? 0 : from % a.unit.cap;
}

/* Unit number u of all spans. */
__device__ __forceinline__ place place_of(const one_args &a, uint32_t u)
{
	const uint32_t at = u / a.units;
	const volatile mx_device_span *span = a.spans + at;
	place w;
	w.number = u - at * a.units;
	w.row = span->row, w.n = span->n, w.pos = span->pos, w.slot = span->slot, w.kind = span->kind;
	w.parents = span->parent_begin != UINT32_MAX;
	w.head = shared_head(w.number, a.per_unit);
	w.col = (w.number - w.head * a.unit.per_head) * a.unit.cols;
	w.unit = a.slots + w.slot * a.slot_stride + w.number * a.unit.bytes;
	w.from = w.pos / Q * Q, w.r = w.pos - w.from;
	w.first = entry_of(a, w.from), w.entry = w.first + w.r;
	return w;
}

/* ---- earlier tokens ---- */

/* Begins the copies of n tokens from entry `first` of the rings on. By the whole block; each thread
 * waits for its own copies. */
template <int KT, bool VECTOR, template <int, bool> class B>
__device__ __forceinline__ void earlier_begin(const one_args &a, const unsigned char *unit,
                                              uint32_t first, uint32_t n, B<KT, VECTOR> &s)
{
	constexpr uint32_t kpad = KT * 16, parts = KT * 2;
	const T *k = (const T *)(unit + a.unit.k) + (size_t)first * kpad;
	for (uint32_t i = threadIdx.x; i < n * parts; i += blockDim.x)
		copy16(s.k + i / parts * s.ld + i % parts * 8, k + i * 8);
	if (VECTOR) {
		const float *f = (const float *)(unit + a.unit.a) + (size_t)first * kpad;
		for (uint32_t i = threadIdx.x; i < n * kpad / 4; i += blockDim.x)
			copy16(s.av + 4 * i, f + 4 * i);
	}
	if (a.delta) {
		const float *t = (const float *)(unit + a.unit.t) + (size_t)first * Q;
		for (uint32_t i = threadIdx.x; i < n * 4; i += blockDim.x)
			copy16(s.t + i / 4 * LDM + i % 4 * 4, t + 4 * i);
	}
}

/* Brings near what is read of the rings later: x of the chunk's tokens before the row; all of the
 * chunk at `from`, if it is to be added to S. By a warp. */
__device__ __forceinline__ void rings_near(const one_args &a, const place &w, bool adds,
                                           uint32_t from)
{
	const uint32_t lane = threadIdx.x & 31;
	const uint32_t x_row = a.unit.cols * (a.delta ? sizeof(float) : sizeof(T));
	const unsigned char *x = w.unit + a.unit.x;
	for (uint32_t i = lane * 128; i < w.r * x_row; i += 32 * 128)
		line_near(x + w.first * x_row + i);
	if (!adds)
		return;
	const uint32_t first = entry_of(a, from), k_row = (a.unit.x - a.unit.k) / a.unit.cap;
	for (uint32_t i = lane * 128; i < Q * x_row; i += 32 * 128)
		line_near(x + first * x_row + i);
	for (uint32_t i = lane * 128; i < Q * k_row; i += 32 * 128)
		line_near(w.unit + a.unit.k + first * k_row + i);
	if (a.delta && lane < 8)
		line_near(w.unit + a.unit.t + first * Q * sizeof(float) + lane * 128);
}

/* Factors and gains of n earlier tokens: those of lane j's. */
template <bool VECTOR>
__device__ __forceinline__ void old_numbers(const one_args &a, const place &w, uint32_t first,
                                            uint32_t n, float *f, float *b)
{
	const uint32_t j = threadIdx.x & 31;
	const bool factors = j < n && a.decays && !VECTOR;
	const float *ring = (const float *)(w.unit + a.unit.a) + first + j;
	*f = load_if(factors, a.fixed_a ? a.fixed_a + w.head : ring, 1);
	*b = load_if(j < n && a.gain, (const float *)(w.unit + a.unit.b) + first + j, 0);
}

/* x of n earlier tokens, in C's place; those after them are zero. */
__device__ __forceinline__ void old_inputs(const one_args &a, const place &w, uint32_t first,
                                           uint32_t n, uint32_t col, float (&x)[2][4])
{
	const unsigned char *ring = w.unit + a.unit.x;
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, cols = a.unit.cols;
	const uint32_t at = (first + 2 * t) * cols + col + g;
	each_of([&](int half, int i, uint32_t, uint32_t) { x[half][i] = 0; });
	if (a.delta)
		each_of([&](int half, int i, uint32_t j, uint32_t) {
			if (j < n)
				x[half][i] =
					((const volatile float *)ring)[at + (8 * half + (i & 1)) * cols + 8 * (i >> 1)];
		});
	else
		each_of([&](int half, int i, uint32_t j, uint32_t) {
			if (j < n)
				x[half][i] = __bfloat162float(__ushort_as_bfloat16(
					((const volatile uint16_t *)
				         ring)[at + (8 * half + (i & 1)) * cols + 8 * (i >> 1)]));
		});
}

/* ---- whole chunks ---- */

/* S of a warp's tile, two tiles of keys after the other: S <- d S + u kd. S is high halves in
 * shared memory; low ones are read from the unit, and written to it if S `stays`: if not, it is not
 * added to again. */
template <int KT, bool VECTOR, template <int, bool> class B>
__device__ __forceinline__ void fold(B<KT, VECTOR> &s, uint4 *S, uint4 *low, bool stays, float d,
                                     const float (&u)[2][4])
{
	const uint32_t t = threadIdx.x & 3;
	const operand_a<2> at = sums_a<2>(u);
	uint4 lows[KT];
#pragma unroll
	for (int i = 0; i < KT; i++)
		lows[i] = load_now(low + i * 32);
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[4];
		float c[4][4];
		two_columns_b(s.k, s.ld, 16 * i, b);
		two_columns_b(s.k, s.ld, 16 * i + 16, b + 2);
#pragma unroll
		for (int n = 0; n < 4; n++) {
			const uint32_t k = 16 * i + 8 * n;
			const float d0 = VECTOR ? s.d[k + 2 * t] : d, d1 = VECTOR ? s.d[k + 2 * t + 1] : d;
			if (n % 2 == 0)
				whole_of({S[(i + n / 2) * 32], lows[i + n / 2]}, *(float(*)[2][4]) & c[n]);
			c[n][0] *= d0, c[n][1] *= d1, c[n][2] *= d0, c[n][3] *= d1;
		}
		multiply_4(c[0], c[1], c[2], c[3], at, b);
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				c[n][e] = no_tie(c[n][e]);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			const halves h = halves_of(*(const float(*)[2][4]) & c[2 * n]);
			S[(i + n) * 32] = h.high;
			if (stays)
				low[(i + n) * 32] = h.low;
		}
	}
}

/* Tiles of a warp. */
__device__ __forceinline__ uint32_t tiles_of(const one_args &a, uint32_t warp)
{
	const uint32_t all = a.unit.cols / 16, first = warp * TILES;
	return first >= all ? 0 : all - first < TILES ? all - first : TILES;
}

/* Adds the chunk whose first entry of rings is `first` to S, see `fold`. By the whole block; a warp
 * has the columns from `col` on in `tiles` tiles. */
template <int KT, bool VECTOR, template <int, bool> class B>
__device__ void add_chunk(const one_args &a, const place &w, uint32_t first, bool stays,
                          B<KT, VECTOR> &s, uint4 *S, uint32_t col, uint32_t tiles)
{
	constexpr uint32_t kpad = KT * 16;
	float all[TILES][2][4];
	earlier_begin(a, w.unit, first, Q, s);
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++)
		old_inputs(a, w, first, n < tiles ? Q : 0, col + 16 * n, all[n]);
	if (threadIdx.x < 32) {
		float f, b, end = 1;
		old_numbers<VECTOR>(a, w, first, Q, &f, &b);
		if (!VECTOR)
#pragma unroll
			for (uint32_t i = Q - 1; i > 0; i--) {
				const float one = __shfl_sync(~0u, f, i);
				end = i > threadIdx.x ? __fmul_rn(end, one) : end;
			}
		if (threadIdx.x < Q)
			s.a[threadIdx.x] = f, s.b[threadIdx.x] = b, s.end[threadIdx.x] = end;
	}
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncthreads();
	if (VECTOR) {
		for (uint32_t e = threadIdx.x; e < kpad; e += blockDim.x) {
			float p = 1;
			for (int j = Q - 1; j >= 0; j--) {
				T *k = s.k + j * s.ld + e;
				*k = __float2bfloat16_rn(__fmul_rn(__bfloat162float(*k), p));
				p = __fmul_rn(p, s.av[j * kpad + e]);
			}
			s.d[e] = p;
		}
		__syncthreads();
	}
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		float(&x)[2][4] = all[n];
		if (n >= tiles)
			break;
		if (a.delta) {
			const operand_a<2> at = sums_a<2>(x);
			float u[2][4] = {};
			multiply(u[0], at, rows_b<2>(s.t, LDM, 0, 0));
			multiply(u[1], at, rows_b<2>(s.t, LDM, 8, 0));
			each_of([&](int half, int i, uint32_t, uint32_t) { x[half][i] = u[half][i]; });
		}
		if (!VECTOR)
			each_of([&](int half, int i, uint32_t j, uint32_t) {
				x[half][i] *= a.gain ? s.end[j] * s.b[j] : s.end[j];
			});
		fold<KT, VECTOR>(s, S + n * KT * 32, low_at(a.unit, w.unit, (col / 16 + n) * KT), stays,
		                 VECTOR ? 1 : s.end[0] * s.a[0], x);
	}
	__syncthreads();
}

/* Adds the chunks of unit u that are whole before the span's to S, which stays where none of their
 * tokens can be taken back. By the whole block, a step in 16: it knows its work by itself, so that
 * nothing is kept in registers for it. */
template <int KT, bool VECTOR>
__device__ __noinline__ void add_chunks(const one_args &a, uint32_t u, uint32_t use)
{
	extern __shared__ __align__(128) unsigned char memory[];
	board<KT, VECTOR> &s = *(board<KT, VECTOR> *)memory;
	const place w = place_of(a, u);
	const uint32_t warp = threadIdx.x >> 5, border = *(const volatile uint32_t *)w.unit;
	mx_device_span span = {};
	span.pos = w.pos, span.n = w.n, span.kind = w.kind;
	const uint32_t next = border_after(span, border, Q);
	const uint32_t tiles = tiles_of(a, warp);
	uint4 *S = s.S + warp * TILES * KT * 32 + (threadIdx.x & 31);
	if (tiles)
		copies_wait(s.arrived + warp, use);
	__syncthreads();
	for (uint32_t at = border; at < w.from; at += Q) {
		add_chunk<KT, VECTOR>(a, w, entry_of(a, at), at < next, s, S, warp * TILES * 16, tiles);
		if (at + Q != next)
			continue;
		uint4 *to = high_at(a.unit, w.unit, warp * TILES * KT);
		for (uint32_t i = 0; i < tiles * KT; i++)
			to[i * 32] = S[i * 32];
		if (threadIdx.x == 0)
			*(uint32_t *)w.unit = next;
	}
	copies_after_writes();
	__syncthreads();
}

/* ---- what S says of keys ---- */

/* c += S, of each of the warp's tiles, times what operands(col, b) makes of the keys' columns from
 * `col` on. */
template <int KT, typename F>
__device__ __forceinline__ void ask_tiles(const uint4 *S, uint32_t tiles, const F &operands,
                                          float (&c)[TILES][4])
{
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[2];
		operands(16 * i, b);
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (uint32_t tile = 0; tile < TILES; tile++) {
				if (tile >= tiles)
					break;
				const uint4 s = S[(tile * KT + i + n) * 32];
				mma(c[tile], {s.x, s.y, s.z, s.w}, b[n].r[0]);
			}
	}
}

/* ---- the host's side ---- */

static inline one_stream stream_of(const recur_source &s, uint64_t shared)
{
	one_stream o = {};
	const bool split = s.heads && s.per < s.heads;
	o.there = s.heads > 0;
	o.w = s.conv ? s.w : NULL;
	o.bias = s.conv ? s.conv_bias : s.bias;
	o.shared = shared;
	o.at = s.off;
	o.n = split ? s.per : 0;
	o.per = split ? (((uint64_t)1 << 32) + s.per - 1) / s.per : 0;
	o.stride = s.stride;
	o.dim = s.dim;
	o.channel = s.channel;
	o.gates = s.gates;
	o.conv = s.conv;
	o.silu = s.silu;
	return o;
}

static inline one_args args_of(const recur_one &p)
{
	const recur_core &c = p.core;
	const recur_rows &r = p.rows;
	one_args a = {};
	a.spans = c.step.spans;
	a.slots = c.step.slot_base;
	a.slot_stride = c.step.slot_stride;
	a.per_unit = c.per_unit;
	a.units = c.heads * c.unit.per_head;
	a.n_units = a.units * c.step.n_spans;
	a.few = c.few;
	a.trees = c.step.parents != NULL;
	a.unit = c.unit;
	a.conv = c.conv;
	a.delta = c.delta, a.gain = c.gain, a.decays = c.decays, a.finish = p.finish;
	a.fixed_b = c.fixed_b, a.fixed_a = c.fixed_a, a.skip = c.skip;
	a.streams[ONE_K] = stream_of(r.source[MX_RECUR_K], c.per_k);
	a.streams[ONE_Q] = stream_of(r.source[MX_RECUR_Q], c.per_q);
	a.streams[ONE_V] = stream_of(r.source[MX_RECUR_V], c.per_v);
	a.streams[ONE_A] = stream_of(r.source[MX_RECUR_A], c.per_a);
	a.streams[ONE_BETA] = stream_of(r.source[MX_RECUR_BETA], (uint64_t)1 << 32);
	a.streams[ONE_GATE] = stream_of(p.out.source, (uint64_t)1 << 32);
	a.proj = (const T *)r.proj, a.gates = (const float *)r.gates;
	a.ld_proj = (uint32_t)r.ld_proj, a.ld_gates = (uint32_t)r.ld_gates;
	a.feature = r.feature;
	a.norm_of[ONE_K] = r.norm[MX_RECUR_K], a.norm_of[ONE_Q] = r.norm[MX_RECUR_Q];
	a.scale_of[ONE_K] = r.scale[MX_RECUR_K], a.scale_of[ONE_Q] = r.scale[MX_RECUR_Q];
	a.decay = r.decay, a.beta = r.beta;
	a.decay_min = r.decay_min, a.beta_scale = r.beta_scale;
	a.step_min = r.step_min, a.step_max = r.step_max;
	a.pre = r.pre, a.mul = r.mul, a.add = r.add;
	a.k_is_rest = r.k_is_rest, a.ones = r.one, a.has_beta = c.b != NULL;
	a.has_norm = p.out.has_norm, a.norm = p.out.norm, a.gate_scale = p.out.gate_scale;
	a.by_turns = p.out.by_turns;
	a.heads = c.heads, a.v_dim = c.v_dim;
	a.out = p.out.out, a.y = c.y;
	return a;
}

/* Launches as many blocks as the GPU holds at once: each computes several units, and brings the
 * next one's state while it computes. */
template <typename MORE>
static inline cudaError_t launch_resident(void (*kernel)(const one_args, const MORE), bool vector,
                                          size_t smem, cudaStream_t stream, const one_args &a,
                                          const MORE &more)
{
	const uint32_t jobs = vector ? 4 : 3, warps = (a.unit.cols / 16 + TILES - 1) / TILES;
	const uint32_t threads = ((warps < jobs ? jobs : warps) + 1) * 32;
	int device = 0, sms = 0, each = 0;
	cudaError_t e = cudaGetDevice(&device);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
	if (e == cudaSuccess)
		e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, (int)threads, smem);
	if (e != cudaSuccess)
		return e;
	const uint32_t most = (uint32_t)(sms * (each > 0 ? each : 1));
	return mx_launch(kernel, dim3(a.n_units < most ? a.n_units : most), dim3(threads), smem, stream,
	                 a, more);
}

/* A kernel of one of the two files is a struct K with
 *     template <int KT, bool VECTOR, typename MORE> kernel(): the kernel, on one_args and MORE
 *     template <int KT, bool VECTOR> bytes(cols): its shared memory for units of so many columns
 * MORE: recur_core, with what other kernels computed of the rows; or nothing. */
struct nothing {
};

template <typename K, int KT, bool VECTOR, typename MORE>
cudaError_t launch_one(cudaStream_t stream, const recur_one &p, const MORE &more)
{
	const one_args a = args_of(p);
	return launch_resident(K::template kernel<KT, VECTOR, MORE>(), VECTOR,
	                       K::template bytes<KT, VECTOR>(a.unit.cols), stream, a, more);
}

/* One kernel for each size of keys and kind of factors. */
template <typename K, int KT, bool VECTOR>
cudaError_t launch_kind(cudaStream_t stream, const recur_one &p)
{
	if constexpr (KT <= 8)
		if (p.fused)
			return launch_one<K, KT, VECTOR>(stream, p, nothing{});
	return launch_one<K, KT, VECTOR>(stream, p, p.core);
}

template <typename K> cudaError_t launch_of(cudaStream_t stream, const recur_one &p)
{
	const bool vector = p.core.vector;
	switch (p.core.kpad) {
	case 32:
		return vector ? launch_kind<K, 2, true>(stream, p) : launch_kind<K, 2, false>(stream, p);
	case 64:
		return vector ? launch_kind<K, 4, true>(stream, p) : launch_kind<K, 4, false>(stream, p);
	case 128:
		return vector ? launch_kind<K, 8, true>(stream, p) : launch_kind<K, 8, false>(stream, p);
	case 256:
		return vector ? launch_kind<K, 16, true>(stream, p) : launch_kind<K, 16, false>(stream, p);
	default: return cudaErrorInvalidValue;
	}
}

template <typename K, int KT, bool VECTOR, typename MORE> cudaError_t prepare_one(uint32_t cols)
{
	return cudaFuncSetAttribute(K::template kernel<KT, VECTOR, MORE>(),
	                            cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)K::template bytes<KT, VECTOR>(cols));
}

template <typename K, int KT, bool VECTOR> cudaError_t prepare_kind(uint32_t cols)
{
	const cudaError_t e = prepare_one<K, KT, VECTOR, recur_core>(cols);
	if constexpr (KT <= 8)
		return e == cudaSuccess ? prepare_one<K, KT, VECTOR, nothing>(cols) : e;
	return e;
}

/* Returns the shared memory of a thread block for units of `cols` columns. */
template <typename K> size_t bytes_of(uint32_t kpad, bool vector, uint32_t cols)
{
	switch (kpad) {
	case 32: return vector ? K::template bytes<2, true>(cols) : K::template bytes<2, false>(cols);
	case 64: return vector ? K::template bytes<4, true>(cols) : K::template bytes<4, false>(cols);
	case 128: return vector ? K::template bytes<8, true>(cols) : K::template bytes<8, false>(cols);
	default: return vector ? K::template bytes<16, true>(cols) : K::template bytes<16, false>(cols);
	}
}

/* Opts the kernels for keys of kpad elements into the shared memory of units of `cols` columns. */
template <typename K> cudaError_t prepare_of(uint32_t kpad, bool vector, uint32_t cols)
{
	switch (kpad) {
	case 32: return vector ? prepare_kind<K, 2, true>(cols) : prepare_kind<K, 2, false>(cols);
	case 64: return vector ? prepare_kind<K, 4, true>(cols) : prepare_kind<K, 4, false>(cols);
	case 128: return vector ? prepare_kind<K, 8, true>(cols) : prepare_kind<K, 8, false>(cols);
	case 256: return vector ? prepare_kind<K, 16, true>(cols) : prepare_kind<K, 16, false>(cols);
	default: return cudaErrorInvalidValue;
	}
}

} // namespace

#endif
