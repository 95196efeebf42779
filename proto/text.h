/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MX_PROTO_TEXT_H
#define MX_PROTO_TEXT_H

#include <stddef.h>

/* A text of a request. */
struct mx_api_text {
	const char *s; /* may contain NUL bytes; NULL = absent */
	size_t len;
};

#endif
