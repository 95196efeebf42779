/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of spans of few tokens, bf16: step.cu for several rows of a sequence, which read S once.
 * A span is computed in parts, of up to four rows of one chunk: k and q of four rows are the eight
 * columns of one operand, so that S is asked as often for four rows as for one. A lane t of four
 * has row t: what S says of its k and q, its x, its output.
 *
 * S stays in shared memory from part to part. Where a part begins a chunk, the chunk in front is
 * added to S there (README.md); S is written only if none of those tokens can be taken back.
 */
#include "mixers/recurrence/cuda/few.cuh"

namespace
{

/* ---- the rows among the chunk's tokens ---- */

/* A lane's address for row_b: columns 2 i and 2 i + 1 of the operand are row i of k and of q. Rows
 * that are not there are the last one again. */
__device__ __forceinline__ const T *columns_of(const T *k, const T *q, uint32_t ld, uint32_t n)
{
	const uint32_t lane = threadIdx.x & 31, column = lane % 8, i = column / 2;
	const uint32_t row = i < n ? i : n - 1;
	return (column & 1 ? q : k) + row * ld + lane / 8 * 8;
}

/* Two operands, of 16 columns of k and q from `col` on, and of the next 16. */
__device__ __forceinline__ void rows_as_b(const T *at, uint32_t col, operand_b<1> (&b)[2])
{
	load_matrices(b[0].r[0][0], b[0].r[0][1], b[1].r[0][0], b[1].r[0][1], at + col);
}

/* Products of the rows' k and q with the chunk's keys; by one warp. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void rows_scores(few_board<KT, VECTOR> &s, const place &w)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
	const T *rows = columns_of(s.k + w.r * s.ld, s.q, s.ld, w.n);
	const T *keys = s.k + lane % 16 * s.ld + lane / 16 * 8;
	float c[4] = {0, 0, 0, 0};
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[2];
		operand_a<1> k[2];
		rows_as_b(rows, 16 * i, b);
#pragma unroll
		for (int half = 0; half < 2; half++)
			load_matrices(k[half].r[0][0], k[half].r[0][1], k[half].r[0][2], k[half].r[0][3],
			              keys + 16 * (i + half));
		mma(c, k[0].r[0], b[0].r[0]);
		mma(c, k[1].r[0], b[1].r[0]);
	}
	s.sk[g * ROWS + t] = c[0], s.sq[g * ROWS + t] = c[1];
	s.sk[(g + 8) * ROWS + t] = c[2], s.sq[(g + 8) * ROWS + t] = c[3];
	__syncwarp();
}

/* The same with vectors of factors: a warp has a row, which is multiplied by the factors of its
 * token, the one before it, and so on down to the border: wk and wq. Four tokens' sums at once. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void rows_vector_scores(const one_args &a, few_board<KT, VECTOR> &s,
                                                   const place &w)
{
	const uint32_t lane = threadIdx.x & 31, row = threadIdx.x >> 5;
	constexpr int each = KT / 2, kpad = KT * 16;
	float q[each], k[each];
	if (row >= w.n)
		return;
#pragma unroll
	for (int e = 0; e < each; e++) {
		q[e] = __bfloat162float(s.q[row * s.ld + e * 32 + lane]);
		k[e] = __bfloat162float(s.k[(w.r + row) * s.ld + e * 32 + lane]);
	}
	for (int last = (int)(w.r + row); last >= 0; last -= 4) {
		float sq[4] = {}, sk[4] = {};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int j = last - i;
			if (j < 0)
				continue;
#pragma unroll
			for (int e = 0; e < each; e++) {
				const float key = __bfloat162float(s.k[j * s.ld + e * 32 + lane]);
				const float f = s.av[j * kpad + e * 32 + lane];
				sq[i] = __fmaf_rn(q[e], key, sq[i]);
				sk[i] = __fmaf_rn(k[e], key, sk[i]);
				q[e] = __fmul_rn(q[e], f);
				k[e] = __fmul_rn(k[e], f);
			}
		}
#pragma unroll
		for (int d = 16; d; d /= 2)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				sq[i] += __shfl_xor_sync(~0u, sq[i], d);
				if (a.delta)
					sk[i] += __shfl_xor_sync(~0u, sk[i], d);
			}
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (lane == 0 && last - i >= 0) {
				s.sq[(last - i) * ROWS + row] = sq[i];
				s.sk[(last - i) * ROWS + row] = sk[i];
			}
	}
#pragma unroll
	for (int e = 0; e < each; e++) {
		s.wq[row * s.ld + e * 32 + lane] = __float2bfloat16_rn(q[e]);
		s.wk[row * s.ld + e * 32 + lane] = __float2bfloat16_rn(k[e]);
	}
}

/* The part's rows of T, which go to their ring, of M, and gamma; by one warp, lane j has token j,
 * its factor, and its gain or beta. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void rows_weights(const one_args &a, const place &w,
                                             few_board<KT, VECTOR> &s, float factor, float gain)
{
	const uint32_t lane = threadIdx.x & 31, c = lane & 15, r = w.r;
	const int down_to = lane < Q ? (int)lane : -1; /* lane 16 has the products of all: gamma */
	float f[ROWS], x[ROWS] = {};
#pragma unroll
	for (uint32_t i = 0; i < ROWS; i++)
		f[i] = 1;
	if (!VECTOR)
#pragma unroll
		for (int j = Q - 1; j >= 0; j--) {
			const float one = __shfl_sync(~0u, factor, j);
#pragma unroll
			for (uint32_t i = 0; i < ROWS; i++)
				f[i] = j <= (int)(r + i) && j > down_to ? __fmul_rn(f[i], one) : f[i];
		}
	if (lane == Q)
		*(float4 *)s.gamma = make_float4(f[0], f[1], f[2], f[3]);
	const float4 sk = *(const float4 *)(s.sk + c * ROWS), sq = *(const float4 *)(s.sq + c * ROWS);
	float p[ROWS], l[ROWS];
#pragma unroll
	for (uint32_t i = 0; i < ROWS; i++) {
		const float beta = __shfl_sync(~0u, gain, r + i);
		p[i] = lane <= r + i ? __fmul_rn((&sq.x)[i], f[i]) : 0;
		l[i] = lane < r + i ? __fmul_rn(__fmul_rn((&sk.x)[i], f[i]), beta) : 0;
	}
	if (!a.delta) {
#pragma unroll
		for (uint32_t i = 0; i < ROWS; i++) {
			float m = a.gain && lane <= r + i ? __fmul_rn(p[i], gain) : p[i];
			if (a.skip && lane == r + i)
				m += a.skip[w.head];
			if (lane < Q)
				s.m[i * Q + c] = m;
		}
		return;
	}
	__syncwarp();
	if (lane < Q) {
		*(float4 *)(s.sk + c * ROWS) = make_float4(l[0], l[1], l[2], l[3]);
		*(float4 *)(s.sq + c * ROWS) = make_float4(p[0], p[1], p[2], p[3]);
	}
	__syncwarp();
	/* half a warp has column c of L's product with earlier rows of T, the other that of M's */
	const float4 *mine = (const float4 *)(lane < Q ? s.sk : s.sq);
#pragma unroll
	for (uint32_t j = 0; j < Q - 1; j++) {
		const float t = s.t[j * LDM + c];
		const float4 y = mine[j];
#pragma unroll
		for (uint32_t i = 0; i < ROWS; i++)
			x[i] = j < r ? __fmaf_rn((&y.x)[i], t, x[i]) : x[i];
	}
#pragma unroll
	for (uint32_t n = 0; n < ROWS; n++) {
		if (n >= w.n)
			break;
		const float t = __shfl_sync(~0u, (c == r + n ? 1 : 0) - x[n], c);
		const float4 y = mine[r + n];
#pragma unroll
		for (uint32_t i = n; i < ROWS; i++)
			x[i] = __fmaf_rn((&y.x)[i], t, x[i]);
		if (lane < Q)
			((float *)(w.unit + a.unit.t))[(w.entry + n) * Q + c] = t;
		else
			s.m[n * Q + c] = x[n];
	}
}

