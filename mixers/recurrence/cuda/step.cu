/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of spans of one token, bf16: the arithmetic of heads.cu, chunk.cu and out.cu for one row,
 * in one kernel. A block computes a unit. S comes to shared memory by the copy engine, and with it
 * the rings and the inputs of convolutions: all of it is from earlier steps, and is on its way
 * while the kernels in front of this one run. A warp has 16 columns of S; the last warp, the row's,
 * has what tokens are to each other: scores, T, M, and at the end the norm.
 *
 * S is written only where whole chunks were added to it (README.md), a step in 16.
 */
#include "mixers/recurrence/cuda/own.cuh"
#include "mixers/recurrence/cuda/row.cuh"

namespace
{

/* ---- the row among the chunk's tokens ---- */

/* row_scores with vectors of factors: a warp has every warps-th key. The first key's goes on to the
 * border: wk and wq. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void row_vector_scores(const one_args &a, board<KT, VECTOR> &s,
                                                  uint32_t r)
{
	const uint32_t lane = threadIdx.x & 31;
	constexpr int each = KT / 2, kpad = KT * 16;
	for (uint32_t j = threadIdx.x >> 5; j <= r; j += blockDim.x >> 5) {
		float q[each], k[each], sq = 0, sk = 0;
#pragma unroll
		for (int e = 0; e < each; e++) {
			q[e] = __bfloat162float(s.q[e * 32 + lane]);
			k[e] = __bfloat162float(s.k[r * s.ld + e * 32 + lane]);
		}
		for (uint32_t i = r; i > j; i--)
#pragma unroll
			for (int e = 0; e < each; e++) {
				const float f = s.av[i * kpad + e * 32 + lane];
				q[e] = __fmul_rn(q[e], f);
				k[e] = __fmul_rn(k[e], f);
			}
#pragma unroll
		for (int e = 0; e < each; e++) {
			const float key = __bfloat162float(s.k[j * s.ld + e * 32 + lane]);
			sq = __fmaf_rn(q[e], key, sq);
			sk = __fmaf_rn(k[e], key, sk);
		}
		sq = warp_sum(sq);
		if (a.delta)
			sk = warp_sum(sk);
		if (lane == 0)
			s.sq[j] = sq, s.sk[j] = sk;
		if (j == 0)
#pragma unroll
			for (int e = 0; e < each; e++) {
				const float f = s.av[e * 32 + lane];
				s.wq[e * 32 + lane] = __float2bfloat16_rn(__fmul_rn(q[e], f));
				s.wk[e * 32 + lane] = __float2bfloat16_rn(__fmul_rn(k[e], f));
			}
	}
}

/* Row r of T, which goes to its ring, and of M, and gamma; by one warp, lane j has token j, its
 * factor and gain. Loops are unrolled, so that what they read is on its way at once. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void row_weights(const one_args &a, const place &w, board<KT, VECTOR> &s,
                                            float factor, float gain, float beta)
{
	const uint32_t lane = threadIdx.x & 31, c = lane & 15, r = w.r;
	const int down_to = lane < Q ? (int)lane : -1; /* lane 16 has the product of all: gamma */
	float f = 1, m = 0;
	if (!VECTOR)
#pragma unroll
		for (int i = Q - 1; i >= 0; i--) {
			const float x = __shfl_sync(~0u, factor, i);
			f = i <= (int)r && i > down_to ? __fmul_rn(f, x) : f;
		}
	const float p = lane <= r ? __fmul_rn(s.sq[c], f) : 0;
	if (a.delta) {
		const float l = lane < r ? __fmul_rn(__fmul_rn(s.sk[c], f), beta) : 0;
		float x = 0;
#pragma unroll
		for (uint32_t j = 0; j < Q - 1; j++) {
			const float t = s.t[j * LDM + c];
			const float lj = __shfl_sync(~0u, l, j), pj = __shfl_sync(~0u, p, j);
			x = j < r ? __fmaf_rn(lj, t, x) : x;
			m = j < r ? __fmaf_rn(pj, t, m) : m;
		}
		x = (c == r ? 1 : 0) - x;
		m = __fmaf_rn(__shfl_sync(~0u, p, r), x, m);
		if (lane < Q)
			((float *)(w.unit + a.unit.t))[w.entry * Q + c] = x;
	} else {
		m = a.gain && lane <= r ? __fmul_rn(p, lane == r ? beta : gain) : p;
		if (a.skip && lane == r)
			m += a.skip[w.head];
	}
	if (lane < Q)
		s.m[c] = m;
	if (lane == Q)
		s.numbers[1] = f;
}

