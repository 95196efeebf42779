/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/bytes.h"
#include "grammar/step.h"

#define MAX_CONFIGS 1024
#define MAX_FRAMES  65536

struct walk {
	const struct mx_grammar *g;
	const struct mx_trie *trie;
	const struct mx_subtree *subtrees; /* NULL: not known of this trie */
	const struct mx_grule *rule;       /* of the state */
	struct mx_stepper stepper;
	struct mx_configs kernels; /* of the present path, one behind the other */
	uint32_t *begin;           /* [depth + 2] where the kernel of each depth begins */
	uint32_t *bits;            /* [words] tokens that are taken */
	bool most;                 /* all bits were set to begin with: clear those that are refused */
	uint32_t *ends;            /* nodes behind which the rule may end */
	size_t n_ends, cap_ends;
	mx_status status;
};

static void set_tokens(struct walk *w, uint32_t first, uint32_t last, bool taken)
{
	if (taken == w->most)
		return; /* they are so already */
	const uint32_t *tokens = w->trie->tokens;
	if (taken)
		for (uint32_t k = first; k < last; k++)
			w->bits[tokens[k] >> 5] |= 1u << (tokens[k] & 31);
	else
		for (uint32_t k = first; k < last; k++)
			w->bits[tokens[k] >> 5] &= ~(1u << (tokens[k] & 31));
}

/* Notes that the rule may end at a node, if strings that go on there can matter. */
static void note_end(struct walk *w, uint32_t node)
{
	const struct mx_trie_node *nodes = w->trie->nodes;
	bool matters = false;
	for (uint32_t k = node + 1; k < nodes[node].end && !matters; k = nodes[k].end)
		matters = mx_byte_in(w->rule->follow, nodes[k].byte);
	if (!matters)
		return;
	if (w->n_ends == w->cap_ends) {
		size_t cap = w->cap_ends ? w->cap_ends * 2 : 64;
		uint32_t *p = mx_realloc(w->ends, cap, sizeof(*p));
		if (!p) {
			w->status = MX_E_NOMEM;
			return;
		}
		w->ends = p;
		w->cap_ends = cap;
	}
	w->ends[w->n_ends++] = node;
}

/* Whether all strings below a node are taken from this configuration, in its own rule. */
static bool loops_below(const struct walk *w, uint32_t node, struct mx_config c)
{
	const struct mx_gstate *s = &w->g->states[c.state];
	const struct mx_subtree *below = &w->subtrees[node];
	unsigned height = w->trie->nodes[node].height;
	bool loops = s->loop && !(below->bytes & ~s->loop) && (s->budget == 255 || height <= s->budget);
	bool common = !(below->bytes & ~w->g->common) && (s->common == 255 || height <= s->common);
	return (loops || common) && (!(below->bytes & MX_BYTES_HIGH) || (below->utf8 & 1));
}

/* Whether all strings below a node are taken; then it does not matter where rules end in them. */
static bool takes_subtree(const struct walk *w, uint32_t node, const struct mx_config *c,
                          uint32_t n)
{
	bool any = false;
	for (uint32_t i = 0; i < n && w->subtrees && !any; i++)
		any = loops_below(w, node, c[i]);
	return any;
}

/* A step from one configuration in which nothing but edges of bytes matters. Returns whether it is
 * one, with the next state or MX_NO_STATE in *to. */
static bool simple_step(const struct walk *w, struct mx_config c, uint8_t byte, uint32_t *to)
{
	const struct mx_grammar *g = w->g;
	const struct mx_gstate *s = &g->states[c.state];
	const struct mx_grule *rule = &g->rules[s->rule];
	if ((s->accept && c.stack && mx_byte_in(rule->follow, byte)) || !rule->deterministic)
		return false;
	for (uint32_t i = s->calls; i < s[1].calls; i++)
		if (mx_byte_in(g->rules[g->calls[i].rule].first, byte))
			return false;
	*to = MX_NO_STATE;
	if (s->row != MX_NO_ROW) {
		*to = g->rows[s->row][byte];
		return true;
	}
	for (uint32_t i = s->edges; i < s[1].edges && g->edges[i].lo <= byte; i++)
		if (byte <= g->edges[i].hi) {
			*to = g->edges[i].to;
			break;
		}
	return true;
}

/* Puts the kernel behind a node's byte in its place; false if the string is refused. */
static bool enter(struct walk *w, const struct mx_trie_node *node)
{
	uint32_t from = w->begin[node->depth - 1], here = w->begin[node->depth], to;
	w->kernels.n = here;
	if (here - from == 1 && simple_step(w, w->kernels.at[from], node->byte, &to)) {
		if (to == MX_NO_STATE)
			return false;
		if (!mx_configs_add(&w->kernels, (struct mx_config){to, w->kernels.at[from].stack}))
			w->status = MX_E_NOMEM;
	} else {
		mx_step(&w->stepper, w->kernels.at + from, here - from, node->byte, &w->kernels);
		if (w->stepper.status)
			w->status = w->stepper.status;
	}
	w->begin[node->depth + 1] = w->kernels.n;
	return w->kernels.n > here;
}

