/* SPDX-License-Identifier: Apache-2.0 */
/* Do the ways to compare agree, and the estimates with full runs? */
#ifndef MX_BENCH_HYENA_CHECK_H
#define MX_BENCH_HYENA_CHECK_H

#include <stdbool.h>

#include "bench/mixers/hyena/conv.h"

/* Runs each of n ways over 1024 positions of a small shape and prints how far its outputs are from
 * the sum in double precision. Ends the program if one is further than rounding explains. */
void check_outputs(const struct conv_ops *const *ways, size_t n, uint64_t seed,
                   struct mx_device *d);

/* Prints for each of n ways what 2^log positions took and what the samples come to. Returns whether
 * all are within a quarter of it; if not, says so below. */
bool check_samples(const struct conv_ops *const *ways, size_t n, struct conv_shape shape,
                   uint32_t log, struct mx_device *d);

#endif
