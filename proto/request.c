/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that both kinds of request share: a table of scalars and the rules between them. */
#include "proto/request.h"

#include <math.h>
#include <string.h>

#include "proto/json_in.h"
#include "proto/parse.h"

struct number {
	const char *name;
	size_t offset;   /* of a float in struct mx_api_request */
	double min, max; /* both allowed, except for min if `open` */
	bool open;
};

/* The bounds that OpenAI and vLLM document. Logits are divided by the repetition penalty: between
 * 0.01 and 100 any finite logit of a model stays finite, and more has no use. */
static const struct number numbers[] = {
	{"temperature", offsetof(struct mx_api_request, temperature), 0, 2, false},
	{"top_p", offsetof(struct mx_api_request, top_p), 0, 1, true},
	{"min_p", offsetof(struct mx_api_request, min_p), 0, 1, false},
	{"presence_penalty", offsetof(struct mx_api_request, presence_penalty), -2, 2, false},
	{"frequency_penalty", offsetof(struct mx_api_request, frequency_penalty), -2, 2, false},
	{"repeat_penalty", offsetof(struct mx_api_request, repetition_penalty), 0.01, 100, false},
	{"repetition_penalty", offsetof(struct mx_api_request, repetition_penalty), 0.01, 100, false},
};

static mx_status parse_numbers(struct mx_api_request *r, struct mx_api_error *err)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		const struct number *f = &numbers[i];
		const json_t *v = mx_parse_get(r->root, f->name);
		if (!v)
			continue;
		if (!json_is_number(v))
			return mx_parse_wrong_type(err, f->name, "a number", v);
		double x = json_number_value(v);
		if (!(f->open ? x > f->min : x >= f->min) || !(x <= f->max)) {
			char text[MX_JSON_NUMBER_TEXT];
			mx_json_number_text(x, text, sizeof(text));
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", f->name,
			                   "'%s' must be %s %g and at most %g, but it is %s", f->name,
			                   f->open ? "above" : "at least", f->min, f->max, text);
		}
		*(float *)(void *)((char *)r + f->offset) = (float)x;
	}
	/* a positive double may round to the float 0 */
	if (r->top_p == 0)
		r->top_p = 1e-30f;
	return MX_OK;
}

/* Reads an integer member into an int32. */
static mx_status parse_i32(const struct mx_api_request *r, const char *name, int32_t min,
                           int32_t max, int32_t *out, struct mx_api_error *err)
{
	int64_t v = *out;
	mx_status s = mx_parse_int(r->root, name, min, max, &v, err);
	if (s == MX_OK)
		*out = (int32_t)v;
	return s;
}

/* Reads max_tokens under its several names; the newest name wins. */
static mx_status parse_max_tokens(struct mx_api_request *r, struct mx_api_error *err)
{
	static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
	const size_t n_names = r->kind == MX_API_CHAT ? 3 : 2;
	const char *name = "max_tokens"; /* the name that is in use */
	r->max_tokens = r->kind == MX_API_COMPLETION ? 16 : -1;
	r->max_tokens_default = true;
	for (size_t i = 0; i < n_names; i++) {
		if (!mx_parse_get(r->root, names[i]))
			continue;
		name = names[i];
		r->max_tokens_default = false;
		mx_status s = parse_i32(r, name, i ? 0 : -1, INT32_MAX, &r->max_tokens, err);
		if (s != MX_OK)
			return s;
	}
	if (r->max_tokens == 0 && !r->echo)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
		                   "'%s' must be at least 1%s", name,
		                   r->kind == MX_API_COMPLETION ? ", or 0 together with 'echo'" : "");
	if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "min_tokens",
		                   "'min_tokens' (%d) is above '%s' (%d)", r->min_tokens, name,
		                   r->max_tokens);
	return MX_OK;
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
	r->logprobs = -1;
	if (r->kind == MX_API_COMPLETION)
		return parse_i32(r, "logprobs", 0, MX_MAX_TOP_LOGPROBS, &r->logprobs, err);
	bool on = false;
	int32_t top = -1;
	mx_status s = mx_parse_bool(r->root, "logprobs", &on, err);
	if (s == MX_OK)
		s = parse_i32(r, "top_logprobs", 0, MX_MAX_TOP_LOGPROBS, &top, err);
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

