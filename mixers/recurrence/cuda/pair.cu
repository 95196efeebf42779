/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of spans of one token, bf16: step.cu for heads of 64 columns, scalar factors and no delta
 * rule (Mamba-2). A block computes two heads that share k and q, which so are convolved, and meet
 * the chunk's keys, once for both; what latencies cost is spread over twice the bytes. A warp has
 * 32 columns of one head. The row's warp has a token of the first head in each of its lower lanes,
 * and of the second in the upper ones.
 *
 * one_args has the two as one unit of 128 columns and twice the bytes.
 */
#include "mixers/recurrence/cuda/own.cuh"
#include "mixers/recurrence/cuda/row.cuh"

#define COLS   64  /* of a head */
#define BLOCKS 3   /* on a multiprocessor */
#define LEAST  512 /* heads of all sequences from which on two at a time are faster */

namespace
{

/* What the two heads do not share, in shared memory. */
struct of_heads {
	float m[2][Q], gamma[2];
	float a[2][Q], b[2][Q], end[2][Q]; /* of a whole chunk, as in struct board */
	alignas(16) T x[2][Q][COLS + 8];   /* of the chunk's tokens; zero after the row's */
};

__device__ __forceinline__ unsigned char *unit_of(const one_args &a, const place &w, uint32_t h)
{
	return w.unit + h * (a.unit.bytes / 2);
}

/* The first or second head of a place. */
__device__ __forceinline__ place head_of(const one_args &a, const place &w, uint32_t h)
{
	place one = w;
	one.head = 2 * w.head + h;
	one.unit = unit_of(a, w, h);
	return one;
}

/* Brings near what is read of rings. By the row's warp. */
template <int KT> __device__ __forceinline__ void near_row(const one_args &a, const place &w)
{
	const uint32_t lane = threadIdx.x & 31, j = lane % Q;
	const unsigned char *unit = unit_of(a, w, lane / Q);
	if (!w.r && w.pos) {
		const uint32_t first = entry_of(a, w.pos - Q);
		line_near(unit + a.unit.x + (first + j) * (COLS * sizeof(T)));
		if (lane < 4 * KT)
			line_near(w.unit + a.unit.k + (size_t)first * KT * 16 * sizeof(T) + lane * 128);
	}
}

/* Factors and gains of n earlier tokens of both heads: token j's in lanes j and Q + j. */
__device__ __forceinline__ void numbers_of(const one_args &a, const place &w, uint32_t first,
                                           uint32_t n, float *f, float *b)
{
	const uint32_t j = threadIdx.x % Q, h = threadIdx.x / Q & 1;
	const unsigned char *unit = unit_of(a, w, h);
	*f = load_if(
		j < n && a.decays,
		a.fixed_a ? a.fixed_a + 2 * w.head + h : (const float *)(unit + a.unit.a) + first + j, 1);
	*b = load_if(j < n && a.gain, (const float *)(unit + a.unit.b) + first + j, 0);
}

/* x of n earlier tokens in a tile of a warp, in C's place; those after them are zero. */
__device__ __forceinline__ void inputs_of(const one_args &a, const place &w, uint32_t first,
                                          uint32_t n, uint32_t col, float (&x)[2][4])
{
	const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
	const volatile uint16_t *ring =
		(const volatile uint16_t *)(unit_of(a, w, col / COLS) + a.unit.x) + (first + 2 * t) * COLS +
		col % COLS + g;
	each_of([&](int half, int i, uint32_t j, uint32_t) {
		x[half][i] = 0;
		if (j < n)
			x[half][i] = __bfloat162float(
				__ushort_as_bfloat16(ring[(8 * half + (i & 1)) * COLS + 8 * (i >> 1)]));
	});
}

/* Begins the copies of x of the chunk's tokens but the row's. By the whole block. */
__device__ __forceinline__ void inputs_begin(const one_args &a, const place &w, of_heads &o)
{
	constexpr uint32_t parts = COLS / 8;
	for (uint32_t i = threadIdx.x; i < 2 * Q * parts; i += blockDim.x) {
		const uint32_t h = i / (Q * parts), j = i / parts % Q, e = i % parts * 8;
		if (j != w.r)
			copy_if<16>(j < w.r, o.x[h][j] + e,
			            (const T *)(unit_of(a, w, h) + a.unit.x) + (w.first + j) * COLS + e);
	}
}

/* Rows of M, and gamma; by the row's warp, lanes as in numbers_of. */
template <int KT>
__device__ __forceinline__ void weights_of(const one_args &a, const place &w, board<KT, false> &s,
                                           of_heads &o, float factor, float gain, float beta)
{
	const uint32_t lane = threadIdx.x & 31, j = lane % Q, h = lane / Q, r = w.r;
	float f = 1, gamma = 1;
#pragma unroll
	for (int i = Q - 1; i >= 0; i--) {
		const float x = __shfl_sync(~0u, factor, i + h * Q);
		f = i <= (int)r && i > (int)j ? __fmul_rn(f, x) : f;
		gamma = i <= (int)r ? __fmul_rn(gamma, x) : gamma;
	}
	const float p = j <= r ? __fmul_rn(s.sq[j], f) : 0;
	float m = a.gain && j <= r ? __fmul_rn(p, j == r ? beta : gain) : p;
	if (a.skip && j == r)
		m += a.skip[2 * w.head + h];
	o.m[h][j] = m;
	if (j == 0)
		o.gamma[h] = gamma;
}

/* add_chunks of one.cuh for both heads. */
template <int KT>
__device__ __noinline__ void add_to_both(const one_args &a, of_heads &o, uint32_t u, uint32_t use)
{
	extern __shared__ __align__(128) unsigned char memory[];
	board<KT, false> &s = *(board<KT, false> *)memory;
	const place w = place_of(a, u);
	const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
	const uint32_t tiles = tiles_of(a, warp), border = *(const volatile uint32_t *)w.unit;
	const uint32_t h = warp * TILES * 16 / COLS % 2;
	mx_device_span span = {};
	span.pos = w.pos, span.n = w.n, span.kind = w.kind;
	const uint32_t next = border_after(span, border, Q);
	uint4 *S = s.S + warp * TILES * KT * 32 + lane;
	const uint32_t tile = warp % (COLS / 16 / TILES) * TILES * KT; /* the warp's first */
	if (tiles)
		copies_wait(s.arrived + warp, use);
	__syncthreads();
	for (uint32_t at = border; at < w.from; at += Q) {
		const uint32_t first = entry_of(a, at);
		float x[TILES][2][4];
		earlier_begin(a, w.unit, first, Q, s);
#pragma unroll
		for (uint32_t n = 0; n < TILES; n++)
			inputs_of(a, w, first, tiles ? Q : 0, (warp * TILES + n) * 16 % (2 * COLS), x[n]);
		if (warp == 0) {
			float f, b, end = 1;
			numbers_of(a, w, first, Q, &f, &b);
#pragma unroll
			for (uint32_t i = Q - 1; i > 0; i--) {
				const float one = __shfl_sync(~0u, f, i + lane / Q * Q);
				end = i > lane % Q ? __fmul_rn(end, one) : end;
			}
			o.a[lane / Q][lane % Q] = f;
			o.b[lane / Q][lane % Q] = b;
			o.end[lane / Q][lane % Q] = end;
		}
		asm volatile("cp.async.wait_all;" ::: "memory");
		__syncthreads();
#pragma unroll
		for (uint32_t n = 0; n < TILES; n++) {
			if (n >= tiles)
				break;
			each_of([&](int half, int i, uint32_t j, uint32_t) {
				x[n][half][i] *= a.gain ? o.end[h][j] * o.b[h][j] : o.end[h][j];
			});
			fold<KT, false>(s, S + n * KT * 32, low_at(a.unit, unit_of(a, w, h), tile + n * KT),
			                at < next, o.end[h][0] * o.a[h][0], x[n]);
		}
		__syncthreads();
		if (at + Q != next)
			continue;
		uint4 *to = high_at(a.unit, unit_of(a, w, h), tile);
		for (uint32_t i = 0; i < tiles * KT; i++)
			to[i * 32] = S[i * 32];
		if (threadIdx.x < 2)
			*(uint32_t *)unit_of(a, w, threadIdx.x) = next;
	}
	copies_after_writes();
	__syncthreads();
}

/* x of the chunk's tokens in a tile of columns, from `col` on, as an operand. */
__device__ __forceinline__ operand_a<2> inputs_a(const of_heads &o, uint32_t col)
{
	const uint32_t lane = threadIdx.x & 31;
	operand_a<2> x = {};
	load_transposed(x.r[0][0], x.r[0][1], x.r[0][2], x.r[0][3],
	                o.x[col / COLS][lane / 16 * 8 + lane % 8] + col % COLS + lane / 8 % 2 * 8);
	return x;
}

/* The row's outputs in the warp's columns, from `col` on; c: what S says, x: of the tokens. */
template <int KT>
__device__ __forceinline__ void answer(const one_args &a, const place &w, board<KT, false> &s,
                                       const of_heads &o, uint32_t col, const float (&c)[TILES][4],
                                       const operand_a<2> (&x)[TILES])
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, h = col / COLS;
	const float gamma = o.gamma[h];
	operand_b<2> m = {};
	if (g == 0) {
		take<2>(o.m[h] + 2 * lane, m.r, 0);
		take<2>(o.m[h] + 2 * lane + 8, m.r, 1);
	}
	float *y =
		a.finish ? s.y + col + g : a.y + ((size_t)w.row * a.heads + 2 * w.head) * COLS + col + g;
#pragma unroll
	for (uint32_t n = 0; n < TILES; n++) {
		float sum[4] = {c[n][1] * gamma, 0, c[n][3] * gamma, 0};
		multiply(sum, x[n], m);
		if (t == 0)
			y[16 * n] = sum[0], y[16 * n + 8] = sum[2];
	}
}

