/* SPDX-License-Identifier: Apache-2.0 */
/* Chats, generations and embeddings of Ollama's API: the routes, and what writes their answers. */
#include "daemon/http/ollama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "daemon/http/items.h"
#include "daemon/serve/prompt.h"
#include "proto/embed/response.h"
#include "proto/json_out.h"
#include "proto/ollama/request.h"
#include "proto/ollama/response.h"
#include "proto/translate.h"

const struct mx_dialect mx_ollama_dialect = {.error = mx_ollama_write_error,
                                             .status = mx_http_status};

struct ollama {
	struct mx_writer writer;
	struct mx_generation *gen; /* not owned */
	char model[256];           /* as the client calls it */
	uint64_t start_ns;         /* by mx_now_ns */
	struct mx_ollama_figures figures;

	/* Texts. */
	struct mx_items items;
	struct mx_api_item new; /* of a stream: what an object tells */
	struct mx_ollama_part part;
	bool writing; /* `part` is not yet written whole */
	bool ended;
	struct mx_ollama_cursor cursor;

	/* Embeddings. */
	bool single;           /* one, of the older route */
	bool started, pending; /* the beginning is written; a vector is not yet written whole */
	struct mx_gen_event event;
	struct mx_api_cursor at;
};

static void destroy(struct mx_writer *writer)
{
	struct ollama *w = (struct ollama *)writer;
	mx_items_free(&w->items);
	free(w);
}

/* ---- texts ---- */

/* Sums up the answer. */
static void take_figures(struct ollama *w)
{
	struct mx_generation_figures f;
	struct mx_api_error err;
	struct mx_api_usage usage = mx_generation_usage(w->gen);
	uint64_t now = mx_now_ns(), first = now, begun = w->start_ns;
	if (mx_generation_figures(w->gen, &f, &err) == MX_OK) {
		first = f.first_token_ns ? f.first_token_ns : now;
		begun += f.scheduled ? f.queue_ns : 0;
	}
	w->figures = (struct mx_ollama_figures){
		.done_reason = w->items.ending.how >= MX_API_ENDED_LENGTH ? "length" : "stop",
		.total_ns = now - w->start_ns,
		.prompt_ns = first > begun ? first - begun : 0,
		.eval_ns = now - first,
		.prompt_tokens = usage.prompt,
		.eval_tokens = usage.completion,
	};
}

static void set_part(struct ollama *w, size_t n_items, bool end)
{
	w->part.wall_ns = mx_wall_ns();
	w->part.n_items = n_items;
	w->part.end = end ? &w->figures : NULL;
	w->writing = true;
}

/* Gives the only item of a stream's object. */
static struct mx_api_item new_item(const void *arg, size_t i)
{
	(void)i;
	return ((const struct ollama *)arg)->new;
}

/* Takes the next step of a stream. False if there is nothing new. */
static bool step(struct ollama *w, struct mx_buf *out)
{
	switch (mx_items_next(&w->items)) {
	case MX_ITEMS_WAIT: return false;
	case MX_ITEMS_OPEN: return true;
	case MX_ITEMS_DELTA:
		w->new = w->items.delta;
		if (w->new.kind != MX_API_ITEM_CALL && w->new.len)
			set_part(w, 1, false);
		return true;
	case MX_ITEMS_CLOSE: /* a call is told as a whole */
		w->new = mx_items_get(&w->items, w->items.n - 1);
		if (w->new.kind == MX_API_ITEM_CALL)
			set_part(w, 1, false);
		return true;
	case MX_ITEMS_END:
		take_figures(w);
		set_part(w, 0, true);
		break;
	case MX_ITEMS_ERROR:
		mx_ollama_write_error(out, &w->items.error, 0, "");
		mx_buf_putc(out, '\n');
		break;
	}
	w->ended = true;
	return true;
}

static bool stream(struct mx_writer *writer, struct mx_buf *out)
{
	struct ollama *w = (struct ollama *)writer;
	size_t full = out->len + MX_API_PIECE;
	while (out->len < full) {
		if (w->writing) {
			if (!mx_ollama_write_part(out, &w->part, full - out->len, &w->cursor))
				return false;
			mx_buf_putc(out, '\n');
			w->writing = false;
		}
		if (w->ended)
			return true;
		if (!step(w, out))
			return false;
	}
	return w->ended && !w->writing;
}

