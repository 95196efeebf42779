/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trie of byte strings that stand for tokens. Nodes are in preorder, so that a walk is a loop
 * over an array: the subtree of node i is [i, end), and its tokens are [tokens[i], tokens[end]).
 */
#ifndef MX_GRAMMAR_TRIE_H
#define MX_GRAMMAR_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct mx_trie_node {
	uint32_t end;   /* the first node behind the subtree */
	uint32_t token; /* the first token of the subtree in tokens[]; its own come first */
	uint16_t depth; /* the root has 0 */
	uint8_t byte;   /* the last one of the node's string */
	uint8_t height; /* bytes from here to the deepest node below, 255 for more */
};

struct mx_trie {
	struct mx_trie_node *nodes; /* [n_nodes + 1]; node 0 is the root, the last one a sentinel */
	uint32_t n_nodes;
	uint32_t *tokens;
	uint32_t n_tokens;
	uint32_t depth; /* of the deepest node */
};

/* A string of a trie that is to be made. */
struct mx_trie_entry {
	const uint8_t *text;
	uint32_t length; /* at most 65535 */
	uint32_t token;
};

/* Sorts the entries and makes a trie of them. */
mx_status mx_trie_make(struct mx_trie_entry *entries, size_t n, struct mx_trie *out);
void mx_trie_free(struct mx_trie *t);
size_t mx_trie_bytes(const struct mx_trie *t);

#endif
