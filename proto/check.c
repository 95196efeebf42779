/* SPDX-License-Identifier: Apache-2.0 */
/* Which values a request may have, whatever it was read from. */
#include "proto/check.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "proto/json_in.h"

#define AT(field) offsetof(struct mx_api_request, field)

struct number {
	const char *name;
	size_t offset;   /* of a float in struct mx_api_request */
	double min, max; /* both allowed, except for min if `open` */
	bool open;
	bool absent; /* NaN = not in the request */
};

/* The bounds that OpenAI and vLLM document. Logits are divided by the repetition penalty: between
 * 0.01 and 100 any finite logit of a model stays finite, and more has no use. */
static const struct number numbers[] = {
	{"temperature", AT(temperature), 0, 2, false, true},
	{"top_p", AT(top_p), 0, 1, true, true},
	{"min_p", AT(min_p), 0, 1, false, true},
	{"presence_penalty", AT(presence_penalty), -2, 2, false, false},
	{"frequency_penalty", AT(frequency_penalty), -2, 2, false, false},
	{"repetition_penalty", AT(repetition_penalty), 0.01, 100, false, true},
};

struct integer {
	const char *name;
	size_t offset; /* of an int64_t in struct mx_api_request */
	int64_t min, max;
	int64_t absent; /* another value: not in the request */
};

static const struct integer integers[] = {
	{"top_k", AT(top_k), -1, INT32_MAX, MX_API_UNSET},
	{"n", AT(n), 1, MX_API_MAX_CHOICES, 1},
	{"max_tokens", AT(max_tokens), 0, INT32_MAX, -1},
	{"min_tokens", AT(min_tokens), 0, INT32_MAX, 0},
	{"logprobs", AT(logprobs), 0, MX_MAX_TOP_LOGPROBS, -1},
	{"priority", AT(priority), -1000000, 1000000, 0},
	{"thinking_token_budget", AT(thinking_budget), -1, INT32_MAX, -1},
	{"dimensions", AT(dimensions), 1, INT32_MAX, -1},
};

static bool is_inside(const struct number *f, double x)
{
	return (f->open ? x > f->min : x >= f->min) && x <= f->max;
}

/* The same of a value that was rounded to float: so are the bounds. */
static bool is_float_inside(const struct number *f, float x)
{
	return (f->open ? x > (float)f->min : x >= (float)f->min) && x <= (float)f->max;
}

static mx_status fail_number(const struct number *f, const char *shown, double x,
                             struct mx_api_error *err)
{
	char text[MX_JSON_NUMBER_TEXT];
	mx_json_number_text(x, text, sizeof(text));
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", shown,
	                   "'%s' must be %s %g and at most %g, but it is %s", shown,
	                   f->open ? "above" : "at least", f->min, f->max, text);
}

mx_status mx_check_number(const char *name, const char *shown, double x, struct mx_api_error *err)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (!strcmp(numbers[i].name, name))
			return is_inside(&numbers[i], x) ? MX_OK : fail_number(&numbers[i], shown, x, err);
	return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", shown, "no bounds of '%s'", name);
}

void mx_check_bounds(const char *name, int64_t *out_min, int64_t *out_max)
{
	for (size_t i = 0; i < sizeof(integers) / sizeof(*integers); i++)
		if (!strcmp(integers[i].name, name)) {
			*out_min = integers[i].min;
			*out_max = integers[i].max;
		}
}

mx_status mx_check_integer(const char *shown, int64_t v, int64_t min, int64_t max,
                           struct mx_api_error *err)
{
	if (v >= min && v <= max)
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", shown,
	                   "'%s' must be between %" PRId64 " and %" PRId64 ", but it is %" PRId64,
	                   shown, min, max, v);
}

mx_status mx_check_count(const char *name, const char *of, size_t n, size_t most,
                         struct mx_api_error *err)
{
	if (n <= most)
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
	                   "'%s' holds %zu %s, at most %zu are allowed", name, n, of, most);
}

static mx_status check_scalars(const struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = MX_OK;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && s == MX_OK; i++) {
		float x;
		memcpy(&x, (const char *)r + numbers[i].offset, sizeof(x));
		if (!(numbers[i].absent && isnan(x)) && !is_float_inside(&numbers[i], x))
			s = fail_number(&numbers[i], numbers[i].name, (double)x, err);
	}
	for (size_t i = 0; i < sizeof(integers) / sizeof(*integers) && s == MX_OK; i++) {
		const struct integer *f = &integers[i];
		int64_t v;
		memcpy(&v, (const char *)r + f->offset, sizeof(v));
		if (v != f->absent)
			s = mx_check_integer(f->name, v, f->min, f->max, err);
	}
	return s;
}

