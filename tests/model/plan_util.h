/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the layer plan: the plan of a config.json with some keys changed. */
#ifndef MX_TESTS_PLAN_UTIL_H
#define MX_TESTS_PLAN_UTIL_H

#include "model/plan.h"

/* Reads the plan of the JSON text `base` with the keys of `changes` set, in nested objects too.
 * The value "-" removes a key. generation: text of generation_config.json, or NULL. */
mx_status plan_parse(const char *base, const char *changes, const char *generation,
                     struct mx_plan **out, struct mx_err *err);
/* Returns the plan without generation_config.json. Fails the running test if there is none. */
struct mx_plan *plan_of(const char *base, const char *changes);

/* Returns the parameters of the first mixer of a layer. */
const struct mx_params *params_of(const struct mx_plan *p, uint32_t layer);
/* Returns one of them, an integer or a boolean. Fails the running test if there is none. */
int64_t get_int(const struct mx_plan *p, uint32_t layer, const char *name);

/* Fails the running test unless the config is refused with this status and this part of the
 * message. */
struct refused {
	const char *changes;
	mx_status status;
	const char *message;
};

void check_refused(const char *base, const struct refused *cases, size_t n);

#endif
