/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose parameters are elements: <parameter=key>value</parameter>, and the like. */
#ifndef MX_PROTO_TOOLS_XML_H
#define MX_PROTO_TOOLS_XML_H

#include "proto/tools/impl.h"

struct mx_xml_form {
	const char *end; /* mark behind the calls */
	const char
		*call; /* in front of a name; NULL: the name comes at once, up to a line's end or tag */
	const char *call_name_end; /* behind it */
	const char *call_end;      /* behind a call; NULL: `end` is */
	const char *parameter;     /* in front of a key */
	const char *key_end;       /* behind it */
	const char *string_end;    /* behind the key of what is a string, NULL = nothing says so */
	const char *value;         /* in front of a value, NULL: behind the key */
	const char *value_end;     /* behind it */
	bool lines;                /* a value has lines of its own: a line's end on either side */
};
extern const struct mx_call_reader mx_xml_reader;

#endif
