/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of long spans, stretch by stretch (stretch.cuh). A thread block has up to 64
 * columns of a head. With R a stretch's x and U = T R,
 *
 *     R = beta (V - gamma K S)     O = gamma Q S + P U     S <- d S + K^T (to_end U)
 *
 * all transposed, so that columns of S are the rows of a warpgroup's products: S, R and U stay in
 * its registers, and B operands are tiles of k, q, T and P as they come from memory. One warpgroup
 * has S; a second one, a stretch behind, computes outputs from what the first hands over; two
 * warps copy the next stretches' operands to shared memory. Scalar factors without the delta rule
 * need no T, and P is little: a fourth warpgroup computes it.
 */
#include <stddef.h>

#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/recurrence/cuda/stretch_state.cuh"

#define BESIDE_FROM   4096 /* rows from which on stretches are prepared beside the chain */
#define MOST_SEGMENTS 16

namespace
{

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The second warpgroup's threads wait for each other. */
__device__ __forceinline__ void meet_second(void)
{
	asm volatile("bar.sync 2, %0;" ::"n"(GROUP) : "memory");
}

/* ---- the first warpgroup: S ---- */

/* x of the rings, in the delta rule: reads that of old tokens, or writes that of the last stretch.
 */
template <bool WRITE>
__device__ __forceinline__ void ring_x(const recur_core &a, const part_of_head &w, const stretch &s,
                                       float (&x)[32])
{
	const uint32_t warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	float *ring = (float *)(w.unit + a.unit.x) + w.unit_col + 16 * warp + g +
	              (size_t)ring_of(a, s.from) * a.unit.cols;
	if (16 * warp >= w.cols)
		return;
#pragma unroll
	for (uint32_t i = 0; i < 32; i++) {
		const uint32_t j = i / 4 * 8 + 2 * t + (i & 1), c = i & 2 ? 8 : 0;
		if (WRITE && j < s.len)
			ring[j * a.unit.cols + c] = x[i];
		if (!WRITE && j < s.r0)
			x[i] = ring[j * a.unit.cols + c];
	}
}

/* Two pieces of sums as an operand: what the first leaves over. */
__device__ __forceinline__ void rest(const float (&d)[32], int s, const uint32_t *a, uint32_t *out)
{
#pragma unroll
	for (int e = 0; e < 4; e++)
		out[e] = pack(d[8 * s + 2 * e] - low_of(a[e]), d[8 * s + 2 * e + 1] - high_of(a[e]));
}

/* S at the beginning of this block's segment: of the span, taken through the pieces in front. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void first_state(const recur_core &a, const segments &all,
                                            float (&state)[KT * 8])
{
	for (uint32_t n = 0; n <= blockIdx.z * all.pieces; n++) {
		const piece *from = piece_at(a, all, n);
		if (n)
			decay_state<KT, VECTOR>(from->d[0], from->d, state);
#pragma unroll
		for (int i = 0; i < KT * 2; i++) {
			const float4 x = from->s[i * GROUP + threadIdx.x];
			state[4 * i] = n ? state[4 * i] + x.x : x.x;
			state[4 * i + 1] = n ? state[4 * i + 1] + x.y : x.y;
			state[4 * i + 2] = n ? state[4 * i + 2] + x.z : x.z;
			state[4 * i + 3] = n ? state[4 * i + 3] + x.w : x.w;
		}
	}
}

/* What a thread needs for R of its tokens. */
struct own_numbers {
	float2 gamma[8], b[8];
};

/* R of a stretch from v and S k, which is in x: then U, in two pieces of R. */
__device__ __forceinline__ void solve(const recur_core &a, const part_of_head &w, uint32_t i,
                                      uint32_t at_t, const own_numbers &numbers,
                                      const uint32_t (&v)[4][4], float (&x)[32], float (&u)[32])
{
	const stretch at = stretch_at(w, i);
	float f[16], bv[32];
	uint32_t r[4][4], low[4][4];
#pragma unroll
	for (int n = 0; n < 8; n++) {
		const float2 gamma = numbers.gamma[n], b = numbers.b[n];
		const uint32_t lo = v[n / 2][n % 2 * 2], hi = v[n / 2][n % 2 * 2 + 1];
		f[2 * n] = -b.x * gamma.x, f[2 * n + 1] = -b.y * gamma.y;
		bv[4 * n] = b.x * low_of(lo), bv[4 * n + 1] = b.y * high_of(lo);
		bv[4 * n + 2] = b.x * low_of(hi), bv[4 * n + 3] = b.y * high_of(hi);
	}
	hold(f);
	hold(bv);
	products_wait();
	hold(x);
#pragma unroll
	for (int n = 0; n < 32; n++)
		x[n] = __fmaf_rn(f[n / 4 * 2 + n % 2], x[n], bv[n]);
	if (at.r0)
		ring_x<false>(a, w, at, x);
	if (is_last(w, i))
		ring_x<true>(a, w, at, x);
#pragma unroll
	for (int k = 0; k < 4; k++)
		operand(x, k, r[k]);
	hold(u);
	hold(r);
	products_begin();
#pragma unroll
	for (int k = 0; k < 4; k++)
		product_16<1>(u, r[k], matrix_at(at_t + k * 2048, 0), k > 0);
	products_commit();
#pragma unroll
	for (int k = 0; k < 4; k++)
		rest(x, k, r[k], low[k]);
	hold(low);
	products_begin();
#pragma unroll
	for (int k = 0; k < 4; k++)
		product_16<1>(u, low[k], matrix_at(at_t + k * 2048, 0), true);
	products_commit();
}

/* A stretch of the first warpgroup. `hand`: what the second one gets. */
template <int KT, bool DELTA, bool VECTOR>
__device__ __forceinline__ void advance(const recur_core &a, const part_of_head &w, uint32_t i,
                                        uint32_t stage, const float *numbers, uint4 *hand,
                                        float (&state)[KT * 8])
{
	typedef plan<KT, DELTA, VECTOR> P;
	const uint32_t t = threadIdx.x & 3, keys = stage + (VECTOR ? P::k_from : 0);
	uint32_t s[KT][4], v[4][4], u[4][4];
	float x[32], sums[32];
	float2 to_end[8];
	own_numbers own;
	/* first what shared memory has to bring: products' issue waits for nothing then */
	load_v(stage + P::v, v);
	if (DELTA)
#pragma unroll
		for (int n = 0; n < 8; n++) {
			own.gamma[n] = *(const float2 *)(numbers + 8 * n + 2 * t);
			own.b[n] = *(const float2 *)(numbers + 2 * STRETCH + 8 * n + 2 * t);
		}
	if (is_last(w, i) && w.from + i) /* as of the slot's border */
		store_state<KT>(a, w, state);
#pragma unroll
	for (int k = 0; k < KT; k++)
		operand(state, k, s[k]);
	if (DELTA) {
		hold(x);
		hold(s);
		products_begin();
#pragma unroll
		for (int k = 0; k < KT; k++)
			product_16<0>(x, s[k], matrix_at(keys + k / 4 * MATRIX + k % 4 * 32, 0), k > 0);
		products_commit();
	}
#pragma unroll
	for (int k = 0; k < KT; k++)
		hand[k * GROUP] = make_uint4(s[k][0], s[k][1], s[k][2], s[k][3]);
	if (DELTA)
		solve(a, w, i, stage + P::t, own, v, x, sums);
	else {
#pragma unroll
		for (int n = 0; n < 8; n++) {
			const uint32_t lo = v[n / 2][n % 2 * 2], hi = v[n / 2][n % 2 * 2 + 1];
			sums[4 * n] = low_of(lo), sums[4 * n + 1] = high_of(lo);
			sums[4 * n + 2] = low_of(hi), sums[4 * n + 3] = high_of(hi);
		}
	}
	decay_state<KT, VECTOR>(numbers[3 * STRETCH], numbers + (P::d - P::chain_numbers) / 4, state);
#pragma unroll
	for (int n = 0; n < 8; n++)
		to_end[n] = *(const float2 *)(numbers + STRETCH + 8 * n + 2 * t);
	if (DELTA) {
		products_wait();
		hold(sums);
	}
#pragma unroll
	for (int n = 0; n < 32; n++)
		x[n] = sums[n] * (n % 2 ? to_end[n / 4].y : to_end[n / 4].x);
#pragma unroll
	for (int k = 0; k < 4; k++)
		operand(x, k, u[k]);
	hold(state);
	hold(u);
	products_begin();
#pragma unroll
	for (int k = 0; k < 4; k++)
		product_16<1>(state, u[k], matrix_at(stage + k * 2048, MATRIX), true);
	products_commit();
#pragma unroll
	for (int k = 0; k < 4; k++) {
		if (DELTA)
			operand(sums, k, v[k]);
		hand[(KT + k) * GROUP] = make_uint4(v[k][0], v[k][1], v[k][2], v[k][3]);
	}
	products_wait();
	hold(state);
}

/* ---- the second warpgroup: outputs ---- */

/* Outputs of a whole stretch to shared memory at `stage`, for boxes of 32 columns. */
__device__ __forceinline__ void stage_outputs(unsigned char *stage, const float (&o)[32])
{
	const uint32_t n = threadIdx.x % GROUP, warp = n >> 5, g = (n & 31) >> 2, t = n & 3;
	float *place[4];
#pragma unroll
	for (uint32_t e = 0; e < 4; e++) {
		const uint32_t c = 16 * (warp & 1) + g + (e & 2) * 4;
		place[e] = (float *)(stage + warp / 2 * MATRIX + swizzled(2 * t + (e & 1), c / 4)) + c % 4;
	}
#pragma unroll
	for (uint32_t e = 0; e < 32; e++)
		place[e % 4][e / 4 * 256] = o[e];
}

/* The same in bf16, for one box of 64 columns. */
__device__ __forceinline__ void stage_halves(uint32_t stage, const float (&o)[32])
{
	const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x % GROUP >> 5;
	const uint32_t at = stage + swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
	for (uint32_t m = 0; m < 4; m++) /* 16 tokens; rows of 1024 bytes do not change the swizzle */
		asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
						 at + m * 2048),
		             "r"(pack(o[8 * m], o[8 * m + 1])), "r"(pack(o[8 * m + 2], o[8 * m + 3])),
		             "r"(pack(o[8 * m + 4], o[8 * m + 5])), "r"(pack(o[8 * m + 6], o[8 * m + 7]))
		             : "memory");
}

