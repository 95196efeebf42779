/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeddings and scores: generations without output tokens, whose choices have the vectors of their
 * prompts.
 *
 * A score is the cosine of two embeddings. A reranker gives it from one prompt that holds both
 * texts: the probability of its token for "yes", beside that for "no".
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/generate_impl.h"

/* What a reranker is asked if the request has no instruction: that of Qwen3-Reranker's card. */
#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"

uint32_t mx_gen_count_prompts(const struct mx_served *m, const struct mx_api_request *r)
{
	if (r->kind == MX_API_CHAT)
		return 1;
	return r->kind == MX_API_SCORE && m->pooling.prompt ? r->n_prompts - r->n_queries
	                                                    : r->n_prompts;
}

mx_status mx_gen_pooled_plan(struct mx_generation *g, const struct mx_api_request *r,
                             struct mx_api_error *err)
{
	const struct mx_served *m = g->model;
	const struct mx_served_pooling *p = &m->pooling;
	if (r->kind == MX_API_SCORE && p->prompt) {
		g->pooling = MX_POOLING_TOKENS;
		g->n_vector = g->dimensions = 2;
		return MX_OK;
	}
	if (r->instruction.s)
		return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", "instruction",
		                   "'instruction' is for rerankers: the model '%s' is none, write it into "
		                   "the query",
		                   m->name);
	if (p->kind == MX_POOLING_NONE)
		return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_model", "model",
		                   "the model '%s' gives no %s: %s", m->name,
		                   r->kind == MX_API_SCORE ? "scores" : "embeddings", p->why);
	g->pooling = p->kind;
	g->n_vector = g->dimensions = m->info.width;
	g->n_queries = r->kind == MX_API_SCORE ? r->n_queries : 0;
	if (r->dimensions > (int64_t)g->n_vector)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "dimensions",
		                   "'dimensions' must be at most %u, the width of the model '%s', but it "
		                   "is %lld",
		                   g->n_vector, m->name, (long long)r->dimensions);
	if (r->dimensions > 0)
		g->dimensions = (uint32_t)r->dimensions;
	return MX_OK;
}

mx_status mx_gen_pooled_alloc(struct mx_generation *g)
{
	if (!g->n_vector)
		return MX_OK;
	g->vectors = mx_calloc(g->n_choices, g->n_vector * sizeof(*g->vectors));
	return g->vectors ? MX_OK : MX_E_NOMEM;
}

/* Returns the text that stands for the placeholder at `s`, and its length; NULL if there is none.
 */
static const struct mx_api_text *placeholder(const char *s, const struct mx_api_text *texts,
                                             size_t *out_len)
{
	static const char *const names[] = {"{instruction}", "{query}", "{document}"};
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		*out_len = strlen(names[i]);
		if (!strncmp(s, names[i], *out_len))
			return &texts[i];
	}
	return NULL;
}

void mx_gen_rerank_text(const struct mx_served *m, const struct mx_api_request *r, uint32_t i,
                        struct mx_buf *out)
{
	const struct mx_api_text texts[] = {
		r->instruction.s ? r->instruction
						 : (struct mx_api_text){INSTRUCTION, sizeof(INSTRUCTION) - 1},
		r->prompts[r->n_queries == 1 ? 0 : i].text, r->prompts[r->n_queries + i].text};
	for (const char *s = m->pooling.prompt; *s;) {
		size_t n;
		const struct mx_api_text *t = *s == '{' ? placeholder(s, texts, &n) : NULL;
		if (t) {
			mx_buf_append(out, t->s, t->len);
			s += n;
		} else {
			mx_buf_putc(out, *s++);
		}
	}
}

void mx_gen_on_vector(void *arg, const float *vector, uint32_t n)
{
	struct mx_gen_choice *choice = arg;
	struct mx_generation *g = choice->g;
	pthread_mutex_lock(&g->lock);
	if (n == g->n_vector) {
		memcpy(choice->vector, vector, n * sizeof(*vector));
		choice->pooled = true;
	}
	pthread_mutex_unlock(&g->lock);
}
