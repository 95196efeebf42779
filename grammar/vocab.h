/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is inside struct mx_grammar_vocab, for the files of this folder.
 */
#ifndef MX_GRAMMAR_VOCAB_H
#define MX_GRAMMAR_VOCAB_H

#include <stdatomic.h>

#include "grammar/cache.h"
#include "grammar/grammar.h"
#include "grammar/subtree.h"

struct mx_grammar_vocab {
	atomic_uint references;
	struct mx_trie trie;
	struct mx_subtree *subtrees; /* [trie.n_nodes] */
	struct mx_cache cache;
	uint8_t *text;
	size_t *offsets; /* [n_tokens + 1] in text; end tokens have no bytes here */
	size_t n_tokens;
	uint32_t *ends;    /* bit a token, as a mask */
	uint32_t *spelled; /* the tokens that have bytes here */
};

static inline bool mx_vocab_is_end(const struct mx_grammar_vocab *v, int32_t token)
{
	return v->ends[token >> 5] >> (token & 31) & 1;
}

#endif
