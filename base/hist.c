/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hist.h"

#include <string.h>

void mx_hist_init(struct mx_hist *h, const double *bounds, uint32_t n_bounds)
{
	memset(h, 0, sizeof *h);
	h->bounds = bounds;
	h->n_bounds = n_bounds;
}

void mx_hist_add(struct mx_hist *h, double value)
{
	uint32_t lo = 0, hi = h->n_bounds; /* first bound >= value lies in [lo, hi] */
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (value <= h->bounds[mid])
			hi = mid;
		else
			lo = mid + 1;
	}
	h->count[lo]++;
	h->sum += value;
}

uint64_t mx_hist_total(const struct mx_hist *h)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i <= h->n_bounds; i++)
		n += h->count[i];
	return n;
}

uint32_t mx_hist_bounds_125(double max, double bounds[MX_HIST_MAX])
{
	static const double step[] = {1, 2, 5};
	uint32_t n = 0;
	for (double decade = 1; n < MX_HIST_MAX; decade *= 10)
		for (int i = 0; i < 3 && n < MX_HIST_MAX; i++) {
			if (n && step[i] * decade > max)
				return n;
			bounds[n++] = step[i] * decade;
		}
	return n;
}
