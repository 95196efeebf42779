/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's queue and the histograms, on their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hist.h"
#include "scheduler/queue.h"
#include "tests/scheduler/sched_util.h"

/* ---- queue ---- */

static void the_queue_keeps_its_order(void **state)
{
	(void)state;
	enum { N = 500 };
	uint64_t rng = test_seed();
	static struct mx_req reqs[N];
	struct mx_queue q;
	mx_queue_init(&q);
	bool in[N] = {false}, was[N] = {false};
	for (uint32_t i = 0; i < N; i++)
		reqs[i] = (struct mx_req){.id = i + 1};
	for (int op = 0; op < 20000; op++) {
		uint32_t i = (uint32_t)(test_random(&rng) % N);
		if (in[i]) {
			mx_queue_remove(&q, &reqs[i]);
			in[i] = false;
		} else {
			reqs[i].rank = (int64_t)(test_random(&rng) % 50); /* ties go by id */
			reqs[i].fresh = !was[i];
			mx_queue_push(&q, &reqs[i]);
			in[i] = was[i] = true;
		}
		const struct mx_req *first = NULL;
		uint32_t n = 0;
		for (uint32_t k = 0; k < N; k++) {
			if (!in[k])
				continue;
			n++;
			if (!first || mx_req_before(&reqs[k], first))
				first = &reqs[k];
		}
		assert_int_equal(q.n, n);
		assert_ptr_equal(mx_queue_top(&q), first);
	}
	while (mx_queue_top(&q))
		mx_queue_remove(&q, mx_queue_top(&q));
	assert_null(mx_queue_oldest(&q));
}

static void the_oldest_is_the_first_that_never_ran(void **state)
{
	(void)state;
	struct mx_req r[3];
	struct mx_queue q;
	mx_queue_init(&q);
	for (uint32_t i = 0; i < 3; i++) {
		r[i] = (struct mx_req){.id = i + 1, .rank = 3 - (int64_t)i, .fresh = true};
		mx_queue_push(&q, &r[i]);
	}
	assert_ptr_equal(mx_queue_top(&q), &r[2]);
	assert_ptr_equal(mx_queue_oldest(&q), &r[0]);
	mx_queue_remove(&q, &r[0]);
	mx_queue_push(&q, &r[0]); /* preempted: waits again, but not for the first time */
	assert_ptr_equal(mx_queue_oldest(&q), &r[1]);
}

/* ---- histograms ---- */

static void values_fall_into_their_buckets(void **state)
{
	(void)state;
	static const double bounds[] = {1, 2, 5};
	const double values[] = {-1, 0, 1, 1.5, 2, 5, 5.1, 1e9};
	struct mx_hist h;
	mx_hist_init(&h, bounds, 3);
	for (size_t i = 0; i < 8; i++)
		mx_hist_add(&h, values[i]);
	const uint64_t want[] = {3, 2, 1, 2};
	assert_memory_equal(h.count, want, sizeof want);
	assert_int_equal(mx_hist_total(&h), 8);
	assert_true(h.sum > 1e9 && h.sum < 1e9 + 20);
	mx_hist_init(&h, bounds, 0);
	mx_hist_add(&h, 3);
	assert_int_equal(mx_hist_total(&h), 1);
}

static void bounds_go_1_2_5_up_to_the_limit(void **state)
{
	(void)state;
	double b[MX_HIST_MAX];
	assert_int_equal(mx_hist_bounds_125(2048, b), 11);
	assert_true(b[0] == 1 && b[2] == 5 && b[3] == 10 && b[10] == 2000);
	assert_int_equal(mx_hist_bounds_125(2000, b), 11);
	assert_int_equal(mx_hist_bounds_125(1999, b), 10);
	assert_int_equal(mx_hist_bounds_125(0, b), 1);
	assert_int_equal(mx_hist_bounds_125(1e300, b), MX_HIST_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_queue_keeps_its_order),
		cmocka_unit_test(the_oldest_is_the_first_that_never_ran),
		cmocka_unit_test(values_fall_into_their_buckets),
		cmocka_unit_test(bounds_go_1_2_5_up_to_the_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
