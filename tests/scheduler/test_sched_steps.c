/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the scheduler puts into a step, against the fake engine: tokens of streams,
 * chunks of prompts, the part of a prompt that the prefix cache lacks, and which
 * requests wait or are preempted when memory is short.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/scheduler/sched_fixture.h"

/* ---- a clock that stands still while nobody sleeps ---- */

static _Atomic bool virtual_time;
static _Atomic uint64_t virtual_ns;

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __real_clock_nanosleep(clockid_t id, int flags, const struct timespec *t,
                           struct timespec *left);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_nanosleep(clockid_t id, int flags, const struct timespec *t,
                           struct timespec *left);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	if (!virtual_time)
		return __real_clock_gettime(id, t);
	*t = (struct timespec){(time_t)(virtual_ns / MX_NS_PER_S), (long)(virtual_ns % MX_NS_PER_S)};
	return 0;
}

/* The fake engine sleeps by this for the time of a step. */
int __wrap_clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
	if (!virtual_time)
		return __real_clock_nanosleep(id, flags, t, left);
	virtual_ns += (uint64_t)t->tv_sec * MX_NS_PER_S + (uint64_t)t->tv_nsec;
	return 0;
}

/* ---- steps ---- */

static void decode_never_waits_for_a_prompt(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 200);
	test_engine_wait_entered(f.engine);
	test_engine_pass(f.engine, 2);
	submit(&f, 1, 1000, 5); /* eight steps of prompt at least */
	submit(&f, 2, 10, 5);
	for (int i = 0; i < 12; i++) {
		uint32_t before = f.c[0].n;
		test_engine_pass(f.engine, 1);
		/* deliver runs before the next step enters, so the token is here */
		assert_int_equal(f.c[0].n, before + 1);
	}
	const struct logged_step *l = &f.engine->log[4];
	assert_int_equal(l->first_token[0], 0);
	assert_int_equal(l->item_n[0], 1);
	assert_int_equal(l->first_token[1], 1);
	assert_int_equal(l->item_n[1], roomy.step_tokens - 1);
	for (uint32_t i = 0; i < f.engine->n_log; i++)
		assert_true(f.engine->log[i].tokens <= roomy.step_tokens);
	assert_true(f.c[1].token_order < f.c[2].token_order); /* prompts in order of arrival */
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++)
		client_wait_done(&f.c[i]);
	assert_reference(&f, 0, 10, 200);
	assert_reference(&f, 1, 1000, 5);
	finish(&f);
}

static void chunks_adapt_to_step_time(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config timed = roomy;
	timed.ns_per_step = 8000000; /* a decode step takes 8.4 ms */
	timed.ns_per_token = 400000; /* so 1.6 times that has room for 12 tokens of a prompt */
	virtual_ns = mx_now_ns();
	virtual_time = true;
	start_with(&f, &timed, 64, 0);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 1000);
	test_engine_pass(f.engine, 10);
	submit(&f, 1, 600, 1);
	test_engine_open(f.engine);
	for (int i = 0; i < 2; i++)
		client_wait_done(&f.c[i]);
	uint32_t mixed = 0, largest = 0;
	for (uint32_t i = 0; i < f.engine->n_log; i++)
		if (f.engine->log[i].n == 2) {
			uint32_t n = f.engine->log[i].item_n[1];
			mixed++;
			largest = n > largest ? n : largest;
		}
	assert_in_range(mixed, 600 / 14, 600 / 10);
	assert_in_range(largest, 12, 14);
	finish(&f);
	virtual_time = false;
}

