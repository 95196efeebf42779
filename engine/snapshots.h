/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved states of sequences, for models whose layers keep their state in a
 * slot: which prefixes are saved, and in which block. Book-keeping only; the
 * blocks, of equal size, are the engine's.
 *
 * An entry is a prefix, known by its length and a keyed hash of salt and tokens
 * (128 bits under a secret key: two prefixes do not meet by chance, and nobody
 * can make them). Entries with a block stand in one list by last use. When all
 * blocks are taken, the entry not used for longest loses its block and is
 * remembered without it for a while, as a ghost: a look-up can then tell that
 * it found nothing for want of room.
 *
 * Marks remember the prefixes that were computed, saved or not, at multiples of
 * MX_MARK_TOKENS: where a prompt parts from those before it, a state is worth
 * saving. They are hints in a table of fixed size, where a new one takes the
 * place of an old one.
 *
 * A look-up hashes the tokens once and compares at the lengths of entries:
 * O(tokens + entries). Saving is O(new tokens + entries). Nothing is allocated
 * after create.
 *
 * Threads: the engine thread, except mx_snapshots_usage (any thread).
 */
#ifndef MX_ENGINE_SNAPSHOTS_H
#define MX_ENGINE_SNAPSHOTS_H

#include "engine/engine.h"
#include "engine/siphash.h"

struct mx_snapshots;

#define MX_NO_SNAPSHOT UINT32_MAX

/* More blocks are of no use: a look-up would take longer than what it saves. */
#define MX_SNAPSHOTS_MAX 4096

/* Tokens between two marks. */
#define MX_MARK_TOKENS 32

/* The hash of a salt and the first n tokens of a sequence, to be continued. */
struct mx_prefix_hash {
	struct mx_siphash hash;
	uint32_t n;
};

/* What a look-up found. */
struct mx_snapshot {
	uint32_t block; /* MX_NO_SNAPSHOT = nothing that can be used */
	uint32_t n;     /* its length in tokens */
	bool lost;      /* something was saved, and it or what goes with it was dropped for room */
};

/* n_blocks in 1 .. MX_SNAPSHOTS_MAX. */
mx_status mx_snapshots_create(uint32_t n_blocks, struct mx_snapshots **out);
void mx_snapshots_destroy(struct mx_snapshots *s); /* takes NULL */
/* Bytes that create allocates. */
size_t mx_snapshots_bytes(uint32_t n_blocks);

/* The hash of no tokens. */
void mx_snapshots_hash(const struct mx_snapshots *s, const uint64_t salt[2],
                       struct mx_prefix_hash *out);

/* Finds the longest saved prefix of `tokens` [longest] that has at most `usable` tokens, and counts
 * it as used now. One that is longer than that, or that lost its block, sets out->lost. */
void mx_snapshots_find(struct mx_snapshots *s, const uint64_t salt[2], const int32_t *tokens,
                       uint32_t longest, uint32_t usable, struct mx_snapshot *out);

/* The block for the state after tokens[0..n), n >= 1; counted as used now. *out_saved: the state is
 * in it already, else the caller writes it, or calls forget. `hash` is that of the sequence; it is
 * continued, or begun again with `salt` if it is past n. */
uint32_t mx_snapshots_save(struct mx_snapshots *s, const uint64_t salt[2],
                           struct mx_prefix_hash *hash, const int32_t *tokens, uint32_t n,
                           bool *out_saved);

/* Marks the prefixes of tokens[0..n) that `hash` has not passed, and continues it. */
void mx_snapshots_mark(struct mx_snapshots *s, struct mx_prefix_hash *hash, const int32_t *tokens,
                       uint32_t n);
/* The longest prefix of tokens[0..n) that is marked: a multiple of MX_MARK_TOKENS, 0 = none. */
uint32_t mx_snapshots_marked(const struct mx_snapshots *s, const uint64_t salt[2],
                             const int32_t *tokens, uint32_t n);

/* Drops what is in a block. */
void mx_snapshots_forget(struct mx_snapshots *s, uint32_t block);
/* Drops everything, ghosts and marks too. */
void mx_snapshots_drop(struct mx_snapshots *s);

/* Fills the snapshots' part. Any thread. */
void mx_snapshots_usage(const struct mx_snapshots *s, struct mx_engine_usage *out);

/* For tests: NULL if blocks, lists and order agree, else what is wrong. O(everything). */
const char *mx_snapshots_check(const struct mx_snapshots *s);

#endif
