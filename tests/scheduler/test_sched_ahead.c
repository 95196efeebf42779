/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The differences on an asynchronous device, where a step runs while the host
 * delivers the results of the one before and plans the next. test_sched.c and
 * test_sched_steps.c run on both kinds of engines and check that all else is the
 * same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/scheduler/sched_fixture.h"

/* The calls that a sink observed. */
struct witness {
	struct client *client;
	struct test_engine *engine;
	uint32_t n_tokens, n_running; /* tokens, and those that came while a step ran */
	uint32_t n_prompt_idle;       /* prompt log-probabilities that came while none did */
};

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	struct witness *w = arg;
	w->n_tokens++;
	w->n_running += w->engine->n_flight > 0;
	struct mx_sink sink = client_sink(w->client);
	return sink.token(sink.arg, token, is_stop, logprob);
}

static void on_prompt(void *arg, uint32_t first, uint32_t n, const struct mx_logprob *logprobs)
{
	struct witness *w = arg;
	w->n_prompt_idle += w->engine->n_flight ? 0 : n;
	struct mx_sink sink = client_sink(w->client);
	sink.prompt(sink.arg, first, n, logprobs);
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct witness *w = arg;
	struct mx_sink sink = client_sink(w->client);
	sink.done(sink.arg, done);
}

static void submit_watched(struct fixture *f, struct witness *w, int i, uint32_t n,
                           uint32_t max_tokens, int32_t prompt_logprobs)
{
	int32_t prompt[2048];
	*w = (struct witness){.client = &f->c[i], .engine = f->engine};
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	r.params.prompt_logprobs = prompt_logprobs;
	r.sink = (struct mx_sink){.arg = w, .token = on_token, .prompt = on_prompt, .done = on_done};
	assert_int_equal(mx_sched_submit(f->sched, &r, &f->c[i].id, NULL), MX_OK);
}

static void tokens_are_delivered_while_the_next_step_runs(void **state)
{
	(void)state;
	struct fixture f;
	struct witness w;
	start(&f, &roomy);
	submit_watched(&f, &w, 0, 20, 30, -1);
	client_wait_done(&f.c[0]);
	assert_int_equal(w.n_tokens, 30);
	assert_int_equal(w.n_running, 29); /* nothing follows the last one */
	assert_reference(&f, 0, 20, 30);
	assert_int_equal(f.engine->n_log, 30);
	finish(&f);
}

/* The next step overwrites them. */
static void prompts_are_reported_before_the_next_step(void **state)
{
	(void)state;
	struct fixture f;
	struct witness w;
	start(&f, &roomy);
	submit_watched(&f, &w, 0, 300, 5, 2);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n_prompt_logprobs, 299);
	assert_true(f.c[0].prompt_in_order);
	assert_int_equal(w.n_prompt_idle, 299);
	assert_int_equal(w.n_running, 4);
	finish(&f);
}

/* A stop token is known before the next step begins, the decision of a sink only after. */
static void a_token_after_the_end_is_dropped(void **state)
{
	(void)state;
	struct fixture f;
	int32_t prompt[20], want[50];
	start(&f, &roomy);
	fill_prompt(prompt, 20, 1);
	struct mx_request r = test_request(prompt, 20, 50, &f.c[0]);
	assert_int_equal(reference_run(&roomy, &r, want), 50);
	uint32_t at = 0;
	while (want[at] != want[11])
		at++;
	r.stop_tokens = &want[11];
	r.n_stop_tokens = 1;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[0].id, NULL), MX_OK);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, at + 1);
	assert_int_equal(f.engine->n_log, at + 1);

	f.c[1].stop_after = 7;
	submit(&f, 1, 20, 50);
	client_wait_done(&f.c[1]);
	assert_int_equal(f.c[1].n, 7);
	assert_int_equal(f.c[1].done.output_tokens, 7);
	assert_int_equal(f.c[1].done.finish, MX_FINISH_STOP);
	assert_int_equal(f.c[1].usage_at_done.pages_used, 0);
	assert_int_equal(f.engine->n_log, at + 1 + 7 + 1);
	assert_int_equal(stats(&f).output_tokens, at + 1 + 7);
	finish(&f);
}

