/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/prefix.h"

/* Makes the salt of long sequences, see mx_engine_info.long_from; any number would do. */
#define LONG_SALT 0x9e3779b97f4a7c15ull

/* Has the prefix cache tell its events. */
static mx_status start_events(struct mx_core *c)
{
	uint32_t n = c->info.n_snapshots;
	mx_status st = mx_kv_events_create(c->info.n_pages, c->info.page_tokens, &c->kv_events);
	if (st == MX_OK && n) {
		c->covers = mx_calloc(n, sizeof *c->covers);
		for (uint32_t i = 0; c->covers && i < n; i++)
			c->covers[i].page = MX_NO_PAGE;
		st = c->covers ? MX_OK : MX_E_NOMEM;
	}
	if (st == MX_OK)
		mx_pages_tell(c->pages, c->kv_events, n > 0);
	return st;
}

mx_status mx_core_init(struct mx_core *c, const struct mx_engine_ops *ops,
                       const struct mx_state_ops *state, const struct mx_engine_info *info)
{
	*c = (struct mx_core){.engine.ops = ops, .info = *info, .state = *state};
	if (info->slot_bytes && !info->n_snapshots)
		c->info.prefix_cache = false;
	if (!info->slot_bytes || !c->info.prefix_cache)
		c->info.n_snapshots = c->info.snapshot_every = 0;
	/* Pages of 0 bytes have nothing to share. */
	bool share = c->info.prefix_cache && info->page_bytes;
	mx_status st = mx_pages_create(info->n_pages, info->page_tokens, share, &c->pages);
	if (st == MX_OK && c->info.n_snapshots)
		st = mx_snapshots_create(c->info.n_snapshots, &c->snapshots);
	c->info.kv_events = info->kv_events && share;
	if (st == MX_OK && c->info.kv_events)
		st = start_events(c);
	c->free_slots = mx_calloc(info->max_sequences, sizeof *c->free_slots);
	c->to_save = mx_calloc(info->max_sequences, sizeof *c->to_save);
	c->items = mx_calloc(info->max_sequences, sizeof *c->items);
	if (st == MX_OK && (!c->free_slots || !c->to_save || !c->items))
		st = MX_E_NOMEM;
	if (st != MX_OK) {
		mx_core_fini(c);
		return st;
	}
	for (uint32_t i = 0; i < info->max_sequences; i++)
		c->free_slots[i] = info->max_sequences - 1 - i;
	atomic_store(&c->n_free_slots, info->max_sequences);
	return MX_OK;
}

void mx_core_fini(struct mx_core *c)
{
	mx_pages_destroy(c->pages);
	mx_snapshots_destroy(c->snapshots);
	mx_kv_events_destroy(c->kv_events);
	mx_draft_source_destroy(c->drafts);
	free(c->covers);
	free(c->free_slots);
	free(c->to_save);
	free(c->items);
	c->pages = NULL;
	c->snapshots = NULL;
	c->kv_events = NULL;
	c->drafts = NULL;
	c->covers = NULL;
	c->free_slots = NULL;
	c->to_save = NULL;
	c->items = NULL;
}

static struct mx_core *core_of(struct mx_engine *e)
{
	return (struct mx_core *)e;
}

void mx_core_info(const struct mx_engine *e, struct mx_engine_info *out)
{
	*out = ((const struct mx_core *)e)->info;
}

struct mx_kv_events *mx_core_kv_events(const struct mx_engine *e)
{
	return ((const struct mx_core *)e)->kv_events;
}

static uint32_t free_slots(const struct mx_core *c)
{
	return atomic_load_explicit(&c->n_free_slots, memory_order_relaxed);
}

void mx_core_usage(const struct mx_engine *e, struct mx_engine_usage *out)
{
	const struct mx_core *c = (const struct mx_core *)e;
	*out = (struct mx_engine_usage){0};
	mx_pages_usage(c->pages, out);
	mx_prefix_usage(c, out);
	out->slots_used = c->info.max_sequences - free_slots(c);
}

/* ---- open and close ---- */

/* True if all ids are in the vocabulary; others would index past the logits. */
static bool ids_valid(const struct mx_core *c, const int32_t *prompt, uint32_t n,
                      const struct mx_seq_params *params)
{
	for (uint32_t i = 0; i < n; i++)
		if (prompt[i] < 0 || (uint32_t)prompt[i] >= c->info.vocab)
			return false;
	for (size_t i = 0; i < params->n_prediction; i++)
		if (params->prediction[i] < 0 || (uint32_t)params->prediction[i] >= c->info.vocab)
			return false;
	for (size_t i = 0; i < params->sampling.n_bias; i++) {
		int32_t t = params->sampling.bias[i].token;
		if (t < 0 || (uint32_t)t >= c->info.vocab)
			return false;
	}
	return true;
}