/* Writes outputs: by boxes through shared memory at `stage`, which products have read, or as they
 * are. */
__device__ __forceinline__ void write_outputs(const recur_core &a, const tensors &maps,
                                              const part_of_head &w, const stretch &at,
                                              unsigned char *stage, const float (&o)[32])
{
	const uint32_t n = threadIdx.x % GROUP, warp = n >> 5, g = (n & 31) >> 2, t = n & 3;
	const int64_t row = (int64_t)w.span.row + at.from - w.span.pos;
	if (maps.y_too && is_whole(at) && w.col + COLS <= a.v_dim) {
		const uint32_t to = (uint32_t)__cvta_generic_to_shared(stage);
		meet_second(); /* all warps' products are done */
		if (a.y_half)
			stage_halves(to, o);
		else
			stage_outputs(stage, o);
		stores_done();
		meet_second();
		if (n == 0) {
			const uint32_t x = w.head * a.v_dim + w.col;
			copy_box_out(&maps.y, x, (uint32_t)row, to);
			if (!a.y_half)
				copy_box_out(&maps.y, x + 32, (uint32_t)row, to + MATRIX);
			boxes_commit();
		}
		return;
	}
	const uint32_t c = w.col + 16 * warp + g;
	const size_t ld = (size_t)a.heads * a.v_dim;
	float *y = a.y + row * (int64_t)ld;
	const uint32_t first = w.head * a.v_dim + c;
	const bool low = 16 * warp < w.cols && c < a.v_dim;
	const bool high = 16 * warp < w.cols && c + 8 < a.v_dim;
#pragma unroll
	for (uint32_t e = 0; e < 32; e++) {
		const uint32_t j = e / 4 * 8 + 2 * t + (e & 1), i = first + (e & 2 ? 8 : 0);
		if (j < at.r0 || j >= at.len || !(e & 2 ? high : low))
			continue;
		if (a.y_half)
			((T *)(y + j * ld))[i] = __float2bfloat16_rn(o[e]);
		else
			y[j * ld + i] = o[e];
	}
}

