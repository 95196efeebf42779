/* SPDX-License-Identifier: Apache-2.0 */
/* Calls as JSON objects behind a mark: one, several one behind the other, or a list. */
#ifndef MX_PROTO_TOOLS_TAGGED_H
#define MX_PROTO_TOOLS_TAGGED_H

#include "proto/tools/impl.h"

struct mx_tagged_form {
	const char *end;        /* mark behind the calls; NULL: there is none */
	const char *separators; /* that may stand between objects, NULL = "," */
	/* How the templates write calls, which is one of the ways that are read. */
	const char *open, *close; /* behind the first mark, and in front of `end`; NULL = nothing */
	const char *between;      /* calls; NULL: each has marks of its own, on a new line */
	const char *head, *arguments, *tail; /* around a call's name and arguments; NULL = hermes' */
};
#define MX_TAGGED_HEAD      "{\"name\": \""
#define MX_TAGGED_ARGUMENTS "\", \"arguments\": "
#define MX_TAGGED_TAIL      "}"
extern const struct mx_call_reader mx_tagged_reader;

#endif
