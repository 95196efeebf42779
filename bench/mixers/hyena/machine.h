/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of this folder begin with: a device, and a line about the machine. */
#ifndef MX_BENCH_HYENA_MACHINE_H
#define MX_BENCH_HYENA_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "bench/mixers/hyena/conv.h"
#include "bench/mixers/hyena/options.h"

/* As measured with as many threads as the device has. */
struct roofs {
	double read; /* GB/s */
	double fma;  /* f32 GFLOP/s */
};

struct machine {
	struct mx_device *device;
	size_t memory;      /* bytes that may be taken */
	struct roofs roofs; /* at the start */
};

/* Measures the roofs (some tenths of a second, 512 MiB for as long) and raises those of r that are
 * lower: the machine is not always equally fast. */
void machine_roofs(const struct machine *m, struct roofs *r);

/* Opens a device for steps of up to max_rows rows and width max_channels, with the threads and
 * memory of the options, measures the roofs and prints all of it. */
void machine_open(const struct options *o, uint32_t max_channels, uint32_t max_rows,
                  struct machine *out);
void machine_close(struct machine *m);

/* The largest power of two of positions for which open stays within bytes, at most 2^max_log; the
 * logarithm, 0 if none. `other` bytes are taken besides. */
uint32_t machine_fits(const struct machine *m, const struct conv_ops *ops, struct conv_shape shape,
                      uint32_t max_log, size_t other);

#endif
