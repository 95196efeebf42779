/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

bool mx_cache_init(struct mx_cache *c, size_t max_bytes)
{
	*c = (struct mx_cache){.max_bytes = max_bytes, .table_size = 256};
	c->table = mx_calloc(c->table_size, sizeof(struct mx_verdict *));
	pthread_mutex_init(&c->lock, NULL);
	return c->table != NULL;
}

void mx_cache_free(struct mx_cache *c)
{
	for (struct mx_verdict *v = c->newest, *older; v; v = older) {
		older = v->older;
		mx_verdict_unref(v);
	}
	free(c->table);
	pthread_mutex_destroy(&c->lock);
}

void mx_verdict_unref(struct mx_verdict *v)
{
	if (!v || atomic_fetch_sub_explicit(&v->references, 1, memory_order_acq_rel) != 1)
		return;
	mx_trie_free(&v->rest);
	free(v->tokens);
	free(v->bits);
	free(v);
}

static struct mx_verdict **place(struct mx_cache *c, const struct mx_verdict_key *key)
{
	uint64_t h = (key->grammar * 0x9e3779b97f4a7c15u ^ key->parent) * 0xff51afd7ed558ccdu;
	h = (h ^ h >> 32 ^ key->state) * 0x9e3779b97f4a7c15u;
	return &c->table[(h >> 32) & (c->table_size - 1)];
}

static bool same(const struct mx_verdict_key *a, const struct mx_verdict_key *b)
{
	return a->grammar == b->grammar && a->parent == b->parent && a->state == b->state;
}

static void unlink_entry(struct mx_cache *c, struct mx_verdict *v)
{
	*(v->newer ? &v->newer->older : &c->newest) = v->older;
	*(v->older ? &v->older->newer : &c->oldest) = v->newer;
}

static void link_entry(struct mx_cache *c, struct mx_verdict *v)
{
	v->newer = NULL;
	v->older = c->newest;
	*(v->older ? &v->older->newer : &c->oldest) = v;
	c->newest = v;
}

static struct mx_verdict *find(struct mx_cache *c, const struct mx_verdict_key *key)
{
	struct mx_verdict *v = *place(c, key);
	while (v && !same(&v->key, key))
		v = v->chained;
	return v;
}

struct mx_verdict *mx_cache_get(struct mx_cache *c, const struct mx_verdict_key *key)
{
	pthread_mutex_lock(&c->lock);
	struct mx_verdict *v = find(c, key);
	c->hits += v != NULL;
	c->misses += v == NULL;
	if (v) {
		atomic_fetch_add_explicit(&v->references, 1, memory_order_relaxed);
		if (v->newer) {
			unlink_entry(c, v);
			link_entry(c, v);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return v;
}

static void drop(struct mx_cache *c, struct mx_verdict *v)
{
	struct mx_verdict **at = place(c, &v->key);
	while (*at != v)
		at = &(*at)->chained;
	*at = v->chained;
	unlink_entry(c, v);
	c->bytes -= v->bytes;
	c->n--;
	mx_verdict_unref(v);
}

static void grow(struct mx_cache *c)
{
	struct mx_verdict **table = mx_calloc(c->table_size * 2, sizeof(struct mx_verdict *));
	if (!table)
		return; /* longer chains, no harm */
	free(c->table);
	c->table = table;
	c->table_size *= 2;
	for (struct mx_verdict *v = c->newest; v; v = v->older) {
		struct mx_verdict **at = place(c, &v->key);
		v->chained = *at;
		*at = v;
	}
}

void mx_cache_put(struct mx_cache *c, struct mx_verdict *v)
{
	pthread_mutex_lock(&c->lock);
	v->id = ++c->last_id;
	struct mx_verdict *other = find(c, &v->key);
	if (other) /* another thread was quicker; what hangs on its id stays in use */
		v->id = other->id;
	if (!other && v->bytes <= c->max_bytes) {
		while (c->bytes + v->bytes > c->max_bytes && c->oldest) {
			drop(c, c->oldest);
			c->evicted++;
		}
		if (c->n >= c->table_size)
			grow(c);
		struct mx_verdict **at = place(c, &v->key);
		v->chained = *at;
		*at = v;
		link_entry(c, v);
		atomic_fetch_add_explicit(&v->references, 1, memory_order_relaxed);
		c->bytes += v->bytes;
		c->n++;
	}
	pthread_mutex_unlock(&c->lock);
}
