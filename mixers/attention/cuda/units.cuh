/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How decode_kernels.cuh divides a step into units. A unit is a span, a key head, up to
 * ROWS rows (tokens times the query heads of the group) and a split of keys; if
 * WHOLE, all splits. Every thread block computes the list from the step's tables.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_UNITS_CUH
#define MX_MIXERS_ATTENTION_CUDA_UNITS_CUH

#include "mixers/attention/cuda/attention_cuda.h"

#ifndef WARPS
#define WARPS 4
#endif
#define THREADS    (WARPS * 32)
#define UNITS      THREADS /* of a thread block that its threads compute in parallel at its start */
#define UNIT_WORDS 8

namespace
{

struct unit {
	uint32_t row, n, pos, page_begin; /* of the span */
	uint32_t head;                    /* key head */
	uint32_t v0, rows;                /* first row (token * group + head) and number of rows */
	uint32_t first_pos, last_pos;     /* of row v0, and of the last one */
	uint32_t lo, hi;                  /* places lo .. hi - 1: of keys that any of the rows sees */
	uint32_t shift, splits;           /* of the span */
	uint32_t at;                      /* first partial of row v0, of this split */
	uint32_t split, split_end;        /* splits that are still to do */
	bool fresh;                       /* no split is done yet */
};

template <int ROWS, bool WHOLE>
__device__ uint32_t count_units(const attn_args &a, const mx_device_span &s)
{
	if (!attn_takes(&a, &s))
		return 0;
	uint32_t tiles = (s.n * a.group + ROWS - 1) / ROWS;
	uint32_t splits = WHOLE ? 1 : attn_splits(&a, s.pos, s.n, attn_split_shift(&a, s.pos, s.n));
	return tiles * a.kv_heads * splits;
}

/* Computes first[s], the number of units of the spans before s; first[n_spans] is the number of all
 * units. All threads of the block call it. */
template <int ROWS, bool WHOLE> __device__ void list_units(const attn_args &a, uint32_t *first)
{
	__shared__ uint32_t of_warp[WARPS];
	uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, before = 0;
	if (threadIdx.x == 0)
		first[0] = 0;
	for (uint32_t s0 = 0; s0 < a.n_spans; s0 += THREADS) {
		uint32_t s = s0 + threadIdx.x;
		uint32_t n = s < a.n_spans ? count_units<ROWS, WHOLE>(a, a.spans[s]) : 0;
		for (int d = 1; d < 32; d *= 2) {
			uint32_t m = __shfl_up_sync(~0u, n, d);
			n += lane >= (uint32_t)d ? m : 0;
		}
		if (lane == 31)
			of_warp[warp] = n;
		__syncthreads();
		uint32_t all = 0;
		for (uint32_t w = 0; w < WARPS; w++) {
			n += w < warp ? of_warp[w] : 0;
			all += of_warp[w];
		}
		if (s < a.n_spans)
			first[s + 1] = before + n;
		before += all;
		__syncthreads();
	}
}

__device__ __forceinline__ void set_reach(const attn_args &a, unit &w)
{
	w.first_pos = w.pos + (w.n == 1 ? 0 : w.v0 / a.group);
	w.last_pos = w.pos + (w.n == 1 ? 0 : (w.v0 + w.rows - 1) / a.group);
	w.hi = mx_place_of(&a.places, w.last_pos + 1);
	w.lo = attn_lo(&a, w.first_pos);
}

/* Computes unit u of the step from the tables. */
template <int ROWS, bool WHOLE>
__device__ void make_unit(const attn_args &a, const uint32_t *first, uint32_t u, unit &w)
{
	uint32_t s = 0, end = a.n_spans; /* first[s] <= u < first[end] */
	while (end - s > 1) {
		uint32_t mid = (s + end) / 2;
		if (first[mid] <= u)
			s = mid;
		else
			end = mid;
	}
	const mx_device_span &span = a.spans[s];
	w.row = span.row;
	w.n = span.n;
	w.pos = span.pos;
	w.page_begin = span.page_begin;
	uint32_t all = w.n * a.group, tiles = (all + ROWS - 1) / ROWS;
	uint32_t i = u - first[s], t = i % tiles, rest = i / tiles;
	w.head = rest % a.kv_heads;
	w.v0 = (WHOLE ? tiles - 1 - t : t) * ROWS; /* units with the most keys first */
	w.rows = all - w.v0 < ROWS ? all - w.v0 : ROWS;
	set_reach(a, w);
	w.shift = attn_split_shift(&a, w.pos, w.n);
	w.splits = attn_splits(&a, w.pos, w.n, w.shift);
	w.fresh = true;
	if (WHOLE) {
		w.split = w.lo >> w.shift;
		w.split_end = (attn_last(&a, w.lo, w.last_pos) >> w.shift) + 1;
		return;
	}
	uint32_t c = rest / a.kv_heads;
	if (a.ladder)
		c = w.splits - 1 - c; /* the longest splits first */
	w.split = attn_split(&a, attn_lo(&a, w.pos), w.shift) + c;
	if (a.ladder && c)
		w.split += attn_lead(&a, w.pos) - 1;
	w.split_end = w.split + 1;
	w.at = attn_partials(&a, s, w.n, w.head, w.v0, w.splits) + c;
}

/* Computes the thread block's first UNITS units, one a thread: done by one warp alone, the integer
 * arithmetic would be slow. */
template <int ROWS>
__device__ void keep_units(const attn_args &a, const uint32_t *first, uint4 *units)
{
	uint32_t u = blockIdx.x + threadIdx.x * gridDim.x;
	unit w;
	if (u >= first[a.n_spans])
		return;
	make_unit<ROWS, false>(a, first, u, w);
	units[2 * threadIdx.x] = make_uint4(w.row, w.page_begin, w.pos, w.head | w.n << 16);
	units[2 * threadIdx.x + 1] =
		make_uint4(w.v0 | w.rows << 24, w.split, w.at, w.splits | w.shift << 24);
}

/* Loads unit i of the thread block. */
template <int ROWS, bool WHOLE>
__device__ __forceinline__ void load_unit(const attn_args &a, const uint32_t *first,
                                          const uint4 *units, uint32_t i, unit &w)
{
	if (WHOLE || i >= UNITS) {
		make_unit<ROWS, WHOLE>(a, first, blockIdx.x + i * gridDim.x, w);
		return;
	}
	uint4 x = units[2 * i], y = units[2 * i + 1];
	w.row = x.x;
	w.page_begin = x.y;
	w.pos = x.z;
	w.head = x.w & 0xffff;
	w.n = x.w >> 16;
	w.v0 = y.x & 0xffffff;
	w.rows = y.x >> 24;
	w.split = y.y;
	w.split_end = w.split + 1;
	w.at = y.z;
	w.splits = y.w & 0xffffff;
	w.shift = y.w >> 24;
	w.fresh = true;
	set_reach(a, w);
}

/* Returns the first block of 16 keys of the unit's split that is this warp's, and the end of the
 * split's blocks. The warp takes b, b + WARPS ... */
__device__ __forceinline__ void warp_blocks(const unit &w, uint32_t warp, uint32_t &b,
                                            uint32_t &end)
{
	uint32_t k0 = w.split << w.shift, k1 = (w.split + 1) << w.shift;
	k0 = k0 < w.lo ? w.lo : k0;
	k1 = k1 > w.hi ? w.hi : k1;
	b = k0 / ATTN_CUDA_WARP_KEYS;
	b += (warp - b) & (WARPS - 1);
	end = k1 > k0 ? (k1 + ATTN_CUDA_WARP_KEYS - 1) / ATTN_CUDA_WARP_KEYS : 0;
}

} // namespace

#endif
