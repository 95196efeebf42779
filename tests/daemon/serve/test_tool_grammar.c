/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of answers that must call tools: whatever text one allows, the format's parser reads it
 * as calls of the tools, with arguments that obey their schemas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/serve/tool_grammar.h"
#include "grammar/matcher.h"
#include "proto/tools/parser.h"

static const char tools_text[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":0,"
	"\"maximum\":99},\"unit\":{\"type\":\"string\",\"enum\":[\"C\",\"F\"]},\"opts\":{\"type\":"
	"\"object\",\"properties\":{\"deep\":{\"type\":\"boolean\"}},\"required\":[\"deep\"],"
	"\"additionalProperties\":false}},\"required\":[\"city\",\"days\"],"
	"\"additionalProperties\":false}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"clock\"}}]";

static json_t *tools;
static struct mx_arena arena;
static const struct mx_tool_types *types;
static struct mx_grammar_vocab *vocab; /* token i is the byte i */
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
	uint8_t text[256];
	size_t offsets[257];
	struct mx_err err = {0};
	for (unsigned i = 0; i < 256; i++) {
		text[i] = (uint8_t)i;
		offsets[i] = i;
	}
	offsets[256] = 255; /* the last byte stands for marks that are tokens */
	tools = json_loads(tools_text, 0, NULL);
	const char *seed = getenv("MIXD_TEST_SEED");
	rng = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng);
	if (mx_grammar_vocab_new(text, offsets, 256, NULL, 0, 1 << 20, &vocab, &err) != MX_OK)
		return -1;
	return tools && mx_tool_types_read(tools, &arena, &types) == MX_OK ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	json_decref(tools);
	mx_arena_free(&arena);
	mx_grammar_vocab_unref(vocab);
	return 0;
}

static struct mx_grammar *compile(const struct mx_tool_grammar *g, struct mx_err *err)
{
	struct mx_rules *rules = NULL;
	struct mx_grammar *grammar = NULL;
	*err = (struct mx_err){0};
	assert_int_equal(mx_rules_new(&rules), MX_OK);
	uint32_t root = mx_tool_grammar_build(rules, g, err);
	if (root)
		(void)mx_grammar_compile(rules, root, NULL, &grammar, err);
	else if (err->status == MX_OK)
		(void)mx_rules_error(rules, err);
	mx_rules_free(rules);
	return grammar;
}

/* Draws a text of the grammar. begin: the mark of calls, NULL = none. */
static void write_text(struct mx_grammar *grammar, const char *begin, struct mx_buf *out)
{
	struct mx_matcher *m = NULL;
	assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
	for (;;) {
		uint32_t bits[8], n = 0;
		unsigned char allowed[256];
		mx_status st = mx_matcher_mask(m, bits);
		if (mx_matcher_may_end(m) && (st == MX_E_NOTFOUND || !draw(3)))
			break;
		if (st != MX_OK || out->len > 100000)
			fail_msg("%s: %s", mx_status_str(st), mx_buf_str(out));
		/* chance alone would not come upon the end of reasoning and of strings without quotes */
		static const char *const marks[] = {"</think>",     "[/THINK]",
		                                    "<|end|>",      "\n</parameter>",
		                                    "</arg_value>", "</｜DSML｜parameter>",
		                                    "<|\"|>",       "<escape>"};
		const char *mark = begin && !draw(3) ? begin : marks[draw(8)];
		if (!draw(8) && mx_matcher_accept_bytes(m, mark, strlen(mark))) {
			mx_buf_puts(out, mark);
			continue;
		}
		/* what ends strings, numbers and lists comes more often, and text is mostly readable */
		bool ends = draw(2), readable = draw(10);
		for (int round = 0; round < 3 && !n; round++)
			for (unsigned i = 0; i < 256; i++)
				if ((bits[i / 32] >> (i % 32) & 1) &&
				    (round == 2 || (round == 0 && ends && memchr("\"}])<,\n", (int)i, 7)) ||
				     (round == 1 && (!readable || (i >= 32 && i < 127)))))
					allowed[n++] = (unsigned char)i;
		int32_t token = allowed[draw(n)];
		assert_true(mx_matcher_accept(m, token));
		mx_buf_putc(out, (char)token);
	}
	mx_matcher_free(m);
}

