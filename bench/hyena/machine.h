/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of this folder begin with: a device, and a line about the machine. */
#ifndef MX_BENCH_HYENA_MACHINE_H
#define MX_BENCH_HYENA_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "bench/hyena/conv.h"

struct machine {
	struct mx_device *device;
	size_t memory; /* bytes that may be taken */
	double read;   /* GB/s, as measured by the device's threads */
	double fma;    /* f32 GFLOP/s */
};

/* Opens a device for steps of up to max_rows rows and width max_channels, measures the roofs and
 * prints all of it. gigabytes 0: nine tenths of what is available. */
void machine_open(unsigned threads, double gigabytes, uint32_t max_channels, uint32_t max_rows,
                  uint64_t seed, struct machine *out);
void machine_close(struct machine *m);

/* The largest power of two of positions for which open stays within bytes, at most 2^max_log; the
 * logarithm, 0 if none. `other` bytes are taken besides. */
uint32_t machine_fits(const struct machine *m, const struct conv_ops *ops, struct conv_shape shape,
                      uint32_t max_log, size_t other);

#endif
