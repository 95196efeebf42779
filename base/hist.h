/* SPDX-License-Identifier: Apache-2.0 */
/* Histogram with fixed bounds, in the form that metrics need. Not thread safe: its owner locks. */
#ifndef MX_BASE_HIST_H
#define MX_BASE_HIST_H

#include <stdint.h>

#define MX_HIST_MAX 40

/* Cumulative counts are made by the reader; count[i] is the number of values <= bound[i] and above
 * the bound before; the last one counts the rest. */
struct mx_hist {
	const double *bounds; /* [n_bounds] ascending, not owned */
	uint32_t n_bounds;
	uint64_t count[MX_HIST_MAX + 1];
	double sum;
};

/* Empties the histogram. n_bounds <= MX_HIST_MAX; the bounds must outlive it. */
void mx_hist_init(struct mx_hist *h, const double *bounds, uint32_t n_bounds);

void mx_hist_add(struct mx_hist *h, double value);

/* Number of values so far. */
uint64_t mx_hist_total(const struct mx_hist *h);

/* Fills bounds with 1, 2, 5, 10, 20, ... up to and including `max`, at most MX_HIST_MAX of them;
 * returns how many (at least one). */
uint32_t mx_hist_bounds_125(double max, double bounds[MX_HIST_MAX]);

#endif