/* Ending a request can take time; the others' tokens do not wait for it. */
/* No stretch is allowed, but prompt tokens that are free according to the engine are taken. */
static void free_rows_are_used(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config c = roomy;
	c.ns_per_step = 1000000;
	c.ns_per_token = 1000000;
	c.free_rows = 40;
	virtual_ns = mx_now_ns();
	virtual_time = true;
	start_with(&f, &c, 64, 1.0001);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 1000);
	test_engine_pass(f.engine, 10);
	submit(&f, 1, 1000, 5);
	test_engine_open(f.engine);
	for (int i = 0; i < 2; i++)
		client_wait_done(&f.c[i]);
	uint32_t pieces = 0, computed = 0;
	for (uint32_t i = 0; i < f.engine->n_log; i++) {
		const struct logged_step *l = &f.engine->log[i];
		if (l->n != 2 || l->first_token[1] != 1 || computed >= 1000)
			continue;
		assert_true(l->item_n[1] >= 40 || computed + l->item_n[1] == 1000);
		computed += l->item_n[1];
		pieces++;
	}
	assert_true(pieces > 5 && pieces <= 25);
	assert_reference(&f, 0, 10, 1000);
	assert_reference(&f, 1, 1000, 5);
	finish(&f);
	virtual_time = false;
}

static void tokens_come_before_ends(void **state)
{
	(void)state;
	struct fixture f;
	int32_t prompt[10];
	uint64_t ids[2];
	start(&f, &roomy);
	fill_prompt(prompt, 10, 3);
	/* The first ends in the step that gives the second its first token. */
	struct mx_request r[2] = {test_request(prompt, 10, 1, &f.c[0]),
	                          test_request(prompt, 10, 5, &f.c[1])};
	assert_int_equal(mx_sched_submit_all(f.sched, r, 2, ids, NULL), MX_OK);
	for (int i = 0; i < 2; i++)
		client_wait_done(&f.c[i]);
	assert_int_equal(f.engine->log[0].n, 2);
	assert_true(f.c[1].token_order < f.c[0].done_order);
	finish(&f);
}

static bool slow_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)arg;
	(void)token;
	(void)is_stop;
	(void)logprob;
	virtual_ns += 3000000;
	return true;
}

/* Delivery takes a third of a step's time. An asynchronous device does not wait. */
static void the_device_does_not_wait_for_delivery(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config timed = roomy;
	timed.ns_per_step = 9000000;
	virtual_ns = mx_now_ns();
	virtual_time = true;
	start(&f, &timed);
	int32_t prompt[10];
	fill_prompt(prompt, 10, 3);
	struct mx_request r = test_request(prompt, 10, 101, &f.c[0]);
	r.sink.token = slow_token;
	uint64_t begin = virtual_ns;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[0].id, NULL), MX_OK);
	client_wait_done(&f.c[0]);
	struct mx_sched_stats v;
	do /* a step is counted after the end of its requests */
		v = stats(&f);
	while (v.steps < 101);
	double expect = steps_overlap ? 0 : 0.3;
	assert_true(v.step_idle.sum > expect - 1e-6 && v.step_idle.sum < expect + 1e-6);
	/* no step runs during the last delivery */
	assert_int_equal(virtual_ns - begin, steps_overlap ? 101 * 9000000 + 3000000 : 101 * 12000000);
	finish(&f);
	virtual_time = false;
}

/* ---- prefixes ---- */

static void shared_prefixes_are_counted_as_cached(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	int32_t prompt[100];
	fill_prompt(prompt, 100, 3);
	for (int i = 0; i < 2; i++) {
		prompt[90] = i;
		struct mx_request r = test_request(prompt, 100, 4, &f.c[i]);
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
		client_wait_done(&f.c[i]);
	}
	assert_int_equal(f.c[0].done.cached_tokens, 0);
	assert_int_equal(f.c[1].done.cached_tokens, 80); /* five pages of 16 before position 90 */
	struct mx_sched_stats v = stats(&f);
	assert_int_equal(v.prompt_tokens, 200);
	assert_int_equal(v.cached_prompt_tokens, 80);
	finish(&f);
}

/* Requests that arrive together share their prefix too: a prompt is looked up when it is its turn
 * to be computed, not when it arrives. */
