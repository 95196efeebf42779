/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a generation, feeds it from the scheduler's callbacks, and ends it. */
#include "daemon/serve/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/serve/generate_impl.h"
#include "daemon/serve/prompt.h"
#include "proto/json_out.h"

/* ---- life ---- */

/* Frees the generation. None of its choices may still be in the scheduler. */
static void generation_free(struct mx_generation *g)
{
	if (!g)
		return;
	mx_gen_constrain_end(g);
	for (uint32_t i = 0; i < g->n_choices; i++) {
		mx_choice_free(&g->choices[i].text);
		mx_pending_free(&g->choices[i].writing);
	}
	for (uint32_t i = 0; i < g->n_prompts; i++) {
		mx_tokens_free(&g->prompts[i].tokens);
		free(g->prompts[i].offsets);
	}
	mx_tokens_free(&g->prediction);
	free(g->choices);
	free(g->vectors);
	free(g->prompts);
	free(g->calls);
	mx_hold_end(&g->hold);
	mx_served_release(g->model);
	mx_arena_free(&g->arena);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

void mx_gen_unref(struct mx_generation *g)
{
	if (atomic_fetch_sub(&g->refs, 1) == 1)
		generation_free(g);
}

void mx_gen_cancel(struct mx_generation *g, enum mx_cancel why)
{
	for (uint32_t i = 0; i < g->n_choices; i++) {
		pthread_mutex_lock(&g->lock);
		uint64_t id = g->choices[i].done ? 0 : g->choices[i].id;
		pthread_mutex_unlock(&g->lock);
		if (id)
			mx_sched_cancel(g->model->sched, id, why);
	}
}

void mx_generation_abort(struct mx_generation *g)
{
	pthread_mutex_lock(&g->lock);
	g->aborted = true;
	pthread_mutex_unlock(&g->lock);
	mx_gen_cancel(g, MX_CANCEL_SHUTDOWN);
}

void mx_generation_name(struct mx_generation *g, const char *id)
{
	pthread_mutex_lock(&g->live->lock);
	snprintf(g->id, sizeof(g->id), "%s", id);
	g->named_ns = mx_now_ns();
	TAILQ_INSERT_HEAD(&g->live->list, g, live_link);
	g->live->n++;
	pthread_mutex_unlock(&g->live->lock);
}

/* Takes the generation off the list of those that run. */
static void unlist(struct mx_generation *g)
{
	pthread_mutex_lock(&g->live->lock);
	if (g->id[0]) {
		TAILQ_REMOVE(&g->live->list, g, live_link);
		g->live->n--;
		g->id[0] = 0;
	}
	pthread_mutex_unlock(&g->live->lock);
}

void mx_generation_detach(struct mx_generation *g)
{
	if (!g)
		return;
	unlist(g);
	pthread_mutex_lock(&g->lock);
	g->wake.fn = NULL;
	bool running = g->n_done < g->n_choices && !g->aborted;
	pthread_mutex_unlock(&g->lock);
	if (running)
		mx_gen_cancel(g, MX_CANCEL_CLIENT);
	mx_gen_unref(g);
}

const char *mx_generation_model(const struct mx_generation *g)
{
	return g->model->name;
}

bool mx_gen_is_over(const struct mx_generation *g)
{
	return g->n_done == g->n_choices || g->aborted || g->no_room;
}

bool mx_generation_finished(struct mx_generation *g)
{
	pthread_mutex_lock(&g->lock);
	bool finished = mx_gen_is_over(g);
	g->signalled = false;
	pthread_mutex_unlock(&g->lock);
	return finished;
}

/* ---- callbacks, on the engine thread ---- */

static void signal_reader(struct mx_generation *g)
{
	if (g->signalled || !g->wake.fn)
		return;
	g->signalled = true;
	g->wake.fn(g->wake.arg);
}

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	struct mx_gen_choice *choice = arg;
	struct mx_generation *g = choice->g;
	mx_principal_charge_output(g->who, 1);
	pthread_mutex_lock(&g->lock);
	if (!g->first_token_ns)
		g->first_token_ns = mx_now_ns();
	bool more = mx_choice_token(&choice->text, token, is_stop, logprob);
	more = mx_gen_account(choice) && more;
	if (g->stream || g->no_room)
		signal_reader(g);
	pthread_mutex_unlock(&g->lock);
	return more;
}

