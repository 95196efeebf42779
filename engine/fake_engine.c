/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's state is a 64-bit digest for every token of all tokens up to it. The digests are in
 * the pages that the pool handed out; the last token's is also in the slot. A digest is computed
 * from the one before it, which is read from the pages, the slot, or both; tokens are sampled from
 * the last digest. So a page or a slot that is shared, evicted, saved or reused wrongly changes the
 * output.
 *
 * With `lookahead` the fake is like a long convolution: token 2^k writes a value to the place of
 * each token from 3/2 2^k up to 3 * 2^k, and the digest of that token includes the value. Of the
 * past it then needs the last digest only.
 */
#include "engine/fake_engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/core.h"

struct slot {
	uint64_t digest, before; /* after n tokens, after n - 1 */
	uint32_t n;
};

struct fake {
	struct mx_core core;
	struct mx_fake_config config;
	uint64_t *state;           /* [n_pages, page_tokens] */
	struct slot *slots;        /* [max_sequences] */
	struct slot *saved;        /* [n_snapshots] */
	uint64_t *saved_pages;     /* [n_snapshots, page_tokens] */
	struct mx_logprob *prompt; /* [step_tokens] results of the last step */
	struct mx_logprob *drafts; /* [max_sequences, MX_MAX_DRAFT + 1] likewise, of tokens sampled */
	uint64_t begin_ns;
};

/* The finalizer of MurmurHash3: every input bit moves every output bit. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

static uint64_t *state_at(struct fake *f, const struct mx_seq *s, uint32_t pos)
{
	uint32_t pt = f->config.page_tokens;
	return &f->state[(size_t)s->pages.ids[pos / pt] * pt + pos % pt];
}

/* ---- look-ahead pages ---- */

/* Returns the largest power of two that is at most n >= 1. */
static uint32_t power(uint32_t n)
{
	uint32_t p = 1;
	while (n / 2 >= p)
		p *= 2;
	return p;
}

static void find_extent(const struct mx_core *c, uint32_t n, uint32_t max_len, uint32_t *out_first,
                        uint32_t *out_end)
{
	bool lookahead = ((const struct fake *)c)->config.lookahead;
	uint64_t end = lookahead && n > 1 ? 3 * (uint64_t)power(n - 1) : n;
	*out_first = lookahead ? n - 1 : 0;
	*out_end = end < max_len ? (uint32_t)end : max_len;
}

/* Returns the value that a token at 2^k writes for the token at pos. */
static uint64_t value_for(uint64_t digest, uint32_t pos)
{
	return mix(digest + pos);
}

/* Writes the values of token i for later tokens, if i is a power of two. */
static void write_ahead(struct fake *f, const struct mx_seq *s, uint32_t i, uint64_t digest)
{
	uint64_t end = 3 * (uint64_t)i;
	if (!i || i != power(i))
		return;
	for (uint64_t pos = (end + 1) / 2; pos < end && pos < s->params.max_len; pos++)
		*state_at(f, s, (uint32_t)pos) = value_for(digest, (uint32_t)pos);
}

/* Rebuilds the look-ahead pages after n tokens: they are never shared. */
static void rebuild_ahead(struct fake *f, const struct mx_seq *s, uint32_t n)
{
	uint32_t first, end;
	find_extent(&f->core, n, s->params.max_len, &first, &end);
	for (uint32_t pos = n > 2 ? n : 2; pos < end; pos++)
		*state_at(f, s, pos) = value_for(*state_at(f, s, power(2 * pos / 3)), pos);
}

/* ---- the slot ---- */

static void clear_slot(struct mx_core *c, const struct mx_seq *s)
{
	((struct fake *)c)->slots[s->slot] = (struct slot){0};
}

static mx_status save_slot(struct mx_core *c, const struct mx_seq *s, uint32_t block)
{
	struct fake *f = (struct fake *)c;
	uint32_t pt = f->config.page_tokens;
	f->saved[block] = f->slots[s->slot];
	memcpy(f->saved_pages + (size_t)block * pt, state_at(f, s, (s->computed - 1) / pt * pt),
	       pt * sizeof *f->state);
	return MX_OK;
}

