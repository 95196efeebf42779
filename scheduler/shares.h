/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fairness between principals: start-time fair queuing over tokens.
 *
 * A principal's virtual service is the number of tokens that the engine computed for
 * it, divided by its weight. What the engine can compute next goes to the principal
 * with the least virtual service that has a prompt to compute (is backlogged).
 * Virtual time is the least virtual service of the backlogged principals. It never
 * falls, and a principal that becomes backlogged again begins at it, unless its own
 * service is ahead: so nobody saves up credit while idle, and nobody loses a debt by
 * a pause. For two principals with a backlog the difference of their virtual services
 * stays below a step's work and what is to come of their running streams.
 *
 * From P. Goyal, H. M. Vin, H. Cheng, "Start-time fair queueing", 1996: virtual time
 * that needs no clock of the server's speed, and the bound. From Y. Sheng et al.,
 * "Fairness in serving large language models", OSDI 2024: a counter for each client
 * in tokens, charged as they are computed, because nobody knows a request's length
 * when it begins. Ours differ in that prompts are charged chunk by chunk, so that a
 * long prompt can be interrupted, and tokens from the prefix cache cost nothing.
 *
 * How many may wait: dynamic thresholds of A. K. Choudhury, E. L. Hahne, 1998.
 *
 * Memory is allocated at creation, and when the queue gets longer. A principal without unfinished
 * requests rests: its service is remembered until its entry is needed for another one.
 */
#ifndef MX_SCHEDULER_SHARES_H
#define MX_SCHEDULER_SHARES_H

#include "scheduler/queue.h"

struct mx_share {
	/* Under the scheduler's lock. */
	uint32_t principal, weight;
	uint32_t n_unfinished; /* requests; 0 = rests */
	uint64_t n_submitted;  /* requests, since it last rested or before */
	struct mx_queue queue;
	TAILQ_ENTRY(mx_share) link; /* in `active`, `resting` or `unused` */
	struct mx_share *next;      /* in its bucket */

	/* Engine thread only. */
	uint64_t service;    /* virtual: tokens computed, each at `price` */
	uint64_t planned;    /* the same of the prompt tokens in the step that is being planned */
	uint64_t price;      /* of a token: MX_TOKEN_PRICE / weight */
	uint32_t weight_now; /* copy of `weight`, of the last mx_shares_update */
	bool backlogged;     /* had a prompt to compute when virtual time was last set */
	bool in_prompt;      /* a running request is in its prompt; valid in mx_shares_update */
	uint32_t n_running;  /* requests; set and used in preempt.c */
	uint64_t held_pages; /* of those, the same */
};

TAILQ_HEAD(mx_share_list, mx_share);

/* Virtual service of a token at weight 1. At a million tokens a second it overflows in half a
 * year. */
#define MX_TOKEN_PRICE 1000000u

/* Memory of shares, allocated at once. */
struct mx_share_block {
	struct mx_share_block *next;
	uint32_t n;
	struct mx_share shares[];
};

struct mx_shares {
	struct mx_share_block *blocks;
	struct mx_share **buckets; /* [n_buckets] chains, by principal modulo n_buckets */
	uint32_t n_buckets;
	struct mx_share_list active;  /* with unfinished requests; the last one came last */
	struct mx_share_list resting; /* the first one has rested longest */
	struct mx_share_list unused;
	uint32_t n_active;
	uint32_t n_waiting; /* requests in all queues */
	uint64_t weights;   /* sum of the active ones' */
	/* Engine thread only. */
	uint64_t time; /* virtual */
};

/* Prepares s for at most max_active principals with unfinished requests at a time. */
mx_status mx_shares_init(struct mx_shares *s, uint32_t max_active);
void mx_shares_free(struct mx_shares *s);

/* Allocates n more shares for mx_shares_add; NULL if out of memory. */
struct mx_share_block *mx_share_block_create(uint32_t n);

/* ---- under the lock ---- */

/* Takes a block over. */
void mx_shares_add(struct mx_shares *s, struct mx_share_block *block);

/* Returns a principal's share; NULL if it is not remembered. */
struct mx_share *mx_shares_find(const struct mx_shares *s, uint32_t principal);
/* Returns the share for one more unfinished request, with that weight from now on. */
struct mx_share *mx_shares_join(struct mx_shares *s, uint32_t principal, uint32_t weight);
/* Counts the end of a request. Engine thread. */
void mx_shares_leave(struct mx_shares *s, struct mx_share *share);
/* Returns how many more requests a principal may submit if `places` are free: so many that it
 * then has no more than places stay free, if it is alone, and else as many in proportion to its
 * weight. So places stay free for principals that have not come yet. A principal that has no
 * request may submit one while any place is free. */
uint32_t mx_shares_room(const struct mx_shares *s, uint32_t principal, uint32_t weight,
                        uint32_t places);
void mx_shares_push(struct mx_shares *s, struct mx_req *r);
void mx_shares_remove(struct mx_shares *s, struct mx_req *r);

/* ---- under the lock, engine thread ---- */

/* Sets virtual time, and the service of principals that have become backlogged. Before this,
 * in_prompt is set; it is cleared. O(active). */
void mx_shares_update(struct mx_shares *s);
/* Returns the share with waiting requests that is to be served next; NULL if none waits. Of equals
 * the one that came last. O(active). */
struct mx_share *mx_shares_next(const struct mx_shares *s);
/* Returns the active share with the least service; NULL if there is none. */
struct mx_share *mx_shares_least(const struct mx_shares *s);

/* ---- engine thread ---- */

/* What decides who is next: the virtual service after the step that is being planned. */
static inline uint64_t mx_share_key(const struct mx_share *s)
{
	return s->service + s->planned;
}

#endif
