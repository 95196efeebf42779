/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of many rows (prefill.cu): a warpgroup that multiplies, 64 rows of
 * each tile.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_PREFILL_CONSUME_CUH
#define MX_MIXERS_ATTENTION_CUDA_PREFILL_CONSUME_CUH

#include "mixers/attention/cuda/prefill_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace
{

/* Sets the values of keys n .. KEYS - 1 of a stage to zero: memory that was never written may hold
 * NaN. */
template <int D> __device__ void clear_values(unsigned char *values, uint32_t n)
{
	constexpr uint32_t row = D * 2, parts = row / 16;
	for (uint32_t i = n * parts + (threadIdx.x & 127); i < KEYS * parts; i += 128)
		*(uint4 *)(values + attn_place(row, i / parts, i % parts * 16)) = {0, 0, 0, 0};
}

/* The running state of a thread: rows g and g + 8 of its warp's 16. */
template <int D> struct state {
	float m[2], l[2], o[D / 2];

	__device__ __forceinline__ void clear(void)
	{
		m[0] = m[1] = -INFINITY;
		l[0] = l[1] = 0;
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			o[i] = 0;
	}
};

/* Folds a split's result into that of the splits before it, as attn_merge does. */
template <int D> __device__ __forceinline__ void fold(state<D> &all, const state<D> &x)
{
	fold_factors f[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float sum = x.l[r];
		sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
		sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
		f[r] = factors(all.m[r], x.m[r]);
		all.m[r] = fmaxf(all.m[r], x.m[r]);
		all.l[r] = fold_number(all.l[r], f[r].old, sum, f[r].add);
	}
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		all.o[i] = fold_number(all.o[i], f[i / 2 & 1].old, x.o[i], f[i / 2 & 1].add);
}

/* Scores that a row does not see become -inf. `pos`: positions of the thread's two rows; k0: that
 * of the first key. */
template <bool SHARED>
__device__ __forceinline__ void mask(const attn_args &a, float (&s)[KEYS / 2],
                                     const uint32_t (&pos)[2], uint32_t k0)
{
	const uint32_t t = threadIdx.x & 3;
	const uint32_t reach = a.window && a.window < 0x80000000u ? a.window : 0x80000000u;
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) {
		/* for later keys this wraps to a large number */
		uint32_t back = pos[i / 2 & 1] - (k0 + i / 4 * 8 + 2 * t + (i & 1));
		if constexpr (SHARED)
			back -= i / (MX_TURN / 2) * a.places.far;
		s[i] = back < reach ? s[i] : -INFINITY;
	}
}

/* Turns the scores of a step into probabilities; outputs so far are to be multiplied by alpha. */
template <int D>
__device__ __forceinline__ void softmax(const attn_args &a, float (&s)[KEYS / 2], state<D> &x,
                                        float (&alpha)[2])
{
	float use[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
		for (int i = 0; i < KEYS / 2; i += 8)
#pragma unroll
			for (int k = 0; k < 4; k++)
				top[k] = fmaxf(top[k], s[i + k / 2 * 4 + 2 * r + (k & 1)]);
		top[0] = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 1));
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 2));
		float m = fmaxf(x.m[r], __fmul_rn(top[0], a.scale));
		use[r] = m == -INFINITY ? 0 : m;
		alpha[r] = exp2_fast(__fsub_rn(x.m[r], use[r]));
		x.m[r] = m;
	}
	float sum[2][2] = {};
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) {
		s[i] = exp2_fast(__fmaf_rn(s[i], a.scale, -use[i / 2 & 1]));
		sum[i / 2 & 1][i & 1] = __fadd_rn(sum[i / 2 & 1][i & 1], s[i]);
	}
#pragma unroll
	for (int r = 0; r < 2; r++)
		x.l[r] = __fmaf_rn(x.l[r], alpha[r], __fadd_rn(sum[r][0], sum[r][1]));
}

template <int D> __device__ __forceinline__ void rescale(state<D> &x, const float (&alpha)[2])
{
	if (__all_sync(~0u, alpha[0] == 1 && alpha[1] == 1))
		return; /* no row has a new maximum */
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		x.o[i] = __fmul_rn(x.o[i], alpha[i / 2 & 1]);
}

/* The warpgroups take turns: one starts its products while the other makes probabilities. A turn
 * is a meeting of both: one waits, the other goes on. */
__device__ __forceinline__ void turn_wait(uint32_t group)
{
	asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory");
}
__device__ __forceinline__ void turn_give(uint32_t group)
{
	asm volatile("bar.arrive %0, 256;" ::"r"(3 + (group ^ 1)) : "memory");
}