template <int KT> __device__ __forceinline__ void take_u(const uint4 *hand, uint32_t (&u)[4][4])
{
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const uint4 x = hand[(KT + k) * GROUP];
		u[k][0] = x.x, u[k][1] = x.y, u[k][2] = x.z, u[k][3] = x.w;
	}
}

/* Outputs of a stretch, `o`, from what was handed over. LATE: U is read behind the first product;
 * where registers are few that costs more than it saves. */
template <int KT, bool LATE>
__device__ __forceinline__ void output(uint32_t at_q, uint32_t at_p, const float (&gamma)[16],
                                       const uint4 *hand, float (&o)[32])
{
	uint32_t s[KT][4], u[4][4];
#pragma unroll
	for (int k = 0; k < KT; k++) {
		const uint4 x = hand[k * GROUP];
		s[k][0] = x.x, s[k][1] = x.y, s[k][2] = x.z, s[k][3] = x.w;
	}
	if (!LATE)
		take_u<KT>(hand, u);
	hold(o);
	hold(s);
	products_begin();
#pragma unroll
	for (int k = 0; k < KT; k++)
		product_16<0>(o, s[k], matrix_at(at_q + k / 4 * MATRIX + k % 4 * 32, 0), k > 0);
	products_commit();
	if (LATE)
		take_u<KT>(hand, u);
	products_wait();
	hold(o);
#pragma unroll
	for (int e = 0; e < 32; e++)
		o[e] *= gamma[e / 4 * 2 + e % 2];
	hold(o);
	hold(u);
	products_begin();
#pragma unroll
	for (int k = 0; k < 4; k++)
		product_16<0>(o, u[k], matrix_at(at_p + k * 32, 0), true);
	products_commit();
	products_wait();
	hold(o);
}