struct seen {
	struct mx_buf name, arguments;
	unsigned calls, broken;
	bool content;
};

static void on_event(void *arg, const struct mx_tool_event *e)
{
	struct seen *s = arg;
	switch (e->kind) {
	case MX_TOOL_CONTENT: s->content = true; break;
	case MX_TOOL_REASONING: break;
	case MX_TOOL_CALL_BEGIN:
		mx_buf_clear(&s->name);
		mx_buf_clear(&s->arguments);
		mx_buf_append(&s->name, e->text, e->len);
		break;
	case MX_TOOL_CALL_ARGUMENTS: mx_buf_append(&s->arguments, e->text, e->len); break;
	case MX_TOOL_CALL_CUT:
	case MX_TOOL_CALL_BROKEN: s->broken++; break;
	case MX_TOOL_CALL_END: {
		json_t *v = json_loadb(mx_buf_str(&s->arguments), s->arguments.len, JSON_ALLOW_NUL, NULL);
		bool ok = json_is_object(v);
		if (ok && !strcmp(mx_buf_str(&s->name), "look")) {
			const json_t *days = json_object_get(v, "days"), *unit = json_object_get(v, "unit");
			const json_t *opts = json_object_get(v, "opts");
			ok = json_is_string(json_object_get(v, "city")) && json_is_integer(days) &&
			     json_integer_value(days) >= 0 && json_integer_value(days) < 100 &&
			     (!unit || !strcmp(json_string_value(unit), "C") ||
			      !strcmp(json_string_value(unit), "F")) &&
			     (!opts || json_is_boolean(json_object_get(opts, "deep"))) &&
			     json_object_size(v) == 2u + !!unit + !!opts;
		} else {
			ok = ok && !strcmp(mx_buf_str(&s->name), "clock") && !json_object_size(v);
		}
		json_decref(v);
		s->broken += !ok;
		s->calls++;
		break;
	}
	}
}

/* Draws texts of a grammar and parses them. */
static void check(const struct mx_tool_grammar *g, unsigned rounds)
{
	struct mx_err err;
	struct mx_grammar *grammar = compile(g, &err);
	if (!grammar)
		fail_msg("%s: %s", mx_tool_format_name(g->format), err.text);
	const struct mx_tool_parser_options o = {.calls = g->format,
	                                         .reasoning = g->reasoning,
	                                         .reasoning_open = g->reasoning_open,
	                                         .types = types};
	for (unsigned i = 0; i < rounds; i++) {
		struct mx_buf text = {0};
		struct seen seen = {0};
		struct mx_tool_parser *p = NULL;
		bool any = g->text == MX_TOOL_TEXT_ANY;
		write_text(grammar, any ? mx_tool_format_mark(g->format, 0) : NULL, &text);
		assert_int_equal(mx_tool_parser_create(&o, (struct mx_tool_sink){on_event, &seen}, &p),
		                 MX_OK);
		mx_tool_parser_feed(p, mx_buf_str(&text), text.len);
		mx_tool_parser_finish(p, false);
		mx_tool_parser_free(p);
		if (seen.broken || (!any && (seen.content || !seen.calls)) ||
		    (!g->several && seen.calls > 1) ||
		    (g->name && seen.calls && strcmp(mx_buf_str(&seen.name), g->name)))
			fail_msg("%s: %u calls, %u broken, content %d\n%s\nlast arguments %s",
			         mx_tool_format_name(g->format), seen.calls, seen.broken, seen.content,
			         mx_buf_str(&text), mx_buf_str(&seen.arguments));
		mx_buf_free(&text);
		mx_buf_free(&seen.name);
		mx_buf_free(&seen.arguments);
	}
	mx_grammar_unref(grammar);
}

