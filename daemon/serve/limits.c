/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/limits.h"

#define MINUTE_NS 60e9
/* What a sum of many fractions may lack of a whole number. */
#define ROUNDING 1e-6

/* Returns the level at a time. */
static double level(const struct mx_bucket *b, uint64_t now)
{
	double full = (double)b->per_minute;
	double since = now > b->at_ns ? (double)(now - b->at_ns) : 0;
	double at = b->level + since * full / MINUTE_NS;
	return at < full ? at : full;
}

static void advance(struct mx_bucket *b, uint64_t now)
{
	b->level = level(b, now);
	b->at_ns = now > b->at_ns ? now : b->at_ns;
}

void mx_bucket_set(struct mx_bucket *b, uint64_t per_minute, uint64_t now)
{
	advance(b, now);
	double taken = b->per_minute ? (double)b->per_minute - b->level : 0;
	b->per_minute = per_minute;
	b->level = (double)per_minute - taken;
	b->at_ns = now;
}

bool mx_bucket_take(struct mx_bucket *b, uint64_t n, uint64_t now)
{
	if (!b->per_minute)
		return true;
	advance(b, now);
	if (b->level + ROUNDING < (double)n)
		return false;
	b->level -= (double)n;
	return true;
}

void mx_bucket_charge(struct mx_bucket *b, double n, uint64_t now)
{
	if (!b->per_minute)
		return;
	advance(b, now);
	b->level -= n;
	if (b->level > (double)b->per_minute)
		b->level = (double)b->per_minute;
}

uint64_t mx_bucket_left(const struct mx_bucket *b, uint64_t now)
{
	double at = level(b, now) + ROUNDING;
	return at > 0 ? (uint64_t)at : 0;
}

uint64_t mx_bucket_wait_ns(const struct mx_bucket *b, uint64_t n, uint64_t now)
{
	double missing = (double)n - level(b, now);
	return b->per_minute && missing > ROUNDING
	           ? (uint64_t)(missing * MINUTE_NS / (double)b->per_minute) + 1
	           : 0;
}
