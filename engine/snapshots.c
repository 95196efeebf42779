/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/snapshots.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

#define NONE UINT32_MAX

/* Marks a block, enough for 2048 tokens. They are in sets of WAYS; a new mark replaces the oldest
 * of its set. */
#define MARKS 64
#define WAYS  8

struct entry {
	uint64_t digest[2];
	uint32_t n;            /* tokens */
	uint32_t block;        /* NONE = a ghost */
	uint32_t older, newer; /* in its LRU list; unused entries are linked by newer */
};

/* LRU list of entries. */
struct list {
	uint32_t oldest, newest, n;
};

struct mx_snapshots {
	uint64_t key[2];
	uint32_t n_blocks;
	struct entry *entries; /* [2 n_blocks] with a block, ghosts: at most n_blocks of each */
	uint32_t *order;       /* [n_order] entries in use, by length */
	uint32_t n_order;
	uint32_t *owner; /* [n_blocks] a block's entry; a free block's next free block */
	uint64_t
		*marks; /* [n_blocks * MARKS / WAYS][WAYS] digests, each in its set, new first; 0 = none */
	uint32_t first_unused, first_free;
	struct list live, ghosts;

	/* Written by the engine thread only; read by any. */
	atomic_uint n_used;
	atomic_ullong saves, evictions;
};

#define GET(counter)       atomic_load_explicit(&(counter), memory_order_relaxed)
#define SET(counter, to)   atomic_store_explicit(&(counter), (to), memory_order_relaxed)
#define COUNT(counter, by) SET(counter, GET(counter) + (by)) /* one writer */

size_t mx_snapshots_bytes(uint32_t n_blocks)
{
	return sizeof(struct mx_snapshots) +
	       n_blocks * (2 * sizeof(struct entry) + 3 * sizeof(uint32_t) + MARKS * sizeof(uint64_t));
}

static void clear(struct mx_snapshots *s)
{
	uint32_t n = s->n_blocks;
	s->n_order = 0;
	s->live = s->ghosts = (struct list){NONE, NONE, 0};
	for (uint32_t i = 0; i < 2 * n; i++)
		s->entries[i].newer = i + 1 < 2 * n ? i + 1 : NONE;
	for (uint32_t b = 0; b < n; b++)
		s->owner[b] = b + 1 < n ? b + 1 : NONE;
	memset(s->marks, 0, (size_t)n * MARKS * sizeof *s->marks);
	s->first_unused = s->first_free = 0;
	SET(s->n_used, 0);
}

mx_status mx_snapshots_create(uint32_t n_blocks, struct mx_snapshots **out)
{
	if (!n_blocks || n_blocks > MX_SNAPSHOTS_MAX)
		return MX_E_INVALID;
	struct mx_snapshots *s = mx_calloc(1, sizeof *s);
	if (!s)
		return MX_E_NOMEM;
	s->n_blocks = n_blocks;
	s->entries = mx_calloc(2 * n_blocks, sizeof *s->entries);
	s->order = mx_calloc(2 * n_blocks, sizeof *s->order);
	s->owner = mx_calloc(n_blocks, sizeof *s->owner);
	s->marks = mx_calloc(n_blocks, MARKS * sizeof *s->marks);
	mx_status st = s->entries && s->order && s->owner && s->marks ? MX_OK : MX_E_NOMEM;
	if (st == MX_OK && getrandom(s->key, sizeof s->key, 0) != sizeof s->key)
		st = MX_E_IO;
	if (st != MX_OK) {
		mx_snapshots_destroy(s);
		return st;
	}
	clear(s);
	*out = s;
	return MX_OK;
}

void mx_snapshots_destroy(struct mx_snapshots *s)
{
	if (!s)
		return;
	free(s->entries);
	free(s->order);
	free(s->owner);
	free(s->marks);
	free(s);
}

/* ---- hashes ---- */