static void on_prompt(void *arg, uint32_t first, uint32_t n, const struct mx_logprob *logprobs)
{
	struct mx_gen_choice *choice = arg;
	struct mx_generation *g = choice->g;
	const struct mx_gen_prompt *p = choice->prompt;
	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < n && first + i < p->tokens.n; i++)
		mx_choice_prompt_token(&choice->text, p->tokens.ids[first + i], p->offsets[first + i],
		                       &logprobs[i]);
	if (!mx_gen_account(choice) || g->stream)
		signal_reader(g);
	pthread_mutex_unlock(&g->lock);
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct mx_gen_choice *choice = arg;
	struct mx_generation *g = choice->g;
	pthread_mutex_lock(&g->lock);
	mx_choice_finish(&choice->text, done->finish == MX_FINISH_LENGTH);
	(void)mx_gen_account(choice);
	choice->end = *done;
	choice->done = true;
	g->n_done++;
	if (g->stream || g->n_done == g->n_choices)
		signal_reader(g);
	pthread_mutex_unlock(&g->lock);
	mx_gen_unref(g);
}

/* ---- start ---- */

static mx_status no_memory(struct mx_api_error *err)
{
	return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
}

/* Makes the token ids of prompt i. */
static mx_status make_prompt(struct mx_generation *g, const struct mx_api_request *r, uint32_t i,
                             struct mx_api_error *err)
{
	struct mx_tokens *t = &g->prompts[i].tokens;
	const struct mx_served *m = g->model;
	const char *name = r->prompt_name ? r->prompt_name : "prompt";
	mx_status st;
	if (r->kind == MX_API_CHAT) {
		const struct mx_prompt_chat chat = {.messages = r->messages,
		                                    .places = r->places,
		                                    .tools = r->tools,
		                                    .documents = r->documents,
		                                    .template_vars = r->template_vars,
		                                    .reasoning_effort = r->reasoning_effort,
		                                    .add_generation_prompt = r->add_generation_prompt,
		                                    .add_special = r->add_special,
		                                    .may_drop_reasoning = r->may_drop_reasoning,
		                                    .unknown = r->unknown,
		                                    .reasoning = m->reasoning,
		                                    .reasoning_open = &g->rules.reasoning_open,
		                                    .reasoning_over = &g->rules.reasoning_over};
		st = mx_prompt_chat(m, &chat, t, err);
	} else if (r->kind == MX_API_SCORE && m->pooling.prompt) {
		struct mx_buf text = {0};
		mx_gen_rerank_text(m, r, i, &text);
		const struct mx_api_text whole = {mx_buf_str(&text), text.len};
		st = text.failed ? no_memory(err) : mx_prompt_text(m, &whole, false, true, t, err);
		mx_buf_free(&text);
	} else if (r->prompts[i].ids) {
		t->ids = mx_calloc(r->prompts[i].n_ids, sizeof(*t->ids));
		if (!t->ids)
			return no_memory(err);
		memcpy(t->ids, r->prompts[i].ids, r->prompts[i].n_ids * sizeof(*t->ids));
		t->n = t->cap = r->prompts[i].n_ids;
		st = mx_prompt_check_ids(m, t->ids, t->n, name, err);
	} else {
		st = mx_prompt_text(m, &r->prompts[i].text, r->add_special, true, t, err);
	}
	if (st != MX_OK)
		return st;
	const char *param = r->kind == MX_API_CHAT ? "messages" : name;
	if (r->truncate && t->n > m->info.max_context) {
		t->ids[m->info.max_context - 1] = t->ids[t->n - 1]; /* it may be special */
		t->n = m->info.max_context;
	}
	if (t->n == 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", param,
		                   "the prompt is empty: it has no tokens");
	return mx_prompt_check_text(m, t->ids, t->n, param, err);
}

