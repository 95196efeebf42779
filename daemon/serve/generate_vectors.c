/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of embeddings and scores: what the vectors are made of. */
#include <math.h>

#include "daemon/serve/generate_impl.h"

static double dot(const float *a, const float *b, uint32_t n)
{
	double sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

/* Cuts the choice's vector to the dimensions that are wanted, and normalises it if the model's are.
 */
static void finish_vector(const struct mx_generation *g, float *v)
{
	double length = sqrt(dot(v, v, g->dimensions));
	if (!g->model->pooling.normalize || length == 0)
		return;
	for (uint32_t i = 0; i < g->dimensions; i++)
		v[i] = (float)((double)v[i] / length);
}

static float cosine(const struct mx_generation *g, const float *a, const float *b)
{
	double lengths = sqrt(dot(a, a, g->n_vector)) * sqrt(dot(b, b, g->n_vector));
	return lengths > 0 ? (float)(dot(a, b, g->n_vector) / lengths) : 0;
}

/* Returns the score of document i. */
static float score(const struct mx_generation *g, uint32_t i)
{
	const float *v = g->choices[i].vector;
	if (g->pooling == MX_POOLING_TOKENS) /* P(yes) / (P(yes) + P(no)) */
		return (float)(1 / (1 + exp((double)v[1] - (double)v[0])));
	return cosine(g, g->choices[g->n_queries == 1 ? 0 : i].vector,
	              g->choices[g->n_queries + i].vector);
}

enum mx_gen_next mx_gen_next_pooled(struct mx_generation *g, struct mx_gen_event *e,
                                    struct mx_api_error *err)
{
	enum mx_gen_next next = g->taken ? MX_GEN_EVENT : mx_gen_take_all(g, err);
	if (next != MX_GEN_EVENT)
		return next;
	if (g->n_ended == g->n_choices - g->n_queries)
		return MX_GEN_END;
	uint32_t i = g->n_ended++;
	for (uint32_t k = 0; k < g->n_choices && !i; k++)
		if (!g->choices[k].pooled) {
			mx_api_fail(err, MX_FAULT_INTERNAL, "engine_error", NULL, "the engine gave no vector");
			return MX_GEN_ERROR;
		}
	*e = (struct mx_gen_event){.choice = {.index = i, .stop_token = -1}};
	if (g->kind == MX_API_SCORE) {
		e->score = score(g, i);
		return MX_GEN_EVENT;
	}
	finish_vector(g, g->choices[i].vector);
	e->vector = g->choices[i].vector;
	e->n_vector = g->dimensions;
	return MX_GEN_EVENT;
}
