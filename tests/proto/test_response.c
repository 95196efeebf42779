/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenAI codec: what is written, whole and in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "proto/error.h"
#include "proto/json_out.h"
#include "proto/pieces.h"
#include "proto/response.h"

static void strings_are_always_valid_json(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	mx_json_string(&b, "a\"\\\n\t\x01\x7f\xc3\xa9\xff\xf0\x9f\x98\x80\xe2\x82z\0", 18);
	assert_string_equal(mx_buf_str(&b),
	                    "\"a\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\xf0\x9f\x98\x80"
	                    "\xef\xbf\xbd\xef\xbf\xbdz\\u0000\"");
	mx_buf_clear(&b);
	/* surrogates, overlong forms and beyond U+10FFFF are malformed byte by byte */
	mx_json_escape(&b, "\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80", 9);
	assert_int_equal(b.len, 9 * 3);
	assert_int_equal(mx_utf8_count(b.data, b.len), 9);
	mx_buf_clear(&b);
	mx_json_int(&b, INT64_MIN);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, -INFINITY);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, NAN);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, -0.1f);
	assert_string_equal(mx_buf_str(&b), "-9223372036854775808 -9999 null -0.100000001");
	mx_buf_free(&b);
}

static void error_has_openai_shape(void **state)
{
	(void)state;
	struct mx_api_error e;
	struct mx_buf b = {0};
	assert_int_equal(
		mx_api_fail(&e, MX_FAULT_NOT_FOUND, "model_not_found", "model", "no \"%s\"", "x"),
		MX_E_NOTFOUND);
	mx_api_error_write(&b, &e);
	assert_string_equal(
		mx_buf_str(&b),
		"{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"invalid_request_error\","
		"\"param\":\"model\",\"code\":\"model_not_found\"}}");
	mx_buf_clear(&b);
	mx_api_fail(&e, MX_FAULT_INVALID, "context_length_exceeded", NULL, "long");
	e.n_prompt_tokens = 5000;
	e.n_ctx = 2048;
	mx_api_error_write(&b, &e);
	assert_non_null(strstr(mx_buf_str(&b), "\"param\":null"));
	assert_non_null(strstr(mx_buf_str(&b), "\"n_prompt_tokens\":5000,\"n_ctx\":2048"));
	mx_buf_free(&b);
}

/* A vocabulary for the tests: id 0 is half a character, 1 and 2 are both "a", the rest letters. */
static void token_bytes(void *arg, int32_t id, struct mx_buf *out)
{
	(void)arg;
	if (id == 0)
		mx_buf_append(out, "\xe2\x80", 2);
	else
		mx_buf_putc(out, id <= 2 ? 'a' : (char)('a' + id));
}

static json_t *load(const struct mx_buf *b)
{
	assert_false(b->failed);
	json_error_t e;
	json_t *v = json_loadb(mx_buf_str(b), b->len, JSON_REJECT_DUPLICATES, &e);
	if (!v)
		fail_msg("%s: %s", e.text, mx_buf_str(b));
	return v;
}

static void legacy_logprobs_serve_lm_eval(void **state)
{
	(void)state;
	const struct mx_api_vocab vocab = {token_bytes, NULL};
	const struct mx_top_token top[12] = {[3] = {1, -0.25f}, {2, -1}, {0, -2}, {1, -0.25f}};
	const struct mx_api_token tokens[] = {
		{.id = 5, .first = true},
		{.id = 1, .logprob = -0.25f, .text_offset = 1, .n_top = 3},
		{.id = 7, .logprob = -INFINITY, .text_offset = 2, .n_top = 1},
		{.id = 0, .logprob = -3, .text_offset = 3},
	};
	const struct mx_api_choice c = {
		.vocab = &vocab, .tokens = tokens, .n_tokens = 4, .top = top, .top_stride = 3};
	struct mx_api_cursor at = {0};
	struct mx_buf b = {0};
	struct mx_pieces p = mx_pieces_begin(&b, SIZE_MAX, &at);
	assert_true(mx_pieces_legacy_logprobs(&p, &c));
	mx_pieces_end(&p);
	json_t *v = load(&b);
	json_t *expected =
		json_loads("{\"tokens\":[\"f\",\"a\",\"h\",\"bytes:\\\\xe2\\\\x80\"],"
	               "\"token_logprobs\":[null,-0.25,-9999,-3],"
	               "\"top_logprobs\":[null,{\"a\":-0.25,\"bytes:\\\\xe2\\\\x80\":-2},"
	               "{\"a\":-0.25,\"h\":-9999},{\"bytes:\\\\xe2\\\\x80\":-3}],"
	               "\"text_offset\":[0,1,2,3]}",
	               0, NULL);
	assert_non_null(expected);
	if (!json_equal(v, expected))
		fail_msg("%s", mx_buf_str(&b));
	json_decref(v);
	json_decref(expected);
	mx_buf_free(&b);
}

