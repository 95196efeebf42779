/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http/items.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/json_out.h"
#include "proto/parse_cost.h"

struct mx_kept_item {
	enum mx_api_item_kind kind;
	bool cut;
	struct mx_buf text;
	struct mx_buf call_id, name;
	struct mx_buf tokens, top; /* arrays of struct mx_api_token and mx_top_token */
};

static mx_status no_room(const struct mx_items *it, struct mx_api_error *err)
{
	return mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
	                   "no memory is free for the rest of this answer (http.answer_memory is %.1f "
	                   "MiB): try again in a moment",
	                   (double)it->hold.budget->limit / 0x1p20);
}

mx_status mx_items_init(struct mx_items *it, struct mx_service *s, struct mx_generation *g,
                        int64_t max_tokens, uint64_t own_bytes, struct mx_api_error *err)
{
	*it = (struct mx_items){.gen = g,
	                        .max_tokens = max_tokens,
	                        .own_bytes = own_bytes,
	                        .hold = {.budget = &s->answers}};
	return mx_hold_use(&it->hold, own_bytes) ? MX_OK : no_room(it, err);
}

void mx_items_free(struct mx_items *it)
{
	for (size_t i = 0; i < it->n; i++) {
		struct mx_kept_item *m = &it->list[i];
		struct mx_buf *all[] = {&m->text, &m->call_id, &m->name, &m->tokens, &m->top};
		for (size_t k = 0; k < sizeof(all) / sizeof(*all); k++)
			mx_buf_free(all[k]);
	}
	free(it->list);
	if (it->hold.budget)
		mx_hold_end(&it->hold);
	*it = (struct mx_items){0};
}

struct mx_api_item mx_items_get(const void *arg, size_t i)
{
	const struct mx_items *it = arg;
	const struct mx_kept_item *m = &it->list[i];
	return (struct mx_api_item){.kind = m->kind,
	                            .text = mx_buf_str(&m->text),
	                            .len = m->text.len,
	                            .call_id = mx_buf_str(&m->call_id),
	                            .name = mx_buf_str(&m->name),
	                            .vocab = m->kind == MX_API_ITEM_TEXT ? it->vocab : NULL,
	                            .tokens = (const void *)m->tokens.data,
	                            .n_tokens = m->tokens.len / sizeof(struct mx_api_token),
	                            .top = (const void *)m->top.data,
	                            .top_stride = it->top_stride,
	                            .cut = m->cut};
}

static uint64_t item_bytes(const struct mx_kept_item *m)
{
	return m->text.cap + m->call_id.cap + m->name.cap + m->tokens.cap + m->top.cap;
}

