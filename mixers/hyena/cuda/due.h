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
LCG_FN uint32_t lcg_log2_parts(uint32_t log2_n)
{
	return log2_n > LCG_LOG2_POINTS ? log2_n - LCG_LOG2_POINTS : 0;
}

LCG_FN uint32_t lcg_parts(uint32_t log2_n)
{
	return 1u << lcg_log2_parts(log2_n);
}

LCG_FN uint32_t lcg_groups(uint32_t channels, uint32_t log2_n)
{
	const uint32_t log2_of = log2_n < LCG_LOG2_POINTS ? LCG_LOG2_POINTS - log2_n : 0;
	return (channels + (1u << log2_of) - 1) >> log2_of;
}

/* Returns d = 1 .. n - LCG_FREE: unit k = group * parts + part of block o is due when (o - 1) n + d
 * positions are final. */
LCG_FN uint32_t lcg_due(uint32_t log2_n, uint32_t unit, uint32_t period, uint32_t phase)
{
	const uint64_t at = ((uint64_t)unit << 16 | phase) * ((1u << log2_n) - LCG_FREE);
	return 1 + (uint32_t)(at / ((uint64_t)period << (16 - LCG_LOG2_POINTS + log2_n)));
}

/* Returns the time from which on units are not done when `done`, 0 .. n, positions of a block are:
 * in 65536ths of a unit's share, without the layer's shift. */
LCG_FN uint64_t lcg_time_after(uint32_t log2_n, uint32_t done, uint32_t period)
{
	const uint32_t n = 1u << log2_n;
	if (done >= n - LCG_FREE)
		return UINT64_MAX;
	/* done period 2^16 / LCG_POINTS n / (n - LCG_FREE), rounded up. The quotient of n is 1 + 1 /
	 * rest, since LCG_FREE is also 2^16 / LCG_POINTS. */
	const uint32_t rest = n / LCG_FREE - 1;
	const uint64_t x = (uint64_t)LCG_FREE * period * done;
	return x +
	       (x + rest - 1 <= UINT32_MAX ? ((uint32_t)x + rest - 1) / rest : (x + rest - 1) / rest);
}

/* A time in whole shares and 65536ths of one. */
struct lcg_time {
	uint32_t whole, rest;
};

LCG_FN struct lcg_time lcg_time_of(uint64_t at)
{
	const struct lcg_time never = {UINT32_MAX, 0},
						  t = {(uint32_t)(at >> 16), (uint32_t)at & 0xffff};
	return at == UINT64_MAX ? never : t;
}

/* Returns the first unit of a layer that is not done at a time; it may be past the last unit. */
LCG_FN uint32_t lcg_first_from(struct lcg_time at, uint32_t phase)
{
	return at.whole + (at.rest > phase);
}

/* Some units of a side, numbered one block after the other: `begin` .. `end` - 1, of which number i
 * is group i % groups of block i / groups. The first one begins with part `first`, the last one
 * ends before part `last`; all parts of the others are in the range. */
struct lcg_range {
	uint32_t begin, end, groups, parts;
	uint32_t first, last;
};

/* The time of a side in which positions become final: the same for all layers. */
struct lcg_times {
	struct lcg_time begin, end;
	uint32_t first, last; /* blocks of outputs */
};

/* Returns the time when `to` > `from` positions become final instead of `from`. */
LCG_FN struct lcg_times lcg_times_of(uint32_t log2_n, uint32_t period, uint32_t from, uint32_t to)
{
	const uint32_t mask = (1u << log2_n) - 1;
	struct lcg_times t;
	t.begin = lcg_time_of(lcg_time_after(log2_n, from & mask, period));
	t.end = lcg_time_of(lcg_time_after(log2_n, ((to - 1) & mask) + 1, period));
	t.first = (from >> log2_n) + 1;
	t.last = ((to - 1) >> log2_n) + 1;
	return t;
}

