/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON Schema (draft 2020-12) as a grammar: the texts of the values that obey a schema.
 *
 * What is enforced is enforced exactly: no text of the grammar is a value that the schema refuses.
 * What cannot be is refused with its JSON pointer, never ignored. Annotations (title, default,
 * examples ...) and unknown keywords are ignored, as JSON Schema asks; keywords of validation that
 * are not supported are not ignored.
 *
 * A value has many texts; the grammar has these.
 *
 * Properties stand in the order of the schema: those of `properties`, then further names of
 * `required`, then additional ones, whose names never are one of the former. Optional ones may be
 * left out. Additional names may repeat; each value is valid by itself, and maxProperties counts
 * all of them.
 *
 * One space may follow a comma and a colon, and there is no other white space; see any_whitespace.
 *
 * Strings without constraints, or with minLength and maxLength only, may have any escape; other
 * strings and names have only the escapes that JSON demands. Surrogates come in pairs.
 *
 * Integers have no fraction and no exponent. Other numbers with constraints have no exponent, and
 * at most 15 digits if they have a fraction, so that a reader with double precision finds them
 * valid too. Numbers without constraints have exponents up to 299.
 *
 * Formats that are enforced: date, date-time, time (without leap seconds), duration, email,
 * hostname (without punycode; more than three labels have 20 characters each at most), ipv4, ipv6,
 * uuid, uri, uri-reference, iri, iri-reference, json-pointer, relative-json-pointer. idn-email,
 * idn-hostname, uri-template and regex are refused, others are annotations.
 *
 * `oneOf`, `not`, `if` and `contains` are exact where the values are scalars. For arrays and
 * objects the complement is needed of what a schema says of them: it exists for properties,
 * required, min- and maxProperties, items, prefixItems, min- and maxItems, contains, enum and
 * const, and not for additionalProperties, patternProperties, propertyNames and uniqueItems.
 * Alternatives of oneOf that share no value (a property with another const, say) need none.
 * unevaluatedProperties and unevaluatedItems are exact too, and have no complement.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_H
#define MX_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "grammar/rules.h"

struct mx_json_options {
	/* Around every part of an array or object there may be a new line and 64 spaces or tabs. */
	bool any_whitespace;
	/* "</" stands nowhere in a text, so that an end tag behind a value is the first one. Strings
	 * without constraints have no slash behind '<'; other strings and names have '<' as its escape,
	 * or, with minLength and maxLength only, not as itself. */
	bool no_end_tags;
	/* Objects for which the schema has `properties`, and neither says what other properties are nor
	 * how many there must be, have only those that it names. They are among the valid ones, and the
	 * ones that are meant: a function fails that gets an argument which it does not know. */
	bool closed;
};

/*
 * The members of an object in a notation of its own, as formats of tool calls write arguments:
 * <parameter=key>value</parameter>, or key=value. They stand in the order of the schema, and only
 * those whose names the schema has. Values are JSON, or strings without quotes.
 */
enum mx_json_member {
	MX_JSON_MEMBER,     /* its value is written as JSON */
	MX_JSON_PLAIN,      /* its value is a string, and is written without quotes */
	MX_JSON_UNWRITABLE, /* the notation has no way to write that name */
};
struct mx_json_members {
	/* Returns how a member of that name is written. */
	enum mx_json_member (*kind)(const void *arg, const char *name);
	/* Returns the node of a member, from that of its value. */
	uint32_t (*write)(const void *arg, struct mx_rules *r, const char *name, bool plain,
	                  uint32_t value);
	const void *arg;
	const char *between; /* members */
	/* The mark that ends strings without quotes; it begins with a character that it has once. A
	 * string in which it stands cannot be written and is left out. NULL: no member is
	 * MX_JSON_PLAIN. */
	const char *plain_end;
	struct mx_json_options options; /* of values in JSON */
};

/* Adds the values that obey `schema` to the rules; returns their node. options: NULL for the
 * defaults. Returns 0 and fills *err if the schema is wrong or no value obeys it (MX_E_INVALID), if
 * it has what cannot be enforced (MX_E_UNSUPPORTED), or takes too much to enforce (MX_E_LIMIT);
 * `where` is a JSON pointer, "#" for the root. The rules have then failed. Large integers must have
 * been read with JSON_DECODE_INT_AS_REAL or fit 64 bits. */
uint32_t mx_rules_json_schema(struct mx_rules *r, const json_t *schema,
                              const struct mx_json_options *options, struct mx_err *err);
/* As mx_rules_json_schema, for the members of an object in a notation of its own. */
uint32_t mx_rules_json_members(struct mx_rules *r, const json_t *schema,
                               const struct mx_json_members *members, struct mx_err *err);
/* Any JSON value, and any JSON object. */
uint32_t mx_rules_json_value(struct mx_rules *r, const struct mx_json_options *options);
uint32_t mx_rules_json_object(struct mx_rules *r, const struct mx_json_options *options);
#endif
