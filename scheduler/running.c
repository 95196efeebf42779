/* SPDX-License-Identifier: Apache-2.0 */
/* The running set: admitted requests by rank. Engine thread only. */
#include <string.h>

#include "scheduler/internal.h"

static void publish(struct mx_sched *s)
{
	atomic_store_explicit(&s->n_running_shown, s->n_running, memory_order_relaxed);
}

void mx_running_insert(struct mx_sched *s, struct mx_req *r)
{
	uint32_t i = s->n_running++;
	for (; i > 0 && mx_req_before(r, s->running[i - 1]); i--)
		s->running[i] = s->running[i - 1];
	s->running[i] = r;
	publish(s);
}

void mx_running_remove(struct mx_sched *s, const struct mx_req *r)
{
	for (uint32_t i = 0; i < s->n_running; i++)
		if (s->running[i] == r) {
			s->n_running--;
			memmove(&s->running[i], &s->running[i + 1], (s->n_running - i) * sizeof *s->running);
			publish(s);
			return;
		}
}
