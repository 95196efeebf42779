/* SPDX-License-Identifier: Apache-2.0 */
/* The model's vocabulary: a table from ids to strings, and a hash map from strings to ids. */
#include "model/tokenizer/internal.h"

#include <string.h>

/* Hashes eight bytes at a time by multiplying and folding, like wyhash. The hash is not keyed: the
 * strings in a map come from the checkpoint, never from a request. */
static uint64_t hash_of(const char *s, size_t n)
{
	uint64_t h = 0x9e3779b97f4a7c15u ^ n;
	while (n >= 8) {
		uint64_t x;
		memcpy(&x, s, 8);
		h = (h ^ x) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
		s += 8;
		n -= 8;
	}
	uint64_t x = 0;
	memcpy(&x, s, n);
	h = (h ^ x) * 0xff51afd7ed558ccdu;
	h ^= h >> 32;
	h *= 0xc4ceb9fe1a85ec53u;
	return h ^ h >> 29;
}

mx_status mx_tok_map_init(struct mx_tok_map *m, struct mx_arena *arena, size_t n)
{
	uint32_t size = 16;
	while (size < n * 2)
		size *= 2;
	int32_t *cells = mx_arena_alloc(arena, size * sizeof *cells);
	if (!cells)
		return MX_E_NOMEM;
	memset(cells, 0xff, size * sizeof *cells);
	*m = (struct mx_tok_map){cells, size - 1};
	return MX_OK;
}

int32_t mx_tok_map_find(const struct mx_tok_map *m, const struct mx_tok_piece *pieces,
                        const char *s, size_t n)
{
	if (!m->cells)
		return -1;
	for (uint32_t i = (uint32_t)hash_of(s, n) & m->mask;; i = (i + 1) & m->mask) {
		int32_t k = m->cells[i];
		if (k < 0)
			return -1;
		if (pieces[k].n == n && memcmp(pieces[k].s, s, n) == 0)
			return k;
	}
}

void mx_tok_map_set(struct mx_tok_map *m, const struct mx_tok_piece *pieces, int32_t index)
{
	const struct mx_tok_piece *p = &pieces[index];
	uint32_t i = (uint32_t)hash_of(p->s, p->n) & m->mask;
	while (m->cells[i] >= 0) {
		const struct mx_tok_piece *q = &pieces[m->cells[i]];
		if (q->n == p->n && memcmp(q->s, p->s, p->n) == 0)
			break;
		i = (i + 1) & m->mask;
	}
	m->cells[i] = index;
}

int32_t mx_tok_vocab_bytes_id(const struct mx_tok_vocab *v, const char *s, size_t n)
{
	char key[2 * 1024];
	size_t len = 0;
	if (n > sizeof key / 2)
		return -1;
	for (size_t i = 0; i < n; i++) {
		const uint32_t cp = mx_tok_byte_char((unsigned char)s[i]); /* below 0x800 */
		if (cp >= 0x80)
			key[len++] = (char)(0xc0 | cp >> 6);
		key[len++] = (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3f));
	}
	return mx_tok_vocab_id(v, key, len);
}

mx_status mx_tok_vocab_parse(const json_t *vocab, const char *path, struct mx_arena *arena,
                             struct mx_tok_vocab *v, struct mx_err *err)
{
	if (!json_is_object(vocab))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an object");
	const char *key;
	json_t *value;
	size_t bytes = 0;
	json_int_t top = -1;
	json_object_foreach((json_t *)vocab, key, value)
	{
		json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
		if (id < 0 || id >= MX_TOK_MAX_IDS)
			return mx_fail_at(err, MX_E_FORMAT, path, "id of \"%.40s\" must be from 0 to %u", key,
			                  MX_TOK_MAX_IDS - 1);
		if (id > top)
			top = id;
		bytes += strlen(key) + 1;
	}
	uint32_t n_ids = (uint32_t)(top + 1);
	char *text = mx_arena_alloc(arena, bytes);
	struct mx_tok_piece *pieces = mx_arena_alloc(arena, n_ids * sizeof *pieces);
	struct mx_tok_map map;
	if (!text || !pieces || mx_tok_map_init(&map, arena, json_object_size(vocab)) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	json_object_foreach((json_t *)vocab, key, value)
	{
		int32_t id = (int32_t)json_integer_value(value);
		if (pieces[id].s)
			return mx_fail_at(err, MX_E_FORMAT, path, "\"%.40s\" and \"%.40s\" have the same id %d",
			                  pieces[id].s, key, (int)id);
		size_t n = strlen(key);
		memcpy(text, key, n + 1);
		pieces[id] = (struct mx_tok_piece){text, (uint32_t)n};
		text += n + 1;
		mx_tok_map_set(&map, pieces, id);
	}
	*v = (struct mx_tok_vocab){pieces, n_ids, (uint32_t)json_object_size(vocab), map};
	return MX_OK;
}
