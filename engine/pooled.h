/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sequence with pooling has of its prompt so far. Rows are added in the order of their
 * positions and summed in f64, so that the result does not depend on how the prompt was cut into
 * steps.
 *
 * For the engine thread.
 */
#ifndef MX_ENGINE_POOLED_H
#define MX_ENGINE_POOLED_H

#include "engine/engine.h"

struct mx_pooled {
	enum mx_pooling kind;
	uint32_t n;    /* elements of the vector */
	uint32_t rows; /* that were added to the sum */
	double *sum;   /* [n] of MX_POOLING_MEAN, else NULL */
	float *vector; /* [n] */
};

/* Makes room for the vector of a sequence; nothing without pooling. `width`: elements of a hidden
 * state. Fails with MX_E_NOMEM. */
mx_status mx_pooled_create(const struct mx_seq_params *params, uint32_t width,
                           struct mx_pooled *out);
void mx_pooled_destroy(struct mx_pooled *p); /* takes zeroed ones */

/* Returns the first of positions first .. first + n - 1 whose row is needed, for a prompt of
 * n_prompt tokens; first + n if none is. All that follow it are needed too. */
uint32_t mx_pooled_from(const struct mx_pooled *p, uint32_t first, uint32_t n, uint32_t n_prompt);

/* Adds the hidden state [n] of a position. Position 0 begins anew: the sequence may have been
 * preempted. Not for MX_POOLING_TOKENS, whose vector the engine writes. */
void mx_pooled_add(struct mx_pooled *p, uint32_t pos, const float *row);

/* Returns the vector, after the last position. */
const float *mx_pooled_end(struct mx_pooled *p);

#endif
