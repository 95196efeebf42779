/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/pages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "engine/siphash.h"

struct page {
	uint32_t refs;         /* sequences that hold it */
	uint32_t parent;       /* known: the page before it; MX_NO_PAGE = it is a first page */
	uint32_t next;         /* known: next page of its bucket; free: of the free list */
	uint32_t older, newer; /* cached: in the LRU list */
	bool known;
	uint32_t cover;   /* known: saved states at it, and covered pages behind it */
	uint32_t stamp;   /* number of times that it became unknown */
	uint64_t hash;    /* known: of all tokens up to its end, and the salt; not 0 */
	uint64_t salt[2]; /* first pages only */
};

struct mx_pages {
	uint32_t n_pages, page_tokens;
	bool cache;
	uint64_t key[2];
	struct page *pages;  /* [n_pages] */
	int32_t *tokens;     /* [n_pages, page_tokens], of known pages; NULL without a cache */
	uint32_t *buckets;   /* [n_buckets] first known page */
	uint32_t n_buckets;  /* a power of two */
	uint32_t first_free; /* stack through page.next */
	uint32_t oldest, newest;
	struct mx_kv_events *events; /* NULL = nobody is told */
	bool only_covered;

	/* Written by the engine thread only; read by any. */
	atomic_uint n_free, n_cached;
	atomic_ullong evictions;
};

/* One writer: no read-modify-write instruction needed. */
#define BUMP(counter, by)                                                                          \
	atomic_store_explicit(&(counter),                                                              \
	                      atomic_load_explicit(&(counter), memory_order_relaxed) + (by),           \
	                      memory_order_relaxed)
#define GET(counter) atomic_load_explicit(&(counter), memory_order_relaxed)

static uint32_t bucket_count(uint32_t n_pages)
{
	uint32_t n = 16;
	while (n < n_pages)
		n *= 2;
	return n;
}

size_t mx_pages_bytes(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache)
{
	size_t bytes = sizeof(struct mx_pages) + n_pages * sizeof(struct page);
	if (prefix_cache)
		bytes += (size_t)n_pages * page_tokens * sizeof(int32_t) +
		         bucket_count(n_pages) * sizeof(uint32_t);
	return bytes;
}

mx_status mx_pages_create(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache,
                          struct mx_pages **out)
{
	if (!n_pages || n_pages > UINT32_MAX / 2 + 1 || !page_tokens)
		return MX_E_INVALID;
	struct mx_pages *p = mx_calloc(1, sizeof *p);
	if (!p)
		return MX_E_NOMEM;
	p->n_pages = n_pages;
	p->page_tokens = page_tokens;
	p->cache = prefix_cache;
	p->oldest = p->newest = MX_NO_PAGE;
	p->pages = mx_calloc(n_pages, sizeof *p->pages);
	if (prefix_cache) {
		p->n_buckets = bucket_count(n_pages);
		p->buckets = mx_calloc(p->n_buckets, sizeof *p->buckets);
		p->tokens = mx_calloc(n_pages, page_tokens * sizeof *p->tokens);
	}
	if (!p->pages || (prefix_cache && (!p->buckets || !p->tokens))) {
		mx_pages_destroy(p);
		return MX_E_NOMEM;
	}
	if (getrandom(p->key, sizeof p->key, 0) != sizeof p->key) {
		mx_pages_destroy(p);
		return MX_E_IO;
	}
	for (uint32_t i = 0; i < p->n_buckets; i++)
		p->buckets[i] = MX_NO_PAGE;
	/* Touched now, so that resident memory does not grow with the first requests. */
	if (p->tokens)
		memset(p->tokens, 0xff, (size_t)n_pages * page_tokens * sizeof *p->tokens);
	p->first_free = MX_NO_PAGE;
	for (uint32_t i = n_pages; i-- > 0;) {
		p->pages[i].next = p->first_free;
		p->first_free = i;
	}
	atomic_init(&p->n_free, n_pages);
	*out = p;
	return MX_OK;
}

