/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the fields that both kinds of request share. */
#include "proto/request.h"

#include <string.h>

#include "proto/check.h"
#include "proto/parse.h"

struct number {
	const char *key;  /* of the JSON */
	const char *name; /* of the field */
	size_t offset;    /* of a float in struct mx_api_request */
};

static const struct number numbers[] = {
	{"temperature", "temperature", offsetof(struct mx_api_request, temperature)},
	{"top_p", "top_p", offsetof(struct mx_api_request, top_p)},
	{"min_p", "min_p", offsetof(struct mx_api_request, min_p)},
	{"presence_penalty", "presence_penalty", offsetof(struct mx_api_request, presence_penalty)},
	{"frequency_penalty", "frequency_penalty", offsetof(struct mx_api_request, frequency_penalty)},
	{"repeat_penalty", "repetition_penalty", offsetof(struct mx_api_request, repetition_penalty)},
	{"repetition_penalty", "repetition_penalty",
     offsetof(struct mx_api_request, repetition_penalty)},
};

static mx_status parse_numbers(struct mx_api_request *r, struct mx_api_error *err)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		const struct number *f = &numbers[i];
		const json_t *v = mx_parse_get(r->root, f->key);
		if (!v)
			continue;
		if (!json_is_number(v))
			return mx_parse_wrong_type(err, f->key, "a number", v);
		double x = json_number_value(v);
		mx_status s = mx_check_number(f->name, f->key, x, err);
		if (s != MX_OK)
			return s;
		*(float *)(void *)((char *)r + f->offset) = (float)x;
	}
	/* a positive double may round to the float 0 */
	if (r->top_p == 0)
		r->top_p = 1e-30f;
	return MX_OK;
}

/* Reads an integer within the bounds of the field `name`, from the member `key`. */
static mx_status parse_integer(const struct mx_api_request *r, const char *key, const char *name,
                               int64_t *out, struct mx_api_error *err)
{
	int64_t min = INT64_MIN, max = INT64_MAX;
	mx_check_bounds(name, &min, &max);
	return mx_parse_int(r->root, key, min, max, out, err);
}

/* Reads max_tokens under its several names; the newest name wins. */
static mx_status parse_max_tokens(struct mx_api_request *r, struct mx_api_error *err)
{
	static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
	const size_t n_names = r->kind == MX_API_CHAT ? 3 : 2;
	mx_status s = MX_OK;
	for (size_t i = 0; i < n_names && s == MX_OK; i++) {
		if (!mx_parse_get(r->root, names[i]))
			continue;
		r->max_tokens_name = names[i];
		r->max_tokens_default = false;
		if (i == 0) /* llama-server's -1 is no limit */
			s = mx_parse_int(r->root, names[i], -1, INT32_MAX, &r->max_tokens, err);
		else
			s = parse_integer(r, names[i], "max_tokens", &r->max_tokens, err);
	}
	return s;
}

static mx_status parse_seed(struct mx_api_request *r, struct mx_api_error *err)
{
	if (!mx_parse_get(r->root, "seed"))
		return MX_OK;
	int64_t seed = 0;
	mx_status s = mx_parse_int(r->root, "seed", INT64_MIN, INT64_MAX, &seed, err);
	if (s != MX_OK)
		return s;
	r->has_seed = seed != -1; /* llama-server and vLLM take -1 as "random" */
	r->seed = (uint64_t)seed;
	return MX_OK;
}

/* Reads logprobs: a number in completions, a switch in chats, where top_logprobs is the number. */
static mx_status parse_logprobs(struct mx_api_request *r, struct mx_api_error *err)
{
	if (r->kind == MX_API_COMPLETION)
		return parse_integer(r, "logprobs", "logprobs", &r->logprobs, err);
	bool on = false;
	int64_t top = -1;
	mx_status s = mx_parse_bool(r->root, "logprobs", &on, err);
	if (s == MX_OK)
		s = parse_integer(r, "top_logprobs", "logprobs", &top, err);
	if (s != MX_OK)
		return s;
	if (top > 0 && !on)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "top_logprobs",
		                   "'top_logprobs' needs 'logprobs' to be true");
	if (on)
		r->logprobs = top < 0 ? 0 : top;
	return MX_OK;
}

/* Reads a switch of stream_options. Errors name it with its path. */
static mx_status parse_option(const json_t *options, const char *name, const char *path, bool *out,
                              struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(options, name);
	if (v && !json_is_boolean(v))
		return mx_parse_wrong_type(err, path, "a boolean", v);
	return mx_parse_bool(options, name, out, err);
}

