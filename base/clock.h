/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic and wall time in nanoseconds. */
#ifndef MX_BASE_CLOCK_H
#define MX_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define MX_NS_PER_S 1000000000ull

/* CLOCK_MONOTONIC in nanoseconds: for durations. */
static inline uint64_t mx_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * MX_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* CLOCK_REALTIME in nanoseconds: for timestamps that people read. */
static inline uint64_t mx_wall_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * MX_NS_PER_S + (uint64_t)t.tv_nsec;
}

#endif
