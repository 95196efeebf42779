/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of requests, against the fake engine, one behaviour a test: output,
 * admission, cancellation, shutdown and failure. test_sched_steps.c tests the
 * contents of steps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "tests/scheduler/sched_fixture.h"

/* ---- the life of one request ---- */

static void a_request_gets_its_tokens(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	submit(&f, 0, 300, 40); /* longer than a step */
	client_wait_done(&f.c[0]);
	assert_reference(&f, 0, 300, 40);
	const struct mx_done *d = &f.c[0].done;
	assert_int_equal(d->finish, MX_FINISH_LENGTH);
	assert_int_equal(d->status, MX_OK);
	assert_int_equal(d->stop_token, -1);
	assert_int_equal(d->prompt_tokens, 300);
	assert_int_equal(d->output_tokens, 40);
	assert_int_equal(d->cached_tokens, 0);
	assert_true(d->arrival_ns <= d->first_scheduled_ns);
	assert_true(d->first_scheduled_ns <= d->first_token_ns);
	assert_true(d->first_token_ns <= d->last_token_ns);
	assert_int_equal(f.c[0].usage_at_done.pages_used, 0);
	assert_int_equal(f.c[0].n_logprobs, 0);
	struct mx_sched_stats v = stats(&f);
	assert_int_equal(v.prompt_tokens, 300);
	assert_int_equal(v.output_tokens, 40);
	assert_int_equal(v.finished[MX_FINISH_LENGTH], 1);
	assert_int_equal(mx_hist_total(&v.ttft), 1);
	assert_int_equal(mx_hist_total(&v.itl), 39);
	assert_int_equal(mx_hist_total(&v.e2e), 1);
	assert_true(v.longest_gap_s > 0);
	finish(&f);
}

static void log_probabilities_come_when_asked_for(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	int32_t prompt[300];
	fill_prompt(prompt, 300, 1);
	struct mx_request r = test_request(prompt, 300, 5, &f.c[0]);
	r.params.logprobs = 3;
	r.params.prompt_logprobs = 0;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[0].id, NULL), MX_OK);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n_logprobs, 5);
	assert_int_equal(f.c[0].n_prompt_logprobs, 299);
	assert_true(f.c[0].prompt_in_order);
	finish(&f);
}

static void scoring_ends_after_the_prompt(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	int32_t prompt[200];
	fill_prompt(prompt, 200, 1);
	for (int i = 0; i < 2; i++) { /* the second time from the prefix cache, as far as it may */
		struct mx_request r = test_request(prompt, 200, 0, &f.c[i]);
		r.params.prompt_logprobs = 1;
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
		client_wait_done(&f.c[i]);
		assert_int_equal(f.c[i].done.finish, MX_FINISH_LENGTH);
		assert_int_equal(f.c[i].n, 0);
		assert_int_equal(f.c[i].n_prompt_logprobs, 199);
		assert_true(f.c[i].prompt_in_order);
	}
	finish(&f);
}

/* Each time the same vector, once, before the end: beside streams, in chunks, from the cache. */
static void a_pooled_prompt_gives_its_vector(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	int32_t prompt[300];
	fill_prompt(prompt, 300, 1);
	static const int32_t pooled[] = {3, 5};
	for (int p = MX_POOLING_LAST; p <= MX_POOLING_TOKENS; p++) {
		for (int i = 0; i < 2; i++) {
			struct client *c = &f.c[2 * (p - 1) + i];
			struct mx_request r = test_request(prompt, 300, 0, c);
			r.params.pooling = (enum mx_pooling)p;
			r.params.pooled = pooled;
			r.params.n_pooled = p == MX_POOLING_TOKENS ? 2 : 0;
			if (i) /* in company */
				submit(&f, 7, 20, 30);
			assert_int_equal(mx_sched_submit(f.sched, &r, &c->id, NULL), MX_OK);
			client_wait_done(c);
			assert_int_equal(c->done.finish, MX_FINISH_LENGTH);
			assert_int_equal(c->n, 0);
			assert_int_equal(c->n_vectors, 1);
			assert_int_equal(c->n_after_done, 0);
			assert_memory_equal(c->vector, c[-i].vector, sizeof c->vector);
			if (!i)
				continue;
			client_wait_done(&f.c[7]);
			client_free(&f.c[7]);
			client_init(&f.c[7]);
		}
	}
	assert_memory_not_equal(f.c[0].vector, f.c[2].vector, sizeof f.c[0].vector);
	struct mx_request r = test_request(prompt, 300, 1, &f.c[6]);
	struct mx_err err = {0};
	r.params.pooling = MX_POOLING_LAST;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[6].id, &err), MX_E_INVALID);
	r.max_tokens = 0;
	r.params.pooling = MX_POOLING_TOKENS;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[6].id, &err), MX_E_INVALID);
	static const int32_t beyond[] = {VOCAB};
	r.params.pooled = beyond;
	r.params.n_pooled = 1;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[6].id, &err), MX_E_INVALID);
	finish(&f);
}