static void every_text_is_read_as_calls(void **state)
{
	(void)state;
	const char *name;
	for (size_t i = 0; (name = mx_tool_format_name_at(i)); i++) {
		struct mx_tool_grammar g = {.format = mx_tool_format_named(name), .tools = tools};
		check(&g, 20);
		g.name = "clock";
		check(&g, 5);
		g.name = "look";
		g.several = !mx_tool_format_reasons(g.format);
		check(&g, 20);
		g.name = NULL;
		check(&g, 20);
		g.text = MX_TOOL_TEXT_ANY;
		check(&g, 10);
	}
}

/* Under tool_choice auto a call that has begun is one of a tool, with arguments that obey. */
static void text_may_come_in_front(void **state)
{
	(void)state;
	static const struct {
		const char *format, *text;
		bool taken;
	} cases[] = {
		{"hermes", "I look.\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>",
	     true},
		{"hermes", "I look.\n<tool_call>\n{\"name\": \"other\"", false},
		{"hermes", "1 < 2, <tool_cal", true},
		{"hermes", "", true},
		{"qwen3_coder", "<tool_call>\n<function=clock>\n</function>\n</tool_call>", true},
		{"qwen3_coder", "<tool_call>\n<function=look>\n<parameter=days>\n1", false},
		{"llama3_json", "{\"name\": \"clock\", \"parameters\": {}}", true},
		{"llama3_json", "A {\"name\": \"other\", \"parameters\": {}}", true},
		{"llama3_json", " {\"name\": \"other\"", false},
		{"llama3_json", "<|python_tag|>{\"name\": \"clock\", \"parameters\": {}}", true},
		{"harmony", "<|channel|>final<|message|>Hello", true},
		{"harmony", "<|channel|>commentary to=functions.other", false},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_err err;
		struct mx_matcher *m = NULL;
		const struct mx_tool_grammar g = {.format = mx_tool_format_named(cases[i].format),
		                                  .tools = tools,
		                                  .text = MX_TOOL_TEXT_ANY};
		struct mx_grammar *grammar = compile(&g, &err);
		assert_non_null(grammar);
		assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
		bool taken = mx_matcher_accept_bytes(m, cases[i].text, strlen(cases[i].text)) &&
		             mx_matcher_may_end(m);
		if (taken != cases[i].taken)
			fail_msg("%s: %s is %staken", cases[i].format, cases[i].text, taken ? "" : "not ");
		mx_matcher_free(m);
		mx_grammar_unref(grammar);
	}
}

static void reasoning_comes_first(void **state)
{
	(void)state;
	struct mx_tool_grammar g = {.format = mx_tool_format_named("hermes"),
	                            .reasoning = mx_reasoning_format_named("think"),
	                            .tools = tools};
	check(&g, 50);
	g.reasoning_open = true;
	check(&g, 50);
}

/* A token that is a mark (MX_TOOL_MARK in front) stands where the format has the mark, and inside
 * no string of JSON; its text may. */
