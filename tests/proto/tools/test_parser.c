/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers of tool calls and reasoning: samples of each format, cut anywhere, and damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/proto/tools/record.h"

static struct mx_arena arena;
static const struct mx_tool_types *types;
static uint64_t rng;

static uint32_t draw(uint32_t n)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ z >> 31) % n);
}

static int start(void **state)
{
	(void)state;
	json_t *tools = json_loads(mx_sample_tools, 0, NULL);
	mx_status st = mx_tool_types_read(tools, &arena, &types);
	json_decref(tools);
	const char *seed = getenv("MIXD_TEST_SEED");
	rng = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng);
	return types && st == MX_OK ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	mx_arena_free(&arena);
	return 0;
}

static struct mx_tool_parser_options options_of(const struct mx_sample *s)
{
	const struct mx_tool_parser_options o = {
		.calls = s->calls ? mx_tool_format_named(s->calls) : NULL,
		.reasoning = s->reasoning ? mx_reasoning_format_named(s->reasoning) : NULL,
		.reasoning_open = s->open,
		.types = types,
		.seed = 1};
	assert_true(!s->calls == !o.calls);
	assert_true(!s->reasoning == !o.reasoning);
	return o;
}

static void check(const struct mx_sample *s, const char *text, size_t n, size_t cut, size_t step,
                  bool cut_off, const char *expected)
{
	const struct mx_tool_parser_options o = options_of(s);
	struct mx_record r;
	mx_record(&o, text, n, cut, step, cut_off, &r);
	if (r.bad || strcmp(mx_buf_str(&r.events), expected))
		fail_msg("%s/%s, cut at %zu, then every %zu%s\ntext     %.*s\nevents   %s\nexpected %s",
		         s->calls ? s->calls : "-", s->reasoning ? s->reasoning : "-", cut, step,
		         r.bad ? ", impossible events" : "", (int)n, text, mx_buf_str(&r.events), expected);
	mx_record_free(&r);
}

static void samples_give_their_events(void **state)
{
	(void)state;
	for (size_t i = 0; i < mx_n_samples; i++)
		check(&mx_samples[i], mx_samples[i].text, strlen(mx_samples[i].text), 0, SIZE_MAX, false,
		      mx_samples[i].events);
}

static void cuts_change_nothing(void **state)
{
	(void)state;
	for (size_t i = 0; i < mx_n_samples; i++) {
		const struct mx_sample *s = &mx_samples[i];
		size_t n = strlen(s->text);
		for (size_t cut = 1; cut < n; cut++)
			check(s, s->text, n, cut, SIZE_MAX, false, s->events);
		for (size_t step = 1; step < 8; step++)
			check(s, s->text, n, 0, step, false, s->events);
	}
}

/* Returns true if events are the beginning of others: but for the end of a call that was cut off,
 * and white space at the end, which belongs to a mark if one comes. */
static bool is_beginning(struct mx_buf *events, const char *of)
{
	const char *end = "T)";
	for (; *end; end++)
		if (events->len && events->data[events->len - 1] == *end)
			events->len--;
	while (events->len && strchr(" \n", events->data[events->len - 1]))
		events->len--;
	return !strncmp(mx_buf_str(events), of, events->len) ||
	       (events->len == 2 && !memcmp(events->data, "C(", 2)); /* white space alone */
}

/* An answer that is cut off is the beginning of the whole one, wherever: a call that has begun
 * stays one, half a mark is dropped, and nothing of it depends on the pieces. */
static void answers_may_be_cut_off(void **state)
{
	(void)state;
	for (size_t i = 0; i < mx_n_samples; i++) {
		const struct mx_sample *s = &mx_samples[i];
		const struct mx_tool_parser_options o = options_of(s);
		/* what begins calls without a mark is text until a call has its name */
		bool bare = s->calls && (!strcmp(s->calls, "llama3_json") || !strcmp(s->calls, "pythonic"));
		for (size_t n = 1; n < strlen(s->text); n++) {
			struct mx_record whole;
			mx_record(&o, s->text, n, 0, SIZE_MAX, true, &whole);
			check(s, s->text, n, 0, 1 + n % 7, true, mx_buf_str(&whole.events));
			if (whole.bad || (!bare && !is_beginning(&whole.events, s->events)))
				fail_msg("%s\ntext   %.*s\nevents %s\nall    %s", s->calls ? s->calls : "-", (int)n,
				         s->text, mx_buf_str(&whole.events), s->events);
			mx_record_free(&whole);
		}
	}
}

