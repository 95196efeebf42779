/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of many rows (prefill.cu): the warps that bring queries, keys and
 * values to shared memory. The first of them also takes the tiles.
 *
 * Keys in bf16 lie in pages as products want them, so one warp starts copies. Keys in fp8 are
 * copied as they are, and eight warps make f16 of them, exactly: each of blocks of its own, so
 * that none waits for another.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_PREFILL_PRODUCE_CUH
#define MX_MIXERS_ATTENTION_CUDA_PREFILL_PRODUCE_CUH

#include "mixers/attention/cuda/prefill_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace
{

#define BLOCK ATTN_CUDA_WARP_KEYS

/* Takes the next tile and tells it to all others. The first one of a thread block has its number,
 * the rest are counted in memory; whoever counts last sets the counter back to 0. */
template <bool SHARED>
__device__ __forceinline__ bool take_tile(const attn_args &a, uint32_t turn, tile &w, tile *to,
                                          const barriers &bars)
{
	const uint32_t lane = threadIdx.x & 31, slot = turn % TOLD;
	uint32_t u = blockIdx.x, all;
	if (turn) {
		uint32_t number = 0;
		if (lane == 0)
			number = atomicAdd(a.tiles, 1);
		u = gridDim.x + __shfl_sync(~0u, number, 0);
	}
	const bool there = find_tile<SHARED>(a, u, w, all);
	if (!there) {
		w.steps = TILE_NONE;
		if (lane == 0 && turn && u - gridDim.x + 1 == all)
			*a.tiles = 0;
	}
	barrier_wait(bars.heard(slot), (turn / TOLD & 1) ^ 1);
	if (lane == 0) {
		to[slot] = w;
		barrier_arrive(bars.told(slot));
	}
	return there;
}

/* Returns where a block of 16 keys or values lies in its page. */
__device__ __forceinline__ const unsigned char *
block_at(const attn_args &a, const tile &w, uint32_t key, uint32_t values, uint32_t line)
{
	return a.page_base + a.pages[w.page_begin + key / a.page_tokens] * a.page_stride +
	       ((size_t)(2 * w.head + values) * a.page_tokens + key % a.page_tokens) * line;
}

/* Starts to load a tile's queries into shared memory, swizzled like keys; missing rows become zero.
 * Thread `thread` of `threads`; f16 with HALF. */
template <int D, bool HALF>
__device__ __forceinline__ void load_queries(const attn_args &a, const tile &w, unsigned char *to,
                                             uint32_t thread, uint32_t threads)
{
	constexpr uint32_t row = D * 2, parts = row / 16;
#pragma unroll 2
	for (uint32_t i = thread; i < ROWS * parts; i += threads) {
		const uint32_t r = i / parts, e = i % parts * 8, v = w.v0 + r;
		unsigned char *at = to + attn_place(row, r, e * 2);
		if (r >= w.rows || e >= a.head_dim) {
			*(uint4 *)at = {0, 0, 0, 0};
			continue;
		}
		const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.qkv +
		                         (size_t)(w.row + v / a.group) * a.ld +
		                         (size_t)(w.head * a.group + v % a.group) * a.head_dim + e;
		if constexpr (HALF) {
			const uint4 from = *(const uint4 *)x;
			const uint32_t in[4] = {from.x, from.y, from.z, from.w};
			uint32_t out[4];
#pragma unroll
			for (int k = 0; k < 4; k++)
				out[k] =
					pack<true>(__uint_as_float(in[k] << 16), __uint_as_float(in[k] & 0xffff0000u));
			*(uint4 *)at = {out[0], out[1], out[2], out[3]};
		} else {
			copy_16(shared_address(at), x);
		}
	}
}

/* Waits for the queries that the thread loads, and says that its part is there. */
__device__ __forceinline__ void queries_there(const barriers &bars)
{
	asm volatile("cp.async.wait_all;" ::: "memory");
	copies_after_writes();
	barrier_arrive(bars.asked());
}

/* ---- keys in bf16 ---- */

template <int D, bool SHARED>
__device__ void copy_keys(const attn_args &a, unsigned char *shared, const barriers &bars)
{
	using P = plan<D, false>;
	constexpr uint32_t block = BLOCK * P::row, blocks = KEYS / BLOCK;
	const uint32_t lane = threadIdx.x & 31;
	const uint32_t values = lane / blocks; /* lanes 0 .. 7 keys, .. 15 values */
	const uint32_t keys = shared_address(shared) + P::queries;
	tile w;
	uint32_t n = 0; /* steps so far */
	for (uint32_t turn = 0; take_tile<SHARED>(a, turn, w, (tile *)(shared + P::told_at), bars);
	     turn++)
		for (uint32_t i = 0; i < w.steps; i++, n++) {
			const uint32_t stage = n % STAGES, parity = (n / STAGES & 1) ^ 1;
			const uint32_t key = w.k0 + i * KEYS, left = w.hi - key;
			const uint32_t have = left < KEYS ? (left + BLOCK - 1) / BLOCK : blocks;
			const unsigned char *from = nullptr;
			if (lane < 2 * blocks && lane % blocks < have)
				from = block_at(a, w, key + lane % blocks * BLOCK, values, P::row);
			for (uint32_t v = 0; v < 2; v++) {
				barrier_wait(bars.empty(v, stage), parity);
				if (lane == 0)
					barrier_expect(bars.full(v, stage), have * block);
				__syncwarp();
				if (values == v && from)
					copy_bulk(keys + (v * STAGES + stage) * P::stage + lane % blocks * block, from,
					          block, bars.full(v, stage));
			}
		}
}

/* The other warps bring the queries. */
template <int D>
__device__ void copy_queries(const attn_args &a, unsigned char *shared, const barriers &bars)
{
	using P = plan<D, false>;
	const uint32_t thread = threadIdx.x - 128 * GROUPS - 32;
	tile w;
	reader tiles;
	while (tiles.next(w, (const tile *)(shared + P::told_at), bars)) {
		barrier_wait(bars.answered(), tiles.n & 1);
		load_queries<D, false>(a, w, shared, thread, 32 * (producers(false) - 1));
		queries_there(bars);
	}
}

/* ---- keys in fp8 ---- */

/* The copies of a warp: of each step its blocks of keys, then of values. */
template <int D> struct raw_copies {
	static constexpr uint32_t blocks = KEYS / BLOCK / producers(true), block = BLOCK * D;
	uint32_t at, warp, started = 0, done = 0; /* halves of steps, of all tiles */

	/* Starts the copy of half `i` of the tile. The block of a key that nobody sees is not copied.
	 */
	__device__ __forceinline__ void start(const attn_args &a, const tile &w, uint32_t i,
	                                      const barriers &bars)
	{
		const uint32_t lane = threadIdx.x & 31, slot = started++ % RAW;
		const uint32_t first = w.k0 + i / 2 * KEYS + warp * blocks * BLOCK;
		const uint32_t have = count(w, i), bar = bars.raw(warp, slot);
		const unsigned char *from = nullptr;
		if (lane < have)
			from = block_at(a, w, first + lane * BLOCK, i & 1, D);
		if (lane == 0)
			barrier_expect(bar, have * block);
		__syncwarp();
		if (from)
			copy_bulk(at + slot * blocks * block + lane * block, from, block, bar);
	}
	/* Returns how many blocks the warp has of half i. */
	__device__ __forceinline__ uint32_t count(const tile &w, uint32_t i) const
	{
		const uint32_t first = w.k0 + i / 2 * KEYS + warp * blocks * BLOCK;
		if (first >= w.hi)
			return 0;
		const uint32_t have = (w.hi - first + BLOCK - 1) / BLOCK;
		return have < blocks ? have : blocks;
	}
};

/* Makes f16 of four numbers. */
__device__ __forceinline__ void widen_four(uint32_t from, uint32_t &low, uint32_t &high)
{
	asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
	    "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
	    : "=r"(low), "=r"(high)
	    : "r"(from));
}