/* The row's outputs in the warp's columns; c: what S says, x: of earlier tokens. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void answer(const one_args &a, const place &w, board<KT, VECTOR> &s,
                                       uint32_t col, uint32_t tiles, const float (&c)[TILES][4],
                                       float (&x)[TILES][2][4])
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
	const float gamma = s.numbers[1], beta = s.numbers[0];
	operand_b<2> m = {};
	if (g == 0) {
		take<2>(s.m + 2 * lane, m.r, 0);
		take<2>(s.m + 2 * lane + 8, m.r, 1);
	}
	/* whether an element of x is the row's: of tokens 2 t, 2 t + 1, and those 8 further */
	const uint32_t own = w.r - 2 * t;
	float o[TILES][4];
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		const T v0 = s.v[col + 16 * n + g], v1 = s.v[col + 16 * n + g + 8];
		float x0 = __bfloat162float(v0), x1 = __bfloat162float(v1);
		if (a.delta) {
			x0 = __fmul_rn(beta, __fmaf_rn(-gamma, c[n][0], x0));
			x1 = __fmul_rn(beta, __fmaf_rn(-gamma, c[n][2], x1));
		}
		if (t == 0 && n < tiles) {
			const uint32_t at = w.entry * a.unit.cols + col + 16 * n + g;
			if (a.delta) {
				float *ring = (float *)(w.unit + a.unit.x) + at;
				ring[0] = x0, ring[8] = x1;
			} else {
				T *ring = (T *)(w.unit + a.unit.x) + at;
				ring[0] = v0, ring[8] = v1;
			}
		}
		x0 = __shfl_sync(~0u, x0, lane & ~3u);
		x1 = __shfl_sync(~0u, x1, lane & ~3u);
#pragma unroll
		for (uint32_t e = 0; e < 4; e++) { /* tokens 0, 1, 8, 9 from 2 t on */
			const bool is = own == (e & 1) + 8 * (e >> 1);
			x[n][e >> 1][e & 1] = is ? x0 : x[n][e >> 1][e & 1];
			x[n][e >> 1][2 + (e & 1)] = is ? x1 : x[n][e >> 1][2 + (e & 1)];
		}
		o[n][0] = c[n][1] * gamma, o[n][1] = 0, o[n][2] = c[n][3] * gamma, o[n][3] = 0;
	}
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++)
		multiply(o[n], sums_a<2>(x[n]), m);
	if (t)
		return;
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		const uint32_t at = col + 16 * n + g;
		if (n >= tiles)
			return;
		if (a.finish) {
			s.y[at] = o[n][0];
			s.y[at + 8] = o[n][2];
			continue;
		}
		float *y = a.y + ((size_t)w.row * a.heads + w.head) * a.v_dim + w.col;
		if (w.col + at < a.v_dim)
			y[at] = o[n][0];
		if (w.col + at + 8 < a.v_dim)
			y[at + 8] = o[n][2];
	}
}

/* ---- the kernel ---- */