/* What S says of k and q of row t in lane 4 g + t, columns g (c[0], c[1]) and g + 8 (c[2], c[3]) of
 * each of the warp's tiles. */
template <int KT>
__device__ __forceinline__ void ask(const uint4 *S, uint32_t tiles, const T *rows,
                                    float (&c)[TILES][4])
{
	ask_tiles<KT>(
		S, tiles, [&](uint32_t col, operand_b<1>(&b)[2]) { rows_as_b(rows, col, b); }, c);
}

/* The rows' outputs in the warp's columns; c: what S says, x: of earlier tokens. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void answer(const one_args &a, const place &w, few_board<KT, VECTOR> &s,
                                       uint32_t col, uint32_t tiles, const float (&c)[TILES][4],
                                       float (&x)[TILES][2][4])
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
	const float gamma = s.gamma[t], beta = s.beta[t];
	const bool there = t < w.n;
	operand_b<2> m = {};
	if (g & 1) { /* column 2 i + 1: row i */
		const float *row = s.m + (g >> 1) * Q + 2 * t;
		take<2>(row, m.r, 0);
		take<2>(row + 8, m.r, 1);
	}
	float o[TILES][4];
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		const uint32_t at = col + 16 * n + g;
		const T v0 = s.v[t * LDY + at], v1 = s.v[t * LDY + at + 8];
		float x0 = __bfloat162float(v0), x1 = __bfloat162float(v1);
		if (a.delta) {
			x0 = __fmul_rn(beta, __fmaf_rn(-gamma, c[n][0], x0));
			x1 = __fmul_rn(beta, __fmaf_rn(-gamma, c[n][2], x1));
		}
		if (there && n < tiles) {
			const uint32_t to = (w.entry + t) * a.unit.cols + at;
			if (a.delta) {
				float *ring = (float *)(w.unit + a.unit.x) + to;
				ring[0] = x0, ring[8] = x1;
			} else {
				T *ring = (T *)(w.unit + a.unit.x) + to;
				ring[0] = v0, ring[8] = v1;
			}
		}
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) { /* tokens 2 t + e and 8 further */
			const uint32_t row = 2 * t + e - w.r, from = (lane & ~3u) | (row & 3);
			const float y0 = __shfl_sync(~0u, x0, from), y1 = __shfl_sync(~0u, x1, from);
#pragma unroll
			for (uint32_t half = 0; half < 2; half++) {
				const bool own = row + 8 * half < w.n;
				x[n][half][e] = own ? y0 : x[n][half][e];
				x[n][half][2 + e] = own ? y1 : x[n][half][2 + e];
			}
		}
		o[n][0] = 0, o[n][1] = c[n][1] * gamma, o[n][2] = 0, o[n][3] = c[n][3] * gamma;
	}
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++)
		multiply(o[n], sums_a<2>(x[n]), m);
	if (!there)
		return;
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		const uint32_t at = col + 16 * n + g;
		if (n >= tiles)
			return;
		if (a.finish) {
			s.y[t * LDY + at] = o[n][1];
			s.y[t * LDY + at + 8] = o[n][3];
			continue;
		}
		float *y = a.y + ((size_t)(w.row + t) * a.heads + w.head) * a.v_dim + w.col;
		if (w.col + at < a.v_dim)
			y[at] = o[n][1];
		if (w.col + at + 8 < a.v_dim)
			y[at + 8] = o[n][3];
	}
}

