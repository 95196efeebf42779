/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that a constrained sequence may sample next. */
#ifndef MX_ENGINE_MASK_H
#define MX_ENGINE_MASK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct mx_seq;

struct mx_mask {
	uint32_t *allowed; /* [mx_mask_words(vocab)]; NULL = the sequence is not constrained */
	uint32_t position; /* of the token that it is for; 0 = none was made yet */
	uint32_t accepted; /* tokens of the output that the constraint has taken */
	bool complete;     /* nothing may follow: no token is to be sampled */
	mx_status status;  /* not MX_OK: the constraint has failed, for `cause` */
	const char *cause;
};

/* Makes the mask for the next token of a constrained sequence, unless it is there already. Tokens
 * that are banned until min_tokens (struct mx_seq_params.stop) are not in it, but if the constraint
 * allows nothing else, they are: a text that can only end ends. */
void mx_mask_make(struct mx_seq *s, uint32_t vocab);

#endif