static void a_stop_token_is_delivered_and_ends_the_request(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	int32_t prompt[20], want[50];
	fill_prompt(prompt, 20, 1);
	struct mx_request r = test_request(prompt, 20, 50, &f.c[0]);
	assert_int_equal(reference_run(&roomy, &r, want), 50);
	int32_t stop[] = {want[11], VOCAB + 5};
	uint32_t at = 0;
	while (want[at] != stop[0])
		at++;
	r.stop_tokens = stop;
	r.n_stop_tokens = 2;
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[0].id, NULL), MX_OK);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, at + 1);
	assert_int_equal(f.c[0].n_stop, 1);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_STOP);
	assert_int_equal(f.c[0].done.stop_token, stop[0]);
	/* Banned until min_tokens, it does not come before. */
	r.params.stop = stop;
	r.params.n_stop = 1;
	r.params.min_tokens = 40;
	r.sink = client_sink(&f.c[1]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[1].id, NULL), MX_OK);
	client_wait_done(&f.c[1]);
	assert_true(f.c[1].n >= 40);
	finish(&f);
}

static void the_sink_can_end_its_request(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	f.c[0].stop_after = 7;
	submit(&f, 0, 20, 100);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, 7);
	assert_int_equal(f.c[0].n_stop, 0);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_STOP);
	assert_int_equal(f.c[0].done.stop_token, -1);
	finish(&f);
}

/* ---- admission ---- */

static void requests_that_cannot_fit_are_refused(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	static int32_t prompt[3000];
	struct mx_err err = {0};
	uint64_t id = 0;
	struct mx_request r = test_request(prompt, 2000, 49, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, &err), MX_E_RANGE);
	assert_non_null(strstr(err.text, "2000"));
	assert_non_null(strstr(err.text, "49"));
	assert_non_null(strstr(err.text, "2048"));
	r = test_request(prompt, 3000, UINT32_MAX, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, &err), MX_E_RANGE);
	r = test_request(prompt, 0, 5, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, &err), MX_E_INVALID);
	prompt[3] = VOCAB;
	r = test_request(prompt, 5, 5, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, &err), MX_E_INVALID);
	assert_non_null(strstr(err.text, "position 3"));
	prompt[3] = 0;
	r.n_stop_tokens = SIZE_MAX / 8;
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, &err), MX_E_INVALID);
	assert_int_equal(id, 0);
	assert_int_equal(stats(&f).rejected_length, 2);
	r = test_request(prompt, 2000, 48, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &id, NULL), MX_OK);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, 48);
	finish(&f);
}

static void what_exceeds_the_pool_is_refused_even_if_the_context_is_longer(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config small = roomy;
	small.n_pages = 4;
	start(&f, &small);
	assert_int_equal(mx_sched_max_len(f.sched), 64);
	int32_t prompt[64] = {0};
	struct mx_request r = test_request(prompt, 60, 5, &f.c[0]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[0].id, NULL), MX_E_RANGE);
	submit(&f, 1, 60, 4);
	client_wait_done(&f.c[1]);
	assert_reference(&f, 1, 60, 4);
	finish(&f);
}