/* Adds the whole chunks in front of the part to S, which is as of `border`. By the whole block, a
 * step in 16 and where a span crosses a border. */
template <int KT, bool VECTOR>
__device__ __noinline__ void add_earlier(const one_args &a, uint32_t turn, uint32_t use)
{
	extern __shared__ __align__(128) unsigned char memory[];
	few_board<KT, VECTOR> &s = *(few_board<KT, VECTOR> *)memory;
	const part_place &w = s.places[turn];
	const uint32_t warp = threadIdx.x >> 5;
	mx_device_span span = {};
	span.pos = w.begin, span.n = w.total, span.kind = w.kind;
	const uint32_t next = border_after(span, w.border, Q);
	const uint32_t tiles = tiles_of(a, warp);
	uint4 *S = s.S + warp * TILES * KT * 32 + (threadIdx.x & 31);
	if (tiles)
		copies_wait(s.arrived + warp, use);
	__syncthreads();
	for (uint32_t at = w.border; at < w.from; at += Q) {
		copies_out_read();
		__syncwarp();
		add_chunk<KT, VECTOR>(a, w, entry_of(a, at), at < next, s, S, warp * TILES * 16, tiles);
		if (at + Q != next)
			continue;
		copies_after_writes();
		if (tiles)
			copy_out(w.unit + a.unit.S + warp * TILES * KT * 512, s.S + warp * TILES * KT * 32,
			         tiles * KT * 512);
		if (threadIdx.x == 0)
			*(uint32_t *)w.unit = next;
	}
	copies_after_writes();
	__syncthreads();
}

