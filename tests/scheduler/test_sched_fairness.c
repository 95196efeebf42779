/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one principal can do to another: whoever floods the scheduler, holds its
 * sequences or its pages, or fills its queue delays others by a step and their
 * shares. Steps are let through one by one, and everything is counted in steps and
 * in tokens computed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler/shares.h"
#include "tests/scheduler/sched_fixture.h"

/* Steps until a request that is first has its first token: the one that waits at the gate, which
 * was planned before it came, and its own. On an asynchronous device one more is planned already,
 * and if somebody must give way, one is planned without its successor. */
#define AT_ONCE (steps_overlap ? 3u : 2u)

static void submit_by(struct fixture *f, int i, uint32_t n, uint32_t max_tokens, uint32_t principal)
{
	int32_t prompt[2048];
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	r.principal = principal;
	assert_int_equal(mx_sched_submit(f->sched, &r, &f->c[i].id, NULL), MX_OK);
}

static uint32_t tokens_of(struct client *c)
{
	pthread_mutex_lock(&c->lock);
	uint32_t n = c->n;
	pthread_mutex_unlock(&c->lock);
	return n;
}

/* Lets steps through until client i has a token. Returns their number; `most` + 1 if it is more. */
static uint32_t steps_until_token(struct fixture *f, int i, uint32_t most)
{
	for (uint32_t n = 1; n <= most; n++) {
		test_engine_pass(f->engine, 1);
		if (tokens_of(&f->c[i]))
			return n;
	}
	return most + 1;
}

static void finish_all(struct fixture *f, int n)
{
	test_engine_open(f->engine);
	for (int i = 0; i < n; i++)
		client_wait_done(&f->c[i]);
	finish(f);
}

/* One principal holds all sequences with long answers, and more of its requests wait. */
static void a_flood_of_long_answers_gives_way(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	for (int i = 0; i < 12; i++)
		submit_by(&f, i, 30, 300, 1);
	test_engine_pass(f.engine, 12);
	submit_by(&f, 12, 30, 20, 2);
	uint32_t steps = steps_until_token(&f, 12, 50);
	print_message("%u steps to the first token\n", steps);
	assert_true(steps <= AT_ONCE);
	assert_int_equal(stats(&f).principals, 2);
	assert_int_equal(stats(&f).share_preemptions, 1);
	/* From then on it has a token in every step. */
	for (uint32_t n = tokens_of(&f.c[12]); n < 19; n++) {
		assert_int_equal(tokens_of(&f.c[12]), n);
		test_engine_pass(f.engine, 1);
	}
	test_engine_open(f.engine);
	for (int i = 0; i < 13; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 30, i < 12 ? 300 : 20);
	}
	assert_int_equal(f.c[0].done.preemptions, 0);
	finish(&f);
}

/* Answers hold all pages, sequences are free. */
static void a_flood_that_holds_all_pages_gives_way(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config small = roomy;
	small.n_pages = 32;
	start(&f, &small);
	test_engine_gate(f.engine);
	for (int i = 0; i < 8; i++)
		submit_by(&f, i, 60 + (uint32_t)i, 200, 1);
	test_engine_pass(f.engine, 30);
	submit_by(&f, 12, 90, 20, 2);
	uint32_t steps = steps_until_token(&f, 12, 50);
	print_message("%u steps to the first token\n", steps);
	assert_true(steps <= AT_ONCE);
	assert_true(stats(&f).share_preemptions > 0);
	test_engine_open(f.engine);
	for (int i = 0; i < 8; i++)
		client_wait_done(&f.c[i]);
	client_wait_done(&f.c[12]);
	for (int i = 0; i < 8; i++)
		assert_reference(&f, i, 60 + (uint32_t)i, 200);
	assert_reference(&f, 12, 90, 20);
	assert_int_equal(f.c[12].done.preemptions, 0);
	finish(&f);
}