/* MORE: recur_core, with what other kernels computed of the row; or nothing. */
template <int KT, bool VECTOR, typename MORE>
__global__ void __launch_bounds__(RECUR_UNIT * 2 / TILES + 32, KT > 8   ? 1
                                                               : VECTOR ? 2
                                                                        : 3)
	step(const __grid_constant__ one_args a, const __grid_constant__ MORE more)
{
	constexpr bool FUSED = sizeof(MORE) == sizeof(nothing);
	extern __shared__ __align__(128) unsigned char memory[];
	__shared__ number_stage numbers;
	__shared__ uint2 staged_gates[32];
	board<KT, VECTOR> &s = *(board<KT, VECTOR> *)memory;
	const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
	const uint32_t col = warp * TILES * 16, tiles = tiles_of(a, warp);
	const bool of_row = warp + 1 == blockDim.x >> 5;
	const bool has_part = FUSED && !of_row && warp < (VECTOR ? 4 : 3) && a.streams[warp].there;
	const bool wide = a.finish && a.unit.cols == 128;
	uint32_t u = blockIdx.x, use = 0, border = 0;
	/* begins to bring what the unit has from earlier steps */
	const auto announce = [&](const place &w) {
		if (FUSED && of_row)
			numbers_begin<VECTOR>(a, w, numbers, false);
		else if (has_part)
			part_begin(a, warp, w, s.parts[warp], false);
		if (of_row)
			old_begin<VECTOR>(a, w, lane, numbers);
		if (tiles && lane == 0) {
			copies_expect(s.arrived + warp, tiles * KT * 512);
			copy_begin(s.S + warp * TILES * KT * 32, w.unit + a.unit.S + warp * TILES * KT * 512,
			           tiles * KT * 512, s.arrived + warp);
			if (!w.r && w.pos)
				bytes_near(w.unit + a.unit.low + warp * TILES * KT * 512, tiles * KT * 512);
		}
		border = *(const volatile uint32_t *)w.unit;
		earlier_begin(a, w.unit, w.first, w.r, s);
		if (of_row) {
			rings_near(a, w, !w.r && w.pos, w.pos - Q);
		}
		__syncwarp();
	};
	/* the same of the step's products */
	const auto announce_row = [&](const place &w) {
		if (FUSED && of_row)
			numbers_begin<VECTOR>(a, w, numbers, true);
		else if (has_part)
			part_begin(a, warp, w, s.parts[warp], true);
		if (of_row)
			copy_if<8>(wide && a.streams[ONE_GATE].there, staged_gates + lane,
			           a.proj + (size_t)w.row * a.ld_proj + a.streams[ONE_GATE].at + w.head * 128 +
			               lane * 4);
	};
	mx_pdl_launch();
	if (lane == 0 && tiles)
		copies_init(s.arrived + warp);
	if (of_row && lane < 8)
		s.zero[lane] = __float2bfloat16_rn(0);
	__syncwarp();
	if (threadIdx.x == 0)
		s.places[0] = place_of(a, u);
	__syncthreads();
	if (s.places[0].n == 1)
		announce(s.places[0]);
	mx_pdl_wait();
	if (s.places[0].n == 1)
		announce_row(s.places[0]);
	for (uint32_t turn = 0;; turn ^= 1) {
		const place &w = s.places[turn];
		place &next = s.places[turn ^ 1];
		const bool there = w.n == 1;
		const T *gate = a.proj + (size_t)w.row * a.ld_proj + a.streams[ONE_GATE].at;
		float own_f = 1, beta = 0, f = 1, b = 0; /* of the row's warp; f, b: lane j's token's */
		uint2 gates = make_uint2(0, 0);
		if (there) {
			if (border < w.from) {
				asm volatile("cp.async.wait_all;" ::: "memory");
				add_chunks<KT, VECTOR>(a, u, use);
				earlier_begin(a, w.unit, w.first, w.r, s);
			}
			asm volatile("cp.async.wait_all;" ::: "memory");
			if (of_row) {
				own_terms terms;
				if (FUSED)
					numbers_take<VECTOR>(a, numbers, terms);
				old_take<VECTOR>(a, w, lane, numbers, &f, &b);
				gates = staged_gates[lane];
				if constexpr (FUSED)
					close_numbers<VECTOR>(a, terms, &own_f, &beta);
				else
					load_numbers<VECTOR>(more, w, w.row, &own_f, &beta);
				keep_numbers<VECTOR>(a, w, own_f, beta);
				s.numbers[0] = beta;
			} else if (has_part) {
				lane_part part;
				const uint4 read = part_take(a, warp, w, s.parts[warp], part);
				close_part(a, warp, w, s, part, read);
			}
			if constexpr (!FUSED)
				load_own(a, more, w, s);
			__syncthreads();
		}
		const uint32_t next_u = u + gridDim.x;
		if (of_row && lane == 0 && next_u < a.n_units)
			next = place_of(a, next_u);
		float c[TILES][4] = {}, x[TILES][2][4];
		if (there) { /* what S and the chunk's tokens say */
			if (VECTOR) {
				row_vector_scores(a, s, w.r);
				__syncthreads();
			}
			if (of_row) {
				if (!VECTOR)
					row_scores(s, w.r);
				row_weights(a, w, s, lane == w.r ? own_f : f, b, beta);
			} else if (tiles) {
#pragma unroll
				for (uint32_t n = 0; n < TILES; n++)
					old_inputs(a, w, w.first, n < tiles ? w.r : 0, col + 16 * n, x[n]);
				copies_wait(s.arrived + warp, use);
				ask<KT>(s.S + warp * TILES * KT * 32 + lane, tiles,
				        VECTOR ? s.wk : s.k + w.r * s.ld, VECTOR ? s.wq : s.q, s.zero, c);
			}
			use ^= 1;
		}
		__syncthreads();
		if (next_u < a.n_units && next.n == 1) {
			announce_row(next);
			announce(next);
		}
		if (there) {
			if (tiles)
				answer(a, w, s, col, tiles, c, x);
			if constexpr (!FUSED) {
				mx_device_span span = {};
				span.row = w.row, span.n = 1, span.pos = w.pos, span.slot = w.slot;
				span.kind = w.kind;
				keep_inputs<T>(more, span, w.number);
			}
			float4 weight = make_float4(1, 1, 1, 1), gate_of = weight;
			if (of_row && wide) {
				if (a.norm.weight)
					weight = load4(a.norm.weight + (a.norm.weight_per_group ? w.head * 128 : 0) +
					               lane * 4);
				gate_of = gates_of_128(a, gates);
			}
			__syncthreads();
			if (of_row && wide)
				head_of_128(a, w.row, w.head, load4(s.y + lane * 4), weight, gate_of);
			else if (of_row && a.finish)
				group<T, true, false, 4>(a, s.y, gate, w.row, w.head, lane, 32, NULL);
		}
		if (next_u >= a.n_units)
			return;
		u = next_u;
	}
}

