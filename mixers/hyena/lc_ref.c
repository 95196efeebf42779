/* SPDX-License-Identifier: Apache-2.0 */
#include "mixers/hyena/lc_ref.h"

#include <math.h>

/* sum over s < n of h[-s] z[s] */
static void sum(size_t n, const float *h, const float *z, double *y, double *size)
{
	for (size_t c = 0; c < LC_LANES; c++) {
		y[c] = size[c] = 0;
		for (size_t s = 0; s < n; s++) {
			double product = (double)*(h + c - s * LC_LANES) * (double)z[s * LC_LANES + c];
			y[c] += product;
			size[c] += fabs(product);
		}
	}
}

void lc_ref_tile(uint32_t n, const float *lags, const float *z, uint32_t t, double y[LC_LANES],
                 double size[LC_LANES])
{
	sum(n, lags + ((size_t)n - 1 + t) * LC_LANES, z, y, size);
}

void lc_ref_window(const float *h, const float *z, uint32_t past, uint32_t t, double y[LC_LANES],
                   double size[LC_LANES])
{
	size_t lag = (size_t)past + t;
	sum(lag + 1, h + lag * LC_LANES, z - (size_t)past * LC_LANES, y, size);
}

void lc_ref_conv(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y)
{
	for (size_t t = 0; t < n; t++) {
		y[t] = 0;
		for (size_t s = 0; s <= t; s++)
			y[t] += (double)h[(t - s) * ldh] * (double)z[s * ldz];
	}
}

void lc_ref_conv_eager(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y)
{
	for (size_t t = 0; t < n; t++)
		y[t] = 0;
	for (size_t s = 0; s < n; s++)
		for (size_t t = s; t < n; t++)
			y[t] += (double)h[(t - s) * ldh] * (double)z[s * ldz];
}
