/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes become rules of their own, with automata that are called, and which are written out
 * where they are used: every cycle needs a rule, and what is large and used more than once is
 * shared as one.
 */
#ifndef MX_GRAMMAR_OUTLINE_H
#define MX_GRAMMAR_OUTLINE_H

#include "grammar/node.h"

/* Sets outlined[i], for all of r->n_nodes nodes, to 1 for those. MX_E_NOMEM, or MX_E_INVALID for a
 * reference without definition. */
mx_status mx_grammar_outline(const struct mx_rules *r, uint32_t root, uint8_t *outlined,
                             struct mx_err *err);

#endif
