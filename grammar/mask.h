/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens may follow a set of configurations. */
#ifndef MX_GRAMMAR_MASK_H
#define MX_GRAMMAR_MASK_H

#include "grammar/step.h"
#include "grammar/vocab.h"

/* Sets the bits of the tokens that may follow; the others are left. End tokens are not looked at.
 */
mx_status mx_mask(struct mx_stepper *s, struct mx_grammar_vocab *v, const struct mx_config *in,
                  uint32_t n, uint32_t *bits);

#endif
