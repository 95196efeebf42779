/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the prefix cache as sequences see it, on the fake engine with state in pages, in a slot and
 * in both: how many tokens a sequence need not compute, how look-ups are counted, and that the
 * output depends on neither.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "engine/fake_engine.h"
#include "tests/rng.h"

enum { VOCAB = 50, CONTEXT = 400, PAGE = 8, MAX_OPEN = 8 };

static struct rng rng;

static struct mx_fake_config fake_config(enum mx_fake_state state)
{
	return (struct mx_fake_config){
		.name = "fake",
		.vocab = VOCAB,
		.max_context = CONTEXT,
		.max_sequences = MAX_OPEN,
		.step_tokens = CONTEXT,
		.page_tokens = state == MX_FAKE_SLOT ? CONTEXT : PAGE,
		.n_pages = state == MX_FAKE_SLOT ? MAX_OPEN : MAX_OPEN * CONTEXT / PAGE,
		.prefix_cache = true,
		.state = state,
		.n_snapshots = 16,
		.eos = -1,
	};
}

static struct mx_engine *create(const struct mx_fake_config *c)
{
	struct mx_engine *e;
	assert_int_equal(mx_fake_engine_create(c, &e), MX_OK);
	return e;
}

static struct mx_core *core_of(struct mx_engine *e)
{
	return (struct mx_core *)e;
}

static struct mx_engine_usage usage(const struct mx_engine *e)
{
	struct mx_engine_usage u;
	e->ops->usage(e, &u);
	return u;
}

static void check(struct mx_engine *e, struct mx_seq *const *seqs, uint32_t n)
{
	const struct mx_page_list *lists[MAX_OPEN];
	for (uint32_t i = 0; i < n; i++)
		lists[i] = &seqs[i]->pages;
	const char *wrong = mx_pages_check(core_of(e)->pages, lists, n);
	if (!wrong && core_of(e)->snapshots)
		wrong = mx_snapshots_check(core_of(e)->snapshots);
	if (wrong)
		fail_msg("%s", wrong);
	struct mx_engine_usage u = usage(e);
	uint64_t lookups = 0;
	for (int i = 0; i < MX_LOOKUP_UNSUPPORTED; i++)
		lookups += u.prefix_lookups[i];
	assert_true(u.prefix_hits <= u.prefix_queries && lookups <= u.prefix_queries);
}

/* ---- running ---- */

static struct mx_seq_params params_of(uint32_t max_len)
{
	return (struct mx_seq_params){.max_len = max_len,
	                              .logprobs = -1,
	                              .prompt_logprobs = -1,
	                              .sampling.repetition_penalty = 1};
}

static struct mx_seq *open_with(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                                const struct mx_seq_params *params, uint32_t *computed)
{
	struct mx_seq *s;
	assert_int_equal(e->ops->open(e, prompt, n, params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, computed), MX_OK);
	return s;
}

/* Computes up to n tokens. Draws one if no token is left to compute. */
static void step(struct mx_engine *e, struct mx_seq *s, uint32_t n)
{
	struct mx_step_result r;
	struct mx_step_times times;
	uint32_t len, computed;
	e->ops->tokens(s, &len, &computed);
	n = n < len - computed ? n : len - computed;
	struct mx_step_item item = {
		.seq = s, .n = n, .sample = computed + n == len && len < s->params.max_len};
	assert_int_equal(e->ops->reserve(e, s, computed + n), MX_OK);
	assert_int_equal(e->ops->step(e, &item, 1, &r, &times), MX_OK);
	assert_int_equal(r.status, MX_OK);
	e->ops->save_snapshots(e);
}

/* Runs a request from its beginning to its end. Returns the number of tokens found in the cache.
 * out[max_len]. */
static uint32_t run_with(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                         const struct mx_seq_params *params, uint32_t chunk, int32_t *out)
{
	uint32_t cached, len = n;
	struct mx_seq *s = open_with(e, prompt, n, params, &cached);
	for (uint32_t computed = cached; len < params->max_len || computed < n;) {
		step(e, s, chunk);
		const struct mx_seq_tokens *t = e->ops->tokens(s, &len, &computed);
		mx_seq_tokens_copy(t, 0, len, out);
	}
	e->ops->close(e, s);
	check(e, NULL, 0);
	return cached;
}

