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
 *
 * Where earlier places were continued in several ways, a tree of drafts has several guesses of one
 * position. Each place votes for its own continuation, by the tokens that it has in common with the
 * sequence's end and by how recent it is; a token's probability is its share of the votes for its
 * parent, times the parent's, and drafts are the most probable tokens. If all places agree, that is
 * the chain.
 */
#include <math.h>
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

/* Votes of a place with a token less in common, and of the place before a more recent one. Chosen
 * on code, edits of code and prose (bench/engine/lookup); to trust recency more loses most. */
#define SHORTER 0.4f
#define OLDER   0.95f
/* Probability that a guess that nothing speaks against is right. */
#define CERTAIN 0.85f

struct ngram {
	struct mx_draft_source base;
	bool trees;
};

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

/* ---- trees ---- */

/* A place where the sequence's end was before. */
struct place {
	uint32_t end; /* number of its last token */
	float votes;
};

/* A draft, or with depth 0 the sequence's last token. */
struct node {
	uint64_t places; /* set of those that agree with it */
	float odds, votes;
	uint32_t parent, depth;
	int32_t token;
};

/* Finds places that have as many tokens in common with the sequence's end as GRAM, most recent
 * first; returns their number. */
static uint32_t find_places(struct lookup *l, const struct mx_seq *s, struct place *out)
{
	uint32_t end = l->n_lead + s->n, n = 0, same[CHAIN], longest = 0;
	if (end <= GRAM || !add(l, s, end - 1))
		return 0;
	uint32_t p = *place(l, s, end - 1);
	for (uint32_t i = 0; p && i < CHAIN; i++, p = l->prev[p]) {
		same[n] = common(l, s, p, end - 1);
		longest = same[n] > longest ? same[n] : longest;
		out[n].end = p;
		n += same[n] >= GRAM;
	}
	float older = 1;
	for (uint32_t i = 0; i < n; i++, older *= OLDER)
		out[i].votes = powf(SHORTER, (float)(longest - same[i])) * older;
	return n;
}

/* Returns the token behind a node at a place, which may go on past the text's end as the drafts in
 * front of it do. */
static int32_t token_at(const struct lookup *l, const struct mx_seq *s, const struct node *nodes,
                        uint32_t node, uint32_t end)
{
	uint32_t text = l->n_lead + s->n, i = end + 1 + nodes[node].depth;
	if (i < text)
		return at(l, s, i);
	while (nodes[node].depth > i - text + 1)
		node = nodes[node].parent;
	return nodes[node].token;
}

/* True if one of the nodes is that token behind `parent`. */
static bool has_child(const struct node *nodes, uint32_t n, uint32_t parent, int32_t token)
{
	for (uint32_t i = 1; i < n; i++)
		if (nodes[i].parent == parent && nodes[i].token == token)
			return true;
	return false;
}

/* Finds the most probable token behind a node that is none yet; odds 0 = there is none. */
static struct node best_child(const struct lookup *l, const struct mx_seq *s,
                              const struct place *places, const struct node *nodes, uint32_t n,
                              uint32_t parent)
{
	struct node best = {0};
	uint64_t left = nodes[parent].places;
	while (left) {
		struct node c = {.parent = parent, .depth = nodes[parent].depth + 1};
		c.token = token_at(l, s, nodes, parent, places[__builtin_ctzll(left)].end);
		for (uint64_t rest = left; rest; rest &= rest - 1) {
			uint32_t i = (uint32_t)__builtin_ctzll(rest);
			if (token_at(l, s, nodes, parent, places[i].end) != c.token)
				continue;
			c.places |= (uint64_t)1 << i;
			c.votes += places[i].votes;
		}
		left &= ~c.places;
		c.odds = nodes[parent].odds * CERTAIN * c.votes / nodes[parent].votes;
		if (c.odds > best.odds && !has_child(nodes, n, parent, c.token))
			best = c;
	}
	return best;
}

static uint32_t look_up_tree(struct lookup *l, struct mx_seq *s, uint32_t most)
{
	struct place places[CHAIN];
	struct node nodes[1 + MX_MAX_DRAFT] = {{.odds = 1}}, next[1 + MX_MAX_DRAFT]; /* best children */
	struct mx_draft *out = &s->draft;
	uint32_t n = find_places(l, s, places), count = 1;
	for (uint32_t i = 0; i < n; i++) {
		nodes->places |= (uint64_t)1 << i;
		nodes->votes += places[i].votes;
	}
	if (n)
		next[0] = best_child(l, s, places, nodes, count, 0);
	for (; n && count <= most; count++) {
		uint32_t best = 0;
		for (uint32_t i = 1; i < count; i++)
			best = next[i].odds > next[best].odds ? i : best;
		nodes[count] = next[best];
		out->tokens[count - 1] = next[best].token;
		out->parents[count - 1] = best ? best - 1 : MX_NO_DRAFT;
		out->is_tree |= best + 1 != count;
		next[count] = best_child(l, s, places, nodes, count + 1, count);
		next[best] = best_child(l, s, places, nodes, count + 1, best);
	}
	return count - 1;
}

static void propose(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n)
{
	const bool trees = ((const struct ngram *)d)->trees;
	for (uint32_t i = 0; i < n; i++) {
		struct mx_seq *s = items[i].seq;
		uint32_t most = items[i].n_draft;
		if (most)
			items[i].n_draft = trees ? look_up_tree(s->draft.state, s, most)
			                         : look_up(s->draft.state, s, most, s->draft.tokens);
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

mx_status mx_draft_ngram_create(bool trees, struct mx_draft_source **out)
{
	struct ngram *d = mx_calloc(1, sizeof *d);
	if (!d)
		return MX_E_NOMEM;
	*d = (struct ngram){{&ngram_ops}, trees};
	*out = &d->base;
	return MX_OK;
}
