/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of long spans, stretch by stretch (stretch.cuh). A thread block has up to 64
 * columns of a head. With R a stretch's x and U = T R,
 *
 *     R = beta (V - gamma K S)     O = gamma Q S + P U     S <- d S + K^T (to_end U)
 *
 * all transposed, so that columns of S are the rows of a warpgroup's products: S, R and U stay in
 * its registers, and B operands are tiles of k, q, T and P as they come from memory. One warpgroup
 * has S; a second one, a stretch behind, computes outputs from what the first hands over; a warp
 * copies the next stretches' operands to shared memory. Scalar factors without the delta rule need
 * no T, and P is little: a fourth warpgroup computes it.
 */
#include <stddef.h>

#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/recurrence/cuda/stretch_copy.cuh"

#define BESIDE_FROM 4096 /* rows from which on stretches are prepared beside the chain */

namespace
{

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

/* The second warpgroup's threads wait for each other. */
__device__ __forceinline__ void meet_second(void)
{
	asm volatile("bar.sync 2, %0;" ::"n"(GROUP) : "memory");
}

/* ---- the first warpgroup: S ---- */

template <int KT>
__device__ __forceinline__ float4 *state_at(const recur_core &a, const part_of_head &w, int i)
{
	const uint32_t warp = threadIdx.x >> 5;
	return (float4 *)(w.unit + a.unit.S) + ((size_t)(w.unit_col / 16 + warp) * KT * 2 + i) * 32 +
	       (threadIdx.x & 31);
}

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

/* The same of v, without the delta rule: as it came. */
__device__ __forceinline__ void keep_v(const recur_core &a, const part_of_head &w, const stretch &s,
                                       const uint32_t (&v)[4][4])
{
	const uint32_t warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	uint16_t *ring = (uint16_t *)(w.unit + a.unit.x) + w.unit_col + 16 * warp + g +
	                 (size_t)ring_of(a, s.from) * a.unit.cols;
	if (16 * warp >= w.cols)
		return;
#pragma unroll
	for (uint32_t i = 0; i < 8; i++) { /* the first 16 tokens */
		const uint32_t j = i / 4 * 8 + 2 * t + (i & 1), c = i & 2 ? 8 : 0;
		const uint32_t two = v[0][i / 2];
		if (j < s.len)
			ring[j * a.unit.cols + c] = (uint16_t)(i & 1 ? two >> 16 : two);
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

/* Two pieces of sums as an operand: what the first leaves over. */
__device__ __forceinline__ void rest(const float (&d)[32], int s, const uint32_t *a, uint32_t *out)
{
#pragma unroll
	for (int e = 0; e < 4; e++)
		out[e] = pack(d[8 * s + 2 * e] - low_of(a[e]), d[8 * s + 2 * e + 1] - high_of(a[e]));
}

/* S by the products of a stretch's factors, one or (d) a vector. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void decay_state(const float *numbers, const float *d,
                                            float (&state)[KT * 8])
{
	const float all = numbers[3 * STRETCH];
#pragma unroll
	for (int k = 0; k < KT * 2; k++) {
		float2 f = make_float2(all, all);
		if (VECTOR)
			f = *(const float2 *)(d + 8 * k + 2 * (threadIdx.x & 3));
		state[4 * k] *= f.x, state[4 * k + 1] *= f.y;
		state[4 * k + 2] *= f.x, state[4 * k + 3] *= f.y;
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
	const stretch at = stretch_of(w.all, i);
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
	if (i + 1 == w.all.n)
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
	if (i + 1 == w.all.n && i && 16 * (threadIdx.x >> 5) < w.cols) /* S as of the slot's border */
#pragma unroll
		for (int k = 0; k < KT * 2; k++)
			*state_at<KT>(a, w, k) =
				make_float4(state[4 * k], state[4 * k + 1], state[4 * k + 2], state[4 * k + 3]);
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
		if (i + 1 == w.all.n)
			keep_v(a, w, stretch_of(w.all, i), v);
#pragma unroll
		for (int n = 0; n < 8; n++) {
			const uint32_t lo = v[n / 2][n % 2 * 2], hi = v[n / 2][n % 2 * 2 + 1];
			sums[4 * n] = low_of(lo), sums[4 * n + 1] = high_of(lo);
			sums[4 * n + 2] = low_of(hi), sums[4 * n + 3] = high_of(hi);
		}
	}
	decay_state<KT, VECTOR>(numbers, numbers + (P::d - P::chain_numbers) / 4, state);
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
		float *place[4];
#pragma unroll
		for (uint32_t e = 0; e < 4; e++) {
			const uint32_t c = 16 * (warp & 1) + g + (e & 2) * 4;
			place[e] =
				(float *)(stage + warp / 2 * MATRIX + swizzled(2 * t + (e & 1), c / 4)) + c % 4;
		}
#pragma unroll
		for (uint32_t e = 0; e < 32; e++)
			place[e % 4][e / 4 * 256] = o[e];
		stores_done();
		meet_second();
		if (n == 0) {
			const uint32_t x = w.head * a.v_dim + w.col;
			copy_box_out(&maps.y, x, (uint32_t)row, to);
			copy_box_out(&maps.y, x + 32, (uint32_t)row, to + MATRIX);
			boxes_commit();
		}
		return;
	}
	const uint32_t c = w.col + 16 * warp + g;
	float *y = a.y + (row * a.heads + w.head) * (int64_t)a.v_dim + c;
	const size_t ld = (size_t)a.heads * a.v_dim;
	const bool low = 16 * warp < w.cols && c < a.v_dim;
	const bool high = 16 * warp < w.cols && c + 8 < a.v_dim;
#pragma unroll
	for (uint32_t e = 0; e < 32; e++) {
		const uint32_t j = e / 4 * 8 + 2 * t + (e & 1);
		if (j >= at.r0 && j < at.len && (e & 2 ? high : low))
			y[j * ld + (e & 2 ? 8 : 0)] = o[e];
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
	const uint32_t n = w.all.n, t = threadIdx.x & 3;
	for (uint32_t i = 0; i <= n; i++) {
		meet<P::working>(); /* stretch i - 1 has been handed over */
		if (threadIdx.x % GROUP < 32) {
			boxes_read();
			outputs_written();
		}
		if (i) {
			const uint32_t last = (i - 1) % STAGES, stage = P::at_outputs + last * P::outputs;
			const uint32_t p = P::plain ? P::at_p + (i - 1) % 2 * P::p_bytes : stage + P::keys;
			const uint32_t numbers = P::plain ? p + MATRIX : stage + P::out_numbers;
			float o[32], gamma[16];
			barrier_wait(base + P::at_bars + (P::depth + last) * 8, (i - 1) / STAGES & 1);
#pragma unroll
			for (int m = 0; m < 8; m++) {
				const float2 f = *(const float2 *)(memory + numbers + 4 * (8 * m + 2 * t));
				gamma[2 * m] = f.x, gamma[2 * m + 1] = f.y;
			}
			output<KT, P::plain>(base + stage, base + p, gamma,
			                     hands + (i - 1) % 2 * (P::hand / 16), o);
			write_outputs(a, maps, w, stretch_of(w.all, i - 1), memory + stage, o);
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
	const stretch x = stretch_of(w.all, i);
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
	for (uint32_t i = 0; i < w.all.n; i++) {
		meet<P::working>(); /* operands of stretch i are there, and P of i - 2 has been read */
		const uint32_t stage = i % P::depth * P::chain;
		barrier_wait(base + P::at_bars + i % P::depth * 8, i / P::depth & 1);
		barrier_wait(base + P::at_bars + (P::depth + i % STAGES) * 8, i / STAGES & 1);
		weigh<KT>(a, w, i, base + P::at_outputs + i % STAGES * P::outputs, base + stage,
		          (const float *)(memory + stage + P::chain_numbers),
		          memory + P::at_p + i % 2 * P::p_bytes);
	}
	meet<P::working>();
}

#endif

template <int KT, bool DELTA, bool VECTOR>
__global__ void __launch_bounds__(plan<KT, DELTA, VECTOR>::threads, 1)
	stretches(const recur_core a, const __grid_constant__ tensors maps, const bool beside)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef plan<KT, DELTA, VECTOR> P;
	extern __shared__ unsigned char memory[];
	const uint32_t per_unit = (a.unit.cols + COLS - 1) / COLS, unit = blockIdx.x / per_unit;
	part_of_head w;
	w.span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	if (!is_long(w.span)) {
		if (!beside) /* else the long span's blocks do */
			mx_pdl_wait();
		return;
	}
	w.unit = a.step.slot_base + w.span.slot * a.step.slot_stride + unit * a.unit.bytes;
	w.head = unit / a.unit.per_head;
	w.unit_col = blockIdx.x % per_unit * COLS;
	w.col = unit % a.unit.per_head * a.unit.cols + w.unit_col;
	w.cols = a.unit.cols - w.unit_col < COLS ? a.unit.cols - w.unit_col : COLS;
	w.all = divide(w.span, *(const volatile uint32_t *)w.unit);
	w.beside = beside;

	const uint32_t start = (uint32_t)__cvta_generic_to_shared(memory);
	const uint32_t base = (start + 1023) / 1024 * 1024, n = w.all.n;
	unsigned char *at = memory + (base - start);
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < 2 * STAGES; i++)
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
#pragma unroll
		for (int i = 0; i < KT * 2; i++) {
			float4 x = make_float4(0, 0, 0, 0);
			if (16 * (threadIdx.x >> 5) < w.cols)
				x = *state_at<KT>(a, w, i);
			state[4 * i] = x.x, state[4 * i + 1] = x.y;
			state[4 * i + 2] = x.z, state[4 * i + 3] = x.w;
		}
		if (!beside)
			mx_pdl_wait();
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
			copy_all<KT, DELTA, VECTOR>(a, maps, w, base);
		else if (P::plain && threadIdx.x < 2 * GROUP + 64)
			number_all<KT, DELTA, VECTOR>(a, w, at);
	}
	if (beside)
		mx_pdl_wait(); /* so that the next kernel's wait is one for all before it */
#else
	(void)a, (void)maps, (void)beside;
	__trap(); /* never launched: recur_cuda_stretch_can is false */
#endif
}

