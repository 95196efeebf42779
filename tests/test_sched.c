/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's behaviours, one test each, against the fake engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/chunk_policy.h"
#include "tests/sched_util.h"

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

/* The fake engine's way of taking time. */
int __wrap_clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
	if (!virtual_time)
		return __real_clock_nanosleep(id, flags, t, left);
	virtual_ns += (uint64_t)t->tv_sec * MX_NS_PER_S + (uint64_t)t->tv_nsec;
	return 0;
}

/* ---- */

#define VOCAB 1000

static const struct mx_fake_config roomy = {
	.name = "fake",
	.vocab = VOCAB,
	.max_context = 2048,
	.max_sequences = 8,
	.step_tokens = 128,
	.page_tokens = 16,
	.n_pages = 1024,
	.prefix_cache = true,
	.eos = -1,
};

struct fixture {
	struct mx_fake_config config;
	struct test_engine *engine;
	struct mx_sched *sched;
	struct client c[16];
};

/* No limit on the stretch of a step: chunks are as large as the budget, so steps can be counted. */
static void start_with(struct fixture *f, const struct mx_fake_config *config, uint32_t queue,
                       double stretch)
{
	f->config = *config;
	f->engine = test_engine_create(config);
	struct mx_sched_config sc = {.max_sequences = config->max_sequences,
	                             .step_tokens = config->step_tokens,
	                             .queue = queue,
	                             .max_step_stretch = stretch};
	assert_int_equal(mx_sched_create(&f->engine->base, &sc, &f->sched), MX_OK);
	for (size_t i = 0; i < 16; i++) {
		client_init(&f->c[i]);
		f->c[i].engine = f->engine->inner;
	}
}

static void start(struct fixture *f, const struct mx_fake_config *config)
{
	start_with(f, config, 64, 1e6);
}

/* Everything is over, and no page is held by a request. */
static void finish(struct fixture *f)
{
	mx_sched_destroy(f->sched);
	struct mx_engine_usage u;
	test_engine_check(f->engine);
	f->engine->inner->ops->usage(f->engine->inner, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.pages_free + u.pages_cached, f->config.n_pages);
	for (size_t i = 0; i < 16; i++) {
		assert_true(f->c[i].n_done <= 1);
		assert_int_equal(f->c[i].n_after_done, 0);
		client_free(&f->c[i]);
	}
	test_engine_destroy(f->engine);
}

static void fill_prompt(int32_t *prompt, uint32_t n, int32_t salt)
{
	for (uint32_t i = 0; i < n; i++)
		prompt[i] = (int32_t)((i * 7u + (uint32_t)salt * 13u) % VOCAB);
	prompt[0] = salt; /* tells requests apart in the log of steps */
}

/* Submits client i's request: n prompt tokens that begin with i. */
static void submit_priority(struct fixture *f, int i, uint32_t n, uint32_t max_tokens,
                            int32_t priority)
{
	int32_t prompt[2048];
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	r.priority = priority;
	assert_int_equal(mx_sched_submit(f->sched, &r, &f->c[i].id, NULL), MX_OK);
	assert_true(f->c[i].id != 0);
}

static void submit(struct fixture *f, int i, uint32_t n, uint32_t max_tokens)
{
	submit_priority(f, i, n, max_tokens, 0);
}

static void assert_reference(struct fixture *f, int i, uint32_t n, uint32_t max_tokens)
{
	int32_t prompt[2048], want[2048];
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	uint32_t n_want = reference_run(&f->config, &r, want);
	assert_int_equal(f->c[i].n, n_want);
	assert_memory_equal(f->c[i].tokens, want, n_want * sizeof *want);
}

static struct mx_sched_stats stats(struct fixture *f)
{
	struct mx_sched_stats v;
	mx_sched_stats(f->sched, &v);
	return v;
}

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

/* ---- preemption ---- */

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
	} expect[] = {
		{false, 350, 0, 4, {100, 100, 100, 50}},
		{false, 230, 200, 2, {100, 50}}, /* begins at 200 */
		{true, 350, 0, 3, {128, 128, 94}},
	};
	start(&f, &config);
	for (int i = 0; i < 3; i++) {
		int32_t prompt[350];
		uint32_t begin = f.engine->n_log;
		fill_prompt(prompt, 350, 3);
		for (uint32_t k = expect[i].differs_at; k < 350; k++)
			prompt[k] ^= 1;
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
		/* Of the last answer only the last token was not computed. */
		assert_int_equal(c->done.cached_tokens, turn ? n - 10 - 1 : 0);
		memcpy(chat + n, c->tokens, 25 * sizeof *chat);
		fill_prompt(chat + n + 25, 10, (int32_t)turn);
		n += 25 + 10;
	}
	finish(&f);
}

/* Ending a request can take time; the others' tokens do not wait for it. */
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

/* Every request may need the whole pool. If preempted requests could push each other out, this
 * would not end; the bound is what one after another would take, twice. */
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
		cmocka_unit_test(a_stop_token_is_delivered_and_ends_the_request),
		cmocka_unit_test(the_sink_can_end_its_request),
		cmocka_unit_test(requests_that_cannot_fit_are_refused),
		cmocka_unit_test(what_exceeds_the_pool_is_refused_even_if_the_context_is_longer),
		cmocka_unit_test(a_full_queue_refuses),
		cmocka_unit_test(a_burst_fills_sequences_and_queue),
		cmocka_unit_test(a_batch_comes_in_whole_or_not_at_all),
		cmocka_unit_test(service_is_by_priority_then_arrival),
		cmocka_unit_test(decode_never_waits_for_a_prompt),
		cmocka_unit_test(chunks_adapt_to_step_time),
		cmocka_unit_test(shared_prefixes_are_counted_as_cached),
		cmocka_unit_test(a_prefix_is_shared_with_the_request_just_ahead),
		cmocka_unit_test(a_prompt_is_cut_where_its_state_is_saved),
		cmocka_unit_test(the_next_turn_computes_what_is_new),
		cmocka_unit_test(tokens_come_before_ends),
		cmocka_unit_test(preemption_gives_identical_output),
		cmocka_unit_test(a_page_a_sequence_admits_all),
		cmocka_unit_test(without_a_slot_a_request_waits),
		cmocka_unit_test(the_oldest_advances_in_every_step),
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
	return cmocka_run_group_tests(tests, NULL, NULL);
}
