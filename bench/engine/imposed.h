/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source of drafts that imposes acceptance, for benchmarks: random weights accept nothing.
 * Another source proposes at its full cost (a draft model), or none; then each draft is replaced by
 * the token that will be drawn, with a given probability, or by another one.
 */
#ifndef MX_BENCH_IMPOSED_H
#define MX_BENCH_IMPOSED_H

#include "engine/core.h"

struct imposed {
	struct mx_draft_source base;
	struct mx_draft_source *inner; /* NULL = drafts cost nothing */
	uint32_t vocab;
	double acceptance;
	uint64_t random; /* state of the generator */
	/* Returns the output [*out_n] that the sequence will have. */
	const int32_t *(*answer)(const struct mx_seq *s, uint32_t *out_n);
};

/* Puts *x, whose last four fields the caller has filled, in the place of the engine's source; that
 * one is asked first if keep_inner. Before any sequence is open. */
void impose(struct imposed *x, struct mx_engine *e, bool keep_inner);

#endif