static void a_prefix_is_shared_with_the_request_just_ahead(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	int32_t prompt[600];
	fill_prompt(prompt, 600, 3);
	for (int i = 0; i < 3; i++) {
		prompt[599] = i;
		struct mx_request r = test_request(prompt, 600, 2, &f.c[i]);
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
	}
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++)
		client_wait_done(&f.c[i]);
	/* The step that ends the first prompt has room for a part of the second. */
	assert_true(f.c[1].done.cached_tokens >= 600 - 2 * roomy.step_tokens);
	assert_true(f.c[2].done.cached_tokens >= 600 - 2 * roomy.step_tokens);
	finish(&f);
}

static struct mx_fake_config with_slots(void)
{
	struct mx_fake_config c = roomy;
	c.state = MX_FAKE_HYBRID;
	c.n_snapshots = 16;
	c.snapshot_every = 100;
	return c;
}

static void a_prompt_is_cut_where_its_state_is_saved(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config config = with_slots();
	static const struct {
		bool private;
		uint32_t differs_at, cached, n, items[4]; /* prompt tokens of each step */
		int32_t by;
	} expect[] = {
		{false, 350, 0, 4, {100, 100, 100, 50}, 0},
		{false, 230, 200, 3, {24, 76, 50}, 1}, /* begins at 200, differs from the first at 224 */
		{false, 230, 224, 2, {76, 50}, 2},
		{true, 350, 0, 3, {128, 128, 94}, 0},
	};
	start(&f, &config);
	for (int i = 0; i < 4; i++) {
		int32_t prompt[350];
		uint32_t begin = f.engine->n_log;
		fill_prompt(prompt, 350, 3);
		for (uint32_t k = expect[i].differs_at; k < 350; k++)
			prompt[k] ^= expect[i].by;
		struct mx_request r = test_request(prompt, 350, 2, &f.c[i]);
		r.params.no_prefix_cache = expect[i].private;
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
		client_wait_done(&f.c[i]);
		assert_int_equal(f.c[i].done.cached_tokens, expect[i].cached);
		for (uint32_t k = 0; k < expect[i].n; k++)
			assert_int_equal(f.engine->log[begin + k].item_n[0], expect[i].items[k]);
		assert_int_equal(f.engine->log[begin + expect[i].n].item_n[0], 1);
	}
	finish(&f);
}

static void the_next_turn_computes_what_is_new(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config config = with_slots();
	int32_t chat[400];
	start(&f, &config);
	fill_prompt(chat, 40, 3);
	for (uint32_t turn = 0, n = 40; turn < 5; turn++) {
		struct client *c = &f.c[turn];
		struct mx_request r = test_request(chat, n, 25, c);
		assert_int_equal(mx_sched_submit(f.sched, &r, &c->id, NULL), MX_OK);
		client_wait_done(c);
		/* All tokens of the last answer but the last one were computed. */
		assert_int_equal(c->done.cached_tokens, turn ? n - 10 - 1 : 0);
		memcpy(chat + n, c->tokens, 25 * sizeof *chat);
		fill_prompt(chat + n + 25, 10, (int32_t)turn);
		n += 25 + 10;
	}
	finish(&f);
}

/* ---- memory ---- */

/* A hit for which the engine has much to do is deferred; streams have a token in every step, and
 * the hit's own come when it is done. */
static void a_deferred_hit_does_not_stop_streams(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config config = with_slots();
	if (steps_overlap) /* nothing is deferred there */
		return;
	config.resume_steps = 4;
	start(&f, &config);
	submit(&f, 1, 90, 5); /* leaves its state */
	client_wait_done(&f.c[1]);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 40);
	test_engine_wait_entered(f.engine);
	test_engine_pass(f.engine, 3);
	assert_int_equal(f.c[0].n, 3);
	int32_t prompt[90];
	fill_prompt(prompt, 90, 1);
	struct mx_request r = test_request(prompt, 90, 5, &f.c[2]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[2].id, NULL), MX_OK);
	test_engine_pass(f.engine, 1); /* it was planned before */
	for (uint32_t i = 0; i < config.resume_steps; i++) {
		test_engine_pass(f.engine, 1);
		assert_int_equal(f.c[0].n, 5 + i);
		assert_int_equal(f.c[2].n, 0);
	}
	uint64_t tokens = stats(&f).step_tokens.sum;
	test_engine_pass(f.engine, 1);
	assert_int_equal(f.c[2].n, 1);
	assert_int_equal(stats(&f).step_tokens.sum - tokens, 2); /* deferred ones were not counted */
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++)
		client_wait_done(&f.c[i]);
	assert_true(f.c[2].done.cached_tokens > 0);
	assert_memory_equal(f.c[2].tokens, f.c[1].tokens, 5 * sizeof(int32_t));
	assert_reference(&f, 0, 10, 40);
	finish(&f);
}