void mx_pages_destroy(struct mx_pages *p)
{
	if (!p)
		return;
	free(p->pages);
	free(p->tokens);
	free(p->buckets);
	free(p);
}

void mx_pages_salt(const struct mx_pages *p, const char *text, uint64_t salt[2])
{
	salt[0] = salt[1] = 0;
	if (!text)
		return;
	struct mx_siphash h;
	mx_siphash_init(&h, p->key);
	mx_siphash_update(&h, text, strlen(text));
	mx_siphash_final(&h, salt);
}

/* ---- the LRU list of cached pages ---- */

static void lru_push(struct mx_pages *p, uint32_t id)
{
	struct page *g = &p->pages[id];
	g->older = p->newest;
	g->newer = MX_NO_PAGE;
	if (p->newest != MX_NO_PAGE)
		p->pages[p->newest].newer = id;
	else
		p->oldest = id;
	p->newest = id;
	BUMP(p->n_cached, 1);
}

static void lru_remove(struct mx_pages *p, uint32_t id)
{
	struct page *g = &p->pages[id];
	if (g->older != MX_NO_PAGE)
		p->pages[g->older].newer = g->newer;
	else
		p->oldest = g->newer;
	if (g->newer != MX_NO_PAGE)
		p->pages[g->newer].older = g->older;
	else
		p->newest = g->older;
	BUMP(p->n_cached, -1u);
}

/* ---- the forest of known pages ---- */

static const int32_t *page_key(const struct mx_pages *p, uint32_t id)
{
	return p->tokens + (size_t)id * p->page_tokens;
}

/* Returns the hash of the page whose first token is at position `at`. It includes the hash of the
 * page before it, so that equal prefixes have equal hashes. */
static uint64_t hash_page(const struct mx_pages *p, uint32_t parent, const uint64_t salt[2],
                          const struct mx_seq_tokens *tokens, uint32_t at)
{
	struct mx_siphash h;
	uint64_t out[2];
	mx_siphash_init(&h, p->key);
	if (parent == MX_NO_PAGE)
		mx_siphash_update(&h, salt, 16);
	else
		mx_siphash_update(&h, &p->pages[parent].hash, sizeof p->pages[parent].hash);
	for (uint32_t n, end = at + p->page_tokens; at < end; at += n) {
		const int32_t *run = mx_seq_tokens_run(tokens, at, end, &n);
		mx_siphash_update(&h, run, n * sizeof *run);
	}
	mx_siphash_final(&h, out);
	return out[0] ? out[0] : 1;
}

/* True if the known page has the tokens from position `at` on. */
static bool has_tokens(const struct mx_pages *p, uint32_t id, const struct mx_seq_tokens *tokens,
                       uint32_t at)
{
	const int32_t *key = page_key(p, id);
	for (uint32_t n, end = at + p->page_tokens; at < end; at += n, key += n) {
		const int32_t *run = mx_seq_tokens_run(tokens, at, end, &n);
		if (memcmp(key, run, n * sizeof *run) != 0)
			return false;
	}
	return true;
}

/* Returns the known page with that parent and the tokens from position `at` on, or MX_NO_PAGE. */
static uint32_t find(const struct mx_pages *p, uint32_t parent, const uint64_t salt[2],
                     const struct mx_seq_tokens *tokens, uint32_t at, uint64_t hash)
{
	for (uint32_t id = p->buckets[hash & (p->n_buckets - 1)]; id != MX_NO_PAGE;
	     id = p->pages[id].next) {
		const struct page *g = &p->pages[id];
		if (g->hash == hash && g->parent == parent &&
		    (parent != MX_NO_PAGE || (g->salt[0] == salt[0] && g->salt[1] == salt[1])) &&
		    has_tokens(p, id, tokens, at))
			return id;
	}
	return MX_NO_PAGE;
}

/* ---- events ---- */

