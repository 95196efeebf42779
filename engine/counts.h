/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often each token occurs in one sequence, for the sampling penalties: a dense list of the
 * tokens that occur, and an open-addressing hash table into it. Allocated when the sequence is
 * opened; O(1) a token, without allocation, afterwards.
 */
#ifndef MX_ENGINE_COUNTS_H
#define MX_ENGINE_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/sampling.h"

struct mx_counts {
	struct mx_token_count *items; /* [n], in order of first occurrence */
	uint32_t n;
	uint32_t *index; /* [mask + 1] hash table of indices into items, plus 1; 0 = empty */
	uint32_t mask;
};

/* Creates counts of at most max_distinct different tokens. */
mx_status mx_counts_create(uint32_t max_distinct, struct mx_counts *out);
void mx_counts_destroy(struct mx_counts *c); /* takes NULL and zeroed counts */

/* Counts one more occurrence of a token, in the prompt or in the output. */
void mx_counts_add(struct mx_counts *c, int32_t token, bool in_prompt);
/* Takes back the latest count, which was of this token, in the output. */
void mx_counts_take_back(struct mx_counts *c, int32_t token);

#endif
