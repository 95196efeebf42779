/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compiled grammar, and the vocabulary that it is matched with.
 *
 * A grammar is a pushdown automaton over bytes. Every rule is an automaton, deterministic and
 * minimal where that is possible within bounds, whose edges are bytes or calls of other rules.
 *
 * Both objects are immutable, counted, and may be used by any thread; the vocabulary keeps, behind
 * a lock, masks that were computed (bounded, the least recently used give way).
 */
#ifndef MX_GRAMMAR_GRAMMAR_H
#define MX_GRAMMAR_GRAMMAR_H

#include "grammar/rules.h"

struct mx_grammar;

/* Bounds of a compilation. */
struct mx_grammar_limits {
	size_t states; /* states of all automata */
	size_t work;   /* elementary steps, some nanoseconds each */
};
#define MX_GRAMMAR_LIMITS                                                                          \
	(struct mx_grammar_limits)                                                                     \
	{                                                                                              \
		.states = 400000, .work = 100000000                                                        \
	}

/* Compiles the grammar that begins at `root`; rules is not needed afterwards. limits: NULL for
 * MX_GRAMMAR_LIMITS. MX_E_INVALID: left recursion, a reference without definition, or no text
 * matches; MX_E_LIMIT: too large; or the failure of rules. */
mx_status mx_grammar_compile(const struct mx_rules *rules, uint32_t root,
                             const struct mx_grammar_limits *limits, struct mx_grammar **out,
                             struct mx_err *err);
struct mx_grammar *mx_grammar_ref(struct mx_grammar *g);
void mx_grammar_unref(struct mx_grammar *g); /* takes NULL */
/* Returns the bytes of memory that it uses. */
size_t mx_grammar_bytes(const struct mx_grammar *g);
size_t mx_grammar_states(const struct mx_grammar *g);

/* The tokens of a tokenizer, as a trie of their bytes. */
struct mx_grammar_vocab;

/* Token i has the bytes text[offsets[i] .. offsets[i + 1]); a token without bytes is never allowed
 * (give special tokens none), but for those in ends[], which are allowed where the text may end.
 * cache_bytes: the most memory for masks that are kept. MX_E_INVALID: an end token outside
 * 0 .. n_tokens - 1, or a token of more than 64 KiB. */
mx_status mx_grammar_vocab_new(const uint8_t *text, const size_t *offsets, size_t n_tokens,
                               const int32_t *ends, size_t n_ends, size_t cache_bytes,
                               struct mx_grammar_vocab **out, struct mx_err *err);
struct mx_grammar_vocab *mx_grammar_vocab_ref(struct mx_grammar_vocab *v);
void mx_grammar_vocab_unref(struct mx_grammar_vocab *v);        /* takes NULL */
size_t mx_grammar_vocab_size(const struct mx_grammar_vocab *v); /* tokens */
/* Returns the bytes [*n] of a token; none if it ends a text or there is no such token. */
const uint8_t *mx_grammar_vocab_token(const struct mx_grammar_vocab *v, int32_t token, size_t *n);

struct mx_grammar_vocab_stats {
	size_t bytes;       /* memory of the trie */
	size_t cache_bytes; /* memory of kept masks */
	uint64_t hits, misses, evicted;
};
void mx_grammar_vocab_stats(struct mx_grammar_vocab *v, struct mx_grammar_vocab_stats *out);

#endif
