/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a model's prefix cache, for routers that send a request where its prefix is cached:
 * which blocks a later request can find, block by block as they come and go.
 *
 * A block is a page of the prefix cache (engine/pages.h): block_tokens consecutive tokens after a
 * prefix that is itself cached. Its hash is a keyed hash of all tokens up to its end and of the
 * salt, so the same prefix has the same hash as long as the process lives, and another one in every
 * process. In a model with slots a block is stored while a saved state (engine/snapshots.h) stands
 * at or behind its end, since no request could resume there otherwise; a model without pages has no
 * blocks, and so no events.
 *
 * The engine thread notes each change in a table of the blocks that are stored, and in a ring of
 * fixed size. It takes a lock for that, which readers hold only to copy some hundred events.
 * Readers, any number, read the ring at their own pace. One that begins, or that was slower than
 * the ring is long, gets MX_KV_CLEARED and then the whole table, parents first. So whoever applies
 * a reader's events in order ends with the content of the cache. A block that came and went before
 * the reader looked may be left out, and its MX_KV_REMOVED be told all the same.
 *
 * Owner: the engine (core.h). Readers must be closed before it is destroyed.
 */
#ifndef MX_ENGINE_KV_EVENTS_H
#define MX_ENGINE_KV_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct mx_kv_events;
struct mx_kv_reader;

enum mx_kv_event_kind {
	MX_KV_STORED,  /* the block can be found */
	MX_KV_REMOVED, /* it cannot any more; blocks after it were removed before */
	MX_KV_CLEARED  /* all blocks that were told of are void */
};

struct mx_kv_event {
	enum mx_kv_event_kind kind;
	uint64_t hash;         /* of the block; never 0 */
	uint64_t parent;       /* stored: hash of the block before it; 0 = it is a first block */
	uint64_t salt[2];      /* stored: what keeps its prefix apart from others with the same
	                        * tokens (a hash of cache_salt); 0, 0 = nothing */
	const int32_t *tokens; /* stored: [block_tokens] */
};

/* ---- any thread ---- */

/* Returns the tokens of a block. */
uint32_t mx_kv_events_block_tokens(const struct mx_kv_events *k);

/* Opens a reader, which one thread at a time may use. Its first events are MX_KV_CLEARED and the
 * content of the cache. MX_E_NOMEM. */
mx_status mx_kv_reader_open(struct mx_kv_events *k, struct mx_kv_reader **out);
void mx_kv_reader_close(struct mx_kv_reader *r); /* takes NULL */

/* Most events of one read. */
#define MX_KV_READ 64

/* Reads the next events into out[MX_KV_READ] and returns their number; 0 = there are none now.
 * Never waits for a step. `tokens` of the events are valid until the reader's next call. */
uint32_t mx_kv_reader_read(struct mx_kv_reader *r, struct mx_kv_event *out);

/* Has the reader begin anew: MX_KV_CLEARED and the content of the cache. */
void mx_kv_reader_restart(struct mx_kv_reader *r);

/* Returns how many times the reader was too slow, and began anew. */
uint64_t mx_kv_reader_overflows(const struct mx_kv_reader *r);

/* ---- the engine ---- */

/* Creates a table of n_blocks blocks, none of them stored. */
mx_status mx_kv_events_create(uint32_t n_blocks, uint32_t block_tokens, struct mx_kv_events **out);
void mx_kv_events_destroy(struct mx_kv_events *k); /* takes NULL */
/* Returns the bytes that create allocates. */
size_t mx_kv_events_bytes(uint32_t n_blocks, uint32_t block_tokens);

/* Stores block `id` < n_blocks, which is not stored, behind the stored block `parent`; UINT32_MAX =
 * it is a first block, with that salt. The tokens [block_tokens] are copied. Engine thread. */
void mx_kv_events_store(struct mx_kv_events *k, uint32_t id, uint64_t hash, uint32_t parent,
                        const uint64_t salt[2], const int32_t *tokens);
/* Removes block `id`, which is stored and has no stored block behind it. Engine thread. */
void mx_kv_events_remove(struct mx_kv_events *k, uint32_t id);

#endif
