/* SPDX-License-Identifier: Apache-2.0 */
/* A choice, against a plain search for stop strings in the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/serve/choice.h"

static struct mx_tokenizer *tokenizer;
static uint64_t rng;

static uint32_t draw(uint32_t n)
{
	rng += 0x9e3779b97f4a7c15u;
	uint64_t z = rng;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ z >> 31) % n);
}

static int load(void **state)
{
	(void)state;
	char dir[512];
	const char *src = getenv("srcdir");
	struct mx_err err = {0};
	snprintf(dir, sizeof(dir), "%s/models/demo", src ? src : ".");
	if (mx_tokenizer_load(dir, &tokenizer, &err) != MX_OK) {
		print_message("%s\n", err.text);
		return -1;
	}
	return 0;
}

static int unload(void **state)
{
	(void)state;
	mx_tokenizer_destroy(tokenizer);
	return 0;
}

/* The first stop string in the text: the earliest, and the longest of those that begin there. */
static bool plain_find(const struct mx_buf *text, const struct mx_choice_rules *r, size_t *out_at,
                       int32_t *out_stop)
{
	for (size_t at = 0; at < text->len; at++) {
		*out_stop = -1;
		for (uint32_t i = 0; i < r->n_stops; i++)
			if (text->len - at >= r->stops[i].len &&
			    !memcmp(text->data + at, r->stops[i].s, r->stops[i].len) &&
			    (*out_stop < 0 || r->stops[i].len > r->stops[*out_stop].len))
				*out_stop = (int32_t)i;
		if (*out_stop >= 0) {
			*out_at = at;
			return true;
		}
	}
	return false;
}

/* One random text with random stops, most of them pieces of it. */
static void compare_once(void)
{
	int32_t ids[48];
	uint32_t n = 1 + draw(48);
	/* few different tokens, among them single bytes, so that stops begin often */
	for (uint32_t i = 0; i < n; i++)
		ids[i] = draw(3) ? (int32_t)(1 + draw(256)) : (int32_t)(1 + draw(4000));
	struct mx_buf whole = {0}, so_far = {0};
	struct mx_decoder d;
	mx_decoder_init(&d, tokenizer, true);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(mx_decoder_push(&d, ids[i], &whole), MX_OK);
	assert_int_equal(mx_decoder_finish(&d, &whole), MX_OK);

	struct mx_api_text stops[4];
	char random_stop[4] = {(char)('a' + draw(3)), (char)('a' + draw(3)), 'x', 0};
	struct mx_choice_rules r = {.tokenizer = tokenizer,
	                            .stops = stops,
	                            .skip_special = true,
	                            .logprobs = -1,
	                            .include_stop = draw(2) != 0};
	r.n_stops = draw(5);
	for (uint32_t i = 0; i < r.n_stops; i++) {
		size_t len = 1 + draw(12), at = whole.len ? draw((uint32_t)whole.len) : 0;
		if (len > whole.len - at)
			len = whole.len - at;
		stops[i] = (struct mx_api_text){whole.data + at, len};
		if (len == 0 || draw(4) == 0)
			stops[i] = (struct mx_api_text){random_stop, 1 + draw(3)};
		if (!stops[i].len) /* of an empty text */
			r.n_stops = i;
	}
	struct mx_arena arena = {0};
	assert_int_equal(mx_stops_build(&arena, stops, r.n_stops, &r.automaton), MX_OK);

	struct mx_choice c;
	mx_choice_init(&c, &r, NULL, 0);
	mx_decoder_init(&d, tokenizer, true);
	size_t at = 0;
	int32_t stop = -1;
	uint32_t i = 0;
	for (bool more = true; i < n && more; i++) {
		assert_int_equal(mx_decoder_push(&d, ids[i], &so_far), MX_OK);
		more = mx_choice_token(&c, ids[i], false, NULL);
		assert_int_equal(more, !plain_find(&so_far, &r, &at, &stop));
		/* no text is ready that could still become part of a stop string */
		assert_true(c.ready.text.len <= so_far.len);
		assert_memory_equal(mx_buf_str(&c.ready.text), mx_buf_str(&so_far), c.ready.text.len);
	}
	mx_choice_finish(&c, false);
	if (stop < 0) {
		assert_int_equal(mx_decoder_finish(&d, &so_far), MX_OK);
		plain_find(&so_far, &r, &at, &stop);
	}
	size_t want = stop < 0 ? so_far.len : at + (r.include_stop ? stops[stop].len : 0);
	assert_int_equal(c.ready.text.len, want);
	assert_memory_equal(mx_buf_str(&c.ready.text), mx_buf_str(&so_far), want);
	if (stop < 0)
		assert_int_equal(c.stop, -1);
	else
		assert_memory_equal(stops[c.stop].s, stops[stop].s, stops[stop].len);
	assert_false(c.failed);
	mx_choice_free(&c);
	mx_arena_free(&arena);
	mx_decoder_free(&d);
	mx_buf_free(&whole);
	mx_buf_free(&so_far);
}

