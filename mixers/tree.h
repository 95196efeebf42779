/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A span's tree of drafts, path by path. Installed, for mixers with MX_MIXER_TREE.
 *
 * A token of a tree has the outputs that it would have at the end of a chain: of the path that
 * leads to it. So a mixer that computes chains can compute trees: the paths one after the other,
 * each but for the tokens that it shares with an earlier one.
 */
#ifndef MX_MIXERS_TREE_H
#define MX_MIXERS_TREE_H

#include "mixers/mixer.h"

/* The path from the top of a tree to one of its leaves. */
struct mx_tree_path {
	uint32_t tokens[MX_TREE_TOKENS]; /* [n] numbers within the span, ascending; at n - 1 the leaf */
	uint32_t n;
	uint32_t first; /* the tokens before this one are in an earlier path */
};

/* Finds the next path of a span with parents; false when there is no other. *seen is 0 before the
 * first: the set of tokens that were in a path. */
static inline bool mx_tree_next(const struct mx_span *span, uint32_t *seen,
                                struct mx_tree_path *out)
{
	uint32_t inner = *seen, leaf = 0, n = 0, first = 0;
	for (uint32_t i = 0; i < span->n; i++)
		if (span->parent[i] < span->n)
			inner |= 1u << span->parent[i];
	while (leaf < span->n && inner >> leaf & 1)
		leaf++;
	if (leaf == span->n)
		return false;
	for (uint32_t i = leaf; i < span->n; i = span->parent[i])
		n++;
	out->n = n;
	for (uint32_t i = leaf; i < span->n; i = span->parent[i]) {
		out->tokens[--n] = i;
		first += *seen >> i & 1;
	}
	out->first = first;
	for (uint32_t i = first; i < out->n; i++)
		*seen |= 1u << out->tokens[i];
	return true;
}

/* Returns the tokens of the longest path; of a span without parents, all. */
static inline uint32_t mx_tree_depth(const struct mx_span *span)
{
	uint32_t seen = 0, most = 0;
	struct mx_tree_path path;
	if (!span->parent)
		return span->n;
	while (mx_tree_next(span, &seen, &path))
		most = path.n > most ? path.n : most;
	return most;
}

/* True if what a span left has to be moved: the kept tokens are not its first ones. */
static inline bool mx_tree_moves(const struct mx_kept *kept)
{
	return kept->path && kept->n && kept->path[kept->n - 1] != kept->n - 1;
}

/* True if it is so of a span of the step. */
static inline bool mx_tree_any_moves(const struct mx_step *step, const struct mx_kept *kept)
{
	for (uint32_t i = 0; i < step->n_spans; i++)
		if (mx_tree_moves(&kept[i]))
			return true;
	return false;
}

#define MX_TREE_MOVES 128 /* most that mx_tree_take_moves finds at once */

/* The kept tokens of a span whose entries have to be moved, as kernels take it. */
struct mx_tree_move {
	uint64_t path; /* four bits a token, the first lowest */
	uint32_t span, n;
};

/* Fills out[MX_TREE_MOVES] with the moves of the step's spans from *next on, which is 0 at first.
 * Returns their number; 0: there are no more. */
static inline uint32_t mx_tree_take_moves(const struct mx_step *step, const struct mx_kept *kept,
                                          uint32_t *next, struct mx_tree_move *out)
{
	uint32_t n = 0;
	for (; *next < step->n_spans && n < MX_TREE_MOVES; ++*next) {
		const struct mx_kept *k = &kept[*next];
		if (!mx_tree_moves(k))
			continue;
		out[n].span = *next;
		out[n].n = k->n;
		out[n].path = 0;
		for (uint32_t i = k->n; i-- > 0;)
			out[n].path = out[n].path << 4 | k->path[i];
		n++;
	}
	return n;
}

#endif
