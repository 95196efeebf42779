/* SPDX-License-Identifier: Apache-2.0 */
/* Constrains the choices of a generation. */
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/constraint.h"
#include "daemon/serve/generate_impl.h"
#include "daemon/serve/vocabulary.h"

/* Lists the tokens that end a text: the model's EOS ids, and the request's stop ids without text.
 */
static mx_status make_ends(struct mx_generation *g, const struct mx_api_request *r,
                           struct mx_constraint_ends *out, struct mx_api_error *err)
{
	const struct mx_served *m = g->model;
	size_t n = 0;
	int32_t *ids = mx_arena_alloc(&g->arena, (m->n_eos + r->n_stop_ids + 1) * sizeof(*ids));
	if (!ids)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	for (size_t i = 0; i < m->n_eos; i++)
		ids[n++] = m->eos[i];
	for (uint32_t i = 0; i < r->n_stop_ids; i++)
		if (mx_tokenizer_is_special(m->tokenizer, r->stop_ids[i]))
			ids[n++] = r->stop_ids[i];
	*out = (struct mx_constraint_ends){.ids = ids, .n = n, .late = r->ignore_eos};
	return MX_OK;
}

/* Returns the format of the reasoning that may come before the answer's text and is told from it.
 */
static const struct mx_reasoning_format *reasoning_before(const struct mx_choice_rules *rules)
{
	const struct mx_reasoning_format *f = rules->reasoning;
	if (!f || rules->reasoning_over)
		return NULL;
	bool apart = mx_reasoning_format_mark(f, 0) != NULL; /* else the parser of calls tells it */
	return apart || (rules->calls && mx_tool_format_reasons(rules->calls)) ? f : NULL;
}

/* Writes the mark that ends reasoning as tokens: its own, or those of its text. */
static mx_status write_end(struct mx_generation *g, struct mx_think_rules *rules,
                           struct mx_api_error *err)
{
	const struct mx_tokenizer *t = g->model->tokenizer;
	int32_t own = mx_tokenizer_id(t, rules->end);
	struct mx_tokens tokens = {0};
	struct mx_err e = {0};
	mx_status st = MX_OK;
	if (own < 0)
		st = mx_tokenizer_encode(t, rules->end, strlen(rules->end), false, 0, &tokens, &e);
	rules->n_last = own < 0 ? tokens.n : 1;
	int32_t *last = mx_arena_alloc(&g->arena, (rules->n_last + 1) * sizeof(*last));
	if (last && own >= 0)
		last[0] = own;
	else if (last && tokens.n)
		memcpy(last, tokens.ids, tokens.n * sizeof(*last));
	mx_tokens_free(&tokens);
	rules->last = last;
	return st == MX_OK && last
	           ? MX_OK
	           : mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
}

/* Bounds the reasoning of all choices. A model that does not reason needs no bound. */
static mx_status limit_thinking(struct mx_generation *g, const struct mx_api_request *r,
                                struct mx_api_error *err)
{
	const struct mx_reasoning_format *f = g->model->reasoning;
	struct mx_grammar_vocab *vocab = NULL;
	struct mx_think_rules *rules = &g->think;
	if (r->thinking_budget < 0 || !g->chat || !f)
		return MX_OK;
	mx_status st = mx_served_vocabulary(g->model, true, &vocab, err);
	if (st != MX_OK)
		return st;
	rules->vocab = vocab;
	rules->again = mx_reasoning_format_span(f, &rules->begin, &rules->end);
	rules->open = g->rules.reasoning_open;
	rules->budget = (uint32_t)r->thinking_budget;
	st = write_end(g, rules, err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++)
		if (mx_think_limit_new(rules, g->choices[i].constraint, &g->choices[i].think_limit))
			st = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return st;
}

/* Constrains all choices by a grammar. */
static mx_status constrain(struct mx_generation *g, const struct mx_api_request *r,
                           struct mx_api_error *err)
{
	struct mx_grammar_vocab *vocab = NULL;
	struct mx_constraint_ends ends;
	const struct mx_reasoning_format *reasoning = reasoning_before(&g->rules);
	bool calls = mx_gen_constrains_calls(g, r);
	mx_status st = calls ? mx_gen_take_calls(g, r, err)
	                     : mx_grammars_take_constraint(g->grammars, &r->constraint, reasoning,
	                                                   g->rules.reasoning_open, &g->grammar, err);
	if (st != MX_OK || !g->grammar)
		return st;
	g->constrained_by = r->must_call                               ? "tool_choice"
	                    : r->constraint.kind != MX_CONSTRAINT_NONE ? r->constraint.field
	                                                               : "tools";
	st = mx_served_vocabulary(g->model, calls || reasoning, &vocab, err);
	if (st == MX_OK)
		st = make_ends(g, r, &ends, err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++)
		if (mx_constraint_new(g->grammar->grammar, vocab, &ends, &g->choices[i].constraint))
			st = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return st;
}

mx_status mx_gen_constrain(struct mx_generation *g, const struct mx_api_request *r,
                           struct mx_api_error *err)
{
	mx_status st = constrain(g, r, err);
	return st == MX_OK ? limit_thinking(g, r, err) : st;
}

void mx_gen_constrain_end(struct mx_generation *g)
{
	for (uint32_t i = 0; g->choices && i < g->n_choices; i++) {
		mx_think_limit_free(g->choices[i].think_limit);
		mx_constraint_free(g->choices[i].constraint);
	}
	if (g->grammar)
		mx_grammars_release(g->grammars, g->grammar);
}