/* Checks prompt i against the context. *out_max: tokens to generate. */
static mx_status fit_context(const struct mx_generation *g, const struct mx_api_request *r,
                             uint32_t i, uint32_t *out_max, struct mx_api_error *err)
{
	uint64_t n = g->prompts[i].tokens.n, n_ctx = g->model->info.max_context;
	bool scoring = r->max_tokens == 0;
	if (n + (scoring ? 0 : 1) > n_ctx)
		return mx_prompt_too_long(g->model, n, true, -1, err);
	uint64_t rest = n_ctx - n;
	if (r->max_tokens < 0 || (r->max_tokens_default && (uint64_t)r->max_tokens > rest))
		*out_max = (uint32_t)rest;
	else if ((uint64_t)r->max_tokens > rest)
		return mx_prompt_too_long(g->model, n, true, r->max_tokens, err);
	else
		*out_max = (uint32_t)r->max_tokens;
	return MX_OK;
}

/* Decodes an echoed prompt without keeping its text. *out: bytes of it. `offsets`, if not NULL:
 * [tokens.n] the code points before each token. */
static mx_status measure_prompt(const struct mx_generation *g, const struct mx_gen_prompt *p,
                                uint32_t *offsets, size_t *out, struct mx_api_error *err)
{
	size_t bytes = 0;
	struct mx_decoder d;
	struct mx_buf text = {0};
	mx_decoder_init(&d, g->model->tokenizer, g->rules.skip_special);
	uint32_t chars = 0;
	mx_status st = MX_OK;
	for (size_t i = 0; i < p->tokens.n && st == MX_OK; i++) {
		mx_buf_clear(&text);
		st = mx_decoder_push(&d, p->tokens.ids[i], &text);
		if (offsets)
			offsets[i] = mx_choice_offset(g->model->tokenizer, p->tokens.ids[i], &text, chars);
		chars += (uint32_t)mx_utf8_count(mx_buf_str(&text), text.len);
		bytes += text.len;
	}
	mx_buf_clear(&text);
	if (st == MX_OK)
		st = mx_decoder_finish(&d, &text);
	*out = bytes + text.len;
	mx_decoder_free(&d);
	mx_buf_free(&text);
	return st == MX_OK ? MX_OK : no_memory(err);
}

/* For echo: computes the length of each prompt's text. */
static mx_status measure_echo(struct mx_generation *g, const struct mx_api_request *r,
                              struct mx_api_error *err)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < g->n_prompts && st == MX_OK; i++) {
		struct mx_gen_prompt *p = &g->prompts[i];
		if (r->prompts[i].text.s)
			p->echo_bytes = r->prompts[i].text.len;
		else
			st = measure_prompt(g, p, NULL, &p->echo_bytes, err);
	}
	return st;
}

/* For echo with log-probabilities: computes the offset of each prompt token. */
static mx_status make_offsets(struct mx_generation *g, struct mx_api_error *err)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < g->n_prompts && st == MX_OK; i++) {
		struct mx_gen_prompt *p = &g->prompts[i];
		size_t bytes;
		p->offsets = mx_calloc(p->tokens.n, sizeof(*p->offsets));
		st = p->offsets ? measure_prompt(g, p, p->offsets, &bytes, err) : no_memory(err);
	}
	return st;
}

/* For echo: adds the prompt's text, as given or decoded, and the entry of its first token. */
static mx_status echo(struct mx_generation *g, const struct mx_api_request *r, uint32_t i,
                      struct mx_gen_choice *choice, struct mx_api_error *err)
{
	const struct mx_gen_prompt *p = choice->prompt;
	const struct mx_api_text *text = &r->prompts[i].text;
	struct mx_buf decoded = {0};
	mx_status st = MX_OK;
	mx_buf_reserve(&choice->text.ready.text, p->echo_bytes);
	if (text->s) {
		mx_choice_echo(&choice->text, text->s, text->len);
	} else {
		st = mx_tokenizer_decode(g->model->tokenizer, p->tokens.ids, p->tokens.n,
		                         g->rules.skip_special, &decoded);
		mx_choice_echo(&choice->text, mx_buf_str(&decoded), decoded.len);
	}
	mx_buf_free(&decoded);
	if (g->rules.logprobs >= 0)
		mx_choice_prompt_token(&choice->text, p->tokens.ids[0], 0, NULL);
	return st == MX_OK && !choice->text.failed ? MX_OK : no_memory(err);
}

