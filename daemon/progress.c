/* SPDX-License-Identifier: Apache-2.0 */
/* See progress.h. */
#include "daemon/progress.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

/* Seconds in which the weight of an earlier speed falls to 1/e. */
#define MEMORY_S 3.0
/* Seconds before a speed is told. */
#define FIRST_S 0.3

void mx_progress_at(struct mx_progress *p, uint64_t now_ns, uint64_t done, uint64_t all)
{
	if (!p->begin_ns) {
		*p = (struct mx_progress){.begin_ns = now_ns, .last_ns = now_ns, .done = done, .all = all};
		return;
	}
	double s = (double)(now_ns - p->last_ns) * 1e-9, age = (double)(now_ns - p->begin_ns) * 1e-9;
	if (s > 0 && done >= p->done) {
		double now = (double)(done - p->done) / s;
		/* an average over all time at first, then over the last seconds */
		double keep = age < MEMORY_S ? 1 - s / age : exp(-s / MEMORY_S);
		p->rate = keep * p->rate + (1 - keep) * now;
	}
	p->last_ns = now_ns;
	p->done = done;
	p->all = all;
}

static double fraction(const struct mx_progress *p)
{
	return p->all == 0 ? 0 : p->done < p->all ? (double)p->done / (double)p->all : 1;
}

void mx_progress_text(const struct mx_progress *p, char *out, size_t cap)
{
	double all = (double)p->all, done = p->done < p->all ? (double)p->done : all;
	bool known = p->rate > 0 && p->last_ns - p->begin_ns >= (uint64_t)(FIRST_S * 1e9);
	int n = snprintf(out, cap, "%.0f %%, %.1f of %.1f GB", floor(100 * fraction(p)), done * 1e-9,
	                 all * 1e-9);
	if (known && n > 0 && (size_t)n < cap)
		snprintf(out + n, cap - (size_t)n, ", %.2f GB/s, %.0f s left", p->rate * 1e-9,
		         ceil((all - done) / p->rate));
}

void mx_progress_bar(const struct mx_progress *p, unsigned width, char *out, size_t cap)
{
	unsigned full = (unsigned)(fraction(p) * width);
	size_t n = 0;
	if (cap < (size_t)width + 3)
		return;
	out[n++] = '[';
	for (unsigned i = 0; i < width; i++)
		out[n++] = i < full ? '#' : '.';
	out[n++] = ']';
	out[n] = 0;
}
