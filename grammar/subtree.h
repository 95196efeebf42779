/* SPDX-License-Identifier: Apache-2.0 */
/* What all strings below a node of the vocabulary's trie have in common. */
#ifndef MX_GRAMMAR_SUBTREE_H
#define MX_GRAMMAR_SUBTREE_H

#include "grammar/trie.h"

struct mx_subtree {
	uint32_t bytes; /* groups of the bytes below the node (bytes.h) */
	uint16_t utf8;  /* bit 0: what is below begins with a character and stays UTF-8 */
};

/* Fills out[0 .. t->n_nodes). */
void mx_subtrees(const struct mx_trie *t, struct mx_subtree *out);

#endif
