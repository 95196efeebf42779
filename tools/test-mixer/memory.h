/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that shows wrong use: blocks and pools with guards around what a mixer is given, filled
 * with NaN where it must not read. With the address sanitizer guards and free items cannot be read.
 */
#ifndef MX_TOOLS_TEST_MIXER_MEMORY_H
#define MX_TOOLS_TEST_MIXER_MEMORY_H

#include <stdnoreturn.h>

#include "device/device.h"
#include "tests/rng.h"

#define GUARD  0xa5 /* byte that must not change */
#define POISON 0xff /* byte that must not be read: NaN in every float format */

/* Receives the line that says what is wrong, and must not return. Each program sets it. */
extern void (*test_failed)(const char *text);

/* Ends the test with a message. */
noreturn void test_fail(const char *fmt, ...) MX_PRINTF(1, 2);

/* Ends the test unless the condition holds. */
#define MUST(condition) ((condition) ? (void)0 : test_fail("%s: not so", #condition))

/* Zeroed memory; ends the test if there is none. */
void *allocate(size_t n, size_t size);

struct block {
	unsigned char *all, *p; /* p is aligned as asked for and no better */
	size_t size;
	struct mx_device *of; /* a device that shares the memory with the host; NULL = host only */
};

/* Makes a block of POISON with a guard before and behind it; `of` as above. */
void block_alloc(struct block *b, struct mx_device *of, size_t size, size_t align);
void block_check(const struct block *b, const char *what); /* ends the test if a guard changed */
void block_free(struct block *b);
bool is_guard(const unsigned char *p, size_t n); /* true if all n bytes are GUARD */

/* Pages or slots: n items, each with a part for every layer and a guard after every part. */
struct pool {
	struct block mem;
	size_t bytes; /* of a part */
	size_t part;  /* distance of two parts */
	uint32_t n, n_layers;
	uint32_t *refs; /* [n] number of holders; 0 = free */
};

/* Makes a pool of free items, each of n_layers parts of `bytes` bytes. pool_check ends the test if
 * a guard changed; `what` names the pool in the message. */
void pool_open(struct pool *p, struct mx_device *of, size_t bytes, uint32_t n, uint32_t n_layers,
               size_t align);
void pool_close(struct pool *p); /* ends the test unless every item is free */
void pool_check(const struct pool *p, const char *what);
/* Returns the part of item i for a layer. */
unsigned char *pool_at(const struct pool *p, uint32_t i, uint32_t layer);
/* Takes a random free item. It holds NaN or what its last holder left. */
uint32_t pool_take(struct pool *p, struct rng *rng);
/* Drops one hold of an item; without any it is free, and keeps what it holds. */
void pool_drop(struct pool *p, uint32_t i);
/* Returns a hash of all items with several holders. */
uint64_t pool_sum_shared(const struct pool *p);

#endif
