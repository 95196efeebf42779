/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/json_out.h"

/* Number of the prompt's last tokens that prime the decoder: enough for a character of byte tokens.
 */
#define PRIME_TOKENS 5

/* Returns the next capacity of a full array that can have `most` elements, 0 = not known: memory
 * that was reserved for exactly those is enough. */
static size_t grown(size_t cap, size_t most)
{
	size_t next = cap ? cap * 2 : 16;
	return most > cap && most < next ? most : next;
}

/* Makes room for one more log-probability. */
static bool grow_tokens(struct mx_pending *p, int32_t logprobs, size_t most)
{
	if (p->n_tokens < p->cap_tokens)
		return true;
	size_t cap = grown(p->cap_tokens, most);
	struct mx_api_token *tokens = mx_realloc(p->tokens, cap, sizeof(*tokens));
	if (!tokens)
		return false;
	p->tokens = tokens;
	if (logprobs > 0) {
		struct mx_top_token *top = mx_realloc(p->top, cap * (size_t)logprobs, sizeof(*top));
		if (!top)
			return false;
		p->top = top;
	}
	p->cap_tokens = cap;
	return true;
}

static bool add_logprob(struct mx_choice *c, int32_t id, uint32_t offset,
                        const struct mx_logprob *lp)
{
	struct mx_pending *p = &c->ready;
	int32_t n = c->rules->logprobs;
	if (!grow_tokens(p, n, c->most_tokens))
		return false;
	struct mx_api_token *t = &p->tokens[p->n_tokens];
	*t = (struct mx_api_token){.id = id, .first = !lp, .text_offset = offset};
	if (lp) {
		t->logprob = lp->logprob;
		t->n_top = (uint8_t)(lp->n_top < (uint32_t)n ? lp->n_top : (uint32_t)n);
		if (t->n_top)
			memcpy(p->top + p->n_tokens * (size_t)n, lp->top, t->n_top * sizeof(*lp->top));
	}
	p->n_tokens++;
	return true;
}

static bool add_id(struct mx_pending *p, int32_t id, size_t most)
{
	if (p->n_ids == p->cap_ids) {
		size_t cap = grown(p->cap_ids, most);
		int32_t *ids = mx_realloc(p->ids, cap, sizeof(*ids));
		if (!ids)
			return false;
		p->ids = ids;
		p->cap_ids = cap;
	}
	p->ids[p->n_ids++] = id;
	return true;
}

/* Ends an event behind the token that came last. A token without text makes an event too: its text
 * goes with the token that releases it. */
static bool add_cut(struct mx_choice *c)
{
	struct mx_pending *p = &c->ready;
	if (!p->cuts && !(p->cuts = mx_calloc(MX_MAX_CUTS, sizeof(*p->cuts))))
		return false;
	if (p->n_cuts == MX_MAX_CUTS) /* the client lags */
		p->n_cuts--;
	p->cuts[p->n_cuts++] =
		(struct mx_cut){p->text.len, p->n_segments, p->n_tokens, p->n_ids, c->n_output};
	return true;
}

uint32_t mx_choice_offset(const struct mx_tokenizer *t, int32_t id, const struct mx_buf *piece,
                          uint32_t before)
{
	struct mx_buf own = {0};
	uint32_t offset = before;
	if (mx_tokenizer_token_bytes(t, id, &own) == MX_OK && own.len && own.len <= piece->len) {
		size_t at = piece->len - own.len;
		bool continues = ((unsigned char)own.data[0] & 0xc0) == 0x80; /* the end of a character */
		if (!continues && !memcmp(piece->data + at, own.data, own.len))
			offset += (uint32_t)mx_utf8_count(piece->data, at);
	}
	mx_buf_free(&own);
	return offset;
}

void mx_choice_init(struct mx_choice *c, const struct mx_choice_rules *rules, const int32_t *prompt,
                    size_t n_prompt)
{
	*c = (struct mx_choice){.rules = rules, .stop = -1};
	mx_decoder_init(&c->decoder, rules->tokenizer, rules->skip_special);
	for (size_t i = n_prompt > PRIME_TOKENS ? n_prompt - PRIME_TOKENS : 0; i < n_prompt; i++)
		if (mx_decoder_push(&c->decoder, prompt[i], &c->piece) != MX_OK)
			c->failed = true;
	mx_buf_clear(&c->piece);
}

void mx_choice_free(struct mx_choice *c)
{
	mx_decoder_free(&c->decoder);
	mx_buf_free(&c->held);
	mx_buf_free(&c->piece);
	mx_pending_free(&c->ready);
	mx_tool_parser_free(c->parser);
}

/* Adds what the parser has told. */
static void on_event(void *arg, const struct mx_tool_event *e)
{
	struct mx_choice *c = arg;
	const struct mx_choice_rules *r = c->rules;
	if (c->closed || (e->kind == MX_TOOL_REASONING && r->drop_reasoning))
		return;
	if (!mx_pending_add(&c->ready, e, r->want_cuts))
		c->failed = true;
	c->n_calls += e->kind == MX_TOOL_CALL_END;
	c->n_broken += e->kind == MX_TOOL_CALL_BROKEN;
	c->closed = r->one_call && c->n_calls;
}

