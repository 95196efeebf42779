/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requests take of the heap, counted by the program's own malloc, calloc,
 * realloc and free: the choices of one prompt share it.
 */
#include <malloc.h>
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

/* ---- bytes of the heap in use ---- */

static _Atomic size_t live, peak;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t bytes);
void __wrap_free(void *p);

static void *count(void *p)
{
	size_t now = atomic_fetch_add(&live, malloc_usable_size(p)) + malloc_usable_size(p);
	size_t most = atomic_load(&peak);
	while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
		;
	return p;
}

static void uncount(void *p)
{
	atomic_fetch_sub(&live, malloc_usable_size(p));
}

void *__wrap_malloc(size_t bytes)
{
	return count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return count(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t bytes)
{
	uncount(p);
	return count(__real_realloc(p, bytes));
}

void __wrap_free(void *p)
{
	uncount(p);
	__real_free(p);
}

/* ---- the test ---- */

#define CHOICES 128
#define PROMPT  100000

static const struct mx_fake_config fake = {
	.name = "fake",
	.vocab = 1000,
	.max_context = PROMPT + 16,
	.max_sequences = CHOICES,
	.step_tokens = 4096,
	.page_tokens = 64,
	.n_pages = 16 * (PROMPT / 64),
	.prefix_cache = true,
	.eos = -1,
};

static void choices_share_their_prompt(void **state)
{
	(void)state;
	static struct client c[CHOICES];
	static uint64_t ids[CHOICES];
	static struct mx_request r[CHOICES];
	int32_t *prompt = test_malloc(PROMPT * sizeof *prompt);
	for (int i = 0; i < PROMPT; i++)
		prompt[i] = i % 1000;
	struct mx_engine *e;
	struct mx_sched *s;
	const struct mx_sched_config sc = {
		.max_sequences = CHOICES, .step_tokens = fake.step_tokens, .queue = CHOICES};
	assert_int_equal(mx_fake_engine_create(&fake, &e), MX_OK);
	assert_int_equal(mx_sched_create(e, &sc, &s), MX_OK);
	for (int i = 0; i < CHOICES; i++) {
		client_init(&c[i]);
		r[i] = test_request(prompt, PROMPT, 8, &c[i]);
	}
	size_t before = atomic_load(&live);
	atomic_store(&peak, before);
	assert_int_equal(mx_sched_submit_all(s, r, CHOICES, ids, NULL), MX_OK);
	memset(prompt, 0xff, PROMPT * sizeof *prompt); /* it was copied */
	for (int i = 0; i < CHOICES; i++)
		client_wait_done(&c[i]);
	while (!mx_sched_idle(s))
		usleep(1000);
	size_t most = atomic_load(&peak) - before;
	print_message("%d choices of %d tokens: %zu KiB\n", CHOICES, PROMPT, most >> 10);
	/* The prompt, and of each choice its pages' numbers (a 64th of it) and less than 2 KiB. */
	assert_true(most < 2 * PROMPT * sizeof *prompt + CHOICES * (PROMPT / 64 * 4 + 2048));
	assert_int_equal(atomic_load(&live), before);
	for (int i = 0; i < CHOICES; i++) {
		assert_int_equal(c[i].done.status, MX_OK);
		assert_int_equal(c[i].n, 8);
		assert_memory_equal(c[i].tokens, c[0].tokens, 8 * sizeof *c[i].tokens);
		client_free(&c[i]);
	}
	mx_sched_destroy(s);
	e->ops->destroy(e);
	test_free(prompt);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(choices_share_their_prompt),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