static void chat_logprobs_carry_bytes(void **state)
{
	(void)state;
	const struct mx_api_vocab vocab = {token_bytes, NULL};
	const struct mx_top_token top[] = {{0, -0.5f}};
	const struct mx_api_token tokens[] = {{.id = 0, .logprob = -0.5f, .n_top = 1}};
	const struct mx_api_choice c = {
		.vocab = &vocab, .tokens = tokens, .n_tokens = 1, .top = top, .top_stride = 1};
	struct mx_api_cursor at = {0};
	struct mx_buf b = {0};
	struct mx_pieces p = mx_pieces_begin(&b, SIZE_MAX, &at);
	assert_true(mx_pieces_chat_logprobs(&p, &c));
	mx_pieces_end(&p);
	assert_string_equal(mx_buf_str(&b),
	                    "{\"content\":[{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-0.5,"
	                    "\"bytes\":[226,128],\"top_logprobs\":[{\"token\":\"\xef\xbf\xbd\xef\xbf"
	                    "\xbd\",\"logprob\":-0.5,\"bytes\":[226,128]}]}]}");
	mx_buf_free(&b);
}

static void calls_and_reasoning_are_members_of_their_own(void **state)
{
	(void)state;
	const struct mx_api_call calls[] = {{.begins = true,
	                                     .ends = true,
	                                     .id = "i1",
	                                     .id_len = 2,
	                                     .name = "f",
	                                     .name_len = 1,
	                                     .arguments = "{\"a\":1}",
	                                     .len = 7},
	                                    {.index = 1,
	                                     .begins = true,
	                                     .id = "i2",
	                                     .id_len = 2,
	                                     .name = "g",
	                                     .name_len = 1,
	                                     .arguments = "{}",
	                                     .len = 2}};
	struct mx_api_choice c = {.text = "",
	                          .calls = calls,
	                          .n_calls = 2,
	                          .reasoning = "why",
	                          .reasoning_len = 3,
	                          .finish_reason = "tool_calls",
	                          .stop_token = -1};
	struct mx_api_head h;
	struct mx_buf b = {0};
	mx_api_head_init(&h, true, false, "id", 1, "m");
	mx_api_write_choice(&b, &h, &c, true, 0, NULL);
	assert_string_equal(mx_buf_str(&b),
	                    "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,"
	                    "\"reasoning_content\":\"why\",\"reasoning\":\"why\",\"tool_calls\":["
	                    "{\"id\":\"i1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
	                    "\"arguments\":\"{\\\"a\\\":1}\"}},"
	                    "{\"id\":\"i2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
	                    "\"arguments\":\"{}\"}}]},"
	                    "\"logprobs\":null,\"finish_reason\":\"tool_calls\",\"stop_reason\":null}");
	mx_buf_clear(&b);
	mx_buf_clear(&h.prefix);
	const struct mx_api_call parts[] = {
		{.index = 1, .begins = true, .id = "i2", .id_len = 2, .name = "g", .name_len = 1},
		{.index = 1, .arguments = "{}", .len = 2},
		{.index = 1, .ends = true}};
	static const char *const expected[] = {
		"{\"tool_calls\":[{\"index\":1,\"id\":\"i2\",\"type\":\"function\",\"function\":{"
		"\"name\":\"g\",\"arguments\":\"\"}}]}",
		"{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]}", "{}"};
	for (size_t i = 0; i < 3; i++) {
		c = (struct mx_api_choice){.text = "", .calls = &parts[i], .n_calls = 1, .stop_token = -1};
		mx_buf_clear(&b);
		mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
		char whole[256];
		snprintf(whole, sizeof(whole),
		         "data: {\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":null}]}\n\n",
		         expected[i]);
		assert_string_equal(mx_buf_str(&b), whole);
	}
	mx_buf_clear(&b);
	c = (struct mx_api_choice){.text = "", .reasoning = "so", .reasoning_len = 2, .stop_token = -1};
	mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
	assert_string_equal(
		mx_buf_str(&b),
		"data: {\"index\":0,\"delta\":{\"reasoning_content\":\"so\",\"reasoning\":\"so\"},"
		"\"logprobs\":null,\"finish_reason\":null}]}\n\n");
	mx_buf_free(&b);
	mx_api_head_free(&h);
}

