/* SPDX-License-Identifier: Apache-2.0 */
/* Calls as a program writes them: f(a=1, b="x"), in a list or one behind the other; and Gemma's
 * call:f{a:1}. */
#ifndef MX_PROTO_TOOLS_PYTHONIC_H
#define MX_PROTO_TOOLS_PYTHONIC_H

#include "proto/tools/impl.h"

struct mx_pythonic_form {
	const char *end;    /* mark behind the calls, NULL = none */
	const char *prefix; /* in front of a name; NULL: Python's notation, else Gemma's */
	const char *quote;  /* of strings, in Gemma's */
};
extern const struct mx_call_reader mx_pythonic_reader;

#endif
