/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of the fields that requests may have, one an API (fields.c is OpenAI's).
 *
 * A field that the API, or another server of it, documents is in one of three
 * classes:
 *
 * - read: a parser looks at it;
 * - ignored: no value of it changes what the client gets;
 * - refused: a value asks for what this server does not do. Neutral values, which
 *   clients send as defaults, are accepted.
 *
 * Everything else is unknown. null always means "absent". Read fields come first:
 * they are the most frequent, and a search is linear.
 */
#ifndef MX_PROTO_FIELDS_H
#define MX_PROTO_FIELDS_H

#include "proto/request.h"

/* Neutral values. */
enum {
	MX_NEUTRAL_NO = 1,     /* false */
	MX_NEUTRAL_YES = 2,    /* true */
	MX_NEUTRAL_ZERO = 4,   /* 0 */
	MX_NEUTRAL_ONE = 8,    /* 1 */
	MX_NEUTRAL_MINUS = 16, /* -1 */
	MX_NEUTRAL_NONE = 32,  /* an empty string, list or object */
};

enum mx_field_class { MX_FIELD_READ, MX_FIELD_IGNORED, MX_FIELD_REFUSED };

struct mx_field {
	const char *name;
	unsigned routes; /* on which the name has this meaning */
	enum mx_field_class class;
	unsigned neutral;
	const char *remedy; /* of refused fields: the end of "'x' is not supported: ..." */
	const char *word;   /* another neutral value: this string, or a list of it alone; may be NULL */
};

#define MX_READ(name, routes)                                                                      \
	{                                                                                              \
		name, routes, MX_FIELD_READ, 0, NULL, NULL                                                 \
	}
#define MX_IGNORED(name, routes)                                                                   \
	{                                                                                              \
		name, routes, MX_FIELD_IGNORED, 0, NULL, NULL                                              \
	}
#define MX_REFUSED(name, routes, neutral, remedy)                                                  \
	{                                                                                              \
		name, routes, MX_FIELD_REFUSED, neutral, remedy, NULL                                      \
	}
#define MX_REFUSED_BUT(name, routes, neutral, word, remedy)                                        \
	{                                                                                              \
		name, routes, MX_FIELD_REFUSED, neutral, remedy, word                                      \
	}

struct mx_field_table {
	const struct mx_field *fields; /* [n] */
	size_t n;
};
/* Most fields of a table. */
#define MX_FIELDS_MAX 512

/* Checks the names of an object's members, which are those of a route of the table. Fails with a
 * 400 that says what to do instead for a refused field, and with one that has the closest name for
 * an unknown one, unless `unknown` allows these. `path` stands before the names in messages. A
 * member that `reader` (may be NULL) knows is not looked at. */
mx_status mx_fields_check(const struct mx_field_table *t, unsigned route, const json_t *o,
                          const char *path, const struct mx_api_reader *reader,
                          struct mx_api_unknown *unknown, struct mx_api_error *err);

#endif
