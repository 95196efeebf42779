/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the roofs of this machine (peak arithmetic and memory bandwidth) that benchmarks compare
 * with. */
#ifndef MX_BENCH_ROOF_H
#define MX_BENCH_ROOF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/pool.h"

enum roof_kind {
	ROOF_F32_FMA,
	ROOF_BF16_DOT,
	ROOF_F16_FMA,
	ROOF_I8_DOT,
	ROOF_BF16_TILE,
	ROOF_KINDS
};

const char *roof_name(enum roof_kind k);

/* True if the processor has the instruction. */
bool roof_has(enum roof_kind k);

/* Returns billions of operations a second (a multiply-add counts as two) with all threads of the
 * pool, on registers. */
double roof_arithmetic(struct mx_pool *p, enum roof_kind k);

/* Returns the GB/s at which the threads of the pool read `bytes` of memory repeatedly, each its own
 * part: the best of several passes and read patterns. */
double roof_read(struct mx_pool *p, const void *data, size_t bytes);

/* Allocates `bytes` of normal bf16 numbers, all written. NULL if there is no memory. */
void *roof_data(struct mx_pool *p, size_t bytes);

#endif
