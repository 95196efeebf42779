/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a JSON body takes once it is parsed: many times its size, if its values are small
 * ("[1,1,1" takes 36 times as much). One pass over the bytes tells before anything is allocated. */
#ifndef MX_PROTO_PARSE_COST_H
#define MX_PROTO_PARSE_COST_H

#include <stddef.h>
#include <stdint.h>

/* Returns an upper bound of the bytes of heap, without the body itself, that any parser of
 * proto/request.h takes for a body, malformed bodies included. */
uint64_t mx_parse_cost(const char *body, size_t len);

#endif