static uint32_t run(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t max_len,
                    int32_t *out)
{
	struct mx_seq_params params = params_of(max_len);
	return run_with(e, prompt, n, &params, CONTEXT, out);
}

static void fill(int32_t *prompt, uint32_t n, uint64_t seed)
{
	rng.state = seed * 0x9e3779b97f4a7c15u;
	for (uint32_t i = 0; i < n; i++)
		prompt[i] = (int32_t)rng_below(&rng, VOCAB);
}

/* Begins a step of one token that fails, so that nothing of it is saved. */
static void fail_step(struct mx_engine *e, struct mx_seq *s)
{
	struct mx_step_item item = {.seq = s, .n = 1, .sample = false};
	struct mx_step_result r;
	assert_int_equal(e->ops->reserve(e, s, s->computed + 1), MX_OK);
	assert_int_equal(mx_core_begin_step(core_of(e), &item, 1), MX_OK);
	assert_int_equal(mx_core_finish_step(core_of(e), &r), MX_OK);
}

/* Fails unless the look-up that opening this prompt makes has this outcome, and counts once: at the
 * first step, whatever was attached before and is attached after. */
static void assert_outcome(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                           enum mx_lookup outcome, uint32_t cached)
{
	struct mx_seq_params params = params_of(n + 1);
	struct mx_engine_usage before = usage(e), after;
	uint32_t computed;
	struct mx_seq *s = open_with(e, prompt, n, &params, &computed);
	assert_int_equal(computed, cached);
	after = usage(e);
	assert_int_equal(after.prefix_queries, before.prefix_queries);
	e->ops->release(e, s);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	for (int i = 0; i < 2; i++) {
		fail_step(e, s);
		e->ops->release(e, s);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	}
	e->ops->close(e, s);
	after = usage(e);
	assert_int_equal(computed, cached);
	for (int i = 0; i < MX_LOOKUP_N; i++)
		assert_int_equal(after.prefix_lookups[i] - before.prefix_lookups[i], i == (int)outcome);
	assert_int_equal(after.prefix_hits - before.prefix_hits, cached);
	assert_int_equal(after.prefix_queries - before.prefix_queries,
	                 outcome == MX_LOOKUP_UNSUPPORTED ? 0 : n);
	check(e, NULL, 0);
}

static const enum mx_fake_state with_slots[] = {MX_FAKE_SLOT, MX_FAKE_HYBRID};

/* ---- what need not be computed ---- */

/* A second turn finds all but the token drawn last, which was never computed, and what is new. */
static void a_second_turn_computes_what_is_new(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		for (uint32_t n = 60; n < 60 + 2 * PAGE; n++) {
			struct mx_fake_config c = fake_config(with_slots[i]);
			struct mx_engine *e = create(&c);
			int32_t tokens[CONTEXT];
			fill(tokens, n, n);
			for (uint32_t turn = 0, len = n, cached = 0; turn < 4; turn++) {
				assert_int_equal(run(e, tokens, len, len + 21, tokens), cached);
				cached = len + 20;
				len += 21;
				fill(tokens + len, 15, turn); /* what the user says */
				len += 15;
			}
			e->ops->destroy(e);
		}
}

static void the_same_prompt_computes_its_last_token(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		for (uint32_t n = MX_SNAPSHOT_MIN; n < MX_SNAPSHOT_MIN + 2 * PAGE; n++) {
			int32_t first[CONTEXT], again[CONTEXT], prompt[CONTEXT];
			fill(prompt, n, n);
			assert_int_equal(run(e, prompt, n, n + 30, first), 0);
			assert_int_equal(run(e, prompt, n, n + 30, again), n - 1);
			assert_memory_equal(first, again, (n + 30) * sizeof *first);
			/* and that has not spoilt what it came from */
			assert_int_equal(run(e, prompt, n, n + 30, again), n - 1);
			assert_memory_equal(first, again, (n + 30) * sizeof *first);
		}
		e->ops->destroy(e);
	}
}

