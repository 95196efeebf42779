/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON files of a checkpoint folder, as Python writes them: bare NaN, Infinity
 * and -Infinity are accepted, and so is the spelling {"__float__": "Infinity"}.
 *
 * A scope looks a key up in one object and then in another, so that a layer's
 * entry can override the model's. A getter of an absent key gives a default; null
 * counts as absent. All messages name the key.
 */
#ifndef MX_MODEL_CONFIG_JSON_H
#define MX_MODEL_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reads a regular file of at most `max` bytes into *out (NUL-terminated; free with free()).
 * MX_E_NOTFOUND if it does not exist, MX_E_LIMIT if it is larger. */
mx_status mx_json_slurp(const char *path, size_t max, char **out, size_t *out_len,
                        struct mx_err *err);

/* Parses a JSON object. `where` (the file name) goes into *err with line and column. Duplicate
 * keys, NUL in strings and nesting deeper than jansson allows are errors. The caller owns *out
 * (json_decref). */
mx_status mx_json_parse(const char *text, size_t len, const char *where, json_t **out,
                        struct mx_err *err);

/* Fills *err from jansson's record of a failed parse and returns the status: MX_E_FORMAT, or
 * MX_E_NOMEM. `what` goes before "not valid JSON", `base` is added to the byte offset. */
mx_status mx_json_failed(const json_error_t *je, const char *where, const char *what, uint64_t base,
                         struct mx_err *err);

/* Reads a bare or wrapped number, NaN and infinities included. False if v is not a number. */
bool mx_json_number(const json_t *v, double *out);

struct mx_scope {
	const char *where;   /* prefix of keys in messages: "config.json: ", may be "" */
	const json_t *inner; /* looked up first; may be NULL */
	const json_t *outer; /* then here; may be NULL */
};

/* Returns the value of `key`, or NULL if it is absent or null. A null in `inner` hides `outer`. */
const json_t *mx_scope_get(const struct mx_scope *s, const char *key);
/* True if the key is present, even if it is null. */
bool mx_scope_has(const struct mx_scope *s, const char *key);

/* Sets *out to the value, or to `def` if the key is absent. MX_E_INVALID for another type,
 * MX_E_RANGE outside lo..hi (NaN is outside). Integers may be written as 4096.0. */
mx_status mx_scope_int(const struct mx_scope *s, const char *key, int64_t lo, int64_t hi,
                       int64_t def, int64_t *out, struct mx_err *err);
mx_status mx_scope_float(const struct mx_scope *s, const char *key, double lo, double hi,
                         double def, double *out, struct mx_err *err);
mx_status mx_scope_bool(const struct mx_scope *s, const char *key, bool def, bool *out,
                        struct mx_err *err);
/* The JSON object owns *out. */
mx_status mx_scope_string(const struct mx_scope *s, const char *key, const char *def,
                          const char **out, struct mx_err *err);
/* As mx_scope_int, but an absent key is MX_E_INVALID. */
mx_status mx_scope_need_int(const struct mx_scope *s, const char *key, int64_t lo, int64_t hi,
                            int64_t *out, struct mx_err *err);

/* Checks that the key is absent or has exactly this value; MX_E_UNSUPPORTED for another value
 * of the type. */
mx_status mx_scope_only_int(const struct mx_scope *s, const char *key, int64_t only,
                            struct mx_err *err);
mx_status mx_scope_only_bool(const struct mx_scope *s, const char *key, bool only,
                             struct mx_err *err);
mx_status mx_scope_only_string(const struct mx_scope *s, const char *key, const char *only,
                               struct mx_err *err);

#endif