/* Refuses constrained output: it would change every answer, so it must not be ignored. */
static mx_status parse_format(const struct mx_api_request *r, struct mx_api_error *err)
{
	json_t *format = NULL;
	mx_status s = mx_parse_container(r->root, "response_format", JSON_OBJECT, &format, err);
	if (s != MX_OK || !format)
		return s;
	const json_t *type = mx_parse_get(format, "type");
	if (type && !json_is_string(type))
		return mx_parse_wrong_type(err, "response_format.type", "a string", type);
	if (!type || strcmp(json_string_value(type), "text"))
		return mx_parse_unsupported(err, "response_format",
		                            "only the type 'text' is; output is not constrained");
	return MX_OK;
}

/* Reads cache_salt. An empty salt would protect nothing. */
static mx_status parse_salt(struct mx_api_request *r, struct mx_api_error *err)
{
	struct mx_api_text *salt = &r->cache_salt;
	mx_status s = mx_parse_text(r->root, "cache_salt", salt, err);
	if (s != MX_OK || !salt->s)
		return s;
	if (salt->len == 0 || salt->len > MX_API_MAX_SALT)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "cache_salt",
		                   "'cache_salt' must have between 1 and %d bytes, but it has %zu",
		                   MX_API_MAX_SALT, salt->len);
	if (memchr(salt->s, 0, salt->len))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "cache_salt",
		                   "'cache_salt' must not hold NUL characters");
	return MX_OK;
}

static mx_status parse_switches(struct mx_api_request *r, struct mx_api_error *err)
{
	const struct {
		const char *name;
		bool *out;
	} switches[] = {
		{"ignore_eos", &r->ignore_eos},
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

/* Does every check, in an order that reports misspelt names and then faults of the main field
 * first.
 */
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
		s = parse_i32(r, "top_k", -1, INT32_MAX, &r->top_k, err);
	if (r->top_k == -1)
		r->top_k = 0;
	if (s == MX_OK)
		s = parse_i32(r, "n", 1, MX_API_MAX_CHOICES, &r->n, err);
	int32_t best_of = r->n;
	if (s == MX_OK)
		s = parse_i32(r, "best_of", 1, MX_API_MAX_CHOICES, &best_of, err);
	if (s == MX_OK && best_of != r->n)
		s = mx_parse_unsupported(err, "best_of", "it must be equal to 'n'");
	if (s == MX_OK)
		s = parse_i32(r, "min_tokens", 0, INT32_MAX, &r->min_tokens, err);
	if (s == MX_OK)
		s = parse_max_tokens(r, err);
	if (s == MX_OK)
		s = parse_i32(r, "priority", -1000000, 1000000, &r->priority, err);
	if (s == MX_OK)
		s = parse_seed(r, err);
	if (s == MX_OK)
		s = parse_logprobs(r, err);
	if (s == MX_OK)
		s = parse_stream(r, unknown, err);
	if (s == MX_OK)
		s = parse_switches(r, err);
	if (s == MX_OK)
		s = parse_salt(r, err);
	if (s == MX_OK)
		s = mx_parse_lists(r, err);
	if (s == MX_OK)
		s = parse_format(r, err);
	return s;
}

mx_status mx_api_parse(enum mx_api_kind kind, const char *body, size_t len,
                       struct mx_api_unknown *unknown, struct mx_api_request *out,
                       struct mx_api_error *err)
{
	struct mx_api_request r = {
		.kind = kind,
		.temperature = NAN,
		.top_p = NAN,
		.min_p = NAN,
		.repetition_penalty = NAN,
		.top_k = MX_API_UNSET,
		.n = 1,
		.add_special =
			kind == MX_API_COMPLETION, /* chat templates write their special tokens themselves */
		.skip_special = true,
		.add_generation_prompt = true,
		.unknown = unknown,
	};
	mx_status s = mx_parse_object(body, len, &r.root, err);
	if (s == MX_OK)
		s = parse_all(&r, unknown, err);
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
