/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/prefix.h"

#include "base/log.h"

#define GET(counter) atomic_load_explicit(&(counter), memory_order_relaxed)
/* One writer: no read-modify-write instruction needed. */
#define COUNT(counter, by)                                                                         \
	atomic_store_explicit(&(counter), GET(counter) + (by), memory_order_relaxed)

/* Value of mx_seq.lookup once the look-up was counted. */
#define COUNTED (MX_LOOKUP_N + 1)

/* ---- events of models with snapshots ---- */

/* The state in `block` needs the first n pages of the sequence, which are known. */
static void cover(struct mx_core *c, const struct mx_seq *s, uint32_t block, uint32_t n)
{
	if (!c->covers)
		return;
	struct mx_cover old = c->covers[block];
	c->covers[block] = mx_pages_cover(c->pages, &s->pages, n);
	mx_pages_uncover(c->pages, old); /* now: pages that stay are not told of */
}

/* The state in `block` is lost. */
static void uncover(struct mx_core *c, uint32_t block)
{
	if (!c->covers)
		return;
	mx_pages_uncover(c->pages, c->covers[block]);
	c->covers[block].page = MX_NO_PAGE;
}

/* Drops the state in `block`. */
static void forget(struct mx_core *c, uint32_t block)
{
	mx_snapshots_forget(c->snapshots, block);
	uncover(c, block);
}

/* ---- look-up ---- */

/* Returns the most tokens that the prefix cache may cover: rows whose logits are needed must be
 * computed. */
static uint32_t limit_of(const struct mx_seq *s)
{
	uint32_t limit = s->n - 1;
	if (s->params.prompt_logprobs >= 0 && s->prompt_reported + 1 < s->n_prompt &&
	    s->prompt_reported < limit)
		limit = s->prompt_reported;
	return limit;
}

/* Loads the longest snapshot whose full pages before its last token's page are known. The sequence
 * holds the pages of its first `known` tokens. Its first `marked` tokens were computed by earlier
 * sequences. */
static mx_status resume(struct mx_core *c, struct mx_seq *s, uint32_t limit, uint32_t known,
                        uint32_t marked, enum mx_lookup *out)
{
	struct mx_snapshot found;
	uint32_t page = c->info.page_tokens, usable = c->info.page_bytes ? known + page : s->n;
	mx_snapshots_find(c->snapshots, s->pages.salt, &s->tokens, limit + 1, usable, &found);
	if (found.block != MX_NO_SNAPSHOT) {
		mx_pages_trim(c->pages, &s->pages, (found.n - 1) / page);
		mx_status st = mx_pages_reserve(c->pages, &s->pages, found.n);
		if (st != MX_OK) {
			mx_pages_trim(c->pages, &s->pages, 0);
			return st;
		}
		s->computed = found.n <= limit ? found.n : limit;
		st = c->state.load(c, s, found.block);
		if (st == MX_OK) {
			/* A page that it needs was evicted since it was saved, and computed again. */
			if (c->covers && !mx_pages_covered(c->pages, c->covers[found.block]))
				cover(c, s, found.block, s->pages.n_known);
			s->resumes = true;
			s->resume_module = s->resume_progress = 0;
			*out = MX_LOOKUP_HIT;
			return MX_OK;
		}
		s->computed = 0;
		mx_error("engine", "%s: a saved state of %u tokens cannot be loaded: %s", c->info.model,
		         found.n, mx_status_str(st));
		forget(c, found.block);
	}
	mx_pages_trim(c->pages, &s->pages, 0);
	*out = found.lost        ? MX_LOOKUP_EVICTED
	       : known || marked ? MX_LOOKUP_NO_SNAPSHOT
	                         : MX_LOOKUP_MISS;
	return MX_OK;
}

static mx_status look_up(struct mx_core *c, struct mx_seq *s, uint32_t limit, enum mx_lookup *out)
{
	if (c->info.prefix_unsupported) {
		*out = MX_LOOKUP_UNSUPPORTED;
		return MX_OK;
	}
	uint32_t known = mx_pages_attach(c->pages, &s->pages, &s->tokens, s->n, limit);
	if (c->info.slot_bytes) {
		uint32_t marked = mx_snapshots_marked(c->snapshots, s->pages.salt, &s->tokens, s->n);
		mx_status st = resume(c, s, limit, known, marked, out);
		if (!s->hash.n) /* else the marks may be its own */
			s->branch = marked;
		return st;
	}
	s->computed = known;
	*out = known ? MX_LOOKUP_HIT : MX_LOOKUP_MISS;
	return MX_OK;
}