/* ---- the host's side ---- */

struct step_kernel {
	template <int KT, bool VECTOR, typename MORE> static auto kernel()
	{
		return step<KT, VECTOR, MORE>;
	}
	template <int KT, bool VECTOR> static constexpr size_t bytes(uint32_t cols)
	{
		return board_bytes<KT, VECTOR>(cols);
	}
};

bool aligned(const void *p)
{
	return (uintptr_t)p % 16 == 0;
}

} // namespace

bool recur_cuda_step_can_fuse(const struct recur_one *p)
{
	const recur_rows &a = p->rows;
	if (a.first || a.v_times_rest || a.channel || !recur_cuda_heads_can(&a))
		return false;
	for (int s = 0; s <= MX_RECUR_BETA; s++) {
		const recur_source &from = a.source[s];
		const bool numbers = s == MX_RECUR_BETA || (s == MX_RECUR_A && !a.vector);
		if (!from.heads)
			continue;
		if (numbers ? !from.gates : !aligned(from.bias) || !aligned(from.conv_bias))
			return false;
		if (from.conv && (from.gates || s > MX_RECUR_V || !aligned(from.w)))
			return false;
	}
	return true;
}

bool recur_cuda_step_can_finish(const struct recur_one *p)
{
	const recur_out &a = p->out;
	const uint32_t cols = p->core.unit.cols;
	return in_order(a) && p->core.unit.per_head == 1 && a.norm.groups == p->core.heads &&
	       a.norm.dim == a.head_dim &&
	       (cols < 128 ? a.head_dim <= cols : recur_cuda_out_of_128(&a));
}

cudaError_t recur_cuda_step(cudaStream_t stream, const struct recur_one *p)
{
	if (recur_cuda_pair_can(p))
		return recur_cuda_pair(stream, p);
	return launch_of<step_kernel>(stream, *p);
}

cudaError_t recur_cuda_step_prepare(uint32_t kpad, bool vector, size_t room)
{
	const cudaError_t e = vector ? cudaSuccess : recur_cuda_pair_prepare(kpad);
	const uint32_t cols = recur_cuda_step_cols(kpad, vector, room);
	return e == cudaSuccess ? prepare_of<step_kernel>(kpad, vector, cols) : e;
}

uint32_t recur_cuda_step_cols(uint32_t kpad, bool vector, size_t room)
{
	uint32_t cols = RECUR_UNIT;
	while (cols > 16 && bytes_of<step_kernel>(kpad, vector, cols) > room)
		cols /= 2;
	return cols;
}