enum { HITS = 6, HIT_TOKENS = 481 };

/* Submits HITS requests for a prompt that is in the cache, and waits for them. Returns the most of
 * them that one step admitted. */
static uint32_t most_hits_at_once(struct fixture *f)
{
	uint32_t from = f->engine->n_log, most = 0;
	const struct mx_seq *seen[HITS];
	int32_t prompt[HIT_TOKENS];
	fill_prompt(prompt, HIT_TOKENS, 9);
	for (int i = 1; i <= HITS; i++) {
		client_free(&f->c[i]);
		client_init(&f->c[i]);
		f->c[i].engine = f->engine->inner;
		struct mx_request r = test_request(prompt, HIT_TOKENS, 20, &f->c[i]);
		assert_int_equal(mx_sched_submit(f->sched, &r, &f->c[i].id, NULL), MX_OK);
	}
	test_engine_open(f->engine);
	for (int i = 1; i <= HITS; i++) {
		client_wait_done(&f->c[i]);
		assert_int_equal(f->c[i].done.cached_tokens, HIT_TOKENS - 1);
	}
	test_engine_gate(f->engine);
	pthread_mutex_lock(&f->engine->lock); /* a stream's next step may be on its way to the gate */
	for (uint32_t s = from, n_seen = 0; s < f->engine->n_log; s++) {
		const struct logged_step *l = &f->engine->log[s];
		uint32_t n = 0;
		for (uint32_t i = 0; i < l->n; i++) {
			bool known = l->first_token[i] != 9;
			for (uint32_t k = 0; k < n_seen; k++)
				known |= seen[k] == l->seq[i];
			if (!known)
				seen[n_seen++] = l->seq[i];
			n += !known;
		}
		most = n > most ? n : most;
	}
	pthread_mutex_unlock(&f->engine->lock);
	return most;
}

/* Taking a prefix from the cache takes 5 ms, a step 8.4 ms: beside a stream one hit a step is
 * admitted, although all of their tokens would fit; without a stream all are at once. */
static void hits_are_admitted_in_portions(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config timed = roomy;
	timed.ns_per_step = 8000000;
	timed.ns_per_token = 400000;
	timed.ns_per_hit = 5000000;
	virtual_ns = mx_now_ns();
	virtual_time = true;
	start_with(&f, &timed, 64, 0);
	submit(&f, 9, HIT_TOKENS, 1);
	client_wait_done(&f.c[9]);
	test_engine_gate(f.engine);
	submit(&f, 10, 10, 1); /* holds the next step until all hits have come */
	test_engine_wait_entered(f.engine);
	uint32_t alone = most_hits_at_once(&f);
	submit(&f, 0, 10, 1000);
	test_engine_pass(f.engine, 10);
	uint32_t beside = most_hits_at_once(&f);
	test_engine_open(f.engine);
	client_wait_done(&f.c[0]);
	assert_true(alone > 1);
	assert_int_equal(beside, 1);
	finish(&f);
	virtual_time = false;
}

static void preemption_gives_identical_output(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config tiny = roomy;
	tiny.n_pages = 24;
	tiny.max_context = 300;
	start(&f, &tiny);
	test_engine_gate(f.engine);
	for (int i = 0; i < 8; i++)
		submit(&f, i, 30 + (uint32_t)i, 200);
	test_engine_open(f.engine);
	uint32_t preemptions = 0;
	for (int i = 0; i < 8; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 30 + (uint32_t)i, 200);
		assert_int_equal(f.c[i].done.finish, MX_FINISH_LENGTH);
		preemptions += f.c[i].done.preemptions;
	}
	assert_true(preemptions > 0);
	assert_int_equal(stats(&f).preemptions, preemptions);
	assert_int_equal(f.c[0].done.preemptions, 0); /* the oldest never */
	finish(&f);
}

