/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the priority of other requests can do to a request: clients that keep the
 * queue full of requests of the best priority delay it by a bounded number of them,
 * also if it is preempted again and again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/scheduler/sched_util.h"

#define CLIENTS  40
#define QUEUE    64
#define SEQS     4
#define R        (QUEUE + SEQS)
#define BEST     (-1000000)
#define WORST    1000000
#define PROMPT   8
#define FLOOD    3 /* output tokens of a request of the flood */
#define GIVE_UP  (40 * R)
#define MAX_SENT (GIVE_UP + CLIENTS)

static const struct mx_fake_config fake = {
	.name = "fake",
	.vocab = 100,
	.max_context = 256,
	.max_sequences = SEQS,
	.step_tokens = 32,
	.page_tokens = 4,
	.n_pages = 64,
	.eos = -1,
};

struct sent {
	uint64_t id, scheduled_ns;
	_Atomic bool done;
};

static struct sent sent[MAX_SENT];
static _Atomic uint32_t n_ended;

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)arg, (void)token, (void)is_stop, (void)logprob;
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct sent *r = arg;
	r->scheduled_ns = done->first_scheduled_ns;
	atomic_store(&r->done, true);
	atomic_fetch_add(&n_ended, 1);
}

static void submit(struct mx_sched *s, struct sent *r, uint32_t n, int32_t priority)
{
	int32_t prompt[PROMPT];
	for (int i = 0; i < PROMPT; i++)
		prompt[i] = (int32_t)((r - sent) * 7 + i) % 100;
	struct mx_request q = test_request(prompt, PROMPT, n, NULL);
	q.priority = priority;
	q.sink = (struct mx_sink){.arg = r, .token = on_token, .done = on_done};
	assert_int_equal(mx_sched_submit(s, &q, &r->id, NULL), MX_OK);
}

/* Keeps CLIENTS requests of the best priority unfinished at the beginning of every step, and
 * submits one of `priority` and n tokens as request number R. Returns the number of later requests
 * that were scheduled before it; *out_later = those that were submitted before it ended, GIVE_UP if
 * it never does. */
static uint32_t flood(const struct mx_fake_config *config, int32_t priority, uint32_t n,
                      uint32_t *out_later, uint32_t *out_preemptions)
{
	struct mx_sched *s;
	const struct mx_sched_config sc = {
		.max_sequences = SEQS, .step_tokens = config->step_tokens, .queue = QUEUE};
	memset(sent, 0, sizeof sent);
	atomic_store(&n_ended, 0);
	struct test_engine *e = test_engine_create(config);
	assert_int_equal(mx_sched_create(&e->base, &sc, &s), MX_OK);
	test_engine_gate(e);
	uint32_t n_sent = 0;
	struct sent *r = &sent[R];
	while (n_sent < GIVE_UP && !atomic_load(&r->done)) {
		while (n_sent - atomic_load(&n_ended) < CLIENTS + (n_sent > R)) {
			submit(s, &sent[n_sent], n_sent == R ? n : FLOOD, n_sent == R ? priority : BEST);
			n_sent++;
		}
		test_engine_pass(e, 1);
	}
	*out_later = atomic_load(&r->done) ? n_sent - R : GIVE_UP;
	test_engine_open(e);
	mx_sched_drain(s);
	while (!mx_sched_idle(s))
		usleep(1000);
	struct mx_sched_stats v;
	mx_sched_stats(s, &v);
	*out_preemptions = (uint32_t)v.preemptions;
	mx_sched_destroy(s);
	test_engine_destroy(e);
	uint32_t n_before = 0;
	for (uint32_t i = R + 1; i < n_sent; i++)
		n_before += sent[i].scheduled_ns < r->scheduled_ns;
	return n_before;
}

static void a_flood_of_the_best_priority_has_an_end(void **state)
{
	(void)state;
	uint32_t later, preemptions;
	uint32_t usual = flood(&fake, 0, FLOOD, &later, &preemptions);
	print_message("priority 0 was overtaken by %u, at most %d\n", usual, 2 * R);
	assert_true(later < GIVE_UP && usual < 2 * R);
	uint32_t worst = flood(&fake, WORST, FLOOD, &later, &preemptions);
	print_message("priority %d was overtaken by %u, at most %d\n", WORST, worst, 4 * R);
	assert_true(later < GIVE_UP && worst < 4 * R);
	/* Priority is not without effect: all that could wait was overtaken by. */
	assert_true(usual >= R && worst >= 2 * R);
}

/* A pool of so few pages that the long request is preempted when others come: as soon as none of
 * these is in front of it any more, it runs to its end. */
static void a_preempted_request_has_an_end(void **state)
{
	(void)state;
	struct mx_fake_config small = fake;
	small.n_pages = 8;
	uint32_t later, preemptions;
	(void)flood(&small, 0, 20, &later, &preemptions);
	print_message("%u later requests came until the long one ended, %u preemptions\n", later,
	              preemptions);
	/* 2 R may be in front; while the request then runs, each step ends SEQS requests at most. */
	assert_true(later < 2 * R + CLIENTS + 2 * SEQS * (PROMPT + 20));
	assert_true(preemptions > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flood_of_the_best_priority_has_an_end),
		cmocka_unit_test(a_preempted_request_has_an_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
