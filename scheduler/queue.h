/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting requests: a binary heap in the order of service whose members know
 * their place, so that any of them can leave in O(log n), and beside it the
 * list of those that never ran, by arrival. Capacity is fixed at creation.
 * No locking: the scheduler calls it under its lock.
 */
#ifndef MX_SCHEDULER_QUEUE_H
#define MX_SCHEDULER_QUEUE_H

#include "scheduler/request.h"

struct mx_queue {
	struct mx_req **heap; /* [cap] */
	uint32_t n, cap;
	struct mx_req_list arrivals; /* fresh requests, oldest first */
};

mx_status mx_queue_init(struct mx_queue *q, uint32_t cap);
void mx_queue_free(struct mx_queue *q);

/* There must be room. A fresh request also joins the arrivals. */
void mx_queue_push(struct mx_queue *q, struct mx_req *r);
/* Takes out any member. */
void mx_queue_remove(struct mx_queue *q, struct mx_req *r);
/* The request to be served next; NULL if empty. */
struct mx_req *mx_queue_top(const struct mx_queue *q);
/* The fresh request that waits longest; NULL if none. */
struct mx_req *mx_queue_oldest(const struct mx_queue *q);

#endif
