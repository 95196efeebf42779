/* SPDX-License-Identifier: Apache-2.0 */
/* Principals and their limits: buckets under a clock of the test, who is who, what a new file
 * keeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/serve/keys.h"
#include "daemon/serve/limits.h"

#define S  1000000000ull
#define M  (60 * S)
#define T0 (1000 * S)

static void a_bucket_gives_a_minutes_worth_and_fills_evenly(void **state)
{
	(void)state;
	struct mx_bucket b = {0};
	assert_true(mx_bucket_take(&b, 1000000, T0)); /* no limit */
	mx_bucket_set(&b, 60, T0);
	for (int i = 0; i < 60; i++)
		assert_true(mx_bucket_take(&b, 1, T0));
	assert_false(mx_bucket_take(&b, 1, T0));
	assert_int_equal(mx_bucket_left(&b, T0), 0);
	assert_in_range(mx_bucket_wait_ns(&b, 1, T0), S, S + 10);
	assert_in_range(mx_bucket_wait_ns(&b, 60, T0), M, M + 10);
	assert_false(mx_bucket_take(&b, 1, T0 + S - 1000000));
	assert_true(mx_bucket_take(&b, 1, T0 + S));
	assert_false(mx_bucket_take(&b, 1, T0 + S));
	assert_int_equal(mx_bucket_left(&b, T0 + 11 * S), 10);
	assert_int_equal(mx_bucket_left(&b, T0 + 1000 * S), 60); /* no more than full */
	/* a clock that goes back gives nothing */
	assert_true(mx_bucket_take(&b, 60, T0 + 1000 * S));
	assert_false(mx_bucket_take(&b, 1, T0));
	assert_false(mx_bucket_take(&b, 1, T0 + 1000 * S));
}

static void a_debt_is_paid_first(void **state)
{
	(void)state;
	struct mx_bucket b = {0};
	mx_bucket_set(&b, 60, T0);
	mx_bucket_charge(&b, 90, T0);
	assert_int_equal(mx_bucket_left(&b, T0 + 30 * S), 0);
	assert_false(mx_bucket_take(&b, 1, T0 + 30 * S));
	assert_true(mx_bucket_take(&b, 1, T0 + 31 * S));
	assert_in_range(mx_bucket_wait_ns(&b, 5, T0 + 31 * S), 5 * S - 10, 5 * S + 10);
	mx_bucket_charge(&b, -1000, T0 + 31 * S); /* given back: at most full */
	assert_int_equal(mx_bucket_left(&b, T0 + 31 * S), 60);
}

static void no_time_gets_more_than_its_share(void **state)
{
	(void)state;
	struct mx_bucket b = {0};
	mx_bucket_set(&b, 600, T0);
	uint64_t taken = 0, seed = 1;
	for (uint64_t t = 0; t < 10 * M; t += 7 * S / 10) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		uint64_t n = seed >> 60;
		taken += mx_bucket_take(&b, n, T0 + t) ? n : 0;
		assert_true((double)taken <= 600 + 600.0 * (double)t / (double)M + 1);
	}
	assert_true(taken > 2000); /* it asked for about 6400 and was not starved */
}

static void a_new_limit_keeps_what_was_taken(void **state)
{
	(void)state;
	struct mx_bucket b = {0};
	mx_bucket_set(&b, 100, T0);
	assert_true(mx_bucket_take(&b, 30, T0));
	mx_bucket_set(&b, 50, T0);
	assert_int_equal(mx_bucket_left(&b, T0), 20);
	mx_bucket_set(&b, 200, T0);
	assert_int_equal(mx_bucket_left(&b, T0), 170);
	mx_bucket_set(&b, 0, T0);
	assert_true(mx_bucket_take(&b, 1000, T0));
}

