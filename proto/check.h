/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of a request's values, for parsers that know more of a value than its struct keeps:
 * the name under which the client sent it, or its digits. On failure each fills *err. */
#ifndef MX_PROTO_CHECK_H
#define MX_PROTO_CHECK_H

#include "proto/request.h"

/* Checks a value of the number `name` ("top_p"), which errors call `shown`. */
mx_status mx_check_number(const char *name, const char *shown, double x, struct mx_api_error *err);
/* Gives the bounds of the integer `name` ("n"). */
void mx_check_bounds(const char *name, int64_t *out_min, int64_t *out_max);
mx_status mx_check_integer(const char *shown, int64_t v, int64_t min, int64_t max,
                           struct mx_api_error *err);
/* Checks a value of logit_bias. */
mx_status mx_check_bias(double x, struct mx_api_error *err);
/* Checks that a list has at most `most` elements; `of`: what they are ("strings"). */
mx_status mx_check_count(const char *name, const char *of, size_t n, size_t most,
                         struct mx_api_error *err);

#endif
