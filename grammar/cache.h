/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks that were computed, by the state that they belong to. Entries are immutable and counted; a
 * lock guards the table, and the least recently used entries give way when memory is short.
 */
#ifndef MX_GRAMMAR_CACHE_H
#define MX_GRAMMAR_CACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "grammar/trie.h"

struct mx_verdict_key {
	uint64_t grammar; /* id */
	uint64_t parent;  /* id of the entry whose rest was walked, 0: the whole vocabulary */
	uint32_t state;
};

/*
 * What a state says of the strings of a trie, whatever is below it on the stack: tokens that are
 * taken, and the rest, strings that go on behind the end of the state's rule: what the frame below
 * says of them is the answer. All others are refused.
 */
struct mx_verdict {
	struct mx_verdict_key key;
	uint64_t id;
	atomic_uint references;
	uint32_t n_tokens; /* tokens that are taken, as a list; or */
	uint32_t *tokens;
	uint32_t *bits; /* as a mask, if not NULL */
	struct mx_trie rest;
	bool vague; /* the rest is too large to be kept: walk the vocabulary with the whole stack */
	size_t bytes;
	struct mx_verdict *newer, *older, *chained;
};

struct mx_cache {
	pthread_mutex_t lock;
	struct mx_verdict **table;
	size_t table_size, n;
	struct mx_verdict *newest, *oldest;
	size_t bytes, max_bytes;
	uint64_t last_id, hits, misses, evicted;
};

bool mx_cache_init(struct mx_cache *c, size_t max_bytes);
void mx_cache_free(struct mx_cache *c);
/* Returns a counted entry, or NULL. */
struct mx_verdict *mx_cache_get(struct mx_cache *c, const struct mx_verdict_key *key);
/* Gives a new entry its id and keeps it; the caller's reference stays. */
void mx_cache_put(struct mx_cache *c, struct mx_verdict *v);
void mx_verdict_unref(struct mx_verdict *v); /* takes NULL */

#endif
