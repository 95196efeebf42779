/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A constraint for tests of engine and scheduler: which tokens are allowed depends on all tokens
 * that it has accepted, so that one that is lost, or taken twice, changes what follows.
 */
#ifndef MX_TESTS_SET_CONSTRAINT_H
#define MX_TESTS_SET_CONSTRAINT_H

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "device/sampling.h"
#include "engine/constraint.h"

struct set_constraint {
	struct mx_constraint base;
	uint32_t vocab;
	uint32_t one_in;  /* about one token in this many is allowed */
	uint32_t length;  /* tokens after which the text must end; 0 = never */
	int32_t end;      /* that ends it; -1 = nothing does, the set is empty then */
	uint32_t fail_at; /* tokens after which the mask fails; 0 = never */
	uint32_t n;       /* accepted */
	uint64_t digest;  /* of those */
	bool ended;       /* `end` was accepted */
	uint32_t slow_us; /* time that a mask takes */
};

/* The finalizer of MurmurHash3. */
static inline uint64_t set_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

static inline bool set_may_end(const struct set_constraint *s)
{
	return s->length && s->n >= s->length;
}

static inline bool set_allows(const struct set_constraint *s, uint32_t token)
{
	if (s->ended)
		return false;
	if (set_may_end(s) || (s->length && token == (uint32_t)s->end))
		return set_may_end(s) && token == (uint32_t)s->end;
	/* one is always allowed, even if it is `end`'s neighbour */
	uint32_t always = (uint32_t)((s->digest >> 20) % s->vocab);
	if (s->length && always == (uint32_t)s->end)
		always = (always + 1) % s->vocab;
	return token == always || set_mix(s->digest + token) % s->one_in == 0;
}

static inline mx_status set_accept(struct mx_constraint *c, int32_t token, const char **cause)
{
	struct set_constraint *s = (struct set_constraint *)c;
	if (!set_allows(s, (uint32_t)token)) {
		*cause = "a token that was not allowed";
		return MX_E_INTERNAL;
	}
	s->ended = s->length && token == s->end;
	s->digest = set_mix(s->digest ^ ((uint64_t)(uint32_t)token + 1));
	s->n++;
	return MX_OK;
}

static inline mx_status set_mask(struct mx_constraint *c, uint32_t *allowed, const char **cause)
{
	struct set_constraint *s = (struct set_constraint *)c;
	if (s->fail_at && s->n >= s->fail_at) {
		*cause = "too ambiguous";
		return MX_E_LIMIT;
	}
	if (s->slow_us)
		usleep(s->slow_us);
	memset(allowed, 0, mx_mask_words(s->vocab) * sizeof *allowed);
	for (uint32_t t = 0; t < s->vocab; t++)
		if (set_allows(s, t))
			allowed[t / 32] |= 1u << t % 32;
	return MX_OK;
}

static const struct mx_constraint_ops set_constraint_ops = {set_accept, set_mask};

/* Returns a constraint at its beginning. */
static inline struct set_constraint set_constraint(uint32_t vocab, uint32_t seed)
{
	return (struct set_constraint){
		.base = {&set_constraint_ops}, .vocab = vocab, .one_in = 20, .end = -1, .digest = seed};
}

#endif
