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
	/* a constraint lets a mark come wherever its text may, and then it is text */
	const struct mx_tool_format *calls =
		r->constraint.kind != MX_CONSTRAINT_NONE && rules->reasoning ? m->calls : rules->calls;
	for (size_t i = 0; calls && (mark = mx_tool_format_mark(calls, i)); i++)
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

static uint32_t build(void *arg, struct mx_rules *r, struct mx_err *err)
{
	return mx_tool_grammar_build(r, arg, err);
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
	if (r->constraint.kind != MX_CONSTRAINT_NONE)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice",
		                   "'tool_choice' asks for a call, and '%s' for a text: they exclude each "
		                   "other",
		                   r->constraint.field);
	struct mx_tool_grammar grammar = {.format = rules->calls,
	                                  .reasoning = rules->reasoning,
	                                  .reasoning_open = rules->reasoning_open,
	                                  .tools = r->tools,
	                                  .name = r->call_name,
	                                  .several = r->parallel_calls && !r->call_name};
	char kind[128];
	snprintf(kind, sizeof(kind), "tools %s %s %d %d", mx_tool_format_name(rules->calls),
	         rules->reasoning ? mx_reasoning_format_name(rules->reasoning) : "",
	         grammar.reasoning_open, grammar.several);
	struct mx_buf text = {0};
	char *tools = json_dumps(r->tools, JSON_COMPACT);
	mx_buf_puts(&text, r->call_name ? r->call_name : "");
	mx_buf_putc(&text, 0);
	mx_buf_puts(&text, tools ? tools : "");
	const struct mx_grammar_source source = {.field = "tools",
	                                         .kind = kind,
	                                         .text = mx_buf_str(&text),
	                                         .len = text.len,
	                                         .build = build,
	                                         .arg = &grammar};
	mx_status st = tools && !text.failed ? mx_grammars_take(g->grammars, &source, &g->grammar, err)
	                                     : mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory",
	                                                   NULL, "out of memory");
	mx_buf_free(&text);
	free(tools);
	return st;
}
