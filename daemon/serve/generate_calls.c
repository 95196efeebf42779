/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat's request says of tool calls and reasoning in the answer. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "daemon/serve/generate_impl.h"
#include "daemon/serve/tool_grammar.h"

/* Lists a mark if it is a special token, which would otherwise be left out of the text. */
static void show(struct mx_choice_rules *rules, const char *mark)
{
	int32_t id = mx_tokenizer_id(rules->tokenizer, mark);
	if (id >= 0 && mx_tokenizer_is_special(rules->tokenizer, id) &&
	    rules->n_shown < MX_CHOICE_SHOWN)
		rules->shown[rules->n_shown++] = id;
}

mx_status mx_gen_parse_rules(struct mx_generation *g, const struct mx_api_request *r,
                             struct mx_api_error *err)
{
	struct mx_choice_rules *rules = &g->rules;
	const struct mx_served *m = g->model;
	const char *mark;
	bool raw = r->reasoning == MX_REASONING_INLINE;
	if (m->calls && r->parse_calls && (r->tools || (mx_tool_format_reasons(m->calls) && !raw)))
		rules->calls = m->calls;
	rules->reasoning = raw ? NULL : m->reasoning;
	rules->drop_reasoning = r->reasoning == MX_REASONING_HIDDEN;
	rules->one_call = !r->parallel_calls;
	for (size_t i = 0; rules->calls && (mark = mx_tool_format_mark(rules->calls, i)); i++)
		show(rules, mark);
	for (size_t i = 0; rules->reasoning && (mark = mx_reasoning_format_mark(rules->reasoning, i));
	     i++)
		show(rules, mark);
	if (rules->calls && getrandom(&g->call_seed, sizeof(g->call_seed), 0) != sizeof(g->call_seed))
		g->call_seed = mx_now_ns();
	if (rules->calls && r->tools && mx_tool_types_read(r->tools, &g->arena, &rules->types) != MX_OK)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

struct calls {
	struct mx_tool_grammar grammar;
	struct mx_grammar_source *source;        /* of the whole; `field` is that of a fault */
	const struct mx_grammar_source *instead; /* of texts that may come instead; NULL = none */
};

static uint32_t build(void *arg, struct mx_rules *r, struct mx_err *err)
{
	struct calls *c = arg;
	if (c->instead) {
		c->source->field = c->instead->field;
		c->grammar.instead = c->instead->build(c->instead->arg, r, err);
		if (!c->grammar.instead)
			return 0;
		c->source->field = "tools";
	}
	return mx_tool_grammar_build(r, &c->grammar, err);
}

/* Returns true if a tool asks that its arguments obey their schema. */
static bool any_strict(const json_t *tools)
{
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *tool = json_array_get(tools, i);
		if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
			return true;
	}
	return false;
}

bool mx_gen_constrains_calls(const struct mx_generation *g, const struct mx_api_request *r)
{
	return r->must_call || (g->rules.calls && r->tools &&
	                        (r->constraint.kind != MX_CONSTRAINT_NONE || any_strict(r->tools)));
}

/* Writes what the grammar of calls depends on, but for its kind. */
static bool write_key(const struct mx_api_request *r, const struct mx_grammar_source *instead,
                      struct mx_buf *out)
{
	char *tools = json_dumps(r->tools, JSON_COMPACT);
	mx_buf_puts(out, r->call_name ? r->call_name : "");
	mx_buf_putc(out, 0);
	mx_buf_puts(out, tools ? tools : "");
	bool ok = tools != NULL;
	free(tools);
	if (instead) {
		mx_buf_putc(out, 0);
		mx_buf_puts(out, instead->kind);
		mx_buf_putc(out, 0);
		mx_buf_append(out, instead->text, instead->len);
	}
	return ok && !out->failed;
}

mx_status mx_gen_take_calls(struct mx_generation *g, const struct mx_api_request *r,
                            struct mx_api_error *err)
{
	const struct mx_choice_rules *rules = &g->rules;
	if (!rules->calls)
		return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", "tool_choice",
		                   "'tool_choice' cannot ask for a call: %s",
		                   r->parse_calls
		                       ? "the format in which the model writes tool calls is not "
		                         "known (tool_parser in the server's configuration names "
		                         "one)"
		                       : "'parse_tool_calls' is false");
	struct mx_constraint_source instead = {0};
	/* agents say the form of their last answer in each request, those that demand calls too */
	bool either = !r->must_call && r->constraint.kind != MX_CONSTRAINT_NONE;
	mx_status st = either ? mx_constraint_source_open(&instead, &r->constraint, err) : MX_OK;
	if (st != MX_OK)
		return st;
	struct mx_grammar_source source = {.field = "tools", .build = build};
	struct calls calls = {.grammar = {.format = rules->calls,
	                                  .reasoning = rules->reasoning_over ? NULL : rules->reasoning,
	                                  .reasoning_open = rules->reasoning_open,
	                                  .tools = r->tools,
	                                  .name = r->call_name,
	                                  .several = r->parallel_calls && !r->call_name,
	                                  .text = r->must_call ? MX_TOOL_TEXT_NONE
	                                          : either     ? MX_TOOL_TEXT_INSTEAD
	                                                       : MX_TOOL_TEXT_ANY},
	                      .source = &source,
	                      .instead = either ? &instead.source : NULL};
	char kind[128];
	snprintf(kind, sizeof(kind), "tools %s %s %d %d %d", mx_tool_format_name(rules->calls),
	         calls.grammar.reasoning ? mx_reasoning_format_name(calls.grammar.reasoning) : "",
	         calls.grammar.reasoning_open, calls.grammar.several, (int)calls.grammar.text);
	struct mx_buf text = {0};
	bool written = write_key(r, calls.instead, &text);
	source.kind = kind;
	source.text = mx_buf_str(&text);
	source.len = text.len;
	source.arg = &calls;
	st = written ? mx_grammars_take(g->grammars, &source, &g->grammar, err)
	             : mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	mx_buf_free(&text);
	if (either)
		mx_constraint_source_close(&instead);
	return st;
}