static mx_status load_slot(struct mx_core *c, const struct mx_seq *s, uint32_t block)
{
	struct fake *f = (struct fake *)c;
	uint32_t pt = f->config.page_tokens;
	struct slot *to = &f->slots[s->slot], from = f->saved[block];
	*to = from;
	if (s->computed + 1 == from.n)
		*to = (struct slot){from.before, ~from.before, from.n - 1};
	memcpy(state_at(f, s, (s->pages.n - 1) * pt), f->saved_pages + (size_t)block * pt,
	       pt * sizeof *f->state);
	return MX_OK;
}

static const struct mx_state_ops state_ops = {find_extent, clear_slot, save_slot, load_slot};

/* Returns the digest of the first n tokens; a wrong one if page and slot disagree. */
static uint64_t digest_of(struct fake *f, const struct mx_seq *s, uint32_t n)
{
	const struct slot *slot = &f->slots[s->slot];
	uint64_t paged = n ? *state_at(f, s, n - 1) : 0;
	if (f->config.state == MX_FAKE_PAGES)
		return paged;
	if (slot->n != n || (f->config.state == MX_FAKE_HYBRID && paged != slot->digest))
		return mix(slot->digest ^ ~paged);
	return slot->digest;
}

/* ---- sampling ---- */

static bool is_banned(const struct mx_seq *s, int32_t token)
{
	const uint32_t *allowed = s->mask.allowed;
	if (allowed)
		return !(allowed[token / 32] >> token % 32 & 1);
	if (s->n - s->n_prompt >= s->params.min_tokens)
		return false;
	for (size_t i = 0; i < s->params.n_stop; i++)
		if (s->params.stop[i] == token)
			return true;
	return false;
}

/* Returns the next token, from the digest of all tokens before it. Draws again while the token is
 * banned, but 64 times at most: all ids may be banned. Then it takes the next one that the
 * sequence's constraint allows. */
static int32_t draw(const struct fake *f, const struct mx_seq *s, uint64_t digest)
{
	uint64_t h = digest;
	if (s->params.sampling.temperature > 0)
		h = mix(h ^ s->params.sampling.seed * 0x9e3779b97f4a7c15u);
	int32_t token = 0;
	uint32_t n_output = s->n - s->n_prompt;
	if (f->config.script)
		return n_output < f->config.n_script ? f->config.script[n_output] : f->config.eos;
	if (f->config.echo && s->n >= f->config.echo && h % 8) {
		token = mx_seq_token(&s->tokens, s->n - f->config.echo);
		if (!is_banned(s, token))
			return token;
	}
	for (int tries = 0; tries < 64; tries++) {
		h = mix(h + 1);
		bool eos = f->config.eos >= 0 && f->config.eos_one_in && h % f->config.eos_one_in == 0;
		token = eos ? f->config.eos : (int32_t)((h >> 32) % f->config.vocab);
		if (!is_banned(s, token))
			return token;
	}
	while (s->mask.allowed && is_banned(s, token))
		token = (int32_t)(((uint32_t)token + 1) % f->config.vocab);
	return token;
}

/* Fills *out with an invented log-probability: always the same, and sorted. */
static void fill_logprob(const struct fake *f, uint64_t digest, int32_t token, int32_t n_top,
                         struct mx_logprob *out)
{
	uint64_t h = mix(digest ^ 0x5bd1e995u);
	*out = (struct mx_logprob){.token = token, .rank = 1, .n_top = (uint32_t)n_top};
	out->logprob = -(float)(h % 1024) / 1024.0f;
	for (int32_t i = 0; i < n_top; i++) {
		out->top[i].token = (int32_t)(((uint32_t)token + (uint32_t)i) % f->config.vocab);
		out->top[i].logprob = out->logprob - (float)i;
	}
}

static uint32_t clamp_top(int32_t n, uint32_t vocab)
{
	uint32_t most = vocab < MX_MAX_TOP_LOGPROBS ? vocab : MX_MAX_TOP_LOGPROBS;
	return (uint32_t)n < most ? (uint32_t)n : most;
}