/* What is told of answers that are cut off. */
static void cut_calls_have_their_arguments(void **state)
{
	(void)state;
	static const struct mx_sample cases[] = {
		{"hermes", NULL, false, "I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"ab",
	     "C(I look.)B(*,f)A({\"s\": \"ab)T"},
		{"hermes", NULL, false, "I look.\n<tool_call>{\"name\": \"f", "C(I look.)"},
		{"hermes", NULL, false, "I look.\n<tool_c", "C(I look.)"},
		{"hermes", NULL, false, "I look.\n", "C(I look.\n)"},
		{"hermes", "think", true, "So.\n</thi", "R(So.)"},
		{"hermes", "think", false, "<thi", ""},
		{"qwen3_coder", NULL, false, "<tool_call>\n<function=f>\n<parameter=s>\nab\n</para",
	     "B(*,f)A({\"s\": \"ab)T"},
		{"llama3_json", NULL, false, "{\"a\": [1, 2", "C({\"a\": [1, 2)"},
		{"llama3_json", NULL, false, "{\"name\": \"f\", \"parameters\": {\"n\": 1",
	     "B(*,f)A({\"n\": 1)T"},
		{"pythonic", NULL, false, "[f(n=1, s='a", "B(*,f)A({\"n\": 1)T"},
		{"harmony", "harmony", false, "<|channel|>final<|message|>a <|e", "C(a )"},
		{"harmony", "harmony", false,
	     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\":",
	     "B(*,f)A({\"n\":)T"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct mx_tool_parser_options o = options_of(&cases[i]);
		struct mx_record r;
		mx_record(&o, cases[i].text, strlen(cases[i].text), 0, SIZE_MAX, true, &r);
		assert_false(r.bad);
		assert_string_equal(mx_buf_str(&r.events), cases[i].events);
		mx_record_free(&r);
	}
}

/* Damages a sample: cuts it off, or changes, drops, doubles or moves some bytes. */
static size_t damage(const char *text, size_t n, char *out)
{
	memcpy(out, text, n);
	for (uint32_t k = draw(4) + 1; k && n > 1; k--) {
		size_t at = draw((uint32_t)n), len = 1 + draw(12);
		len = len < n - at ? len : n - at;
		switch (draw(4)) {
		case 0: n = at + 1; break;
		case 1: out[at] = "{}[]\"<>|\\ \n:,/a1"[draw(16)]; break;
		case 2:
			memmove(out + at, out + at + len, n - at - len);
			n -= len;
			break;
		default: memmove(out + draw((uint32_t)(n - len + 1)), out + at, len);
		}
	}
	return n;
}

/* Whatever the text: the events are possible ones, do not depend on cuts, complete calls have JSON
 * objects for arguments, and if there is neither a complete call nor reasoning, the text is all
 * there. */
static void nothing_is_lost(void **state)
{
	(void)state;
	char text[4096];
	for (unsigned round = 0; round < 100; round++)
		for (size_t i = 0; i < mx_n_samples; i++) {
			const struct mx_sample *s = &mx_samples[i];
			size_t n = damage(s->text, strlen(s->text), text);
			const struct mx_tool_parser_options o = options_of(s);
			struct mx_record r;
			text[n] = 0;
			mx_record(&o, text, n, 0, SIZE_MAX, false, &r);
			bool plain = !r.n_ends && !r.reasoned && !s->reasoning;
			if (r.bad || (plain && (r.text.len != n || memcmp(mx_buf_str(&r.text), text, n))))
				fail_msg("%s\ntext   %s\nevents %s\nkept   %s", s->calls, text,
				         mx_buf_str(&r.events), mx_buf_str(&r.text));
			check(s, text, n, 0, 1 + draw(5), false, mx_buf_str(&r.events));
			mx_record_free(&r);
			mx_record(&o, text, n, 0, SIZE_MAX, true, &r);
			check(s, text, n, 0, 1 + draw(5), true, mx_buf_str(&r.events));
			mx_record_free(&r);
		}
}

/* A large answer takes time in proportion to its length, however it is built. */
static void large_answers_are_quick(void **state)
{
	(void)state;
	static const char *const parts[] = {" ", "<", "<tool_call>",
	                                    "{\"a\":", "<tool_call>{\"name\":"};
	const struct mx_sample s = {.calls = "hermes", .reasoning = "think"};
	const struct mx_tool_parser_options o = options_of(&s);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		struct mx_buf text = {0};
		while (text.len < 1 << 18)
			mx_buf_puts(&text, parts[i]);
		clock_t t = clock();
		struct mx_record r;
		mx_record(&o, text.data, text.len, 0, 3, false, &r);
		assert_false(r.bad);
		assert_int_equal(r.text.len, text.len);
		assert_true(clock() - t < 5 * CLOCKS_PER_SEC);
		mx_record_free(&r);
		mx_buf_free(&text);
	}
}

static void prompts_say_where_reasoning_stands(void **state)
{
	(void)state;
	static const struct {
		const char *format, *prompt;
		bool open, over;
	} cases[] = {
		{"think", "assistant\n<think>\n", true, false},
		{"think", "assistant\n<think>\n\n</think>\n\n", false, true},
		{"think", "<think>a</think> b", false, false},
		{"think", "think>", false, false},
		{"think", "", false, false},
		{"mistral", "[/THINK]", false, true},
		{"harmony", "<|start|>assistant", false, false},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct mx_reasoning_format *f = mx_reasoning_format_named(cases[i].format);
		size_t n = strlen(cases[i].prompt);
		assert_int_equal(mx_reasoning_is_open(f, cases[i].prompt, n), cases[i].open);
		assert_int_equal(mx_reasoning_is_over(f, cases[i].prompt, n), cases[i].over);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(samples_give_their_events),
		cmocka_unit_test(cuts_change_nothing),
		cmocka_unit_test(answers_may_be_cut_off),
		cmocka_unit_test(cut_calls_have_their_arguments),
		cmocka_unit_test(nothing_is_lost),
		cmocka_unit_test(large_answers_are_quick),
		cmocka_unit_test(prompts_say_where_reasoning_stands),
	};
	return cmocka_run_group_tests(tests, start, stop);
}
