/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void mx_trie_free(struct mx_trie *t)
{
	free(t->nodes);
	free(t->tokens);
	*t = (struct mx_trie){0};
}

size_t mx_trie_bytes(const struct mx_trie *t)
{
	return (t->n_nodes + 1) * sizeof(*t->nodes) + t->n_tokens * sizeof(*t->tokens);
}

static int by_text(const void *a, const void *b)
{
	const struct mx_trie_entry *x = a, *y = b;
	uint32_t n = x->length < y->length ? x->length : y->length;
	int order = n ? memcmp(x->text, y->text, n) : 0;
	if (order)
		return order;
	if (x->length != y->length)
		return x->length < y->length ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

static uint32_t common(const struct mx_trie_entry *a, const struct mx_trie_entry *b)
{
	uint32_t n = a->length < b->length ? a->length : b->length, i = 0;
	while (i < n && a->text[i] == b->text[i])
		i++;
	return i;
}

static void close_node(struct mx_trie *t, uint32_t node, uint32_t depth)
{
	t->nodes[node].end = t->n_nodes;
	t->nodes[node].height = (uint8_t)(depth > 255 ? 255 : depth);
}

/* Writes the nodes; open[d] is the node of depth d on the present path, below[d] the bytes below.
 */
static void fill(struct mx_trie *t, const struct mx_trie_entry *entries, size_t n, uint32_t *open,
                 uint32_t *below)
{
	uint32_t depth = 0;
	t->nodes[t->n_nodes++] = (struct mx_trie_node){0};
	open[0] = below[0] = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t keep = i ? common(&entries[i - 1], &entries[i]) : 0;
		for (; depth > keep; depth--) {
			close_node(t, open[depth], below[depth]);
			if (below[depth] + 1 > below[depth - 1])
				below[depth - 1] = below[depth] + 1;
		}
		for (uint32_t d = keep; d < entries[i].length; d++) {
			depth++;
			open[depth] = t->n_nodes;
			below[depth] = 0;
			t->nodes[t->n_nodes++] = (struct mx_trie_node){
				.token = t->n_tokens, .depth = (uint16_t)depth, .byte = entries[i].text[d]};
		}
		t->tokens[t->n_tokens++] = entries[i].token;
	}
	for (; depth > 0; depth--) {
		close_node(t, open[depth], below[depth]);
		if (below[depth] + 1 > below[depth - 1])
			below[depth - 1] = below[depth] + 1;
	}
	close_node(t, 0, below[0]);
	t->nodes[t->n_nodes] = (struct mx_trie_node){.end = t->n_nodes, .token = t->n_tokens};
}

mx_status mx_trie_make(struct mx_trie_entry *entries, size_t n, struct mx_trie *out)
{
	struct mx_trie t = {0};
	if (n > 1)
		qsort(entries, n, sizeof(*entries), by_text);
	size_t n_nodes = 1;
	for (size_t i = 0; i < n; i++) {
		if (entries[i].length > t.depth)
			t.depth = entries[i].length;
		n_nodes += entries[i].length - (i ? common(&entries[i - 1], &entries[i]) : 0);
	}
	if (n_nodes > UINT32_MAX / 2 || t.depth > UINT16_MAX)
		return MX_E_LIMIT;
	uint32_t *open = mx_calloc((size_t)t.depth + 1, 2 * sizeof(*open));
	t.nodes = mx_calloc(n_nodes + 1, sizeof(*t.nodes));
	t.tokens = mx_calloc(n + 1, sizeof(*t.tokens));
	if (!open || !t.nodes || !t.tokens) {
		free(open);
		mx_trie_free(&t);
		return MX_E_NOMEM;
	}
	fill(&t, entries, n, open, open + t.depth + 1);
	free(open);
	*out = t;
	return MX_OK;
}
