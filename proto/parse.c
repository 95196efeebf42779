/* SPDX-License-Identifier: Apache-2.0 */
/* Reads typed members of a JSON object. */
#include "proto/parse.h"

#include <inttypes.h>
#include <math.h>

#include "proto/check.h"
#include "proto/json_in.h"

static const char *type_name(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "an array";
	case JSON_STRING: return "a string";
	case JSON_INTEGER: return "an integer";
	case JSON_REAL: return "a number";
	case JSON_TRUE:
	case JSON_FALSE: return "a boolean";
	default: return "null";
	}
}

/* Refuses numbers beyond 64 bits where a template would see them: they are not what was sent. */
static mx_status check_template_numbers(const json_t *root, struct mx_api_error *err)
{
	static const char *const names[] = {"messages", "input",     "system",
	                                    "tools",    "documents", "chat_template_kwargs"};
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const char *member = names[i];
		if (mx_json_has_huge(json_object_get(root, names[i]), &member))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", names[i],
			                   "'%s' holds a number in '%.60s' that does not fit 64 bits: send it "
			                   "as a string",
			                   names[i], member);
	}
	return MX_OK;
}

mx_status mx_parse_object(const char *body, size_t len, json_t **out, struct mx_api_error *err)
{
	json_error_t e;
	if (len == 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_json", NULL,
		                   "malformed JSON: the body is empty");
	bool changed;
	json_t *root = mx_json_load(body, len, &changed, &e);
	if (!root) {
		/* jansson gives no text when memory runs out */
		if (json_error_code(&e) == json_error_out_of_memory || !e.text[0])
			return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_json", NULL,
		                   "malformed JSON at line %d, column %d (byte %d): %s", e.line, e.column,
		                   e.position, e.text);
	}
	if (!json_is_object(root)) {
		mx_status s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", NULL,
		                          "the body must be a JSON object, but it is %s", type_name(root));
		json_decref(root);
		return s;
	}
	mx_status s = changed ? check_template_numbers(root, err) : MX_OK;
	if (s != MX_OK) {
		json_decref(root);
		return s;
	}
	*out = root;
	return MX_OK;
}

json_t *mx_parse_get(const json_t *o, const char *name)
{
	json_t *v = json_object_get(o, name);
	return json_is_null(v) ? NULL : v;
}

mx_status mx_parse_wrong_type(struct mx_api_error *err, const char *name, const char *expected,
                              const json_t *found)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", name, "'%s' must be %s, but it is %s",
	                   name, expected, type_name(found));
}

mx_status mx_parse_unsupported(struct mx_api_error *err, const char *name, const char *why)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", name,
	                   "'%s' is not supported: %s", name, why);
}

mx_status mx_parse_bool(const json_t *o, const char *name, bool *out, struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(o, name);
	if (!v)
		return MX_OK;
	if (!json_is_boolean(v))
		return mx_parse_wrong_type(err, name, "a boolean", v);
	*out = json_is_true(v);
	return MX_OK;
}

mx_status mx_parse_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
                       struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(o, name);
	if (!v)
		return MX_OK;
	int64_t i;
	double real = json_real_value(v);
	if (json_is_integer(v)) {
		i = json_integer_value(v);
	} else if (json_is_real(v) && real == floor(real) && fabs(real) < 0x1p63) {
		i = (int64_t)real; /* some clients write the integer 16 as 16.0 */
	} else if (json_is_real(v) && fabs(real) >= 0x1p63) {
		char text[MX_JSON_NUMBER_TEXT];
		mx_json_number_text(real, text, sizeof(text));
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
		                   "'%s' must be between %" PRId64 " and %" PRId64 ", but it is %s", name,
		                   min, max, text);
	} else {
		return mx_parse_wrong_type(err, name, "an integer", v);
	}
	mx_status s = mx_check_integer(name, i, min, max, err);
	if (s != MX_OK)
		return s;
	*out = i;
	return MX_OK;
}

mx_status mx_parse_text(const json_t *o, const char *name, struct mx_api_text *out,
                        struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(o, name);
	if (!v)
		return MX_OK;
	if (!json_is_string(v))
		return mx_parse_wrong_type(err, name, "a string", v);
	*out = (struct mx_api_text){json_string_value(v), json_string_length(v)};
	return MX_OK;
}

mx_status mx_parse_container(const json_t *o, const char *name, json_type type, json_t **out,
                             struct mx_api_error *err)
{
	json_t *v = mx_parse_get(o, name);
	if (!v)
		return MX_OK;
	if (json_typeof(v) != type)
		return mx_parse_wrong_type(err, name, type == JSON_ARRAY ? "an array" : "an object", v);
	*out = v;
	return MX_OK;
}

mx_status mx_parse_ids(const json_t *array, const char *name, struct mx_arena *arena,
                       const int32_t **out, uint32_t *out_n, struct mx_api_error *err)
{
	size_t n = json_array_size(array);
	int32_t *ids = mx_arena_alloc(arena, (n ? n : 1) * sizeof(*ids));
	if (!ids)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", name, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(array, i);
		if (json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
			                   "'%s' holds a number beyond 64 bits at element %zu, which is no "
			                   "token id",
			                   name, i);
		if (!json_is_integer(v))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", name,
			                   "'%s' must hold token ids, but its element %zu is %s", name, i,
			                   type_name(v));
		json_int_t id = json_integer_value(v);
		if (id < 0 || id > INT32_MAX)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
			                   "'%s' holds %" JSON_INTEGER_FORMAT
			                   " at element %zu, which is no token id",
			                   name, id, i);
		ids[i] = (int32_t)id;
	}
	*out = ids;
	*out_n = (uint32_t)n;
	return MX_OK;
}
