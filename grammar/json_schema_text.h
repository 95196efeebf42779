/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of JSON texts as nodes of a grammar. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_TEXT_H
#define MX_GRAMMAR_JSON_SCHEMA_TEXT_H

#include "grammar/json_schema.h"
#include "grammar/json_schema_dfa.h"

/* The parts that do not depend on a schema; each is made once and used often. */
struct js_texts {
	struct mx_rules *r;
	bool any_whitespace, no_end_tags;
	uint32_t character;             /* one character of a string; not '<' if no_end_tags */
	uint32_t escape;                /* one that is written as an escape */
	uint32_t string, number, value; /* any of them */
	uint32_t array, object;
	uint32_t space;        /* behind a comma or colon */
	uint32_t around;       /* inside brackets, and in front of commas and colons */
	uint32_t comma, colon; /* with their white space */
	uint32_t empty;
};

void js_texts_open(struct js_texts *t, struct mx_rules *r, const struct mx_json_options *options);

uint32_t js_text_bytes(struct js_texts *t, const char *text);
/* a behind b behind c; c may be 0 for none. */
uint32_t js_text_seq(struct js_texts *t, uint32_t a, uint32_t b, uint32_t c);
/* `inside` between brackets, e.g. "[]". */
uint32_t js_text_brackets(struct js_texts *t, const char *brackets, uint32_t inside);
/* A string of min to max characters. */
uint32_t js_text_string(struct js_texts *t, uint32_t min, uint32_t max);
/* A text that is JSON already. */
uint32_t js_text_json(struct js_texts *t, struct js_base *b, struct js_text text);
/* The members of a set, as strings in quotes, or as they are (numbers). */
uint32_t js_text_dfa(struct js_texts *t, struct js_base *b, const struct js_dfa *d, bool quoted);

#endif
