/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When units are due. The work of a level is spread evenly over the n positions
 * between a block's last input and its first output, except for the last LC_FREE:
 * a draft that crosses the border finds all sums complete.
 */
#include "mixers/hyena/lc.h"

_Static_assert(1 << LC_LOG2_BLOCK == LC_BLOCK, "LC_LOG2_BLOCK");
_Static_assert(LC_MAX_DRAFT <= LC_FREE && LC_FREE < LC_BLOCK, "drafts may cross a border");

uint32_t lc_levels(uint32_t max_len)
{
	uint32_t levels = 0;
	while (levels < LC_MAX_LEVELS && max_len > (uint64_t)2 * LC_BLOCK << levels)
		levels++;
	return levels;
}

/* Groups have equal shares of n, so a group's delay on side n is half its delay on side 2 n. One
 * share is left over, so that a block's last part on side 2 n comes before the first part of the
 * block on side n that begins at the same position. The levels of different layers are shifted
 * within a part's share, by multiples of the golden ratio. */
uint32_t lc_due(uint32_t log2_n, uint32_t part, uint32_t group, uint32_t n_groups, uint32_t phase)
{
	uint32_t n = 1u << log2_n, parts = lc_parts(n);
	uint64_t unit = (uint64_t)group * parts + part, units = ((uint64_t)n_groups + 1) * parts;
	uint64_t at = unit << 16 | ((phase * LC_MAX_LEVELS + log2_n) * 40503 & 0xffff);
	return 1 + (uint32_t)(at * (n - LC_FREE) / (units << 16));
}

void lc_extent(uint32_t n, uint32_t max_len, uint32_t *out_first, uint32_t *out_end)
{
	uint32_t first = n / LC_BLOCK * LC_BLOCK, end = n, levels = lc_levels(max_len);
	for (uint32_t i = 0; i < levels; i++) {
		uint32_t side = LC_BLOCK << i;
		uint32_t active = (n - 1) / side + 1;     /* last block that may have a unit done or due */
		uint32_t open = (n + LC_FREE) / side + 1; /* first block that may have one not due */
		uint32_t input = open < 2 ? 0 : open / 2 * 2 - 2; /* its first block of inputs */
		if (active >= 2 && (active + 1) * side > end)
			end = (active + 1) * side;
		if ((uint64_t)open * side < max_len && input * side < first)
			first = input * side;
	}
	*out_first = first;
	*out_end = end < max_len ? end : max_len;
}