/* A principal named `name` whose key is "key-NAME". */
static struct mx_key_settings settings(const char *name)
{
	char key[80];
	struct mx_key_settings s = {.name = name, .all_models = true, .weight = 1};
	int n = snprintf(key, sizeof(key), "key-%s", name);
	assert_int_equal(mx_key_hash(key, (size_t)n, s.hash), MX_OK);
	return s;
}

static struct mx_principal *log_in(struct mx_keys *k, const char *authorization, const char *code)
{
	struct mx_principal *who = NULL;
	struct mx_api_error err = {0};
	mx_status st = mx_keys_authenticate(k, authorization, &who, &err);
	if (code) {
		assert_int_equal(err.fault, MX_FAULT_UNAUTHENTICATED);
		assert_string_equal(err.code, code);
		assert_null(who);
	} else {
		assert_int_equal(st, MX_OK);
	}
	return who;
}

static void keys_tell_who_asks(void **state)
{
	(void)state;
	struct mx_keys *k = NULL;
	assert_null(log_in(NULL, NULL, NULL));
	assert_int_equal(mx_keys_create(&k), MX_OK);
	assert_null(log_in(k, NULL, NULL));
	const struct mx_key_settings list[] = {settings("ann"), settings("bob")};
	assert_int_equal(mx_keys_set(k, list, 2, true), MX_OK);
	assert_string_equal(mx_principal_name(log_in(k, "Bearer key-ann", NULL)), "ann");
	assert_string_equal(mx_principal_name(log_in(k, "bEARER   key-bob", NULL)), "bob");
	log_in(k, NULL, "missing_api_key");
	log_in(k, "Basic key-ann", "missing_api_key");
	log_in(k, "Bearer", "missing_api_key");
	log_in(k, "Bearer ", "missing_api_key");
	log_in(k, "Bearerkey-ann", "missing_api_key");
	log_in(k, "Bearer key-an", "invalid_api_key");
	log_in(k, "Bearer key-anne", "invalid_api_key");
	log_in(k, "Bearer key-ann ", "invalid_api_key");
	char huge[2000] = "Bearer ";
	memset(huge + 7, 'x', sizeof(huge) - 8);
	log_in(k, huge, "invalid_api_key");
	mx_keys_destroy(k);
}