static void marks_may_be_tokens(void **state)
{
	(void)state;
	static const struct {
		const char *format, *reasoning, *text;
		bool taken;
	} cases[] = {
		{"hermes", NULL,
	     "\xff<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n\xff</tool_call>", true},
		{"hermes", NULL,
	     "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"</tool_call>", true},
		{"hermes", NULL,
	     "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"\xff</tool_call>", false},
		{"hermes", "think", "\xff<think>\nHm, \xff<tool_call> and\xff</think>\n\xff<tool_call>\n{",
	     true},
		{"hermes", "think", "\xff<think>\n</think>\n<tool_call>\n{\"name\": \"clo\xff</think>",
	     false},
		{"deepseek_v3", NULL,
	     "\xff<｜tool▁calls▁begin｜>\xff<｜tool▁call▁begin｜>function\xff<｜tool▁sep｜>clock\n```"
	     "json\n{}"
	     "\n```\xff<｜tool▁call▁end｜>\xff<｜tool▁calls▁end｜>",
	     true},
		{"glm45", NULL,
	     "\xff<tool_call>look\n\xff<arg_key>city\xff</arg_key>\n\xff<arg_value>Rome\xff</"
	     "arg_value>",
	     true},
		{"glm45", NULL, "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Ro\xff<arg_key>",
	     false},
		{"gemma4", "gemma4",
	     "\xff<|channel>thought\nHm\xff<channel|>\xff<|tool_call>call:look{city:\xff<|\"|>Rome\xff<"
	     "|\"|>",
	     true},
		{"harmony", NULL,
	     "\xff<|channel|>commentary to=functions.clock \xff<|constrain|>json\xff<|message|>{}",
	     true},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_err err;
		struct mx_matcher *m = NULL;
		const struct mx_tool_grammar g = {
			.format = mx_tool_format_named(cases[i].format),
			.reasoning = cases[i].reasoning ? mx_reasoning_format_named(cases[i].reasoning) : NULL,
			.tools = tools};
		struct mx_grammar *grammar = compile(&g, &err);
		assert_non_null(grammar);
		assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
		if (mx_matcher_accept_bytes(m, cases[i].text, strlen(cases[i].text)) != cases[i].taken)
			fail_msg("%s: %s is %staken", cases[i].format, cases[i].text,
			         cases[i].taken ? "not " : "");
		mx_matcher_free(m);
		mx_grammar_unref(grammar);
	}
}

static void on_text(void *arg, const struct mx_tool_event *e)
{
	struct mx_buf *texts = arg; /* content and reasoning */
	if (e->kind == MX_TOOL_CONTENT || e->kind == MX_TOOL_REASONING)
		mx_buf_append(&texts[e->kind == MX_TOOL_REASONING], e->text, e->len);
}

/* A text that is no call, after reasoning: the parser's content is that text alone. */
static void other_texts_come_after_reasoning(void **state)
{
	(void)state;
	static const struct {
		const char *calls, *reasoning;
		bool open;
	} cases[] = {{NULL, "think", false},
	             {NULL, "think", true},
	             {NULL, "mistral", false},
	             {"harmony", "harmony", false}};
	for (size_t i = 0; i < 4 * 50; i++) {
		struct mx_tool_parser_options o = {
			.calls = cases[i % 4].calls ? mx_tool_format_named(cases[i % 4].calls) : NULL,
			.reasoning = mx_reasoning_format_named(cases[i % 4].reasoning),
			.reasoning_open = cases[i % 4].open};
		struct mx_rules *rules = NULL;
		struct mx_grammar *grammar = NULL;
		struct mx_tool_parser *p = NULL;
		struct mx_buf text = {0}, texts[2] = {{0}};
		struct mx_err err = {0};
		assert_int_equal(mx_rules_new(&rules), MX_OK);
		uint32_t root = mx_tool_grammar_after_reasoning(rules, o.reasoning, o.reasoning_open,
		                                                mx_rules_bytes(rules, "{\"a\": 1}", 8));
		assert_int_equal(mx_grammar_compile(rules, root, NULL, &grammar, &err), MX_OK);
		write_text(grammar, NULL, &text);
		assert_int_equal(mx_tool_parser_create(&o, (struct mx_tool_sink){on_text, texts}, &p),
		                 MX_OK);
		mx_tool_parser_feed(p, mx_buf_str(&text), text.len);
		mx_tool_parser_finish(p, false);
		mx_tool_parser_free(p);
		if (strcmp(mx_buf_str(&texts[0]), "{\"a\": 1}") ||
		    (o.reasoning_open && text.len > 60 && !texts[1].len))
			fail_msg("%s: %s\ncontent: %s", cases[i % 4].reasoning, mx_buf_str(&text),
			         mx_buf_str(&texts[0]));
		for (size_t k = 0; k < 2; k++)
			mx_buf_free(&texts[k]);
		mx_buf_free(&text);
		mx_grammar_unref(grammar);
		mx_rules_free(rules);
	}
}

static void faults_name_their_place(void **state)
{
	(void)state;
	static const struct {
		const char *format, *parameters, *where;
	} cases[] = {
		{"hermes", "{\"properties\":{\"a\":{\"type\":\"blob\"}}}",
	     "/0/function/parameters/properties/a"},
		{"qwen3_coder", "{\"properties\":{\"a\":{\"type\":\"blob\"}}}",
	     "/0/function/parameters/properties/a"},
		{"qwen3_coder", "{\"minProperties\":1}", "/0/function/parameters/minProperties"},
		{"pythonic", "{\"required\":[\"x y\"]}", "/0/function/parameters"},
		{"qwen3_coder",
	     "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^.*</parameter>\"}},"
	     "\"required\":[\"a\"]}",
	     "/0/function/parameters/properties/a"},
		{"pythonic", "{\"type\":\"array\"}", "/0/function/parameters/type"},
		{"hermes", "{\"type\":[\"string\",\"null\"]}", "/0/function/parameters/type"},
		{"qwen3_coder", "{\"properties\":{\"a>\":{}},\"required\":[\"a>\"]}",
	     "/0/function/parameters/properties/a>"},
		{"qwen3_coder", "{\"properties\":{\"a/~b\":{\"type\":\"blob\"}}}",
	     "/0/function/parameters/properties/a~1~0b"},
		{"hermes",
	     "{\"not\":{\"not\":{\"additionalProperties\":{\"additionalProperties\":{"
	     "\"additionalProperties\":{\"additionalProperties\":{\"additionalProperties\":{"
	     "\"additionalProperties\":{\"additionalProperties\":{\"type\":\"blob\"}}}}}}}}}}",
	     "/0/function/parameters.../additionalProperties/"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *own = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters",
		                        json_loads(cases[i].parameters, 0, NULL));
		struct mx_err err;
		const struct mx_tool_grammar g = {.format = mx_tool_format_named(cases[i].format),
		                                  .tools = own};
		assert_null(compile(&g, &err));
		if (strncmp(err.where, cases[i].where, strlen(cases[i].where)) || !err.text[0])
			fail_msg("%zu: %s: %s", i, err.where, err.text);
		json_decref(own);
	}
}

/* Strings without quotes: a schema is enforced, or refused with its place. */
static void strings_without_quotes(void **state)
{
	(void)state;
	static const struct {
		const char *schema;
		const char *yes, *no; /* texts that the grammar has and has not; NULL: it is refused */
		const char *where;
	} cases[] = {
		{"{\"type\":\"string\",\"minLength\":4.0,\"maxLength\":5.0}", "abcd", "abc", NULL},
		{"{\"type\":\"string\",\"minLength\":4.0,\"maxLength\":5.0}", "ääääü", "abcdef", NULL},
		{"{\"type\":[\"string\"],\"maxLength\":2000000000}", "<", "</parameter>", NULL},
		{"{\"type\":\"string\",\"maxLength\":16777215}", "abc", "<", NULL},
		{"{\"type\":\"string\"}", "a<b </p\n</parameter", "a\x01", NULL},
		{"{\"type\":\"string\",\"maxLength\":9}", "<</</para", "abcdefghij", NULL},
		{"{\"type\":\"string\",\"minLength\":1e12}", NULL, NULL, "/minLength"},
		{"{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}", NULL, NULL, ""},
		{"{\"type\":\"string\",\"maxLength\":1.5}", NULL, NULL, "/maxLength"},
		{"{\"type\":\"string\",\"maxLength\":-1}", NULL, NULL, "/maxLength"},
		{"{\"type\":\"string\",\"pattern\":\"a\"}", "<a>", "b", NULL},
		{"{\"type\":\"string\",\"pattern\":\"^[<a-z/>]+$\"}", "a</para>", "A", NULL},
		{"{\"type\":\"string\",\"enum\":[\"a\"],\"pattern\":\"b\"}", NULL, NULL, ""},
		{"{\"type\":\"string\",\"format\":\"date\"}", "2026-11-23", "2026-13-23", NULL},
		{"{\"type\":\"string\",\"format\":\"regex\"}", NULL, NULL, "/format"},
		{"{\"type\":\"string\",\"format\":\"password\"}", "a<", "</parameter>", NULL},
		{"{\"type\":\"string\",\"oneOf\":[{\"const\":\"a\"}]}", "a", "b", NULL},
		{"{\"type\":\"string\",\"anyOf\":[{\"const\":\"a\"},{\"const\":1}]}", "a", "1", NULL},
		{"{\"type\":\"string\",\"allOf\":[{\"const\":\"a\"}]}", "a", "b", NULL},
		{"{\"type\":\"string\",\"not\":{\"const\":\"a\"}}", "ab", "a", NULL},
		{"{\"type\":\"string\",\"$ref\":\"#/$defs/x\"}", "x1", "x", NULL},
		{"{\"type\":\"string\",\"$ref\":\"#/$defs/y\"}", NULL, NULL, "/$ref"},
		{"{\"type\":\"string\",\"const\":3}", NULL, NULL, ""},
		{"{\"type\":\"string\",\"enum\":[3,null]}", NULL, NULL, ""},
		{"{\"type\":\"string\",\"enum\":[3,\"a\"]}", "a", "3", NULL},
		{"{\"type\":\"string\",\"enum\":[\"a\",\"abc\"],\"minLength\":2}", "abc", "a", NULL},
		{"{\"enum\":[\"a\",\"b\"],\"const\":\"b\"}", "b", "a", NULL},
		{"{\"enum\":[\"a\",\"b\"],\"const\":\"c\"}", NULL, NULL, ""},
		{"{\"enum\":[\"a\",\"<b>\"]}", "<b>", "\"a\"", NULL},
		{"{\"const\":\"a\"}", "a", "\"a\"", NULL},
		{"{\"type\":[\"string\",\"null\"],\"enum\":[\"a\"]}", "a", "\"a\"", NULL},
		{"{\"type\":[\"string\",\"null\"]}", "\"a\"", "a", NULL},
		{"{\"enum\":[\"a\",1]}", "\"a\"", "a", NULL},
		{"{\"anyOf\":[{\"const\":\"a\"}]}", "\"a\"", "a", NULL},
		{"{\"enum\":[\"a\",\"x</parameter>\"]}", "a", "x</parameter>", NULL},
		{"{\"const\":\"</parameter>\"}", NULL, NULL, ""},
		/* strings inside JSON: the first end tag is that of the value */
		{"{\"type\":\"array\"}", "[\"< <b>\\u003c/<\\/\"]", "[\"</parameter>\"]", NULL},
		{"{\"type\":\"array\",\"items\":{\"maxLength\":3}}", "[\"\\u003c/\"]", "[\"<\"]", NULL},
		{"{\"enum\":[[\"</parameter>\"],1]}", "[\"\\u003c/parameter>\"]", "[\"</parameter>\"]",
	     NULL},
		{"{\"properties\":{\"<a\":{\"const\":1}},\"required\":[\"<a\"]}", "{\"\\u003ca\":1}",
	     "{\"<a\":1}", NULL},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *own =
			json_pack("[{s:{s:s,s:{s:{s:o},s:[s],s:{s:{s:s}}}}}]", "function", "name", "f",
		              "parameters", "properties", "a/b", json_loads(cases[i].schema, 0, NULL),
		              "required", "a/b", "$defs", "x", "pattern", "\\d");
		assert_non_null(own);
		struct mx_err err;
		char text[256];
		const struct mx_tool_grammar g = {.format = mx_tool_format_named("qwen3_coder"),
		                                  .tools = own};
		struct mx_grammar *grammar = compile(&g, &err);
		if (cases[i].where) {
			snprintf(text, sizeof(text), "/0/function/parameters/properties/a~1b%s",
			         cases[i].where);
			if (grammar || strcmp(err.where, text) || !err.text[0])
				fail_msg("%s: %s: %s", cases[i].schema, err.where, err.text);
		} else if (!grammar) {
			fail_msg("%s: %s: %s", cases[i].schema, err.where, err.text);
		}
		for (size_t k = 0; k < 2 && grammar; k++) {
			struct mx_matcher *m = NULL;
			int n = snprintf(text, sizeof(text),
			                 "<tool_call>\n<function=f>\n<parameter=a/b>\n%s\n</parameter>\n"
			                 "</function>\n</tool_call>",
			                 k ? cases[i].no : cases[i].yes);
			assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
			bool taken = mx_matcher_accept_bytes(m, text, (size_t)n) && mx_matcher_may_end(m);
			mx_matcher_free(m);
			if (taken == (k == 1))
				fail_msg("%s: %s is %staken", cases[i].schema, text, taken ? "" : "not ");
		}
		mx_grammar_unref(grammar);
		json_decref(own);
	}
}

/* What the schema says of all arguments together holds in notations of their own. */
static void arguments_without_an_object(void **state)
{
	(void)state;
	static const struct {
		const char *format, *schema, *yes, *no; /* the text between the brackets of a call */
	} cases[] = {
		{"pythonic", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":1}", "b=1", ""},
		{"pythonic", "{\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":1}", "b=1", "a=1, b=1"},
		{"pythonic",
	     "{\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"required\":[\"a\"]},"
	     "{\"required\":[\"b\"]}]}",
	     "b=1", "a=1, b=1"},
		{"pythonic", "{\"required\":[\"x\"],\"additionalProperties\":{\"type\":\"integer\"}}",
	     "x=1", "x=\"a\""},
		{"pythonic",
	     "{\"properties\":{\"a\":{\"$ref\":\"#\"},\"n\":{\"type\":\"integer\"}},"
	     "\"additionalProperties\":false}",
	     "a={\"a\": {\"n\": 2}}, n=1", "a={\"b\": 1}"},
		{"pythonic", "{\"properties\":{\"a b\":{},\"c\":{\"$ref\":\"#/properties/a%20b\"}}}", "c=1",
	     "a b=1"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *own = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters",
		                        json_loads(cases[i].schema, 0, NULL));
		struct mx_err err;
		const struct mx_tool_grammar g = {.format = mx_tool_format_named(cases[i].format),
		                                  .tools = own};
		struct mx_grammar *grammar = compile(&g, &err);
		if (!grammar)
			fail_msg("%s: %s: %s", cases[i].schema, err.where, err.text);
		for (size_t k = 0; k < 2; k++) {
			struct mx_matcher *m = NULL;
			char text[256];
			int n = snprintf(text, sizeof(text), "[f(%s)]", k ? cases[i].no : cases[i].yes);
			assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
			bool taken = mx_matcher_accept_bytes(m, text, (size_t)n) && mx_matcher_may_end(m);
			mx_matcher_free(m);
			if (taken == (k == 1))
				fail_msg("%s: %s is %staken", cases[i].schema, text, taken ? "" : "not ");
		}
		mx_grammar_unref(grammar);
		json_decref(own);
	}
}

/* A long enum has all its values. */
static void long_enums_are_whole(void **state)
{
	(void)state;
	json_t *values = json_array();
	for (int i = 0; i < 1000; i++)
		json_array_append_new(values, json_sprintf("v%d", i));
	json_t *own = json_pack("[{s:{s:s,s:{s:{s:{s:o}},s:[s]}}}]", "function", "name", "f",
	                        "parameters", "properties", "a", "enum", values, "required", "a");
	struct mx_err err;
	const struct mx_tool_grammar g = {.format = mx_tool_format_named("qwen3_coder"), .tools = own};
	struct mx_grammar *grammar = compile(&g, &err);
	assert_non_null(grammar);
	static const char text[] = "<tool_call>\n<function=f>\n<parameter=a>\nv999\n</parameter>";
	struct mx_matcher *m = NULL;
	assert_int_equal(mx_matcher_new(grammar, vocab, &m), MX_OK);
	assert_true(mx_matcher_accept_bytes(m, text, sizeof(text) - 1));
	mx_matcher_free(m);
	mx_grammar_unref(grammar);
	json_decref(own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_text_is_read_as_calls),
		cmocka_unit_test(text_may_come_in_front),
		cmocka_unit_test(reasoning_comes_first),
		cmocka_unit_test(marks_may_be_tokens),
		cmocka_unit_test(other_texts_come_after_reasoning),
		cmocka_unit_test(faults_name_their_place),
		cmocka_unit_test(strings_without_quotes),
		cmocka_unit_test(arguments_without_an_object),
		cmocka_unit_test(long_enums_are_whole),
	};
	return cmocka_run_group_tests(tests, start, stop);
}