static void report_prompt(struct fake *f, struct mx_seq *s, uint32_t first, uint32_t n,
                          struct mx_logprob *out, struct mx_step_result *r)
{
	int32_t n_top = (int32_t)clamp_top(s->params.prompt_logprobs, f->config.vocab);
	r->prompt = out;
	for (uint32_t row = first; row < first + n && row + 1 < s->n_prompt; row++) {
		if (row < s->prompt_reported)
			continue;
		if (!r->prompt_n)
			r->prompt_first = row + 1;
		fill_logprob(f, *state_at(f, s, row), mx_seq_token(&s->tokens, row + 1), n_top,
		             &out[r->prompt_n++]);
		s->prompt_reported = row + 1;
	}
}

/* Writes the hidden state of a token: made of its digest. */
static void hidden_state(uint64_t digest, float *out)
{
	for (unsigned i = 0; i < MX_FAKE_WIDTH; i++)
		out[i] = (float)(mix(digest + i) >> 40) / 0x1p23f - 1;
}

/* Adds the n tokens that the step computed to what is pooled. */
static void pool(struct fake *f, struct mx_seq *s, uint32_t first, uint32_t n,
                 struct mx_step_result *r)
{
	struct mx_pooled *p = &s->pooled;
	float row[MX_FAKE_WIDTH];
	for (uint32_t i = mx_pooled_from(p, first, n, s->n_prompt); i < first + n; i++) {
		uint64_t digest = *state_at(f, s, i);
		struct mx_logprob lp;
		hidden_state(digest, row);
		if (p->kind != MX_POOLING_TOKENS)
			mx_pooled_add(p, i, row);
		for (uint32_t k = 0; p->kind == MX_POOLING_TOKENS && k < p->n; k++) {
			fill_logprob(f, digest ^ (uint64_t)s->params.pooled[k], s->params.pooled[k], 0, &lp);
			p->vector[k] = lp.logprob;
		}
	}
	if (first + n == s->n_prompt) {
		r->vector = mx_pooled_end(p);
		r->n_vector = p->n;
	}
}

/* Computes the token at position i; returns its digest. */
static uint64_t compute_token(struct fake *f, const struct mx_seq *s, uint32_t i, uint64_t before)
{
	uint64_t digest = before;
	if (f->config.lookahead && i >= 2)
		digest ^= *state_at(f, s, i);
	digest = mix(digest ^ mix((uint64_t)(uint32_t)mx_seq_token(&s->tokens, i) + 1));
	*state_at(f, s, i) = digest;
	if (f->config.lookahead)
		write_ahead(f, s, i, digest);
	f->slots[s->slot] = (struct slot){digest, before, i + 1};
	return digest;
}

/* Samples the next token, from the digest of all tokens before it. False: none can be. */
static bool sample(struct fake *f, struct mx_seq *s, uint64_t digest, struct mx_logprob *logprob,
                   struct mx_step_result *r)
{
	if (s->mask.allowed) {
		mx_mask_make(s, f->config.vocab);
		r->status = s->mask.status;
		r->cause = s->mask.cause;
		r->ended = s->mask.complete;
		if (r->status != MX_OK || r->ended)
			return false;
	}
	r->token = draw(f, s, digest);
	if (s->params.logprobs >= 0)
		fill_logprob(f, digest, r->token, (int32_t)clamp_top(s->params.logprobs, f->config.vocab),
		             logprob);
	return true;
}

/* Samples behind the item's tokens, and behind its drafts as far as they are kept. */
static void sample_item(struct fake *f, const struct mx_step_item *item, uint64_t digest,
                        struct mx_step_result *r)
{
	struct mx_seq *s = item->seq;
	struct mx_logprob *logprobs = f->drafts + s->slot * (MX_MAX_DRAFT + 1);
	r->sampled = sample(f, s, digest, logprobs, r);
	uint32_t draft = r->sampled ? mx_core_accepts(item, MX_NO_DRAFT, r->token) : MX_NO_DRAFT;
	while (draft != MX_NO_DRAFT) {
		struct slot kept = f->slots[s->slot];
		mx_core_append(s, r->token);
		digest = compute_token(f, s, s->n - 1, digest);
		struct mx_step_result next = {0};
		if (!sample(f, s, digest, logprobs + r->n_accepted + 1, &next)) {
			/* the next step meets the same, and says so */
			f->slots[s->slot] = kept;
			break;
		}
		r->token = next.token;
		r->path[r->n_accepted++] = draft;
		draft = mx_core_accepts(item, draft, r->token);
	}
	r->accepted = logprobs;
	r->logprob = logprobs[r->n_accepted];
}