/* ---- the kernel ---- */

/* MORE: recur_core, with what other kernels computed of the rows; or nothing. */
template <int KT, bool VECTOR, typename MORE>
__global__ void __launch_bounds__(RECUR_UNIT * 2 / TILES + 32, KT > 8   ? 1
                                                               : VECTOR ? 2
                                                                        : 3)
	few(const __grid_constant__ one_args a, const __grid_constant__ MORE more)
{
	constexpr bool FUSED = sizeof(MORE) == sizeof(nothing);
	extern __shared__ __align__(128) unsigned char memory[];
	few_board<KT, VECTOR> &s = *(few_board<KT, VECTOR> *)memory;
	const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
	const uint32_t col = warp * TILES * 16, tiles = tiles_of(a, warp);
	const bool of_row = warp + 1 == blockDim.x >> 5;
	const bool has_part = FUSED && !of_row && warp < 3 && a.streams[warp].there;
	const bool has_factors = FUSED && VECTOR && !of_row && a.streams[ONE_A].there;
	const bool wide = a.finish && a.unit.cols == 128;
	uint32_t u = blockIdx.x, use = 0, turn = 0;
	/* begins to bring what the part has from earlier tokens, and S for a span's first one */
	const auto announce = [&](const part_place &w) {
		if (!w.offset) {
			if (tiles && lane == 0) {
				copies_out_read();
				copies_expect(s.arrived + warp, tiles * KT * 512);
				copy_begin(s.S + warp * TILES * KT * 32,
				           w.unit + a.unit.S + warp * TILES * KT * 512, tiles * KT * 512,
				           s.arrived + warp);
			}
		}
		earlier_begin(a, w.unit, w.first, w.r, s);
		if constexpr (!FUSED)
			own_near(more, w);
		if (of_row) {
			rings_near(a, w, w.border < w.from, w.border);
			if (FUSED) {
				numbers_near<VECTOR>(a, w);
				later_numbers_near(a, w);
			}
		} else if (has_part || (has_factors && warp == ONE_A)) {
			part_near(a, warp, w);
			later_parts_near(a, warp, w);
		}
		__syncwarp();
	};
	mx_pdl_launch();
	if (lane == 0 && tiles)
		copies_init(s.arrived + warp);
	__syncwarp();
	if (threadIdx.x == 0)
		s.places[0] = part_of(a, u, 0, 0);
	__syncthreads();
	if (s.places[0].n)
		announce(s.places[0]);
	mx_pdl_wait();
	for (;; turn = turn < 2 ? turn + 1 : 0) {
		const part_place &w = s.places[turn];
		part_place &next = s.places[turn < 2 ? turn + 1 : 0];
		const bool same = w.offset + w.n < w.total;
		const uint32_t next_u = same ? u : u + gridDim.x;
		const bool there = w.n > 0, finishes = a.finish && warp < w.n;
		const T *gate = a.proj + (size_t)(w.row + warp) * a.ld_proj + a.streams[ONE_GATE].at;
		float f = 1, b = 0; /* of the row's warp: lane j's token's */
		uint2 gates = make_uint2(0, 0);
		if (of_row && lane == 0 && next_u < a.n_units)
			next = part_of(a, next_u, same ? w.offset + w.n : 0, w.from);
		if (there) {
			if (w.border < w.from) {
				asm volatile("cp.async.wait_all;" ::: "memory");
				add_earlier<KT, VECTOR>(a, turn, use);
				earlier_begin(a, w.unit, w.first, w.r, s);
			}
			gates = load_if(finishes && wide && a.streams[ONE_GATE].there,
			                (const uint2 *)(gate + w.head * 128 + lane * 4));
			if (of_row) {
				const bool own = lane - w.r < w.n;
				const uint32_t row = own ? lane - w.r : 0;
				float own_f, beta;
				if constexpr (FUSED) {
					own_terms terms;
					open_numbers<VECTOR>(a, w, w.row + row, terms);
					old_numbers<VECTOR>(a, w, w.first, w.r, &f, &b);
					close_numbers<VECTOR>(a, terms, &own_f, &beta);
				} else {
					old_numbers<VECTOR>(a, w, w.first, w.r, &f, &b);
					load_numbers<VECTOR>(more, w, w.row + row, &own_f, &beta);
				}
				if (own) {
					keep_numbers<VECTOR>(a, w, row, own_f, beta);
					s.beta[row] = beta;
					f = own_f, b = beta;
				}
			} else {
				row_factors factors;
				if (has_factors)
					open_factors(a, w, warp, factors);
				if (has_part)
					rows_of_job(a, warp, w, s);
				if (has_factors)
					close_factors(a, w, warp, s, factors);
			}
			if constexpr (!FUSED)
				load_own(a, more, w, s);
			asm volatile("cp.async.wait_all;" ::: "memory");
			__syncthreads();
		}
		float c[TILES][4] = {}, x[TILES][2][4];
		if (there) { /* what S and the chunk's tokens say */
			if (VECTOR) {
				rows_vector_scores(a, s, w);
				__syncthreads();
			}
			if (of_row) {
				if (!VECTOR)
					rows_scores(s, w);
				rows_weights(a, w, s, f, b);
			} else if (tiles) {
				const T *rows = VECTOR ? columns_of(s.wk, s.wq, s.ld, w.n)
				                       : columns_of(s.k + w.r * s.ld, s.q, s.ld, w.n);
#pragma unroll
				for (int n = 0; n < TILES; n++)
					old_inputs(a, w, w.first, n < (int)tiles ? w.r : 0, col + 16 * n, x[n]);
				copies_wait(s.arrived + warp, use);
				ask<KT>(s.S + warp * TILES * KT * 32 + lane, tiles, rows, c);
			}
			use ^= !same;
		}
		__syncthreads();
		if (next_u < a.n_units && next.n)
			announce(next);
		if (there) {
			if (tiles)
				answer(a, w, s, col, tiles, c, x);
			if constexpr (!FUSED) {
				mx_device_span span = {};
				span.row = w.row, span.n = w.n, span.pos = w.pos, span.slot = w.slot;
				span.kind = MX_SPAN_DRAFT; /* all of them are kept */
				keep_inputs<T>(more, span, w.number);
			}
			float4 weight = make_float4(1, 1, 1, 1), gate_of = weight;
			if (finishes && wide) {
				if (a.norm.weight)
					weight = load4(a.norm.weight + (a.norm.weight_per_group ? w.head * 128 : 0) +
					               lane * 4);
				gate_of = gates_of_128(a, gates);
			}
			__syncthreads();
			if (finishes && wide)
				head_of_128(a, w.row + warp, w.head, load4(s.y + warp * LDY + lane * 4), weight,
				            gate_of);
			else if (finishes)
				group<T, true, false, 4>(a, s.y + warp * LDY, gate, w.row + warp, w.head, lane, 32,
				                         NULL);
		}
		if (next_u >= a.n_units)
			break;
		u = next_u;
	}
	if (tiles && lane == 0)
		copies_out_end();
}

/* ---- the host's side ---- */

struct few_kernel {
	template <int KT, bool VECTOR, typename MORE> static auto kernel()
	{
		return few<KT, VECTOR, MORE>;
	}
	template <int KT, bool VECTOR> static constexpr size_t bytes(uint32_t cols)
	{
		return few_bytes<KT, VECTOR>(cols);
	}
};

} // namespace

cudaError_t recur_cuda_few(cudaStream_t stream, const struct recur_one *p)
{
	return launch_of<few_kernel>(stream, *p);
}

cudaError_t recur_cuda_few_prepare(uint32_t kpad, bool vector, size_t room)
{
	return prepare_of<few_kernel>(kpad, vector, recur_cuda_step_cols(kpad, vector, room));
}

bool recur_cuda_few_can(uint32_t kpad, bool vector, size_t room)
{
	return bytes_of<few_kernel>(kpad, vector, recur_cuda_step_cols(kpad, vector, room)) <= room;
}
