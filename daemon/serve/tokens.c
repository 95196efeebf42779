/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/tokens.h"

#include "daemon/serve/prompt.h"

/* Takes n bytes of the budget of answers for an answer. */
static mx_status hold(struct mx_service *s, struct mx_token_answer *a, uint64_t n,
                      struct mx_api_error *err)
{
	struct mx_budget *b = &s->answers;
	double mib = (double)n / 0x1p20, limit = (double)b->limit / 0x1p20;
	if (n > b->limit)
		return mx_api_fail(err, MX_FAULT_INVALID, "answer_too_large", NULL,
		                   "the answer takes %.1f MiB of memory, and all answers together may take "
		                   "%.1f MiB (http.answer_memory): send a shorter text",
		                   mib, limit);
	if (!mx_budget_take(b, n))
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
		                   "%.1f MiB for this answer are not free now (http.answer_memory is %.1f "
		                   "MiB): try again in a moment",
		                   mib, limit);
	a->budget = b;
	a->taken = n;
	return MX_OK;
}

static mx_status fail(struct mx_token_answer *a, mx_status st)
{
	mx_token_answer_free(a);
	return st;
}

mx_status mx_serve_tokenize(struct mx_service *s, struct mx_principal *who,
                            const struct mx_api_tokenize *r, struct mx_token_answer *out,
                            struct mx_api_error *err)
{
	struct mx_token_answer a = {0};
	struct mx_served *m = NULL;
	mx_status st = mx_prompt_take_model(s, who, &r->model, false, &m, err);
	if (st == MX_OK && r->messages) {
		const struct mx_prompt_chat chat = {.messages = r->messages,
		                                    .tools = r->tools,
		                                    .template_vars = r->template_vars,
		                                    .reasoning_effort = r->reasoning_effort,
		                                    .add_generation_prompt = r->add_generation_prompt,
		                                    .add_special = r->add_special,
		                                    .may_drop_reasoning = r->may_drop_reasoning,
		                                    .unknown = r->unknown};
		st = mx_prompt_chat(m, &chat, &a.ids, err);
	} else if (st == MX_OK) {
		st = mx_prompt_text(m, &r->text, r->add_special, false, &a.ids, err);
	}
	if (st == MX_OK && mx_tokens_shrink(&a.ids) == MX_OK)
		st = hold(s, &a, a.ids.cap * sizeof(*a.ids.ids), err);
	a.model = m;
	if (st != MX_OK)
		return fail(&a, st);
	*out = a;
	return MX_OK;
}

mx_status mx_serve_detokenize(struct mx_service *s, struct mx_principal *who,
                              const struct mx_api_detokenize *r, struct mx_token_answer *out,
                              struct mx_api_error *err)
{
	struct mx_token_answer a = {0};
	struct mx_served *m = NULL;
	mx_status st = mx_prompt_take_model(s, who, &r->model, false, &m, err);
	if (st == MX_OK)
		st = mx_prompt_check_ids(m, r->ids, r->n_ids, r->ids_name ? r->ids_name : "tokens", err);
	if (st == MX_OK &&
	    mx_tokenizer_decode(m->tokenizer, r->ids, r->n_ids, r->skip_special, &a.text) != MX_OK)
		st = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	if (st == MX_OK)
		st = hold(s, &a, a.text.cap, err);
	a.model = m;
	if (st != MX_OK)
		return fail(&a, st);
	*out = a;
	return MX_OK;
}

void mx_token_answer_free(struct mx_token_answer *a)
{
	mx_tokens_free(&a->ids);
	mx_buf_free(&a->text);
	if (a->taken)
		mx_budget_give(a->budget, a->taken);
	mx_served_release(a->model);
	*a = (struct mx_token_answer){0};
}