/* What the rings keep of a span, but for x; the border, and inputs of convolutions. */
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
				((const uint4 *)a.k)[(row * a.k_heads + hk) * parts + lane];
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

/* Describes rows of `cols` elements, of which 64 of 128 bytes are copied at once. */
bool describe(CUtensorMap *out, const void *at, uint32_t cols, uint32_t rows, bool f32)
{
	const cuuint64_t size[] = {cols, rows}, stride[] = {cols * (f32 ? sizeof(float) : sizeof(T))};
	const cuuint32_t box[] = {f32 ? 32u : 64u, STRETCH}, step[] = {1, 1};
	return encode(out, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
	              (void *)at, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
	              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Returns how many multiprocessors prepare what `blocks` blocks of a span's chain, one a
 * multiprocessor, read at the same time; 0: chain needs most of them, is short or is of several
 * spans, and runs afterwards. */
uint32_t beside_of(uint32_t blocks, uint32_t n_long, uint32_t n_rows)
{
	int device = 0, sms = 0;
	if (n_long != 1 || n_rows < BESIDE_FROM || cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
		return 0;
	return 2 * blocks <= (uint32_t)sms ? (uint32_t)sms - blocks : 0;
}

template <int KT, bool DELTA, bool VECTOR>
cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	const uint32_t per_unit = (a.unit.cols + COLS - 1) / COLS, units = a.heads * a.unit.per_head;
	const uint32_t beside =
		DELTA && !VECTOR ? beside_of(units * per_unit, a.n_long, a.step.n_rows) : 0;
	tensors maps = {};
	cudaError_t e = cudaSuccess;
	if (!describe(&maps.k, a.k, a.k_heads * a.kpad, a.step.n_rows, false) ||
	    !describe(&maps.q, a.q, a.q_heads * a.kpad, a.step.n_rows, false) ||
	    !describe(&maps.v, a.v, a.v_heads * a.vpad, a.step.n_rows, false))
		return cudaErrorInvalidValue;
	maps.y_too =
		a.v_dim % COLS == 0 && describe(&maps.y, a.y, a.heads * a.v_dim, a.step.n_rows, true);
	if (VECTOR)
		e = recur_cuda_stretch_vectors(stream, &a);
	else if (DELTA)
		e = recur_cuda_stretch_scores(stream, &a, beside);
	if (e == cudaSuccess)
		e = mx_launch(stretches<KT, DELTA, VECTOR>, dim3(units * per_unit, a.step.n_spans),
		              dim3(plan<KT, DELTA, VECTOR>::threads), plan<KT, DELTA, VECTOR>::bytes,
		              stream, a, maps, beside > 0);
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
