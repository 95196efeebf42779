/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/tool_grammar.h"

#include <stdio.h>
#include <string.h>

#include "daemon/serve/tool_arguments.h"
#include "proto/tools/harmony.h"
#include "proto/tools/pythonic.h"
#include "proto/tools/sections.h"
#include "proto/tools/tagged.h"
#include "proto/tools/xml.h"

static uint32_t text(struct mx_rules *r, const char *s)
{
	return mx_tool_text(r, s);
}

/* One node behind the other, up to n of them. */
#define SEQ(r, ...)                                                                                \
	mx_rules_seq((r), (const uint32_t[]){__VA_ARGS__},                                             \
	             sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* item, or items with `between` between them. */
static uint32_t list(struct mx_rules *r, uint32_t item, uint32_t between, bool several)
{
	if (!several)
		return item;
	return SEQ(r, item, mx_rules_repeat(r, SEQ(r, between, item), 0, MX_RULES_NO_END));
}

/* ---- the calls of each kind of format: fn(r, format, tool's function, err) ---- */

typedef uint32_t call_fn(struct mx_rules *r, const struct mx_tool_format *f, const json_t *function,
                         struct mx_err *err);

static const char *name_of(const json_t *function)
{
	return json_string_value(json_object_get(function, "name"));
}

static uint32_t json_arguments(struct mx_rules *r, const json_t *function, struct mx_err *err)
{
	return mx_tool_arguments_json(r, json_object_get(function, "parameters"), err);
}

static uint32_t tagged_call(struct mx_rules *r, const struct mx_tool_format *f,
                            const json_t *function, struct mx_err *err)
{
	const struct mx_tagged_form *form = f->form;
	return SEQ(r, text(r, form->head ? form->head : MX_TAGGED_HEAD),
	           mx_tool_arguments_quoted(r, name_of(function)),
	           text(r, form->arguments ? form->arguments : MX_TAGGED_ARGUMENTS),
	           json_arguments(r, function, err), text(r, form->tail ? form->tail : MX_TAGGED_TAIL));
}

static uint32_t named_call(struct mx_rules *r, const struct mx_tool_format *f,
                           const json_t *function, struct mx_err *err)
{
	(void)f;
	return SEQ(r, text(r, name_of(function)), text(r, "[ARGS]"), json_arguments(r, function, err));
}

static uint32_t section_call(struct mx_rules *r, const struct mx_tool_format *f,
                             const json_t *function, struct mx_err *err)
{
	const struct mx_sections_form *form = f->form;
	uint32_t digits = mx_rules_repeat(r, mx_rules_byte_range(r, '0', '9'), 1, 4);
	uint32_t number = form->ids ? SEQ(r, text(r, ":"), digits) : text(r, "");
	return SEQ(r, text(r, form->call), text(r, form->ids ? "functions." : form->prefix),
	           text(r, name_of(function)), number, text(r, form->header_space),
	           text(r, form->header_end), text(r, form->header_space),
	           json_arguments(r, function, err), text(r, form->header_space), text(r, form->fence),
	           text(r, form->call_end));
}

static uint32_t xml_call(struct mx_rules *r, const struct mx_tool_format *f, const json_t *function,
                         struct mx_err *err)
{
	const struct mx_xml_form *form = f->form;
	return SEQ(r, text(r, form->call), text(r, name_of(function)), text(r, form->call_name_end),
	           text(r, "\n"),
	           mx_tool_arguments_xml(r, form, json_object_get(function, "parameters"), err),
	           text(r, form->call_end));
}

static uint32_t python_call(struct mx_rules *r, const struct mx_tool_format *f,
                            const json_t *function, struct mx_err *err)
{
	const struct mx_pythonic_form *form = f->form;
	return SEQ(r, text(r, form->prefix), text(r, name_of(function)),
	           text(r, form->prefix ? "{" : "("),
	           mx_tool_arguments_python(r, form, json_object_get(function, "parameters"), err),
	           text(r, form->prefix ? "}" : ")"));
}

static uint32_t channel_call(struct mx_rules *r, const struct mx_tool_format *f,
                             const json_t *function, struct mx_err *err)
{
	(void)f;
	return SEQ(r, text(r, "<|channel|>commentary to=functions."), text(r, name_of(function)),
	           text(r, " <|constrain|>json<|message|>"), json_arguments(r, function, err));
}

/* Fails with the place of a tool in front of that in its schema. */
static void add_place(struct mx_err *err, size_t tool)
{
	char where[sizeof(err->where)];
	const char *in_schema = strcmp(err->where, "#") ? err->where : "";
	const size_t room = sizeof(where) - 50, n = strlen(in_schema);
	const char *rest = n > room ? strchr(in_schema + n - room, '/') : in_schema;
	snprintf(where, sizeof(where), "/%zu/function/parameters%s%.*s", tool, n > room ? "..." : "",
	         (int)room, rest ? rest : "");
	memcpy(err->where, where, sizeof(where));
}

/* Refuses parameters that are no object. */
static bool check_type(const json_t *function, struct mx_err *err)
{
	const json_t *type = json_object_get(json_object_get(function, "parameters"), "type");
	size_t i;
	const json_t *v;
	bool found = !type || (json_is_string(type) && !strcmp(json_string_value(type), "object"));
	json_array_foreach((json_t *)(uintptr_t)type, i, v)
	{
		found = found || (json_is_string(v) && !strcmp(json_string_value(v), "object"));
	}
	if (!found)
		*err = (struct mx_err){.status = MX_E_UNSUPPORTED,
		                       .where = "/type",
		                       .text = "the parameters of a tool are an object"};
	return found;
}

/* The calls of all tools that may be called. */
static uint32_t any_call(struct mx_rules *r, const struct mx_tool_grammar *g, call_fn *call,
                         struct mx_err *err)
{
	uint32_t nodes[MX_TOOL_GRAMMAR_TOOLS];
	size_t n = 0, i, size = json_array_size(g->tools);
	for (i = 0; i < size && i < MX_TOOL_GRAMMAR_TOOLS; i++) {
		const json_t *tool = json_array_get(g->tools, i);
		const json_t *function = json_object_get(tool, "function");
		function = function ? function : tool;
		if (!name_of(function) || (g->name && strcmp(g->name, name_of(function))))
			continue;
		uint32_t node = check_type(function, err) ? call(r, g->format, function, err) : 0;
		if (!node && err->status != MX_OK)
			add_place(err, i);
		if (!node)
			return 0;
		nodes[n++] = node;
	}
	return mx_rules_alt(r, nodes, n);
}

/* ---- whole answers ---- */

/* The mark that begins calls. Where text may stand around them, any that the parser knows. */
static uint32_t begin_mark(struct mx_rules *r, const struct mx_tool_grammar *g, bool bare)
{
	uint32_t nodes[4];
	size_t n = 0;
	if (bare)
		return text(r, "");
	for (; n < 4 && g->format->begins[n] && (!n || g->text == MX_TOOL_TEXT_ANY); n++)
		nodes[n] = text(r, g->format->begins[n]);
	return mx_rules_alt(r, nodes, n);
}

static uint32_t tagged(struct mx_rules *r, const struct mx_tool_grammar *g, bool bare,
                       struct mx_err *err)
{
	static const struct mx_tagged_form none = {0};
	bool named = !g->format->form;
	const struct mx_tagged_form *form = named ? &none : g->format->form;
	uint32_t begin = begin_mark(r, g, bare);
	uint32_t call = any_call(r, g, named ? named_call : tagged_call, err);
	if (form->between)
		return SEQ(r, begin, text(r, form->open), list(r, call, text(r, form->between), g->several),
		           text(r, form->close), text(r, form->end));
	uint32_t one =
		SEQ(r, begin, text(r, form->open), call, text(r, form->close), text(r, form->end));
	return list(r, one, text(r, named ? "" : "\n"), g->several);
}

static uint32_t sections(struct mx_rules *r, const struct mx_tool_grammar *g, struct mx_err *err)
{
	const struct mx_sections_form *form = g->format->form;
	return SEQ(r, begin_mark(r, g, false),
	           list(r, any_call(r, g, section_call, err), text(r, form->header_space), g->several),
	           text(r, form->end));
}

static uint32_t xml(struct mx_rules *r, const struct mx_tool_grammar *g, struct mx_err *err)
{
	const struct mx_xml_form *form = g->format->form;
	uint32_t one =
		SEQ(r, begin_mark(r, g, false), text(r, form->call ? "\n" : ""),
	        any_call(r, g, xml_call, err), text(r, form->call ? "\n" : ""), text(r, form->end));
	return list(r, one, text(r, "\n"), g->several);
}

static uint32_t python(struct mx_rules *r, const struct mx_tool_grammar *g, bool bare,
                       struct mx_err *err)
{
	const struct mx_pythonic_form *form = g->format->form;
	uint32_t call = any_call(r, g, python_call, err);
	uint32_t begin = begin_mark(r, g, bare), end = text(r, bare ? "" : form->end);
	if (form->prefix)
		return list(r, SEQ(r, begin, call, end), text(r, ""), g->several);
	return SEQ(r, begin, text(r, "["), list(r, call, text(r, ", "), g->several), text(r, "]"), end);
}

/* All bytes up to and with a mark (Knuth, Morris and Pratt, "Fast pattern matching in strings",
 * 1977). State i has read i bytes of the mark. */
static uint32_t up_to(struct mx_rules *r, const char *mark)
{
	enum { MOST = 64 };
	struct mx_rules_edge edges[MOST * 3 * MOST];
	bool accept[MOST + 1] = {false};
	size_t n = strlen(mark), n_edges = 0, fail = 0, fails[MOST + 1] = {0};
	if (n > MOST)
		return mx_rules_fail(r, MX_E_INTERNAL, "a mark is too long");
	for (size_t i = 1; i < n; i++) {
		while (fail && mark[i] != mark[fail])
			fail = fails[fail - 1];
		fail += mark[i] == mark[fail];
		fails[i] = fail;
	}
	for (size_t i = 0; i < n; i++) {
		bool known[256] = {false};
		for (size_t at = i;; at = fails[at - 1]) { /* longer beginnings first */
			unsigned char c = (unsigned char)mark[at];
			if (!known[c])
				edges[n_edges++] = (struct mx_rules_edge){(uint32_t)i, (uint32_t)at + 1,
				                                          mx_rules_byte_range(r, c, c)};
			known[c] = true;
			if (!at)
				break;
		}
		for (unsigned lo = 0, hi; lo < 256; lo = hi) { /* all others: from the beginning */
			for (hi = lo; hi < 256 && !known[hi]; hi++)
				;
			if (hi > lo)
				edges[n_edges++] = (struct mx_rules_edge){
					(uint32_t)i, 0, mx_rules_byte_range(r, (uint8_t)lo, (uint8_t)(hi - 1))};
			else
				hi++;
		}
	}
	accept[n] = true;
	return mx_rules_automaton(r, (uint32_t)n + 1, accept, edges, n_edges);
}

static uint32_t space(struct mx_rules *r)
{
	static const uint32_t signs[][2] = {{' ', ' '}, {'\n', '\n'}};
	return mx_rules_repeat(r, mx_rules_class(r, signs, 2, false), 0, 4);
}

/* A message of gpt-oss' analysis channel, or nothing. */
static uint32_t analysis(struct mx_rules *r)
{
	uint32_t thought = SEQ(r, text(r, "<|channel|>analysis<|message|>"), up_to(r, "<|end|>"),
	                       text(r, "<|start|>assistant"));
	return mx_rules_alt(r, (const uint32_t[]){text(r, ""), thought}, 2);
}

uint32_t mx_tool_grammar_after_reasoning(struct mx_rules *r, const struct mx_reasoning_format *f,
                                         bool open, uint32_t then)
{
	if (!f)
		return then;
	if (!f->begin)
		return SEQ(r, analysis(r), text(r, "<|channel|>final<|message|>"), then);
	uint32_t rest = SEQ(r, up_to(r, f->end), space(r));
	if (open)
		return SEQ(r, rest, then);
	uint32_t whole = SEQ(r, space(r), text(r, f->begin), rest);
	return SEQ(r, mx_rules_alt(r, (const uint32_t[]){text(r, ""), whole}, 2), then);
}

/* Any text in which no mark stands that begins calls. */
static uint32_t other_text(struct mx_rules *r, const struct mx_tool_format *f)
{
	uint32_t marks[4];
	size_t n = 0;
	for (; n < 4 && f->begins[n]; n++)
		marks[n] = text(r, f->begins[n]);
	uint32_t any = mx_rules_repeat(r, mx_rules_byte_range(r, 0, 255), 0, MX_RULES_NO_END);
	return mx_rules_minus(r, any, SEQ(r, any, mx_rules_alt(r, marks, n), any));
}

/* As other_text, where it does not begin as a call without a mark does. */
static uint32_t other_beginning(struct mx_rules *r, const struct mx_tool_format *f)
{
	uint32_t signs[8][2], n = 0;
	if (!f->bare)
		return other_text(r, f);
	for (; n < 8 && f->bare[n]; n++)
		signs[n][0] = signs[n][1] = (uint8_t)f->bare[n];
	uint32_t any = mx_rules_repeat(r, mx_rules_byte_range(r, 0, 255), 0, MX_RULES_NO_END);
	uint32_t white = mx_rules_repeat(
		r, mx_rules_class(r, (const uint32_t[][2]){{' ', ' '}, {9, 10}, {13, 13}}, 3, false), 0,
		MX_RULES_NO_END);
	uint32_t sign = mx_rules_class(r, (const uint32_t(*)[2])signs, n, false);
	return mx_rules_minus(r, other_text(r, f), SEQ(r, white, sign, any));
}

static uint32_t channels(struct mx_rules *r, const struct mx_tool_grammar *g, struct mx_err *err)
{
	uint32_t answer = any_call(r, g, channel_call, err);
	uint32_t final = text(r, "<|channel|>final<|message|>");
	if (g->text == MX_TOOL_TEXT_NONE)
		return SEQ(r, analysis(r), answer);
	uint32_t words = g->text == MX_TOOL_TEXT_ANY ? other_text(r, g->format) : g->instead;
	return SEQ(r, analysis(r), mx_rules_alt(r, (uint32_t[]){answer, SEQ(r, final, words)}, 2));
}

/* Calls; bare: those that have no mark in front of them. */
static uint32_t calls_of(struct mx_rules *r, const struct mx_tool_grammar *g, bool bare,
                         struct mx_err *err)
{
	const struct mx_call_reader *reader = g->format->reader;
	return reader == &mx_sections_reader   ? sections(r, g, err)
	       : reader == &mx_xml_reader      ? xml(r, g, err)
	       : reader == &mx_pythonic_reader ? python(r, g, bare, err)
	                                       : tagged(r, g, bare, err);
}

/* Text, and then calls or none. */
static uint32_t text_and_calls(struct mx_rules *r, const struct mx_tool_grammar *g,
                               struct mx_err *err)
{
	uint32_t calls = mx_rules_repeat(r, calls_of(r, g, false, err), 0, 1);
	uint32_t answer = SEQ(r, other_beginning(r, g->format), calls);
	if (!g->format->bare)
		return answer;
	return mx_rules_alt(r, (uint32_t[]){answer, SEQ(r, space(r), calls_of(r, g, true, err))}, 2);
}

uint32_t mx_tool_grammar_build(struct mx_rules *r, const struct mx_tool_grammar *g,
                               struct mx_err *err)
{
	if (json_array_size(g->tools) > MX_TOOL_GRAMMAR_TOOLS)
		return mx_rules_fail(r, MX_E_LIMIT,
		                     "there are %zu tools, more than the %d that a grammar "
		                     "can have",
		                     json_array_size(g->tools), MX_TOOL_GRAMMAR_TOOLS);
	if (g->format->reader == &mx_harmony_reader) /* it has its reasoning */
		return channels(r, g, err);
	uint32_t answer = g->text == MX_TOOL_TEXT_ANY ? text_and_calls(r, g, err)
	                                              : calls_of(r, g, g->format->bare, err);
	if (g->text == MX_TOOL_TEXT_INSTEAD)
		answer = mx_rules_alt(r, (uint32_t[]){answer, g->instead}, 2);
	return mx_tool_grammar_after_reasoning(r, g->reasoning, g->reasoning_open, answer);
}
