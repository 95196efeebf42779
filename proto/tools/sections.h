/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with a mark of their own each: a name between two marks, then its arguments as JSON. */
#ifndef MX_PROTO_TOOLS_SECTIONS_H
#define MX_PROTO_TOOLS_SECTIONS_H

#include "proto/tools/impl.h"

struct mx_sections_form {
	const char *call;       /* mark in front of a call */
	const char *header_end; /* between its name and its arguments */
	const char *prefix;     /* in front of the name, NULL = nothing */
	const char
		*header_space;    /* that the templates write around header_end and fence, NULL = none */
	const char *fence;    /* behind the arguments, NULL = nothing */
	const char *call_end; /* mark behind a call */
	const char *end;      /* mark behind all calls */
	bool ids;             /* the name is written as an id: functions.NAME:NUMBER */
};
extern const struct mx_call_reader mx_sections_reader;

/* Mistral's: a list of JSON objects, or a name, an id if there is [CALL_ID], and arguments. */
extern const struct mx_call_reader mx_mistral_reader;

#endif
