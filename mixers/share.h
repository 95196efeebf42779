/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a layer divide what it consists of: heads, channels, groups of heads. Installed.
 *
 * Shares are neighbours, in the order of the ranks. Where a number does not divide, the first ranks
 * have one more than the others, so that no rank has more than the first: its memory is what each
 * rank is planned with (but of channels of groups that several ranks share, in blocks of 32: there
 * a later rank may have more, which is refused when it is opened). No rank has nothing.
 */
#ifndef MX_MIXERS_SHARE_H
#define MX_MIXERS_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers [first, first + n). */
struct mx_share {
	uint32_t first, n;
};

/* Returns the share of `all` things that rank `rank` of `ranks` has; n = 0 if there are fewer
 * things than ranks and none is left. ranks 0 is as 1. */
static inline struct mx_share mx_share_of(uint32_t all, uint32_t rank, uint32_t ranks)
{
	const uint32_t n = ranks > 1 ? all / ranks : all, rest = ranks > 1 ? all % ranks : 0;
	return (struct mx_share){rank * n + (rank < rest ? rank : rest), n + (rank < rest)};
}

/* The same of channels. Where they do not divide, shares are multiples of 32, if there are enough:
 * quantised matrices have blocks of as many columns. */
static inline struct mx_share mx_share_of_channels(uint32_t all, uint32_t rank, uint32_t ranks)
{
	const bool blocks = ranks > 1 && all % ranks && all % 32 == 0 && all / 32 >= ranks;
	const uint32_t unit = blocks ? 32 : 1;
	const struct mx_share s = mx_share_of(all / unit, rank, ranks);
	return (struct mx_share){s.first * unit, s.n * unit};
}

/* What a rank has of groups with `each` members: whole groups; or, of fewer groups than ranks, some
 * members of one group, which has other ranks too. */
struct mx_group_share {
	struct mx_share groups, members; /* members: numbered through the groups */
	uint32_t sharers;                /* ranks that have the same group, this one too */
};

/* Fills *out. Returns false, for every rank, if a rank would have nothing. The first groups have
 * the fewest ranks. channels: members are channels, see mx_share_of_channels. */
static inline bool mx_share_of_groups(uint32_t groups, uint32_t each, bool channels, uint32_t rank,
                                      uint32_t ranks, struct mx_group_share *out)
{
	if (ranks <= groups || ranks <= 1) {
		const struct mx_share s = mx_share_of(groups, rank, ranks);
		*out = (struct mx_group_share){s, {s.first * each, s.n * each}, 1};
		return true;
	}
	const uint32_t least = ranks / groups, few = groups - ranks % groups; /* groups with `least` */
	if (each < least + (few < groups))
		return false;
	const bool more = rank >= few * least;
	const uint32_t at = more ? rank - few * least : rank, sharers = least + more;
	const uint32_t group = at / sharers + (more ? few : 0);
	const struct mx_share s = channels ? mx_share_of_channels(each, at % sharers, sharers)
	                                   : mx_share_of(each, at % sharers, sharers);
	*out = (struct mx_group_share){{group, 1}, {group * each + s.first, s.n}, sharers};
	return true;
}

#endif