/* Returns the sampling parameters: the request's, and the model's defaults for the rest. */
static struct mx_sampling make_sampling(const struct mx_generation *g,
                                        const struct mx_api_request *r, uint64_t seed)
{
	const struct mx_sampling_defaults *d = &g->model->sampling;
	return (struct mx_sampling){
		.temperature = isnan(r->temperature) ? d->temperature : r->temperature,
		.top_p = isnan(r->top_p) ? d->top_p : r->top_p,
		.min_p = isnan(r->min_p) ? d->min_p : r->min_p,
		.top_k = r->top_k == MX_API_UNSET ? d->top_k : (int32_t)r->top_k,
		.repetition_penalty =
			isnan(r->repetition_penalty) ? d->repetition_penalty : r->repetition_penalty,
		.presence_penalty = r->presence_penalty,
		.frequency_penalty = r->frequency_penalty,
		.seed = seed,
		.bias = r->bias,
		.n_bias = r->n_bias,
	};
}

/* Lists the token ids that end a text: the model's EOS ids, then the request's own. */
static mx_status make_stop_ids(struct mx_generation *g, const struct mx_api_request *r,
                               const int32_t **out_all, size_t *out_n, struct mx_api_error *err)
{
	size_t n_eos = g->model->n_eos;
	int32_t *ids = mx_arena_alloc(&g->arena, (n_eos + r->n_stop_ids + 1) * sizeof(*ids));
	if (!ids)
		return no_memory(err);
	if (n_eos)
		memcpy(ids, g->model->eos, n_eos * sizeof(*ids));
	if (r->n_stop_ids)
		memcpy(ids + n_eos, r->stop_ids, r->n_stop_ids * sizeof(*ids));
	g->stop_ids = ids + n_eos;
	g->n_stop_ids = r->n_stop_ids;
	*out_all = ids;
	*out_n = n_eos + r->n_stop_ids;
	return MX_OK;
}

static void submit_failed(mx_status st, const struct mx_err *e, struct mx_api_error *err)
{
	switch (st) {
	case MX_E_BUSY:
		mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
		            "the queue is full: try again in a moment");
		return;
	case MX_E_SHUTDOWN:
		mx_api_fail(err, MX_FAULT_UNAVAILABLE, "shutting_down", NULL,
		            "the server is shutting down");
		return;
	case MX_E_NOMEM: no_memory(err); return;
	case MX_E_RANGE:
		mx_api_fail(err, MX_FAULT_INVALID, "context_length_exceeded", NULL, "%s", e->text);
		return;
	default: mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "%s", e->text);
	}
}

/* Writes the salt of a request's prefix-cache entries: that of the client, behind what no client
 * can write where keys are in force, so that none reaches the entries that another keeps private.
 */
static mx_status make_salt(struct mx_generation *g, const struct mx_api_request *r,
                           const struct mx_principal_share *share, const char **out,
                           struct mx_api_error *err)
{
	const char *own = r->cache_salt.s, *name = mx_principal_name(g->who);
	*out = own;
	if (!name || (!own && !share->private_cache))
		return MX_OK;
	size_t cap = strlen(name) + (own ? r->cache_salt.len : 0) + 3;
	char *salt = mx_arena_alloc(&g->arena, cap);
	if (!salt)
		return no_memory(err);
	if (share->private_cache)
		snprintf(salt, cap, "p%s:%s", name, own ? own : "");
	else
		snprintf(salt, cap, "s%s", own);
	*out = salt;
	return MX_OK;
}

/* Returns the priority of a request: a client may put it behind others of its class, not before. */
static int32_t priority_of(const struct mx_generation *g, const struct mx_api_request *r,
                           const struct mx_principal_share *share)
{
	int64_t own = g->who && r->priority < 0 ? 0 : r->priority, sum = share->priority + own;
	return sum > INT32_MAX ? INT32_MAX : (int32_t)sum;
}