/* ---- pieces ---- */

/* A choice with everything that can be long. */
struct long_choice {
	struct mx_api_vocab vocab;
	struct mx_api_token tokens[700];
	struct mx_top_token top[700 * 20];
	int32_t ids[3000];
	struct mx_buf text;
	struct mx_api_call calls[200];
	struct mx_api_choice c;
};

static void make_long(struct long_choice *l)
{
	*l = (struct long_choice){.vocab = {token_bytes, NULL}};
	for (uint32_t i = 0; i < 700; i++) {
		l->tokens[i] = (struct mx_api_token){.id = (int32_t)(i % 26),
		                                     .logprob = -1.0f / (float)(i + 3),
		                                     .text_offset = i,
		                                     .n_top = (uint8_t)(i % 21),
		                                     .first = i == 0};
		for (uint32_t j = 0; j < 20; j++)
			l->top[i * 20 + j] = (struct mx_top_token){(int32_t)((i + j) % 26), -(float)j};
	}
	for (int32_t i = 0; i < 3000; i++)
		l->ids[i] = i * 7919;
	/* characters of every length, escapes, and bytes that are no UTF-8, at every alignment */
	static const char *const bits[] = {
		"a",    "\xc3\xa4", "\xe2\x82\xac",         "\xf0\x9f\x98\x80", "\"",
		"\x01", "\xff",     "\x80\x80\x80\x80\x80", "\xf0\x9f"};
	for (int i = 0; i < 9000; i++)
		mx_buf_puts(&l->text, bits[(i * 5 + i / 9) % 9]);
	for (uint32_t i = 0; i < 200; i++)
		l->calls[i] = (struct mx_api_call){.index = i,
		                                   .begins = true,
		                                   .id = "call_x",
		                                   .id_len = 6,
		                                   .name = "name",
		                                   .name_len = 4,
		                                   .arguments = l->text.data,
		                                   .len = i * 7 % 3000};
	l->c = (struct mx_api_choice){.index = 3,
	                              .reasoning = l->text.data,
	                              .reasoning_len = l->text.len / 2,
	                              .calls = l->calls,
	                              .n_calls = 200,
	                              .text = l->text.data,
	                              .len = l->text.len,
	                              .vocab = &l->vocab,
	                              .tokens = l->tokens,
	                              .n_tokens = 700,
	                              .top = l->top,
	                              .top_stride = 20,
	                              .finish_reason = "length",
	                              .stop_token = -1,
	                              .ids = l->ids,
	                              .n_ids = 3000,
	                              .prompt_ids = l->ids,
	                              .n_prompt_ids = 2999};
}

static const char *spelling(void *arg, int32_t id)
{
	(void)arg;
	return id % 3 ? "\xc4\xa0piece" : NULL;
}

/* Writes answer `kind` into b, in pieces of at most about `max` bytes, or at once if max is 0. */
static bool write_kind(int kind, const struct long_choice *l, struct mx_buf *b, size_t max,
                       struct mx_api_cursor *at)
{
	const struct mx_api_usage usage = {.prompt = 1, .cached = 2, .completion = 3};
	struct mx_api_head h;
	mx_api_head_init(&h, kind % 2, kind < 4, "id", 1, "m");
	const struct mx_api_tokens tokens = {l->ids, 3000, 7, kind == 6 ? spelling : NULL, NULL};
	struct mx_api_choice c = l->c;
	bool all = false;
	switch (kind) {
	case 0:
	case 1: all = mx_api_write_choice(b, &h, &c, false, max, at); break;
	case 2: all = mx_api_write_event(b, &h, &c, MX_USAGE_COUNTS, &usage, max, at); break;
	case 3:
		c.finish_reason = NULL;
		all = mx_api_write_event(b, &h, &c, MX_USAGE_COUNTS, &usage, max, at);
		break;
	case 4: /* of a completion there is none, but nobody minds */
	case 5: all = mx_api_write_role(b, &h, &c, MX_USAGE_NULL, NULL, max, at); break;
	case 6:
	case 7: all = mx_api_write_tokens(b, &tokens, max, at); break;
	default: all = mx_api_write_text(b, c.text, c.len, max, at);
	}
	mx_api_head_free(&h);
	return all;
}