mx_status mx_prefix_attach(struct mx_core *c, struct mx_seq *s)
{
	uint32_t limit = limit_of(s);
	s->computed = 0;
	s->resumes = false;
	if ((c->info.prefix_cache || c->info.prefix_unsupported) && !s->pages.private && limit) {
		enum mx_lookup outcome = MX_LOOKUP_MISS;
		mx_status st = look_up(c, s, limit, &outcome);
		if (st != MX_OK)
			return st;
		if (s->lookup != COUNTED)
			s->lookup = outcome;
	}
	if (c->info.slot_bytes && !s->computed)
		c->state.clear(c, s);
	s->snapshotted = s->computed;
	s->in_step = 0;
	return MX_OK;
}

void mx_prefix_count(struct mx_core *c, struct mx_seq *s)
{
	if (s->lookup < MX_LOOKUP_N) {
		COUNT(c->queries, s->lookup == MX_LOOKUP_UNSUPPORTED ? 0 : s->n);
		COUNT(c->hits, s->computed);
		COUNT(c->lookups[s->lookup], 1);
	}
	s->lookup = COUNTED;
}

/* ---- saving ---- */

/* Saves a snapshot of the sequence's state, unless that is useless or the state is undefined. */
static void save(struct mx_core *c, struct mx_seq *s)
{
	bool saved;
	if (!c->snapshots || s->pages.private || s->in_step || s->computed < MX_SNAPSHOT_MIN ||
	    s->computed == s->snapshotted)
		return;
	uint32_t block =
		mx_snapshots_save(c->snapshots, s->pages.salt, &s->hash, &s->tokens, s->computed, &saved);
	mx_status st = saved ? MX_OK : c->state.save(c, s, block);
	if (st != MX_OK) {
		mx_error("engine", "%s: the state after %u tokens cannot be saved: %s", c->info.model,
		         s->computed, mx_status_str(st));
		forget(c, block);
	} else {
		cover(c, s, block, s->computed / c->info.page_tokens);
	}
	s->snapshotted = s->computed;
}

/* Returns the next position after `computed` where the state is to be saved, not counting the
 * prompt's end; UINT32_MAX = none. */
static uint32_t next_point(const struct mx_core *c, const struct mx_seq *s, uint32_t computed)
{
	uint32_t every = c->info.snapshot_every, next = UINT32_MAX;
	if (!c->snapshots || s->pages.private)
		return next;
	if (every)
		next = computed - computed % every + every;
	return s->branch > computed && s->branch < next ? s->branch : next;
}

uint32_t mx_prefix_chunk(const struct mx_core *c, const struct mx_seq *s, uint32_t n)
{
	uint32_t from = s->computed + s->in_step, left = next_point(c, s, from) - from;
	return n < left ? n : left;
}

void mx_prefix_commit(struct mx_core *c, struct mx_seq *s)
{
	mx_pages_publish(c->pages, &s->pages, &s->tokens, s->computed);
	if (!c->snapshots || s->pages.private)
		return;
	mx_snapshots_mark(c->snapshots, &s->hash, &s->tokens, s->computed);
	if (s->computed != s->n_prompt && s->computed != next_point(c, s, s->computed - 1))
		return;
	if (!s->save_pending)
		c->to_save[c->n_to_save++] = s;
	s->save_pending = true;
}

void mx_prefix_save_snapshots(struct mx_core *c)
{
	for (uint32_t i = 0; i < c->n_to_save; i++) {
		save(c, c->to_save[i]);
		c->to_save[i]->save_pending = false;
	}
	c->n_to_save = 0;
}

void mx_prefix_release(struct mx_core *c, struct mx_seq *s)
{
	save(c, s);
	for (uint32_t i = 0; s->save_pending && i < c->n_to_save; i++)
		if (c->to_save[i] == s) {
			c->to_save[i] = c->to_save[--c->n_to_save];
			s->save_pending = false;
		}
	mx_pages_release(c->pages, &s->pages, &s->tokens, s->computed);
}

void mx_prefix_drop(struct mx_core *c)
{
	for (uint32_t i = 0; i < c->info.n_snapshots; i++)
		uncover(c, i);
	mx_pages_drop(c->pages);
	if (c->snapshots)
		mx_snapshots_drop(c->snapshots);
}

void mx_prefix_usage(const struct mx_core *c, struct mx_engine_usage *out)
{
	out->prefix_queries = GET(c->queries);
	out->prefix_hits = GET(c->hits);
	for (int i = 0; i < MX_LOOKUP_N; i++)
		out->prefix_lookups[i] = GET(c->lookups[i]);
	if (c->snapshots)
		mx_snapshots_usage(c->snapshots, out);
}
