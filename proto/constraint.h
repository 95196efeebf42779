/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says of the form of its output. */
#ifndef MX_PROTO_CONSTRAINT_H
#define MX_PROTO_CONSTRAINT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/text.h"

#define MX_API_MAX_ALTERNATIVES 4096 /* texts of a choice */

enum mx_constraint_kind {
	MX_CONSTRAINT_NONE = 0,
	MX_CONSTRAINT_JSON_OBJECT, /* any JSON object */
	MX_CONSTRAINT_JSON_SCHEMA, /* a JSON value that a schema describes */
	MX_CONSTRAINT_REGEX,       /* a text that a regular expression matches as a whole */
	MX_CONSTRAINT_CHOICE,      /* one of several texts */
	MX_CONSTRAINT_GRAMMAR,     /* a text of a grammar in GBNF, llama.cpp's form */
};

struct mx_api_constraint {
	enum mx_constraint_kind kind;
	const char *field; /* the field that says it, for errors: "structured_outputs.regex" */
	/* JSON_SCHEMA: the schema. If NULL, `text` is the JSON of it, which nobody has parsed yet. */
	const json_t *schema;
	struct mx_api_text text;           /* of a regular expression, grammar or schema */
	const struct mx_api_text *choices; /* [n_choices] of a choice */
	uint32_t n_choices;
};

#endif