/* Returns a layer's units that become due in that time. */
LCG_FN struct lcg_range lcg_range_in(uint32_t log2_n, uint32_t channels, uint32_t phase,
                                     const struct lcg_times *t)
{
	const uint32_t log2_parts = lcg_log2_parts(log2_n), parts = 1u << log2_parts;
	struct lcg_range r;
	r.groups = lcg_groups(channels, log2_n);
	r.parts = parts;
	const uint32_t units = r.groups << log2_parts;
	uint32_t a = lcg_first_from(t->begin, phase), b = lcg_first_from(t->end, phase);
	a = a < units ? a : units;
	b = b < units ? b : units;
	r.begin = t->first * r.groups + (a >> log2_parts);
	r.first = a & (parts - 1);
	r.end = t->last * r.groups + ((b + parts - 1) >> log2_parts);
	r.last = b & (parts - 1) ? b & (parts - 1) : parts;
	if (a == b && t->first == t->last)
		r.end = r.begin;
	return r;
}

/* Returns the units that become due when `to` >= `from` positions are final instead of `from`. */
LCG_FN struct lcg_range lcg_range_of(uint32_t log2_n, uint32_t channels, uint32_t period,
                                     uint32_t phase, uint32_t from, uint32_t to)
{
	if (to <= from) {
		const struct lcg_range none = {
			0, 0, lcg_groups(channels, log2_n), lcg_parts(log2_n), 0, lcg_parts(log2_n)};
		return none;
	}
	const struct lcg_times t = lcg_times_of(log2_n, period, from, to);
	return lcg_range_in(log2_n, channels, phase, &t);
}

/* Positions from .. to - 1. */
struct lcg_stretch {
	uint32_t from, to;
};

/* Returns the positions of n from `pos` on that make whole blocks of LCG_POINTS; from = to if there
 * is no such block. */
LCG_FN struct lcg_stretch lcg_whole(uint32_t pos, uint32_t n)
{
	const uint32_t from = (pos + LCG_POINTS - 1) & ~(LCG_POINTS - 1);
	const uint32_t to = (pos + n) & ~(LCG_POINTS - 1);
	const struct lcg_stretch s = {from, to > from ? to : from};
	return s;
}

/* Which of a level's units run. Those of sides up to LCG_POINTS can be left out for whole blocks
 * (whole.cu): before them BEFORE runs, and then UNDO takes back what was due early, so that no sum
 * in a whole block is of these sides, but for the first block, which has those of side LCG_POINTS;
 * behind them BEHIND. Where there is no whole block, BEFORE is ALL. */
enum lcg_stage {
	LCG_ALL,    /* due within the span */
	LCG_BEFORE, /* the same, but only for outputs before the whole blocks */
	LCG_UNDO,   /* due before the span, for outputs in whole blocks: subtracted */
	LCG_BEHIND, /* due within the span, for outputs behind the whole blocks */
	LCG_RESUME  /* due before the span, for outputs from its position on */
};

/* Returns when the units of a stage, but for LCG_RESUME, become due: while these positions become
 * final. to <= from: none. */
LCG_FN struct lcg_stretch lcg_stage_of(enum lcg_stage stage, uint32_t log2_n, uint32_t pos,
                                       uint32_t n)
{
	const uint32_t side = 1u << log2_n;
	const struct lcg_stretch whole = lcg_whole(pos, n);
	struct lcg_stretch s = {pos, pos + n};
	if (stage == LCG_ALL || whole.from == whole.to || side > LCG_POINTS) {
		s.to = stage == LCG_ALL || stage == LCG_BEFORE ? s.to : pos;
	} else if (stage == LCG_BEFORE) {
		/* units of a block are due up to a side before its end */
		const uint32_t ahead = side < LCG_POINTS ? side : 0;
		s.to = whole.from > ahead ? whole.from - ahead : 0;
	} else if (stage == LCG_UNDO) {
		/* nothing was added to the first two blocks: there the first sum is set */
		s.from = whole.from >= 2 * LCG_POINTS && side < LCG_POINTS ? whole.from - side : pos;
		s.to = pos;
	} else {
		s.from = whole.to - side;
	}
	return s;
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
