/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/parts.h"

#include <math.h>
#include <string.h>

/* Most text and ids of a part: with its log-probabilities, 20 alternatives a token, some 50 KiB. */
#define PART_TEXT ((size_t)16 << 10)
#define PART_IDS  ((size_t)4 << 10)

static void clear(struct mx_part *p)
{
	struct mx_buf *buffers[] = {&p->text,          &p->ids.bytes,        &p->prompt_ids.bytes,
	                            &p->lp_ids.bytes,  &p->lp_values.bytes,  &p->lp_counts.bytes,
	                            &p->top_ids.bytes, &p->top_values.bytes, &p->stop_text,
	                            &p->reasoning};
	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
		mx_buf_clear(buffers[i]);
	p->finish_reason = NULL;
	p->stop_token = -1;
	p->calls = NULL;
	p->n_calls = 0;
}

static void add(struct mx_numbers *v, const void *number)
{
	mx_buf_append(&v->bytes, number, sizeof(uint32_t));
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Takes as many as fit of `n` items of which `*at` are taken already. */
static size_t take(size_t *at, size_t n, size_t room)
{
	size_t some = least(n - *at, room);
	*at += some;
	return some;
}

static void add_ids(struct mx_numbers *to, const int32_t *ids, size_t n, size_t *at)
{
	const int32_t *from = ids + *at;
	size_t some = ids ? take(at, n, PART_IDS - least(PART_IDS, mx_numbers_n(to))) : 0;
	mx_buf_append(&to->bytes, from, some * sizeof(*from));
}

static void add_tokens(struct mx_part *p, const struct mx_api_choice *c, size_t *at)
{
	size_t i = *at;
	take(at, c->n_tokens, MX_PART_TOKENS - least(MX_PART_TOKENS, mx_numbers_n(&p->lp_ids)));
	for (; i < *at; i++) {
		const struct mx_api_token *t = &c->tokens[i];
		float value = t->first ? NAN : t->logprob;
		uint32_t count = t->n_top;
		add(&p->lp_ids, &t->id);
		add(&p->lp_values, &value);
		add(&p->lp_counts, &count);
		for (size_t k = 0; k < t->n_top; k++) {
			const struct mx_top_token *top = &c->top[i * c->top_stride + k];
			add(&p->top_ids, &top->token);
			add(&p->top_values, &top->logprob);
		}
	}
}

/* Adds what fits of a text of n bytes. */
static void add_text(struct mx_buf *to, const char *text, size_t n, size_t *at)
{
	size_t from = *at;
	take(at, n, PART_TEXT - least(PART_TEXT, to->len));
	while (*at<n && * at> from && ((unsigned char)text[*at] & 0xc0) == 0x80)
		(*at)--; /* whole characters */
	mx_buf_append(to, text + from, *at - from);
}

/* Adds what fits of the event to the part. True if all of it did. */
static bool add_event(struct mx_parts *p)
{
	const struct mx_api_choice *c = &p->event.choice;
	struct mx_part *to = &p->part;
	add_text(&to->text, c->text, c->len, &p->at.text);
	if (c->reasoning_len)
		add_text(&to->reasoning, c->reasoning, c->reasoning_len, &p->at.reasoning);
	add_tokens(to, c, &p->at.tokens);
	add_ids(&to->ids, c->ids, c->n_ids, &p->at.ids);
	add_ids(&to->prompt_ids, c->prompt_ids, c->n_prompt_ids, &p->at.prompt_ids);
	if (p->at.text < c->len || p->at.reasoning < c->reasoning_len || p->at.tokens < c->n_tokens ||
	    (c->ids && p->at.ids < c->n_ids) || (c->prompt_ids && p->at.prompt_ids < c->n_prompt_ids))
		return false;
	to->calls = c->calls;
	to->n_calls = c->n_calls;
	to->finish_reason = c->finish_reason;
	to->stop_token = c->stop_token;
	if (c->stop_text)
		mx_buf_append(&to->stop_text, c->stop_text, c->stop_len);
	return true;
}

/* Makes sure that there is an event that is being read. */
static enum mx_gen_next need_event(struct mx_parts *p, struct mx_api_error *err)
{
	if (p->has_event)
		return MX_GEN_EVENT;
	enum mx_gen_next next = mx_generation_next(p->gen, &p->event, err);
	p->has_event = next == MX_GEN_EVENT;
	memset(&p->at, 0, sizeof(p->at));
	return next;
}

enum mx_gen_next mx_parts_next(struct mx_parts *p, struct mx_api_error *err)
{
	enum mx_gen_next next;
	bool any = false;
	clear(&p->part);
	while ((next = need_event(p, err)) == MX_GEN_EVENT) {
		uint32_t index = p->event.choice.index;
		if (any && p->part.index != index)
			break;
		p->part.index = index;
		any = true;
		p->has_event = !add_event(p);
		/* calls are borrowed until the next event is read */
		if (p->has_event || p->part.finish_reason || p->part.n_calls)
			break;
	}
	/* an end or an error comes again at the next call */
	return any ? MX_GEN_EVENT : next;
}

void mx_parts_free(struct mx_parts *p)
{
	struct mx_part *q = &p->part;
	mx_buf_free(&q->text);
	mx_buf_free(&q->reasoning);
	mx_buf_free(&q->ids.bytes);
	mx_buf_free(&q->prompt_ids.bytes);
	mx_buf_free(&q->lp_ids.bytes);
	mx_buf_free(&q->lp_values.bytes);
	mx_buf_free(&q->lp_counts.bytes);
	mx_buf_free(&q->top_ids.bytes);
	mx_buf_free(&q->top_values.bytes);
	mx_buf_free(&q->stop_text);
}