static void a_long_prompt_does_not_hold_others_up(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	submit_by(&f, 0, 2000, 1, 1); /* sixteen steps */
	test_engine_pass(f.engine, 2);
	submit_by(&f, 1, 10, 3, 2);
	uint32_t steps = steps_until_token(&f, 1, 50);
	print_message("%u steps to the first token\n", steps);
	assert_true(steps <= AT_ONCE);
	assert_int_equal(tokens_of(&f.c[0]), 0);
	finish_all(&f, 2);
}

/* Two long prompts of one principal and one of another: that one has every other step. */
static void prompts_share_the_steps(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	submit_by(&f, 0, 2000, 1, 1);
	submit_by(&f, 1, 2000, 1, 1);
	test_engine_wait_entered(f.engine);
	submit_by(&f, 2, 1280, 1, 2); /* ten steps */
	uint32_t steps = steps_until_token(&f, 2, 30);
	print_message("%u steps for ten of prompt\n", steps);
	assert_true(steps <= 2 * 10 + AT_ONCE);
	finish_all(&f, 3);
}

/* ---- shares of a long time ---- */

struct flood {
	struct mx_sched *sched;
	uint32_t principal, weight, prompt, output;
	uint32_t n_sent;
	_Atomic uint32_t n_done;
};

static bool any_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)arg, (void)token, (void)is_stop, (void)logprob;
	return true;
}

static void count_done(void *arg, const struct mx_done *done)
{
	(void)done;
	struct flood *l = arg;
	atomic_fetch_add(&l->n_done, 1);
}

/* Keeps n requests of the flood unfinished. Prompts begin with the principal's number and share
 * nothing. */
static void keep(struct flood *l, uint32_t n)
{
	while (l->n_sent - atomic_load(&l->n_done) < n) {
		int32_t prompt[2048];
		for (uint32_t i = 0; i < l->prompt; i++)
			prompt[i] = (int32_t)((l->n_sent * 31 + i * 7) % VOCAB);
		prompt[0] = (int32_t)l->principal;
		prompt[1] = (int32_t)(l->n_sent % VOCAB);
		prompt[2] = (int32_t)(l->n_sent / VOCAB);
		struct mx_request r = test_request(prompt, l->prompt, l->output, NULL);
		r.principal = l->principal;
		r.weight = l->weight;
		r.sink = (struct mx_sink){.arg = l, .token = any_token, .done = count_done};
		uint64_t id;
		assert_int_equal(mx_sched_submit(l->sched, &r, &id, NULL), MX_OK);
		l->n_sent++;
	}
}

/* Returns the tokens computed for a principal since step `from` of the log. */
static uint32_t computed(const struct fixture *f, uint32_t from, uint32_t principal)
{
	uint32_t n = 0;
	for (uint32_t s = from; s < f->engine->n_log; s++)
		for (uint32_t i = 0; i < f->engine->log[s].n; i++)
			if (f->engine->log[s].first_token[i] == principal)
				n += f->engine->log[s].item_n[i];
	return n;
}

static void drain(struct fixture *f)
{
	test_engine_open(f->engine);
	mx_sched_drain(f->sched);
	while (!mx_sched_idle(f->sched))
		usleep(1000);
	finish(f);
}

static void close_to(double x, double want, double tolerance)
{
	print_message("%.3f, should be %.3f\n", x, want);
	assert_true(x > want - tolerance && x < want + tolerance);
}

/* Many short answers against few long ones: what counts is tokens, by weight. */
static void floods_share_by_weight(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	struct flood a = {f.sched, 1, 1, 100, 2, 0, 0}, b = {f.sched, 2, 3, 20, 30, 0, 0};
	for (int i = 0; i < 1500; i++) {
		keep(&a, 15);
		keep(&b, 15);
		if (!i)
			test_engine_wait_entered(f.engine);
		test_engine_pass(f.engine, 1);
	}
	double x = computed(&f, 0, 1), y = computed(&f, 0, 2);
	close_to(y / x, 3, .15);
	drain(&f);
}

/* A principal that was idle while others used everything is not served more than its share later,
 * nor is one that used everything while nobody else came served less. */