static void a_full_queue_refuses(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config one = roomy;
	one.max_sequences = 1;
	start_with(&f, &one, 2, 1e6);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 3);
	test_engine_wait_entered(f.engine); /* 0 runs, so the queue is empty */
	submit(&f, 1, 10, 3);
	submit(&f, 2, 10, 3);
	int32_t prompt[4] = {0};
	struct mx_request r = test_request(prompt, 4, 1, &f.c[3]);
	struct mx_err err = {0};
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[3].id, &err), MX_E_BUSY);
	struct mx_sched_stats v = stats(&f); /* while a step is being computed */
	assert_int_equal(v.rejected_queue, 1);
	assert_int_equal(v.waiting, 2);
	assert_int_equal(v.running, 1);
	assert_true(v.oldest_wait_s > 0);
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++)
		client_wait_done(&f.c[i]);
	assert_int_equal(f.c[3].n_done, 0);
	finish(&f);
}

/* Idle sequences count as places: a burst on an idle scheduler fills both. */
static void a_burst_fills_sequences_and_queue(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config four = roomy;
	four.max_sequences = 4;
	start_with(&f, &four, 2, 1e6);
	assert_int_equal(mx_sched_max_requests(f.sched), 6);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 3);
	test_engine_wait_entered(f.engine); /* 0 runs, alone: nobody else is admitted in this step */
	for (int i = 1; i < 6; i++)
		submit(&f, i, 10, 3);
	int32_t prompt[4] = {0};
	struct mx_request r = test_request(prompt, 4, 1, &f.c[6]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[6].id, NULL), MX_E_BUSY);
	test_engine_open(f.engine);
	for (int i = 0; i < 6; i++)
		client_wait_done(&f.c[i]);
	finish(&f);
}

static mx_status try_submit(struct fixture *f, int i)
{
	int32_t prompt[10];
	fill_prompt(prompt, 10, i);
	struct mx_request r = test_request(prompt, 10, 3, &f->c[i]);
	return mx_sched_submit(f->sched, &r, &f->c[i].id, NULL);
}

/* Requests that wait keep their ids and places while the queue moves to more memory. */
static void the_queue_can_change_its_length(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config one = roomy;
	one.max_sequences = 1;
	start_with(&f, &one, 2, 1e6);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 3);
	test_engine_wait_entered(f.engine);
	submit(&f, 1, 10, 3);
	submit(&f, 2, 10, 3);
	assert_int_equal(try_submit(&f, 3), MX_E_BUSY);
	assert_int_equal(mx_sched_set_queue(f.sched, 0), MX_E_INVALID);
	assert_int_equal(mx_sched_set_queue(f.sched, UINT32_MAX), MX_E_INVALID);
	assert_int_equal(mx_sched_set_queue(f.sched, 9), MX_OK);
	assert_int_equal(mx_sched_max_requests(f.sched), 10);
	for (int i = 3; i < 10; i++)
		submit(&f, i, 10, 3);
	assert_int_equal(try_submit(&f, 10), MX_E_BUSY);
	/* a shorter one takes nobody in, and throws nobody out */
	assert_int_equal(mx_sched_set_queue(f.sched, 1), MX_OK);
	assert_int_equal(try_submit(&f, 10), MX_E_BUSY);
	assert_int_equal(stats(&f).waiting, 9);
	mx_sched_cancel(f.sched, f.c[1].id, MX_CANCEL_API);
	mx_sched_cancel(f.sched, f.c[8].id, MX_CANCEL_API);
	mx_sched_cancel(f.sched, f.c[8].id | (1u << 21), MX_CANCEL_API); /* an index beyond the table */
	test_engine_open(f.engine);
	for (int i = 0; i < 10; i++)
		client_wait_done(&f.c[i]);
	for (int i = 0; i < 10; i++) {
		bool cancelled = i == 1 || i == 8;
		assert_int_equal(f.c[i].done.finish, cancelled ? MX_FINISH_ABORT : MX_FINISH_LENGTH);
		if (!cancelled)
			assert_reference(&f, i, 10, 3);
	}
	test_engine_gate(f.engine);
	submit(&f, 10, 10, 3);
	test_engine_wait_entered(f.engine);
	submit(&f, 11, 10, 3);
	assert_int_equal(try_submit(&f, 12), MX_E_BUSY);
	test_engine_open(f.engine);
	client_wait_done(&f.c[10]);
	client_wait_done(&f.c[11]);
	finish(&f);
}

