/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of many rows (prefill.cu): tiles of rows, what lies where in shared
 * memory, and the barriers by which the warps of a thread block meet.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_PREFILL_TILES_CUH
#define MX_MIXERS_ATTENTION_CUDA_PREFILL_TILES_CUH

#include "device/cuda/launch.cuh"
#include "device/cuda/wgmma.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"
#include "mixers/attention/cuda/partial.cuh"

#define GROUPS    2             /* warpgroups that multiply */
#define ROWS      (64 * GROUPS) /* of a tile */
#define KEYS      128           /* of a step through the keys */
#define STAGES    2             /* steps whose keys and values are there */
#define TOLD      2             /* tiles that are known ahead */
#define RAW       4             /* fp8: halves of a step that are copied ahead, for each warp */
#define TILE_NONE UINT32_MAX

namespace
{

/* ROWS rows of a span and a key head: rows are tokens times the query heads of a group. */
struct tile {
	uint32_t row, pos; /* the span's first row and position */
	uint32_t head, v0, rows;
	uint32_t hi;        /* places below hi: of keys that some row sees */
	uint32_t k0, steps; /* first key of the first step; TILE_NONE steps: there are no more tiles */
	uint32_t page_begin;
	uint32_t unused[3]; /* to a multiple of 16 bytes */
};

/* Warps that copy; with fp8 they also compute. */
__host__ __device__ constexpr int producers(bool fp8)
{
	return fp8 ? 8 : 4;
}

__host__ __device__ constexpr int threads(bool fp8)
{
	return 128 * GROUPS + 32 * producers(fp8);
}

/* Shared memory: queries, keys, values, fp8: keys and values as they are in pages, tiles,
 * barriers. */
template <int D, bool FP8> struct plan {
	static constexpr int row = D * 2;
	static constexpr int queries = ROWS * row;
	static constexpr int stage = KEYS * row;
	static constexpr int raw_at = queries + 2 * STAGES * stage;
	static constexpr int raw = KEYS / producers(true) * D; /* of a warp */
	static constexpr int told_at = raw_at + (FP8 ? producers(true) * RAW * raw : 0);
	static constexpr int bars_at = told_at + TOLD * (int)sizeof(tile);
	static constexpr int bytes = bars_at + (4 * STAGES + 2 * TOLD + 2 + producers(true) * RAW) * 8;
};

/* Addresses of barriers. */
struct barriers {
	uint32_t base;
	/* keys, or values, of a stage are there; are no longer needed */
	__device__ uint32_t full(int values, uint32_t stage) const
	{
		return base + (values * STAGES + stage) * 8;
	}
	__device__ uint32_t empty(int values, uint32_t stage) const
	{
		return full(values, stage) + 2 * STAGES * 8;
	}
	/* a tile is known; was read by all */
	__device__ uint32_t told(uint32_t slot) const
	{
		return base + (4 * STAGES + slot) * 8;
	}
	__device__ uint32_t heard(uint32_t slot) const
	{
		return told(slot) + TOLD * 8;
	}
	/* a tile's queries are there; are no longer needed */
	__device__ uint32_t asked(void) const
	{
		return base + (4 * STAGES + 2 * TOLD) * 8;
	}
	__device__ uint32_t answered(void) const
	{
		return asked() + 8;
	}
	/* fp8: a copy of a warp is there */
	__device__ uint32_t raw(uint32_t warp, uint32_t slot) const
	{
		return answered() + 8 + (warp * RAW + slot) * 8;
	}
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Finds tile number u. Tiles of a span are ordered from its last rows, which see the most keys, to
 * its first. False, with the number of all tiles, if there is none of this number. */
template <bool SHARED>
__device__ bool find_tile(const attn_args &a, uint32_t u, tile &w, uint32_t &all_tiles)
{
	all_tiles = 0;
	for (uint32_t s = 0; s < a.n_spans; s++) {
		const mx_device_span &span = a.spans[s];
		if (!attn_takes(&a, &span))
			continue;
		const uint32_t all = span.n * a.group, tiles = (all + ROWS - 1) / ROWS;
		const uint32_t v = u - all_tiles;
		all_tiles += tiles * a.kv_heads;
		if (u >= all_tiles)
			continue;
		w.row = span.row;
		w.pos = span.pos;
		w.page_begin = span.page_begin;
		w.head = v % a.kv_heads;
		w.v0 = (tiles - 1 - v / a.kv_heads) * ROWS;
		w.rows = all - w.v0 < ROWS ? all - w.v0 : ROWS;
		/* Position 0 is of the first step with skip_first too. */
		const uint32_t first_pos = w.pos + w.v0 / a.group;
		uint32_t lo = a.window && first_pos + 1 > a.window ? first_pos + 1 - a.window : 0;
		w.hi = w.pos + (w.v0 + w.rows - 1) / a.group + 1;
		if constexpr (SHARED) {
			lo = mx_place_of(&a.places, lo);
			w.hi = mx_place_of(&a.places, w.hi);
		}
		w.k0 = lo / KEYS * KEYS;
		w.steps = (w.hi - w.k0 + KEYS - 1) / KEYS;
		return true;
	}
	return false;
}

/* Where a warp is in the thread block's tiles. */
struct reader {
	uint32_t n = 0; /* tiles read so far */

	/* Waits for the next tile and reads it. False if there is none. `at`: the tiles in shared
	 * memory. */
	__device__ __forceinline__ bool next(tile &w, const tile *at, const barriers &bars)
	{
		const uint32_t slot = n % TOLD, parity = n / TOLD & 1;
		n++;
		barrier_wait(bars.told(slot), parity);
		w = at[slot];
		__syncwarp();
		if ((threadIdx.x & 31) == 0)
			barrier_arrive(bars.heard(slot));
		return w.steps != TILE_NONE;
	}
};

#endif

} // namespace

#endif