static void tell_stored(struct mx_pages *p, uint32_t id)
{
	const struct page *g = &p->pages[id];
	mx_kv_events_store(p->events, id, g->hash, g->parent, g->salt, page_key(p, id));
}

/* Takes one cover from a page. A page without any gives up its own of the page before. */
static void uncover(struct mx_pages *p, uint32_t id)
{
	while (id != MX_NO_PAGE && --p->pages[id].cover == 0) {
		mx_kv_events_remove(p->events, id);
		id = p->pages[id].parent;
	}
}

/* The page is known no more; no known page is behind it. */
static void tell_forgotten(struct mx_pages *p, uint32_t id)
{
	struct page *g = &p->pages[id];
	g->stamp++;
	if (p->events && !p->only_covered)
		mx_kv_events_remove(p->events, id);
	else if (g->cover) { /* only saved states can cover it */
		g->cover = 1;
		uncover(p, id);
	}
}

void mx_pages_tell(struct mx_pages *p, struct mx_kv_events *events, bool only_covered)
{
	p->events = events;
	p->only_covered = only_covered;
}

struct mx_cover mx_pages_cover(struct mx_pages *p, const struct mx_page_list *list, uint32_t n)
{
	if (!n)
		return (struct mx_cover){.page = MX_NO_PAGE};
	uint32_t last = list->ids[n - 1], from = n;
	while (from && !p->pages[list->ids[from - 1]].cover)
		from--;
	if (from)
		p->pages[list->ids[from - 1]].cover++;
	for (uint32_t i = from; i < n; i++) { /* each by the page behind it, the last by the state */
		p->pages[list->ids[i]].cover = 1;
		tell_stored(p, list->ids[i]);
	}
	return (struct mx_cover){.page = last, .stamp = p->pages[last].stamp};
}

bool mx_pages_covered(const struct mx_pages *p, struct mx_cover c)
{
	return c.page == MX_NO_PAGE || p->pages[c.page].stamp == c.stamp;
}

void mx_pages_uncover(struct mx_pages *p, struct mx_cover c)
{
	if (c.page != MX_NO_PAGE && mx_pages_covered(p, c))
		uncover(p, c.page);
}

/* ---- the forest, continued ---- */

static void forget(struct mx_pages *p, uint32_t id)
{
	struct page *g = &p->pages[id];
	uint32_t *at = &p->buckets[g->hash & (p->n_buckets - 1)];
	while (*at != id)
		at = &p->pages[*at].next;
	*at = g->next;
	g->known = false;
	tell_forgotten(p, id);
}

/* ---- references ---- */

static void make_free(struct mx_pages *p, uint32_t id)
{
	p->pages[id].next = p->first_free;
	p->first_free = id;
	BUMP(p->n_free, 1);
}

static void hold(struct mx_pages *p, uint32_t id)
{
	if (p->pages[id].refs++ == 0)
		lru_remove(p, id);
}

static void drop_ref(struct mx_pages *p, uint32_t id)
{
	struct page *g = &p->pages[id];
	if (--g->refs)
		return;
	if (g->known)
		lru_push(p, id);
	else
		make_free(p, id);
}

/* Returns a page for a sequence, a free one or else the oldest cached one; the caller has checked
 * that there is one. */
static uint32_t take(struct mx_pages *p)
{
	if (p->first_free == MX_NO_PAGE) {
		uint32_t victim = p->oldest;
		lru_remove(p, victim);
		forget(p, victim);
		make_free(p, victim);
		BUMP(p->evictions, 1);
	}
	uint32_t id = p->first_free;
	p->first_free = p->pages[id].next;
	BUMP(p->n_free, -1u);
	p->pages[id].refs = 1;
	return id;
}

/* ---- sequences ---- */

