/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a checkpoint with the n-th allocation failing, for every n: the error is "out of memory",
 * and (under the address sanitizer) nothing leaks.
 *
 * The linker sends calloc, realloc and strdup of our objects to the wrappers here; jansson calls
 * them too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/plan.h"
#include "model/safetensors.h"

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
char *__real_strdup(const char *s);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
char *__wrap_strdup(const char *s);

static long allocations_left = -1; /* -1 = no limit; 0 = fail every one */

static int allowed(void)
{
	if (allocations_left == 0)
		return 0;
	if (allocations_left > 0)
		allocations_left--;
	return 1;
}

void *__wrap_calloc(size_t n, size_t size)
{
	return allowed() ? __real_calloc(n, size) : NULL;
}

void *__wrap_realloc(void *p, size_t size)
{
	return allowed() ? __real_realloc(p, size) : NULL;
}

char *__wrap_strdup(const char *s)
{
	return allowed() ? __real_strdup(s) : NULL;
}

static int json_failed; /* the failing allocation was jansson's */

static void *json_alloc(size_t n)
{
	if (allowed())
		return malloc(n);
	json_failed = 1;
	return NULL;
}

static mx_status open_all(const char *dir, struct mx_err *err)
{
	struct mx_plan *p = NULL;
	struct mx_checkpoint *c = NULL;
	mx_status s = mx_plan_load(dir, &p, err);
	if (!s)
		s = mx_checkpoint_open(dir, &c, err);
	mx_checkpoint_close(c);
	mx_plan_destroy(p);
	return s;
}

static void every_failing_allocation_is_survived(void **state)
{
	static const char *const models[] = {"llama-yarn",      "llama-sharded", "mixd-attention",
	                                     "mamba2-raw",      "gla-attn",      "hyenadna",
	                                     "stripedhyena-evo"};
	const char *srcdir = getenv("srcdir");
	(void)state;
	json_set_alloc_funcs(json_alloc, free);
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		char dir[4096];
		long n = 0;
		mx_status s;
		snprintf(dir, sizeof dir, "%s/tests/golden/models/%s", srcdir ? srcdir : ".", models[i]);
		do {
			struct mx_err err = {0};
			json_failed = 0;
			allocations_left = n++;
			s = open_all(dir, &err);
			allocations_left = -1;
			/* jansson's lexer reports a string it had no memory for as a syntax error. */
			if (s && ((s != MX_E_NOMEM && !(s == MX_E_FORMAT && json_failed)) || !err.text[0]))
				fail_msg("%s: allocation %ld failed, and that gave %d '%s: %s'", models[i], n, s,
				         err.where, err.text);
		} while (s);
		assert_true(n > 100);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_failing_allocation_is_survived)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