static void a_batch_comes_in_whole_or_not_at_all(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config two = roomy;
	two.max_sequences = 2;
	start_with(&f, &two, 3, 1e6);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 3);
	test_engine_wait_entered(f.engine);
	int32_t prompt[10];
	struct mx_request r[6];
	uint64_t ids[6] = {0};
	struct mx_err err = {0};
	for (int i = 0; i < 6; i++) {
		fill_prompt(prompt, 10, 1);
		r[i] = test_request(prompt, 10, 3, &f.c[1 + i]);
	}
	assert_int_equal(mx_sched_submit_all(f.sched, r, 6, ids, &err), MX_E_LIMIT); /* never fits */
	assert_int_equal(mx_sched_submit_all(f.sched, r, 5, ids, &err), MX_E_BUSY);  /* not now */
	r[3].n_prompt = 0;
	assert_int_equal(mx_sched_submit_all(f.sched, r, 4, ids, &err), MX_E_INVALID);
	struct mx_sched_stats v = stats(&f);
	assert_int_equal(v.waiting, 0);
	assert_int_equal(v.rejected_queue, 1);
	assert_int_equal(ids[0], 0);
	r[3].n_prompt = 10;
	assert_int_equal(mx_sched_submit_all(f.sched, r, 4, ids, &err), MX_OK);
	for (int i = 0; i < 4; i++)
		assert_true(ids[i] != 0 && (i == 0 || ids[i] > ids[i - 1]));
	assert_int_equal(stats(&f).waiting, 4);
	test_engine_open(f.engine);
	for (int i = 0; i < 5; i++)
		client_wait_done(&f.c[i]);
	for (int i = 2; i < 5; i++) {
		assert_int_equal(f.c[i].n, f.c[1].n);
		assert_memory_equal(f.c[i].tokens, f.c[1].tokens, f.c[1].n * sizeof(int32_t));
	}
	v = stats(&f);
	assert_int_equal(v.finished[MX_FINISH_ABORT], 0);
	assert_int_equal(f.c[5].n_done + f.c[6].n_done, 0);
	finish(&f);
}

static void service_is_by_priority_then_arrival(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config one = roomy;
	one.max_sequences = 1;
	start(&f, &one);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 3);
	test_engine_wait_entered(f.engine);
	const int32_t priority[] = {0, 5, 0, -1, 5, 0, -1};
	for (int i = 1; i < 7; i++)
		submit_priority(&f, i, 10, 3, priority[i]);
	test_engine_open(f.engine);
	for (int i = 0; i < 7; i++)
		client_wait_done(&f.c[i]);
	const int want[] = {0, 3, 6, 2, 5, 1, 4};
	for (int i = 1; i < 7; i++) {
		assert_true(f.c[want[i - 1]].token_order < f.c[want[i]].token_order);
		assert_true(f.c[want[i - 1]].done_order < f.c[want[i]].done_order);
	}
	finish(&f);
}

/* ---- cancellation ---- */

static void cancelling_frees_memory_in_every_phase(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config two = roomy;
	two.max_sequences = 2;
	start(&f, &two);
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 50); /* will decode */
	test_engine_wait_entered(f.engine);
	test_engine_pass(f.engine, 2);
	submit(&f, 1, 1000, 50); /* will be in its prompt */
	test_engine_pass(f.engine, 2);
	submit(&f, 2, 10, 50); /* will wait */
	assert_int_equal(f.c[0].n >= 3, 1);
	assert_int_equal(f.c[1].n, 0);
	mx_sched_cancel(f.sched, f.c[2].id, MX_CANCEL_CLIENT);
	mx_sched_cancel(f.sched, f.c[1].id, MX_CANCEL_API);
	mx_sched_cancel(f.sched, f.c[0].id, MX_CANCEL_SHUTDOWN);
	mx_sched_cancel(f.sched, f.c[0].id, MX_CANCEL_CLIENT); /* again: ignored */
	mx_sched_cancel(f.sched, 0, MX_CANCEL_CLIENT);         /* unknown: ignored */
	mx_sched_cancel(f.sched, UINT64_MAX, MX_CANCEL_CLIENT);
	uint64_t steps = f.engine->entered;
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++) {
		client_wait_done(&f.c[i]);
		assert_int_equal(f.c[i].done.finish, MX_FINISH_ABORT);
		assert_int_equal(f.c[i].done.status, MX_E_CANCELLED);
		mx_sched_cancel(f.sched, f.c[i].id, MX_CANCEL_CLIENT); /* finished: ignored */
	}
	assert_int_equal(f.c[2].n, 0);
	struct mx_engine_usage u;
	f.engine->inner->ops->usage(f.engine->inner, &u);
	assert_int_equal(u.pages_used, 0);
	struct mx_sched_stats v = stats(&f);
	assert_int_equal(v.cancelled[MX_CANCEL_CLIENT][0], 1);
	assert_int_equal(v.cancelled[MX_CANCEL_API][1], 1);
	assert_int_equal(v.cancelled[MX_CANCEL_SHUTDOWN][1], 1);
	assert_int_equal(v.finished[MX_FINISH_ABORT], 3);
	assert_int_equal(f.engine->entered, steps); /* no step after the one in flight */
	finish(&f);
}