static void run_item(struct fake *f, const struct mx_step_item *item, struct mx_logprob *prompt,
                     struct mx_step_result *r)
{
	struct mx_seq *s = item->seq;
	uint32_t first = s->computed;
	uint64_t digest = digest_of(f, s, first);
	if (f->config.lookahead && first &&
	    s->snapshotted == first) /* it may have been attached there */
		rebuild_ahead(f, s, first);
	for (uint32_t i = first; i < first + item->n; i++)
		digest = compute_token(f, s, i, digest);
	if (s->params.prompt_logprobs >= 0)
		report_prompt(f, s, first, item->n, prompt, r);
	if (s->params.pooling != MX_POOLING_NONE)
		pool(f, s, first, item->n, r);
	if (item->sample)
		sample_item(f, item, digest, r);
	if (r->status != MX_OK)
		return;
	mx_core_commit(&f->core, s, item->n + r->n_accepted);
	if (r->sampled && s->n == s->computed)
		mx_core_append(s, r->token);
}

static bool resumes(const struct fake *f, const struct mx_seq *s)
{
	return s->resumes && s->resume_progress < f->config.resume_steps;
}

/* True if the step has no sequence that could go on. */
static bool all_resume(const struct fake *f)
{
	for (uint32_t i = 0; i < f->core.n_items; i++)
		if (!resumes(f, f->core.items[i].seq))
			return false;
	return true;
}

