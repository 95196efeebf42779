/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair encoding of one pre-token, with the results of `tokenizers`: the
 * merge of the lowest rank first; of equal ranks the leftmost.
 *
 * SentencePiece-style files have no pre-tokenizer, so a pre-token may be a whole
 * document. It is first cut into independent segments. A merge across the border
 * of characters a and b joins a symbol that ends in a with one that begins with
 * b. If no merge of the file joins such symbols (a "joint"), no merge crosses a
 * border between a and b, so the text can be cut there. In real text the segments
 * are about words. Short segments are merged by repeated scans, long ones with a
 * heap over a linked list in O(n log n).
 *
 * Algorithm and order: tokenizers/src/models/bpe/{model,word}.rs of
 * https://github.com/huggingface/tokenizers.
 */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK     UINT32_MAX
#define SCAN_MAX    32 /* symbols; longer segments use the heap */
#define CUT_MIN     16 /* symbols; shorter pre-tokens are not cut */
#define CACHE_KEY   13 /* symbols of a cached segment, at most */
#define CACHE_SIZE  4096
#define CACHE_AFTER 256 /* segments after which a call gets a cache; short prompts need none */

struct cached {
	uint32_t n;        /* symbols of the key, 0 = the entry is empty */
	uint32_t off, len; /* the ids, in the call's output */
	int32_t key[CACHE_KEY];
};

/* A symbol of a long segment. dead: it was merged into another. */
struct link {
	int32_t id;
	int32_t prev, next; /* -1 = none */
	uint32_t dead;
};

struct candidate {
	uint64_t key; /* rank << 32 | position */
	int32_t id;   /* of the result */
};

struct mx_tok_bpe_work {
	struct mx_tok_room *room;
	int32_t *symbols;
	size_t n, cap;
	struct link *links;
	size_t cap_links;
	struct candidate *heap;
	size_t n_heap, cap_heap;
	struct cached *cache; /* [CACHE_SIZE] or NULL */
	uint32_t merged;      /* segments merged so far */
};

void mx_tok_bpe_work_free(struct mx_tok_bpe_work *b)
{
	if (!b)
		return;
	free(b->symbols);
	free(b->links);
	free(b->heap);
	free(b->cache);
	free(b);
}

mx_status mx_tokens_shrink(struct mx_tokens *t)
{
	if (t->n == t->cap || !t->n)
		return MX_OK;
	int32_t *ids = mx_realloc(t->ids, t->n, sizeof *ids);
	if (!ids)
		return MX_E_NOMEM;
	t->ids = ids;
	t->cap = t->n;
	return MX_OK;
}

mx_status mx_tokens_reserve(struct mx_tokens *t, size_t n)
{
	if (n <= t->cap - t->n)
		return MX_OK;
	size_t cap = t->cap ? t->cap : 64;
	while (cap - t->n < n) {
		if (cap > SIZE_MAX / 4)
			return MX_E_NOMEM;
		cap *= 2;
	}
	int32_t *ids = mx_realloc(t->ids, cap, sizeof *ids);
	if (!ids)
		return MX_E_NOMEM;
	t->ids = ids;
	t->cap = cap;
	return MX_OK;
}

/* --- tables ------------------------------------------------------------------------------ */

