/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the ways to compute a convolution agree, and that estimates agree with full runs. */
#ifndef MX_BENCH_HYENA_CHECK_H
#define MX_BENCH_HYENA_CHECK_H

#include <stdbool.h>

#include "bench/mixers/hyena/conv.h"

/* Runs each of n ways over 1024 positions of a small shape and prints the largest error of its
 * outputs against the sum in double precision. Ends the program if an error is larger than
 * rounding explains. */
void check_outputs(const struct conv_ops *const *ways, size_t n, uint64_t seed,
                   struct mx_device *d);

/* Prints for each of n ways the time of 2^log positions and the estimate from samples. Returns
 * true if all estimates are within a quarter of the time; if not, prints that too. */
bool check_samples(const struct conv_ops *const *ways, size_t n, struct conv_shape shape,
                   uint32_t log, struct mx_device *d);

#endif
