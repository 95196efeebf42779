/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/shares.h"

#include <stdlib.h>

#include "base/mem.h"

/* Entries beyond those that can be active: so many resting principals are remembered at least. */
#define RESTING 64

mx_status mx_shares_init(struct mx_shares *s, uint32_t max_active)
{
	*s = (struct mx_shares){.n_buckets = max_active + RESTING};
	TAILQ_INIT(&s->active);
	TAILQ_INIT(&s->resting);
	TAILQ_INIT(&s->unused);
	s->buckets = mx_calloc(s->n_buckets, sizeof(*s->buckets));
	struct mx_share_block *block = mx_share_block_create(max_active + RESTING);
	if (block)
		mx_shares_add(s, block);
	return s->buckets && block ? MX_OK : MX_E_NOMEM;
}

struct mx_share_block *mx_share_block_create(uint32_t n)
{
	struct mx_share_block *b = mx_calloc(1, sizeof *b + n * sizeof *b->shares);
	if (b)
		b->n = n;
	return b;
}

void mx_shares_add(struct mx_shares *s, struct mx_share_block *block)
{
	block->next = s->blocks;
	s->blocks = block;
	for (uint32_t i = 0; i < block->n; i++)
		TAILQ_INSERT_TAIL(&s->unused, &block->shares[i], link);
}

void mx_shares_free(struct mx_shares *s)
{
	for (struct mx_share_block *b = s->blocks, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	free(s->buckets);
	s->blocks = NULL;
	s->buckets = NULL;
}

/* ---- principals ---- */

struct mx_share *mx_shares_find(const struct mx_shares *s, uint32_t principal)
{
	struct mx_share *e = s->buckets[principal % s->n_buckets];
	while (e && e->principal != principal)
		e = e->next;
	return e;
}

static void forget(struct mx_shares *s, struct mx_share *e)
{
	struct mx_share **at = &s->buckets[e->principal % s->n_buckets];
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	TAILQ_REMOVE(&s->resting, e, link);
}

/* Returns a resting share for a principal that is not remembered. */
static struct mx_share *make(struct mx_shares *s, uint32_t principal)
{
	struct mx_share *e = TAILQ_FIRST(&s->unused);
	if (e) {
		TAILQ_REMOVE(&s->unused, e, link);
	} else {
		e = TAILQ_FIRST(&s->resting); /* there is one: more entries than can be active */
		forget(s, e);
	}
	struct mx_share **bucket = &s->buckets[principal % s->n_buckets];
	*e = (struct mx_share){.principal = principal, .next = *bucket};
	mx_queue_init(&e->queue);
	*bucket = e;
	TAILQ_INSERT_TAIL(&s->resting, e, link);
	return e;
}

struct mx_share *mx_shares_join(struct mx_shares *s, uint32_t principal, uint32_t weight)
{
	struct mx_share *e = mx_shares_find(s, principal);
	if (!e)
		e = make(s, principal);
	if (!e->n_unfinished++) {
		TAILQ_REMOVE(&s->resting, e, link);
		TAILQ_INSERT_TAIL(&s->active, e, link);
		s->n_active++;
		e->weight = 0;
	}
	s->weights = s->weights - e->weight + weight;
	e->weight = weight;
	if (e->n_unfinished == 1) { /* the engine thread has not seen it yet */
		e->weight_now = weight;
		e->price = MX_TOKEN_PRICE / weight;
	}
	return e;
}

void mx_shares_leave(struct mx_shares *s, struct mx_share *e)
{
	if (--e->n_unfinished)
		return;
	TAILQ_REMOVE(&s->active, e, link);
	TAILQ_INSERT_TAIL(&s->resting, e, link);
	s->n_active--;
	s->weights -= e->weight;
	e->backlogged = false;
	e->planned = 0;
}

/* ---- waiting requests ---- */

uint32_t mx_shares_room(const struct mx_shares *s, uint32_t principal, uint32_t weight,
                        uint32_t places)
{
	const struct mx_share *e = mx_shares_find(s, principal);
	uint64_t has = e ? e->n_unfinished : 0;
	uint64_t others = s->weights - (has ? e->weight : 0), n = s->n_active + !has;
	/* The part is weight * n / weights: 1 if the principal is alone or all have one weight. With
	 * x more requests: has + x <= part * (places - x). */
	uint64_t part = weight * n, whole = others + weight;
	uint64_t x = 0;
	if (part * places > has * whole)
		x = (part * places - has * whole) / (part + whole);
	return !x && !has && places ? 1 : (uint32_t)x;
}

void mx_shares_push(struct mx_shares *s, struct mx_req *r)
{
	mx_queue_push(&r->share->queue, r);
	s->n_waiting++;
}

void mx_shares_remove(struct mx_shares *s, struct mx_req *r)
{
	mx_queue_remove(&r->share->queue, r);
	s->n_waiting--;
}

/* ---- service ---- */

void mx_shares_update(struct mx_shares *s)
{
	struct mx_share *e;
	uint64_t least = UINT64_MAX, most = 0;
	TAILQ_FOREACH(e, &s->active, link)
	{
		bool backlog = e->queue.n || e->in_prompt;
		if (backlog && e->backlogged && e->service < least)
			least = e->service;
		if (e->service > most)
			most = e->service;
	}
	/* If nobody had a backlog, what was computed was taken from nobody: all begin anew. */
	uint64_t time = least < UINT64_MAX ? least : most;
	if (time > s->time)
		s->time = time;
	TAILQ_FOREACH(e, &s->active, link)
	{
		bool backlog = e->queue.n || e->in_prompt;
		if (backlog && !e->backlogged && e->service < s->time)
			e->service = s->time;
		e->backlogged = backlog;
		e->in_prompt = false;
		e->weight_now = e->weight;
		e->price = MX_TOKEN_PRICE / e->weight;
	}
}

struct mx_share *mx_shares_next(const struct mx_shares *s)
{
	struct mx_share *e, *next = NULL;
	TAILQ_FOREACH(e, &s->active, link)
	if (e->queue.n && (!next || mx_share_key(e) <= mx_share_key(next)))
		next = e;
	return next;
}

struct mx_share *mx_shares_least(const struct mx_shares *s)
{
	struct mx_share *e, *least = NULL;
	TAILQ_FOREACH(e, &s->active, link)
	if (!least || e->service < least->service)
		least = e;
	return least;
}