static uint32_t pair_hash(uint32_t a, uint32_t b)
{
	uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static const struct mx_tok_merge *merge_find(const struct mx_tok_bpe *m, int32_t a, int32_t b)
{
	for (uint32_t i = pair_hash((uint32_t)a, (uint32_t)b) & m->merge_mask;;
	     i = (i + 1) & m->merge_mask) {
		const struct mx_tok_merge *e = &m->merges[i];
		if (e->a == (uint32_t)a && e->b == (uint32_t)b)
			return e;
		if (e->a == UINT32_MAX)
			return NULL;
	}
}

static void merge_set(struct mx_tok_bpe *m, struct mx_tok_merge e)
{
	uint32_t i = pair_hash(e.a, e.b) & m->merge_mask;
	while (m->merges[i].a != UINT32_MAX && (m->merges[i].a != e.a || m->merges[i].b != e.b))
		i = (i + 1) & m->merge_mask;
	m->merges[i] = e; /* of equal pairs the last wins */
}

static bool joint_find(const struct mx_tok_bpe *m, int32_t a, int32_t b)
{
	uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
	for (uint32_t i = pair_hash((uint32_t)a, (uint32_t)b) & m->joint_mask;;
	     i = (i + 1) & m->joint_mask) {
		if (m->joints[i] == key)
			return true;
		if (m->joints[i] == UINT64_MAX)
			return false;
	}
}

static void joint_set(struct mx_tok_bpe *m, int32_t a, int32_t b)
{
	if (a < 0 || b < 0)
		return;
	uint32_t i = pair_hash((uint32_t)a, (uint32_t)b) & m->joint_mask;
	uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
	while (m->joints[i] != UINT64_MAX && m->joints[i] != key)
		i = (i + 1) & m->joint_mask;
	m->joints[i] = key;
}

/* --- reading ----------------------------------------------------------------------------- */

/* The two sides of merges[i]: "a b" or ["a", "b"]. */
static mx_status merge_sides(const json_t *v, size_t i, const char *path, struct mx_tok_piece *a,
                             struct mx_tok_piece *b, struct mx_err *err)
{
	if (json_is_string(v)) {
		const char *s = json_string_value(v), *space = strchr(s, ' ');
		if (!space || strchr(space + 1, ' '))
			return mx_fail_at(err, MX_E_FORMAT, path, "merge %zu must be two pieces", i);
		*a = (struct mx_tok_piece){s, (uint32_t)(space - s)};
		*b = (struct mx_tok_piece){space + 1, (uint32_t)strlen(space + 1)};
		return MX_OK;
	}
	const json_t *x = json_array_get(v, 0), *y = json_array_get(v, 1);
	if (json_array_size(v) != 2 || !json_is_string(x) || !json_is_string(y))
		return mx_fail_at(err, MX_E_FORMAT, path, "merge %zu must be two pieces", i);
	*a = (struct mx_tok_piece){json_string_value(x), (uint32_t)json_string_length(x)};
	*b = (struct mx_tok_piece){json_string_value(y), (uint32_t)json_string_length(y)};
	return MX_OK;
}

/* Returns the id of the piece that is the first (or last) character of p, or -1. */
static int32_t end_char(const struct mx_tokenizer *t, const struct mx_tok_piece *p, bool last)
{
	if (!p->n)
		return -1;
	size_t from = last ? mx_tok_prev(p->s, p->n) : 0, to = from;
	(void)mx_tok_next(p->s, &to);
	return mx_tok_vocab_id(&t->vocab, p->s + from, to - from);
}

/* True for the unknown token and for the token of a byte. */
static bool is_fallback(const struct mx_tokenizer *t, int32_t id)
{
	const struct mx_tok_piece *p = &t->vocab.pieces[id];
	return id == t->bpe.unk || (t->bpe.byte_fallback && p->n == 6 && !memcmp(p->s, "<0x", 3));
}

static mx_status parse_merge(struct mx_tokenizer *t, const json_t *v, size_t i, const char *path,
                             struct mx_buf *joined, struct mx_err *err)
{
	struct mx_tok_bpe *m = &t->bpe;
	struct mx_tok_piece a = {0}, b = {0};
	mx_status st = merge_sides(v, i, path, &a, &b, err);
	if (st != MX_OK)
		return st;
	if (b.n < m->n_prefix)
		return mx_fail_at(err, MX_E_FORMAT, path, "merge %zu lacks continuing_subword_prefix", i);
	mx_buf_clear(joined);
	mx_buf_append(joined, a.s, a.n);
	mx_buf_append(joined, b.s + m->n_prefix, b.n - m->n_prefix);
	if (joined->failed)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	int32_t ia = mx_tok_vocab_id(&t->vocab, a.s, a.n), ib = mx_tok_vocab_id(&t->vocab, b.s, b.n);
	int32_t id = mx_tok_vocab_id(&t->vocab, mx_buf_str(joined), joined->len);
	if (ia < 0 || ib < 0 || id < 0)
		return mx_fail_at(err, MX_E_FORMAT, path, "merge %zu: \"%.40s\" is not in the vocabulary",
		                  i,
		                  ia < 0   ? a.s
		                  : ib < 0 ? b.s
		                           : mx_buf_str(joined));
	merge_set(m, (struct mx_tok_merge){(uint32_t)ia, (uint32_t)ib, (uint32_t)i, id});
	joint_set(m, end_char(t, &a, true), end_char(t, &b, false));
	if (is_fallback(t, ia) || is_fallback(t, ib))
		m->can_cut = false; /* its text does not tell which symbols it consists of */
	return MX_OK;
}

/* Allocates the tables of n merges. */
static mx_status tables_new(struct mx_tokenizer *t, size_t n, const char *path, struct mx_err *err)
{
	struct mx_tok_bpe *m = &t->bpe;
	if (n > MX_TOK_MAX_IDS * 4u)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "too many merges");
	uint32_t size = 16;
	while (size < n + n / 2)
		size *= 2;
	m->merges = mx_arena_alloc(&t->arena, size * sizeof *m->merges);
	m->joints = mx_arena_alloc(&t->arena, size * sizeof *m->joints);
	if (!m->merges || !m->joints)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	memset(m->merges, 0xff, size * sizeof *m->merges);
	memset(m->joints, 0xff, size * sizeof *m->joints);
	m->merge_mask = m->joint_mask = size - 1;
	return MX_OK;
}

