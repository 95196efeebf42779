/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Added tokens: enters them as `tokenizers` does, and finds them in texts with a
 * byte trie, the leftmost first and the longest at one place.
 */
#include "model/tokenizer/internal.h"

#include <string.h>

/* Limit of the bytes of one added token: it bounds the trie's depth, hence the time per byte of
 * text.
 */
#define MAX_CONTENT ((size_t)1024)

const struct mx_tok_added *mx_tok_added_find(const struct mx_tokenizer *t, const char *s, size_t n)
{
	int32_t i = mx_tok_map_find(&t->added.map, t->added.contents, s, n);
	return i < 0 ? NULL : &t->added.v[i];
}

int32_t mx_tok_added_next_id(const struct mx_tokenizer *t)
{
	int32_t next = (int32_t)t->vocab.count;
	for (size_t i = 0; i < t->added.n; i++)
		if (t->added.v[i].id >= next)
			next = t->added.v[i].id + 1;
	return next;
}

/* Makes room for one more token. Old arrays remain in the arena until the tokenizer is destroyed.
 */
static mx_status grow(struct mx_tok_added_set *set, struct mx_arena *arena)
{
	if (set->n < set->cap)
		return MX_OK;
	size_t cap = set->cap ? set->cap * 2 : 64;
	struct mx_tok_added *v = mx_arena_alloc(arena, cap * sizeof *v);
	struct mx_tok_piece *contents = mx_arena_alloc(arena, cap * sizeof *contents);
	struct mx_tok_map map;
	if (!v || !contents || mx_tok_map_init(&map, arena, cap) != MX_OK)
		return MX_E_NOMEM;
	if (set->n) {
		memcpy(v, set->v, set->n * sizeof *v);
		memcpy(contents, set->contents, set->n * sizeof *contents);
	}
	for (size_t i = 0; i < set->n; i++)
		mx_tok_map_set(&map, contents, (int32_t)i);
	set->v = v;
	set->contents = contents;
	set->map = map;
	set->cap = cap;
	return MX_OK;
}

mx_status mx_tok_added_add(struct mx_tokenizer *t, const struct mx_tok_added *a, int32_t *next_id,
                           struct mx_err *err)
{
	struct mx_tok_added_set *set = &t->added;
	if (!a->content.n)
		return MX_OK;
	int32_t at = mx_tok_map_find(&set->map, set->contents, a->content.s, a->content.n);
	if (at < 0) {
		char *copy = mx_arena_strndup(&t->arena, a->content.s, a->content.n);
		if (!copy || grow(set, &t->arena) != MX_OK)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
		int32_t id = t->world.any ? mx_tok_vocab_bytes_id(&t->vocab, a->content.s, a->content.n)
		                          : mx_tok_vocab_id(&t->vocab, a->content.s, a->content.n);
		if (id < 0)
			id = (*next_id)++;
		if ((uint32_t)id >= MX_TOK_MAX_IDS)
			return mx_fail(err, MX_E_UNSUPPORTED, "too many added tokens");
		at = (int32_t)set->n++;
		set->contents[at] = (struct mx_tok_piece){copy, a->content.n};
		set->v[at] = (struct mx_tok_added){.content = set->contents[at], .id = id};
		mx_tok_map_set(&set->map, set->contents, at);
	}
	struct mx_tok_added *to = &set->v[at];
	to->single_word = a->single_word;
	to->lstrip = a->lstrip;
	to->rstrip = a->rstrip;
	to->normalized = a->normalized;
	to->special |= a->special; /* a token never stops being special */
	return MX_OK;
}

