/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http/openai.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

mx_status mx_openai_init(struct mx_openai *w, const struct mx_api_request *r, const char *id,
                         struct mx_generation *g)
{
	*w = (struct mx_openai){
		.gen = g, .include_usage = r->include_usage, .continuous_usage = r->continuous_usage};
	mx_api_head_init(&w->head, r->kind == MX_API_CHAT, r->stream, id,
	                 (int64_t)(mx_wall_ns() / MX_NS_PER_S), mx_generation_model(g));
	return w->head.prefix.failed ? MX_E_NOMEM : MX_OK;
}

void mx_openai_free(struct mx_openai *w)
{
	mx_api_head_free(&w->head);
}

/* True if OpenAI's streams have no words for an event: that a call has ended, and no more. */
static bool says_nothing(const struct mx_gen_event *e)
{
	const struct mx_api_choice *c = &e->choice;
	return !e->opens && c->n_calls && c->calls->ends && !c->n_tokens && !c->n_ids &&
	       !c->finish_reason;
}

/* Reads the next event of the generation. */
static enum mx_gen_next next(struct mx_openai *w, struct mx_api_error *err)
{
	enum mx_gen_next n;
	do
		n = mx_generation_next(w->gen, &w->event, err);
	while (n == MX_GEN_EVENT && says_nothing(&w->event));
	if (n != MX_GEN_EVENT)
		return n;
	w->begun = true;
	w->n_events++;
	if (w->continuous_usage)
		w->usage = mx_generation_usage(w->gen);
	return n;
}

/* Writes the event that was begun, up to a buffer of `full` bytes. */
static void write_event(struct mx_openai *w, size_t full, struct mx_buf *out)
{
	enum mx_api_usage_mode mode = w->continuous_usage ? MX_USAGE_COUNTS
	                              : w->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	w->begun = !(w->event.opens ? mx_api_write_role : mx_api_write_event)(
		out, &w->head, &w->event.choice, mode, &w->usage, full - out->len, &w->cursor);
}

static void write_error(struct mx_buf *out, const struct mx_api_error *err)
{
	mx_buf_puts(out, "data: ");
	mx_api_error_write(out, err);
	mx_buf_puts(out, "\n\n" MX_SSE_DONE);
}

static void write_done(struct mx_openai *w, struct mx_buf *out)
{
	if (w->include_usage) {
		struct mx_api_usage usage = mx_generation_usage(w->gen);
		mx_api_write_usage_event(out, &w->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
}

bool mx_openai_stream(struct mx_openai *w, struct mx_buf *out)
{
	struct mx_api_error err;
	size_t full = out->len + MX_API_PIECE;
	while (out->len < full) {
		/* an event that was begun is ended before anything else is said */
		if (w->begun) {
			write_event(w, full, out);
			if (w->begun)
				return false;
			continue;
		}
		switch (next(w, &err)) {
		case MX_GEN_EVENT: break;
		case MX_GEN_WAIT: return false;
		case MX_GEN_END: write_done(w, out); return true;
		case MX_GEN_ERROR: write_error(out, &err); return true;
		}
	}
	return false;
}

mx_status mx_openai_response(struct mx_openai *w, struct mx_buf *out, bool *end,
                             struct mx_api_error *err)
{
	size_t full = out->len + MX_API_PIECE;
	*end = false;
	while (!*end && out->len < full) {
		if (w->begun) {
			if (!mx_api_write_choice(out, &w->head, &w->event.choice, w->n_events == 1,
			                         full - out->len, &w->cursor))
				break;
			w->begun = false;
			continue;
		}
		switch (next(w, err)) {
		case MX_GEN_EVENT:
			if (w->n_events == 1)
				mx_api_write_begin(out, &w->head);
			break;
		case MX_GEN_END: {
			struct mx_api_usage usage = mx_generation_usage(w->gen);
			mx_api_write_end(out, &usage);
			*end = true;
			break;
		}
		case MX_GEN_ERROR: return MX_E_INTERNAL;
		case MX_GEN_WAIT: /* the caller knows that it is finished */
			return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
		}
	}
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

static bool stream(struct mx_writer *w, struct mx_buf *out)
{
	return mx_openai_stream((struct mx_openai *)w, out);
}

static mx_status response(struct mx_writer *w, struct mx_buf *out, bool *end,
                          struct mx_api_error *err)
{
	return mx_openai_response((struct mx_openai *)w, out, end, err);
}

static void destroy(struct mx_writer *w)
{
	mx_openai_free((struct mx_openai *)w);
	free(w);
}

static const struct mx_writer_ops ops = {.stream = stream,
                                         .response = response,
                                         .destroy = destroy,
                                         .stream_type = MX_STREAM_SSE,
                                         .ping = MX_SSE_KEEP_ALIVE};

struct mx_writer *mx_openai_create(const struct mx_api_request *r, const char *id,
                                   struct mx_generation *g)
{
	struct mx_openai *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	if (mx_openai_init(w, r, id, g) != MX_OK) {
		destroy(&w->writer);
		return NULL;
	}
	w->writer.ops = &ops;
	return &w->writer;
}