/* Counts the merges that make a piece of two others; stores them if the tables are there. */
static size_t rank_merges(struct mx_tokenizer *t, int32_t id)
{
	struct mx_tok_bpe *m = &t->bpe;
	const struct mx_tok_piece *p = &t->vocab.pieces[id];
	int32_t first = (int32_t)m->first_rank;
	size_t found = 0;
	for (size_t i = 0; p->s && i < p->n;) {
		(void)mx_tok_next(p->s, &i);
		int32_t a = mx_tok_vocab_id(&t->vocab, p->s, i);
		int32_t b = a < first ? -1 : mx_tok_vocab_id(&t->vocab, p->s + i, p->n - i);
		if (b < first)
			continue;
		found++;
		if (!m->merges)
			continue;
		merge_set(m, (struct mx_tok_merge){(uint32_t)a, (uint32_t)b, (uint32_t)id, id});
		joint_set(m, end_char(t, &t->vocab.pieces[a], true),
		          end_char(t, &t->vocab.pieces[b], false));
	}
	return found;
}

static mx_status merges_by_rank(struct mx_tokenizer *t, const char *path, struct mx_err *err)
{
	size_t n = 0;
	for (uint32_t id = t->bpe.first_rank; id < t->vocab.n_ids; id++)
		n += rank_merges(t, (int32_t)id);
	mx_status st = tables_new(t, n, path, err);
	for (uint32_t id = t->bpe.first_rank; st == MX_OK && id < t->vocab.n_ids; id++)
		(void)rank_merges(t, (int32_t)id);
	return st;
}

static mx_status parse_merges(struct mx_tokenizer *t, const json_t *list, const char *path,
                              struct mx_err *err)
{
	if (!json_is_array(list))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an array");
	size_t n = json_array_size(list);
	mx_status st = tables_new(t, n, path, err);
	struct mx_buf joined = {0};
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		const json_t *v = json_array_get(list, i);
		const char *s = json_string_value(v);
		if (s && !strncmp(s, "#version", 8))
			continue; /* the head line of old merges files: it takes a rank but does not change the
			             order */
		st = parse_merge(t, v, i, path, &joined, err);
	}
	mx_buf_free(&joined);
	return st;
}

