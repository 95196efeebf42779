/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of mixd as text for people, on standard output. */
#ifndef MX_TOOLS_MIXCTL_SHOW_H
#define MX_TOOLS_MIXCTL_SHOW_H

#include <jansson.h>
#include <stdbool.h>

void mixctl_show_status(const json_t *status);
void mixctl_show_models(const json_t *status);
void mixctl_show_requests(const json_t *requests);
void mixctl_show_reload(const json_t *result);
/* Shows what happened between two answers to `status`, or since the start if `before` is NULL. */
void mixctl_show_top(const json_t *before, const json_t *now);
/* Returns the same as a new object: rates and gaps by model. */
json_t *mixctl_top(const json_t *before, const json_t *now);

#endif