/* Makes the scheduler request of a choice. */
static struct mx_request make_request(const struct mx_generation *g, const struct mx_api_request *r,
                                      struct mx_gen_choice *choice, uint64_t seed,
                                      uint32_t max_tokens, const int32_t *stops, size_t n_stops,
                                      const struct mx_principal_share *share, const char *salt)
{
	size_t n_eos = g->model->n_eos;
	bool prompt_logprobs = r->echo && r->logprobs >= 0;
	bool no_eos = r->ignore_eos && !choice->constraint; /* a constraint may have no other end */
	return (struct mx_request){
		.prompt = choice->prompt->tokens.ids,
		.n_prompt = (uint32_t)choice->prompt->tokens.n,
		.max_tokens = max_tokens,
		.params = {.sampling = make_sampling(g, r, seed),
	               .min_tokens = (uint32_t)r->min_tokens,
	               .stop = stops,
	               .n_stop = n_stops,
	               .logprobs = (int32_t)r->logprobs,
	               .prompt_logprobs = prompt_logprobs ? (int32_t)r->logprobs : -1,
	               .cache_salt = salt,
	               .constraint = choice->think_limit ? choice->think_limit : choice->constraint,
	               .prediction = g->prediction.ids,
	               .n_prediction = g->prediction.n,
	               .no_speculation = !g->speculation,
	               .pooling = g->pooling,
	               .pooled = g->model->pooling.answers,
	               .n_pooled = g->pooling == MX_POOLING_TOKENS ? 2 : 0},
		.stop_tokens = no_eos ? stops + n_eos : stops,
		.n_stop_tokens = no_eos ? n_stops - n_eos : n_stops,
		.priority = priority_of(g, r, share),
		.principal = share->principal,
		.weight = share->weight,
		.sink = {.arg = choice,
	             .token = on_token,
	             .prompt = prompt_logprobs ? on_prompt : NULL,
	             .vector = mx_gen_on_vector,
	             .done = on_done},
	};
}

static mx_status copy_rules(struct mx_generation *g, const struct mx_api_request *r,
                            struct mx_api_error *err)
{
	struct mx_choice_rules *rules = &g->rules;
	*rules = (struct mx_choice_rules){
		.tokenizer = g->model->tokenizer,
		.min_tokens = (uint32_t)r->min_tokens,
		.include_stop = r->include_stop,
		.want_ids = r->return_token_ids,
		.echo = r->echo,
		.want_cuts = r->stream,
		.logprobs = (int32_t)r->logprobs,
		.skip_special = r->skip_special,
	};
	rules->stops = mx_arena_alloc(&g->arena, (r->n_stops + 1) * sizeof(*rules->stops));
	if (!rules->stops)
		return no_memory(err);
	for (uint32_t i = 0; i < r->n_stops; i++) {
		char *s = mx_arena_strndup(&g->arena, r->stops[i].s, r->stops[i].len);
		if (!s)
			return no_memory(err);
		rules->stops[i] = (struct mx_api_text){s, r->stops[i].len};
	}
	rules->n_stops = r->n_stops;
	if (mx_stops_build(&g->arena, rules->stops, rules->n_stops, &rules->automaton) != MX_OK)
		return no_memory(err);
	return MX_OK;
}

/* Ids that only pad the vocabulary have no text, but may be among the likeliest tokens. */
static void token_bytes(void *arg, int32_t id, struct mx_buf *out)
{
	mx_status st = mx_tokenizer_token_bytes(arg, id, out);
	if (st != MX_OK && st != MX_E_NOTFOUND)
		out->failed = true;
}

