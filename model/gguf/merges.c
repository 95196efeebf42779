/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges from scores. SentencePiece joins, of all neighbours whose union is a token, those with the
 * highest score. The tokenizer.json of such a model has a list of merges instead, which
 * transformers makes of the scores (generate_merges in convert_slow_tokenizer.py): each way to part
 * a token into two, ordered by the token's score, then by the characters of the left part and of
 * the right, most first; what is equal then is in the order of the tokens, and of one token by the
 * ids of the parts.
 */
#include <stdlib.h>
#include <string.h>

#include "model/gguf/tokens.h"

#define MAX_PARTED 1024 /* bytes of a token that is parted: the work grows with the square */

/* A map from texts to tokens: open addressing over their indices. */
struct map {
	const struct mx_gguf_token *tokens;
	uint32_t *cells; /* index + 1, 0 = empty */
	uint32_t mask;
};

struct merge {
	float score;
	uint32_t token, left, right; /* indices of tokens */
	uint32_t n_left, n_right;    /* characters */
};

static uint32_t hash(const char *s, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
	return (uint32_t)(h ^ h >> 32);
}

static int64_t find(const struct map *m, const char *s, size_t n)
{
	for (uint32_t i = hash(s, n) & m->mask; m->cells[i]; i = (i + 1) & m->mask) {
		const struct mx_gguf_string *t = &m->tokens[m->cells[i] - 1].text;
		if (t->n == n && !memcmp(t->s, s, n))
			return m->cells[i] - 1;
	}
	return -1;
}

static bool fill(struct map *m, const struct mx_gguf_token *tokens, uint32_t n)
{
	uint32_t size = 16;
	while (size < 2 * n)
		size *= 2;
	m->cells = mx_calloc(size, sizeof *m->cells);
	m->tokens = tokens;
	m->mask = size - 1;
	for (uint32_t t = 0; m->cells && t < n; t++) {
		uint32_t i = hash(tokens[t].text.s, tokens[t].text.n) & m->mask;
		while (m->cells[i])
			i = (i + 1) & m->mask;
		m->cells[i] = t + 1;
	}
	return m->cells != NULL;
}

static bool starts_character(char c)
{
	return ((unsigned char)c & 0xc0) != 0x80;
}

static int by_rank(const void *a, const void *b)
{
	const struct merge *x = a, *y = b;
	if (x->score != y->score)
		return x->score < y->score ? 1 : -1;
	if (x->n_left != y->n_left)
		return x->n_left < y->n_left ? 1 : -1;
	if (x->n_right != y->n_right)
		return x->n_right < y->n_right ? 1 : -1;
	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	if (x->left != y->left)
		return x->left < y->left ? -1 : 1;
	return (x->right > y->right) - (x->right < y->right);
}

struct list {
	struct merge *v;
	size_t n, cap;
};

static bool add(struct list *l, const struct merge *m)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap + l->cap / 2 : 1024;
		struct merge *v = mx_realloc(l->v, cap, sizeof *v);
		if (!v)
			return false;
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = *m;
	return true;
}

/* Adds all ways to part a token into two tokens. */
static bool part(const struct map *map, uint32_t token, struct list *out)
{
	const struct mx_gguf_string t = map->tokens[token].text;
	uint32_t chars = 0, left = 0;
	for (size_t i = 0; i < t.n; i++)
		chars += starts_character(t.s[i]);
	for (size_t i = 1; i < t.n; i++) {
		if (!starts_character(t.s[i]))
			continue;
		left++;
		int64_t l = find(map, t.s, i), r = l < 0 ? -1 : find(map, t.s + i, t.n - i);
		const struct merge m = {
			map->tokens[token].score, token, (uint32_t)l, (uint32_t)r, left, chars - left};
		if (r >= 0 && !add(out, &m))
			return false;
	}
	return true;
}

mx_status mx_gguf_put_merges(struct mx_buf *b, const struct mx_gguf_token *tokens, uint32_t n,
                             struct mx_err *err)
{
	struct map map = {0};
	struct list l = {0};
	bool ok = fill(&map, tokens, n);
	for (uint32_t t = 0; ok && t < n; t++)
		if ((tokens[t].type == MX_GGUF_TOKEN_NORMAL || tokens[t].type == MX_GGUF_TOKEN_USER) &&
		    tokens[t].text.n <= MAX_PARTED)
			ok = part(&map, t, &l);
	if (ok && l.n)
		qsort(l.v, l.n, sizeof *l.v, by_rank);
	mx_buf_putc(b, '[');
	for (size_t i = 0; ok && i < l.n; i++) {
		const struct mx_gguf_string *left = &tokens[l.v[i].left].text;
		const struct mx_gguf_string *right = &tokens[l.v[i].right].text;
		mx_buf_puts(b, i ? ",[" : "[");
		mx_gguf_put(b, left->s, left->n);
		mx_buf_putc(b, ',');
		mx_gguf_put(b, right->s, right->n);
		mx_buf_putc(b, ']');
	}
	mx_buf_putc(b, ']');
	free(map.cells);
	free(l.v);
	return ok ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
}
