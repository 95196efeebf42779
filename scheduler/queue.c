/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/queue.h"

#include <stddef.h>

void mx_queue_init(struct mx_queue *q)
{
	*q = (struct mx_queue){0};
	TAILQ_INIT(&q->arrivals);
}

/* Makes one heap of two, either of which may be NULL. */
static struct mx_req *meld(struct mx_req *a, struct mx_req *b)
{
	if (!a || !b)
		return a ? a : b;
	if (mx_req_before(b, a)) {
		struct mx_req *t = a;
		a = b;
		b = t;
	}
	b->heap_next = a->heap_child;
	b->heap_prev = a;
	if (b->heap_next)
		b->heap_next->heap_prev = b;
	a->heap_child = b;
	return a;
}

/* Takes the first heap off a list of siblings. */
static struct mx_req *cut_first(struct mx_req **list)
{
	struct mx_req *r = *list;
	if (r) {
		*list = r->heap_next;
		r->heap_next = r->heap_prev = NULL;
	}
	return r;
}

/* Makes one heap of a list of siblings: melds them by pairs from the left, then the pairs from the
 * right. */
static struct mx_req *meld_siblings(struct mx_req *list)
{
	struct mx_req *pairs = NULL, *all = NULL;
	while (list) {
		struct mx_req *a = cut_first(&list), *pair = meld(a, cut_first(&list));
		pair->heap_next = pairs;
		pairs = pair;
	}
	while (pairs) {
		struct mx_req *pair = cut_first(&pairs);
		all = meld(all, pair);
	}
	return all;
}

void mx_queue_push(struct mx_queue *q, struct mx_req *r)
{
	r->heap_child = r->heap_next = r->heap_prev = NULL;
	r->queued = true;
	q->top = meld(q->top, r);
	q->n++;
	if (r->fresh)
		TAILQ_INSERT_TAIL(&q->arrivals, r, arrival_link);
}

void mx_queue_remove(struct mx_queue *q, struct mx_req *r)
{
	struct mx_req *below = meld_siblings(r->heap_child);
	if (q->top == r) {
		q->top = below;
	} else {
		if (r->heap_prev->heap_child == r)
			r->heap_prev->heap_child = r->heap_next;
		else
			r->heap_prev->heap_next = r->heap_next;
		if (r->heap_next)
			r->heap_next->heap_prev = r->heap_prev;
		q->top = meld(q->top, below);
	}
	q->n--;
	r->queued = false;
	if (r->fresh) {
		TAILQ_REMOVE(&q->arrivals, r, arrival_link);
		r->fresh = false;
	}
}

struct mx_req *mx_queue_top(const struct mx_queue *q)
{
	return q->top;
}

struct mx_req *mx_queue_oldest(const struct mx_queue *q)
{
	return TAILQ_FIRST(&q->arrivals);
}