/* Makes f16 of a block of 16 keys or values. A lane takes 16 numbers at a time: eight lanes read
 * 128 bytes of all banks, and write them: four parts of token t and of token t ^ 5. */
template <int D>
__device__ __forceinline__ void widen_block(const unsigned char *from, unsigned char *to)
{
	constexpr uint32_t quarters = D / 64; /* of four parts of 16 numbers */
	const uint32_t lane = threadIdx.x & 31;
	/* lane: part (2 bits), which of two tokens, 2 more bits of the token's number */
	const uint32_t pair = lane >> 3, other = lane >> 2 & 1;
#pragma unroll
	for (uint32_t half = 0; half < 2; half++)
#pragma unroll
		for (uint32_t q = 0; q < quarters; q++) {
			/* pairs (t, t ^ 5) of 8 tokens: t = 0, 1, 2, 3 with 5, 4, 7, 6 */
			const uint32_t t = half * 8 + (other ? pair ^ 5 : pair), part = q * 4 + (lane & 3);
			const uint4 x = *(const uint4 *)(from + attn_place(D, t, part * 16));
			uint4 low, high;
			widen_four(x.x, low.x, low.y);
			widen_four(x.y, low.z, low.w);
			widen_four(x.z, high.x, high.y);
			widen_four(x.w, high.z, high.w);
			*(uint4 *)(to + attn_place(2 * D, t, part * 32)) = low;
			*(uint4 *)(to + attn_place(2 * D, t, part * 32 + 16)) = high;
		}
}

