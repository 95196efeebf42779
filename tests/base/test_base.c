/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/lanes.h"
#include "base/buf.h"
#include "base/hmac.h"
#include "base/mem.h"
#include "base/paths.h"
#include "base/pool.h"
#include "base/status.h"

static void error_text_is_one_line(void **state)
{
	(void)state;
	struct mx_err e = {0};
	assert_int_equal(mx_fail(&e, MX_E_FORMAT, "bad\n%d", 7), MX_E_FORMAT);
	assert_string_equal(e.text, "bad 7");
	assert_int_equal(mx_fail(NULL, MX_E_IO, "nobody listens"), MX_E_IO);
}

static void buffer_keeps_content_at_its_limit(void **state)
{
	(void)state;
	struct mx_buf b = {.limit = 8};
	mx_buf_puts(&b, "12345");
	mx_buf_puts(&b, "6789");
	assert_true(b.failed);
	assert_string_equal(mx_buf_str(&b), "12345");
	mx_buf_clear(&b);
	mx_buf_printf(&b, "%d-%s", 42, "x");
	assert_false(b.failed);
	mx_buf_consume(&b, 1);
	assert_string_equal(mx_buf_str(&b), "2-x");
	mx_buf_free(&b);
}

static void arena_stops_at_its_limit(void **state)
{
	(void)state;
	struct mx_arena a = {.limit = 100};
	char *s = mx_arena_strndup(&a, "abcdef", 3);
	assert_string_equal(s, "abc");
	assert_non_null(mx_arena_alloc(&a, 60));
	assert_null(mx_arena_alloc(&a, 60));
	mx_arena_free(&a);
	assert_int_equal(a.used, 0);
}

struct tally {
	_Atomic unsigned char seen[1000];
	_Atomic unsigned wrong_worker;
	unsigned size;
};

static void mark(void *arg, size_t task, unsigned worker)
{
	struct tally *t = arg;
	atomic_fetch_add(&t->seen[task], 1);
	if (worker >= t->size)
		atomic_fetch_add(&t->wrong_worker, 1);
}

/* Takes longer than the caller of mx_pool_run spins, if a worker runs it. */
static void mark_slowly(void *arg, size_t task, unsigned worker)
{
	if (worker)
		nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
	mark(arg, task, worker);
}

static void pool_wakes_a_caller_that_waits(void **state)
{
	(void)state;
	struct mx_pool *p = NULL;
	assert_int_equal(mx_pool_create(3, &p), MX_OK);
	for (size_t round = 0; round < 100; round++) {
		struct tally t = {.size = 3};
		mx_pool_run(p, 8, mark_slowly, &t);
		for (size_t i = 0; i < 8; i++)
			assert_int_equal(t.seen[i], 1);
	}
	mx_pool_destroy(p);
}

static void pool_runs_every_task_once(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 5; n++) {
		struct mx_pool *p = NULL;
		assert_int_equal(mx_pool_create(n, &p), MX_OK);
		assert_int_equal(mx_pool_size(p), n);
		for (int round = 0; round < 200; round++) {
			struct tally t = {.size = n};
			size_t tasks = (size_t)(round * 5 % 1000);
			mx_pool_run(p, tasks, mark, &t);
			for (size_t i = 0; i < 1000; i++)
				assert_int_equal(t.seen[i], i < tasks);
			assert_int_equal(t.wrong_worker, 0);
		}
		mx_pool_destroy(p);
	}
}

static void paths_are_taken_one_by_one(void **state)
{
	(void)state;
	char folder[8];
	const char *list = ":/a::much-too-long:/seven7:b:";
	assert_true(mx_paths_next(&list, folder, sizeof folder));
	assert_string_equal(folder, "/a");
	assert_true(mx_paths_next(&list, folder, sizeof folder));
	assert_string_equal(folder, "/seven7");
	assert_true(mx_paths_next(&list, folder, sizeof folder));
	assert_string_equal(folder, "b");
	assert_false(mx_paths_next(&list, folder, sizeof folder));
	assert_false(mx_paths_next(&list, folder, sizeof folder));

	setenv("MX_TEST_PATHS", "/x:/y", 1);
	assert_string_equal(mx_paths_of("MX_TEST_PATHS", "/z"), "/x:/y");
	setenv("MX_TEST_PATHS", "", 1);
	assert_string_equal(mx_paths_of("MX_TEST_PATHS", "/z"), "/z");
	unsetenv("MX_TEST_PATHS");
	assert_string_equal(mx_paths_of("MX_TEST_PATHS", "/z"), "/z");
}