static void states_are_saved_at_intervals(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		c.snapshot_every = 64;
		struct mx_engine *e = create(&c);
		int32_t prompt[CONTEXT], out[CONTEXT];
		struct mx_seq_params params = params_of(201);
		fill(prompt, 200, 3);
		run_with(e, prompt, 200, &params, 64, out);
		assert_int_equal(usage(e).snapshot_saves, 4); /* 64, 128, 192, 200 */
		prompt[150] ^= 1;
		assert_outcome(e, prompt, 200, MX_LOOKUP_HIT, 128);
		assert_outcome(e, prompt, 128, MX_LOOKUP_HIT, 127);
		assert_outcome(e, prompt, 129, MX_LOOKUP_HIT, 128);
		assert_outcome(e, prompt, 127, MX_LOOKUP_HIT, 64);
		e->ops->destroy(e);
	}
}

/* As the scheduler does: whole prompts, but cut where a state is wanted. */
static uint32_t run_cut(struct mx_engine *e, const int32_t *prompt, uint32_t n, int32_t *out)
{
	struct mx_seq_params params = params_of(n + 1);
	uint32_t cached, len, computed;
	struct mx_seq *s = open_with(e, prompt, n, &params, &cached);
	for (computed = cached; computed < n; e->ops->tokens(s, &len, &computed))
		step(e, s, e->ops->chunk(e, s, n - computed));
	mx_seq_tokens_copy(e->ops->tokens(s, &len, &computed), 0, n + 1, out);
	e->ops->close(e, s);
	check(e, NULL, 0);
	return cached;
}

/* Chats with one system message. The first cannot know how much of it others share; the second
 * saves a snapshot at the last mark before the first token that differs; others resume there. */
static void a_shared_beginning_is_saved_by_the_second_prompt(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		for (uint32_t shared = 90; shared < 90 + MX_MARK_TOKENS; shared++) {
			struct mx_fake_config c = fake_config(with_slots[i]);
			struct mx_fake_config none = c;
			none.prefix_cache = false;
			struct mx_engine *e = create(&c), *alone = create(&none);
			uint32_t at = shared / MX_MARK_TOKENS * MX_MARK_TOKENS;
			int32_t prompt[CONTEXT], out[CONTEXT], expect[CONTEXT];
			fill(prompt, 140, shared);
			for (int32_t chat = 0; chat < 5; chat++) {
				uint32_t n = 130 + (uint32_t)chat;
				prompt[shared] = chat;
				assert_int_equal(run_cut(e, prompt, n, out), chat < 2 ? 0 : at);
				run_cut(alone, prompt, n, expect);
				assert_memory_equal(out, expect, (n + 1) * sizeof *out);
				/* Each saves a snapshot of its end; from the second on there is one more. */
				assert_int_equal(usage(e).snapshot_saves, chat + 1 + (chat > 0));
			}
			/* Sequences with another salt do not find it. */
			struct mx_seq_params salted = params_of(131);
			salted.cache_salt = "someone else";
			assert_int_equal(run_with(e, prompt, 130, &salted, CONTEXT, out), 0);
			e->ops->destroy(e);
			alone->ops->destroy(alone);
		}
}

/* A preempted sequence that finds its own tokens again saves no more snapshots for that. */
static void a_sequence_does_not_part_from_itself(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		int32_t prompt[CONTEXT];
		uint32_t computed;
		struct mx_seq_params params = params_of(CONTEXT);
		fill(prompt, 200, 4);
		struct mx_seq *s = open_with(e, prompt, 200, &params, &computed);
		assert_int_equal(e->ops->chunk(e, s, 200), 200);
		step(e, s, 100);
		e->ops->release(e, s);
		mx_snapshots_forget(core_of(e)->snapshots, 0);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		assert_int_equal(computed, 0);
		assert_int_equal(e->ops->chunk(e, s, 200), 200);
		e->ops->close(e, s);
		e->ops->destroy(e);
	}
}

static void a_preempted_sequence_goes_on_where_it_was(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		int32_t prompt[CONTEXT];
		uint32_t computed;
		struct mx_seq_params params = params_of(CONTEXT);
		fill(prompt, 100, 4);
		struct mx_seq *s = open_with(e, prompt, 100, &params, &computed);
		step(e, s, 77);
		e->ops->release(e, s);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		assert_int_equal(computed, 77);
		for (int k = 0; k < 10; k++)
			step(e, s, 100);
		e->ops->release(e, s);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		assert_int_equal(computed, 109); /* of 110: the last was only drawn */
		e->ops->close(e, s);
		e->ops->destroy(e);
	}
}

