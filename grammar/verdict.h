/* SPDX-License-Identifier: Apache-2.0 */
/* What a state of a grammar says of the strings of a trie (cache.h: struct mx_verdict). */
#ifndef MX_GRAMMAR_VERDICT_H
#define MX_GRAMMAR_VERDICT_H

#include "grammar/automaton.h"
#include "grammar/vocab.h"

/* Computes the verdict of a state on the rest of `parent`, or, if that is NULL, on the whole
 * vocabulary. That the rule may end before the first byte is not looked at. work: elementary steps;
 * what was used is taken off. */
mx_status mx_verdict_make(const struct mx_grammar *g, struct mx_grammar_vocab *v, uint32_t state,
                          const struct mx_verdict *parent, size_t *work, struct mx_verdict **out);

#endif