/* True if a sequence of n prompt tokens may be pooled as asked for. */
static bool pooling_valid(const struct mx_core *c, uint32_t n, const struct mx_seq_params *params)
{
	if (params->pooling == MX_POOLING_NONE)
		return true;
	if (params->max_len != n)
		return false;
	if (params->pooling != MX_POOLING_TOKENS)
		return true;
	for (size_t i = 0; i < params->n_pooled && i < MX_MAX_POOLED; i++)
		if (params->pooled[i] < 0 || (uint32_t)params->pooled[i] >= c->info.vocab)
			return false;
	return params->n_pooled >= 1 && params->n_pooled <= MX_MAX_POOLED;
}

static mx_status copy_params(struct mx_core *c, struct mx_seq *s,
                             const struct mx_seq_params *params)
{
	s->params = *params;
	s->params.cache_salt = NULL;
	s->params.stop = NULL;
	s->params.n_stop = 0;
	s->params.pooled = NULL;
	s->params.sampling.bias = NULL;
	s->params.prediction = NULL; /* the source of drafts has a copy */
	if (params->sampling.n_bias) {
		struct mx_logit_bias *bias = mx_calloc(params->sampling.n_bias, sizeof *bias);
		if (!bias)
			return MX_E_NOMEM;
		memcpy(bias, params->sampling.bias, params->sampling.n_bias * sizeof *bias);
		s->params.sampling.bias = bias;
	}
	if (params->constraint) {
		s->mask.allowed = mx_calloc(mx_mask_words(c->info.vocab), sizeof *s->mask.allowed);
		if (!s->mask.allowed)
			return MX_E_NOMEM;
	}
	if (params->n_stop) {
		int32_t *stop = mx_calloc(params->n_stop, sizeof *stop);
		if (!stop)
			return MX_E_NOMEM;
		for (size_t i = 0; i < params->n_stop; i++) /* other ids are never sampled */
			if (params->stop[i] >= 0 && (uint32_t)params->stop[i] < c->info.vocab)
				stop[s->params.n_stop++] = params->stop[i];
		s->params.stop = stop;
	}
	if (params->pooling == MX_POOLING_TOKENS) {
		int32_t *pooled = mx_calloc(params->n_pooled, sizeof *pooled);
		if (!pooled)
			return MX_E_NOMEM;
		memcpy(pooled, params->pooled, params->n_pooled * sizeof *pooled);
		s->params.pooled = pooled;
	}
	s->pages.private = params->no_prefix_cache || params->pooling == MX_POOLING_MEAN;
	mx_pages_salt(c->pages, params->cache_salt, s->pages.salt);
	if (c->info.long_from && params->max_len > c->info.long_from)
		s->pages.salt[1] ^= LONG_SALT;
	if (c->snapshots)
		mx_snapshots_hash(c->snapshots, s->pages.salt, &s->hash);
	const struct mx_sampling *g = &params->sampling;
	s->counting =
		g->repetition_penalty != 1 || g->presence_penalty != 0 || g->frequency_penalty != 0;
	return MX_OK;
}

static void free_seq(struct mx_seq *s)
{
	mx_draft_close(&s->draft);
	free((void *)s->params.sampling.bias);
	free((void *)s->params.stop);
	free((void *)s->params.pooled);
	mx_counts_destroy(&s->counts);
	mx_pooled_destroy(&s->pooled);
	free(s->mask.allowed);
	free(s->pages.ids);
	free(s->tokens.output);
	free(s);
}