template <int KT, bool DELTA, bool VECTOR>
__device__ __forceinline__ void output_all(const recur_core &a, const tensors &maps,
                                           const part_of_head &w, unsigned char *memory,
                                           uint32_t base)
{
	typedef plan<KT, DELTA, VECTOR> P;
	const uint4 *hands = (const uint4 *)(memory + P::at_hand) + threadIdx.x % GROUP;
	const uint32_t n = w.n, t = threadIdx.x & 3;
	for (uint32_t i = 0; i <= n; i++) {
		meet<P::working>(); /* stretch i - 1 has been handed over */
		if (threadIdx.x % GROUP < 32) {
			boxes_read();
			outputs_written();
		}
		if (i) {
			const uint32_t last = (i - 1) % P::out_depth, stage = P::at_outputs + last * P::outputs;
			const uint32_t p = P::plain ? P::at_p + (i - 1) % 2 * P::p_bytes : stage + P::keys;
			const uint32_t numbers = P::plain ? p + MATRIX : stage + P::out_numbers;
			float o[32], gamma[16];
			barrier_wait(base + P::at_bars + (P::depth + last) * 8, (i - 1) / P::out_depth & 1);
#pragma unroll
			for (int m = 0; m < 8; m++) {
				const float2 f = *(const float2 *)(memory + numbers + 4 * (8 * m + 2 * t));
				gamma[2 * m] = f.x, gamma[2 * m + 1] = f.y;
			}
			output<KT, P::plain>(base + stage, base + p, gamma,
			                     hands + (i - 1) % 2 * (P::hand / 16), o);
			write_outputs(a, maps, w, stretch_at(w, i - 1), memory + stage, o);
		}
	}
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- the fourth warpgroup: scores ---- */

/* P of a stretch to shared memory: scores of q and k, decayed and times the gain; and gamma. */
template <int KT>
__device__ __forceinline__ void weigh(const recur_core &a, const part_of_head &w, uint32_t i,
                                      uint32_t at_q, uint32_t at_k, const float *numbers,
                                      unsigned char *p)
{
	const uint32_t warp = threadIdx.x % GROUP >> 5, g = (threadIdx.x & 31) >> 2,
				   t = threadIdx.x & 3;
	const uint32_t r = 16 * warp + g;
	const stretch x = stretch_at(w, i);
	const float skip = a.skip ? a.skip[w.head] : 0, sum[2] = {numbers[r], numbers[r + 8]};
	unsigned char *to = p + r * 128 + 4 * t;
	float c[32];
	hold(c);
	products_begin();
#pragma unroll
	for (int k = 0; k < KT; k++)
		product_shared(c, matrix_at(at_q + k / 4 * MATRIX + k % 4 * 32, 0),
		               matrix_at(at_k + k / 4 * MATRIX + k % 4 * 32, 0), k > 0);
	products_commit();
	if (threadIdx.x % GROUP < STRETCH)
		((float *)(p + MATRIX))[threadIdx.x % GROUP] = power(numbers[threadIdx.x % GROUP]);
	products_wait();
	hold(c);
#pragma unroll
	for (uint32_t m = 0; m < 8; m++) {
		const uint32_t j = 8 * m + 2 * t;
		uint32_t two[2] = {0, 0};
		if (m < 2 * warp + 2) {
			const float2 past = *(const float2 *)(numbers + j);
			float2 gain = make_float2(1, 1);
			if (a.gain)
				gain = *(const float2 *)(numbers + 2 * STRETCH + j);
#pragma unroll
			for (uint32_t half = 0; half < 2; half++) {
				float x0 = c[4 * m + 2 * half] * power(sum[half] - past.x) * gain.x;
				float x1 = c[4 * m + 2 * half + 1] * power(sum[half] - past.y) * gain.y;
				if (m >= 2 * warp) { /* on the diagonal, above which powers may be infinite */
					const uint32_t row = r + 8 * half;
					const float own = row >= x.r0 && row < x.len ? skip : 0;
					x0 = j < row ? x0 : j == row ? x0 + own : 0;
					x1 = j + 1 < row ? x1 : j + 1 == row ? x1 + own : 0;
				}
				two[half] = pack(x0, x1);
			}
		}
		*(uint32_t *)(to + ((m ^ g) << 4)) = two[0];
		*(uint32_t *)(to + ((m ^ g) << 4) + 1024) = two[1];
	}
	stores_done(); /* read by the other warpgroup's products after they have met */
}

template <int KT, bool DELTA, bool VECTOR>
__device__ __forceinline__ void weigh_all(const recur_core &a, const part_of_head &w,
                                          unsigned char *memory, uint32_t base)
{
	typedef plan<KT, DELTA, VECTOR> P;
	for (uint32_t i = 0; i < w.n; i++) {
		meet<P::working>(); /* operands of stretch i are there, and P of i - 2 has been read */
		const uint32_t stage = i % P::depth * P::chain;
		barrier_wait(base + P::at_bars + i % P::depth * 8, i / P::depth & 1);
		barrier_wait(base + P::at_bars + (P::depth + i % P::out_depth) * 8, i / P::out_depth & 1);
		weigh<KT>(a, w, i, base + P::at_outputs + i % P::out_depth * P::outputs, base + stage,
		          (const float *)(memory + stage + P::chain_numbers),
		          memory + P::at_p + i % 2 * P::p_bytes);
	}
	meet<P::working>();
}

#endif

template <int KT, bool DELTA, bool VECTOR>
__global__ void __launch_bounds__(plan<KT, DELTA, VECTOR>::threads, 1)
	stretches(const recur_core a, const __grid_constant__ tensors maps, const segments all,
              const bool beside)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef plan<KT, DELTA, VECTOR> P;
	extern __shared__ unsigned char memory[];
	part_of_head w;
	const bool cut = !DELTA && all.n > 1;
	const bool is_there = find_part(a, &w);
	mx_pdl_launch();
	if (is_there && cut)
		take_pieces(all, blockIdx.z * all.pieces, all.pieces, &w);
	if (!is_there || !w.n) {
		if (!beside) /* else the long span's blocks do */
			mx_pdl_wait();
		return;
	}
	w.beside = beside;

	const uint32_t start = (uint32_t)__cvta_generic_to_shared(memory);
	const uint32_t base = (start + 1023) / 1024 * 1024, n = w.n;
	unsigned char *at = memory + (base - start);
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < P::bars; i++)
			barrier_init(base + P::at_bars + 8 * i);
		barriers_ready();
	}
	__syncthreads();
	/* of a warp, so that products are not in a divergent path */
	const uint32_t role = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
	if (role == 0) {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(P::for_state));
		float state[KT * 8];
		uint4 *hands = (uint4 *)(at + P::at_hand) + threadIdx.x;
		if (!cut)
			load_state<KT>(a, w, state);
		if (!beside)
			mx_pdl_wait();
		if (cut)
			first_state<KT, VECTOR>(a, all, state);
		for (uint32_t i = 0; i < n; i++) {
			meet<P::working>(); /* operands of stretch i are there, and the buffer of i - 2 has been
			                       read */
			const uint32_t stage = i % P::depth * P::chain;
			barrier_wait(base + P::at_bars + i % P::depth * 8, i / P::depth & 1);
			const float *numbers = (const float *)(at + stage + P::chain_numbers);
			advance<KT, DELTA, VECTOR>(a, w, i, base + stage, numbers,
			                           hands + i % 2 * (P::hand / 16), state);
		}
		meet<P::working>();
	} else if (role == 1) {
		if (P::plain)
			asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(P::for_outputs));
		else
			asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(P::for_outputs));
		if (!beside)
			mx_pdl_wait();
		output_all<KT, DELTA, VECTOR>(a, maps, w, at, base);
	} else if (P::plain && role == 3) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
		mx_pdl_wait();
		weigh_all<KT, DELTA, VECTOR>(a, w, at, base);
	} else {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
		if (!beside)
			mx_pdl_wait();
		if (threadIdx.x < 2 * GROUP + 32)
			copy_all<P, false>(a, maps, w, base);
		else if (threadIdx.x < 2 * GROUP + 64)
			copy_all<P, true>(a, maps, w, base);
		else if (P::plain && threadIdx.x < 2 * GROUP + 96)
			number_all<P>(a, w, at);
	}
	if (beside)
		mx_pdl_wait(); /* so that the next kernel's wait is one for all before it */