/* Four gates; the bits of `group` in gated.cuh. */
__device__ __forceinline__ float4 mapped(const one_args &a, uint2 gates)
{
	float4 z = make_float4(1, 1, 1, 1);
	if (!a.finish || a.norm.gate == MX_RECUR_GATE_NONE)
		return z;
	z = widen4(gates);
	each4(z, [&](float &x, int) {
		const float g = a.gate_scale * x;
		x = a.norm.gate == MX_RECUR_GATE_SILU ? silu_of<T>(g) : sigmoid_of<T>(g);
	});
	return z;
}

template <int KT>
__global__ void __launch_bounds__(RECUR_UNIT * 2 / TILES + 32, BLOCKS)
	pair(const __grid_constant__ one_args a, const __grid_constant__ nothing)
{
	extern __shared__ __align__(128) unsigned char memory[];
	__shared__ of_heads o;
	__shared__ uint2 staged_gates[32];
	board<KT, false> &s = *(board<KT, false> *)memory;
	static_assert(sizeof(number_stage) <= sizeof(s.t), "there is no T here: its place is free");
	number_stage &numbers = *(number_stage *)s.t;
	const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, col = warp * TILES * 16;
	const bool of_row = warp + 1 == blockDim.x >> 5;
	const bool has_part = warp < 3 && a.streams[warp].there;
	uint32_t u = blockIdx.x, use = 0, border = 0;
	/* begins to bring what the unit has from earlier steps */
	const auto announce = [&](const place &w) {
		if (of_row) {
			numbers_begin<false>(a, head_of(a, w, lane / Q), numbers, false);
			old_begin<false>(a, head_of(a, w, lane / Q), lane % Q, numbers);
		} else if (has_part)
			part_begin(a, warp, w, s.parts[warp], false);
		if (!of_row && lane == 0) {
			const uint32_t at = col % COLS / 16 * KT * 512;
			const unsigned char *unit = unit_of(a, w, col / COLS);
			copies_expect(s.arrived + warp, TILES * KT * 512);
			copy_begin(s.S + warp * TILES * KT * 32, unit + a.unit.S + at, TILES * KT * 512,
			           s.arrived + warp);
			if (!w.r && w.pos)
				bytes_near(unit + a.unit.low + at, TILES * KT * 512);
		}
		border = *(const volatile uint32_t *)w.unit;
		earlier_begin(a, w.unit, w.first, w.r, s);
		inputs_begin(a, w, o);
		if (of_row)
			near_row<KT>(a, w);
		__syncwarp();
	};
	/* the same of the step's products */
	const auto announce_row = [&](const place &w) {
		if (of_row) {
			numbers_begin<false>(a, head_of(a, w, lane / Q), numbers, true);
			copy_if<8>(a.finish && a.streams[ONE_GATE].there, staged_gates + lane,
			           a.proj + (size_t)w.row * a.ld_proj + a.streams[ONE_GATE].at + w.head * 128 +
			               lane * 4);
		} else if (has_part)
			part_begin(a, warp, w, s.parts[warp], true);
	};
	mx_pdl_launch();
	if (lane == 0 && !of_row)
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
		float own_f = 1, beta = 0, f = 1, b = 0; /* of the row's warp; f, b: as in numbers_of */
		uint2 gates = make_uint2(0, 0);
		if (there) {
			if (border < w.from) {
				asm volatile("cp.async.wait_all;" ::: "memory");
				add_to_both<KT>(a, o, u, use);
				earlier_begin(a, w.unit, w.first, w.r, s);
			}
			asm volatile("cp.async.wait_all;" ::: "memory");
			if (of_row) {
				own_terms terms;
				const place one = head_of(a, w, lane / Q);
				numbers_take<false>(a, numbers, terms);
				old_take<false>(a, w, lane % Q, numbers, &f, &b);
				gates = staged_gates[lane];
				close_numbers<false>(a, terms, &own_f, &beta);
				if (lane % Q == 0 && a.decays && !a.fixed_a)
					((float *)(one.unit + a.unit.a))[w.entry] = own_f;
				if (lane % Q == 0 && a.gain)
					((float *)(one.unit + a.unit.b))[w.entry] = beta;
			} else if (has_part) {
				lane_part part;
				const uint4 read = part_take(a, warp, w, s.parts[warp], part);
				close_part(a, warp, w, s, part, read);
				if (warp == ONE_K && lane * 4 < s.kpad) /* the second head's ring has it too */
					*(uint2 *)((T *)(unit_of(a, w, 1) + a.unit.k) + w.entry * s.kpad + lane * 4) =
						*(const uint2 *)(s.k + w.r * s.ld + lane * 4);
				if (warp == ONE_V) {
					const uint32_t h = lane / 16, e = lane % 16 * 4;
					const uint2 v = *(const uint2 *)(s.v + lane * 4);
					*(uint2 *)(o.x[h][w.r] + e) = v;
					*(uint2 *)((T *)(unit_of(a, w, h) + a.unit.x) + w.entry * COLS + e) = v;
				}
			}
			__syncthreads();
		}
		const uint32_t next_u = u + gridDim.x;
		if (of_row && lane == 0 && next_u < a.n_units)
			next = place_of(a, next_u);
		float c[TILES][4] = {};
		operand_a<2> x[TILES] = {};
		if (there) { /* what S and the chunk's tokens say */
			if (of_row) {
				row_scores(s, w.r);
				weights_of(a, w, s, o, lane % Q == w.r ? own_f : f, b, beta);
			} else {
#pragma unroll
				for (uint32_t n = 0; n < TILES; n++)
					x[n] = inputs_a(o, col + 16 * n);
				copies_wait(s.arrived + warp, use);
				ask<KT>(s.S + warp * TILES * KT * 32 + lane, TILES, s.k + w.r * s.ld, s.q, s.zero,
				        c);
			}
			use ^= 1;
		}
		__syncthreads();
		if (next_u < a.n_units && next.n == 1) {
			announce_row(next);
			announce(next);
		}
		if (there) {
			if (!of_row)
				answer(a, w, s, o, col, c, x);
			const float4 z = mapped(a, gates);
			__syncthreads();
			if (of_row && a.finish) {
				const float4 y = load4(s.y + lane * 4);
				store4((T *)a.out + ((size_t)w.row * a.heads + 2 * w.head) * COLS + lane * 4,
				       make_float4(y.x * z.x, y.y * z.y, y.z * z.z, y.w * z.w));
			}
		}
		if (next_u >= a.n_units)
			return;
		u = next_u;
	}
}

