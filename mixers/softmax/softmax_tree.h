/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of drafts over paged keys and values. Keys and values of token i of a span lie at its cell,
 * position pos + i, also if that is not its position. A row gets the bits of a chain because its
 * kernel reads a chain: panels in which the row's path lies in order of position.
 */
#ifndef MX_MIXERS_SOFTMAX_TREE_H
#define MX_MIXERS_SOFTMAX_TREE_H

#include "mixers/softmax/softmax.h"
#include "mixers/tree.h"

/* Panels that a path can lie in. */
#define ATTN_PATH_PANELS 2

/* The tokens of a tree path by path; without those that the path shares with an earlier one. */
struct attn_tree {
	struct mx_tree_path paths[MX_TREE_TOKENS];
	uint32_t
		begin[MX_TREE_TOKENS + 1]; /* [n_paths + 1] where the path's tokens begin in `tokens` */
	uint32_t n_paths;
	uint32_t tokens[MX_TREE_TOKENS]; /* numbers within the span */
};

/* The keys and values of a panel. */
struct attn_panel {
	const unsigned char *keys, *values;
};

void attn_tree_make(const struct mx_span *span, struct attn_tree *out);

/* Return the panel of keys, and of values, that holds a cell (of ranks that share pages: a place,
 * mx_softmax_place). */
static inline unsigned char *attn_keys_at(const struct mx_softmax *m, const struct mx_span *span,
                                          uint32_t kv_head, uint32_t cell)
{
	uint32_t page = span->pages[cell / m->page_tokens];
	uint32_t panel = cell % m->page_tokens / ATTN_PANEL;
	return m->page_base + page * m->page_stride + kv_head * m->k_head + panel * m->k_panel;
}

static inline unsigned char *attn_values_at(const struct mx_softmax *m, const struct mx_span *span,
                                            uint32_t kv_head, uint32_t cell)
{
	uint32_t page = span->pages[cell / m->page_tokens];
	uint32_t panel = cell % m->page_tokens / ATTN_PANEL;
	return m->page_base + page * m->page_stride + m->v_begin + kv_head * m->v_head +
	       panel * m->v_panel;
}

/* Returns the panel of the 32 positions from `first` on as the last token of a path sees them: that
 * of the pages, or a copy in `room`, attn_path_bytes of memory, that is good until the panel after
 * the next is asked for. */
struct attn_panel attn_path_panel(const struct mx_softmax *m, const struct mx_span *span,
                                  uint32_t kv_head, const struct mx_tree_path *path, uint32_t first,
                                  unsigned char *room);
size_t attn_path_bytes(const struct mx_softmax_shape *shape, uint32_t kpad, uint32_t vpad);

#endif