#else
	(void)a, (void)maps, (void)all, (void)beside;
	__trap(); /* never launched: recur_cuda_stretch_can is false */
#endif
}

/* What the rings keep of a span, but for x of the delta rule; the border, and inputs of
 * convolutions. */
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
	const division d = divide(span, *(const volatile uint32_t *)unit);
	const uint32_t hk = shared_head(head, a.per_k);
	const uint32_t ha = a.decays ? shared_head(head, a.per_a) : 0;
	const uint32_t lane = threadIdx.x & 31, j = threadIdx.x >> 5, pos = d.next + j;
	__syncthreads();   /* every thread has read the border */
	if (pos < d.end) { /* a warp has a token */
		const size_t row = span.row + (pos - span.pos), entry = pos % a.unit.cap;
		const note *last = note_at(a, first_note(a, span, blockIdx.y) + d.n - 1, head);
		if (lane < parts)
			((uint4 *)(unit + a.unit.k))[entry * parts + lane] =
				((const uint4 *)a.k)[row * ld_k_of(a) / 8 + hk * parts + lane];
		if (!a.delta && lane < a.unit.cols / 8)
			((uint4 *)(unit + a.unit.x))[entry * (a.unit.cols / 8) + lane] =
				((const uint4 *)
			         a.v)[row * ld_v_of(a) / 8 + shared_head(head, a.per_v) * a.vpad / 8 +
			              (blockIdx.x % a.unit.per_head) * a.unit.cols / 8 + lane];
		if (a.delta && lane < Q)
			((float *)(unit + a.unit.t))[entry * Q + lane] = last->t16[j * Q + lane];
		if (a.vector)
			for (uint32_t i = lane; i < a.kpad; i += 32)
				((float *)(unit + a.unit.a))[entry * a.kpad + i] =
					a.a[(row * a.a_heads + ha) * a.kpad + i];
		if (lane == 0 && a.decays && !a.vector && !a.fixed_a)
			((float *)(unit + a.unit.a))[entry] = a.a[row * a.a_heads + ha];
		if (lane == 0 && a.gain)
			((float *)(unit + a.unit.b))[entry] = a.b[row * a.heads + head];
	}
	if (threadIdx.x == 0)
		*(uint32_t *)unit = d.next;
	keep_inputs<T>(a, span);
}

