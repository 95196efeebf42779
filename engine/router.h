/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a token's experts. Pure functions. */
#ifndef MX_ENGINE_ROUTER_H
#define MX_ENGINE_ROUTER_H

#include "engine/experts.h"
#include "model/plan.h"

/* Fills out[rule->chosen] with a token's experts and the factors of their outputs, the best expert
 * first; of equal ones the lower number comes first. The experts are different ones even if logits
 * are NaN. logits [n] are overwritten; correction [n] may be NULL. */
void mx_router_choose(const struct mx_router_rule *rule, const float *correction, uint32_t n,
                      float *logits, struct mx_expert_link *out);

#endif