static mx_status parse_stream(struct mx_api_request *r, struct mx_api_unknown *unknown,
                              struct mx_api_error *err)
{
	mx_status s = mx_parse_bool(r->root, "stream", &r->stream, err);
	json_t *options = NULL;
	if (s == MX_OK)
		s = mx_parse_container(r->root, "stream_options", JSON_OBJECT, &options, err);
	if (s != MX_OK || !options)
		return s;
	if (!r->stream)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "stream_options",
		                   "'stream_options' is only allowed when 'stream' is true");
	s = mx_parse_fields(options, "stream_options.", MX_FIELDS_STREAM_OPTIONS, unknown, err);
	if (s == MX_OK)
		s = parse_option(options, "include_usage", "stream_options.include_usage",
		                 &r->include_usage, err);
	if (s == MX_OK)
		s = parse_option(options, "continuous_usage_stats", "stream_options.continuous_usage_stats",
		                 &r->continuous_usage, err);
	r->continuous_usage = r->continuous_usage && r->include_usage;
	return s;
}

static mx_status parse_switches(struct mx_api_request *r, struct mx_api_error *err)
{
	const struct {
		const char *name;
		bool *out;
	} switches[] = {
		{"ignore_eos", &r->ignore_eos},
		{"speculation", &r->speculation},
		{"include_stop_str_in_output", &r->include_stop},
		{"return_token_ids", &r->return_token_ids},
		{"add_special_tokens", &r->add_special},
		{"skip_special_tokens", &r->skip_special},
	};
	for (size_t i = 0; i < sizeof(switches) / sizeof(*switches); i++) {
		mx_status s = mx_parse_bool(r->root, switches[i].name, switches[i].out, err);
		if (s != MX_OK)
			return s;
	}
	return MX_OK;
}

/* Reads every field, in an order that reports misspelt names and then faults of the main field
 * first. */
static mx_status parse_all(struct mx_api_request *r, struct mx_api_unknown *unknown,
                           struct mx_api_error *err)
{
	enum mx_fields route = r->kind == MX_API_CHAT ? MX_FIELDS_CHAT : MX_FIELDS_COMPLETIONS;
	mx_status s = mx_parse_fields(r->root, "", route, unknown, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "model", &r->model, err);
	if (s == MX_OK)
		s = r->kind == MX_API_CHAT ? mx_parse_chat(r, err) : mx_parse_completion(r, err);
	if (s == MX_OK)
		s = parse_numbers(r, err);
	if (s == MX_OK)
		s = parse_integer(r, "top_k", "top_k", &r->top_k, err);
	if (s == MX_OK)
		s = parse_integer(r, "n", "n", &r->n, err);
	int64_t best_of = r->n;
	if (s == MX_OK)
		s = parse_integer(r, "best_of", "n", &best_of, err);
	if (s == MX_OK && best_of != r->n)
		s = mx_parse_unsupported(err, "best_of", "it must be equal to 'n'");
	if (s == MX_OK)
		s = parse_integer(r, "min_tokens", "min_tokens", &r->min_tokens, err);
	if (s == MX_OK)
		s = parse_max_tokens(r, err);
	if (s == MX_OK)
		s = parse_integer(r, "priority", "priority", &r->priority, err);
	if (s == MX_OK)
		s = parse_seed(r, err);
	if (s == MX_OK)
		s = parse_logprobs(r, err);
	if (s == MX_OK)
		s = parse_stream(r, unknown, err);
	if (s == MX_OK)
		s = parse_switches(r, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "cache_salt", &r->cache_salt, err);
	if (s == MX_OK)
		s = mx_parse_prediction(r, err);
	if (s == MX_OK)
		s = mx_parse_lists(r, err);
	if (s == MX_OK)
		s = mx_parse_constraint(r, unknown, err);
	return s;
}

mx_status mx_api_parse(enum mx_api_kind kind, const char *body, size_t len,
                       struct mx_api_unknown *unknown, struct mx_api_request *out,
                       struct mx_api_error *err)
{
	json_t *root = NULL;
	mx_status s = mx_parse_object(body, len, &root, err);
	return s == MX_OK ? mx_api_parse_json(kind, root, unknown, out, err) : s;
}

mx_status mx_api_parse_json(enum mx_api_kind kind, json_t *root, struct mx_api_unknown *unknown,
                            struct mx_api_request *out, struct mx_api_error *err)
{
	struct mx_api_request r;
	mx_api_request_init(&r, kind);
	r.unknown = unknown;
	r.root = root;
	mx_status s = parse_all(&r, unknown, err);
	if (s == MX_OK)
		s = mx_api_check(&r, err);
	if (s != MX_OK) {
		mx_api_request_free(&r);
		return s;
	}
	*out = r;
	return MX_OK;
}

void mx_api_request_free(struct mx_api_request *r)
{
	if (!r)
		return;
	mx_arena_free(&r->arena);
	json_decref(r->root);
	*r = (struct mx_api_request){0};
}