static void who_comes_during_a_step_is_in_the_next(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 50);
	test_engine_wait_entered(f.engine); /* what follows this step is planned */
	submit(&f, 1, 10, 50);
	test_engine_pass(f.engine, 1);
	assert_int_equal(f.engine->log[1].n, 2);
	assert_int_equal(f.engine->log[1].first_token[1], 1);
	test_engine_open(f.engine);
	for (int i = 0; i < 2; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 10, 50);
	}
	finish(&f);
}

static void a_cancelled_request_is_not_in_the_next_step(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 50);
	submit(&f, 1, 1000, 50); /* in its prompt */
	test_engine_pass(f.engine, 4);
	uint32_t before = f.c[0].n;
	mx_sched_cancel(f.sched, f.c[1].id, MX_CANCEL_CLIENT);
	test_engine_pass(f.engine, 1);
	client_wait_done(&f.c[1]);
	assert_int_equal(f.c[1].done.finish, MX_FINISH_ABORT);
	assert_int_equal(f.c[1].usage_at_done.pages_used, 1); /* those of the other */
	assert_int_equal(f.c[0].n, before + 1);
	const struct logged_step *last = &f.engine->log[f.engine->n_log - 1];
	assert_int_equal(last->n, 1);
	assert_int_equal(last->tokens, 1);
	mx_sched_cancel(f.sched, f.c[0].id, MX_CANCEL_CLIENT);
	uint64_t steps = f.engine->begun;
	test_engine_open(f.engine);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, before + 1);
	assert_int_equal(f.engine->begun, steps);
	finish(&f);
}

/* A request that fills the pool is preempted only when it is in no running step. */
static void memory_is_taken_between_steps(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config tiny = roomy;
	tiny.n_pages = 12;
	tiny.max_context = 192;
	start(&f, &tiny);
	for (int i = 0; i < 4; i++)
		submit(&f, i, 30, 100);
	uint32_t preemptions = 0;
	for (int i = 0; i < 4; i++) {
		client_wait_done(&f.c[i]);
		assert_reference(&f, i, 30, 100);
		preemptions += f.c[i].done.preemptions;
	}
	assert_true(preemptions > 0); /* and test_engine has watched them */
	assert_int_equal(f.c[0].done.preemptions, 0);
	finish(&f);
}

/* The device is lost when the second step begins: the tokens of the first are delivered. */
static void a_step_that_cannot_begin_ends_everything(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	f.engine->fail_begin_at = 2;
	for (int i = 0; i < 10; i++) /* eight run and two wait */
		submit(&f, i, 10, i ? 10 : 1);
	test_engine_open(f.engine);
	for (int i = 0; i < 10; i++) {
		client_wait_done(&f.c[i]);
		assert_int_equal(f.c[i].done.status, i ? MX_E_DEVICE : MX_OK);
	}
	assert_int_equal(f.c[0].n, 1);
	assert_true(mx_sched_failed(f.sched));
	finish(&f);
}

static void a_stop_waits_for_the_step(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config slow = roomy;
	slow.ns_per_step = 20000000;
	start(&f, &slow);
	for (int i = 0; i < 12; i++)
		submit(&f, i, 20, 1000);
	client_wait_tokens(&f.c[0], 3); /* the next step runs */
	finish(&f);
	for (int i = 0; i < 12; i++)
		assert_int_equal(f.c[i].done.status, MX_E_SHUTDOWN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_are_delivered_while_the_next_step_runs),
		cmocka_unit_test(prompts_are_reported_before_the_next_step),
		cmocka_unit_test(a_token_after_the_end_is_dropped),
		cmocka_unit_test(who_comes_during_a_step_is_in_the_next),
		cmocka_unit_test(a_cancelled_request_is_not_in_the_next_step),
		cmocka_unit_test(memory_is_taken_between_steps),
		cmocka_unit_test(a_step_that_cannot_begin_ends_everything),
		cmocka_unit_test(a_stop_waits_for_the_step),
	};
	steps_overlap = true;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