template <int D, bool SHARED>
__device__ void widen_keys(const attn_args &a, unsigned char *shared, const barriers &bars)
{
	using P = plan<D, true>;
	using raw = raw_copies<D>;
	const uint32_t thread = threadIdx.x - 128 * GROUPS, warp = thread / 32;
	const tile *told = (const tile *)(shared + P::told_at);
	unsigned char *mine = shared + P::raw_at + warp * RAW * P::raw;
	tile w;
	reader tiles;
	raw copies = {shared_address(mine), warp};
	uint32_t n = 0; /* steps so far */
	for (uint32_t turn = 0;; turn++) {
		const bool there = warp == 0 ? take_tile<SHARED>(a, turn, w, (tile *)told, bars)
		                             : tiles.next(w, told, bars);
		if (!there)
			return;
		const uint32_t halves = 2 * w.steps;
		for (uint32_t i = 0; i < RAW && i < halves; i++)
			copies.start(a, w, i, bars);
		/* The queries' place is free when the last tile's scores are there; by then the first keys
		 * of this one are. */
		if (halves == 0) {
			barrier_wait(bars.answered(), (turn & 1) ^ 1);
			load_queries<D, true>(a, w, shared, thread, 32 * producers(true));
			queries_there(bars);
		}
		for (uint32_t i = 0; i < halves; i++) {
			const uint32_t v = i & 1, stage = n % STAGES, parity = (n / STAGES & 1) ^ 1;
			const uint32_t slot = copies.done % RAW, have = copies.count(w, i);
			barrier_wait(bars.raw(warp, slot), copies.done / RAW & 1);
			copies.done++;
			barrier_wait(bars.empty(v, stage), parity);
			unsigned char *to = shared + P::queries + (v * STAGES + stage) * P::stage +
			                    warp * raw::blocks * BLOCK * P::row;
			for (uint32_t b = 0; b < have; b++)
				widen_block<D>(mine + (slot * raw::blocks + b) * raw::block,
				               to + b * BLOCK * P::row);
			copies_after_writes();
			__syncwarp();
			if ((threadIdx.x & 31) == 0)
				barrier_arrive(bars.full(v, stage));
			if (i + RAW < halves)
				copies.start(a, w, i + RAW, bars);
			if (i == 0) {
				barrier_wait(bars.answered(), (turn & 1) ^ 1);
				load_queries<D, true>(a, w, shared, thread, 32 * producers(true));
				queries_there(bars);
			}
			n += v;
		}
	}
}

#undef BLOCK

} // namespace

#endif

#endif
