/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waiting requests of a principal: a pairing heap in the order of service
 * (Fredman, Sedgewick, Sleator, Tarjan, 1986), whose links are in the requests. So
 * any of them can leave in O(log n), amortised, and nothing is allocated. Beside it
 * is the list of fresh requests (those never admitted), by arrival. No locking: the
 * scheduler calls it under its lock.
 */
#ifndef MX_SCHEDULER_QUEUE_H
#define MX_SCHEDULER_QUEUE_H

#include "scheduler/request.h"

struct mx_queue {
	struct mx_req *top; /* NULL = empty */
	uint32_t n;
	struct mx_req_list arrivals; /* fresh requests, oldest first */
};

void mx_queue_init(struct mx_queue *q);

/* Adds r. A fresh request also joins `arrivals`. */
void mx_queue_push(struct mx_queue *q, struct mx_req *r);
/* Takes out r, which must be a member. From then on it is not fresh. */
void mx_queue_remove(struct mx_queue *q, struct mx_req *r);
/* Returns the request to be served next; NULL if the queue is empty. */
struct mx_req *mx_queue_top(const struct mx_queue *q);
/* Returns the fresh request that has waited longest; NULL if there is none. */
struct mx_req *mx_queue_oldest(const struct mx_queue *q);

#endif
