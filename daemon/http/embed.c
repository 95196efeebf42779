/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of embeddings, scores and ranks, and what writes their answers. */
#include "daemon/http/embed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "proto/embed/response.h"
#include "proto/parse_cost.h"

struct embed_writer {
	struct mx_writer writer;
	struct mx_generation *gen; /* not owned */
	unsigned route;
	char id[32 + MX_REQUEST_ID_LEN];
	bool base64;
	bool started, pending; /* the beginning is written; an element is not yet written whole */
	struct mx_gen_event event;
	struct mx_api_cursor cursor;

	/* Ranks: all of them, best first, once they are known. */
	struct mx_embed_rank *ranks; /* [n_ranks], with room for all documents */
	uint32_t n_ranks, at;
	uint32_t top_n;
	json_t *root; /* holds the texts; NULL = they are not written */
};

static struct embed_writer *of(struct mx_writer *w)
{
	return (struct embed_writer *)w;
}

static void destroy(struct mx_writer *writer)
{
	struct embed_writer *w = of(writer);
	json_decref(w->root);
	free(w->ranks);
	free(w);
}

static bool no_stream(struct mx_writer *writer, struct mx_buf *out)
{
	(void)writer;
	(void)out;
	return true;
}

/* Reads the next element. False after the last, and with *st set. */
static bool next(struct embed_writer *w, mx_status *st, struct mx_api_error *err)
{
	enum mx_gen_next n = mx_generation_next(w->gen, &w->event, err);
	*st = n == MX_GEN_ERROR ? MX_E_INTERNAL : MX_OK;
	if (n == MX_GEN_WAIT) /* the caller knows that it is finished */
		*st = mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
	return n == MX_GEN_EVENT;
}

/* ---- embeddings and scores ---- */

/* Appends elements of `data`. *end: all are written. */
static mx_status write_data(struct embed_writer *w, size_t full, struct mx_buf *out, bool *end,
                            struct mx_api_error *err)
{
	mx_status st = MX_OK;
	while (out->len < full) {
		if (!w->pending && !next(w, &st, err)) {
			*end = st == MX_OK;
			return st;
		}
		if (!w->started) /* an error comes before anything is written */
			mx_embed_write_begin(out, w->id, (int64_t)(mx_wall_ns() / MX_NS_PER_S),
			                     mx_generation_model(w->gen));
		w->started = true;
		if (w->event.vector)
			w->pending = !mx_embed_write_embedding(out, w->event.choice.index, w->event.vector,
			                                       w->event.n_vector, w->base64, full - out->len,
			                                       &w->cursor);
		else
			mx_embed_write_score(out, w->event.choice.index, w->event.score);
	}
	return MX_OK;
}

/* ---- ranks ---- */

static int better_first(const void *a, const void *b)
{
	const struct mx_embed_rank *x = a, *y = b;
	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* Reads all scores and sorts them. */
static mx_status rank(struct embed_writer *w, struct mx_api_error *err)
{
	const json_t *documents = json_object_get(w->root, "documents");
	mx_status st;
	while (next(w, &st, err)) {
		struct mx_embed_rank *r = &w->ranks[w->n_ranks++];
		const json_t *v = json_array_get(documents, w->event.choice.index);
		*r = (struct mx_embed_rank){.index = w->event.choice.index, .score = w->event.score};
		if (json_is_object(v))
			v = json_object_get(v, "text");
		r->text = json_string_value(v);
		r->len = r->text ? json_string_length(v) : 0;
	}
	qsort(w->ranks, w->n_ranks, sizeof(*w->ranks), better_first);
	if (w->n_ranks > w->top_n)
		w->n_ranks = w->top_n;
	return st;
}

static mx_status write_ranks(struct embed_writer *w, size_t full, struct mx_buf *out, bool *end,
                             struct mx_api_error *err)
{
	if (!w->started) {
		mx_status st = rank(w, err);
		if (st != MX_OK)
			return st;
		mx_embed_write_ranks_begin(out, w->id, mx_generation_model(w->gen));
		w->started = true;
	}
	while (w->at < w->n_ranks && out->len < full)
		w->at += mx_embed_write_rank(out, &w->ranks[w->at], !w->at, full - out->len, &w->cursor);
	*end = w->at == w->n_ranks;
	return MX_OK;
}

static mx_status response(struct mx_writer *writer, struct mx_buf *out, bool *end,
                          struct mx_api_error *err)
{
	struct embed_writer *w = of(writer);
	size_t full = out->len + MX_API_PIECE;
	*end = false;
	mx_status st = w->route == MX_EMBED_RERANK ? write_ranks(w, full, out, end, err)
	                                           : write_data(w, full, out, end, err);
	if (st != MX_OK)
		return st;
	if (*end) {
		struct mx_api_usage usage = mx_generation_usage(w->gen);
		mx_embed_write_end(out, &usage);
	}
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

static const struct mx_writer_ops ops = {
	.stream = no_stream, .response = response, .destroy = destroy};

/* Makes the writer of the answer to a request of that route (MX_EMBED_*). Takes what it needs of
 * the request. NULL: out of memory. */
static struct mx_writer *writer_create(unsigned route, const struct mx_embed_request *r,
                                       const char *id, struct mx_generation *g)
{
	struct embed_writer *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->writer.ops = &ops;
	w->gen = g;
	w->route = route;
	w->base64 = r->base64;
	w->top_n = r->top_n < 0 ? UINT32_MAX : (uint32_t)r->top_n;
	snprintf(w->id, sizeof(w->id), "%s", id);
	if (route != MX_EMBED_RERANK)
		return &w->writer;
	if (r->return_documents)
		w->root = json_incref(r->api.root);
	w->ranks = mx_calloc(r->api.n_prompts - r->api.n_queries, sizeof(*w->ranks));
	if (!w->ranks) {
		destroy(&w->writer);
		return NULL;
	}
	return &w->writer;
}

/* ---- routes ---- */

static void post(struct mx_exchange *x, unsigned route, const char *prefix)
{
	struct mx_embed_request r = {0};
	struct mx_api_error err;
	char id[32 + MX_REQUEST_ID_LEN];
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = mx_api_check_cost(x, 1, &err);
	if (st == MX_OK)
		st = mx_embed_parse(route, mx_buf_str(&x->body), x->body.len, &unknown, &r, &err);
	if (st == MX_OK && r.return_documents)
		r.api.kept_bytes = mx_parse_cost(mx_buf_str(&x->body), x->body.len);
	mx_exchange_drop_body(x);
	if (st == MX_OK)
		st = mx_api_generate(x, &r.api, &err);
	snprintf(id, sizeof(id), "%s-%s", prefix, x->id);
	if (st == MX_OK && !(x->writer = writer_create(route, &r, id, x->gen)))
		st = mx_api_fail(&err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	mx_embed_request_free(&r);
	mx_exchange_warn_unknown(x, &unknown);
	if (st != MX_OK)
		mx_exchange_fail(x, &err);
	else
		x->state = MX_X_RUNNING;
}

void mx_api_post_embeddings(struct mx_exchange *x)
{
	post(x, MX_EMBED_EMBEDDINGS, "embd");
}

void mx_api_post_score(struct mx_exchange *x)
{
	post(x, MX_EMBED_SCORE, "score");
}

void mx_api_post_rerank(struct mx_exchange *x)
{
	post(x, MX_EMBED_RERANK, "rerank");
}