static mx_status response(struct mx_writer *writer, struct mx_buf *out, bool *end,
                          struct mx_api_error *err)
{
	struct ollama *w = (struct ollama *)writer;
	*end = false;
	while (!w->ended) {
		enum mx_items_step s = mx_items_next(&w->items);
		if (s == MX_ITEMS_WAIT) /* the caller knows that it is finished */
			return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
		if (s == MX_ITEMS_ERROR) {
			*err = w->items.error;
			return MX_E_INTERNAL;
		}
		w->ended = s == MX_ITEMS_END;
	}
	if (!w->writing) {
		take_figures(w);
		set_part(w, w->items.n, true);
	}
	*end = mx_ollama_write_part(out, &w->part, MX_API_PIECE, &w->cursor);
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

static const struct mx_writer_ops text_ops = {.stream = stream,
                                              .response = response,
                                              .destroy = destroy,
                                              .stream_type = "application/x-ndjson"};

static mx_status make_writer(struct mx_exchange *x, const struct mx_ollama_request *r, bool chat,
                             struct mx_api_error *err)
{
	struct ollama *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	x->writer = &w->writer;
	w->writer.ops = &text_ops;
	w->gen = x->gen;
	w->start_ns = x->start_ns;
	snprintf(w->model, sizeof(w->model), "%s", r->model);
	w->part = (struct mx_ollama_part){.model = w->model,
	                                  .chat = chat,
	                                  .item = r->api.stream ? new_item : mx_items_get,
	                                  .arg = r->api.stream ? (void *)w : (void *)&w->items};
	mx_status st =
		mx_items_init(&w->items, x->http->service, x->gen, r->api.max_tokens, sizeof(*w), err);
	w->items.keep = w->items.objects = true;
	return st;
}

/* ---- embeddings ---- */

static bool no_stream(struct mx_writer *writer, struct mx_buf *out)
{
	(void)writer;
	(void)out;
	return true;
}

/* Writes what comes before a vector, and the vector. */
static void write_vector(struct ollama *w, size_t full, struct mx_buf *out)
{
	if (!w->started) {
		mx_buf_puts(out, w->single ? "{\"embedding\":" : "{\"model\":");
		if (!w->single) {
			mx_json_cstring(out, w->model);
			mx_buf_puts(out, ",\"embeddings\":[");
		}
		w->started = true;
	} else if (!w->pending) {
		mx_buf_putc(out, ',');
	}
	size_t max = full > out->len ? full - out->len : 1;
	w->pending =
		!mx_embed_write_vector(out, w->event.vector, w->event.n_vector, false, max, &w->at);
}

static mx_status vectors(struct mx_writer *writer, struct mx_buf *out, bool *end,
                         struct mx_api_error *err)
{
	struct ollama *w = (struct ollama *)writer;
	size_t full = out->len + MX_API_PIECE;
	*end = false;
	while (out->len < full && !*end) {
		enum mx_gen_next n = w->pending ? MX_GEN_EVENT : mx_generation_next(w->gen, &w->event, err);
		if (n == MX_GEN_ERROR)
			return MX_E_INTERNAL;
		if (n == MX_GEN_WAIT) /* the caller knows that it is finished */
			return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
		if (n == MX_GEN_EVENT)
			write_vector(w, full, out);
		*end = n == MX_GEN_END;
	}
	if (*end && !w->single) {
		struct mx_api_usage usage = mx_generation_usage(w->gen);
		mx_buf_printf(
			out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%llu",
			(unsigned long long)(mx_now_ns() - w->start_ns), (unsigned long long)usage.prompt);
	}
	if (*end)
		mx_buf_putc(out, '}');
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

static const struct mx_writer_ops vector_ops = {
	.stream = no_stream, .response = vectors, .destroy = destroy};

static mx_status make_vector_writer(struct mx_exchange *x, const struct mx_ollama_request *r,
                                    bool single, struct mx_api_error *err)
{
	struct ollama *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	x->writer = &w->writer;
	w->writer.ops = &vector_ops;
	w->gen = x->gen;
	w->start_ns = x->start_ns;
	w->single = single;
	snprintf(w->model, sizeof(w->model), "%s", r->model);
	return MX_OK;
}

/* ---- routes ---- */

/* As struct mx_ollama_models; `arg`: the service. */
static bool find_model(void *arg, const char *name, size_t len, char *out, size_t cap,
                       bool *has_template)
{
	struct mx_served *m = mx_ollama_take(arg, name, &len);
	if (!m)
		return false;
	enum mx_served_state state = mx_served_state(m);
	bool loaded = state == MX_SERVED_READY || state == MX_SERVED_DRAINING;
	*has_template = !loaded || m->chat_template; /* one that loads is refused later */
	snprintf(out, cap, "%.*s", (int)len, name);
	mx_served_release(m);
	return true;
}

/* Answers a request that only wants the model to be there. It stays, whatever keep_alive says. */
static mx_status answer_load(struct mx_exchange *x, const struct mx_ollama_request *r, bool chat,
                             struct mx_api_error *err)
{
	char served[256];
	bool has_template;
	struct mx_served *m = NULL;
	if (!find_model(x->http->service, r->model, strlen(r->model), served, sizeof(served),
	                &has_template))
		return mx_api_fail(err, MX_FAULT_NOT_FOUND, "model_not_found", "model", "model not found");
	const struct mx_api_text name = {served, strlen(served)};
	mx_status st = mx_prompt_take_model(x->http->service, x->who, &name, true, &m, err);
	if (st != MX_OK)
		return st;
	mx_served_release(m);
	const struct mx_ollama_figures f = {.done_reason = r->unloads ? "unload" : "load"};
	const struct mx_ollama_part part = {
		.model = r->model, .wall_ns = mx_wall_ns(), .chat = chat, .end = &f};
	struct mx_ollama_cursor at = {0};
	(void)mx_ollama_write_part(&x->answer, &part, SIZE_MAX, &at);
	mx_exchange_answer(x, 200, "application/json");
	return MX_OK;
}

static mx_status run(struct mx_exchange *x, unsigned route, const struct mx_ollama_request *r,
                     struct mx_api_error *err)
{
	bool vector = route == MX_OLLAMA_EMBED || route == MX_OLLAMA_EMBEDDINGS;
	if (r->loads)
		return answer_load(x, r, route == MX_OLLAMA_CHAT, err);
	mx_status st = mx_api_generate(x, &r->api, err);
	if (st != MX_OK) {
		mx_ollama_rename_error(err);
		return st;
	}
	st = vector ? make_vector_writer(x, r, route == MX_OLLAMA_EMBEDDINGS, err)
	            : make_writer(x, r, route == MX_OLLAMA_CHAT, err);
	if (st == MX_OK)
		x->state = r->api.stream ? MX_X_STREAM : MX_X_RUNNING;
	return st;
}

static void post(struct mx_exchange *x, unsigned route)
{
	struct mx_ollama_request r = {0};
	struct mx_api_error err;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	const struct mx_ollama_models models = {find_model, x->http->service};
	mx_status st = mx_api_check_cost(x, MX_TRANSLATION_COST, &err);
	if (st == MX_OK)
		st = mx_ollama_parse(route, mx_buf_str(&x->body), x->body.len, &models, &unknown, &r, &err);
	mx_exchange_drop_body(x);
	if (st == MX_OK) {
		st = run(x, route, &r, &err);
		mx_exchange_warn_unknown(x, &unknown);
	}
	mx_ollama_request_free(&r);
	if (st != MX_OK)
		mx_exchange_fail(x, &err);
}

void mx_ollama_post_chat(struct mx_exchange *x)
{
	post(x, MX_OLLAMA_CHAT);
}

void mx_ollama_post_generate(struct mx_exchange *x)
{
	post(x, MX_OLLAMA_GENERATE);
}

void mx_ollama_post_embed(struct mx_exchange *x)
{
	post(x, MX_OLLAMA_EMBED);
}

void mx_ollama_post_embeddings(struct mx_exchange *x)
{
	post(x, MX_OLLAMA_EMBEDDINGS);
}