void mx_snapshots_hash(const struct mx_snapshots *s, const uint64_t salt[2],
                       struct mx_prefix_hash *out)
{
	out->n = 0;
	mx_siphash_init(&out->hash, s->key);
	mx_siphash_update(&out->hash, salt, 2 * sizeof *salt);
}

/* Continues the hash to n tokens and computes the digest of these. */
static void digest_at(struct mx_prefix_hash *h, const struct mx_seq_tokens *tokens, uint32_t n,
                      uint64_t digest[2])
{
	for (uint32_t k; h->n < n; h->n += k) {
		const int32_t *run = mx_seq_tokens_run(tokens, h->n, n, &k);
		mx_siphash_update(&h->hash, run, k * sizeof *run);
	}
	struct mx_siphash end = h->hash;
	mx_siphash_final(&end, digest);
}

/* ---- lists ---- */

static void push(struct mx_snapshots *s, struct list *l, uint32_t id)
{
	struct entry *e = &s->entries[id];
	e->older = l->newest;
	e->newer = NONE;
	if (l->newest != NONE)
		s->entries[l->newest].newer = id;
	else
		l->oldest = id;
	l->newest = id;
	l->n++;
}

static void take_out(struct mx_snapshots *s, struct list *l, uint32_t id)
{
	const struct entry *e = &s->entries[id];
	if (e->older != NONE)
		s->entries[e->older].newer = e->newer;
	else
		l->oldest = e->newer;
	if (e->newer != NONE)
		s->entries[e->newer].older = e->older;
	else
		l->newest = e->older;
	l->n--;
}

static void use_now(struct mx_snapshots *s, uint32_t id)
{
	take_out(s, &s->live, id);
	push(s, &s->live, id);
}

/* ---- entries ---- */