bool mx_choice_parse(struct mx_choice *c, uint64_t seed)
{
	const struct mx_choice_rules *r = c->rules;
	if (!r->calls && !r->reasoning)
		return true;
	const struct mx_tool_parser_options options = {.calls = r->calls,
	                                               .reasoning = r->reasoning,
	                                               .reasoning_open = r->reasoning_open,
	                                               .types = r->types,
	                                               .seed = seed};
	return mx_tool_parser_create(&options, (struct mx_tool_sink){on_event, c}, &c->parser) == MX_OK;
}

void mx_choice_echo(struct mx_choice *c, const char *text, size_t len)
{
	mx_buf_append(&c->ready.text, text, len);
	c->text_chars += (uint32_t)mx_utf8_count(text, len);
	c->failed = c->failed || c->ready.text.failed;
}

void mx_choice_prompt_token(struct mx_choice *c, int32_t id, uint32_t text_offset,
                            const struct mx_logprob *lp)
{
	if (!add_logprob(c, id, text_offset, lp))
		c->failed = true;
}

/* Adds text that is certain to be part of the answer. */
static void give(struct mx_choice *c, const char *text, size_t n)
{
	if (c->parser)
		mx_tool_parser_feed(c->parser, text, n);
	else
		mx_buf_append(&c->ready.text, text, n);
}

static void release(struct mx_choice *c, size_t n)
{
	give(c, mx_buf_str(&c->held), n);
	mx_buf_consume(&c->held, n);
}

/* Adds c->piece to the text. False if a stop string ends the text. */
static bool add_text(struct mx_choice *c)
{
	const struct mx_choice_rules *r = c->rules;
	c->text_chars += (uint32_t)mx_utf8_count(mx_buf_str(&c->piece), c->piece.len);
	if (r->n_stops == 0 || c->n_output < r->min_tokens) {
		release(c, c->held.len);
		give(c, mx_buf_str(&c->piece), c->piece.len);
		return true;
	}
	size_t before = c->held.len;
	mx_buf_append(&c->held, mx_buf_str(&c->piece), c->piece.len);
	if (c->held.failed)
		return false;
	struct mx_stop_match match;
	if (mx_stops_feed(&r->automaton, &c->cursor, mx_buf_str(&c->piece), c->piece.len, &match)) {
		c->stop = (int32_t)match.stop;
		release(c, before + match.end - (r->include_stop ? 0 : r->stops[match.stop].len));
		mx_buf_clear(&c->held);
		return false;
	}
	release(c, c->held.len - c->cursor.state.depth);
	return true;
}

static bool out_of_memory(struct mx_choice *c)
{
	c->failed = c->failed || c->ready.text.failed || c->held.failed || c->piece.failed ||
	            (c->parser && mx_tool_parser_failed(c->parser));
	return c->failed;
}

/* Returns true if a token is left out of the text. */
static bool is_left_out(const struct mx_choice_rules *r, int32_t id)
{
	for (uint32_t i = 0; i < r->n_shown; i++)
		if (r->shown[i] == id)
			return false;
	return r->skip_special;
}

static bool in_reasoning(const struct mx_choice *c)
{
	return c->parser && mx_tool_parser_in_reasoning(c->parser);
}

bool mx_choice_token(struct mx_choice *c, int32_t id, bool is_stop, const struct mx_logprob *lp)
{
	const struct mx_choice_rules *r = c->rules;
	c->n_output++;
	mx_buf_clear(&c->piece);
	if (r->want_ids && !add_id(&c->ready, id, c->most_ids))
		c->failed = true;
	c->decoder.skip_special = is_left_out(r, id);
	if (!is_stop && mx_decoder_push(&c->decoder, id, &c->piece) != MX_OK)
		c->failed = true;
	if (r->logprobs >= 0 && lp) {
		uint32_t offset = mx_choice_offset(r->tokenizer, id, &c->piece, c->text_chars);
		if (!add_logprob(c, id, offset, lp))
			c->failed = true;
	}
	bool reasoned = in_reasoning(c);
	bool more = (is_stop || add_text(c)) && !c->closed;
	c->n_reasoning += reasoned && in_reasoning(c); /* the marks are none */
	c->ended = is_stop || !more || c->n_output == c->max_output;
	if (r->want_cuts && !c->ended && !add_cut(c))
		c->failed = true;
	return !out_of_memory(c) && more;
}

void mx_choice_finish(struct mx_choice *c, bool cut)
{
	mx_buf_clear(&c->piece);
	if (c->stop < 0) {
		if (mx_decoder_finish(&c->decoder, &c->piece) != MX_OK)
			c->failed = true;
		if (add_text(c))
			release(c, c->held.len);
	}
	if (c->parser)
		mx_tool_parser_finish(c->parser, cut && c->stop < 0);
	out_of_memory(c);
}
