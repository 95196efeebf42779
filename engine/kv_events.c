/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kv_events.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define NONE UINT32_MAX

/* Events of the ring: a reader that is slower than this many changes begins anew. */
#define RING_MIN       1024
#define RING_PER_BLOCK 2

/* Blocks that a reader looks at under one hold of the lock. */
#define LOOK 512

struct block {
	uint64_t hash;   /* 0 = the block is not stored */
	uint64_t change; /* the one that stored it */
	uint64_t parent;
	uint64_t salt[2];
	uint32_t depth; /* number of blocks before it */
};

struct change {
	uint64_t hash;
	uint32_t id; /* of the block that was stored; NONE = the block was removed */
};

struct mx_kv_events {
	uint32_t n_blocks, block_tokens;

	pthread_mutex_t lock; /* of everything below */
	struct block *blocks; /* [n_blocks] */
	int32_t *tokens;      /* [n_blocks, block_tokens] */
	struct change *ring;  /* [n_ring] change i is at i % n_ring */
	uint64_t n_ring;
	uint64_t n_changes; /* since the beginning */
};

/* A stored block as a reader met it when it began. */
struct met {
	uint64_t change;
	uint32_t id, depth;
};

struct mx_kv_reader {
	struct mx_kv_events *events;
	bool begun;
	uint64_t next; /* the next change to read */
	struct met
		*table; /* [n_table] the content of the cache, parents first; told up to table[told] */
	uint32_t n_table, told;
	uint64_t overflows;
	int32_t tokens[]; /* [MX_KV_READ, block_tokens] */
};

static uint64_t ring_size(uint32_t n_blocks)
{
	uint64_t n = (uint64_t)n_blocks * RING_PER_BLOCK;
	return n < RING_MIN ? RING_MIN : n;
}

size_t mx_kv_events_bytes(uint32_t n_blocks, uint32_t block_tokens)
{
	return sizeof(struct mx_kv_events) + ring_size(n_blocks) * sizeof(struct change) +
	       n_blocks * (sizeof(struct block) + (size_t)block_tokens * sizeof(int32_t));
}

mx_status mx_kv_events_create(uint32_t n_blocks, uint32_t block_tokens, struct mx_kv_events **out)
{
	if (!n_blocks || !block_tokens)
		return MX_E_INVALID;
	struct mx_kv_events *k = mx_calloc(1, sizeof *k);
	if (!k)
		return MX_E_NOMEM;
	k->n_blocks = n_blocks;
	k->block_tokens = block_tokens;
	k->n_ring = ring_size(n_blocks);
	k->blocks = mx_calloc(n_blocks, sizeof *k->blocks);
	k->tokens = mx_calloc(n_blocks, block_tokens * sizeof *k->tokens);
	k->ring = mx_calloc(k->n_ring, sizeof *k->ring);
	if (!k->blocks || !k->tokens || !k->ring || pthread_mutex_init(&k->lock, NULL)) {
		free(k->blocks);
		free(k->tokens);
		free(k->ring);
		free(k);
		return MX_E_NOMEM;
	}
	*out = k;
	return MX_OK;
}

void mx_kv_events_destroy(struct mx_kv_events *k)
{
	if (!k)
		return;
	pthread_mutex_destroy(&k->lock);
	free(k->blocks);
	free(k->tokens);
	free(k->ring);
	free(k);
}

uint32_t mx_kv_events_block_tokens(const struct mx_kv_events *k)
{
	return k->block_tokens;
}

/* ---- the engine's side ---- */

static int32_t *tokens_of(const struct mx_kv_events *k, uint32_t id)
{
	return k->tokens + (size_t)id * k->block_tokens;
}

/* The lock is held. */
static void note(struct mx_kv_events *k, uint64_t hash, uint32_t id)
{
	k->ring[k->n_changes++ % k->n_ring] = (struct change){hash, id};
}

void mx_kv_events_store(struct mx_kv_events *k, uint32_t id, uint64_t hash, uint32_t parent,
                        const uint64_t salt[2], const int32_t *tokens)
{
	pthread_mutex_lock(&k->lock);
	struct block *b = &k->blocks[id];
	*b = (struct block){.hash = hash, .change = k->n_changes, .salt = {salt[0], salt[1]}};
	if (parent != NONE) {
		const struct block *before = &k->blocks[parent];
		b->parent = before->hash;
		b->depth = before->depth + 1;
		memcpy(b->salt, before->salt, sizeof b->salt);
	}
	memcpy(tokens_of(k, id), tokens, k->block_tokens * sizeof *tokens);
	note(k, hash, id);
	pthread_mutex_unlock(&k->lock);
}

