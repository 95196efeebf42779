/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the fields of a request that are lists: prompts, stop strings and ids, logit_bias. */
#include <string.h>

#include "proto/check.h"
#include "proto/parse.h"

static mx_status no_memory(struct mx_api_error *err, const char *name)
{
	return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", name, "out of memory");
}

/* Parses one element of a list of prompts: a string or a list of ids. */
static mx_status parse_prompt(struct mx_api_request *r, const char *name, const json_t *v,
                              struct mx_api_prompt *out, struct mx_api_error *err)
{
	if (json_is_string(v)) {
		out->text = (struct mx_api_text){json_string_value(v), json_string_length(v)};
		return MX_OK;
	}
	if (!json_is_array(v))
		return mx_parse_wrong_type(err, name,
		                           "a string, a list of strings, a list of token "
		                           "ids or a list of such lists",
		                           v);
	if (json_array_size(v) == 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name, "'%s' holds no tokens",
		                   name);
	return mx_parse_ids(v, name, &r->arena, &out->ids, &out->n_ids, err);
}

mx_status mx_parse_prompts(struct mx_api_request *r, const char *name, struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(r->root, name);
	if (!v)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", name,
		                   "'%s' is required", name);
	/* a list whose first element is a number is one prompt made of ids */
	bool list = json_is_array(v) && !json_is_number(json_array_get(v, 0));
	size_t n = list ? json_array_size(v) : 1;
	if (n == 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name, "'%s' is an empty list",
		                   name);
	mx_status s = mx_check_count(name, "prompts", n, MX_API_MAX_PROMPTS, err);
	if (s != MX_OK)
		return s;
	struct mx_api_prompt *prompts = mx_arena_alloc(&r->arena, n * sizeof(*prompts));
	if (!prompts)
		return no_memory(err, name);
	for (size_t i = 0; i < n; i++) {
		s = parse_prompt(r, name, list ? json_array_get(v, i) : v, &prompts[i], err);
		if (s != MX_OK)
			return s;
	}
	r->prompts = prompts;
	r->n_prompts = (uint32_t)n;
	return MX_OK;
}

mx_status mx_parse_completion(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_parse_prompts(r, "prompt", err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "echo", &r->echo, err);
	return s;
}

static mx_status parse_stops(struct mx_api_request *r, struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(r->root, "stop");
	if (!v || (json_is_string(v) && !json_string_length(v)))
		return MX_OK;
	if (!json_is_string(v) && !json_is_array(v))
		return mx_parse_wrong_type(err, "stop", "a string or a list of strings", v);
	size_t n = json_is_array(v) ? json_array_size(v) : 1;
	mx_status s = mx_check_count("stop", "strings", n, MX_API_MAX_STOPS, err);
	if (s != MX_OK)
		return s;
	struct mx_api_text *stops = mx_arena_alloc(&r->arena, (n ? n : 1) * sizeof(*stops));
	if (!stops)
		return no_memory(err, "stop");
	for (size_t i = 0; i < n; i++) {
		const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
		if (!json_is_string(e))
			return mx_parse_wrong_type(err, "stop", "a string or a list of strings", e);
		stops[i] = (struct mx_api_text){json_string_value(e), json_string_length(e)};
	}
	r->stops = stops;
	r->n_stops = (uint32_t)n;
	return MX_OK;
}

/* Parses a token id: a decimal number as a key of a JSON object. */
static bool key_to_id(const char *key, int32_t *out)
{
	int64_t id = 0;
	size_t n = strlen(key);
	if (n == 0 || n > 10)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (key[i] < '0' || key[i] > '9')
			return false;
		id = id * 10 + (key[i] - '0');
	}
	if (id > INT32_MAX)
		return false;
	*out = (int32_t)id;
	return true;
}

static mx_status parse_bias(struct mx_api_request *r, struct mx_api_error *err)
{
	json_t *o = NULL;
	mx_status s = mx_parse_container(r->root, "logit_bias", JSON_OBJECT, &o, err);
	if (s != MX_OK || !o)
		return s;
	size_t n = json_object_size(o);
	s = mx_check_count("logit_bias", "entries", n, MX_API_MAX_BIAS, err);
	if (s != MX_OK)
		return s;
	struct mx_logit_bias *bias = mx_arena_alloc(&r->arena, (n ? n : 1) * sizeof(*bias));
	if (!bias)
		return no_memory(err, "logit_bias");
	const char *key;
	json_t *v;
	uint32_t i = 0;
	json_object_foreach(o, key, v)
	{
		if (!key_to_id(key, &bias[i].token))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "logit_bias",
			                   "the key '%.40s' of 'logit_bias' is no token id", key);
		if (!json_is_number(v))
			return mx_parse_wrong_type(err, "logit_bias", "an object of numbers", v);
		double x = json_number_value(v);
		s = mx_check_bias(x, err);
		if (s != MX_OK)
			return s;
		bias[i++].bias = (float)x;
	}
	r->bias = bias;
	r->n_bias = i;
	return MX_OK;
}

mx_status mx_parse_lists(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = parse_stops(r, err);
	json_t *ids = NULL;
	if (s == MX_OK)
		s = mx_parse_container(r->root, "stop_token_ids", JSON_ARRAY, &ids, err);
	if (s == MX_OK && ids) {
		s = mx_check_count("stop_token_ids", "ids", json_array_size(ids), MX_API_MAX_STOPS, err);
	}
	if (s == MX_OK && ids)
		s = mx_parse_ids(ids, "stop_token_ids", &r->arena, &r->stop_ids, &r->n_stop_ids, err);
	if (s == MX_OK)
		s = parse_bias(r, err);
	return s;
}