static void idle_time_gives_no_credit(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	struct flood a = {f.sched, 1, 1, 100, 2, 0, 0}, b = {f.sched, 2, 1, 100, 2, 0, 0};
	keep(&b, 1); /* not new */
	keep(&a, 15);
	test_engine_wait_entered(f.engine);
	for (int i = 0; i < 300; i++) {
		keep(&a, 15);
		test_engine_pass(f.engine, 1);
	}
	uint32_t from = f.engine->n_log;
	for (int i = 0; i < 300; i++) {
		keep(&a, 15);
		keep(&b, 15);
		test_engine_pass(f.engine, 1);
	}
	double x = computed(&f, from, 1), y = computed(&f, from, 2);
	close_to(y / (x + y), .5, .02);
	drain(&f);
}

/* ---- who asks for more than its share ---- */

/* Needs three quarters of the pages, beside a flood that takes each one that is free. */
static void a_request_beyond_its_share_is_served(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config small = roomy;
	small.n_pages = 32;
	start(&f, &small);
	test_engine_gate(f.engine);
	struct flood a = {f.sched, 20, 1, 30, 60, 0, 0};
	keep(&a, 15);
	test_engine_wait_entered(f.engine);
	submit_by(&f, 1, 300, 80, 2);
	uint32_t steps = 0;
	for (; tokens_of(&f.c[1]) < 80 && steps < 1000; steps++) {
		keep(&a, 15);
		test_engine_pass(f.engine, 1);
	}
	print_message("%u steps, %u preemptions\n", steps, (unsigned)stats(&f).preemptions);
	/* What ran has ended, and then it runs: all streams at their full length before it, and itself
	 * twice. */
	assert_true(steps <= 60 + 2 * (3 + 80));
	test_engine_open(f.engine);
	client_wait_done(&f.c[1]);
	assert_reference(&f, 1, 300, 80);
	drain(&f);
}

/* No two of these fit beside each other to their ends: whoever runs must not be thrown out by the
 * other one again and again. */
static void floods_beyond_their_shares_advance(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config small = roomy;
	small.n_pages = 32;
	small.prefix_cache = false; /* every preemption costs a whole recomputation */
	start(&f, &small);
	test_engine_gate(f.engine);
	struct flood a = {f.sched, 1, 1, 200, 150, 0, 0}, b = {f.sched, 2, 1, 240, 100, 0, 0};
	for (int i = 0; i < 3000; i++) {
		keep(&a, 5);
		keep(&b, 5);
		if (!i)
			test_engine_wait_entered(f.engine);
		test_engine_pass(f.engine, 1);
	}
	uint32_t x = atomic_load(&a.n_done), y = atomic_load(&b.n_done);
	uint32_t preemptions = (uint32_t)stats(&f).preemptions;
	print_message("%u and %u requests, %u preemptions\n", x, y, preemptions);
	/* One after another takes 152 and 102 steps. */
	assert_true(x * 152 + y * 102 >= 3000 * 3 / 4);
	assert_true(preemptions <= 2 * (x + y));
	close_to((double)x * 350 / (x * 350 + y * 340), .5, .1);
	drain(&f);
}

/* ---- places in the queue ---- */

static uint32_t fill(struct fixture *f, uint32_t principal, uint32_t weight, uint32_t most)
{
	static struct flood l;
	int32_t prompt[10] = {0};
	struct mx_request r = test_request(prompt, 10, 2, NULL);
	r.principal = principal;
	r.weight = weight;
	r.sink = (struct mx_sink){.arg = &l, .token = any_token, .done = count_done};
	uint64_t id;
	for (uint32_t n = 0; n < most; n++)
		if (mx_sched_submit(f->sched, &r, &id, NULL) != MX_OK)
			return n;
	return most;
}