/* Sleeps until `ns` after the time `start`. */
static void pretend(uint64_t start, uint64_t ns)
{
	uint64_t gone = mx_now_ns() - start;
	if (gone >= ns)
		return;
	struct timespec t = {(time_t)((ns - gone) / MX_NS_PER_S), (long)((ns - gone) % MX_NS_PER_S)};
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static mx_status fake_attach(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed)
{
	const struct fake *f = (const struct fake *)e;
	uint64_t begin = mx_now_ns();
	mx_status st = mx_core_attach(e, s, out_computed);
	if (st == MX_OK && *out_computed)
		pretend(begin, f->config.ns_per_hit);
	return st;
}

static mx_status fake_begin(struct mx_engine *e, const struct mx_step_item *items, uint32_t n)
{
	struct fake *f = (struct fake *)e;
	mx_status st = mx_core_begin_step(&f->core, items, n);
	if (st == MX_OK)
		f->begin_ns = mx_now_ns();
	return st;
}

static mx_status fake_finish(struct mx_engine *e, struct mx_step_result *results,
                             struct mx_step_times *out_times)
{
	struct fake *f = (struct fake *)e;
	mx_status st = mx_core_finish_step(&f->core, results);
	if (st != MX_OK)
		return st;
	uint64_t now = mx_now_ns();
	uint32_t rows = 0;
	bool alone = all_resume(f);
	for (uint32_t i = 0; i < f->core.n_items; i++) {
		const struct mx_step_item *item = &f->core.items[i];
		if (resumes(f, item->seq) && !alone) {
			item->seq->resume_progress++;
			item->seq->in_step = 0;
			results[i].deferred = true;
			continue;
		}
		item->seq->resumes = false;
		run_item(f, item, f->prompt + rows, &results[i]);
		rows += item->n + item->n_draft;
	}
	pretend(f->config.overlaps ? f->begin_ns : now,
	        f->config.ns_per_step + f->config.ns_per_token * rows);
	*out_times = (struct mx_step_times){.forward = mx_now_ns() - now};
	return MX_OK;
}

static void fake_destroy(struct mx_engine *e)
{
	struct fake *f = (struct fake *)e;
	if (!f)
		return;
	mx_core_fini(&f->core);
	free(f->state);
	free(f->slots);
	free(f->saved);
	free(f->saved_pages);
	free(f->prompt);
	free(f->drafts);
	free(f);
}

static bool fake_rank(const struct mx_engine *e, uint32_t i, struct mx_engine_rank *out)
{
	(void)e, (void)i, (void)out;
	return false;
}

static const struct mx_engine_ops fake_ops = {
	.info = mx_core_info,
	.usage = mx_core_usage,
	.open = mx_core_open,
	.attach = fake_attach,
	.reserve = mx_core_reserve,
	.chunk = mx_core_chunk,
	.propose = mx_core_propose,
	.release = mx_core_release,
	.close = mx_core_close,
	.step = mx_core_step,
	.begin = fake_begin,
	.finish = fake_finish,
	.save_snapshots = mx_core_save_snapshots,
	.tokens = mx_core_tokens,
	.drop_cache = mx_core_drop_cache,
	.kv_events = mx_core_kv_events,
	.rank = fake_rank,
	.destroy = fake_destroy,
};

static void fill_info(const struct mx_fake_config *config, struct mx_engine_info *out)
{
	*out = (struct mx_engine_info){
		.vocab = config->vocab,
		.width = MX_FAKE_WIDTH,
		.max_context = config->max_context,
		.max_sequences = config->max_sequences,
		.step_tokens = config->step_tokens,
		.free_rows = config->free_rows,
		.page_tokens = config->page_tokens,
		.n_pages = config->n_pages,
		.overlaps = config->overlaps,
		.prefix_cache = config->prefix_cache && !config->prefix_unsupported,
		.prefix_unsupported = config->prefix_unsupported,
		.n_snapshots = config->n_snapshots,
		.snapshot_every = config->snapshot_every,
		.kv_events = config->kv_events,
		.max_draft = config->max_draft,
		.trees = config->trees,
	};
	if (config->state != MX_FAKE_SLOT)
		out->page_bytes = config->page_tokens * sizeof(uint64_t);
	if (config->state != MX_FAKE_PAGES) {
		out->slot_bytes = sizeof(struct slot);
		out->snapshot_bytes = out->slot_bytes + out->page_bytes;
	}
	strncpy(out->model, config->name, sizeof out->model - 1);
}

mx_status mx_fake_engine_create(const struct mx_fake_config *config, struct mx_engine **out)
{
	if (!config->vocab || config->vocab > INT32_MAX || !config->max_context ||
	    !config->max_sequences || !config->step_tokens || !config->page_tokens ||
	    (config->lookahead && config->state == MX_FAKE_SLOT) ||
	    (config->overlaps && config->resume_steps) || config->max_draft > MX_MAX_DRAFT)
		return MX_E_INVALID;
	struct fake *f = mx_calloc(1, sizeof *f);
	if (!f)
		return MX_E_NOMEM;
	f->config = *config;
	struct mx_engine_info info;
	fill_info(config, &info);
	mx_status st = mx_core_init(&f->core, &fake_ops, &state_ops, &info);
	if (st != MX_OK) {
		free(f);
		return st;
	}
	f->state = mx_calloc(config->n_pages, config->page_tokens * sizeof *f->state);
	f->slots = mx_calloc(config->max_sequences, sizeof *f->slots);
	f->saved = mx_calloc(config->n_snapshots + 1, sizeof *f->saved);
	f->saved_pages =
		mx_calloc(config->n_snapshots + 1, config->page_tokens * sizeof *f->saved_pages);
	f->prompt = mx_calloc(config->step_tokens, sizeof *f->prompt);
	f->drafts = mx_calloc(config->max_sequences, (MX_MAX_DRAFT + 1) * sizeof *f->drafts);
	if (st == MX_OK && config->max_draft)
		st = mx_draft_ngram_create(config->trees, &f->core.drafts);
	if (st != MX_OK || !f->state || !f->slots || !f->saved || !f->saved_pages || !f->prompt ||
	    !f->drafts) {
		fake_destroy(&f->core.engine);
		return MX_E_NOMEM;
	}
	*out = &f->core.engine;
	return MX_OK;
}
