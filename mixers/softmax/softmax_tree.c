/* SPDX-License-Identifier: Apache-2.0 */
#include "mixers/softmax/softmax_tree.h"

#include <string.h>

void attn_tree_make(const struct mx_span *span, struct attn_tree *out)
{
	uint32_t seen = 0, n = 0, i = 0;
	while (mx_tree_next(span, &seen, &out->paths[n])) {
		const struct mx_tree_path *p = &out->paths[n];
		out->begin[n++] = i;
		for (uint32_t k = p->first; k < p->n; k++)
			out->tokens[i++] = p->tokens[k];
	}
	out->begin[n] = i;
	out->n_paths = n;
}

/* ---- a token of a panel ---- */

/* Keys are words of 4 bytes, of one token each: word w of token t. */
static size_t key_word(uint32_t words, uint32_t w, uint32_t t)
{
	return ((size_t)(t / 16) * words + w) * 64 + t % 16 * 4;
}

/* Copies the key of token `from` of a panel to token `to` of another, or of the same. */
static void copy_key(const struct mx_softmax *m, const unsigned char *keys, uint32_t from,
                     unsigned char *to_keys, uint32_t to)
{
	uint32_t words = m->kpad * (uint32_t)mx_dtype_size(m->shape.dtype) / 4;
	for (uint32_t w = 0; w < words; w++)
		memcpy(to_keys + key_word(words, w, to), keys + key_word(words, w, from), 4);
	if (m->shape.dtype == MX_I8) { /* the scales behind the codes */
		size_t codes = (size_t)m->kpad * ATTN_PANEL;
		memcpy(to_keys + codes + (size_t)to * 4, keys + codes + (size_t)from * 4, 4);
	}
}

/* Values are words of 4 bytes, each of the same dimension of the 4 / size tokens from `t` on. */
static size_t value_at(uint32_t size, uint32_t i, uint32_t t)
{
	uint32_t each = 4 / size;
	return ((size_t)(i / 16) * (ATTN_PANEL / each) + t / each) * 64 + i % 16 * 4 + t % each * size;
}

/* The same of values. */
static void copy_value(const struct mx_softmax *m, const unsigned char *values, uint32_t from,
                       unsigned char *to_values, uint32_t to)
{
	uint32_t size = (uint32_t)mx_dtype_size(m->shape.dtype);
	for (uint32_t i = 0; i < m->vpad; i++)
		memcpy(to_values + value_at(size, i, to), values + value_at(size, i, from), size);
	if (m->shape.dtype == MX_I8) {
		size_t codes = (size_t)m->vpad * ATTN_PANEL;
		memcpy(to_values + codes + (size_t)to * 4, values + codes + (size_t)from * 4, 4);
	}
}

/* Copies the token at a cell of a sequence to token `to` of a panel; values NULL = there are none
 * beside the keys. */
static void copy_cell(const struct mx_softmax *m, const struct mx_span *span, uint32_t kv_head,
                      uint32_t cell, unsigned char *keys, unsigned char *values, uint32_t to)
{
	const unsigned char *from = attn_keys_at(m, span, kv_head, cell);
	copy_key(m, from, cell % ATTN_PANEL, keys, to);
	if (values)
		copy_value(m, attn_values_at(m, span, kv_head, cell), cell % ATTN_PANEL, values, to);
}

/* ---- the panels of a path ---- */

size_t attn_path_bytes(const struct mx_softmax_shape *shape, uint32_t kpad, uint32_t vpad)
{
	size_t panel = attn_panel_bytes(kpad, shape->dtype);
	if (!shape->values_in_keys)
		panel += attn_panel_bytes(vpad, shape->dtype);
	return ATTN_PATH_PANELS * panel;
}

struct attn_panel attn_path_panel(const struct mx_softmax *m, const struct mx_span *span,
                                  uint32_t kv_head, const struct mx_tree_path *path, uint32_t first,
                                  unsigned char *room)
{
	struct attn_panel panel = {attn_keys_at(m, span, kv_head, first),
	                           attn_values_at(m, span, kv_head, first)};
	uint32_t k0 = first > span->pos ? first - span->pos : 0;
	uint32_t k1 = first + ATTN_PANEL > span->pos ? first + ATTN_PANEL - span->pos : 0;
	k1 = k1 < path->n ? k1 : path->n;
	/* numbers ascend: if the last one is its place, all are */
	if (k1 <= k0 || path->tokens[k1 - 1] == k1 - 1)
		return panel;
	size_t bytes = m->k_panel + (m->shape.values_in_keys ? 0 : m->v_panel);
	unsigned char *to = room + first / ATTN_PANEL % ATTN_PATH_PANELS * bytes;
	unsigned char *values = m->shape.values_in_keys ? NULL : to + m->k_panel;
	memcpy(to, panel.keys, m->k_panel);
	if (values)
		memcpy(values, panel.values, m->v_panel);
	for (uint32_t k = k0; k < k1; k++)
		if (path->tokens[k] != k)
			copy_cell(m, span, kv_head, span->pos + path->tokens[k], to, values,
			          (span->pos + k) % ATTN_PANEL);
	return (struct attn_panel){to, values};
}

/* ---- commit ---- */

void mx_softmax_commit(const struct mx_softmax *s, const struct mx_step *step,
                       const struct mx_kept *kept)
{
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *span = &step->spans[i];
		if (!mx_tree_moves(&kept[i]))
			continue;
		/* ascending: what a token is moved to was moved or taken back before */
		for (uint32_t k = 0; k < kept[i].n; k++)
			for (uint32_t h = 0; h < s->shape.kv_heads && kept[i].path[k] != k; h++) {
				uint32_t to = span->pos + k;
				copy_cell(s, span, h, span->pos + kept[i].path[k], attn_keys_at(s, span, h, to),
				          s->shape.values_in_keys ? NULL : attn_values_at(s, span, h, to),
				          to % ATTN_PANEL);
			}
	}
}