static void a_full_queue_has_places_for_others(void **state)
{
	(void)state;
	struct fixture f;
	start_with(&f, &roomy, 92, 1e6);
	test_engine_gate(f.engine);
	const uint32_t most = mx_sched_max_requests(f.sched);
	assert_int_equal(most, 100);
	assert_int_equal(fill(&f, 1, 1, 1000), most); /* as if there were no others */
	assert_int_equal(fill(&f, 2, 1, 1000), most / 2);
	assert_int_equal(fill(&f, 3, 1, 1000), most / 4);
	for (uint32_t i = 4; i < 8; i++)
		assert_int_equal(fill(&f, i, 1, 1), 1);
	assert_int_equal(fill(&f, 1, 1, 1), 0);
	assert_int_equal(fill(&f, 1, 1000, 1), 0); /* never more than alone */
	assert_int_equal(stats(&f).rejected_queue, 5);
	drain(&f);
}

/* ---- the shares, on their own ---- */

static void shares_remember_debts_in_bounded_memory(void **state)
{
	(void)state;
	struct mx_shares s;
	assert_int_equal(mx_shares_init(&s, 4), MX_OK);
	struct mx_share *a = mx_shares_join(&s, 7, 2);
	assert_ptr_equal(mx_shares_find(&s, 7), a);
	assert_ptr_equal(mx_shares_join(&s, 7, 5), a);
	assert_int_equal(s.weights, 5); /* the newest counts, once */
	a->service = 1000;
	mx_shares_leave(&s, a);
	assert_int_equal(s.n_active, 1);
	mx_shares_leave(&s, a);
	assert_int_equal(s.n_active, 0);
	assert_int_equal(s.weights, 0);
	assert_ptr_equal(mx_shares_join(&s, 7, 1), a); /* a pause */
	assert_int_equal(a->service, 1000);
	mx_shares_leave(&s, a);
	struct mx_share *other = mx_shares_join(&s, 8, 1);
	for (uint32_t i = 100; i < 10000; i++) {
		struct mx_share *e = mx_shares_join(&s, i, 1);
		assert_int_equal(e->service, 0);
		assert_ptr_equal(mx_shares_find(&s, i), e);
		e->service = i;
		mx_shares_leave(&s, e);
	}
	assert_null(mx_shares_find(&s, 7)); /* long ago */
	assert_ptr_equal(mx_shares_find(&s, 8), other);
	assert_non_null(mx_shares_find(&s, 9999));
	mx_shares_free(&s);
}

static void virtual_time_never_falls(void **state)
{
	(void)state;
	struct mx_shares s;
	assert_int_equal(mx_shares_init(&s, 4), MX_OK);
	struct mx_share *a = mx_shares_join(&s, 1, 1), *b = mx_shares_join(&s, 2, 1);
	a->in_prompt = true;
	mx_shares_update(&s);
	a->service = 500;
	a->in_prompt = b->in_prompt = true;
	mx_shares_update(&s); /* b begins where a stands */
	assert_int_equal(b->service, 500);
	a->service = 800;
	a->in_prompt = true;
	mx_shares_update(&s); /* b pauses */
	assert_int_equal(s.time, 800);
	b->service = 900; /* its streams went on */
	a->in_prompt = b->in_prompt = true;
	mx_shares_update(&s);
	assert_int_equal(b->service, 900); /* a debt stays */
	mx_shares_leave(&s, a);
	mx_shares_update(&s); /* nobody has a backlog: all were served as they wished */
	struct mx_share *c = mx_shares_join(&s, 3, 1);
	c->in_prompt = true;
	mx_shares_update(&s);
	assert_int_equal(c->service, 900);
	assert_int_equal(s.time, 900);
	mx_shares_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flood_of_long_answers_gives_way),
		cmocka_unit_test(a_flood_that_holds_all_pages_gives_way),
		cmocka_unit_test(a_long_prompt_does_not_hold_others_up),
		cmocka_unit_test(prompts_share_the_steps),
		cmocka_unit_test(floods_share_by_weight),
		cmocka_unit_test(idle_time_gives_no_credit),
		cmocka_unit_test(a_request_beyond_its_share_is_served),
		cmocka_unit_test(floods_beyond_their_shares_advance),
		cmocka_unit_test(a_full_queue_has_places_for_others),
		cmocka_unit_test(shares_remember_debts_in_bounded_memory),
		cmocka_unit_test(virtual_time_never_falls),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	steps_overlap = true;
	return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