mx_status mx_core_open(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                       const struct mx_seq_params *params, struct mx_seq **out)
{
	struct mx_core *c = core_of(e);
	if (!n || n > params->max_len || params->max_len > c->info.max_context ||
	    !ids_valid(c, prompt, n, params) || !pooling_valid(c, n, params))
		return MX_E_INVALID;
	struct mx_seq *s = mx_calloc(1, sizeof *s);
	if (!s)
		return MX_E_NOMEM;
	s->slot = MX_NO_SLOT;
	s->lookup = MX_LOOKUP_N;
	s->pages.cap = (params->max_len - 1) / c->info.page_tokens + 1;
	s->pages.ids = mx_calloc(s->pages.cap, sizeof *s->pages.ids);
	s->tokens = (struct mx_seq_tokens){prompt, n, NULL};
	if (params->max_len > n)
		s->tokens.output = mx_calloc(params->max_len - n, sizeof *s->tokens.output);
	if (!s->pages.ids || (params->max_len > n && !s->tokens.output) ||
	    copy_params(c, s, params) != MX_OK)
		goto fail;
	if (mx_pooled_create(&s->params, c->info.width, &s->pooled) != MX_OK)
		goto fail;
	if (s->counting) {
		uint32_t distinct = params->max_len < c->info.vocab ? params->max_len : c->info.vocab;
		if (mx_counts_create(distinct, &s->counts) != MX_OK)
			goto fail;
		for (uint32_t i = 0; i < n; i++)
			mx_counts_add(&s->counts, prompt[i], true);
	}
	s->n = s->n_prompt = n;
	if (c->drafts && !params->no_speculation && params->max_len > n &&
	    mx_draft_open(c->drafts, s, params, &s->draft) != MX_OK)
		goto fail;
	*out = s;
	return MX_OK;
fail:
	free_seq(s);
	return MX_E_NOMEM;
}

void mx_core_close(struct mx_engine *e, struct mx_seq *s)
{
	if (!s)
		return;
	mx_core_release(e, s);
	free_seq(s);
}

/* ---- memory ---- */

mx_status mx_core_attach(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed)
{
	struct mx_core *c = core_of(e);
	if (s->slot != MX_NO_SLOT)
		return MX_E_INVALID;
	uint32_t n = free_slots(c);
	if (!n)
		return MX_E_NOMEM;
	s->slot = c->free_slots[n - 1];
	mx_status st = mx_prefix_attach(c, s);
	if (st != MX_OK) {
		s->slot = MX_NO_SLOT;
		return st;
	}
	atomic_store_explicit(&c->n_free_slots, n - 1, memory_order_relaxed);
	*out_computed = s->computed;
	s->reserved = 0;
	return MX_OK;
}

/* Reserves for whole pages of tokens, so that the mixers' extent is asked once a page. */
mx_status mx_core_reserve(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens)
{
	struct mx_core *c = core_of(e);
	uint32_t page = c->info.page_tokens, max_len = s->params.max_len, first, end;
	if (s->slot == MX_NO_SLOT)
		return MX_E_INVALID;
	if (n_tokens > max_len)
		return MX_E_RANGE;
	if (n_tokens <= s->reserved)
		return MX_OK;
	uint64_t full = ((uint64_t)n_tokens + page - 1) / page * page;
	uint32_t n = full < max_len ? (uint32_t)full : max_len;
	c->state.extent(c, n, max_len, &first, &end);
	mx_status st = mx_pages_reserve(c->pages, &s->pages, end);
	if (st == MX_OK)
		s->reserved = n;
	return st;
}

uint32_t mx_core_chunk(const struct mx_engine *e, const struct mx_seq *s, uint32_t n)
{
	return mx_prefix_chunk((const struct mx_core *)e, s, n);
}

void mx_core_release(struct mx_engine *e, struct mx_seq *s)
{
	struct mx_core *c = core_of(e);
	if (s->slot == MX_NO_SLOT)
		return;
	mx_draft_release(&s->draft);
	mx_prefix_release(c, s);
	s->computed = s->reserved = 0;
	uint32_t n = free_slots(c);
	c->free_slots[n] = s->slot;
	atomic_store_explicit(&c->n_free_slots, n + 1, memory_order_relaxed);
	s->slot = MX_NO_SLOT;
}

void mx_core_propose(struct mx_engine *e, struct mx_step_item *items, uint32_t n)
{
	struct mx_core *c = core_of(e);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t most = items[i].n_draft < c->info.max_draft ? items[i].n_draft : c->info.max_draft;
		items[i].n_draft = most;
	}
	if (c->drafts)
		mx_draft_propose(c->drafts, items, n);
}

void mx_core_save_snapshots(struct mx_engine *e)
{
	mx_prefix_save_snapshots(core_of(e));
}

void mx_core_drop_cache(struct mx_engine *e)
{
	struct mx_core *c = core_of(e);
	mx_prefix_drop(c);
	if (c->drafts)
		c->drafts->ops->drop_cache(c->drafts);
}

const struct mx_seq_tokens *mx_core_tokens(const struct mx_seq *s, uint32_t *out_n,
                                           uint32_t *out_computed)
{
	*out_n = s->n;
	*out_computed = s->computed;
	return &s->tokens;
}

