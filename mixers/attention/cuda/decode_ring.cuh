/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values on their way to decode_kernels.cuh: how they lie in shared memory, and the ring
 * of copies of a warp. */
#ifndef MX_MIXERS_ATTENTION_CUDA_DECODE_RING_CUH
#define MX_MIXERS_ATTENTION_CUDA_DECODE_RING_CUH

#include "mixers/attention/cuda/twice.cuh"

#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"
#include "mixers/attention/cuda/units.cuh"

namespace
{

/* How keys of dimension D lie in shared memory. */
template <typename KV, int D> struct tile {
	static constexpr bool fp8 = sizeof(KV) == 1;
	static constexpr int row = D * (int)sizeof(KV);
	static constexpr int panel = row % 128 == 0 ? 128 : row % 64 == 0 ? 64 : 32;
	static constexpr int parts = panel / 16;
	static constexpr int shift = parts == 8 ? 0 : parts == 4 ? 1 : 2;
	static constexpr int block = ATTN_CUDA_WARP_KEYS * row;
	static constexpr int pitch = D + 4; /* floats between rows of store: no bank conflicts */
};

/* Starts the copies of this warp's blocks in the order in which the warp will use them. */
template <typename KV, int D, int ROWS, bool WHOLE> struct feed {
	using T = tile<KV, D>;
	unit w;
	const uint32_t *first;
	const uint4 *units;
	uint32_t i, n;   /* current unit and number of units */
	uint32_t b, end; /* next block, and the end of the unit's blocks */
	bool done;
	int next;      /* lane that knows the address of block b */
	uint32_t tail; /* keys from here on are in the row's tail */
	const unsigned char *keys;

	/* Finds the addresses of the next 32 blocks, one a lane. */
	__device__ void find(const attn_args &a)
	{
		uint32_t mine = b + (threadIdx.x & 31) * WARPS, key = mine * ATTN_CUDA_WARP_KEYS;
		next = 0;
		tail = a.tails ? a.tails[w.row].from : UINT32_MAX;
		if (mine < end && key >= tail) {
			keys = a.tail_base + a.tails[w.row].place * attn_tail_bytes(a.kv_heads, T::row) +
			       ((size_t)2 * w.head * ATTN_TAIL + key - tail) * T::row;
		} else if (mine < end) {
			uint32_t page = a.pages[w.page_begin + key / a.page_tokens];
			keys = a.page_base + page * a.page_stride +
			       ((size_t)2 * w.head * a.page_tokens + key % a.page_tokens) * T::row;
		}
	}

	__device__ void open(const attn_args &a, const uint32_t *list, const uint4 *listed,
	                     uint32_t all)
	{
		first = list;
		units = listed;
		i = 0;
		n = all;
		keys = nullptr;
		done = n == 0;
		if (done)
			return;
		load_unit<ROWS, WHOLE>(a, first, units, i, w);
		warp_blocks(w, threadIdx.x >> 5, b, end);
		if (b < end)
			find(a);
		advance(a);
	}

	/* Goes on to the next split or unit if the blocks of this one are used up. */
	__device__ void advance(const attn_args &a)
	{
		while (!done && b >= end) {
			if (++w.split >= w.split_end) {
				done = ++i >= n;
				if (done)
					break;
				load_unit<ROWS, WHOLE>(a, first, units, i, w);
			}
			warp_blocks(w, threadIdx.x >> 5, b, end);
			if (b < end)
				find(a);
		}
	}

	/* True if earlier steps have written all keys of the next block. */
	__device__ bool old(const attn_args &a) const
	{
		return !done &&
		       b * ATTN_CUDA_WARP_KEYS + ATTN_CUDA_WARP_KEYS <= mx_place_of(&a.places, w.pos);
	}

	__device__ void push(const attn_args &a, uint32_t to, uint32_t bar)
	{
		if (!done) {
			const unsigned char *k =
				(const unsigned char *)__shfl_sync(~0u, (unsigned long long)keys, next);
			const uint32_t apart = b * ATTN_CUDA_WARP_KEYS < tail ? a.page_tokens : ATTN_TAIL;
			const unsigned char *v = k + (size_t)apart * T::row;
#if __CUDA_ARCH__ >= 900
			if ((threadIdx.x & 31) == 0) {
				barrier_expect(bar, 2 * T::block);
				copy_bulk(to, k, T::block, bar);
				copy_bulk(to + T::block, v, T::block, bar);
			}
#else
			(void)bar;
			for (int i = threadIdx.x & 31; i < T::block / 16; i += 32) {
				copy_16(to + i * 16, k + i * 16);
				copy_16(to + T::block + i * 16, v + i * 16);
			}
#endif
			b += WARPS;
			if (++next == 32 && b < end)
				find(a);
			advance(a);
		}
#if __CUDA_ARCH__ < 900
		copies_commit();
#endif
	}
};

} // namespace

#endif
