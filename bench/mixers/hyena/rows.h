/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of the ways without large tiles, on rows of LC_LANES floats, for each
 * instruction set. */
#ifndef MX_BENCH_HYENA_ROWS_H
#define MX_BENCH_HYENA_ROWS_H

#include <stdint.h>

#include "device/device.h"

struct rows_kernels {
	/* sum[row] += h[0] z[0] + h[-1] z[1] + ... : n rows of each, those of h backwards. */
	void (*dot)(const float *h, const float *z, uint32_t n, float *sum);

	/* y[i] += h[i] z for n rows; z is one. */
	void (*axpy)(const float *h, const float *z, uint32_t n, float *y);
};

const struct rows_kernels *rows_kernels_find(enum mx_isa isa);

#endif
