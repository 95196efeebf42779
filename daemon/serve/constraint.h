/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constrains the output of one choice by a grammar: what the engine asks (engine/constraint.h),
 * answered by a matcher.
 *
 * Ends of the text are allowed where the grammar may end: the model's EOS ids, and of the request's
 * stop_token_ids those that have no text; the others are text, which the grammar allows or not.
 * With ignore_eos they are allowed only where the grammar allows nothing else, for a text must end
 * there.
 */
#ifndef MX_DAEMON_SERVE_CONSTRAINT_H
#define MX_DAEMON_SERVE_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/constraint.h"
#include "grammar/matcher.h"

/* Which tokens end a text. */
struct mx_constraint_ends {
	const int32_t *ids; /* [n] must outlive the constraint */
	size_t n;
	bool late; /* only where nothing else is allowed */
};

/* Creates a constraint that stands at the beginning of the grammar, whose end tokens the vocabulary
 * does not know. MX_E_NOMEM. */
mx_status mx_constraint_new(struct mx_grammar *g, struct mx_grammar_vocab *v,
                            const struct mx_constraint_ends *ends, struct mx_constraint **out);
void mx_constraint_free(struct mx_constraint *c); /* takes NULL */

#endif