/* Does everything but submitting. */
static mx_status prepare(struct mx_generation *g, const struct mx_api_request *r,
                         uint32_t *max_tokens, struct mx_api_error *err)
{
	/* token_bytes gets it back as const: the tokenizer is never written */
	g->vocab = (struct mx_api_vocab){token_bytes, (void *)(uintptr_t)g->model->tokenizer};
	mx_status st = copy_rules(g, r, err);
	if (st == MX_OK && g->chat)
		st = mx_gen_parse_rules(g, r, err);
	if (st == MX_OK && mx_api_is_pooled(r->kind))
		st = mx_gen_pooled_plan(g, r, err);
	for (uint32_t i = 0; i < g->n_prompts && st == MX_OK; i++) {
		st = make_prompt(g, r, i, err);
		if (st == MX_OK)
			st = fit_context(g, r, i, &max_tokens[i], err);
	}
	for (uint32_t i = 0; i < r->n_bias && st == MX_OK; i++)
		st = mx_prompt_check_ids(g->model, &r->bias[i].token, 1, "logit_bias", err);
	if (st == MX_OK)
		st = mx_prompt_check_ids(g->model, r->stop_ids, r->n_stop_ids, "stop_token_ids", err);
	if (st == MX_OK && r->prediction.s && g->speculation && g->model->info.max_draft)
		st = mx_prompt_text(g->model, &r->prediction, false, true, &g->prediction, err);
	if (st == MX_OK && r->echo)
		st = measure_echo(g, r, err);
	if (st == MX_OK)
		st = mx_gen_constrain(g, r, err);
	if (st == MX_OK)
		st = mx_gen_reserve(g, r, max_tokens, err);
	if (st == MX_OK && r->echo && r->logprobs >= 0)
		st = make_offsets(g, err);
	if (st == MX_OK && mx_gen_pooled_alloc(g) != MX_OK)
		st = no_memory(err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++) {
		struct mx_gen_choice *choice = &g->choices[i];
		uint32_t p = i / (uint32_t)r->n;
		choice->g = g;
		choice->prompt = &g->prompts[p];
		choice->vector = g->vectors ? g->vectors + (size_t)i * g->n_vector : NULL;
		mx_choice_init(&choice->text, &g->rules, choice->prompt->tokens.ids,
		               choice->prompt->tokens.n);
		mx_gen_expect(choice, r, max_tokens[p]);
		choice->text.max_output = max_tokens[p];
		if (!mx_choice_parse(&choice->text, g->call_seed + i))
			st = no_memory(err);
		if (st == MX_OK && r->echo)
			st = echo(g, r, p, choice, err);
		if (st == MX_OK && !mx_gen_account(choice))
			st = no_memory(err);
	}
	return st;
}

/* Submits all choices or none. */
static mx_status submit_all(struct mx_generation *g, const struct mx_api_request *r,
                            const uint32_t *max_tokens, struct mx_api_error *err)
{
	const int32_t *stops = NULL;
	size_t n_stops = 0;
	mx_status st = make_stop_ids(g, r, &stops, &n_stops, err);
	const struct mx_principal_share share = mx_principal_share(g->who);
	const char *salt = NULL;
	if (st == MX_OK)
		st = mx_prompt_check_stops(g->model, stops, n_stops, (int32_t)r->min_tokens, err);
	if (st == MX_OK)
		st = make_salt(g, r, &share, &salt, err);
	if (st != MX_OK)
		return st;
	struct mx_request *requests = mx_calloc(g->n_choices, sizeof(*requests));
	uint64_t *ids = mx_calloc(g->n_choices, sizeof(*ids));
	if (!requests || !ids) {
		free(requests);
		free(ids);
		return no_memory(err);
	}
	uint64_t seed = r->seed;
	if (!r->has_seed && getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = mx_now_ns();
	for (uint32_t i = 0; i < g->n_choices; i++)
		requests[i] = make_request(g, r, &g->choices[i], seed + i % (uint32_t)r->n,
		                           max_tokens[i / (uint32_t)r->n], stops, n_stops, &share, salt);
	struct mx_err e = {0};
	atomic_fetch_add(&g->refs, g->n_choices);
	st = mx_sched_submit_all(g->model->sched, requests, g->n_choices, ids, &e);
	if (st == MX_OK) {
		pthread_mutex_lock(&g->lock);
		for (uint32_t i = 0; i < g->n_choices; i++)
			g->choices[i].id = ids[i];
		pthread_mutex_unlock(&g->lock);
	} else {
		atomic_fetch_sub(&g->refs, g->n_choices);
		submit_failed(st, &e, err);
	}
	free(requests);
	free(ids);
	return st;
}

/* Refuses what needs more than hidden states of a model that has nothing else. */
static mx_status check_head(const struct mx_api_request *r, const struct mx_served *m,
                            struct mx_api_error *err)
{
	bool vectors = r->kind == MX_API_EMBEDDING || (r->kind == MX_API_SCORE && !m->pooling.prompt);
	if (!m->info.headless || vectors)
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_model", "model",
	                   "the model '%s' gives embeddings only: its checkpoint has no lm_head",
	                   m->name);
}