uint32_t mx_pages_attach(struct mx_pages *p, struct mx_page_list *list,
                         const struct mx_seq_tokens *tokens, uint32_t n, uint32_t limit)
{
	if (!p->cache || list->private)
		return 0;
	if (limit > n)
		limit = n;
	uint32_t parent = MX_NO_PAGE;
	while (list->n < list->cap && limit - list->n * p->page_tokens >= p->page_tokens) {
		uint32_t at = list->n * p->page_tokens;
		uint64_t hash = hash_page(p, parent, list->salt, tokens, at);
		uint32_t id = find(p, parent, list->salt, tokens, at, hash);
		if (id == MX_NO_PAGE)
			break;
		hold(p, id);
		list->ids[list->n++] = id;
		parent = id;
	}
	list->n_known = list->n;
	return list->n * p->page_tokens;
}

mx_status mx_pages_reserve(struct mx_pages *p, struct mx_page_list *list, uint32_t n_tokens)
{
	uint32_t want = n_tokens / p->page_tokens + (n_tokens % p->page_tokens != 0);
	if (want <= list->n)
		return MX_OK;
	if (want > list->cap)
		return MX_E_RANGE;
	if (want - list->n > GET(p->n_free) + GET(p->n_cached))
		return MX_E_NOMEM;
	while (list->n < want)
		list->ids[list->n++] = take(p);
	return MX_OK;
}

void mx_pages_publish(struct mx_pages *p, struct mx_page_list *list,
                      const struct mx_seq_tokens *tokens, uint32_t computed)
{
	if (!p->cache || list->private)
		return;
	for (uint32_t i = list->n_known; i < computed / p->page_tokens; i++) {
		uint32_t at = i * p->page_tokens;
		uint32_t id = list->ids[i], parent = i ? list->ids[i - 1] : MX_NO_PAGE;
		uint64_t hash = hash_page(p, parent, list->salt, tokens, at);
		uint32_t other = find(p, parent, list->salt, tokens, at, hash);
		if (other != MX_NO_PAGE) {
			hold(p, other);
			list->ids[i] = other;
			list->n_told = list->n_told < i ? list->n_told : i;
			drop_ref(p, id);
		} else {
			struct page *g = &p->pages[id];
			g->known = true;
			g->parent = parent;
			g->hash = hash;
			memcpy(g->salt, list->salt, sizeof g->salt);
			mx_seq_tokens_copy(tokens, at, at + p->page_tokens,
			                   p->tokens + (size_t)id * p->page_tokens);
			g->next = p->buckets[hash & (p->n_buckets - 1)];
			p->buckets[hash & (p->n_buckets - 1)] = id;
			if (p->events && !p->only_covered)
				tell_stored(p, id);
		}
		list->n_known = i + 1;
	}
}

void mx_pages_trim(struct mx_pages *p, struct mx_page_list *list, uint32_t n)
{
	while (list->n > n && list->n > list->n_gone) /* last page first: see pages.h's invariant */
		drop_ref(p, list->ids[--list->n]);
	if (list->n > n)
		list->n = list->n_gone = n;
	if (list->n_known > list->n)
		list->n_known = list->n;
	if (list->n_told > list->n)
		list->n_told = list->n;
}

void mx_pages_let_go(struct mx_pages *p, struct mx_page_list *list, uint32_t n)
{
	if (p->cache && !list->private)
		return;
	for (; list->n_gone < n && list->n_gone < list->n; list->n_gone++) {
		drop_ref(p, list->ids[list->n_gone]);
		list->ids[list->n_gone] = MX_NO_PAGE;
	}
}

void mx_pages_release(struct mx_pages *p, struct mx_page_list *list,
                      const struct mx_seq_tokens *tokens, uint32_t computed)
{
	mx_pages_publish(p, list, tokens, computed);
	mx_pages_trim(p, list, 0);
}

void mx_pages_drop(struct mx_pages *p)
{
	while (p->oldest != MX_NO_PAGE) {
		uint32_t id = p->oldest;
		lru_remove(p, id);
		forget(p, id);
		make_free(p, id);
	}
}