static mx_status index_chars(struct mx_tokenizer *t, struct mx_err *err)
{
	struct mx_tok_bpe *m = &t->bpe;
	uint32_t top = 0;
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t id = 0; id < t->vocab.n_ids; id++) {
			const struct mx_tok_piece *p = &t->vocab.pieces[id];
			size_t i = 0;
			if (!p->s || !p->n || p->n > 4)
				continue;
			uint32_t cp = mx_tok_next(p->s, &i);
			if (i != p->n || cp > 0xffff) /* other characters are looked up in the vocabulary */
				continue;
			if (pass)
				m->char_id[cp] = (int32_t)id;
			else if (cp >= top)
				top = cp + 1;
		}
		if (pass)
			break;
		m->char_id = mx_arena_alloc(&t->arena, top * sizeof *m->char_id);
		if (!m->char_id)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
		memset(m->char_id, 0xff, top * sizeof *m->char_id);
		m->n_char_id = top;
	}
	for (int i = 0; i < 256; i++) {
		char name[8];
		int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
		m->byte_id[i] = mx_tok_vocab_id(&t->vocab, name, (size_t)n);
	}
	return MX_OK;
}

/* Reads an optional, nullable string; NULL if it is empty. */
static mx_status optional_str(struct mx_tokenizer *t, const json_t *json, const char *path,
                              const char *key, const char **out, size_t *n, struct mx_err *err)
{
	const char *s;
	if (!json_object_get(json, key) || json_is_null(json_object_get(json, key)))
		return MX_OK;
	mx_status st = mx_tok_str(json, path, key, 256, &s, n, err);
	if (st != MX_OK || !*n)
		return st;
	*out = mx_arena_strndup(&t->arena, s, *n);
	return *out ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
}

mx_status mx_tok_bpe_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                           struct mx_err *err)
{
	static const char *const keys[] = {"type",
	                                   "dropout",
	                                   "unk_token",
	                                   "continuing_subword_prefix",
	                                   "end_of_word_suffix",
	                                   "fuse_unk",
	                                   "byte_fallback",
	                                   "ignore_merges",
	                                   "vocab",
	                                   "merges",
	                                   NULL};
	struct mx_tok_bpe *m = &t->bpe;
	char at[MX_TOK_PATH];
	const char *type = "BPE";
	size_t n = 0;
	if (!json_is_object(json))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an object");
	mx_status st = MX_OK;
	if (json_object_get(json, "type"))
		st = mx_tok_type(json, path, &type, err);
	if (st == MX_OK && strcmp(type, "BPE") != 0)
		st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "model \"%s\" is not supported", type);
	if (st == MX_OK)
		st = mx_tok_keys(json, path, keys, err);
	const json_t *dropout = json_object_get(json, "dropout");
	if (st == MX_OK && dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0) {
		mx_tok_path(at, path, "dropout", 0);
		st = mx_fail_at(err, MX_E_UNSUPPORTED, at,
		                "is not supported: encoding must be the same "
		                "every time");
	}
	if (st == MX_OK)
		st = optional_str(t, json, path, "unk_token", &m->unk_token, &n, err);
	if (st == MX_OK)
		st =
			optional_str(t, json, path, "continuing_subword_prefix", &m->prefix, &m->n_prefix, err);
	if (st == MX_OK)
		st = optional_str(t, json, path, "end_of_word_suffix", &m->suffix, &m->n_suffix, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "fuse_unk", &m->fuse_unk, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "byte_fallback", &m->byte_fallback, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "ignore_merges", &m->ignore_merges, err);
	mx_tok_path(at, path, "vocab", 0);
	if (st == MX_OK)
		st = mx_tok_vocab_parse(json_object_get(json, "vocab"), at, &t->arena, &t->vocab, err);
	if (st == MX_OK)
		st = index_chars(t, err);
	m->unk = m->unk_token ? mx_tok_vocab_id(&t->vocab, m->unk_token, strlen(m->unk_token)) : -1;
	m->can_cut = !m->prefix && !m->suffix;
	mx_tok_path(at, path, "merges", 0);
	if (st != MX_OK)
		return st;
	return m->by_rank ? merges_by_rank(t, at, err)
	                  : parse_merges(t, json_object_get(json, "merges"), at, err);
}