static void a_sink_may_cancel(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	f.c[0].cancel_after = 4;
	f.c[0].cancel_from = f.sched;
	submit(&f, 0, 10, 50);
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].n, 4);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_ABORT);
	/* The request was cancelled between two steps, and no step follows. */
	assert_int_equal(stats(&f).running, 0);
	finish(&f);
}

static void a_request_that_ends_while_being_cancelled_ends_once(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	f.c[0].cancel_after = 5;
	f.c[0].cancel_from = f.sched;
	submit(&f, 0, 10, 5); /* cancelled in its last callback */
	client_wait_done(&f.c[0]);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_LENGTH);
	submit(&f, 1, 10, 5);
	client_wait_done(&f.c[1]);
	assert_int_equal(f.c[1].done.finish, MX_FINISH_LENGTH);
	finish(&f);
}

/* ---- shutdown and failure ---- */

static void draining_refuses_new_and_finishes_old(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	assert_true(mx_sched_idle(f.sched));
	for (int i = 0; i < 12; i++)
		submit(&f, i, 20, 10);
	mx_sched_drain(f.sched);
	assert_false(mx_sched_idle(f.sched));
	int32_t prompt[4] = {0};
	struct mx_request r = test_request(prompt, 4, 1, &f.c[12]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[12].id, NULL), MX_E_SHUTDOWN);
	assert_int_equal(stats(&f).rejected_draining, 1);
	test_engine_open(f.engine);
	for (int i = 0; i < 12; i++)
		client_wait_done(&f.c[i]);
	for (int i = 0; i < 12; i++)
		assert_int_equal(f.c[i].done.finish, MX_FINISH_LENGTH);
	while (!mx_sched_idle(f.sched))
		usleep(100);
	finish(&f);
}

static void destroy_ends_what_is_unfinished(void **state)
{
	(void)state;
	struct fixture f;
	struct mx_fake_config slow = roomy;
	slow.ns_per_step = 20000000; /* a thousand tokens take twenty seconds */
	start(&f, &slow);
	for (int i = 0; i < 12; i++)
		submit(&f, i, 20, 1000);
	client_wait_tokens(&f.c[0], 3);
	mx_sched_cancel(f.sched, f.c[5].id, MX_CANCEL_CLIENT);
	finish(&f);
	for (int i = 0; i < 12; i++) {
		assert_int_equal(f.c[i].n_done, 1);
		if (i == 5 && f.c[i].done.finish == MX_FINISH_ABORT)
			continue;
		assert_int_equal(f.c[i].done.finish, MX_FINISH_ERROR);
		assert_int_equal(f.c[i].done.status, MX_E_SHUTDOWN);
	}
}

static void a_failed_step_ends_everything(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	f.engine->fail_at = 4;
	for (int i = 0; i < 10; i++) /* eight run and two wait */
		submit(&f, i, 20, 10);
	assert_false(mx_sched_failed(f.sched));
	unsigned long errors = mx_log_count(MX_LOG_ERROR);
	test_engine_open(f.engine);
	for (int i = 0; i < 10; i++) {
		client_wait_done(&f.c[i]);
		assert_int_equal(f.c[i].done.finish, MX_FINISH_ERROR);
		assert_int_equal(f.c[i].done.status, MX_E_DEVICE);
	}
	assert_true(mx_sched_failed(f.sched));
	assert_int_equal(mx_log_count(MX_LOG_ERROR), errors + 1);
	int32_t prompt[4] = {0};
	struct mx_request r = test_request(prompt, 4, 1, &f.c[10]);
	assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[10].id, NULL), MX_E_DEVICE);
	assert_int_equal(stats(&f).finished[MX_FINISH_ERROR], 10);
	finish(&f);
}