/* ---- what look-ups are counted as ---- */

static void outcomes_are_told_apart(void **state)
{
	(void)state;
	struct mx_fake_config c = fake_config(MX_FAKE_HYBRID);
	c.n_snapshots = 2;
	struct mx_engine *e = create(&c);
	int32_t a[CONTEXT], b[CONTEXT], out[CONTEXT];
	fill(a, 100, 1), fill(b, 100, 2);
	assert_outcome(e, a, 100, MX_LOOKUP_MISS, 0);
	run(e, a, 100, 110, out); /* saved at 100 and at 109 */
	assert_outcome(e, a, 90, MX_LOOKUP_NO_SNAPSHOT, 0);
	assert_outcome(e, out, 105, MX_LOOKUP_HIT, 100);
	assert_outcome(e, out, 110, MX_LOOKUP_HIT, 109);
	run(e, b, 100, 110, out); /* takes both blocks */
	assert_outcome(e, a, 100, MX_LOOKUP_EVICTED, 0);
	assert_outcome(e, a, 90, MX_LOOKUP_NO_SNAPSHOT, 0);
	assert_outcome(e, b, 100, MX_LOOKUP_HIT, 99);
	assert_outcome(e, b, 5, MX_LOOKUP_MISS, 0);
	e->ops->drop_cache(e);
	assert_outcome(e, b, 100, MX_LOOKUP_MISS, 0);
	assert_outcome(e, a, 100, MX_LOOKUP_MISS, 0);
	e->ops->destroy(e);

	c = fake_config(MX_FAKE_SLOT); /* no pages that could be known */
	c.n_snapshots = 2;
	e = create(&c);
	assert_outcome(e, a, 100, MX_LOOKUP_MISS, 0);
	run(e, a, 100, 110, out);
	assert_outcome(e, a, 90, MX_LOOKUP_NO_SNAPSHOT, 0);
	assert_outcome(e, a, MX_MARK_TOKENS - 1, MX_LOOKUP_MISS, 0);
	assert_outcome(e, a, 100, MX_LOOKUP_HIT, 99);
	assert_outcome(e, b, 100, MX_LOOKUP_MISS, 0);
	run(e, b, 100, 110, out); /* takes both blocks */
	assert_outcome(e, a, 100, MX_LOOKUP_EVICTED, 0);
	assert_outcome(e, a, 90, MX_LOOKUP_NO_SNAPSHOT, 0);
	e->ops->drop_cache(e);
	assert_outcome(e, a, 90, MX_LOOKUP_MISS, 0);
	e->ops->destroy(e);

	c = fake_config(MX_FAKE_PAGES);
	e = create(&c);
	assert_outcome(e, a, 100, MX_LOOKUP_MISS, 0);
	run(e, a, 100, 110, out);
	assert_outcome(e, a, 100, MX_LOOKUP_HIT, 96);
	assert_int_equal(usage(e).snapshot_saves, 0);
	e->ops->destroy(e);

	c.prefix_unsupported = true;
	e = create(&c);
	run(e, a, 100, 110, out);
	assert_outcome(e, a, 100, MX_LOOKUP_UNSUPPORTED, 0);
	e->ops->destroy(e);
}

/* A snapshot is worth nothing without the pages before it. */
static void evicted_pages_make_a_snapshot_useless(void **state)
{
	(void)state;
	struct mx_fake_config c = fake_config(MX_FAKE_HYBRID);
	c.n_pages = CONTEXT / PAGE;
	struct mx_engine *e = create(&c);
	int32_t a[CONTEXT], b[CONTEXT], out[CONTEXT], again[CONTEXT];
	fill(a, 100, 1), fill(b, 390, 2);
	run(e, a, 100, 120, out);
	run(e, b, 390, 400, again); /* wants every page */
	assert_outcome(e, a, 100, MX_LOOKUP_EVICTED, 0);
	assert_int_equal(run(e, a, 100, 120, again), 0);
	assert_memory_equal(out, again, 120 * sizeof *out);
	assert_outcome(e, a, 100, MX_LOOKUP_HIT, 99);
	e->ops->destroy(e);
}

