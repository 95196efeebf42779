/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that compute rows share: slots, the short filter, the window's sum. */
#ifndef MX_MIXERS_HYENA_CUDA_ROWS_CUH
#define MX_MIXERS_HYENA_CUDA_ROWS_CUH

#include "device/cuda/launch.cuh"
#include "mixers/hyena/cuda/unit.cuh"

namespace lcg
{

/* A sequence's slot of a layer. */
struct slot_of {
	unsigned char *base;
	uint32_t channels, cap;
	size_t conv;

	__device__ __forceinline__ slot_of(const lcg_shape &s, const lcg_layer &l, uint32_t slot)
		: base(l.slot_base + slot * s.slot_stride), channels(s.channels), cap(s.cap),
		  conv(s.conv_offset)
	{
	}
	__device__ __forceinline__ uint32_t finished() const
	{
		return ((const lcg_head *)base)->finished;
	}
	/* The position whose sums stand in `ready`; 0 if there is none. */
	__device__ __forceinline__ uint32_t *ahead() const
	{
		return &((lcg_head *)base)->ahead;
	}
	/* i: a part of the window, or WAYS: the tiles. */
	__device__ __forceinline__ float *ready(uint32_t i, uint32_t channel) const
	{
		return sum(channel) + (size_t)channels * (1 + LCG_RING + i);
	}
	/* The sum of the position before `finished`. */
	__device__ __forceinline__ float *sum(uint32_t channel) const
	{
		return (float *)base + LCG_HEAD + channel;
	}
	__device__ __forceinline__ float *input(uint32_t channel, uint32_t pos) const
	{
		return sum(channel) + (size_t)channels * (1 + pos % LCG_RING);
	}
	/* Column `column` of the projection at `pos`, before the short filter. */
	__device__ __forceinline__ float *raw(uint32_t column, uint32_t pos) const
	{
		return (float *)(base + conv) + (size_t)(pos % cap) * 3 * channels + column;
	}
};

/* The short filter's output for token number t of a span. u: the span's first row, of 3 channels.
 */
__device__ __forceinline__ float short_filter(const lcg_shape &s, const lcg_layer &l,
                                              const slot_of &slot, const float *u, uint32_t pos,
                                              uint32_t t, uint32_t column)
{
	const float *w = l.conv_weight + (size_t)column * s.taps;
	float y = l.conv_bias[column];
	for (uint32_t back = s.taps - 1; back > 0; back--) {
		float x = 0;
		if (t >= back)
			x = u[(size_t)(t - back) * 3 * s.channels + column];
		else if (pos + t >= back)
			x = *slot.raw(column, pos + t - back);
		y = __fmaf_rn(w[s.taps - 1 - back], x, y);
	}
	return __fmaf_rn(w[s.taps - 1], u[(size_t)t * 3 * s.channels + column], y);
}

/* The same for a span's first token, without that token: the bias and what the ring adds. */
__device__ __forceinline__ float short_filter_past(const lcg_shape &s, const lcg_layer &l,
                                                   const slot_of &slot, uint32_t pos,
                                                   uint32_t column)
{
	const float *w = l.conv_weight + (size_t)column * s.taps;
	float y = l.conv_bias[column];
#pragma unroll 4
	for (uint32_t back = s.taps - 1; back > 0; back--)
		y = __fmaf_rn(w[s.taps - 1 - back], pos >= back ? *slot.raw(column, pos - back) : 0, y);
	return y;
}

/* The sum of the nearest inputs: those s of the position's own block of LCG_BLOCK and of the one
 * before, in ascending order, in four sums by s % 4. */
__device__ __forceinline__ uint32_t window_begin(uint32_t pos)
{
	return pos < LCG_BLOCK ? 0 : (pos / LCG_BLOCK - 1) * LCG_BLOCK;
}

__device__ __forceinline__ float window_end(const float *a)
{
	return __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3]));
}

/* True if tiles add to the position's sum. */
__device__ __forceinline__ bool has_tiles(uint32_t pos)
{
	return pos >= 2 * LCG_BLOCK;
}

/* The sum of a position's tiles. finished: of the slot. */
__device__ __forceinline__ float tiles_of(const lcg_shape &shape, const lcg_layer &l,
                                          const slot_of &slot, const uint32_t *pages,
                                          uint32_t finished, uint32_t channel, uint32_t pos)
{
	if (!has_tiles(pos))
		return 0;
	return pos >= finished ? *cell(shape, l, pages, channel, pos) : *slot.sum(channel);
}

/* Threads that compute a channel of a decoded row: each has the inputs of every WAYS-th position of
 * the window. */
constexpr int WAYS = 4;
static_assert(LCG_RING % WAYS == 0 && 2 * LCG_BLOCK % WAYS == 0 && LCG_AHEAD == WAYS + 1, "ways");

/* The part of a window's sum with positions s < pos, s % WAYS = way. */
__device__ __forceinline__ float window_part(const lcg_layer &l, const slot_of &slot,
                                             uint32_t channel, uint32_t pos, uint32_t way)
{
	constexpr int MOST = 2 * LCG_BLOCK / WAYS;
	const uint32_t first = window_begin(pos) + way;
	float z[MOST], h[MOST], sum = 0;
#pragma unroll
	for (int i = 0; i < MOST; i++) {
		const uint32_t s = first + i * WAYS;
		z[i] = s < pos ? *slot.input(channel, s) : 0;
		h[i] = s < pos ? l.window[(size_t)(pos - s) * slot.channels + channel] : 0;
	}
#pragma unroll
	for (int i = 0; i < MOST; i++)
		if (first + i * WAYS < pos)
			sum = __fmaf_rn(h[i], z[i], sum);
	return sum;
}

} // namespace lcg

#endif