static void a_broken_sequence_ends_alone(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	test_engine_gate(f.engine);
	f.engine->fail_item_at = 4;
	for (int i = 0; i < 3; i++)
		submit(&f, i, 20, 10);
	test_engine_open(f.engine);
	for (int i = 0; i < 3; i++)
		client_wait_done(&f.c[i]);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_ERROR);
	assert_int_equal(f.c[0].done.status, MX_E_INTERNAL);
	assert_reference(&f, 1, 20, 10);
	assert_reference(&f, 2, 20, 10);
	assert_false(mx_sched_failed(f.sched));
	finish(&f);
}

static void progress_shows_a_stuck_step(void **state)
{
	(void)state;
	struct fixture f;
	start(&f, &roomy);
	uint64_t before = mx_now_ns();
	assert_true(mx_sched_progress_ns(f.sched) >= before); /* idle is a sign of life */
	test_engine_gate(f.engine);
	submit(&f, 0, 10, 20);
	test_engine_wait_entered(f.engine);
	uint64_t stuck = mx_sched_progress_ns(f.sched);
	usleep(2000);
	assert_int_equal(mx_sched_progress_ns(f.sched), stuck);
	test_engine_pass(f.engine, 1);
	assert_true(mx_sched_progress_ns(f.sched) > stuck);
	test_engine_open(f.engine);
	client_wait_done(&f.c[0]);
	finish(&f);
}

static void impossible_limits_are_refused(void **state)
{
	(void)state;
	struct test_engine *e = test_engine_create(&roomy);
	const struct mx_sched_config bad[] = {
		{.max_sequences = 0, .step_tokens = 128, .queue = 1},
		{.max_sequences = 9, .step_tokens = 128, .queue = 1},
		{.max_sequences = 8, .step_tokens = 129, .queue = 1},
		{.max_sequences = 8, .step_tokens = 7, .queue = 1},
		{.max_sequences = 8, .step_tokens = 128, .queue = 0},
		{.max_sequences = 8, .step_tokens = 128, .queue = 1, .max_step_stretch = -1},
	};
	struct mx_sched *s = NULL;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(mx_sched_create(&e->base, &bad[i], &s), MX_E_INVALID);
	assert_null(s);
	mx_sched_destroy(NULL);
	test_engine_destroy(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_gets_its_tokens),
		cmocka_unit_test(log_probabilities_come_when_asked_for),
		cmocka_unit_test(scoring_ends_after_the_prompt),
		cmocka_unit_test(a_pooled_prompt_gives_its_vector),
		cmocka_unit_test(a_stop_token_is_delivered_and_ends_the_request),
		cmocka_unit_test(the_sink_can_end_its_request),
		cmocka_unit_test(requests_that_cannot_fit_are_refused),
		cmocka_unit_test(what_exceeds_the_pool_is_refused_even_if_the_context_is_longer),
		cmocka_unit_test(a_full_queue_refuses),
		cmocka_unit_test(a_burst_fills_sequences_and_queue),
		cmocka_unit_test(the_queue_can_change_its_length),
		cmocka_unit_test(a_batch_comes_in_whole_or_not_at_all),
		cmocka_unit_test(service_is_by_priority_then_arrival),
		cmocka_unit_test(cancelling_frees_memory_in_every_phase),
		cmocka_unit_test(a_sink_may_cancel),
		cmocka_unit_test(a_request_that_ends_while_being_cancelled_ends_once),
		cmocka_unit_test(draining_refuses_new_and_finishes_old),
		cmocka_unit_test(destroy_ends_what_is_unfinished),
		cmocka_unit_test(a_failed_step_ends_everything),
		cmocka_unit_test(a_broken_sequence_ends_alone),
		cmocka_unit_test(progress_shows_a_stuck_step),
		cmocka_unit_test(impossible_limits_are_refused),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	steps_overlap = true;
	return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