static void without_a_snapshot_store_nothing_is_looked_up(void **state)
{
	(void)state;
	struct mx_fake_config c = fake_config(MX_FAKE_HYBRID);
	c.n_snapshots = 0;
	c.snapshot_every = 64;
	struct mx_engine *e = create(&c);
	struct mx_engine_info info;
	int32_t a[CONTEXT], out[CONTEXT];
	e->ops->info(e, &info);
	assert_false(info.prefix_cache);
	assert_int_equal(info.snapshot_every, 0);
	fill(a, 100, 1);
	assert_int_equal(run(e, a, 100, 110, out), 0);
	assert_int_equal(run(e, a, 100, 110, out), 0);
	assert_int_equal(usage(e).prefix_queries, 0);
	assert_int_equal(usage(e).pages_cached, 0);
	e->ops->destroy(e);
}

/* ---- what is left, and for whom ---- */

static void short_prompts_pin_nothing(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		int32_t a[CONTEXT], out[CONTEXT];
		fill(a, 12, 1);
		run(e, a, 12, 30, out);
		assert_int_equal(usage(e).snapshots_used, 0);
		run(e, a, 12, MX_SNAPSHOT_MIN + 1, out);
		assert_int_equal(usage(e).snapshots_used, 1);
		e->ops->destroy(e);
	}
}

static void salts_and_private_sequences_share_nothing(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		struct mx_seq_params salted = params_of(110), private = params_of(110);
		int32_t a[CONTEXT], out[CONTEXT];
		salted.cache_salt = "someone else";
		private.no_prefix_cache = true;
		fill(a, 100, 1);
		assert_int_equal(run_with(e, a, 100, &private, 40, out), 0);
		assert_int_equal(usage(e).snapshots_used, 0);
		assert_int_equal(usage(e).prefix_queries, 0);
		assert_int_equal(run(e, a, 100, 110, out), 0);
		assert_int_equal(run_with(e, a, 100, &private, 40, out), 0);
		assert_int_equal(run_with(e, a, 100, &salted, 40, out), 0);
		assert_int_equal(run_with(e, a, 100, &salted, 40, out), 99);
		assert_int_equal(usage(e).snapshots_used, 4);
		e->ops->destroy(e);
	}
}

/* Rows whose log-probabilities are wanted must be computed. */
static void a_scored_prompt_is_computed(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		struct mx_seq_params scored = params_of(110);
		int32_t a[CONTEXT], out[CONTEXT];
		uint32_t computed;
		scored.prompt_logprobs = 0;
		fill(a, 100, 1);
		run(e, a, 100, 110, out);
		struct mx_seq *s = open_with(e, a, 100, &scored, &computed);
		assert_int_equal(computed, 0);
		step(e, s, 60);
		e->ops->release(e, s);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		assert_int_equal(computed, 60); /* what was reported need not be reported again */
		e->ops->close(e, s);
		assert_int_equal(run(e, a, 100, 110, out), 99);
		e->ops->destroy(e);
	}
}

/* ---- failures ---- */

static void a_step_that_failed_leaves_nothing(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		int32_t a[CONTEXT];
		uint32_t computed;
		struct mx_seq_params params = params_of(110);
		fill(a, 100, 1);
		struct mx_seq *s = open_with(e, a, 100, &params, &computed);
		step(e, s, 50);
		/* Does what an engine does, up to the failure. */
		struct mx_step_item item = {.seq = s, .n = 50, .sample = true};
		assert_int_equal(e->ops->reserve(e, s, 100), MX_OK);
		assert_int_equal(mx_core_begin_step(core_of(e), &item, 1), MX_OK);
		e->ops->close(e, s);
		assert_int_equal(usage(e).snapshots_used, 0);
		e->ops->destroy(e);
	}
}

static mx_status refuse(struct mx_core *c, const struct mx_seq *s, uint32_t block)
{
	(void)c, (void)s, (void)block;
	return MX_E_INTERNAL;
}

