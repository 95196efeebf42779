/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds the reasoning of one choice: a constraint (engine/constraint.h) that allows all tokens, or
 * those that another constraint allows, until the reasoning has as many tokens as it may. Then the
 * mark that ends reasoning is the only text that may come, and the answer follows it.
 *
 * Reasoning stands between two marks. It begins where the output begins, or the prompt has begun
 * it. With channels (gpt-oss) it may also begin again behind its end; the bound is that of all.
 */
#ifndef MX_DAEMON_SERVE_THINK_LIMIT_H
#define MX_DAEMON_SERVE_THINK_LIMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/constraint.h"
#include "grammar/grammar.h"

#define MX_THINK_MARK 64 /* most bytes of a mark, with its end */

/* What the choices of a request share. */
struct mx_think_rules {
	const struct mx_grammar_vocab *vocab; /* with the marks (mx_served_vocabulary) */
	const char *begin, *end;
	bool again;          /* reasoning may begin anywhere, and more than once */
	bool open;           /* the prompt has begun it */
	uint32_t budget;     /* most tokens of reasoning, marks aside */
	const int32_t *last; /* [n_last] the tokens that write `end` */
	size_t n_last;
};

/* Creates a limit at the beginning of the output. The rules and `inner`, which may be NULL, must
 * outlive it. If `inner` does not allow the mark where it is due, `inner` decides. MX_E_NOMEM. */
mx_status mx_think_limit_new(const struct mx_think_rules *rules, struct mx_constraint *inner,
                             struct mx_constraint **out);
void mx_think_limit_free(struct mx_constraint *c); /* takes NULL */

#endif
