/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work divided into lanes, one a thread: runs of consecutive units, whose memory a thread reads in
 * order, since neither caches nor prefetchers gain from what lies apart. A thread that is done with
 * its own lane helps with the others.
 *
 *     mx_lanes_init(&l, n, threads);                 before the run, of l.n_lanes tasks
 *     for (size_t i = 0; i < l.n_lanes; i++)         in task `first` of the run
 *         while ((count = mx_lanes_take(&l, (first + i) % l.n_lanes, longest, &at)))
 *             ...                                    units at .. at + count - 1
 */
#ifndef MX_BASE_LANES_H
#define MX_BASE_LANES_H

#include <stdatomic.h>
#include <stddef.h>

#define MX_LANES_MAX 64 /* more threads share lanes */

struct mx_lanes {
	size_t n, n_lanes;
	struct {
		_Alignas(64) atomic_size_t next; /* unit */
	} lane[MX_LANES_MAX];
};

static inline size_t mx_lane_begin(const struct mx_lanes *l, size_t lane)
{
	return l->n * lane / l->n_lanes;
}

/* Divides n units among threads. With n = 0 there are no lanes. */
static inline void mx_lanes_init(struct mx_lanes *l, size_t n, size_t threads)
{
	l->n = n;
	l->n_lanes = n < threads ? n : threads;
	l->n_lanes = l->n_lanes < MX_LANES_MAX ? l->n_lanes : MX_LANES_MAX;
	for (size_t i = 0; i < l->n_lanes; i++)
		atomic_init(&l->lane[i].next, mx_lane_begin(l, i));
}

/* Takes the next units of a lane, `longest` >= 1 at most; returns their number, 0 if none are left.
 * The last ones halve what is left, so that threads end together. */
static inline size_t mx_lanes_take(struct mx_lanes *l, size_t lane, size_t longest, size_t *at)
{
	const size_t end = mx_lane_begin(l, lane + 1);
	size_t n, next = atomic_load_explicit(&l->lane[lane].next, memory_order_relaxed);
	do {
		if (next >= end)
			return 0;
		n = (end - next + 1) / 2;
		n = n < longest ? n : longest;
	} while (!atomic_compare_exchange_weak_explicit(&l->lane[lane].next, &next, next + n,
	                                                memory_order_relaxed, memory_order_relaxed));
	*at = next;
	return n;
}

#endif
