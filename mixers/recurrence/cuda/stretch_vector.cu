/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tokens of a stretch are to each other where each element of a key has a factor of its
 * own: as stretch_prepare.cu, with operands that are decayed already, q and k from the stretch's
 * beginning and k to its end.
 *
 * Scores of two different blocks of 16 tokens are products of q decayed from the later block's
 * beginning and k decayed to the earlier one's end, and through the blocks between. In one block k
 * is divided by its decay from the block's beginning, unless that is below SMALL somewhere: then a
 * warp goes through pairs of tokens. Factors are multiplied, never divided otherwise, and may be
 * zero.
 */
#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/recurrence/cuda/stretch_inverse.cuh"

#define BLOCKS (STRETCH / Q)
#define SMALL  8.67361738e-19f /* 2^-60 */

namespace
{

typedef __nv_bfloat16 T;

/* Shared memory: rows of keys. Tile `between(r, j)`: k of block j for rows of block r. */
template <int KT> struct tiles {
	static constexpr uint32_t ld = KT * 16 + 8;
	T q[STRETCH * ld], k[STRETCH * ld]; /* decayed from the beginning of their block */
	T own[STRETCH * ld];                /* k divided by that */
	T between[6 * Q * ld];
};

__device__ __forceinline__ constexpr uint32_t between(uint32_t r, uint32_t j)
{
	return r * (r - 1) / 2 + j;
}

struct small_scores {
	float q[Q * LDM], k[Q * LDM];
};

__device__ __forceinline__ float2 two_of(uint32_t x)
{
	return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

__device__ __forceinline__ uint32_t pack(float2 x)
{
	const __nv_bfloat162 h = __floats2bfloat162_rn(x.x, x.y);
	return *(const uint32_t *)&h;
}

__device__ __forceinline__ float2 times(float2 x, float2 y)
{
	return make_float2(x.x * y.x, x.y * y.y);
}

/* Where rows of a stretch are: of the step, or of rings. */
struct rows_of {
	const float *a, *ring_a;
	const T *k, *q, *ring_k;
	size_t ld_a, ld_k, ld_q;
};

__device__ __forceinline__ rows_of rows_from(const recur_core &a, const place &w)
{
	const int64_t row = (int64_t)w.span.row + w.s.from - w.span.pos;
	const size_t entry = w.s.r0 ? ring_of(a, w.s.from) : 0;
	rows_of r;
	r.ld_a = (size_t)a.a_heads * a.kpad;
	r.ld_k = ld_k_of(a);
	r.ld_q = (size_t)a.q_heads * a.kpad;
	r.a = a.a + row * (int64_t)r.ld_a + shared_head(w.head, a.per_a) * a.kpad;
	r.k = (const T *)a.k + row * (int64_t)r.ld_k + shared_head(w.head, a.per_k) * a.kpad;
	r.q = (const T *)a.q + row * (int64_t)r.ld_q + shared_head(w.head, a.per_q) * a.kpad;
	r.ring_a = (const float *)(unit_of(a, w, w.head) + a.unit.a) + entry * a.kpad;
	r.ring_k = (const T *)(unit_of(a, w, w.head) + a.unit.k) + entry * a.kpad;
	return r;
}

/* What a thread has of a block of tokens: two elements' factors, keys and queries. */
struct strip {
	float2 f[Q];
	uint32_t k[Q], q[Q];
};

/* Reads a thread's strip; all of it is on its way before any of it is used. */
__device__ __forceinline__ void read_strip(const recur_core &a, const place &w, const rows_of &in,
                                           uint32_t block, uint32_t e, strip &x)
{
#pragma unroll
	for (uint32_t r = 0; r < Q; r++) {
		const uint32_t j = block * Q + r;
		const bool old = j < w.s.r0, there = j < w.s.len;
		x.f[r] = old     ? *(const float2 *)(in.ring_a + j * a.kpad + e)
		         : there ? *(const float2 *)(in.a + j * in.ld_a + e)
		                 : make_float2(1, 1);
		x.k[r] = old     ? *(const uint32_t *)(in.ring_k + j * a.kpad + e)
		         : there ? *(const uint32_t *)(in.k + j * in.ld_k + e)
		                 : 0;
		x.q[r] = !old && there ? *(const uint32_t *)(in.q + j * in.ld_q + e) : 0;
	}
}

/* A block of a thread's two elements from `e` on: all operands but those for other stretches' S are
 * written to shared memory, these to the note. */
template <int KT, bool DELTA>
__device__ __forceinline__ void decay_block(uint32_t block, uint32_t e, const strip &x,
                                            const float *through, tiles<KT> &s, vector_note<KT> *to)
{
	constexpr uint32_t kpad = KT * 16, ld = tiles<KT>::ld;
	float2 before = make_float2(1, 1), after = before, d[BLOCKS], run = before;
#pragma unroll
	for (uint32_t b = 0; b < BLOCKS; b++) {
		d[b] = *(const float2 *)(through + b * kpad + e);
		if (b < block)
			before = times(before, d[b]);
		if (b > block)
			after = times(after, d[b]);
	}
	const float2 all = *(const float2 *)(through + block * kpad + e);
	const bool small = all.x < SMALL || all.y < SMALL;
#pragma unroll
	for (uint32_t r = 0; r < Q; r++) {
		const uint32_t j = block * Q + r,
					   at = e / 64 * MATRIX + swizzled(j, e % 64 / 8) + e % 8 * 2;
		run = times(run, x.f[r]);
		const float2 from_q = times(two_of(x.q[r]), run), from_k = times(two_of(x.k[r]), run);
		*(uint32_t *)(s.q + j * ld + e) = pack(from_q);
		*(uint32_t *)(to->q + at) = pack(times(from_q, before));
		if (DELTA) {
			*(uint32_t *)(s.k + j * ld + e) = pack(from_k);
			*(uint32_t *)(to->k_from + at) = pack(times(from_k, before));
		}
		const float2 over =
			small ? make_float2(0, 0) : make_float2(__frcp_rn(run.x), __frcp_rn(run.y));
		*(uint32_t *)(s.own + j * ld + e) = pack(times(two_of(x.k[r]), over));
	}
	run = make_float2(1, 1);
#pragma unroll
	for (int r = Q - 1; r >= 0; r--) {
		const uint32_t j = block * Q + (uint32_t)r;
		const uint32_t at = e / 64 * MATRIX + swizzled(j, e % 64 / 8) + e % 8 * 2;
		float2 to_end = times(two_of(x.k[r]), run);
		*(uint32_t *)(to->k_to + at) = pack(times(to_end, after));
#pragma unroll
		for (uint32_t b = 1; b < BLOCKS; b++)
			if (b > block) {
				*(uint32_t *)(s.between + (between(b, block) * Q + (uint32_t)r) * ld + e) =
					pack(to_end);
				to_end = times(to_end, d[b]);
			}
		run = times(run, x.f[r]);
	}
}

/* Scores of a block's pairs of tokens, one after the other: by a warp. */
template <int KT, bool DELTA>
__device__ __noinline__ void pair_scores(const place &w, const rows_of &in, uint32_t block,
                                         small_scores *out)
{
	constexpr uint32_t kpad = KT * 16, each = KT / 2;
	const uint32_t lane = threadIdx.x & 31;
	for (uint32_t r = 0; r < Q; r++) {
		float q[each], k[each];
		const uint32_t row = block * Q + r;
#pragma unroll
		for (uint32_t e = 0; e < each; e++) {
			const bool own = row >= w.s.r0 && row < w.s.len;
			q[e] = own ? __bfloat162float(in.q[row * in.ld_q + e * 32 + lane]) : 0;
			k[e] = own ? __bfloat162float(in.k[row * in.ld_k + e * 32 + lane]) : 0;
		}
		for (int i = (int)r; i >= 0; i--) {
			const uint32_t j = block * Q + (uint32_t)i;
			const bool old = j < w.s.r0, there = j < w.s.len;
			float sq = 0, sk = 0;
#pragma unroll
			for (uint32_t e = 0; e < each; e++) {
				const uint32_t c = e * 32 + lane;
				const float key = !there ? 0
				                         : __bfloat162float(old ? in.ring_k[j * kpad + c]
				                                                : in.k[j * in.ld_k + c]);
				const float f = !there ? 1 : old ? in.ring_a[j * kpad + c] : in.a[j * in.ld_a + c];
				sq = __fmaf_rn(q[e], key, sq);
				sk = __fmaf_rn(k[e], key, sk);
				q[e] *= f;
				k[e] *= f;
			}
			sq = warp_sum(sq);
			if (DELTA)
				sk = warp_sum(sk);
			if (lane == 0)
				out->q[r * LDM + i] = sq, out->k[r * LDM + i] = sk;
		}
	}
	__syncwarp();
}

/* Scores of the rows of a warp's block with those of earlier ones and its own. */
template <int KT, bool DELTA>
__device__ __forceinline__ void scores(const tiles<KT> &s, uint32_t warp, float (&cq)[8][4],
                                       float (&ck)[8][4])
{
	constexpr uint32_t ld = tiles<KT>::ld;
	const uint32_t lane = threadIdx.x & 31;
	const uint32_t at = (16 * warp + lane % 16) * ld + lane / 16 * 8;
	const uint32_t bt = (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
#pragma unroll 2
	for (uint32_t i = 0; i < KT * 16; i += 16) {
		uint32_t aq[4], ak[4];
		load_matrices(aq[0], aq[1], aq[2], aq[3], s.q + at + i);
		if (DELTA)
			load_matrices(ak[0], ak[1], ak[2], ak[3], s.k + at + i);
#pragma unroll
		for (uint32_t p = 0; p < BLOCKS; p++) {
			if (p > warp)
				break;
			const T *from =
				p == warp ? s.own + 16 * warp * ld : s.between + between(warp, p) * Q * ld;
			uint32_t b[2][2];
			load_matrices(b[0][0], b[0][1], b[1][0], b[1][1], from + bt + i);
			mma(cq[2 * p], aq, b[0]);
			mma(cq[2 * p + 1], aq, b[1]);
			if (DELTA) {
				mma(ck[2 * p], ak, b[0]);
				mma(ck[2 * p + 1], ak, b[1]);
			}
		}
	}
}

/* P of a warp's rows to the note; L to shared memory. */
template <bool DELTA>
__device__ __forceinline__ void write_scores(const recur_core &a, const place &w, const float *b,
                                             uint32_t warp, const float (&cq)[8][4],
                                             const float (&ck)[8][4], note *to, triangle *tri)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, r = 16 * warp + g;
	const float skip = a.skip ? a.skip[w.head] : 0;
	const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
	for (uint32_t n = 0; n < 8; n++) {
		if (n > 2 * warp + 1)
			break;
		const uint32_t j = 8 * n + 2 * t;
		const float2 gain = *(const float2 *)(b + j);
#pragma unroll
		for (uint32_t half = 0; half < 2; half++) {
			const uint32_t row = r + 8 * half;
			const bool there = row >= w.s.r0 && row < w.s.len;
			float2 p = make_float2(cq[n][2 * half], cq[n][2 * half + 1]);
			float2 l = make_float2(ck[n][2 * half] * b[row], ck[n][2 * half + 1] * b[row]);
			p = make_float2(there && j <= row ? p.x : 0, there && j + 1 <= row ? p.y : 0);
			l = make_float2(there && j < row ? l.x : 0, there && j + 1 < row ? l.y : 0);
			if (!DELTA && a.gain)
				p = times(p, gain);
			if (!DELTA && there)
				p.x += j == row ? skip : 0, p.y += j + 1 == row ? skip : 0;
			if (DELTA)
				*(float2 *)(tri->m + row * LDS + j) = l;
			*(uint32_t *)(to->p + swizzled(row, n) + 4 * t) = pack(p);
		}
	}
	for (uint32_t i = lane; i < 16 * (6 - 2 * warp); i += 32) /* above the diagonal */
		*(uint4 *)(to->p + swizzled(16 * warp + i % 16, 2 * warp + 2 + i / 16)) = none;
}

/* A thread has two elements of a block of 16 tokens; then a team has the scores. */
template <int KT, bool DELTA>
__global__ void __launch_bounds__(KT * 8 * BLOCKS, 2) prepare(const recur_core a)
{
	extern __shared__ __align__(16) unsigned char memory[];
	constexpr uint32_t kpad = KT * 16, pairs = kpad / 2;
	__shared__ float through[BLOCKS * kpad], beta[STRETCH];
	__shared__ small_scores pair[BLOCKS];
	__shared__ uint32_t small[BLOCKS];
	tiles<KT> &s = *(tiles<KT> *)memory;
	const uint32_t n = blockIdx.y, e = threadIdx.x % pairs * 2, block = threadIdx.x / pairs;
	const uint32_t warp = threadIdx.x >> 5;
	strip x;
	place w;
	mx_pdl_launch();
	const bool there = find_stretch(a, n, blockIdx.x, &w);
	mx_pdl_wait();
	if (!there)
		return;
	vector_note<KT> *to = (vector_note<KT> *)note_at(a, n, w.head);
	const rows_of in = rows_from(a, w);
	read_strip(a, w, in, block, e, x);
	if (threadIdx.x < BLOCKS)
		small[threadIdx.x] = 0;
	if (threadIdx.x < STRETCH) {
		const uint32_t j = threadIdx.x;
		const bool old = j < w.s.r0, own = !old && j < w.s.len;
		float b = own ? a.fixed_b : 0;
		if (own && a.b)
			b = a.b[(w.span.row + (w.s.from + j - w.span.pos)) * a.heads + w.head];
		if (old && a.gain)
			b = ((const float *)(unit_of(a, w, w.head) + a.unit.b))[ring_of(a, w.s.from) + j];
		beta[j] = to->base.b[j] = b;
		to->base.gamma[j] = 1;
		to->base.to_end[j] = a.gain ? b : 1;
	}
	__syncthreads();
	float2 d = make_float2(1, 1);
#pragma unroll
	for (uint32_t r = 0; r < Q; r++)
		d = times(d, x.f[r]);
	*(float2 *)(through + block * kpad + e) = d;
	if (!(d.x >= SMALL && d.y >= SMALL))
		small[block] = 1;
	__syncthreads();
	decay_block<KT, DELTA>(block, e, x, through, s, to);
	if (threadIdx.x < pairs) {
		d = *(const float2 *)(through + e);
		for (uint32_t b = 1; b < BLOCKS; b++)
			d = times(d, *(const float2 *)(through + b * kpad + e));
		*(float2 *)(to->d + e) = d;
	}
	__syncthreads();
	if (threadIdx.x >= PREPARE_THREADS)
		return;
	float cq[8][4] = {}, ck[8][4] = {};
	scores<KT, DELTA>(s, warp, cq, ck);
	if (small[warp]) {
		pair_scores<KT, DELTA>(w, in, warp, &pair[warp]);
		const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
		for (uint32_t i = 0; i < 8; i++) {
			const uint32_t r = g + (i & 2 ? 8 : 0), j = i / 4 * 8 + 2 * t + (i & 1);
#pragma unroll
			for (uint32_t p = 0; p < BLOCKS; p++)
				if (p == warp) {
					cq[2 * p + i / 4][i % 4] = pair[warp].q[r * LDM + j];
					ck[2 * p + i / 4][i % 4] = pair[warp].k[r * LDM + j];
				}
		}
	}
	triangle *tri = (triangle *)memory;
	team_meet(0); /* the tiles have been read */
	write_scores<DELTA>(a, w, beta, warp, cq, ck, &to->base, tri);
	if (!DELTA)
		return;
	team_meet(0);
	inverse(a, w, w.head, 1, 0, warp, tri, &to->base);
}

template <int KT, bool DELTA> cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	return mx_launch(prepare<KT, DELTA>, dim3(a.heads, a.n_notes), dim3(KT * 8 * BLOCKS),
	                 sizeof(tiles<KT>), stream, a);
}

template <int KT, bool DELTA> cudaError_t opt_in(void)
{
	return cudaFuncSetAttribute(prepare<KT, DELTA>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)sizeof(tiles<KT>));
}

} // namespace

cudaError_t recur_cuda_stretch_vectors(cudaStream_t stream, const struct recur_core *a)
{
	if (a->kpad == 64)
		return a->delta ? launch<4, true>(stream, *a) : launch<4, false>(stream, *a);
	return a->delta ? launch<8, true>(stream, *a) : launch<8, false>(stream, *a);
}

cudaError_t recur_cuda_stretch_vectors_prepare(uint32_t kpad)
{
	const cudaError_t e = kpad == 64 ? opt_in<4, true>() : opt_in<8, true>();
	if (e != cudaSuccess)
		return e;
	return kpad == 64 ? opt_in<4, false>() : opt_in<8, false>();
}
