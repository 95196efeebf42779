/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of requests that were not read from JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "proto/request.h"

static const struct mx_api_prompt prompt = {.text = {"a", 1}};

/* A request that is right. */
static struct mx_api_request right(void)
{
	struct mx_api_request r;
	mx_api_request_init(&r, MX_API_COMPLETION);
	r.prompts = &prompt;
	r.n_prompts = 1;
	return r;
}

static void check_refused(struct mx_api_request *r, const char *param)
{
	struct mx_api_error e = {0};
	if (mx_api_check(r, &e) == MX_OK)
		fail_msg("accepted: %s", param);
	assert_int_equal(e.fault, MX_FAULT_INVALID);
	assert_string_equal(e.param, param);
	assert_non_null(strstr(e.message, param));
}

static void what_is_right_is_taken_and_made_plain(void **state)
{
	(void)state;
	struct mx_api_error e;
	struct mx_api_request r = right();
	assert_int_equal(mx_api_check(&r, &e), MX_OK);
	assert_true(isnan(r.temperature) && r.top_k == MX_API_UNSET);
	assert_int_equal(r.max_tokens, 16);
	r.top_k = -1;
	r.repetition_penalty = 0.01f; /* the float is below */
	r.max_tokens = INT32_MAX;
	r.n = MX_API_MAX_CHOICES;
	r.logprobs = MX_MAX_TOP_LOGPROBS;
	assert_int_equal(mx_api_check(&r, &e), MX_OK);
	assert_int_equal(r.top_k, 0);
	mx_api_request_init(&r, MX_API_CHAT);
	assert_int_equal(mx_api_check(&r, &e), MX_OK);
	assert_int_equal(r.max_tokens, -1);
}

#define REFUSED(field, value)                                                                      \
	do {                                                                                           \
		struct mx_api_request r = right();                                                         \
		r.field = value;                                                                           \
		check_refused(&r, #field);                                                                 \
	} while (0)

static void numbers_have_bounds(void **state)
{
	(void)state;
	REFUSED(temperature, 2.1f);
	REFUSED(temperature, -0.1f);
	REFUSED(temperature, INFINITY);
	REFUSED(top_p, 0);
	REFUSED(top_p, 1.1f);
	REFUSED(min_p, -0.1f);
	REFUSED(presence_penalty, NAN);
	REFUSED(frequency_penalty, 2.1f);
	REFUSED(repetition_penalty, 1e-38f);
	REFUSED(top_k, -2);
	REFUSED(top_k, (int64_t)UINT32_MAX);
	REFUSED(n, 0);
	REFUSED(n, MX_API_MAX_CHOICES + 1);
	REFUSED(max_tokens, -2);
	REFUSED(max_tokens, (int64_t)UINT32_MAX);
	REFUSED(max_tokens, 0); /* without an echo */
	REFUSED(min_tokens, 17);
	REFUSED(min_tokens, -1);
	REFUSED(logprobs, MX_MAX_TOP_LOGPROBS + 1);
	REFUSED(logprobs, -2);
	REFUSED(priority, 1000001);
}

static void lists_have_bounds(void **state)
{
	(void)state;
	struct mx_api_request r = right();
	r.n_prompts = 0;
	check_refused(&r, "prompt");
	static const int32_t ids[2] = {5, -1};
	struct mx_api_prompt bad = {.ids = ids, .n_ids = 2};
	r = right();
	r.prompts = &bad;
	check_refused(&r, "prompt");
	bad.n_ids = 0;
	check_refused(&r, "prompt");
	struct mx_api_text stops[MX_API_MAX_STOPS + 1];
	for (int i = 0; i <= MX_API_MAX_STOPS; i++)
		stops[i] = (struct mx_api_text){"x", 1};
	r = right();
	r.stops = stops;
	r.n_stops = MX_API_MAX_STOPS + 1;
	check_refused(&r, "stop");
	r.n_stops = 1;
	stops[0].len = 0;
	check_refused(&r, "stop");
	r = right();
	r.stop_ids = ids;
	r.n_stop_ids = 2;
	check_refused(&r, "stop_token_ids");
	struct mx_logit_bias bias = {.token = 1, .bias = 101};
	r = right();
	r.bias = &bias;
	r.n_bias = 1;
	check_refused(&r, "logit_bias");
	bias = (struct mx_logit_bias){.token = -1, .bias = 1};
	check_refused(&r, "logit_bias");
	r = right();
	r.cache_salt = (struct mx_api_text){"a\0b", 3};
	check_refused(&r, "cache_salt");
	r.cache_salt = (struct mx_api_text){"", 0};
	check_refused(&r, "cache_salt");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_right_is_taken_and_made_plain),
		cmocka_unit_test(numbers_have_bounds),
		cmocka_unit_test(lists_have_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