/* Returns the index in s->order of the first entry of at least n tokens. */
static uint32_t lower_bound(const struct mx_snapshots *s, uint32_t n)
{
	uint32_t low = 0, high = s->n_order;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (s->entries[s->order[mid]].n < n)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool is(const struct entry *e, const uint64_t digest[2])
{
	return e->digest[0] == digest[0] && e->digest[1] == digest[1];
}

/* Returns the entry of n tokens with that digest, or NONE. */
static uint32_t lookup(const struct mx_snapshots *s, const uint64_t digest[2], uint32_t n)
{
	for (uint32_t at = lower_bound(s, n); at < s->n_order; at++) {
		const struct entry *e = &s->entries[s->order[at]];
		if (e->n != n)
			break;
		if (is(e, digest))
			return s->order[at];
	}
	return NONE;
}

/* Takes an unused entry, of which there is one, and inserts it in s->order. */
static uint32_t add(struct mx_snapshots *s, const uint64_t digest[2], uint32_t n)
{
	uint32_t id = s->first_unused, at = lower_bound(s, n);
	s->first_unused = s->entries[id].newer;
	s->entries[id] = (struct entry){.digest = {digest[0], digest[1]}, .n = n, .block = NONE};
	memmove(&s->order[at + 1], &s->order[at], (s->n_order - at) * sizeof *s->order);
	s->order[at] = id;
	s->n_order++;
	return id;
}

/* Makes an entry unused again: it has no block and is in no list. */
static void discard(struct mx_snapshots *s, uint32_t id)
{
	uint32_t at = lower_bound(s, s->entries[id].n);
	while (s->order[at] != id)
		at++;
	s->n_order--;
	memmove(&s->order[at], &s->order[at + 1], (s->n_order - at) * sizeof *s->order);
	s->entries[id].newer = s->first_unused;
	s->first_unused = id;
}

static void free_block(struct mx_snapshots *s, struct entry *e)
{
	s->owner[e->block] = s->first_free;
	s->first_free = e->block;
	e->block = NONE;
	SET(s->n_used, s->live.n);
}

/* Frees the block of the least recently used entry, which becomes a ghost. If there are n_blocks
 * ghosts already, the oldest is discarded. */
static void evict(struct mx_snapshots *s)
{
	uint32_t id = s->live.oldest, ghost = s->ghosts.oldest;
	if (s->ghosts.n == s->n_blocks) {
		take_out(s, &s->ghosts, ghost);
		discard(s, ghost);
	}
	take_out(s, &s->live, id);
	free_block(s, &s->entries[id]);
	push(s, &s->ghosts, id);
	COUNT(s->evictions, 1);
}

/* ---- look-up and saving ---- */

void mx_snapshots_find(struct mx_snapshots *s, const uint64_t salt[2],
                       const struct mx_seq_tokens *tokens, uint32_t longest, uint32_t usable,
                       struct mx_snapshot *out)
{
	struct mx_prefix_hash h;
	uint32_t best = NONE;
	*out = (struct mx_snapshot){.block = MX_NO_SNAPSHOT};
	mx_snapshots_hash(s, salt, &h);
	for (uint32_t i = 0; i < s->n_order;) {
		uint32_t n = s->entries[s->order[i]].n;
		uint64_t digest[2];
		if (n > longest)
			break;
		digest_at(&h, tokens, n, digest);
		for (; i < s->n_order && s->entries[s->order[i]].n == n; i++) {
			const struct entry *e = &s->entries[s->order[i]];
			if (!is(e, digest))
				continue;
			if (e->block == NONE || n > usable)
				out->lost = true;
			else
				best = s->order[i];
		}
	}
	if (best == NONE)
		return;
	use_now(s, best);
	out->block = s->entries[best].block;
	out->n = s->entries[best].n;
}

uint32_t mx_snapshots_save(struct mx_snapshots *s, const uint64_t salt[2],
                           struct mx_prefix_hash *hash, const struct mx_seq_tokens *tokens,
                           uint32_t n, bool *out_saved)
{
	uint64_t digest[2];
	if (hash->n > n)
		mx_snapshots_hash(s, salt, hash);
	digest_at(hash, tokens, n, digest);
	uint32_t id = lookup(s, digest, n);
	*out_saved = id != NONE && s->entries[id].block != NONE;
	if (*out_saved) {
		use_now(s, id);
		return s->entries[id].block;
	}
	if (id != NONE) /* it is a ghost, and gets a block again */
		take_out(s, &s->ghosts, id);
	if (s->first_free == NONE)
		evict(s);
	if (id == NONE)
		id = add(s, digest, n);
	uint32_t block = s->first_free;
	s->first_free = s->owner[block];
	s->owner[block] = id;
	s->entries[id].block = block;
	push(s, &s->live, id);
	SET(s->n_used, s->live.n);
	COUNT(s->saves, 1);
	return block;
}

/* ---- marks ---- */

/* Returns the set for the mark of the first n tokens; *out = its digest. */
static uint64_t *set_of(const struct mx_snapshots *s, struct mx_prefix_hash *h,
                        const struct mx_seq_tokens *tokens, uint32_t n, uint64_t *out)
{
	uint64_t digest[2];
	digest_at(h, tokens, n, digest);
	*out = digest[0];
	return &s->marks[digest[1] % (s->n_blocks * MARKS / WAYS) * WAYS];
}

/* Returns the index of the digest in the set; WAYS if it is not there. */
static unsigned find_mark(const uint64_t *set, uint64_t digest)
{
	unsigned way = 0;
	while (way < WAYS && set[way] != digest)
		way++;
	return way;
}

void mx_snapshots_mark(struct mx_snapshots *s, struct mx_prefix_hash *hash,
                       const struct mx_seq_tokens *tokens, uint32_t n)
{
	uint64_t digest;
	while (n / MX_MARK_TOKENS > hash->n / MX_MARK_TOKENS) {
		uint32_t next = (hash->n / MX_MARK_TOKENS + 1) * MX_MARK_TOKENS;
		uint64_t *set = set_of(s, hash, tokens, next, &digest);
		unsigned way = find_mark(set, digest);
		memmove(set + 1, set, (way < WAYS ? way : WAYS - 1) * sizeof *set);
		set[0] = digest;
	}
}

uint32_t mx_snapshots_marked(const struct mx_snapshots *s, const uint64_t salt[2],
                             const struct mx_seq_tokens *tokens, uint32_t n)
{
	struct mx_prefix_hash h;
	uint64_t digest;
	uint32_t longest = 0;
	mx_snapshots_hash(s, salt, &h);
	for (uint32_t at = MX_MARK_TOKENS; at <= n; at += MX_MARK_TOKENS) {
		const uint64_t *set = set_of(s, &h, tokens, at, &digest);
		if (find_mark(set, digest) < WAYS)
			longest = at;
	}
	return longest;
}

void mx_snapshots_forget(struct mx_snapshots *s, uint32_t block)
{
	uint32_t id = s->owner[block];
	take_out(s, &s->live, id);
	free_block(s, &s->entries[id]);
	discard(s, id);
}

void mx_snapshots_drop(struct mx_snapshots *s)
{
	clear(s);
}

void mx_snapshots_usage(const struct mx_snapshots *s, struct mx_engine_usage *out)
{
	out->snapshots_used = GET(s->n_used);
	out->snapshot_saves = GET(s->saves);
	out->snapshot_evictions = GET(s->evictions);
}

/* ---- self-check ---- */

/* Walks a list and counts its entries in seen[]. */
static const char *check_list(const struct mx_snapshots *s, const struct list *l, bool live,
                              uint32_t *seen)
{
	uint32_t n = 0, older = NONE;
	for (uint32_t id = l->oldest; id != NONE; older = id, id = s->entries[id].newer, n++) {
		const struct entry *e = &s->entries[id];
		if (seen[id]++ || e->older != older)
			return "a list holds an entry twice, or its links disagree";
		if ((e->block != NONE) != live)
			return "an entry stands in the wrong list";
		if (live && (e->block >= s->n_blocks || s->owner[e->block] != id))
			return "a block and its entry disagree";
	}
	return n == l->n && l->newest == older ? NULL : "a list and its counts disagree";
}

static const char *check_order(const struct mx_snapshots *s, const uint32_t *seen)
{
	for (uint32_t i = 0; i < s->n_order; i++) {
		const struct entry *e = &s->entries[s->order[i]];
		if (!seen[s->order[i]])
			return "the order holds an entry that is in no list";
		if (i && s->entries[s->order[i - 1]].n > e->n)
			return "the order is not by length";
		for (uint32_t k = i; k-- > 0 && s->entries[s->order[k]].n == e->n;)
			if (is(e, s->entries[s->order[k]].digest))
				return "a prefix has two entries";
	}
	return s->n_order == s->live.n + s->ghosts.n ? NULL : "the order and the lists disagree";
}

const char *mx_snapshots_check(const struct mx_snapshots *s)
{
	uint32_t n_unused = 0, n_free = 0;
	uint32_t *seen = mx_calloc(2 * s->n_blocks, sizeof *seen);
	if (!seen)
		return "out of memory";
	const char *wrong = check_list(s, &s->live, true, seen);
	if (!wrong)
		wrong = check_list(s, &s->ghosts, false, seen);
	if (!wrong)
		wrong = check_order(s, seen);
	for (uint32_t id = s->first_unused; !wrong && id != NONE; id = s->entries[id].newer, n_unused++)
		if (seen[id]++)
			wrong = "an unused entry is in use";
	for (uint32_t b = s->first_free; !wrong && b != NONE && n_free <= s->n_blocks; b = s->owner[b])
		n_free++;
	if (!wrong && (s->n_order + n_unused != 2 * s->n_blocks || s->live.n + n_free != s->n_blocks ||
	               GET(s->n_used) != s->live.n))
		wrong = "entries or blocks were lost";
	free(seen);
	return wrong;
}
