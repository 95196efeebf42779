/* SPDX-License-Identifier: Apache-2.0 */
/* The background thread that makes memory resident: all of it, without changing it, and slowly
 * while the engine computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/touch.h"

/* What the thread asks for at a time, and its shortest rest after that while the engine computes.
 */
#define PART    ((size_t)2 << 20)
#define REST_NS ((uint64_t)10 * 1000 * 1000)
#define SMALL   ((size_t)24 << 20)
#define LARGE   ((size_t)1 << 30)

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t resident(void *p, size_t bytes)
{
	const size_t pages = bytes / page_size();
	size_t n = 0;
	unsigned char *in = malloc(pages);
	assert_non_null(in);
	assert_int_equal(mincore(p, bytes, in), 0);
	for (size_t i = 0; i < pages; i++)
		n += in[i] & 1;
	free(in);
	return n * page_size();
}

/* Returns fresh memory; skips the test where the kernel has no MADV_POPULATE_WRITE. */
static unsigned char *map(size_t bytes)
{
	unsigned char *p = mx_map(bytes);
	assert_non_null(p);
#ifdef MADV_POPULATE_WRITE
	if (!madvise(p, page_size(), MADV_POPULATE_WRITE))
		return p;
#endif
	mx_unmap(p, bytes);
	skip();
	return NULL;
}

static void test_all_becomes_resident_as_it_is(void **state)
{
	(void)state;
	unsigned char *p = map(SMALL);
	struct mx_toucher t = {0};
	const size_t page = page_size();
	for (size_t i = 0; i < SMALL; i += 7 * page)
		p[i] = (unsigned char)(1 + i / page);
	mx_toucher_start(&t, p + 5, SMALL - 5 - page / 2); /* whole pages within */
	mx_toucher_wait(&t);
	assert_true(resident(p + page, SMALL - 2 * page) == SMALL - 2 * page);
	for (size_t i = 0; i < SMALL; i += page)
		assert_int_equal(p[i], i % (7 * page) ? 0 : (unsigned char)(1 + i / page));
	mx_unmap(p, SMALL);
}

/* Told so before it starts, the thread rests after each part; told otherwise, it goes on. */
static void test_it_rests_while_the_engine_computes(void **state)
{
	(void)state;
	unsigned char *p = map(LARGE);
	struct mx_toucher t = {0};
	mx_toucher_work(&t, true);
	mx_toucher_work(&t, true); /* the same again changes nothing */
	const uint64_t start = mx_now_ns();
	mx_toucher_start(&t, p, LARGE);
	usleep(100 * 1000);
	mx_toucher_stop(&t);
	const size_t n = resident(p, LARGE);
	/* the first page, one part more than rests, and one that begins when it is stopped */
	assert_true(n <= PART * (3 + (mx_now_ns() - start) / REST_NS));
	assert_true(n > PART);
	mx_unmap(p, LARGE);

	p = map(SMALL);
	mx_toucher_start(&t, p, SMALL);
	mx_toucher_work(&t, false);
	mx_toucher_wait(&t);
	assert_true(resident(p, SMALL) == SMALL);
	mx_unmap(p, SMALL);
}

static void test_nothing_to_do(void **state)
{
	(void)state;
	struct mx_toucher t = {0};
	mx_toucher_work(&t, true); /* one that never started */
	mx_toucher_wait(&t);
	mx_toucher_stop(&t);
	unsigned char *p = map(4 * page_size());
	mx_toucher_start(&t, p + 1, page_size()); /* no whole page */
	assert_false(t.running);
	mx_toucher_stop(&t);
	mx_unmap(p, 4 * page_size());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_becomes_resident_as_it_is),
		cmocka_unit_test(test_it_rests_while_the_engine_computes),
		cmocka_unit_test(test_nothing_to_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
