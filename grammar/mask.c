/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mask is put together from verdicts: that of the state says which tokens are taken whatever the
 * stack, and which strings go on behind its rule; that of the frame below on these says more, and
 * so on until nothing is left. Verdicts are kept.
 */
#include "grammar/mask.h"

#include <stdlib.h>

#include "base/mem.h"
#include "grammar/verdict.h"

/* Walks the whole vocabulary with one configuration and its stack. */
static mx_status walk(struct mx_stepper *s, const struct mx_trie *t, struct mx_config config,
                      uint32_t *bits)
{
	/* the kernels behind the bytes of the present path; those of depth d from begin[d] on */
	struct mx_configs kernels = {0};
	uint32_t *begin = mx_calloc((size_t)t->depth + 2, sizeof(*begin));
	bool ok = begin && mx_configs_add(&kernels, config);
	if (ok)
		begin[1] = kernels.n;
	for (uint32_t i = 1; ok && i < t->n_nodes && !s->status;) {
		const struct mx_trie_node *node = &t->nodes[i];
		uint32_t from = begin[node->depth - 1];
		kernels.n = begin[node->depth];
		mx_step(s, kernels.at + from, kernels.n - from, node->byte, &kernels);
		if (kernels.n == begin[node->depth]) {
			i = node->end;
			continue;
		}
		begin[node->depth + 1] = kernels.n;
		for (uint32_t k = node->token; k < node[1].token; k++)
			bits[t->tokens[k] >> 5] |= 1u << (t->tokens[k] & 31);
		i++;
	}
	free(begin);
	free(kernels.at);
	return ok ? s->status : MX_E_NOMEM;
}

static mx_status verdict(struct mx_stepper *s, struct mx_grammar_vocab *v, uint32_t state,
                         const struct mx_verdict *parent, struct mx_verdict **out)
{
	struct mx_verdict_key key = {s->grammar->id, parent ? parent->id : 0, state};
	*out = mx_cache_get(&v->cache, &key);
	if (*out)
		return MX_OK;
	mx_status st = mx_verdict_make(s->grammar, v, state, parent, &s->work, out);
	if (!st)
		mx_cache_put(&v->cache, *out);
	return st;
}

static void add_tokens(const struct mx_verdict *e, size_t words, uint32_t *bits)
{
	if (e->bits)
		for (size_t i = 0; i < words; i++)
			bits[i] |= e->bits[i];
	else
		for (uint32_t i = 0; i < e->n_tokens; i++)
			bits[e->tokens[i] >> 5] |= 1u << (e->tokens[i] & 31);
}

/* Takes off what it costs to find a verdict and to add its tokens. */
static bool pay(struct mx_stepper *s, const struct mx_verdict *e, size_t words)
{
	size_t cost = 32 + (e->bits ? words / 16 : e->n_tokens / 2);
	s->work -= cost < s->work ? cost : s->work;
	return s->work > 0;
}

/* A configuration, and the strings that are still to be judged from it: the rest of `parent`, or
 * the whole vocabulary. */
struct item {
	struct mx_config config;
	struct mx_verdict *parent;
};

#define MAX_ITEMS 64

struct items {
	struct item at[MAX_ITEMS];
	uint32_t n;
	bool over; /* there were more */
};

static void add_item(struct items *list, uint32_t from, struct mx_config c,
                     struct mx_verdict *parent)
{
	for (uint32_t i = from; i < list->n; i++) {
		const struct item *o = &list->at[i];
		if (o->config.state == c.state && o->config.stack == c.stack && o->parent == parent)
			return;
	}
	if (list->n == MAX_ITEMS) {
		list->over = true;
		return;
	}
	if (parent)
		atomic_fetch_add_explicit(&parent->references, 1, memory_order_relaxed);
	list->at[list->n++] = (struct item){c, parent};
}

/* Adds the tokens that may follow one configuration. */
static mx_status mask_of(struct mx_stepper *s, struct mx_grammar_vocab *v, struct mx_config config,
                         uint32_t *bits)
{
	size_t words = (v->n_tokens + 31) / 32;
	struct items list = {.n = 0};
	mx_status st = MX_OK;
	bool vague = false;
	add_item(&list, 0, config, NULL);
	for (uint32_t i = 0; i < list.n && !st && !vague && !list.over; i++) {
		struct item item = list.at[i];
		struct mx_verdict *here;
		struct mx_config below = {s->frames.at[item.config.stack].state,
		                          s->frames.at[item.config.stack].below};
		if (item.config.stack && s->grammar->states[item.config.state].accept)
			add_item(&list, i + 1, below, item.parent);
		st = verdict(s, v, item.config.state, item.parent, &here);
		if (st)
			break;
		if (!pay(s, here, words))
			st = MX_E_LIMIT;
		add_tokens(here, words, bits);
		vague = here->vague;
		if (item.config.stack && here->rest.n_tokens)
			add_item(&list, i + 1, below, here);
		mx_verdict_unref(here);
	}
	for (uint32_t i = 0; i < list.n; i++)
		mx_verdict_unref(list.at[i].parent);
	return !st && (vague || list.over) ? walk(s, &v->trie, config, bits) : st;
}

mx_status mx_mask(struct mx_stepper *s, struct mx_grammar_vocab *v, const struct mx_config *in,
                  uint32_t n, uint32_t *bits)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < n && !st; i++)
		st = mask_of(s, v, in[i], bits);
	return st;
}
