/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers for tests: xorshift64* (Vigna 2016), small, seeded, and good enough to drive a
 * test. */
#ifndef MX_TESTS_RNG_H
#define MX_TESTS_RNG_H

#include <stdint.h>

struct rng {
	uint64_t state; /* not 0 */
};

static inline uint32_t rng_next(struct rng *g)
{
	g->state ^= g->state >> 12;
	g->state ^= g->state << 25;
	g->state ^= g->state >> 27;
	return (uint32_t)(g->state * 0x2545f4914f6cdd1dull >> 32);
}

/* 0 .. n - 1 */
static inline uint32_t rng_below(struct rng *g, uint32_t n)
{
	return (uint32_t)((uint64_t)rng_next(g) * n >> 32);
}

/* [0, 1) */
static inline float rng_unit(struct rng *g)
{
	return (float)(rng_next(g) >> 8) * 0x1p-24f;
}

/* Approximately normal, with variance 1. */
static inline float rng_normal(struct rng *g)
{
	double sum = 0;
	for (int i = 0; i < 12; i++)
		sum += rng_next(g) * 0x1p-32;
	return (float)(sum - 6);
}

#endif