/* Meets the other warps of the warpgroup. */
__device__ __forceinline__ void group_sync(uint32_t group)
{
	asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

/* The steps of a tile, for a warpgroup. HALF: operands are f16, not bf16. */
template <int D, bool HALF, bool SHARED> struct steps {
	using P = plan<D, HALF>;
	static constexpr uint32_t group_bytes = 8 * P::row;
	const attn_args &a;
	const barriers &bars;
	unsigned char *shared;
	const uint32_t group;
	uint32_t n = 0; /* steps before this tile's */
	/* of the tile */
	uint32_t hi, k0, pos[2], lowest, highest;

	__device__ __forceinline__ void open(const tile &w)
	{
		const uint32_t warp_row = first_row(), last = w.v0 + w.rows - 1;
		for (int r = 0; r < 2; r++) {
			const uint32_t v = w.v0 + warp_row + 8 * r;
			pos[r] = w.pos + (v < last ? v : last) / a.group;
		}
		/* the first and the last position of the warpgroup's rows */
		const uint32_t v = w.v0 + group * 64;
		lowest = w.pos + (v < last ? v : last) / a.group;
		highest = w.pos + (v + 63 < last ? v + 63 : last) / a.group;
		hi = w.hi;
		k0 = w.k0;
	}
	/* The thread's first row in the tile; the second is 8 further. */
	__device__ __forceinline__ uint32_t first_row(void) const
	{
		return group * 64 + (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4;
	}
	__device__ __forceinline__ uint32_t stage(uint32_t i) const
	{
		return (n + i) % STAGES;
	}
	__device__ __forceinline__ uint32_t parity(uint32_t i) const
	{
		return (n + i) / STAGES & 1;
	}
	__device__ __forceinline__ void wait_keys(uint32_t i) const
	{
		barrier_wait(bars.full(0, stage(i)), parity(i));
	}
	/* Waits for a step's values. Of the last step clears those that are not there: memory that was
	 * never written may hold NaN. */
	__device__ __forceinline__ void wait_values(uint32_t i, bool last) const
	{
		barrier_wait(bars.full(1, stage(i)), parity(i));
		const uint32_t left = hi - (k0 + i * KEYS);
		if (last && left < KEYS) {
			clear_values<D>(shared + P::queries + (STAGES + stage(i)) * P::stage, left);
			asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
			group_sync(group);
		}
	}
	__device__ __forceinline__ void free_stage(int values, uint32_t i) const
	{
		if ((threadIdx.x & 31) == 0)
			barrier_arrive(bars.empty(values, stage(i)));
	}
	/* Starts the products of the queries with a step's keys. */
	__device__ __forceinline__ void start_scores(float (&s)[KEYS / 2], uint32_t i) const
	{
		const uint32_t base = shared_address(shared), queries = base + group * 64 * P::row;
		const uint32_t k = base + P::queries + stage(i) * P::stage;
		hold(s);
		products_begin();
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			/* 16 dimensions are 32 bytes of a panel of 128 */
			const uint32_t at = c / 4 * 1024 + c % 4 * 32;
			wide_shared<HALF>(s, matrix_at(queries + at, 0, group_bytes),
			                  matrix_at(k + at, 0, group_bytes), c > 0);
		}
		products_commit();
	}
	/* Starts the products of a step's probabilities with its values. */
	__device__ __forceinline__ void start_values(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4],
	                                             uint32_t i) const
	{
		const uint32_t v = shared_address(shared) + P::queries + (STAGES + stage(i)) * P::stage;
		hold(o);
		products_begin();
#pragma unroll
		for (int c = 0; c < KEYS / 16; c++)
			wide_registers<HALF>(o, p + 4 * c,
			                     matrix_at(v + 2 * c * group_bytes, 1024, group_bytes));
		products_commit();
	}
	/* Masks a step's scores and makes probabilities of them. */
	__device__ __forceinline__ void weigh(float (&s)[KEYS / 2], state<D> &x, float (&alpha)[2],
	                                      uint32_t i) const
	{
		const uint32_t key = k0 + i * KEYS;
		const uint32_t from = SHARED ? mx_position_of(&a.places, key) : key;
		const uint32_t to = from + KEYS + (SHARED ? (KEYS / MX_TURN - 1) * a.places.far : 0);
		if (to > lowest + 1 || (a.window && highest - from >= a.window))
			mask<SHARED>(a, s, pos, from);
		if (a.skip_first && from == 0 && (threadIdx.x & 3) == 0) {
			/* rows see position 0 if it is theirs */
			s[0] = pos[0] ? -INFINITY : s[0];
			s[2] = pos[1] ? -INFINITY : s[2];
		}
		softmax<D>(a, s, x, alpha);
	}
	static __device__ __forceinline__ void pack_all(uint32_t (&p)[KEYS / 4],
	                                                const float (&s)[KEYS / 2])
	{
#pragma unroll
		for (int c = 0; c < KEYS / 4; c++)
			p[c] = pack<HALF>(s[2 * c], s[2 * c + 1]);
	}
	/* Says that the tile's queries are no longer needed. */
	__device__ __forceinline__ void free_queries(void) const
	{
		if ((threadIdx.x & 31) == 0)
			barrier_arrive(bars.answered());
	}

	/* All keys as one split. The scores of a step are computed beside the values of the one before,
	 * and softmax beside these. */
	__device__ __forceinline__ void run(state<D> &x, uint32_t all) const
	{
		float s[KEYS / 2], alpha[2];
		uint32_t p[KEYS / 4];
		x.clear();
		if (all == 0) {
			free_queries();
			return;
		}
		wait_keys(0);
		start_scores(s, 0);
		products_wait<0>();
		hold(s);
		free_stage(0, 0);
		weigh(s, x, alpha, 0);
		pack_all(p, s);
#pragma unroll 1
		for (uint32_t i = 1; i < all; i++) {
			wait_keys(i);
			turn_wait(group);
			start_scores(s, i);
			wait_values(i - 1, false);
			start_values(x.o, p, i - 1);
			turn_give(group);
			products_wait<1>();
			hold(s);
			free_stage(0, i);
			weigh(s, x, alpha, i);
			products_wait<0>();
			hold(x.o);
			free_stage(1, i - 1);
			rescale<D>(x, alpha);
			pack_all(p, s);
		}
		free_queries();
		wait_values(all - 1, true);
		start_values(x.o, p, all - 1);
		products_wait<0>();
		hold(x.o);
		free_stage(1, all - 1);
	}

	/* Each split's result is folded into that of the splits before it. */
	__device__ __forceinline__ void run_ladder(state<D> &sum, uint32_t all) const
	{
		state<D> x;
		x.clear();
		sum.clear();
#pragma unroll 1
		for (uint32_t i = 0; i < all; i++) {
			float s[KEYS / 2], alpha[2];
			uint32_t p[KEYS / 4];
			const uint32_t key = k0 + i * KEYS;
			wait_keys(i);
			start_scores(s, i);
			products_wait<0>();
			hold(s);
			free_stage(0, i);
			weigh(s, x, alpha, i);
			rescale<D>(x, alpha);
			pack_all(p, s);
			wait_values(i, i + 1 == all);
			start_values(x.o, p, i);
			products_wait<0>();
			hold(x.o);
			free_stage(1, i);
			if (i + 1 == all || attn_rung(key) != attn_rung(key + KEYS)) {
				fold(sum, x);
				x.clear();
			}
		}
		free_queries();
	}
};