typedef CUresult encode_f(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                          const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                          const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                          CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, found by opt_in: a program need not link with the driver. */
encode_f *encode;

cudaError_t find_encode(void)
{
	void *f = NULL;
	cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	if (encode)
		return cudaSuccess;
#if CUDART_VERSION >= 12050
	const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
	                                                       cudaEnableDefault, &found);
#else
	const cudaError_t e =
		cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found);
#endif
	if (e != cudaSuccess || found != cudaDriverEntryPointSuccess || !f)
		return e != cudaSuccess ? e : cudaErrorSymbolNotFound;
	encode = (encode_f *)f;
	return cudaSuccess;
}

/* Describes rows of `cols` elements, `ld` bytes apart, of which 64 of 128 bytes are copied at once.
 */
bool describe(CUtensorMap *out, const void *at, uint32_t cols, uint32_t rows, size_t ld, bool f32)
{
	const cuuint64_t size[] = {cols, rows}, stride[] = {ld};
	const cuuint32_t box[] = {f32 ? 32u : 64u, STRETCH}, step[] = {1, 1};
	return encode(out, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
	              (void *)at, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
	              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

uint32_t multiprocessors(void)
{
	int device = 0, sms = 0;
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
		return 0;
	return (uint32_t)sms;
}

/* Returns how one long span, of whose chain there are `blocks` blocks, is cut: so that a
 * multiprocessor has the fewest stretches. In stretches of a chain, a piece's take a sixth, since
 * memory bounds them; another launch takes four, and four entries one. */
segments cut_of(uint32_t blocks, const recur_core &a)
{
	const uint32_t sms = multiprocessors(), n = a.step.n_rows / STRETCH;
	segments best = {1, 1};
	if (a.n_long != 1 || !sms)
		return best;
	uint32_t least = (blocks + sms - 1) / sms * n;
	for (uint32_t i = 2; i <= MOST_SEGMENTS; i++) {
		const uint32_t waves = (i * blocks + sms - 1) / sms, most = n / (4 * i);
		const uint32_t pieces = 2 * sms / ((i - 1) * blocks), fewer = pieces < most ? pieces : most;
		const segments all = {i, fewer ? fewer : 1};
		const uint32_t cost = waves * ((n + i - 1) / i) + n * (i - 1) / i * blocks / (3 * sms) +
		                      waves + entries_of(all) / 4 + 4;
		if (cost < least && entries_of(all) * blocks <= a.n_pieces)
			least = cost, best = all;
	}
	return best;
}

/* Returns how many multiprocessors prepare what `blocks` blocks of a span's chain, one a
 * multiprocessor, read at the same time; 0: chain needs most of them, is short or is of several
 * spans, and runs afterwards. */
uint32_t beside_of(uint32_t blocks, uint32_t n_long, uint32_t n_rows)
{
	const uint32_t sms = multiprocessors();
	if (n_long != 1 || n_rows < BESIDE_FROM)
		return 0;
	return 2 * blocks <= sms ? sms - blocks : 0;
}

template <int KT, bool DELTA, bool VECTOR>
cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	const uint32_t per_unit = (a.unit.cols + COLS - 1) / COLS, units = a.heads * a.unit.per_head;
	const uint32_t blocks = units * per_unit;
	const uint32_t beside = DELTA && !VECTOR ? beside_of(blocks, a.n_long, a.step.n_rows) : 0;
	const segments all = DELTA ? segments{1, 1} : cut_of(blocks, a);
	tensors maps = {};
	cudaError_t e = cudaSuccess;
	const uint32_t k = a.k_heads * a.kpad, q = a.q_heads * a.kpad, v = a.v_heads * a.vpad;
	const uint32_t y = a.heads * a.v_dim, n = a.step.n_rows;
	if (!describe(&maps.k, a.k, k, n, ld_k_of(a) * sizeof(T), false) ||
	    !describe(&maps.q, a.q, q, n, q * sizeof(T), false) ||
	    !describe(&maps.v, a.v, v, n, ld_v_of(a) * sizeof(T), false))
		return cudaErrorInvalidValue;
	maps.y_too = a.v_dim % COLS == 0 && describe(&maps.y, a.y, y, n, y * sizeof(float), !a.y_half);
	if (VECTOR)
		e = recur_cuda_stretch_vectors(stream, &a);
	else if (DELTA)
		e = recur_cuda_stretch_scores(stream, &a, beside);
	if (e == cudaSuccess && !DELTA && all.n > 1)
		e = recur_cuda_stretch_pieces(stream, &a, &maps, all.n, all.pieces);
	if (e == cudaSuccess)
		e = mx_launch(stretches<KT, DELTA, VECTOR>, dim3(blocks, a.step.n_spans, all.n),
		              dim3(plan<KT, DELTA, VECTOR>::threads), plan<KT, DELTA, VECTOR>::bytes,
		              stream, a, maps, all, beside > 0);
	if (e == cudaSuccess)
		e = mx_launch(keep, dim3(units, a.step.n_spans), dim3(Q * 32), 0, stream, a);
	return e;
}

template <int KT, bool DELTA, bool VECTOR> cudaError_t opt_in(void)
{
	return cudaFuncSetAttribute(stretches<KT, DELTA, VECTOR>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            plan<KT, DELTA, VECTOR>::bytes);
}

} // namespace

