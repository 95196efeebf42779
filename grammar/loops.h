/* SPDX-License-Identifier: Apache-2.0 */
/* States in which long runs of bytes change nothing that matters, as inside a JSON string. */
#ifndef MX_GRAMMAR_LOOPS_H
#define MX_GRAMMAR_LOOPS_H

#include "grammar/automaton.h"

/* Fills loop and budget of all states. */
mx_status mx_grammar_find_loops(struct mx_grammar *g);

#endif