static void a_mixer_that_fails_costs_the_snapshot_alone(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mx_fake_config c = fake_config(with_slots[i]);
		struct mx_engine *e = create(&c);
		struct mx_state_ops sound = core_of(e)->state;
		int32_t a[CONTEXT], expect[CONTEXT], out[CONTEXT];
		fill(a, 100, 1);
		core_of(e)->state.save = refuse;
		assert_int_equal(run(e, a, 100, 110, expect), 0);
		assert_int_equal(usage(e).snapshots_used, 0);
		core_of(e)->state = sound;
		assert_int_equal(run(e, a, 100, 110, out), 0);
		assert_int_equal(usage(e).snapshots_used, 2);
		core_of(e)->state.load = refuse;
		assert_int_equal(run(e, a, 100, 110, out), 0);
		assert_memory_equal(out, expect, 110 * sizeof *out);
		core_of(e)->state = sound;
		assert_int_equal(run(e, a, 100, 110, out), 99); /* it was saved again */
		assert_memory_equal(out, expect, 110 * sizeof *out);
		e->ops->destroy(e);
	}
}

/* The full pages of the prefix are cached, but no page is free for its partially filled one. */
static void without_a_page_nothing_is_held(void **state)
{
	(void)state;
	struct mx_fake_config c = fake_config(MX_FAKE_HYBRID);
	c.n_pages = CONTEXT / PAGE;
	struct mx_engine *e = create(&c);
	int32_t a[CONTEXT], b[CONTEXT], out[CONTEXT];
	uint32_t computed;
	struct mx_seq *s, *other;
	fill(a, 100, 1), fill(b, 100, 2);
	run(e, a, 100, 110, out);
	struct mx_seq_params params = params_of(CONTEXT);
	other = open_with(e, b, 100, &params, &computed);
	assert_int_equal(e->ops->open(e, a, 100, &params, &s), MX_OK);
	assert_int_equal(e->ops->reserve(e, other, CONTEXT - 12 * PAGE), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_E_NOMEM);
	assert_int_equal(usage(e).slots_used, 1);
	check(e, (struct mx_seq *[]){other, s}, 2);
	e->ops->close(e, other);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(computed, 99);
	e->ops->close(e, s);
	e->ops->destroy(e);
}

/* ---- everything at once ---- */

struct job {
	struct mx_seq *seq; /* NULL = none */
	const int32_t *expect;
	bool attached;
};

enum { N_PROMPTS = 40, TOTAL = 140 };

/* Prompts that continue each other, and what becomes of each. */
static void make_prompts(const struct mx_fake_config *c, int32_t prompt[][TOTAL], uint32_t *n)
{
	struct mx_fake_config alone = *c;
	alone.prefix_cache = false;
	struct mx_engine *e = create(&alone);
	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		uint32_t shared = 0;
		if (i && rng_below(&rng, 4)) {
			const int32_t *of = prompt[rng_below(&rng, i)]; /* a turn of a chat, or a part of one */
			shared = 1 + rng_below(&rng, TOTAL - 20);
			memcpy(prompt[i], of, shared * sizeof *of);
		}
		n[i] = shared + 1 + rng_below(&rng, TOTAL - 5 - shared < 30 ? TOTAL - 5 - shared : 30);
		for (uint32_t k = shared; k < n[i]; k++)
			prompt[i][k] = (int32_t)rng_below(&rng, VOCAB);
		run(e, prompt[i], n[i], TOTAL, prompt[i]);
	}
	e->ops->destroy(e);
}

static void advance(struct mx_engine *e, struct job *j)
{
	uint32_t len, computed, n = rng_below(&rng, 4) ? 1 + rng_below(&rng, 20) : TOTAL;
	e->ops->tokens(j->seq, &len, &computed);
	n = n < len - computed ? n : len - computed;
	if (rng_below(&rng, 4)) /* as the scheduler does, mostly */
		n = e->ops->chunk(e, j->seq, n);
	if (e->ops->reserve(e, j->seq, computed + n) != MX_OK) {
		e->ops->release(e, j->seq);
		j->attached = false;
		return;
	}
	struct mx_step_item item = {
		.seq = j->seq, .n = n, .sample = computed + n == len && len < TOTAL};
	struct mx_step_result r;
	struct mx_step_times times;
	assert_int_equal(e->ops->step(e, &item, 1, &r, &times), MX_OK);
	if (rng_below(&rng, 5)) /* it is allowed to forget it */
		e->ops->save_snapshots(e);
	int32_t tokens[TOTAL];
	const struct mx_seq_tokens *t = e->ops->tokens(j->seq, &len, &computed);
	mx_seq_tokens_copy(t, 0, len, tokens);
	assert_memory_equal(tokens, j->expect, len * sizeof *tokens);
	if (len == TOTAL || rng_below(&rng, 60) == 0) {
		e->ops->close(e, j->seq);
		*j = (struct job){0};
	} else if (rng_below(&rng, 20) == 0) {
		e->ops->release(e, j->seq);
		j->attached = false;
	}
}