/* Hashes that differ in one bit, at any place, are told apart. */
static void hashes_are_compared_whole(void **state)
{
	(void)state;
	uint8_t a[MX_KEYS_HASH_SIZE], b[MX_KEYS_HASH_SIZE];
	assert_int_equal(mx_key_hash("x", 1, a), MX_OK);
	memcpy(b, a, sizeof(a));
	assert_true(mx_key_same(a, b));
	for (size_t bit = 0; bit < 8 * sizeof(a); bit++) {
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(mx_key_same(a, b));
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

static void a_new_file_keeps_numbers_and_use(void **state)
{
	(void)state;
	struct mx_keys *k = NULL;
	struct mx_api_error err;
	assert_int_equal(mx_keys_create(&k), MX_OK);
	struct mx_key_settings first[] = {settings("ann"), settings("bob")};
	first[0].requests_per_minute = 3;
	assert_int_equal(mx_keys_set(k, first, 2, true), MX_OK);
	struct mx_principal *ann = log_in(k, "Bearer key-ann", NULL);
	uint32_t number = mx_principal_share(ann).principal;
	assert_int_not_equal(number, 0);
	assert_int_equal(mx_principal_enter(ann, &err), MX_OK);
	assert_int_equal(mx_principal_enter(ann, &err), MX_OK);
	/* bob leaves, carl comes, ann gets another key and another limit */
	struct mx_key_settings second[] = {settings("carl"), settings("ann")};
	assert_int_equal(mx_key_hash("new key", 7, second[1].hash), MX_OK);
	second[1].requests_per_minute = 4;
	second[1].weight = 9;
	assert_int_equal(mx_keys_set(k, second, 2, true), MX_OK);
	log_in(k, "Bearer key-ann", "invalid_api_key");
	log_in(k, "Bearer key-bob", "invalid_api_key");
	struct mx_principal *carl = log_in(k, "Bearer key-carl", NULL);
	assert_ptr_equal(log_in(k, "Bearer new key", NULL), ann);
	assert_int_equal(mx_principal_share(ann).principal, number);
	assert_int_equal(mx_principal_share(ann).weight, 9);
	assert_int_not_equal(mx_principal_share(carl).principal, number);
	struct mx_left requests, tokens;
	mx_principal_left(ann, &requests, &tokens);
	assert_int_equal(requests.limit, 4);
	assert_int_equal(requests.left, 2);
	assert_int_equal(tokens.limit, 0);
	mx_principal_leave(ann);
	mx_principal_leave(ann);
	/* no file: nobody needs a key */
	assert_int_equal(mx_keys_set(k, NULL, 0, false), MX_OK);
	assert_null(log_in(k, NULL, NULL));
	mx_keys_destroy(k);
}

static void limits_say_when(void **state)
{
	(void)state;
	struct mx_keys *k = NULL;
	struct mx_api_error err;
	assert_int_equal(mx_keys_create(&k), MX_OK);
	struct mx_key_settings list[] = {settings("ann")};
	list[0].requests_per_minute = 6;
	list[0].tokens_per_minute = 600;
	list[0].concurrent = 2;
	assert_int_equal(mx_keys_set(k, list, 1, true), MX_OK);
	struct mx_principal *ann = log_in(k, "Bearer key-ann", NULL);
	assert_int_equal(mx_principal_enter(ann, &err), MX_OK);
	assert_int_equal(mx_principal_enter(ann, &err), MX_OK);
	assert_int_equal(mx_principal_enter(ann, &err), MX_E_BUSY);
	assert_int_equal(err.fault, MX_FAULT_RATE_LIMITED);
	assert_non_null(strstr(err.message, "2 requests at a time"));
	mx_principal_leave(ann);
	/* prompts: never, and not now */
	assert_int_equal(mx_principal_take_prompt(ann, 601, &err), MX_E_INVALID);
	assert_int_equal(mx_principal_take_prompt(ann, 400, &err), MX_OK);
	assert_int_equal(mx_principal_take_prompt(ann, 400, &err), MX_E_BUSY);
	assert_in_range(err.retry_s, 15, 20); /* 200 tokens at 10 a second */
	mx_principal_return_prompt(ann, 400);
	assert_int_equal(mx_principal_take_prompt(ann, 400, &err), MX_OK);
	/* output beyond the rest: a debt, and nothing is admitted */
	mx_principal_charge_output(ann, 300);
	assert_int_equal(mx_principal_enter(ann, &err), MX_E_BUSY);
	assert_non_null(strstr(err.message, "600 tokens a minute"));
	assert_in_range(err.retry_s, 5, 11); /* 100 tokens and one */
	mx_principal_leave(ann);
	/* requests: 2 of 6 were taken */
	list[0].tokens_per_minute = 0;
	assert_int_equal(mx_keys_set(k, list, 1, true), MX_OK);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(mx_principal_enter(ann, &err), MX_OK);
		mx_principal_leave(ann);
	}
	assert_int_equal(mx_principal_enter(ann, &err), MX_E_BUSY);
	assert_in_range(err.retry_s, 5, 10);
	mx_keys_destroy(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bucket_gives_a_minutes_worth_and_fills_evenly),
		cmocka_unit_test(a_debt_is_paid_first),
		cmocka_unit_test(no_time_gets_more_than_its_share),
		cmocka_unit_test(a_new_limit_keeps_what_was_taken),
		cmocka_unit_test(keys_tell_who_asks),
		cmocka_unit_test(hashes_are_compared_whole),
		cmocka_unit_test(a_new_file_keeps_numbers_and_use),
		cmocka_unit_test(limits_say_when),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
