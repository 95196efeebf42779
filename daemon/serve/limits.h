/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token bucket: so much a minute, of which a whole minute's worth may be taken at
 * once. So in no time t more is taken than (1 + t / 1 min) minutes' worth, but for
 * what mx_bucket_charge took beyond the level: that is a debt, which is paid before
 * anything else is given.
 *
 * Pure: the caller says what time it is (by mx_now_ns) and locks.
 */
#ifndef MX_DAEMON_SERVE_LIMITS_H
#define MX_DAEMON_SERVE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

struct mx_bucket {
	uint64_t per_minute; /* 0 = no limit */
	double level;        /* at at_ns; below 0 = a debt */
	uint64_t at_ns;
};

/* Changes the limit. A bucket without one was full; what was taken stays taken. */
void mx_bucket_set(struct mx_bucket *b, uint64_t per_minute, uint64_t now_ns);
/* Takes n if there are as many. */
bool mx_bucket_take(struct mx_bucket *b, uint64_t n, uint64_t now_ns);
/* Takes n, though there may be less; n < 0 gives back, up to a full bucket. */
void mx_bucket_charge(struct mx_bucket *b, double n, uint64_t now_ns);

/* Returns what can be taken now, rounded down; 0 if there is a debt. */
uint64_t mx_bucket_left(const struct mx_bucket *b, uint64_t now_ns);
/* Returns the time until n can be taken; n is at most per_minute. */
uint64_t mx_bucket_wait_ns(const struct mx_bucket *b, uint64_t n, uint64_t now_ns);

#endif