static void random_traffic(enum mx_fake_state kind, bool lookahead, uint64_t seed)
{
	struct mx_fake_config c = fake_config(kind);
	c.lookahead = lookahead;
	static int32_t prompt[N_PROMPTS][TOTAL];
	uint32_t n[N_PROMPTS], n_found = 0;
	struct job jobs[6] = {{0}};
	rng.state = seed * 0x9e3779b97f4a7c15u;
	c.snapshot_every = 16;
	make_prompts(&c, prompt, n);
	c.n_pages = kind == MX_FAKE_SLOT ? 5 : 4 * TOTAL / PAGE;
	c.n_snapshots = 1 + rng_below(&rng, 12);
	struct mx_engine *e = create(&c);
	for (int i = 0; i < 4000; i++) {
		struct job *j = &jobs[rng_below(&rng, 6)];
		uint32_t computed;
		if (!j->seq) {
			uint32_t which = rng_below(&rng, N_PROMPTS);
			struct mx_seq_params params = params_of(TOTAL);
			params.no_prefix_cache = rng_below(&rng, 12) == 0;
			assert_int_equal(e->ops->open(e, prompt[which], n[which], &params, &j->seq), MX_OK);
			j->expect = prompt[which];
		} else if (!j->attached) {
			j->attached = e->ops->attach(e, j->seq, &computed) == MX_OK;
			n_found += j->attached && computed;
		} else {
			advance(e, j);
		}
		if (rng_below(&rng, 500) == 0)
			e->ops->drop_cache(e);
		struct mx_seq *open[6];
		uint32_t n_open = 0;
		for (int k = 0; k < 6; k++)
			if (jobs[k].seq)
				open[n_open++] = jobs[k].seq;
		check(e, open, n_open);
	}
	for (int k = 0; k < 6; k++)
		e->ops->close(e, jobs[k].seq);
	struct mx_engine_usage u = usage(e);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.slots_used, 0);
	assert_true(n_found > 20);
	assert_true(kind == MX_FAKE_PAGES || u.snapshot_evictions > 20);
	e->ops->destroy(e);
}

static void output_depends_on_tokens_alone(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		random_traffic(MX_FAKE_PAGES, false, seed);
		random_traffic(MX_FAKE_PAGES, true, seed);
		random_traffic(MX_FAKE_SLOT, false, seed);
		random_traffic(MX_FAKE_HYBRID, false, seed);
		random_traffic(MX_FAKE_HYBRID, true, seed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_second_turn_computes_what_is_new),
		cmocka_unit_test(the_same_prompt_computes_its_last_token),
		cmocka_unit_test(states_are_saved_at_intervals),
		cmocka_unit_test(a_shared_beginning_is_saved_by_the_second_prompt),
		cmocka_unit_test(a_sequence_does_not_part_from_itself),
		cmocka_unit_test(a_preempted_sequence_goes_on_where_it_was),
		cmocka_unit_test(outcomes_are_told_apart),
		cmocka_unit_test(evicted_pages_make_a_snapshot_useless),
		cmocka_unit_test(without_a_snapshot_store_nothing_is_looked_up),
		cmocka_unit_test(short_prompts_pin_nothing),
		cmocka_unit_test(salts_and_private_sequences_share_nothing),
		cmocka_unit_test(a_scored_prompt_is_computed),
		cmocka_unit_test(a_step_that_failed_leaves_nothing),
		cmocka_unit_test(a_mixer_that_fails_costs_the_snapshot_alone),
		cmocka_unit_test(without_a_page_nothing_is_held),
		cmocka_unit_test(output_depends_on_tokens_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
