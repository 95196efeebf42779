/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do at best, measured: the roofs that benchmarks report against. */
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

/* Does the processor have the instruction? */
bool roof_has(enum roof_kind k);

/* Billions of operations a second (a multiplication and an addition count as two) with all threads
 * of the pool, from registers. */
double roof_arithmetic(struct mx_pool *p, enum roof_kind k);

/* GB/s at which the threads of the pool read `bytes` of memory over and over, each its own part:
 * the best of several passes and ways of reading. */
double roof_read(struct mx_pool *p, const void *data, size_t bytes);

/* `bytes` of bf16 numbers in memory, all normal, touched. NULL if there is no memory. */
void *roof_data(struct mx_pool *p, size_t bytes);

#endif
