/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a generation: what the request makes certain is taken from the budget of answers
 * before anything is computed; the rest as the text grows. */
#include "base/mem.h"
#include "daemon/serve/generate_impl.h"

/* Bytes of a choice besides its output: where a stream's events end, the decoder's buffers and what
 * the scheduler keeps. */
#define CHOICE_BYTES (sizeof(struct mx_gen_choice) + 2 * MX_MAX_CUTS * sizeof(struct mx_cut) + 2048)

/* Bytes of a choice's constraint: the matcher of a grammar that is not very ambiguous. */
#define CONSTRAINT_BYTES ((uint64_t)32 << 10)

/* Returns the capacity of a buffer to which n bytes are appended. */
static uint64_t buffer_bytes(uint64_t n)
{
	uint64_t cap = 64;
	while (cap < n + 1)
		cap *= 2;
	return cap;
}

/* Returns the log-probabilities that a choice can have at most, 0 if the request does not say. */
static uint64_t most_tokens(const struct mx_api_request *r, uint64_t n_prompt, uint32_t max_tokens)
{
	return r->logprobs < 0 ? 0 : (r->echo ? n_prompt : 0) + max_tokens;
}

/* Returns the bytes that each choice of a prompt is certain to need, or asks for by a number: the
 * echo, and log-probabilities and ids of all its tokens. A stream's are written while it runs, and
 * a default of max_tokens asks for nothing. */
static uint64_t choice_bytes(const struct mx_api_request *r, const struct mx_gen_prompt *p,
                             uint32_t max_tokens)
{
	uint64_t n_top = r->logprobs > 0 ? (uint64_t)r->logprobs : 0;
	uint64_t asked = r->stream || r->max_tokens_default ? 0 : max_tokens;
	uint64_t bytes = CHOICE_BYTES;
	if (r->echo)
		bytes += buffer_bytes(p->echo_bytes);
	bytes += most_tokens(r, p->tokens.n, (uint32_t)asked) *
	         (sizeof(struct mx_api_token) + n_top * sizeof(struct mx_top_token));
	if (r->return_token_ids)
		bytes += asked * sizeof(int32_t);
	return bytes;
}

/* Returns what the generation holds besides the output of its choices. */
static uint64_t own_bytes(const struct mx_generation *g)
{
	uint64_t bytes = sizeof(*g) + g->arena.used + g->n_choices * (uint64_t)CHOICE_BYTES;
	bytes += g->n_choices * (uint64_t)g->n_vector * sizeof(*g->vectors);
	bytes += (g->prediction.cap + g->n_choices * (uint64_t)g->prediction.n) *
	         sizeof(*g->prediction.ids); /* and the scheduler's copies */
	if (g->grammar)
		bytes += g->n_choices * CONSTRAINT_BYTES;
	if (g->grammar || g->think.vocab) /* the engine's mask */
		bytes += g->n_choices * (uint64_t)(g->model->info.vocab / 8);
	for (uint32_t i = 0; i < g->n_prompts; i++) {
		const struct mx_gen_prompt *p = &g->prompts[i];
		/* and the scheduler's copy of the ids */
		bytes += sizeof(*p) + (p->tokens.cap + p->tokens.n) * sizeof(*p->tokens.ids);
		if (g->rules.echo && g->rules.logprobs >= 0)
			bytes += p->tokens.n * sizeof(*p->offsets);
	}
	return bytes;
}

mx_status mx_gen_reserve(struct mx_generation *g, const struct mx_api_request *r,
                         const uint32_t *max_tokens, struct mx_api_error *err)
{
	uint64_t own = own_bytes(g) + r->kept_bytes, bytes = own;
	uint32_t n = g->n_choices / g->n_prompts;
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_prompt *p = &g->prompts[i / n];
		bytes += choice_bytes(r, p, max_tokens[i / n]) - CHOICE_BYTES;
	}
	double mib = (double)bytes / 0x1p20, limit = (double)g->hold.budget->limit / 0x1p20;
	if (bytes > g->hold.budget->limit)
		return mx_api_fail(err, MX_FAULT_INVALID, "answer_too_large", NULL,
		                   "the answer would take %.1f MiB of memory, and all answers together may "
		                   "take %.1f MiB (http.answer_memory): ask for fewer prompts, choices, "
		                   "tokens or log-probabilities",
		                   mib, limit);
	if (!mx_hold_ensure(&g->hold, bytes))
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
		                   "%.1f MiB for this answer are not free now (http.answer_memory is %.1f "
		                   "MiB): try again in a moment",
		                   mib, limit);
	g->own_bytes = own;
	return MX_OK;
}

void mx_gen_expect(struct mx_gen_choice *choice, const struct mx_api_request *r,
                   uint32_t max_tokens)
{
	choice->text.most_tokens = most_tokens(r, choice->prompt->tokens.n, max_tokens);
	choice->text.most_ids = max_tokens;
}

bool mx_gen_account(struct mx_gen_choice *choice)
{
	struct mx_generation *g = choice->g;
	size_t bytes = mx_pending_bytes(&choice->text.ready, g->rules.logprobs);
	size_t parser = choice->text.parser ? mx_tool_parser_bytes(choice->text.parser) : 0;
	if (bytes == choice->ready_bytes && parser == choice->parser_bytes)
		return !g->no_room;
	g->output_bytes += bytes + parser - choice->ready_bytes - choice->parser_bytes;
	choice->ready_bytes = bytes;
	choice->parser_bytes = parser;
	if (!mx_hold_use(&g->hold, g->own_bytes + g->output_bytes))
		g->no_room = true;
	return !g->no_room;
}

void mx_gen_shrink(struct mx_gen_choice *choice)
{
	struct mx_generation *g = choice->g;
	mx_pending_free(&choice->writing);
	g->output_bytes -= choice->writing_bytes;
	choice->writing_bytes = 0;
	(void)mx_hold_use(&g->hold, g->own_bytes + g->output_bytes);
}