/* Writes what a tile's rows found: outputs, or for ranks that share pages partials. `x.l` is the
 * whole sum with LADDER, otherwise the thread's part of it. */
template <int D, bool LADDER, bool SHARED>
__device__ __forceinline__ void store(const attn_args &a, const tile &w, const state<D> &x,
                                      uint32_t first_row)
{
	const uint32_t t = threadIdx.x & 3;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float sum = x.l[r];
		if constexpr (!LADDER) {
			sum += __shfl_xor_sync(~0u, sum, 1);
			sum += __shfl_xor_sync(~0u, sum, 2);
		}
		const uint32_t at = first_row + 8 * r;
		if (at >= w.rows)
			continue;
		const uint32_t row = w.row + (w.v0 + at) / a.group;
		const uint32_t head = w.head * a.group + (w.v0 + at) % a.group;
		if constexpr (SHARED) {
			float *to = sent_partial(a, row, head);
#pragma unroll
			for (int c = 0; c < D / 8; c++)
				*(float2 *)(to + 8 * c + 2 * t) =
					make_float2(x.o[4 * c + 2 * r], x.o[4 * c + 2 * r + 1]);
			if (t == 0)
				*(float2 *)(to + D) = make_float2(x.m[r], sum);
			continue;
		}
		__nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)row * a.ldo + head * a.head_dim;
		const float scale = __fdividef(1, with_sink(a, head, x.m[r], sum));
#pragma unroll
		for (int c = 0; c < D / 8; c++) {
			const uint32_t e = 8 * c + 2 * t;
			const float first = x.o[4 * c + 2 * r], second = x.o[4 * c + 2 * r + 1];
			if (e < a.head_dim)
				*(uint32_t *)(out + e) = LADDER
				                             ? pack<false>(finish(a, head, {x.m[r], sum, first}),
				                                           finish(a, head, {x.m[r], sum, second}))
				                             : pack<false>(first * scale, second * scale);
		}
	}
}

template <int D, bool HALF, bool LADDER, bool SHARED>
__device__ void consume(const attn_args &a, unsigned char *shared, const barriers &bars)
{
	using P = plan<D, HALF>;
	const uint32_t group = threadIdx.x / 128;
	steps<D, HALF, SHARED> s = {a, bars, shared, group};
	tile w;
	reader tiles;
	if (group == 1)
		turn_give(group); /* the first turn is the other's */
	while (tiles.next(w, (const tile *)(shared + P::told_at), bars)) {
		state<D> x;
		s.open(w);
		barrier_wait(bars.asked(), (tiles.n & 1) ^ 1);
		if constexpr (LADDER)
			s.run_ladder(x, w.steps);
		else
			s.run(x, w.steps);
		s.n += w.steps;
		store<D, LADDER, SHARED>(a, w, x, s.first_row());
	}
}

} // namespace

#endif

#endif