/* --- characters to initial symbols ------------------------------------------------------- */

static mx_status symbol_add(struct mx_tok_bpe_work *b, int32_t id)
{
	if (b->n == b->cap) {
		size_t cap = mx_tok_next_cap(b->cap);
		int32_t *s = mx_tok_grow(b->room, b->symbols, b->cap, cap, sizeof *s);
		if (!s)
			return MX_E_NOMEM;
		b->symbols = s;
		b->cap = cap;
	}
	b->symbols[b->n++] = id;
	return MX_OK;
}

/* Adds a character that the vocabulary lacks: as its bytes, or as the unknown token. *unk counts
 * unknown tokens that are not added yet; they come after byte tokens, as in `tokenizers`. */
static mx_status symbol_missing(const struct mx_tok_bpe *m, struct mx_tok_work *w, const char *s,
                                size_t n, size_t *unk)
{
	if (m->byte_fallback) {
		bool all = true;
		for (size_t i = 0; i < n; i++)
			all &= m->byte_id[(unsigned char)s[i]] >= 0;
		for (size_t i = 0; all && i < n; i++)
			if (symbol_add(w->bpe, m->byte_id[(unsigned char)s[i]]) != MX_OK)
				return MX_E_NOMEM;
		if (all)
			return MX_OK;
	}
	if (!m->unk_token)
		return MX_OK; /* dropped */
	if (m->unk < 0)
		return mx_fail(w->err, MX_E_INVALID, "unk_token \"%.40s\" is not in the vocabulary",
		               m->unk_token);
	if (*unk && !m->fuse_unk) {
		if (symbol_add(w->bpe, m->unk) != MX_OK)
			return MX_E_NOMEM;
	}
	*unk = 1;
	return MX_OK;
}

static mx_status symbols(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *s,
                         size_t n)
{
	const struct mx_tok_bpe *m = &t->bpe;
	struct mx_buf affixed = {0};
	size_t unk = 0;
	mx_status st = MX_OK;
	w->bpe->n = 0;
	for (size_t i = 0; i < n && st == MX_OK;) {
		size_t from = i;
		uint32_t cp = mx_tok_next(s, &i);
		const char *c = s + from;
		size_t n_c = i - from;
		int32_t id;
		if ((m->prefix && from > 0) || (m->suffix && i == n)) {
			mx_buf_clear(&affixed);
			if (from > 0)
				mx_buf_append(&affixed, m->prefix ? m->prefix : "", m->n_prefix);
			mx_buf_append(&affixed, c, n_c);
			if (i == n)
				mx_buf_append(&affixed, m->suffix ? m->suffix : "", m->n_suffix);
			c = mx_buf_str(&affixed);
			n_c = affixed.len;
			id = mx_tok_vocab_id(&t->vocab, c, n_c);
		} else if (cp < m->n_char_id) {
			id = m->char_id[cp];
		} else {
			id = cp > 0xffff ? mx_tok_vocab_id(&t->vocab, c, n_c) : -1;
		}
		if (id < 0) {
			st = symbol_missing(m, w, c, n_c, &unk);
			continue;
		}
		if (unk)
			st = symbol_add(w->bpe, m->unk);
		unk = 0;
		if (st == MX_OK)
			st = symbol_add(w->bpe, id);
	}
	if (st == MX_OK && unk)
		st = symbol_add(w->bpe, m->unk);
	mx_buf_free(&affixed);
	return st;
}

/* --- merging ----------------------------------------------------------------------------- */