static void pieces_are_small_and_make_the_whole(void **state)
{
	(void)state;
	struct long_choice *l = malloc(sizeof(*l));
	assert_non_null(l);
	make_long(l);
	for (int kind = 0; kind <= 8; kind++) {
		struct mx_buf whole = {0};
		assert_true(write_kind(kind, l, &whole, 0, NULL));
		for (size_t max = 1; max <= 65536; max *= 256) {
			struct mx_buf b = {0}, piece = {0};
			struct mx_api_cursor at = {0};
			bool all = false;
			size_t n = 0;
			while (!all) {
				mx_buf_clear(&piece);
				all = write_kind(kind, l, &piece, max, &at);
				mx_buf_append(&b, mx_buf_str(&piece), piece.len);
				assert_true(all || piece.len > 0);
				/* an element, or a slice of 1024 characters of which each may become six */
				assert_true(piece.len <= max + 6 * 1024 + 256);
				assert_true(++n < 100000);
			}
			assert_int_equal(at.part + at.section + at.at, 0);
			assert_true(n >= whole.len / (max + 6 * 1024 + 256));
			assert_false(b.failed);
			assert_string_equal(mx_buf_str(&b), mx_buf_str(&whole));
			mx_buf_free(&b);
			mx_buf_free(&piece);
		}
		mx_buf_free(&whole);
	}
	mx_buf_free(&l->text);
	free(l);
}

static void responses_and_events(void **state)
{
	(void)state;
	struct mx_api_head h;
	struct mx_buf b = {0};
	const struct mx_api_usage usage = {.prompt = 7, .cached = 4, .completion = 3};
	struct mx_api_choice c = {.text = "x", .len = 1, .finish_reason = "stop", .stop_token = 2};

	mx_api_head_init(&h, false, false, "cmpl-1", 5, "m");
	mx_api_write_begin(&b, &h);
	mx_api_write_choice(&b, &h, &c, true, 0, NULL);
	c.index = 1;
	c.stop_text = "END";
	c.stop_len = 3;
	mx_api_write_choice(&b, &h, &c, false, 0, NULL);
	mx_api_write_end(&b, &usage);
	json_t *v = load(&b);
	const char *id, *object, *t1, *reason;
	int created, stop0, total, cached;
	assert_int_equal(json_unpack(v, "{s:s,s:s,s:i,s:[{s:i},{s:s,s:s}],s:{s:i,s:{s:i}}}", "id", &id,
	                             "object", &object, "created", &created, "choices", "stop_reason",
	                             &stop0, "text", &t1, "stop_reason", &reason, "usage",
	                             "total_tokens", &total, "prompt_tokens_details", "cached_tokens",
	                             &cached),
	                 0);
	assert_string_equal(object, "text_completion");
	assert_string_equal(reason, "END");
	assert_int_equal(stop0, 2);
	assert_int_equal(total, 10);
	assert_int_equal(cached, 4);
	json_decref(v);
	mx_api_head_free(&h);

	mx_buf_clear(&b);
	mx_api_head_init(&h, true, true, "chatcmpl-1", 5, "m");
	c = (struct mx_api_choice){.stop_token = -1, .text = "\"", .len = 1};
	mx_api_write_role(&b, &h, &c, MX_USAGE_NULL, NULL, 0, NULL);
	mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
	c.finish_reason = "length";
	mx_api_write_event(&b, &h, &c, MX_USAGE_NULL, NULL, 0, NULL);
	mx_api_write_usage_event(&b, &h, &usage);
	assert_string_equal(
		mx_buf_str(&b),
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
		"\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\\"\"},\"logprobs\":null,"
		"\"finish_reason\":null}]}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
		"\"length\",\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"
		"\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
	mx_api_head_free(&h);
	mx_buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strings_are_always_valid_json),
		cmocka_unit_test(error_has_openai_shape),
		cmocka_unit_test(legacy_logprobs_serve_lm_eval),
		cmocka_unit_test(chat_logprobs_carry_bytes),
		cmocka_unit_test(calls_and_reasoning_are_members_of_their_own),
		cmocka_unit_test(pieces_are_small_and_make_the_whole),
		cmocka_unit_test(responses_and_events),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