/* Accounts for the items' memory, of which the last one's may have changed. */
static enum mx_items_step account(struct mx_items *it, enum mx_items_step step)
{
	const struct mx_kept_item *m = &it->list[it->n - 1];
	uint64_t bytes =
		it->own_bytes + it->cap * sizeof(*it->list) + it->earlier_bytes + item_bytes(m);
	if (m->text.failed || m->call_id.failed || m->name.failed || m->tokens.failed || m->top.failed)
		mx_api_fail(&it->error, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	else if (!mx_hold_use(&it->hold, bytes))
		(void)no_room(it, &it->error);
	else
		return step;
	return MX_ITEMS_ERROR;
}

/* Adds an item without text. */
static enum mx_items_step open_item(struct mx_items *it, enum mx_api_item_kind kind)
{
	if (it->n == it->cap) {
		size_t cap = it->cap ? it->cap * 2 : 4;
		struct mx_kept_item *list = mx_realloc(it->list, cap, sizeof(*list));
		if (!list) {
			mx_api_fail(&it->error, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
			return MX_ITEMS_ERROR;
		}
		it->list = list;
		it->cap = cap;
	}
	if (it->n)
		it->earlier_bytes += item_bytes(&it->list[it->n - 1]);
	it->list[it->n++] = (struct mx_kept_item){.kind = kind};
	it->open = true;
	return account(it, MX_ITEMS_OPEN);
}

/* Adds to the last item, with log-probabilities if they are its. */
static enum mx_items_step add(struct mx_items *it, const char *text, size_t len, bool tokens)
{
	const struct mx_api_choice *c = &it->event.choice;
	struct mx_kept_item *m = &it->list[it->n - 1];
	it->delta = (struct mx_api_item){.kind = m->kind, .text = text, .len = len};
	if (tokens && c->vocab) {
		it->delta.vocab = it->vocab = c->vocab;
		it->delta.tokens = c->tokens;
		it->delta.n_tokens = c->n_tokens;
		it->delta.top = c->top;
		it->delta.top_stride = it->top_stride = c->top_stride;
	}
	if (!it->keep)
		return MX_ITEMS_DELTA;
	mx_buf_append(&m->text, text, len);
	if (it->delta.vocab) {
		mx_buf_append(&m->tokens, (const char *)c->tokens, c->n_tokens * sizeof(*c->tokens));
		mx_buf_append(&m->top, (const char *)c->top, c->n_tokens * c->top_stride * sizeof(*c->top));
	}
	return account(it, MX_ITEMS_DELTA);
}

/* Sets how the answer has ended. */
static void set_ending(struct mx_items *it, const struct mx_api_choice *c)
{
	struct mx_api_ending *e = &it->ending;
	e->stop_text = c->stop_text;
	e->stop_len = c->stop_len;
	if (strcmp(c->finish_reason, "length"))
		e->how = c->stop_text ? MX_API_ENDED_TEXT : MX_API_ENDED_STOP;
	else if ((int64_t)mx_generation_usage(it->gen).completion == it->max_tokens)
		e->how = MX_API_ENDED_LENGTH;
	else
		e->how = MX_API_ENDED_CONTEXT;
}

/* True if a text is a JSON object. What jansson takes for it is charged while it does. */
static bool is_object(struct mx_items *it, const struct mx_buf *text)
{
	uint64_t used = it->hold.used;
	if (!mx_hold_use(&it->hold, used + mx_parse_cost(mx_buf_str(text), text->len)))
		return false;
	json_t *v = json_loadb(mx_buf_str(text), text->len, 0, NULL);
	bool object = json_is_object(v);
	json_decref(v);
	(void)mx_hold_use(&it->hold, used);
	return object;
}

/* Makes a call's arguments an object: those that are none (the answer was cut off) become a string
 * in one, as Anthropic's documentation of streamed input asks of clients. */
static enum mx_items_step make_object(struct mx_items *it, struct mx_kept_item *m)
{
	struct mx_buf object = {0};
	if (!m->text.len) {
		mx_buf_puts(&m->text, "{}");
	} else if (!is_object(it, &m->text)) {
		mx_buf_puts(&object, "{\"INVALID_JSON\":");
		mx_json_string(&object, mx_buf_str(&m->text), m->text.len);
		mx_buf_putc(&object, '}');
		mx_buf_free(&m->text);
		m->text = object;
	}
	return account(it, MX_ITEMS_CLOSE);
}

static enum mx_items_step close_item(struct mx_items *it)
{
	struct mx_kept_item *m = &it->list[it->n - 1];
	m->cut = it->finished && it->ending.how >= MX_API_ENDED_LENGTH;
	it->open = false;
	if (it->keep && it->objects && m->kind == MX_API_ITEM_CALL)
		return make_object(it, m);
	return MX_ITEMS_CLOSE;
}

/* Adds text to an item of a kind: closes the one that is open, opens one, or adds. */
static enum mx_items_step put(struct mx_items *it, enum mx_api_item_kind kind, const char *text,
                              size_t len)
{
	if (it->open && it->list[it->n - 1].kind != kind)
		return close_item(it);
	if (!it->open)
		return open_item(it, kind);
	it->unit++;
	return add(it, text, len, kind == MX_API_ITEM_TEXT);
}

/* Takes the next step with a call, or a part of one. MX_ITEMS_WAIT if it is done with. */
static enum mx_items_step step_call(struct mx_items *it, const struct mx_api_call *call)
{
	if (call->begins && !it->call_begun) {
		if (it->open)
			return close_item(it);
		enum mx_items_step step = open_item(it, MX_API_ITEM_CALL);
		if (step == MX_ITEMS_ERROR)
			return step;
		struct mx_kept_item *m = &it->list[it->n - 1];
		mx_buf_append(&m->call_id, call->id, call->id_len);
		mx_buf_append(&m->name, call->name, call->name_len);
		it->call_begun = true;
		return account(it, step);
	}
	if (call->len && !it->call_taken) {
		it->call_taken = true;
		return add(it, call->arguments, call->len, false);
	}
	if (call->ends && it->open)
		return close_item(it);
	it->call_begun = it->call_taken = false;
	return MX_ITEMS_WAIT;
}

/* Takes the next step with the output of the event that was read: its reasoning, its text, its
 * calls. MX_ITEMS_WAIT if it is done with. */
static enum mx_items_step step_output(struct mx_items *it)
{
	const struct mx_api_choice *c = &it->event.choice;
	if (it->unit == 0) {
		if (c->reasoning_len)
			return put(it, MX_API_ITEM_REASONING, c->reasoning, c->reasoning_len);
		it->unit++;
	}
	if (it->unit == 1) {
		/* log-probabilities of tokens that gave no text are those of reasoning and calls */
		if (c->len || (c->n_tokens && !c->reasoning_len && !c->n_calls))
			return put(it, MX_API_ITEM_TEXT, c->text, c->len);
		it->unit++;
	}
	for (; it->unit - 2 < c->n_calls; it->unit++) {
		enum mx_items_step step = step_call(it, &c->calls[it->unit - 2]);
		if (step != MX_ITEMS_WAIT)
			return step;
	}
	return MX_ITEMS_WAIT;
}

/* Takes the next step with the event that was read; MX_ITEMS_WAIT if that is done with. */
static enum mx_items_step step(struct mx_items *it)
{
	const struct mx_api_choice *c = &it->event.choice;
	enum mx_items_step step = step_output(it);
	if (step != MX_ITEMS_WAIT)
		return step;
	if (c->finish_reason) {
		it->finished = true;
		set_ending(it, c);
		if (!it->n && it->empty_text)
			return open_item(it, MX_API_ITEM_TEXT);
		if (it->open)
			return close_item(it);
	}
	it->has_event = false;
	return MX_ITEMS_WAIT;
}

enum mx_items_step mx_items_next(struct mx_items *it)
{
	for (;;) {
		enum mx_items_step s = it->has_event ? step(it) : MX_ITEMS_WAIT;
		if (s != MX_ITEMS_WAIT)
			return s;
		switch (mx_generation_next(it->gen, &it->event, &it->error)) {
		case MX_GEN_EVENT:
			it->has_event = true;
			it->unit = 0;
			break;
		case MX_GEN_WAIT: return MX_ITEMS_WAIT;
		case MX_GEN_END: return MX_ITEMS_END;
		case MX_GEN_ERROR: return MX_ITEMS_ERROR;
		}
	}
}
