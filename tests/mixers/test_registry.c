/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: which modules it loads, which it refuses, and what it says then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mixers/registry.h"

static char modules[4096], refused[4096];
static struct mx_registry *registry;

static int open_registry(void **state)
{
	const char *build = getenv("builddir");
	struct mx_err err = {0};
	(void)state;
	snprintf(modules, sizeof modules, "%s/tests/mixers/modules/.libs", build ? build : ".");
	snprintf(refused, sizeof refused, "%s/tests/mixers/refused/.libs", build ? build : ".");
	assert_int_equal(mx_registry_create(&registry), MX_OK);
	if (mx_registry_load_dir(registry, modules, &err) != MX_OK)
		fail_msg("%s: %s", err.where, err.text);
	return 0;
}

static int close_registry(void **state)
{
	(void)state;
	mx_registry_destroy(registry);
	return 0;
}

static void modules_of_a_folder_are_found_by_name(void **state)
{
	struct mx_err err = {0};
	const struct mx_mixer_ops *ops;
	(void)state;
	for (size_t i = 0; (ops = mx_registry_at(registry, i, NULL)); i++)
		assert_ptr_equal(mx_registry_find(registry, ops->name, MX_DEVICE_CPU, NULL), ops);
	assert_non_null(mx_registry_at(registry, 0, NULL));
	assert_null(mx_registry_find(registry, "no such mixer", MX_DEVICE_CPU, &err));
	assert_int_equal(err.status, MX_E_NOTFOUND);
	assert_non_null(strstr(err.text, mx_registry_at(registry, 0, NULL)->name));
	assert_int_equal(mx_registry_load_dir(registry, "no/such/folder", &err), MX_E_IO);
	assert_int_equal(mx_registry_load_file(registry, "no/such/file.so", &err), MX_E_FORMAT);
}

static void a_name_is_loaded_once(void **state)
{
	struct mx_err err = {0};
	(void)state;
	assert_int_equal(mx_registry_load_dir(registry, modules, &err), MX_E_INVALID);
	assert_non_null(strstr(err.text, "already loaded"));
}

/* A module for CUDA is remembered, and opened only when it is asked for. */
static void cuda_modules_wait(void **state)
{
	(void)state;
	struct mx_err err = {0};
	struct mx_registry *r = NULL;
	const char *path;
	char dir[] = "test_registry.XXXXXX", link[64], *target;
	assert_non_null(mx_registry_at(registry, 0, &path));
	assert_non_null(target = realpath(path, NULL));
	assert_non_null(mkdtemp(dir));
	snprintf(link, sizeof link, "%s/some-cuda.so", dir);
	assert_int_equal(symlink(target, link), 0);
	assert_int_equal(mx_registry_create(&r), MX_OK);
	assert_int_equal(mx_registry_load_dir(r, dir, &err), MX_OK);
	assert_null(mx_registry_at(r, 0, NULL));
	assert_int_equal(mx_registry_load_cuda(r, &err), MX_OK);
	const struct mx_mixer_ops *ops = mx_registry_at(r, 0, NULL);
	assert_non_null(ops);
	/* the table says what the module runs on, whatever the file is called */
	assert_true(ops->caps & MX_MIXER_CPU);
	assert_ptr_equal(mx_registry_find(r, ops->name, MX_DEVICE_CPU, &err), ops);
	assert_null(mx_registry_find(r, ops->name, MX_DEVICE_CUDA, &err));
	assert_non_null(strstr(err.text, "CUDA"));
	assert_int_equal(mx_registry_load_cuda(r, &err), MX_OK);
	assert_null(mx_registry_at(r, 1, NULL));
	mx_registry_destroy(r);
	free(target);
	unlink(link);
	rmdir(dir);
}

static void unfit_modules_are_refused_with_words(void **state)
{
	static const struct {
		const char *file;
		mx_status status;
		const char *says;
	} cases[] = {
		{"version_1.so", MX_E_UNSUPPORTED,
	     "the module was built for version 1 of the mixer contract, and this program has version "
	     "2: build it again with this program's mixers/mixer.h"},
		{"wrong_abi.so", MX_E_UNSUPPORTED, "the module has mixer ABI 3, this program has 2"},
		{"small_table.so", MX_E_UNSUPPORTED, "bytes, this program needs"},
		{"empty_entry.so", MX_E_FORMAT, "mixer \"refused\" leaves an entry of its table empty"},
		{"no_device.so", MX_E_FORMAT, "mixer \"refused\" runs on no kind of device"},
		{"no_symbol.so", MX_E_FORMAT, "not a mixer module: it has no symbol mx_mixer_module_v2"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char path[4200];
		struct mx_err err = {0};
		snprintf(path, sizeof path, "%s/%s", refused, cases[i].file);
		assert_int_equal(mx_registry_load_file(registry, path, &err), cases[i].status);
		if (!strstr(err.text, cases[i].says))
			fail_msg("%s: \"%s\" does not contain \"%s\"", cases[i].file, err.text, cases[i].says);
		assert_non_null(strstr(err.where, cases[i].file));
		assert_null(mx_registry_find(registry, "refused", MX_DEVICE_CPU, &err));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(modules_of_a_folder_are_found_by_name),
		cmocka_unit_test(a_name_is_loaded_once),
		cmocka_unit_test(cuda_modules_wait),
		cmocka_unit_test(unfit_modules_are_refused_with_words),
	};
	return cmocka_run_group_tests(tests, open_registry, close_registry);
}