bool recur_cuda_stretch_can(int sm, uint32_t kpad)
{
#if defined(MX_CUDA_90A)
	return sm == 90 && (kpad == 64 || kpad == 128);
#else
	(void)sm, (void)kpad;
	return false;
#endif
}

template <int KT> static cudaError_t launch_for(cudaStream_t stream, const recur_core &a)
{
	if (a.vector)
		return a.delta ? launch<KT, true, true>(stream, a) : launch<KT, false, true>(stream, a);
	return a.delta ? launch<KT, true, false>(stream, a) : launch<KT, false, false>(stream, a);
}

cudaError_t recur_cuda_stretch(cudaStream_t stream, const struct recur_core *a)
{
	return a->kpad == 64 ? launch_for<4>(stream, *a) : launch_for<8>(stream, *a);
}

template <int KT> static cudaError_t opt_in_for(bool vector)
{
	cudaError_t e = vector ? recur_cuda_stretch_vectors_prepare(KT * 16)
	                       : recur_cuda_stretch_scores_prepare(KT * 16);
	if (e == cudaSuccess)
		e = recur_cuda_stretch_pieces_prepare(KT * 16, vector);
	if (e == cudaSuccess)
		e = vector ? opt_in<KT, true, true>() : opt_in<KT, true, false>();
	if (e == cudaSuccess)
		e = vector ? opt_in<KT, false, true>() : opt_in<KT, false, false>();
	return e;
}

cudaError_t recur_cuda_stretch_prepare(uint32_t kpad, bool vector)
{
	const cudaError_t e = find_encode();
	if (e != cudaSuccess)
		return e;
	return kpad == 64 ? opt_in_for<4>(vector) : opt_in_for<8>(vector);
}

size_t recur_cuda_note_bytes(uint32_t kpad, bool vector, bool delta)
{
	if (!vector)
		return sizeof(note);
	if (!delta)
		return kpad == 64 ? offsetof(vector_note<4>, k_from) : offsetof(vector_note<8>, k_from);
	return kpad == 64 ? sizeof(vector_note<4>) : sizeof(vector_note<8>);
}