void mx_kv_events_remove(struct mx_kv_events *k, uint32_t id)
{
	pthread_mutex_lock(&k->lock);
	note(k, k->blocks[id].hash, NONE);
	k->blocks[id].hash = 0;
	pthread_mutex_unlock(&k->lock);
}

/* ---- readers ---- */

mx_status mx_kv_reader_open(struct mx_kv_events *k, struct mx_kv_reader **out)
{
	size_t tokens = (size_t)MX_KV_READ * k->block_tokens * sizeof(int32_t);
	struct mx_kv_reader *r = mx_calloc(1, sizeof *r + tokens);
	if (r)
		r->table = mx_calloc(k->n_blocks, sizeof *r->table);
	if (!r || !r->table) {
		free(r);
		return MX_E_NOMEM;
	}
	r->events = k;
	*out = r;
	return MX_OK;
}

void mx_kv_reader_close(struct mx_kv_reader *r)
{
	if (!r)
		return;
	free(r->table);
	free(r);
}

void mx_kv_reader_restart(struct mx_kv_reader *r)
{
	r->begun = false;
}

uint64_t mx_kv_reader_overflows(const struct mx_kv_reader *r)
{
	return r->overflows;
}

static int by_depth(const void *a, const void *b)
{
	const struct met *x = a, *y = b;
	if (x->depth != y->depth)
		return x->depth < y->depth ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Notes which blocks are stored. Those that come or go while it looks are read from the ring, after
 * the table. */
static void begin(struct mx_kv_reader *r)
{
	struct mx_kv_events *k = r->events;
	r->n_table = r->told = 0;
	for (uint32_t id = 0; id < k->n_blocks;) {
		pthread_mutex_lock(&k->lock);
		if (id == 0)
			r->next = k->n_changes;
		for (uint32_t end = id + LOOK; id < end && id < k->n_blocks; id++) {
			const struct block *b = &k->blocks[id];
			if (b->hash && b->change < r->next)
				r->table[r->n_table++] = (struct met){b->change, id, b->depth};
		}
		pthread_mutex_unlock(&k->lock);
	}
	qsort(r->table, r->n_table, sizeof *r->table, by_depth);
	r->begun = true;
}

/* Appends the event that block `id` was stored by that change, if it still is: so the blocks before
 * it are stored still, and were told of. The lock is held. */
static uint32_t tell_stored(struct mx_kv_reader *r, uint32_t id, uint64_t change,
                            struct mx_kv_event *out, uint32_t n)
{
	const struct mx_kv_events *k = r->events;
	const struct block *b = &k->blocks[id];
	if (!b->hash || b->change != change)
		return n;
	int32_t *tokens = r->tokens + (size_t)n * k->block_tokens;
	memcpy(tokens, tokens_of(k, id), k->block_tokens * sizeof *tokens);
	out[n] = (struct mx_kv_event){.kind = MX_KV_STORED,
	                              .hash = b->hash,
	                              .parent = b->parent,
	                              .salt = {b->salt[0], b->salt[1]},
	                              .tokens = tokens};
	return n + 1;
}

/* Appends the events of the next LOOK entries of table and ring at most. False if there are no
 * more, or none that can be read. The lock is held. */
static bool look(struct mx_kv_reader *r, struct mx_kv_event *out, uint32_t *n)
{
	const struct mx_kv_events *k = r->events;
	for (unsigned i = 0; i < LOOK && *n < MX_KV_READ; i++) {
		if (r->told < r->n_table) {
			const struct met *m = &r->table[r->told++];
			*n = tell_stored(r, m->id, m->change, out, *n);
			continue;
		}
		/* If the reader fell behind meanwhile, its next call begins anew. */
		if (r->next == k->n_changes || k->n_changes - r->next > k->n_ring)
			return false;
		const struct change *c = &k->ring[r->next % k->n_ring];
		uint64_t at = r->next++;
		if (c->id != NONE)
			*n = tell_stored(r, c->id, at, out, *n);
		else
			out[(*n)++] = (struct mx_kv_event){.kind = MX_KV_REMOVED, .hash = c->hash};
	}
	return true;
}

uint32_t mx_kv_reader_read(struct mx_kv_reader *r, struct mx_kv_event *out)
{
	struct mx_kv_events *k = r->events;
	uint32_t n = 0;
	pthread_mutex_lock(&k->lock);
	bool late = r->begun && k->n_changes - r->next > k->n_ring;
	pthread_mutex_unlock(&k->lock);
	r->overflows += late;
	if (late || !r->begun) {
		begin(r);
		out[n++] = (struct mx_kv_event){.kind = MX_KV_CLEARED};
	}
	bool more = true;
	while (more && n < MX_KV_READ) {
		pthread_mutex_lock(&k->lock);
		more = look(r, out, &n);
		pthread_mutex_unlock(&k->lock);
	}
	return n;
}
