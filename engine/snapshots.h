/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The snapshots of a model with slots: which prefixes are saved, and in which block. Book-keeping
 * only: the memory of the blocks, all of one size, belongs to the engine.
 *
 * An entry is a prefix, identified by its length and a hash of salt and tokens (128 bits under a
 * secret key: collisions do not happen by chance, and clients cannot construct them). Entries with
 * a block are in an LRU list. When all blocks are taken, the least recently used entry loses its
 * block. It is remembered without one for a while, as a ghost, so that a look-up can tell that a
 * saved state was evicted.
 *
 * Marks are hashes of prefixes that were computed, saved or not, at multiples of MX_MARK_TOKENS.
 * They tell where a prompt first differs from earlier ones, because a state there is worth saving.
 * Marks are hints in a table of fixed size: new ones overwrite old ones.
 *
 * A look-up hashes the tokens once and compares at the lengths of entries: O(tokens + entries).
 * Saving is O(new tokens + entries). Nothing is allocated after create.
 *
 * Threads: the engine thread, except mx_snapshots_usage (any thread).
 */
#ifndef MX_ENGINE_SNAPSHOTS_H
#define MX_ENGINE_SNAPSHOTS_H

#include "engine/engine.h"
#include "engine/siphash.h"

struct mx_snapshots;

#define MX_NO_SNAPSHOT UINT32_MAX

/* Most blocks. With more, a look-up would cost more time than it saves. */
#define MX_SNAPSHOTS_MAX 4096

/* Tokens from one mark to the next. */
#define MX_MARK_TOKENS 32

/* Running hash of a salt and the first n tokens of a sequence. */
struct mx_prefix_hash {
	struct mx_siphash hash;
	uint32_t n;
};

/* Result of a look-up. */
struct mx_snapshot {
	uint32_t block; /* MX_NO_SNAPSHOT = no usable snapshot */
	uint32_t n;     /* tokens that the snapshot covers */
	bool lost;      /* a snapshot was evicted, or the pages that it needs were */
};

/* Creates the book-keeping of n_blocks free blocks, 1 .. MX_SNAPSHOTS_MAX. */
mx_status mx_snapshots_create(uint32_t n_blocks, struct mx_snapshots **out);
void mx_snapshots_destroy(struct mx_snapshots *s); /* takes NULL */
/* Returns the bytes that create allocates. */
size_t mx_snapshots_bytes(uint32_t n_blocks);

/* Initializes the hash of a sequence: salt, and no tokens. */
void mx_snapshots_hash(const struct mx_snapshots *s, const uint64_t salt[2],
                       struct mx_prefix_hash *out);

/* Finds the longest saved prefix of the first `longest` tokens that has at most `usable` tokens,
 * and makes it the most recently used. Sets out->lost if a prefix was longer than `usable`, or is a
 * ghost. */
void mx_snapshots_find(struct mx_snapshots *s, const uint64_t salt[2],
                       const struct mx_seq_tokens *tokens, uint32_t longest, uint32_t usable,
                       struct mx_snapshot *out);

/* Returns the block for the state after the first n tokens, n >= 1, and makes it the most recently
 * used. If *out_saved, the block holds that state already; else the caller copies it there, or
 * calls mx_snapshots_forget. `hash` is the sequence's; it is continued to n, or restarted with
 * `salt` if it is past n. */
uint32_t mx_snapshots_save(struct mx_snapshots *s, const uint64_t salt[2],
                           struct mx_prefix_hash *hash, const struct mx_seq_tokens *tokens,
                           uint32_t n, bool *out_saved);

/* Marks the prefixes of the first n tokens that are longer than hash->n, and continues `hash`. */
void mx_snapshots_mark(struct mx_snapshots *s, struct mx_prefix_hash *hash,
                       const struct mx_seq_tokens *tokens, uint32_t n);
/* Returns the length of the longest marked prefix of the first n tokens: a multiple of
 * MX_MARK_TOKENS, 0 = none. */
uint32_t mx_snapshots_marked(const struct mx_snapshots *s, const uint64_t salt[2],
                             const struct mx_seq_tokens *tokens, uint32_t n);

/* Frees a block, and drops its entry. */
void mx_snapshots_forget(struct mx_snapshots *s, uint32_t block);
/* Drops all entries, ghosts and marks. */
void mx_snapshots_drop(struct mx_snapshots *s);

/* Fills the fields about snapshots. Any thread. */
void mx_snapshots_usage(const struct mx_snapshots *s, struct mx_engine_usage *out);

/* For tests: returns NULL if blocks, lists and order agree, else a text that says what is wrong. */
const char *mx_snapshots_check(const struct mx_snapshots *s);

#endif
