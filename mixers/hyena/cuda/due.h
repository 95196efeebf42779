/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which units of a long convolution are due on a GPU, in closed form. For C and CUDA C++: the host
 * counts with the functions that the kernels call.
 *
 * Sides, blocks and tiles are those of ../longconv.h. A unit is LCG_POINTS points of a side: sides
 * up to LCG_POINTS are computed for as many channels at once; a longer side n is divided into n /
 * LCG_POINTS parts of one channel, each a quarter (or less) of its frequencies. So every unit takes
 * about the same time, whatever its side.
 *
 * The units of block o are due while (o - 1) n + 1 .. o n - LCG_FREE positions become final, in the
 * order of their channels, evenly. Two units that write the same cells are never due at the same
 * position, and the larger side is due first: so all units of a position can run at the same time,
 * and every cell has one order of sums. That needs the units of a side to be done a little before
 * the end of that time: `period` is larger than the number of channels.
 */
#ifndef MX_MIXERS_HYENA_CUDA_DUE_H
#define MX_MIXERS_HYENA_CUDA_DUE_H

#include <stdint.h>

#ifdef __CUDACC__
#define LCG_FN static __host__ __device__ __forceinline__
#else
#define LCG_FN static inline
#endif

#define LCG_LOG2_BLOCK  5
#define LCG_LOG2_POINTS 12
#define LCG_POINTS      (1u << LCG_LOG2_POINTS)
#define LCG_FREE        16u /* no unit of a block is due in the last positions before the block */
#define LCG_MAX_LEVELS  18u /* sides to 2^22, sequences to 2^24 */

/* Returns the channels whose shares of a side's time are equal: a multiple of the largest group,
 * and a fifteenth more. */
LCG_FN uint32_t lcg_period(uint32_t channels)
{
	const uint32_t most = LCG_POINTS >> LCG_LOG2_BLOCK, all = (channels + most - 1) / most * most;
	return all + all / 14 + 1;
}

/* Returns the shift of a layer's units against those of others, in 65536ths of a unit's share:
 * multiples of the golden ratio. */
LCG_FN uint32_t lcg_phase(uint32_t layer)
{
	return layer * 40503u & 0xffff;
}

/* Returns the parts of a side, and the channels or groups of channels that units are of. */
LCG_FN uint32_t lcg_parts(uint32_t log2_n)
{
	return log2_n > LCG_LOG2_POINTS ? 1u << (log2_n - LCG_LOG2_POINTS) : 1;
}

LCG_FN uint32_t lcg_groups(uint32_t channels, uint32_t log2_n)
{
	const uint32_t of = log2_n < LCG_LOG2_POINTS ? LCG_POINTS >> log2_n : 1;
	return (channels + of - 1) / of;
}

/* Returns d = 1 .. n - LCG_FREE: unit k = group * parts + part of block o is due when (o - 1) n + d
 * positions are final. */
LCG_FN uint32_t lcg_due(uint32_t log2_n, uint32_t unit, uint32_t period, uint32_t phase)
{
	const uint64_t at = ((uint64_t)unit << 16 | phase) * ((1u << log2_n) - LCG_FREE);
	return 1 + (uint32_t)(at / ((uint64_t)period << (16 - LCG_LOG2_POINTS + log2_n)));
}

/* Returns the first unit whose d is larger than `done`, 0 .. n; it may be past the last unit. */
LCG_FN uint32_t lcg_first_after(uint32_t log2_n, uint32_t done, uint32_t period, uint32_t phase)
{
	const uint32_t n = 1u << log2_n;
	if (done >= n - LCG_FREE)
		return UINT32_MAX;
	/* at, from which on units are not done: done period 2^16 / LCG_POINTS n / (n - LCG_FREE),
	 * rounded up. The quotient of n is 1 + 1 / rest, since LCG_FREE is also 2^16 / LCG_POINTS. */
	const uint32_t rest = n / LCG_FREE - 1;
	const uint64_t x = (uint64_t)LCG_FREE * period * done;
	const uint64_t at =
		x + (x + rest - 1 <= UINT32_MAX ? ((uint32_t)x + rest - 1) / rest : (x + rest - 1) / rest);
	return at <= phase ? 0 : (uint32_t)((at - phase + 0xffff) >> 16);
}

/* Some units of a side, numbered one block after the other: `begin` .. `end` - 1, of which number i
 * is group i % groups of block i / groups. The first one begins with part `first`, the last one
 * ends before part `last`; all parts of the others are in the range. */
struct lcg_range {
	uint32_t begin, end, groups, parts;
	uint32_t first, last;
};

/* Returns the units that become due when `to` >= `from` positions are final instead of `from`. */
LCG_FN struct lcg_range lcg_range_of(uint32_t log2_n, uint32_t channels, uint32_t period,
                                     uint32_t phase, uint32_t from, uint32_t to)
{
	struct lcg_range r;
	r.groups = lcg_groups(channels, log2_n);
	r.parts = lcg_parts(log2_n);
	r.begin = r.end = r.first = 0;
	r.last = r.parts;
	if (to <= from)
		return r;
	const uint32_t mask = (1u << log2_n) - 1, units = r.groups * r.parts;
	uint32_t a = lcg_first_after(log2_n, from & mask, period, phase);
	uint32_t b = lcg_first_after(log2_n, ((to - 1) & mask) + 1, period, phase);
	a = a < units ? a : units;
	b = b < units ? b : units;
	r.begin = ((from >> log2_n) + 1) * r.groups + a / r.parts;
	r.first = a % r.parts;
	r.end = (((to - 1) >> log2_n) + 1) * r.groups + (b + r.parts - 1) / r.parts;
	r.last = b % r.parts ? b % r.parts : r.parts;
	return r;
}

/* The parts of number i of a range. */
LCG_FN uint32_t lcg_first_part(const struct lcg_range *r, uint32_t i)
{
	return i == r->begin ? r->first : 0;
}

LCG_FN uint32_t lcg_end_part(const struct lcg_range *r, uint32_t i)
{
	return i + 1 == r->end ? r->last : r->parts;
}

#endif