/* Refuses a request with more choices than the scheduler could ever take together. */
static mx_status check_choices(const struct mx_api_request *r, const struct mx_served *m,
                               struct mx_api_error *err)
{
	uint32_t n_prompts = mx_gen_count_prompts(m, r);
	uint32_t most = mx_sched_max_requests(m->sched);
	bool queue = most < MX_API_MAX_PROMPTS;
	if (!queue)
		most = MX_API_MAX_PROMPTS;
	if (n_prompts * (uint64_t)r->n <= most)
		return MX_OK;
	return mx_api_fail(
		err, MX_FAULT_INVALID, "invalid_value",
		n_prompts <= most ? "n"
		: r->prompt_name  ? r->prompt_name
						  : "prompt",
		"%u prompts with %d choices each are more than the %u %s", n_prompts, (int)r->n, most,
		queue ? "that fit this server's queue (scheduler.queue + max_sequences)" : "allowed");
}

/* Takes over the hold of the model. */
static struct mx_generation *new_generation(struct mx_service *s, const struct mx_api_request *r,
                                            struct mx_served *m, struct mx_wake wake)
{
	struct mx_generation *g = mx_calloc(1, sizeof(*g));
	if (!g) {
		mx_served_release(m);
		return NULL;
	}
	g->wake = wake;
	g->model = m;
	g->live = &s->live;
	g->hold.budget = &s->answers;
	g->grammars = &s->grammars;
	g->chat = r->kind == MX_API_CHAT;
	g->kind = r->kind;
	g->stream = r->stream;
	g->speculation = r->speculation;
	g->return_ids = r->return_token_ids;
	atomic_init(&g->refs, 1);
	pthread_mutex_init(&g->lock, NULL);
	uint32_t n_prompts = mx_gen_count_prompts(m, r);
	g->prompts = mx_calloc(n_prompts, sizeof(*g->prompts));
	g->choices = mx_calloc((size_t)n_prompts * (size_t)r->n, sizeof(*g->choices));
	if (!g->prompts || !g->choices) {
		generation_free(g);
		return NULL;
	}
	g->n_prompts = n_prompts;
	g->n_choices = n_prompts * (uint32_t)r->n;
	return g;
}

/* Pays for the prompts and submits all choices. */
static mx_status pay_and_submit(struct mx_generation *g, const struct mx_api_request *r,
                                const uint32_t *max_tokens, struct mx_api_error *err)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < g->n_prompts; i++)
		n += g->prompts[i].tokens.n;
	mx_status st = mx_principal_take_prompt(g->who, n, err);
	if (st != MX_OK)
		return st;
	st = submit_all(g, r, max_tokens, err);
	if (st != MX_OK)
		mx_principal_return_prompt(g->who, n);
	return st;
}

mx_status mx_generate(struct mx_service *s, struct mx_principal *who,
                      const struct mx_api_request *r, struct mx_wake wake,
                      struct mx_generation **out, struct mx_api_error *err)
{
	struct mx_served *m = NULL;
	mx_status st = mx_prompt_take_model(s, who, &r->model, true, &m, err);
	if (st != MX_OK)
		return st;
	st = check_head(r, m, err);
	if (st == MX_OK)
		st = check_choices(r, m, err);
	if (st != MX_OK) {
		mx_served_release(m);
		return st;
	}
	struct mx_generation *g = new_generation(s, r, m, wake);
	if (!g)
		return no_memory(err);
	g->who = who;
	uint32_t *max_tokens = mx_calloc(g->n_prompts, sizeof(*max_tokens));
	st = max_tokens ? prepare(g, r, max_tokens, err) : no_memory(err);
	if (st != MX_OK && err->n_ctx)
		mx_sched_count_too_long(m->sched);
	if (st == MX_OK)
		st = pay_and_submit(g, r, max_tokens, err);
	free(max_tokens);
	if (st != MX_OK) {
		mx_gen_unref(g);
		return st;
	}
	*out = g;
	return MX_OK;
}