/* ---- the host's side ---- */

/* True if two neighbours of the heads always share one of n. */
bool shared_by_two(uint32_t heads, uint32_t n)
{
	return n && heads % (2 * n) == 0;
}

bool in_heads(const recur_source &s, uint32_t heads)
{
	return s.heads == heads && s.dim == COLS && s.per >= heads && s.off % 4 == 0;
}

template <int KT> cudaError_t launch_pair(cudaStream_t stream, const one_args &a)
{
	return launch_resident(pair<KT>, false, board_bytes<KT, false>(2 * COLS), stream, a, nothing{});
}

template <int KT> cudaError_t prepare_pair()
{
	return cudaFuncSetAttribute(pair<KT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)board_bytes<KT, false>(2 * COLS));
}

} // namespace

bool recur_cuda_pair_can(const struct recur_one *p)
{
	const recur_core &c = p->core;
	return p->fused && !c.delta && !c.vector && (c.kpad == 64 || c.kpad == 128) &&
	       c.unit.cols == COLS && c.unit.per_head == 1 && c.vpad == COLS && c.v_dim == COLS &&
	       c.v_heads == c.heads && shared_by_two(c.heads, c.q_heads) &&
	       shared_by_two(c.heads, c.k_heads) && in_heads(p->rows.source[MX_RECUR_V], c.heads) &&
	       !p->rows.one && c.step.n_spans * c.heads >= LEAST &&
	       (!p->finish || (!p->out.has_norm && !p->out.by_turns &&
	                       (!p->out.source.heads || in_heads(p->out.source, c.heads))));
}

cudaError_t recur_cuda_pair(cudaStream_t stream, const struct recur_one *p)
{
	const recur_core &c = p->core;
	one_args a = args_of(*p);
	const auto of_pairs = [&](uint32_t n) {
		const uint64_t each = c.heads / 2 / n;
		return (((uint64_t)1 << 32) + each - 1) / each;
	};
	a.units /= 2;
	a.n_units /= 2;
	a.unit.cols *= 2;
	a.unit.bytes *= 2;
	a.streams[ONE_V].dim *= 2;
	a.streams[ONE_K].shared = of_pairs(c.k_heads);
	a.streams[ONE_Q].shared = of_pairs(c.q_heads);
	return c.kpad == 64 ? launch_pair<4>(stream, a) : launch_pair<8>(stream, a);
}

cudaError_t recur_cuda_pair_prepare(uint32_t kpad)
{
	return kpad == 64 ? prepare_pair<4>() : kpad == 128 ? prepare_pair<8>() : cudaSuccess;
}
