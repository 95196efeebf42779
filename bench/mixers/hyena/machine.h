/* SPDX-License-Identifier: Apache-2.0 */
/* The start of every benchmark of this folder: it opens a device and prints a line about the
 * machine. */
#ifndef MX_BENCH_HYENA_MACHINE_H
#define MX_BENCH_HYENA_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "bench/mixers/hyena/conv.h"
#include "bench/mixers/hyena/options.h"

/* Roofs measured with as many threads as the device has. */
struct roofs {
	double read; /* GB/s */
	double fma;  /* f32 GFLOP/s */
};

struct machine {
	struct mx_device *device;
	size_t memory;      /* bytes that may be taken */
	struct roofs roofs; /* at the start */
};

/* Measures the roofs (for some tenths of a second, with 512 MiB) and raises those of r that are
 * lower: the machine is not always equally fast. */
void machine_roofs(const struct machine *m, struct roofs *r);

/* Opens a device for steps of up to max_rows rows and width max_channels, with the threads and
 * memory of the options, measures the roofs and prints all of it. */
void machine_open(const struct options *o, uint32_t max_channels, uint32_t max_rows,
                  struct machine *out);
void machine_close(struct machine *m);

/* Returns the logarithm of the largest power of two of positions, at most 2^max_log, for which
 * open takes no more than `bytes` less `other`; 0 if there is none. */
uint32_t machine_fits(const struct machine *m, const struct conv_ops *ops, struct conv_shape shape,
                      uint32_t max_log, size_t other);

#endif