/* A model without state in pages: one page holds a sequence, and there are as many as slots. */
static void a_page_a_sequence_admits_all(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config recurrent = roomy;
	recurrent.page_tokens = recurrent.max_context;
	recurrent.n_pages = recurrent.max_sequences;
	recurrent.prefix_cache = false;
	start(&f, &recurrent);
	test_engine_gate(f.engine);
	for (int i = 0; i < 12; i++)
		submit(&f, i, 3, 40);
	test_engine_open(f.engine);
	for (int i = 0; i < 12; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 3, 40);
		assert_int_equal(f.c[i].done.preemptions, 0);
	}
	assert_int_equal(f.engine->max_attached, recurrent.max_sequences);
	finish(&f);
}

/* Fewer slots than sequences: requests wait for one, in order, and none is lost. */
static void without_a_slot_a_request_waits(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	f.engine->slots = 3;
	test_engine_gate(f.engine);
	for (int i = 0; i < 12; i++)
		submit(&f, i, 20 + (uint32_t)i, 30 + 5 * (uint32_t)i);
	test_engine_open(f.engine);
	for (int i = 0; i < 12; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 20 + (uint32_t)i, 30 + 5 * (uint32_t)i);
		assert_int_equal(f.c[i].done.finish, MX_FINISH_LENGTH);
		if (i)
			assert_true(f.c[i].token_order > f.c[i - 1].token_order);
	}
	assert_int_equal(f.engine->max_attached, 3);
	assert_int_equal(stats(&f).preemptions, 0);
	finish(&f);
}

/* Every request may need the whole pool. If requests could preempt each other in turn, this would
 * not end. The bound is twice the steps that the requests take one after another. */
static void the_oldest_advances_in_every_step(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config tiny = roomy;
	tiny.n_pages = 8;
	tiny.prefix_cache = false; /* every preemption costs a whole recomputation */
	tiny.step_tokens = 16;
	start(&f, &tiny);
	test_engine_gate(f.engine);
	for (int i = 0; i < 4; i++)
		submit(&f, i, 40, 88);
	test_engine_open(f.engine);
	for (int i = 0; i < 4; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 40, 88);
	}
	uint32_t oldest = 0;
	for (uint32_t i = 0; i < f.engine->n_log; i++) {
		bool present = false;
		for (uint32_t k = 0; k < f.engine->log[i].n; k++)
			present |= f.engine->log[i].first_token[k] == oldest;
		if (!present) {
			/* then it has ended just before, and the next one is the oldest */
			assert_true(++oldest < 4);
			i--;
		}
	}
	assert_int_equal(oldest, 3);
	assert_true(f.engine->n_log <= 2 * 4 * (3 + 88));
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(decode_never_waits_for_a_prompt),
		cmocka_unit_test(chunks_adapt_to_step_time),
		cmocka_unit_test(free_rows_are_used),
		cmocka_unit_test(tokens_come_before_ends),
		cmocka_unit_test(the_device_does_not_wait_for_delivery),
		cmocka_unit_test(shared_prefixes_are_counted_as_cached),
		cmocka_unit_test(a_prefix_is_shared_with_the_request_just_ahead),
		cmocka_unit_test(a_prompt_is_cut_where_its_state_is_saved),
		cmocka_unit_test(the_next_turn_computes_what_is_new),
		cmocka_unit_test(a_deferred_hit_does_not_stop_streams),
		cmocka_unit_test(hits_are_admitted_in_portions),
		cmocka_unit_test(preemption_gives_identical_output),
		cmocka_unit_test(a_page_a_sequence_admits_all),
		cmocka_unit_test(without_a_slot_a_request_waits),
		cmocka_unit_test(the_oldest_advances_in_every_step),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	steps_overlap = true;
	return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
