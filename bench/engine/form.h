/* SPDX-License-Identifier: Apache-2.0 */
/* A form for the answers of a benchmark: records in JSON, which go on for longer than any answer.
 */
#ifndef MX_BENCH_ENGINE_FORM_H
#define MX_BENCH_ENGINE_FORM_H

#include "daemon/serve/constraint.h"

struct form {
	struct mx_grammar *grammar;
	struct mx_grammar_vocab *vocabulary;
};

/* Reads a vocabulary of bench/grammar/make-vocab.py for a model of n_tokens. Ends the program if
 * that fails. */
struct form form_open(const char *vocabulary, size_t n_tokens);
/* A constraint at the beginning of the form; mx_constraint_free. */
struct mx_constraint *form_constraint(const struct form *f);
void form_close(struct form *f); /* takes a zeroed one */

#endif