static size_t merge_scan(const struct mx_tok_bpe *m, const int32_t *from, size_t n, int32_t *ids)
{
	uint32_t rank[SCAN_MAX];
	int32_t result[SCAN_MAX];
	memcpy(ids, from, n * sizeof *ids);
	for (size_t i = 0; i + 1 < n; i++) {
		const struct mx_tok_merge *e = merge_find(m, ids[i], ids[i + 1]);
		rank[i] = e ? e->rank : NO_RANK;
		result[i] = e ? e->id : -1;
	}
	while (n > 1) {
		size_t best = 0;
		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == NO_RANK)
			break;
		ids[best] = result[best];
		size_t move = n - best - 2;
		memmove(ids + best + 1, ids + best + 2, move * sizeof *ids);
		if (move) {
			memmove(rank + best + 1, rank + best + 2, (move - 1) * sizeof *rank);
			memmove(result + best + 1, result + best + 2, (move - 1) * sizeof *result);
		}
		n--;
		for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
			const struct mx_tok_merge *e = merge_find(m, ids[i], ids[i + 1]);
			rank[i] = e ? e->rank : NO_RANK;
			result[i] = e ? e->id : -1;
		}
	}
	return n;
}

/* A 4-ary min-heap on key. */
static mx_status heap_push(struct mx_tok_bpe_work *b, struct candidate c)
{
	if (b->n_heap == b->cap_heap) {
		size_t cap = mx_tok_next_cap(b->cap_heap);
		struct candidate *h = mx_tok_grow(b->room, b->heap, b->cap_heap, cap, sizeof *h);
		if (!h)
			return MX_E_NOMEM;
		b->heap = h;
		b->cap_heap = cap;
	}
	size_t i = b->n_heap++;
	while (i > 0 && b->heap[(i - 1) / 4].key > c.key) {
		b->heap[i] = b->heap[(i - 1) / 4];
		i = (i - 1) / 4;
	}
	b->heap[i] = c;
	return MX_OK;
}

static struct candidate heap_pop(struct mx_tok_bpe_work *b)
{
	struct candidate top = b->heap[0], last = b->heap[--b->n_heap];
	size_t i = 0;
	for (;;) {
		size_t child = 4 * i + 1, least = child;
		if (child >= b->n_heap)
			break;
		size_t end = child + 4 < b->n_heap ? child + 4 : b->n_heap;
		for (size_t k = child + 1; k < end; k++)
			if (b->heap[k].key < b->heap[least].key)
				least = k;
		if (b->heap[least].key >= last.key)
			break;
		b->heap[i] = b->heap[least];
		i = least;
	}
	if (b->n_heap)
		b->heap[i] = last;
	return top;
}

static mx_status push_pair(const struct mx_tok_bpe *m, struct mx_tok_bpe_work *b, int32_t at)
{
	int32_t next = b->links[at].next;
	if (next < 0)
		return MX_OK;
	const struct mx_tok_merge *e = merge_find(m, b->links[at].id, b->links[next].id);
	if (!e)
		return MX_OK;
	return heap_push(b, (struct candidate){(uint64_t)e->rank << 32 | (uint32_t)at, e->id});
}