/* The rules between the numbers of tokens. */
static mx_status check_lengths(const struct mx_api_request *r, struct mx_api_error *err)
{
	const char *name = r->max_tokens_name ? r->max_tokens_name : "max_tokens";
	if (mx_api_is_pooled(r->kind) && (r->max_tokens || r->echo || r->n != 1))
		return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL,
		                   "embeddings and scores have no output tokens");
	if (r->max_tokens == 0 && !r->echo && !mx_api_is_pooled(r->kind))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
		                   "'%s' must be at least 1%s", name,
		                   r->kind == MX_API_COMPLETION ? ", or 0 together with 'echo'" : "");
	if (r->max_tokens == 0 && r->constraint.kind != MX_CONSTRAINT_NONE)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", r->constraint.field,
		                   "'%s' is 0, so there is no output that '%s' could constrain", name,
		                   r->constraint.field);
	if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "min_tokens",
		                   "'min_tokens' (%" PRId64 ") is above '%s' (%" PRId64 ")", r->min_tokens,
		                   name, r->max_tokens);
	return MX_OK;
}

static mx_status check_ids(const char *name, const int32_t *ids, size_t n, struct mx_api_error *err)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
			                   "'%s' holds %" PRId32 " at element %zu, which is no token id", name,
			                   ids[i], i);
	return MX_OK;
}

static mx_status check_prompts(const struct mx_api_request *r, struct mx_api_error *err)
{
	if (r->kind == MX_API_CHAT)
		return MX_OK;
	const char *name = r->prompt_name ? r->prompt_name : "prompt";
	if (!r->n_prompts)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", name,
		                   "'%s' is required", name);
	mx_status s = mx_check_count(name, "prompts", r->n_prompts, MX_API_MAX_PROMPTS, err);
	for (uint32_t i = 0; i < r->n_prompts && s == MX_OK; i++) {
		const struct mx_api_prompt *p = &r->prompts[i];
		if (p->ids && !p->n_ids)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name, "'%s' holds no tokens",
			                   name);
		s = check_ids(name, p->ids, p->ids ? p->n_ids : 0, err);
	}
	return s;
}

static mx_status check_stops(const struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_check_count("stop", "strings", r->n_stops, MX_API_MAX_STOPS, err);
	for (uint32_t i = 0; i < r->n_stops && s == MX_OK; i++)
		if (r->stops[i].len == 0 || r->stops[i].len > MX_API_MAX_STOP_LEN)
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "stop",
			                "a string of 'stop' must have between 1 and %d bytes, but string %u "
			                "has %zu",
			                MX_API_MAX_STOP_LEN, i, r->stops[i].len);
	if (s == MX_OK)
		s = mx_check_count("stop_token_ids", "ids", r->n_stop_ids, MX_API_MAX_STOPS, err);
	if (s == MX_OK)
		s = check_ids("stop_token_ids", r->stop_ids, r->n_stop_ids, err);
	return s;
}

static mx_status check_bias(const struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_check_count("logit_bias", "entries", r->n_bias, MX_API_MAX_BIAS, err);
	for (uint32_t i = 0; i < r->n_bias && s == MX_OK; i++) {
		s = check_ids("logit_bias", &r->bias[i].token, 1, err);
		if (s == MX_OK)
			s = mx_check_bias((double)r->bias[i].bias, err);
	}
	return s;
}

mx_status mx_check_bias(double x, struct mx_api_error *err)
{
	if (x >= -100 && x <= 100)
		return MX_OK;
	char text[MX_JSON_NUMBER_TEXT];
	mx_json_number_text(x, text, sizeof(text));
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "logit_bias",
	                   "a value of 'logit_bias' must be between -100 and 100, but it is %s", text);
}

/* An empty salt would protect nothing. */
static mx_status check_salt(const struct mx_api_text *salt, struct mx_api_error *err)
{
	if (!salt->s)
		return MX_OK;
	if (salt->len == 0 || salt->len > MX_API_MAX_SALT)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "cache_salt",
		                   "'cache_salt' must have between 1 and %d bytes, but it has %zu",
		                   MX_API_MAX_SALT, salt->len);
	if (memchr(salt->s, 0, salt->len))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "cache_salt",
		                   "'cache_salt' must not hold NUL characters");
	return MX_OK;
}

mx_status mx_api_check(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = check_prompts(r, err);
	if (s == MX_OK)
		s = check_scalars(r, err);
	if (s == MX_OK)
		s = check_lengths(r, err);
	if (s == MX_OK)
		s = check_salt(&r->cache_salt, err);
	if (s == MX_OK)
		s = check_stops(r, err);
	if (s == MX_OK)
		s = check_bias(r, err);
	if (s != MX_OK)
		return s;
	if (r->top_k == -1)
		r->top_k = 0;
	return MX_OK;
}

void mx_api_request_init(struct mx_api_request *r, enum mx_api_kind kind)
{
	*r = (struct mx_api_request){
		.kind = kind,
		.temperature = NAN,
		.top_p = NAN,
		.min_p = NAN,
		.repetition_penalty = NAN,
		.top_k = MX_API_UNSET,
		.n = 1,
		.max_tokens = kind == MX_API_COMPLETION ? 16
	                  : mx_api_is_pooled(kind)  ? 0
	                                            : -1,
		.max_tokens_default = true,
		.thinking_budget = -1,
		.dimensions = -1,
		.logprobs = -1,
		.add_special =
			kind != MX_API_CHAT, /* chat templates write their special tokens themselves */
		.skip_special = true,
		.add_generation_prompt = true,
		.parse_calls = true,
		.parallel_calls = true,
		.speculation = true,
	};
}