/* A lane's units come in order, in pieces that shrink at its end, and never beyond the next lane.
 */
static void lanes_end_in_short_pieces(void **state)
{
	(void)state;
	static struct mx_lanes l;
	for (size_t n = 0; n < 300; n++)
		for (size_t threads = 1; threads <= 70; threads += 23) {
			size_t end = 0;
			mx_lanes_init(&l, n, threads);
			assert_true(l.n_lanes <= threads && l.n_lanes <= n && l.n_lanes <= MX_LANES_MAX);
			for (size_t lane = 0; lane < l.n_lanes; lane++) {
				size_t at, count, last = 0, first = end;
				while ((count = mx_lanes_take(&l, lane, 7, &at))) {
					assert_int_equal(at, end);
					assert_true(count <= 7 && (at == first || count <= last));
					last = count, end = at + count;
				}
				assert_int_equal(last, 1);
				assert_int_equal(end, mx_lane_begin(&l, lane + 1));
				assert_int_equal(mx_lanes_take(&l, lane, 7, &at), 0);
			}
			assert_int_equal(end, n);
		}
}

struct lanes_run {
	struct mx_lanes lanes;
	atomic_uint taken[1000];
};

static void take_lanes(void *arg, size_t first, unsigned worker)
{
	struct lanes_run *run = arg;
	size_t at, count;
	(void)worker;
	for (size_t i = 0; i < run->lanes.n_lanes; i++)
		while ((count = mx_lanes_take(&run->lanes, (first + i) % run->lanes.n_lanes, 9, &at)))
			for (size_t k = at; k < at + count; k++)
				atomic_fetch_add(&run->taken[k], 1);
}

static void lanes_give_every_unit_to_one_thread(void **state)
{
	(void)state;
	static struct lanes_run run;
	struct mx_pool *pool = NULL;
	assert_int_equal(mx_pool_create(3, &pool), MX_OK);
	for (unsigned i = 1; i <= 200; i++) {
		mx_lanes_init(&run.lanes, 1000, 3);
		mx_pool_run(pool, run.lanes.n_lanes, take_lanes, &run);
		for (size_t k = 0; k < 1000; k++)
			assert_int_equal(atomic_load(&run.taken[k]), i);
	}
	mx_pool_destroy(pool);
}

/* RFC 4231. */
static void hmacs_are_those_of_the_standard(void **state)
{
	static const struct {
		const char *key;
		size_t n;
		const char *text, *digest;
	} cases[] = {
		{"", 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
		{"Jefe", 4, "what do ya want for nothing?",
	     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
		{"", 131, "Test Using Larger Than Block-Size Key - Hash Key First",
	     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint8_t key[131], digest[MX_SHA256_BYTES], same[MX_SHA256_BYTES];
		char hex[2 * MX_SHA256_BYTES + 1];
		struct mx_hmac h;
		memset(key, i ? 0xaa : 0x0b, sizeof key);
		memcpy(key, cases[i].key, strlen(cases[i].key));
		mx_hmac_begin(&h, key, cases[i].n);
		mx_hmac_add(&h, cases[i].text, 3);
		mx_hmac_add(&h, cases[i].text + 3, strlen(cases[i].text) - 3);
		mx_hmac_end(&h, digest);
		for (size_t k = 0; k < sizeof digest; k++)
			snprintf(hex + 2 * k, 3, "%02x", digest[k]);
		assert_string_equal(hex, cases[i].digest);
		memcpy(same, digest, sizeof same);
		assert_true(mx_same_secret(digest, same, sizeof same));
		same[31] ^= 0x80;
		assert_false(mx_same_secret(digest, same, sizeof same));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(error_text_is_one_line),
		cmocka_unit_test(buffer_keeps_content_at_its_limit),
		cmocka_unit_test(arena_stops_at_its_limit),
		cmocka_unit_test(pool_runs_every_task_once),
		cmocka_unit_test(pool_wakes_a_caller_that_waits),
		cmocka_unit_test(paths_are_taken_one_by_one),
		cmocka_unit_test(lanes_end_in_short_pieces),
		cmocka_unit_test(lanes_give_every_unit_to_one_thread),
		cmocka_unit_test(hmacs_are_those_of_the_standard),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