static void text_ends_at_the_first_stop(void **state)
{
	(void)state;
	rng = (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)rng);
	for (int round = 0; round < 5000; round++)
		compare_once();
}

static void min_tokens_hides_stops(void **state)
{
	(void)state;
	struct mx_tokens t = {0};
	struct mx_err err = {0};
	assert_int_equal(mx_tokenizer_encode(tokenizer, "one two three two", 17, false, 0, &t, &err),
	                 MX_OK);
	struct mx_api_text stop = {" two", 4};
	struct mx_choice_rules r = {
		.tokenizer = tokenizer, .stops = &stop, .n_stops = 1, .min_tokens = 3, .logprobs = -1};
	struct mx_arena arena = {0};
	assert_int_equal(mx_stops_build(&arena, &stop, 1, &r.automaton), MX_OK);
	struct mx_choice c;
	mx_choice_init(&c, &r, NULL, 0);
	size_t used = 0;
	while (used < t.n && mx_choice_token(&c, t.ids[used++], false, NULL))
		;
	mx_choice_finish(&c, false);
	assert_string_equal(mx_buf_str(&c.ready.text), "one two three");
	assert_int_equal(c.stop, 0);
	mx_choice_free(&c);
	mx_arena_free(&arena);
	mx_tokens_free(&t);
}

static void alternatives_stay_with_their_token(void **state)
{
	(void)state;
	struct mx_choice_rules r = {.tokenizer = tokenizer, .logprobs = 2, .want_ids = true};
	struct mx_choice c;
	mx_choice_init(&c, &r, NULL, 0);
	for (int i = 0; i < 100; i++) {
		struct mx_logprob lp = {.token = 300 + i, .logprob = -(float)i, .n_top = 2};
		lp.top[0] = (struct mx_top_token){300 + i, -(float)i};
		lp.top[1] = (struct mx_top_token){i, -200};
		assert_true(mx_choice_token(&c, 300 + i, i == 99, &lp));
	}
	mx_choice_finish(&c, false);
	assert_int_equal(c.ready.n_tokens, 100);
	assert_int_equal(c.ready.n_ids, 100);
	for (int i = 0; i < 100; i++) {
		const struct mx_api_token *t = &c.ready.tokens[i];
		assert_int_equal(t->id, 300 + i);
		assert_int_equal(c.ready.top[2 * i].token, 300 + i);
		assert_int_equal(c.ready.top[2 * i + 1].token, i);
		assert_true(i == 0 || t->text_offset >= t[-1].text_offset);
	}
	/* the last one ended the text and is not part of it */
	assert_int_equal(c.ready.tokens[99].text_offset, c.text_chars);
	mx_choice_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_ends_at_the_first_stop),
		cmocka_unit_test(min_tokens_hides_stops),
		cmocka_unit_test(alternatives_stay_with_their_token),
	};
	return cmocka_run_group_tests(tests, load, unload);
}