static void walk_trie(struct walk *w, uint32_t state)
{
	const struct mx_trie_node *nodes = w->trie->nodes;
	if (!mx_configs_add(&w->kernels, (struct mx_config){state, 0})) {
		w->status = MX_E_NOMEM;
		return;
	}
	w->begin[1] = 1; /* if the rule ends at once, the caller goes on with the frame below */
	for (uint32_t i = 1; i < w->trie->n_nodes && !w->status;) {
		const struct mx_trie_node *node = &nodes[i];
		if (!w->stepper.work) {
			w->status = MX_E_LIMIT;
			break;
		}
		w->stepper.work--;
		if (!enter(w, node)) {
			set_tokens(w, node->token, nodes[node->end].token, false);
			i = node->end;
			continue;
		}
		const struct mx_config *kernel = w->kernels.at + w->begin[node->depth];
		uint32_t n = w->begin[node->depth + 1] - w->begin[node->depth];
		if (node->end > i + 1 && mx_may_return(&w->stepper, kernel, n))
			note_end(w, i);
		if (takes_subtree(w, i, kernel, n)) {
			set_tokens(w, node->token, nodes[node->end].token, true);
			i = node->end;
			continue;
		}
		set_tokens(w, node->token, nodes[i + 1].token, true);
		i++;
	}
}

static bool taken(const struct walk *w, uint32_t token)
{
	return w->bits[token >> 5] >> (token & 31) & 1;
}

/* Calls for every string that goes on behind an end of the rule, and is not taken anyway; with
 * entries NULL it only counts them. */
static size_t list_rest(const struct walk *w, const struct mx_grammar_vocab *v,
                        struct mx_trie_entry *entries, size_t limit)
{
	const struct mx_trie_node *nodes = w->trie->nodes;
	size_t n = 0;
	for (size_t e = 0; e < w->n_ends; e++) {
		const struct mx_trie_node *end = &nodes[w->ends[e]];
		for (uint32_t k = w->ends[e] + 1; k < end->end; k = nodes[k].end) {
			if (!mx_byte_in(w->rule->follow, nodes[k].byte))
				continue;
			for (uint32_t i = k; i < nodes[k].end; i++)
				for (uint32_t t = nodes[i].token; t < nodes[i + 1].token; t++) {
					uint32_t token = w->trie->tokens[t];
					if (taken(w, token))
						continue;
					if (n == limit)
						return limit + 1;
					uint32_t length = nodes[i].depth - end->depth;
					if (entries)
						entries[n] = (struct mx_trie_entry){
							v->text + v->offsets[token + 1] - length, length, token};
					n++;
				}
		}
	}
	return n;
}

static mx_status make_rest(struct walk *w, const struct mx_grammar_vocab *v, struct mx_verdict *out)
{
	size_t limit = v->n_tokens + 4096, n = w->n_ends ? list_rest(w, v, NULL, limit) : 0;
	if (n > limit)
		out->vague = true;
	if (!n || out->vague)
		return MX_OK;
	struct mx_trie_entry *entries = mx_calloc(n, sizeof(*entries));
	if (!entries)
		return MX_E_NOMEM;
	list_rest(w, v, entries, limit);
	mx_status st = mx_trie_make(entries, n, &out->rest);
	free(entries);
	return st;
}

/* Keeps the tokens that are taken, in the smaller form. */
static mx_status keep_tokens(struct walk *w, size_t words, struct mx_verdict *out)
{
	size_t n = 0;
	for (size_t i = 0; i < words; i++)
		n += (size_t)__builtin_popcount(w->bits[i]);
	out->n_tokens = (uint32_t)n;
	if (n >= words) {
		out->bits = w->bits;
		w->bits = NULL;
		return MX_OK;
	}
	out->tokens = mx_calloc(n + 1, sizeof(*out->tokens));
	if (!out->tokens)
		return MX_E_NOMEM;
	n = 0;
	for (size_t i = 0; i < words; i++)
		for (uint32_t word = w->bits[i]; word; word &= word - 1)
			out->tokens[n++] = (uint32_t)(32 * i) + (uint32_t)__builtin_ctz(word);
	return MX_OK;
}

mx_status mx_verdict_make(const struct mx_grammar *g, struct mx_grammar_vocab *v, uint32_t state,
                          const struct mx_verdict *parent, size_t *work, struct mx_verdict **out)
{
	struct walk w = {.g = g,
	                 .trie = parent ? &parent->rest : &v->trie,
	                 .subtrees = parent ? NULL : v->subtrees,
	                 .rule = &g->rules[g->states[state].rule]};
	size_t words = (v->n_tokens + 31) / 32;
	struct mx_verdict *made = mx_calloc(1, sizeof(*made));
	w.begin = mx_calloc((size_t)w.trie->depth + 2, sizeof(*w.begin));
	w.bits = mx_calloc(words + 1, sizeof(*w.bits));
	mx_status st = mx_stepper_init(&w.stepper, g, MAX_CONFIGS, MAX_FRAMES, *work);
	if (!st && (!made || !w.begin || !w.bits))
		st = MX_E_NOMEM;
	if (!st) {
		/* where letters go round, most of the vocabulary is taken */
		w.most = !parent && (g->states[state].loop & mx_byte_bit('e'));
		if (w.most)
			memcpy(w.bits, v->spelled, words * sizeof(*w.bits));
		walk_trie(&w, state);
		st = w.status;
		*work = w.stepper.work;
	}
	if (!st)
		st = make_rest(&w, v, made);
	if (!st)
		st = keep_tokens(&w, words, made);
	if (!st) {
		atomic_init(&made->references, 1);
		made->key = (struct mx_verdict_key){g->id, parent ? parent->id : 0, state};
		made->bytes = sizeof(*made) +
		              (made->bits ? words : made->n_tokens) * sizeof(*made->tokens) +
		              (made->rest.n_nodes ? mx_trie_bytes(&made->rest) : 0);
		*out = made;
		made = NULL;
	}
	mx_verdict_unref(made);
	mx_stepper_free(&w.stepper);
	free(w.kernels.at);
	free(w.begin);
	free(w.bits);
	free(w.ends);
	return st;
}
