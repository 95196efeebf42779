/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name, and what is said where there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/open.h"

static const struct mx_device_options options = {
	.threads = 1,
	.max_rows = 8,
	.max_width = 64,
	.cuda = {.act_dtype = MX_BF16, .max_samples = 1, .vocab = 32}};

static void test_names(void **state)
{
	(void)state;
	enum mx_device_kind kind;
	int ordinal;
	assert_true(mx_device_parse("cpu", &kind, &ordinal));
	assert_int_equal(kind, MX_DEVICE_CPU);
	assert_true(mx_device_parse("cuda", &kind, &ordinal));
	assert_int_equal(kind, MX_DEVICE_CUDA);
	assert_int_equal(ordinal, 0);
	assert_true(mx_device_parse("cuda:17", &kind, &ordinal));
	assert_int_equal(ordinal, 17);
	assert_true(mx_device_parse("cuda:63", NULL, NULL));
	const char *const wrong[] = {
		"",        "CPU",   "cpu:0",   "gpu",   "cuda:",    "cuda:64",  "cuda:-1",
		"cuda:1 ", "cuda0", "cuda: 1", "cudax", "cuda:0x1", "cuda:100", "cpu "};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(mx_device_parse(wrong[i], &kind, &ordinal));
}

static void test_cpu(void **state)
{
	(void)state;
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	size_t bytes = 0;
	assert_int_equal(mx_device_open("cpu", &options, &d, &err), MX_OK);
	assert_int_equal(d->info.kind, MX_DEVICE_CPU);
	assert_true(d->info.deterministic);
	d->ops->destroy(d);
	assert_int_equal(mx_device_own_bytes("cpu", &options, &bytes, &err), MX_OK);
	assert_true(bytes > 0);
	assert_int_equal(mx_device_open("tpu", &options, &d, &err), MX_E_INVALID);
	assert_non_null(strstr(err.text, "\"tpu\""));
}

/* No folder has the module, or what has its name is none. Before anything loads the true one. */
static void test_module(void **state)
{
	(void)state;
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	setenv("MIXD_DEVICE_PATH", "/no/such/folder:/nor/this", 1);
	assert_int_equal(mx_device_open("cuda", &options, &d, &err), MX_E_NOTFOUND);
	assert_non_null(strstr(err.text, "/no/such/folder"));
	assert_non_null(strstr(err.text, "--with-cuda"));
	char dir[] = "test_open.XXXXXX", file[64];
	assert_non_null(mkdtemp(dir));
	snprintf(file, sizeof file, "%s/device-cuda.so", dir);
	FILE *f = fopen(file, "w");
	assert_non_null(f);
	fputs("no module", f);
	fclose(f);
	setenv("MIXD_DEVICE_PATH", dir, 1);
	err = (struct mx_err){0};
	assert_int_equal(mx_device_open("cuda:1", &options, &d, &err), MX_E_NOTFOUND);
	assert_string_equal(err.where, file);
	unlink(file);
	rmdir(dir);
}

/* With the module of this build, if there is one: a device, or a reason. */
static void test_cuda(void **state)
{
	(void)state;
	const char *top = getenv("builddir");
	char path[4096];
	snprintf(path, sizeof path, "%s/device/.libs/device-cuda.so", top ? top : ".");
	if (access(path, F_OK))
		skip();
	*strrchr(path, '/') = 0;
	setenv("MIXD_DEVICE_PATH", path, 1);
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	size_t bytes;
	assert_int_equal(mx_device_own_bytes("cuda", &options, &bytes, &err), MX_OK);
	mx_status st = mx_device_open("cuda:63", &options, &d, &err);
	assert_true(st == MX_E_NOTFOUND || st == MX_E_DEVICE);
	assert_non_null(strstr(err.text, "cuda:63"));
	print_message("%s\n", err.text);
	st = mx_device_open("cuda", &options, &d, &err);
	if (st != MX_OK)
		return;
	assert_int_equal(d->info.kind, MX_DEVICE_CUDA);
	assert_string_equal(d->info.name, "cuda:0");
	d->ops->destroy(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_cpu),
		cmocka_unit_test(test_module),
		cmocka_unit_test(test_cuda),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