void mx_pages_usage(const struct mx_pages *p, struct mx_engine_usage *out)
{
	uint32_t n_free = GET(p->n_free), cached = GET(p->n_cached);
	if (cached > p->n_pages - n_free) /* read between two updates */
		cached = p->n_pages - n_free;
	out->pages_used = p->n_pages - n_free - cached;
	out->pages_cached = cached;
	out->pages_free = n_free;
	out->prefix_evictions = GET(p->evictions);
}

/* ---- self-check ---- */

static const char *check_lists(const struct mx_pages *p, const struct mx_page_list *const *lists,
                               size_t n, uint32_t *refs)
{
	for (size_t i = 0; i < n; i++) {
		const struct mx_page_list *l = lists[i];
		if (l->n > l->cap || l->n_known > l->n || l->n_gone > l->n)
			return "a list's counts are out of order";
		if (l->n_gone && l->n_known)
			return "a list that is shared has given pages back";
		for (uint32_t k = 0; k < l->n; k++) {
			uint32_t id = l->ids[k];
			if (k < l->n_gone && id == MX_NO_PAGE)
				continue;
			if (k < l->n_gone || id >= p->n_pages)
				return "a list holds a page that does not exist";
			refs[id]++;
			if (p->pages[id].known != (k < l->n_known))
				return "a list and the cache differ about which pages are known";
			if (k < l->n_known && p->pages[id].parent != (k ? l->ids[k - 1] : MX_NO_PAGE))
				return "known pages of a list are not a path from a root";
		}
	}
	for (uint32_t i = 0; i < p->n_pages; i++)
		if (refs[i] != p->pages[i].refs)
			return "references differ from the lists'";
	return NULL;
}

static const char *check_chains(const struct mx_pages *p, uint32_t *seen)
{
	uint32_t n_free = 0, n_cached = 0, n_known = 0;
	for (uint32_t id = p->first_free; id != MX_NO_PAGE; id = p->pages[id].next, n_free++)
		if (seen[id]++ || p->pages[id].refs || p->pages[id].known)
			return "the free list holds a page twice, or one in use";
	for (uint32_t id = p->oldest, older = MX_NO_PAGE; id != MX_NO_PAGE;
	     older = id, id = p->pages[id].newer, n_cached++) {
		const struct page *g = &p->pages[id];
		if (seen[id]++ || g->refs || !g->known || g->older != older)
			return "the LRU list holds a page twice, one in use, or an unknown one";
		if (g->parent != MX_NO_PAGE && !p->pages[g->parent].refs && seen[g->parent])
			return "a page would be evicted before its successor";
	}
	for (uint32_t b = 0; b < p->n_buckets; b++)
		for (uint32_t id = p->buckets[b]; id != MX_NO_PAGE; id = p->pages[id].next, n_known++)
			if (!p->pages[id].known || (p->pages[id].hash & (p->n_buckets - 1)) != b)
				return "a bucket holds a page that is not its own";
	if (n_free != GET(p->n_free) || n_cached != GET(p->n_cached))
		return "the counts differ from the lists";
	for (uint32_t id = 0; id < p->n_pages; id++) {
		const struct page *g = &p->pages[id];
		n_known -= g->known;
		if (!g->refs != (seen[id] == 1))
			return "a page is neither free, cached nor used";
		if (g->known && g->parent != MX_NO_PAGE && !p->pages[g->parent].known)
			return "a known page hangs from an unknown one";
	}
	return n_known ? "buckets and pages differ about which pages are known" : NULL;
}

const char *mx_pages_check(const struct mx_pages *p, const struct mx_page_list *const *lists,
                           size_t n)
{
	uint32_t *count = mx_calloc(p->n_pages, 2 * sizeof *count);
	if (!count)
		return "out of memory";
	const char *wrong = check_lists(p, lists, n, count);
	if (!wrong)
		wrong = check_chains(p, count + p->n_pages);
	free(count);
	return wrong;
}