/* ---- steps ---- */

mx_status mx_core_step(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
                       struct mx_step_result *results, struct mx_step_times *out_times)
{
	mx_status st = e->ops->begin(e, items, n);
	return st == MX_OK ? e->ops->finish(e, results, out_times) : st;
}

/* True if the item's drafts keep the rules of engine.h. */
static bool drafts_valid(const struct mx_core *c, const struct mx_step_item *item)
{
	const struct mx_seq *s = item->seq;
	for (uint32_t i = 0; i < item->n_draft && i < c->info.max_draft; i++) {
		if (item->draft[i] < 0 || (uint32_t)item->draft[i] >= c->info.vocab)
			return false;
		if (item->parent && item->parent[i] >= i && item->parent[i] != MX_NO_DRAFT)
			return false;
	}
	return (!item->parent || c->info.trees) && item->n_draft <= c->info.max_draft && item->n == 1 &&
	       item->sample && (uint64_t)s->n + item->n_draft < s->params.max_len &&
	       (uint64_t)s->computed + 1 + item->n_draft <= s->reserved;
}

mx_status mx_core_begin_step(struct mx_core *c, const struct mx_step_item *items, uint32_t n)
{
	if (c->stepping)
		return MX_E_INVALID;
	uint64_t rows = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_seq *s = items[i].seq;
		uint64_t end = (uint64_t)s->computed + items[i].n;
		if (!items[i].n || s->slot == MX_NO_SLOT || end > s->n || end > s->reserved)
			return MX_E_INVALID;
		if (items[i].sample && (end != s->n || s->n >= s->params.max_len))
			return MX_E_INVALID;
		if (items[i].n_draft && !drafts_valid(c, &items[i]))
			return MX_E_INVALID;
		if (items[i].tentative && (items[i].n > c->info.max_tentative || items[i].n_draft))
			return MX_E_INVALID;
		rows += items[i].n + items[i].n_draft;
	}
	if (n > c->info.max_sequences || rows > c->info.step_tokens)
		return MX_E_INVALID;
	for (uint32_t i = 0; i < n; i++) {
		mx_prefix_count(c, items[i].seq);
		items[i].seq->in_step = items[i].n;
		c->items[i] = items[i];
	}
	c->n_items = n;
	c->stepping = true;
	return MX_OK;
}

mx_status mx_core_finish_step(struct mx_core *c, struct mx_step_result *results)
{
	if (!c->stepping)
		return MX_E_INVALID;
	c->stepping = false;
	for (uint32_t i = 0; i < c->n_items; i++) {
		results[i].status = MX_OK;
		results[i].cause = NULL;
		results[i].deferred = results[i].sampled = results[i].ended = false;
		results[i].n_accepted = 0;
		results[i].accepted = NULL;
		results[i].prompt = NULL;
		results[i].prompt_first = results[i].prompt_n = 0;
		results[i].vector = NULL;
		results[i].n_vector = 0;
	}
	return MX_OK;
}

void mx_core_commit(struct mx_core *c, struct mx_seq *s, uint32_t n)
{
	uint32_t page = c->info.page_tokens, before = s->computed / page, first, end;
	s->computed += n;
	s->in_step = 0;
	mx_prefix_commit(c, s);
	if (s->computed / page == before)
		return;
	c->state.extent(c, s->computed, s->params.max_len, &first, &end);
	mx_pages_let_go(c->pages, &s->pages, first / page);
}

void mx_core_append(struct mx_seq *s, int32_t token)
{
	s->tokens.output[s->n++ - s->n_prompt] = token;
	if (s->counting)
		mx_counts_add(&s->counts, token, false);
}

void mx_core_take_back(struct mx_seq *s, uint32_t n)
{
	while (s->n > n) {
		s->n--;
		if (s->counting)
			mx_counts_take_back(&s->counts, mx_seq_token(&s->tokens, s->n));
	}
}

void mx_core_commit_none(struct mx_seq *s)
{
	s->in_step = 0;
}

uint32_t mx_core_accepts(const struct mx_step_item *item, uint32_t last, int32_t token)
{
	const struct mx_seq_params *p = &item->seq->params;
	uint32_t i = 0;
	while (i < item->n_draft && (mx_core_parent(item, i) != last || item->draft[i] != token))
		i++;
	for (size_t k = 0; k < p->n_ends; k++)
		if (p->ends[k] == token)
			return MX_NO_DRAFT;
	return i < item->n_draft ? i : MX_NO_DRAFT;
}
