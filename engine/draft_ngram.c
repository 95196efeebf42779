/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompt lookup (Saxena 2023; Yang et al. 2023): the tokens that followed the last occurrence of
 * the sequence's longest repeated suffix.
 *
 * The text that is searched is the prediction, if the request has one, then the prompt, then the
 * output. The prediction stands behind a copy of the prompt's end; so the output's first tokens
 * are found there, as a continuation of the prompt.
 *
 * The index is that of LZ77 compressors: a hash table from each GRAM tokens to where they ended
 * last, and from there a chain to where they ended before. A proposal looks at CHAIN places, at
 * most LONGEST tokens each, and adds at most INDEXED tokens to the index; so its time has a bound,
 * whatever the text is.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "engine/core.h"

/* Fewest tokens that must match. Two match by chance so often that most drafts are in vain. */
#define GRAM 3
/* Most tokens that are compared. */
#define LONGEST 32
/* Most places that are compared. */
#define CHAIN 64
/* Most tokens that a call adds to the index: half a millisecond's work. A prompt that is longer is
 * not searched before some steps. */
#define INDEXED 32768

struct lookup {
	int32_t *lead; /* [n_lead] the prompt's end and the prediction */
	uint32_t n_lead;
	uint32_t n;     /* tokens of the text that are indexed */
	uint32_t *last; /* [mask + 1] by hash: end of the last gram with it, 0 = none */
	uint32_t *prev; /* [text] by end of a gram: end of the one before with its hash */
	uint32_t mask;
};

static int32_t at(const struct lookup *l, const struct mx_seq *s, uint32_t i)
{
	return i < l->n_lead ? l->lead[i] : mx_seq_token(&s->tokens, i - l->n_lead);
}

/* Returns the place in `last` of the gram that ends with token i >= GRAM - 1. */
static uint32_t *place(const struct lookup *l, const struct mx_seq *s, uint32_t i)
{
	uint64_t h = 0;
	for (uint32_t k = 0; k < GRAM; k++)
		h = (h ^ (uint32_t)at(l, s, i - k)) * 0x9e3779b97f4a7c15u;
	return &l->last[h >> 32 & l->mask];
}

/* Adds tokens to the index until it has `end`. False: there are too many for one call. */
static bool add(struct lookup *l, const struct mx_seq *s, uint32_t end)
{
	bool all = end - l->n <= INDEXED;
	for (uint32_t stop = all ? end : l->n + INDEXED; l->n < stop; l->n++) {
		if (l->n < GRAM - 1)
			continue;
		uint32_t *last = place(l, s, l->n);
		l->prev[l->n] = *last;
		*last = l->n;
	}
	return all;
}

/* Returns the number of equal tokens that end with tokens a and b, a < b; at most LONGEST. */
static uint32_t common(const struct lookup *l, const struct mx_seq *s, uint32_t a, uint32_t b)
{
	uint32_t n = 0;
	while (n < LONGEST && n <= a && at(l, s, a - n) == at(l, s, b - n))
		n++;
	return n;
}

static uint32_t look_up(struct lookup *l, const struct mx_seq *s, uint32_t most, int32_t *out)
{
	uint32_t end = l->n_lead + s->n, found = 0, longest = GRAM - 1;
	if (end <= GRAM || !add(l, s, end - 1))
		return 0;
	uint32_t p = *place(l, s, end - 1);
	for (uint32_t i = 0; p && i < CHAIN && longest < LONGEST; i++, p = l->prev[p]) {
		uint32_t n = common(l, s, p, end - 1);
		if (n > longest) {
			longest = n;
			found = p;
		}
	}
	/* Past its own end the text goes on as it is proposed to: with a period. */
	for (uint32_t i = 0; found && i < most; i++)
		out[i] = found + 1 + i < end ? at(l, s, found + 1 + i) : out[found + 1 + i - end];
	return found ? most : 0;
}

static void propose(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n)
{
	(void)d;
	for (uint32_t i = 0; i < n; i++) {
		struct mx_seq *s = items[i].seq;
		if (items[i].n_draft)
			items[i].n_draft = look_up(s->draft.state, s, items[i].n_draft, s->draft.tokens);
	}
}

/* The index is small, and would have to be made again. */
static void release(struct mx_draft_source *d, void *state)
{
	(void)d, (void)state;
}

static void close_lookup(struct mx_draft_source *d, void *state)
{
	struct lookup *l = state;
	(void)d;
	free(l->lead);
	free(l->last);
	free(l->prev);
	free(l);
}

static mx_status open_lookup(struct mx_draft_source *d, const struct mx_seq *s,
                             const struct mx_seq_params *params, void **out)
{
	uint32_t n = params->n_prediction < s->params.max_len ? (uint32_t)params->n_prediction
	                                                      : s->params.max_len;
	uint32_t before = !n ? 0 : s->n_prompt < LONGEST ? s->n_prompt : LONGEST;
	uint64_t text = (uint64_t)before + n + s->params.max_len, size = 64;
	while (size < text / 2)
		size *= 2;
	struct lookup *l = text < UINT32_MAX ? mx_calloc(1, sizeof *l) : NULL;
	if (!l)
		return MX_E_NOMEM;
	l->n_lead = before + n;
	l->mask = (uint32_t)size - 1;
	l->lead = l->n_lead ? mx_calloc(l->n_lead, sizeof *l->lead) : NULL;
	l->last = mx_calloc(size, sizeof *l->last);
	l->prev = mx_calloc(text, sizeof *l->prev);
	if ((l->n_lead && !l->lead) || !l->last || !l->prev) {
		close_lookup(d, l);
		return MX_E_NOMEM;
	}
	for (uint32_t i = 0; i < l->n_lead; i++)
		l->lead[i] = i < before ? s->tokens.prompt[s->n_prompt - before + i]
		                        : params->prediction[i - before];
	*out = l;
	return MX_OK;
}

static void destroy(struct mx_draft_source *d)
{
	free(d);
}

static const struct mx_draft_source_ops ngram_ops = {
	open_lookup, close_lookup, release, propose, destroy, mx_draft_drop_nothing};

size_t mx_draft_ngram_bytes(uint32_t max_len)
{
	/* twice max_len of text, each with a place in prev, and half or all of one in last */
	return sizeof(struct lookup) + (size_t)max_len * (2 * 2 + 1) * sizeof(uint32_t);
}

mx_status mx_draft_ngram_create(struct mx_draft_source **out)
{
	struct mx_draft_source *d = mx_calloc(1, sizeof *d);
	if (!d)
		return MX_E_NOMEM;
	d->ops = &ngram_ops;
	*out = d;
	return MX_OK;
}
