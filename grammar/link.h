/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the automata of the rules together into a grammar. */
#ifndef MX_GRAMMAR_LINK_H
#define MX_GRAMMAR_LINK_H

#include "grammar/automaton.h"
#include "grammar/fsa.h"
#include "grammar/node.h"

/* node_of[i]: the node of rule i, for messages. MX_E_INVALID: a rule is left-recursive. */
mx_status mx_grammar_link(const struct mx_rules *rules, const uint32_t *node_of,
                          const struct mx_fsa *fsas, uint32_t n_rules, struct mx_grammar **out,
                          struct mx_err *err);

#endif
