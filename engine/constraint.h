/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What restricts the tokens of a sequence, as the engine sees it: a table of functions. The engine
 * knows no grammar; whoever opens a constrained sequence makes the constraint and frees it after
 * the sequence was closed. A constraint belongs to one sequence.
 *
 * Both functions are called while a step runs, between begin and finish, by the engine thread or by
 * one of the workers that make masks, by one thread at a time. They must depend on the tokens that
 * were accepted and on nothing else, must have bounds in time and memory, and must not wait.
 */
#ifndef MX_ENGINE_CONSTRAINT_H
#define MX_ENGINE_CONSTRAINT_H

#include <stdint.h>

#include "base/status.h"

struct mx_constraint;

/* On failure *cause says why, for people; it must be valid as long as the constraint. The sequence
 * then fails with the status, and neither function is called again. */
struct mx_constraint_ops {
	/* Takes the next token of the output: one that the last mask had. */
	mx_status (*accept)(struct mx_constraint *c, int32_t token, const char **cause);
	/* Writes the set of tokens that may come next, ends of the text among them, to
	 * allowed[mx_mask_words(vocab)] (device/sampling.h). The empty set: the text is complete, and
	 * nothing may follow. May be called several times between two calls of accept. */
	mx_status (*mask)(struct mx_constraint *c, uint32_t *allowed, const char **cause);
};

/* First member of every constraint. */
struct mx_constraint {
	const struct mx_constraint_ops *ops;
};

#endif
