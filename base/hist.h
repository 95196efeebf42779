/* SPDX-License-Identifier: Apache-2.0 */
/* Histogram with fixed bounds, in the form of a Prometheus metric. Not thread safe: the owner
 * locks.
 */
#ifndef MX_BASE_HIST_H
#define MX_BASE_HIST_H

#include <stdint.h>

#define MX_HIST_MAX 40

/* count[i] is the number of values in (bounds[i - 1], bounds[i]]; the last entry counts values
 * above all bounds. Whoever prints the histogram makes the counts cumulative. */
struct mx_hist {
	const double *bounds; /* [n_bounds] ascending, not owned */
	uint32_t n_bounds;
	uint64_t count[MX_HIST_MAX + 1];
	double sum;
};

/* Sets the bounds and zeroes all counts. n_bounds <= MX_HIST_MAX; `bounds` must outlive h. */
void mx_hist_init(struct mx_hist *h, const double *bounds, uint32_t n_bounds);

void mx_hist_add(struct mx_hist *h, double value);

/* Returns the number of values added so far. */
uint64_t mx_hist_total(const struct mx_hist *h);

/* Fills bounds with 1, 2, 5, 10, 20, ... up to and including `max`, at most MX_HIST_MAX of them.
 * Returns their number (at least one). */
uint32_t mx_hist_bounds_125(double max, double bounds[MX_HIST_MAX]);

#endif
