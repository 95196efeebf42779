/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/closest.h"
#include "proto/parse.h"

/* Returns what a name means on a route, or NULL. *elsewhere: it is read on another route. */
static const struct mx_field *find(const struct mx_field_table *t, const char *name, unsigned route,
                                   bool *elsewhere)
{
	*elsewhere = false;
	for (size_t i = 0; i < t->n; i++) {
		const struct mx_field *f = &t->fields[i];
		if (strcmp(f->name, name))
			continue;
		if (f->routes & route)
			return f;
		*elsewhere = *elsewhere || f->class == MX_FIELD_READ;
	}
	return NULL;
}

static bool is_neutral(const json_t *v, const struct mx_field *f)
{
	const char *word = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
	bool is_word = f->word && word && !strcmp(word, f->word);
	double x = json_number_value(v);
	switch (json_typeof(v)) {
	case JSON_NULL: return true;
	case JSON_FALSE: return f->neutral & MX_NEUTRAL_NO;
	case JSON_TRUE: return f->neutral & MX_NEUTRAL_YES;
	case JSON_INTEGER:
	case JSON_REAL:
		return (x == 0 && f->neutral & MX_NEUTRAL_ZERO) ||
		       (x == 1 && f->neutral & MX_NEUTRAL_ONE) ||
		       (x == -1 && f->neutral & MX_NEUTRAL_MINUS);
	case JSON_STRING: return json_string_length(v) ? is_word : f->neutral & MX_NEUTRAL_NONE;
	case JSON_ARRAY:
		return json_array_size(v) ? is_word && json_array_size(v) == 1
		                          : f->neutral & MX_NEUTRAL_NONE;
	default: return !json_object_size(v) && f->neutral & MX_NEUTRAL_NONE;
	}
}

/* Refuses a field that has no meaning on the route, or notes it. */
static mx_status take_unknown(const struct mx_field_table *t, const char *path, const char *name,
                              unsigned route, bool elsewhere, struct mx_api_unknown *unknown,
                              struct mx_api_error *err)
{
	if (unknown && unknown->allow && unknown->text[0])
		return MX_OK;
	const char *names[MX_FIELDS_MAX];
	size_t n = 0;
	for (size_t i = 0; i < t->n && n < MX_FIELDS_MAX; i++)
		if (t->fields[i].class == MX_FIELD_READ && t->fields[i].routes & route)
			names[n++] = t->fields[i].name;
	const char *closest = elsewhere ? NULL : mx_closest(name, names, n);
	char param[64];
	snprintf(param, sizeof(param), "%s%.48s", path, name);
	mx_status s =
		mx_api_fail(err, MX_FAULT_INVALID, "unknown_parameter", param, "%s '%s%.60s'%s%s%s",
	                elsewhere ? "this route does not take the field" : "unknown field", path, name,
	                closest ? "; did you mean '" : "", closest ? closest : "", closest ? "'?" : "");
	if (!unknown || !unknown->allow)
		return s;
	snprintf(unknown->text, sizeof(unknown->text), "%.199s", err->message);
	return MX_OK;
}

mx_status mx_fields_check(const struct mx_field_table *t, unsigned route, const json_t *o,
                          const char *path, const struct mx_api_reader *reader,
                          struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	/* jansson's iterators take no const, but do not write */
	json_t *object = (json_t *)(uintptr_t)o;
	for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
		const char *name = json_object_iter_key(at);
		const json_t *v = json_object_iter_value(at);
		if (json_is_null(v) || (reader && reader->reads(reader->arg, name)))
			continue;
		bool elsewhere;
		const struct mx_field *f = find(t, name, route, &elsewhere);
		mx_status s = MX_OK;
		if (!f) {
			s = take_unknown(t, path, name, route, elsewhere, unknown, err);
		} else if (f->class == MX_FIELD_REFUSED && !is_neutral(v, f)) {
			char whole[64];
			snprintf(whole, sizeof(whole), "%s%s", path, name);
			s = mx_parse_unsupported(err, whole, f->remedy);
		}
		if (s != MX_OK)
			return s;
	}
	return MX_OK;
}