static mx_status merge_heap(const struct mx_tok_bpe *m, struct mx_tok_bpe_work *b,
                            const int32_t *from, size_t n)
{
	if (n > INT32_MAX)
		return MX_E_LIMIT;
	if (b->cap_links < n) {
		struct link *l = mx_tok_grow(b->room, b->links, b->cap_links, n, sizeof *l);
		if (!l)
			return MX_E_NOMEM;
		b->links = l;
		b->cap_links = n;
	}
	b->n_heap = 0;
	for (size_t i = 0; i < n; i++)
		b->links[i] = (struct link){from[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, 0};
	for (size_t i = 0; i + 1 < n; i++)
		if (push_pair(m, b, (int32_t)i) != MX_OK)
			return MX_E_NOMEM;
	while (b->n_heap) {
		struct candidate c = heap_pop(b);
		int32_t at = (int32_t)(uint32_t)c.key;
		struct link *l = &b->links[at];
		if (l->dead || l->next < 0)
			continue;
		struct link *r = &b->links[l->next];
		const struct mx_tok_merge *e = merge_find(m, l->id, r->id);
		if (!e || e->id != c.id)
			continue; /* outdated: a symbol of the pair has changed */
		l->id = c.id;
		l->next = r->next;
		r->dead = 1;
		if (r->next >= 0)
			b->links[r->next].prev = at;
		if (l->prev >= 0 && push_pair(m, b, l->prev) != MX_OK)
			return MX_E_NOMEM;
		if (push_pair(m, b, at) != MX_OK)
			return MX_E_NOMEM;
	}
	return MX_OK;
}

static struct cached *cache_entry(struct mx_tok_bpe_work *b, const int32_t *ids, size_t n)
{
	if (!b->cache || n < 2 || n > CACHE_KEY)
		return NULL;
	uint64_t h = n;
	for (size_t i = 0; i < n; i++)
		h = (h ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u;
	return &b->cache[(h >> 40) & (CACHE_SIZE - 1)];
}

/* Merges one segment and appends its ids. */
static mx_status segment(const struct mx_tok_bpe *m, struct mx_tok_bpe_work *b, const int32_t *ids,
                         size_t n, struct mx_tokens *out)
{
	if (mx_tokens_reserve(out, n) != MX_OK)
		return MX_E_NOMEM;
	struct cached *c = cache_entry(b, ids, n);
	if (c && c->n == n && !memcmp(c->key, ids, n * sizeof *ids)) {
		memcpy(out->ids + out->n, out->ids + c->off, c->len * sizeof *out->ids);
		out->n += c->len;
		return MX_OK;
	}
	size_t before = out->n;
	if (n <= SCAN_MAX) {
		out->n += merge_scan(m, ids, n, out->ids + out->n);
	} else {
		mx_status st = merge_heap(m, b, ids, n);
		if (st != MX_OK)
			return st;
		for (int32_t i = 0; i >= 0; i = b->links[i].next)
			out->ids[out->n++] = b->links[i].id;
	}
	if (c && out->n <= UINT32_MAX) {
		c->n = (uint32_t)n;
		c->off = (uint32_t)before;
		c->len = (uint32_t)(out->n - before);
		memcpy(c->key, ids, n * sizeof *ids);
	} else if (!b->cache && ++b->merged == CACHE_AFTER) {
		b->cache =
			mx_calloc(CACHE_SIZE, sizeof *b->cache); /* without the cache it is only slower */
	}
	return MX_OK;
}

mx_status mx_tok_bpe_encode(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *s,
                            size_t n, size_t limit, struct mx_tokens *out)
{
	const struct mx_tok_bpe *m = &t->bpe;
	if (m->ignore_merges) {
		int32_t id = mx_tok_vocab_id(&t->vocab, s, n);
		if (id >= 0) {
			if (mx_tokens_reserve(out, 1) != MX_OK)
				return MX_E_NOMEM;
			out->ids[out->n++] = id;
			return MX_OK;
		}
	}
	if (!w->bpe && !(w->bpe = mx_calloc(1, sizeof *w->bpe)))
		return MX_E_NOMEM;
	w->bpe->room = &w->room;
	mx_status st = symbols(t, w, s, n);
	struct mx_tok_bpe_work *b = w->bpe;
	for (size_t from = 0; st == MX_OK && from < b->n;) {
		size_t to = b->n;
		if (m->can_cut && b->n - from >= CUT_MIN) {
			to = from + 1;
			while (to < b->n && joint_find(m, b->symbols[to - 1], b->symbols[to]))
				to++;
		}
		st = segment(m, b, b->symbols + from, to - from, out);
		from = to;
		if (st == MX_OK && limit && out->n > limit)
			return MX_E_LIMIT;
	}
	return st;
}