mx_status mx_tok_added_flags(const json_t *obj, const char *path, struct mx_tok_added *a,
                             struct mx_err *err)
{
	size_t n;
	const char *s;
	mx_status st = mx_tok_str(obj, path, "content", MAX_CONTENT, &s, &n, err);
	if (st == MX_OK)
		st = mx_tok_bool(obj, path, "single_word", &a->single_word, err);
	if (st == MX_OK)
		st = mx_tok_bool(obj, path, "lstrip", &a->lstrip, err);
	if (st == MX_OK)
		st = mx_tok_bool(obj, path, "rstrip", &a->rstrip, err);
	if (st == MX_OK)
		st = mx_tok_bool(obj, path, "normalized", &a->normalized, err);
	if (st == MX_OK)
		st = mx_tok_bool(obj, path, "special", &a->special, err);
	if (st == MX_OK)
		a->content = (struct mx_tok_piece){s, (uint32_t)n};
	return st;
}

mx_status mx_tok_added_parse(struct mx_tokenizer *t, const json_t *list, const char *path,
                             struct mx_err *err)
{
	static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
	                                   "rstrip", "normalized", "special",     NULL};
	if (!list || json_is_null(list))
		return MX_OK;
	if (!json_is_array(list))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an array");
	int32_t next_id = mx_tok_added_next_id(t);
	size_t i;
	json_t *v;
	json_array_foreach((json_t *)list, i, v)
	{
		char at[MX_TOK_PATH];
		mx_tok_path(at, path, NULL, i);
		struct mx_tok_added a = {0};
		mx_status st = mx_tok_keys(v, at, keys, err);
		if (st == MX_OK)
			st = mx_tok_added_flags(v, at, &a, err);
		if (st == MX_OK)
			st = mx_tok_added_add(t, &a, &next_id, err);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* --- trie -------------------------------------------------------------------------------- */

static int32_t node_new(struct mx_tok_trie *trie, unsigned char byte, struct mx_arena *arena)
{
	if (trie->n == trie->cap) {
		size_t cap = trie->cap ? trie->cap * 2 : 256;
		struct mx_tok_trie_node *nodes = mx_arena_alloc(arena, cap * sizeof *nodes);
		if (!nodes)
			return -1;
		if (trie->n)
			memcpy(nodes, trie->nodes, trie->n * sizeof *nodes);
		trie->nodes = nodes;
		trie->cap = cap;
	}
	trie->nodes[trie->n] = (struct mx_tok_trie_node){-1, -1, -1, byte};
	return (int32_t)trie->n++;
}

static int32_t child(const struct mx_tok_trie *trie, int32_t node, unsigned char byte)
{
	int32_t c = trie->nodes[node].child;
	while (c >= 0 && trie->nodes[c].byte != byte)
		c = trie->nodes[c].sibling;
	return c;
}

mx_status mx_tok_trie_add(struct mx_tok_trie *trie, const struct mx_tok_piece *p, int32_t added,
                          struct mx_arena *arena)
{
	if (!p->n)
		return MX_OK;
	trie->any = true;
	unsigned char b = (unsigned char)p->s[0];
	if (trie->root[b] < 0)
		trie->root[b] = node_new(trie, b, arena);
	int32_t node = trie->root[b];
	for (uint32_t i = 1; i < p->n && node >= 0; i++) {
		b = (unsigned char)p->s[i];
		int32_t c = child(trie, node, b);
		if (c < 0) {
			c = node_new(trie, b, arena);
			if (c >= 0) {
				trie->nodes[c].sibling = trie->nodes[node].child;
				trie->nodes[node].child = c;
			}
		}
		node = c;
	}
	if (node < 0)
		return MX_E_NOMEM;
	if (trie->nodes[node].added < 0)
		trie->nodes[node].added = added;
	return MX_OK;
}

mx_status mx_tok_added_finish(struct mx_tokenizer *t, struct mx_err *err)
{
	struct mx_tok_added_set *set = &t->added;
	uint32_t size = t->vocab.n_ids;
	memset(set->raw.root, 0xff, sizeof set->raw.root);
	memset(set->normalized.root, 0xff, sizeof set->normalized.root);
	for (size_t i = 0; i < set->n; i++)
		if ((uint32_t)set->v[i].id >= size)
			size = (uint32_t)set->v[i].id + 1;
	set->of_id = mx_arena_alloc(&t->arena, size * sizeof *set->of_id);
	if (!set->of_id)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	memset(set->of_id, 0xff, size * sizeof *set->of_id);
	t->size = size;
	struct mx_tok_work w = {.err = err, .text_limit = (size_t)1 << 20};
	mx_status st = MX_OK;
	for (size_t i = 0; i < set->n && st == MX_OK; i++) {
		struct mx_tok_added *a = &set->v[i];
		set->of_id[a->id] = (int32_t)i;
		a->pattern = a->content;
		if (a->normalized && t->norms.n) {
			mx_buf_clear(&w.text);
			st = mx_tok_normalize(t, &w, a->content.s, a->content.n, &w.text);
			char *copy =
				st == MX_OK ? mx_arena_strndup(&t->arena, mx_buf_str(&w.text), w.text.len) : NULL;
			if (st == MX_OK && !copy)
				st = mx_fail(err, MX_E_NOMEM, "out of memory");
			if (st == MX_OK)
				a->pattern = (struct mx_tok_piece){copy, (uint32_t)w.text.len};
		}
		if (st == MX_OK && mx_tok_trie_add(a->normalized ? &set->normalized : &set->raw,
		                                   &a->pattern, (int32_t)i, &t->arena) != MX_OK)
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	mx_tok_work_free(&w);
	return st;
}

size_t mx_tok_trie_longest(const struct mx_tok_trie *trie, const char *s, size_t n, int32_t *added)
{
	size_t best = 0;
	int32_t node = trie->root[(unsigned char)s[0]];
	for (size_t i = 1; node >= 0; i++) {
		if (trie->nodes[node].added >= 0) {
			best = i;
			*added = trie->nodes[node].added;
		}
		if (i == n)
			break;
		node = child(trie, node, (unsigned char)s[i]);
	}
	return best;
}

/* True if no word character is next to s[start..stop), as a single_word token needs. */
static bool alone(const char *s, size_t n, size_t start, size_t stop)
{
	if (start > 0) {
		size_t i = mx_tok_prev(s, start);
		if (mx_tok_is_word(mx_tok_next(s, &i)))
			return false;
	}
	return stop == n || !mx_tok_is_word(mx_tok_next(s, &stop));
}

mx_status mx_tok_added_split(const struct mx_tokenizer *t, const struct mx_tok_trie *trie,
                             const char *text, size_t off, size_t len, bool first,
                             struct mx_tok_splits *out)
{
	const char *s = text + off;
	size_t done = 0;     /* s[0..done) is split */
	size_t stripped = 0; /* end of the last run of spaces that an rstrip took */
	for (size_t i = 0; trie->any && i < len;) {
		int32_t which = -1;
		size_t match = mx_tok_trie_longest(trie, s + i, len - i, &which);
		if (!match) {
			i++;
			continue;
		}
		const struct mx_tok_added *a = &t->added.v[which];
		size_t start = i, stop = i + match;
		i = stop;
		if (a->single_word && !alone(s, len, start, stop))
			continue;
		if (a->lstrip) {
			while (start > done) {
				size_t p = mx_tok_prev(s, start), q = p;
				if (!mx_tok_is_space(mx_tok_next(s, &q)))
					break;
				start = p;
			}
		}
		if (a->rstrip) {
			if (stop < stripped)
				stop = stripped; /* an earlier token already took these spaces */
			while (stop < len) {
				size_t q = stop;
				if (!mx_tok_is_space(mx_tok_next(s, &q)))
					break;
				stop = q;
			}
			stripped = stop;
		}
		if (done < start &&
		    mx_tok_splits_add(out, off + done, start - done, -1, first && !done) != MX_OK)
			return MX_E_NOMEM;
		if (mx_tok_splits_add(out, off + start, stop - start, a->id, false) != MX_OK)
			return MX_E_NOMEM;
		done = stop;
	}
	if (done < len)
		return mx_tok_splits_add(out, off + done, len - done, -1, first && !done);
	return MX_OK;
}
