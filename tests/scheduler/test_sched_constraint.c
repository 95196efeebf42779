/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constrained requests: the same tokens in company and after preemptions as alone, the ends that a
 * constraint decides, and its failures. On both kinds of engines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/scheduler/sched_fixture.h"
#include "tests/set_constraint.h"

enum { N = 16, PROMPT = 60, MAX = 100, END = 3 };

/* Every third request is not constrained; of the others every other one ends by itself. */
static bool make_constraint(int i, struct set_constraint *out)
{
	*out = set_constraint(VOCAB, (uint32_t)i);
	out->length = i % 2 ? 40 + (uint32_t)i : 0;
	out->end = i % 4 == 1 ? END : -1;
	return i % 3 != 0;
}

static const int32_t end = END;

static struct mx_request make_request(const int32_t *prompt, struct client *c,
                                      struct set_constraint *s, int i)
{
	struct mx_request r = test_request(prompt, PROMPT, MAX, c);
	if (make_constraint(i, s))
		r.params.constraint = &s->base;
	r.params.sampling.temperature = i % 5 ? 1 : 0;
	r.params.sampling.seed = (uint64_t)i;
	r.stop_tokens = &end;
	r.n_stop_tokens = i % 3 ? 1 : 0;
	r.params.stop = &end;
	r.params.n_stop = 1;
	r.params.min_tokens = i % 4 == 1 ? 80 : 0; /* later than its constraint's end */
	return r;
}

static void same_tokens_in_company(void **state)
{
	(void)state;
	static struct set_constraint sets[N];
	static int32_t prompts[N][PROMPT], expect[MAX];
	struct mx_fake_config config = roomy;
	struct fixture f;
	config.n_pages = 40; /* of 16 tokens: four whole requests */
	start(&f, &config);
	for (int i = 0; i < N; i++) {
		fill_prompt(prompts[i], PROMPT, i);
		const struct mx_request r = make_request(prompts[i], &f.c[i], &sets[i], i);
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
	}
	for (int i = 0; i < N; i++) {
		struct set_constraint alone;
		const struct mx_request r = make_request(prompts[i], &f.c[i], &alone, i);
		client_wait_done(&f.c[i]);
		uint32_t n = reference_run(&config, &r, expect);
		assert_int_equal(f.c[i].done.status, MX_OK);
		assert_int_equal(f.c[i].n, n);
		assert_memory_equal(f.c[i].tokens, expect, n * sizeof *expect);
		bool ends = i % 3 && i % 2;
		assert_int_equal(n, ends ? 40 + i + (i % 4 == 1) : MAX);
		assert_int_equal(f.c[i].done.finish, ends ? MX_FINISH_STOP : MX_FINISH_LENGTH);
		assert_int_equal(f.c[i].done.stop_token, ends && i % 4 == 1 ? END : -1);
	}
	assert_true(stats(&f).preemptions > 0);
	finish(&f);
}

static void a_failure_ends_one_request(void **state)
{
	(void)state;
	struct fixture f;
	struct set_constraint sets[2] = {set_constraint(VOCAB, 1), set_constraint(VOCAB, 2)};
	int32_t prompt[PROMPT];
	start(&f, &roomy);
	fill_prompt(prompt, PROMPT, 1);
	sets[1].fail_at = 7;
	for (int i = 0; i < 2; i++) {
		struct mx_request r = test_request(prompt, PROMPT, 30, &f.c[i]);
		r.params.constraint = &sets[i].base;
		assert_int_equal(mx_sched_submit(f.sched, &r, &f.c[i].id, NULL), MX_OK);
	}
	client_wait_done(&f.c[0]);
	client_wait_done(&f.c[1]);
	assert_int_equal(f.c[0].done.finish, MX_FINISH_LENGTH);
	assert_int_equal(f.c[0].n, 30);
	assert_int_equal(f.c[1].done.finish, MX_FINISH_ERROR);
	assert_int_equal(f.c[1].done.status, MX_E_LIMIT);
	assert_string_equal(f.c[1].done.cause, "too ambiguous");
	assert_int_equal(f.c[1].n, 7);
	finish(&f);
}

static int overlapping(void **state)
{
	(void)state;
	steps_overlap = true;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_tokens_in_company),
		cmocka_unit_test(a_failure_ends_one_request),
	};
	int failed = cmocka_run_group_tests_name("steps one by one", tests, NULL, NULL);
	return failed + cmocka_run_group_tests_name("steps that overlap", tests, overlapping, NULL);
}
