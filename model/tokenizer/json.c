/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks members of tokenizer.json; messages name the key's path. */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

void mx_tok_path(char *out, const char *parent, const char *key, size_t index)
{
	char copy[MX_TOK_PATH]; /* parent and out may be the same */
	snprintf(copy, sizeof copy, "%s", parent);
	if (key)
		snprintf(out, MX_TOK_PATH, "%.100s%s%.50s", copy, *copy ? "." : "", key);
	else
		snprintf(out, MX_TOK_PATH, "%.100s[%zu]", copy, index);
}

mx_status mx_tok_keys(const json_t *obj, const char *path, const char *const *allowed,
                      struct mx_err *err)
{
	if (!json_is_object(obj))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an object");
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)obj, key, value)
	{
		const char *const *a = allowed;
		while (*a && strcmp(*a, key) != 0)
			a++;
		if (!*a) {
			char at[MX_TOK_PATH];
			mx_tok_path(at, path, key, 0);
			return mx_fail_at(err, MX_E_UNSUPPORTED, at, "unknown key");
		}
	}
	return MX_OK;
}

static mx_status wrong(const char *path, const char *key, const char *what, struct mx_err *err)
{
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, key, 0);
	return mx_fail_at(err, MX_E_FORMAT, at, "must be %s", what);
}

mx_status mx_tok_bool(const json_t *obj, const char *path, const char *key, bool *out,
                      struct mx_err *err)
{
	const json_t *v = json_object_get(obj, key);
	if (!v || json_is_null(v))
		return MX_OK;
	if (!json_is_boolean(v))
		return wrong(path, key, "true or false", err);
	*out = json_is_true(v);
	return MX_OK;
}

mx_status mx_tok_size(const json_t *obj, const char *path, const char *key, size_t *out,
                      struct mx_err *err)
{
	const json_t *v = json_object_get(obj, key);
	if (!v || json_is_null(v))
		return MX_OK;
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
		return wrong(path, key, "a non-negative integer", err);
	*out = (size_t)json_integer_value(v);
	return MX_OK;
}

mx_status mx_tok_str(const json_t *obj, const char *path, const char *key, size_t max,
                     const char **out, size_t *len, struct mx_err *err)
{
	const json_t *v = json_object_get(obj, key);
	if (!json_is_string(v))
		return wrong(path, key, "a string", err);
	if (json_string_length(v) > max)
		return wrong(path, key, "shorter", err);
	*out = json_string_value(v);
	*len = json_string_length(v);
	return MX_OK;
}

mx_status mx_tok_type(const json_t *obj, const char *path, const char **out, struct mx_err *err)
{
	if (!json_is_object(obj))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an object");
	size_t n;
	return mx_tok_str(obj, path, "type", 64, out, &n, err);
}
