/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/queue.h"

#include <stdlib.h>

#include "base/mem.h"

mx_status mx_queue_init(struct mx_queue *q, uint32_t cap)
{
	*q = (struct mx_queue){.cap = cap};
	TAILQ_INIT(&q->arrivals);
	q->heap = mx_calloc(cap, sizeof *q->heap);
	return q->heap ? MX_OK : MX_E_NOMEM;
}

void mx_queue_free(struct mx_queue *q)
{
	free(q->heap);
	q->heap = NULL;
}

static void place(struct mx_queue *q, uint32_t i, struct mx_req *r)
{
	q->heap[i] = r;
	r->heap_index = i;
}

/* Moves r from the hole at i towards the root. */
static void sift_up(struct mx_queue *q, uint32_t i, struct mx_req *r)
{
	while (i > 0) {
		uint32_t parent = (i - 1) / 2;
		if (!mx_req_before(r, q->heap[parent]))
			break;
		place(q, i, q->heap[parent]);
		i = parent;
	}
	place(q, i, r);
}

/* Moves r from the hole at i towards the leaves. */
static void sift_down(struct mx_queue *q, uint32_t i, struct mx_req *r)
{
	for (;;) {
		uint32_t child = 2 * i + 1;
		if (child >= q->n)
			break;
		if (child + 1 < q->n && mx_req_before(q->heap[child + 1], q->heap[child]))
			child++;
		if (!mx_req_before(q->heap[child], r))
			break;
		place(q, i, q->heap[child]);
		i = child;
	}
	place(q, i, r);
}

void mx_queue_push(struct mx_queue *q, struct mx_req *r)
{
	sift_up(q, q->n++, r);
	if (r->fresh)
		TAILQ_INSERT_TAIL(&q->arrivals, r, arrival_link);
}

void mx_queue_remove(struct mx_queue *q, struct mx_req *r)
{
	uint32_t i = r->heap_index;
	struct mx_req *last = q->heap[--q->n];
	if (last != r) {
		if (i > 0 && mx_req_before(last, q->heap[(i - 1) / 2]))
			sift_up(q, i, last);
		else
			sift_down(q, i, last);
	}
	r->heap_index = MX_REQ_NOT_QUEUED;
	if (r->fresh) {
		TAILQ_REMOVE(&q->arrivals, r, arrival_link);
		r->fresh = false;
	}
}

struct mx_req *mx_queue_top(const struct mx_queue *q)
{
	return q->n ? q->heap[0] : NULL;
}

struct mx_req *mx_queue_oldest(const struct mx_queue *q)
{
	return TAILQ_FIRST(&q->arrivals);
}
