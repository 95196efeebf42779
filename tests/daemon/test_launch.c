/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which of several hosts a process takes itself for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/launch.h"

static void test_first_node(void **state)
{
	static const char *const cases[][2] = {
		{"node1", "node1"},
		{"node1,node2", "node1"},
		{"node[03-05,9],x1", "node03"},
		{"gpu[7]", "gpu7"},
		{"a-b[1,3]", "a-b1"},
		{"n[12-99]", "n12"},
		{"", NULL},
		{"[", NULL},
		{"node[]", NULL},
		{"much-too-long-a-name", NULL},
	};
	char name[16];
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(mx_launch_first_node(cases[i][0], name, sizeof name), cases[i][1] != NULL);
		if (cases[i][1])
			assert_string_equal(name, cases[i][1]);
	}
}

/* Sets the variables of all launchers; NULL = not set. */
static void set(const char *const *values)
{
	static const char *const names[] = {
		"MIXD_HOST",          "MIXD_HOSTS",         "MIXD_FIRST_HOST", "LWS_WORKER_INDEX",
		"LWS_LEADER_ADDRESS", "SLURM_PROCID",       "SLURM_NTASKS",    "SLURM_STEP_NODELIST",
		"LWS_GROUP_SIZE",     "SLURM_JOB_NODELIST",
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!values[i])
			unsetenv(names[i]);
		else
			setenv(names[i], values[i], 1);
}

static void test_launchers(void **state)
{
	static const struct {
		const char *values[10];
		int number;       /* -1 = refused */
		const char *text; /* the address, or what is wrong */
	} cases[] = {
		{{"0", "4"}, 0, ""},
		{{"3", "4", "fe80::1"}, 3, "[fe80::1]:7000"},
		{{"1", NULL, "a", "2", "b"}, 1, "a:7000"}, /* our own come first */
		{{NULL, NULL, NULL, "2", "b.c"}, 2, "b.c:7000"},
		{{NULL, NULL, NULL, NULL, NULL, "1", "4", "n[5-8]"}, 1, "n5:7000"},
		{{"4", "4", "a"}, -1, "MIXD_HOST"},
		{{"-1", "4", "a"}, -1, "MIXD_HOST"},
		{{"1", "5", "a"}, -1, "MIXD_HOSTS"},
		{{"1", "4"}, -1, "MIXD_FIRST_HOST"},
		{{NULL, NULL, NULL, NULL, NULL, "1", "4", NULL}, -1, "SLURM_JOB_NODELIST"},
		{{NULL, NULL, NULL, "2", "b.c", NULL, NULL, NULL, "4"}, 2, "b.c:7000"},
		{{NULL, NULL, NULL, "2", "b.c", NULL, NULL, NULL, "5"}, -1, "LWS_GROUP_SIZE"},
		{{NULL, NULL, NULL, "2"}, -1, "LWS_LEADER_ADDRESS"},
		{{NULL, NULL, NULL, NULL, NULL, "3", "4", NULL, NULL, "m[01-04]"}, 3, "m01:7000"},
		{{NULL, NULL, NULL, NULL, NULL, "3", "4", "s7", NULL, "m[01-04]"}, 3, "s7:7000"},
		{{NULL, NULL, NULL, NULL, NULL, "1", "2", "s7"}, -1, "SLURM_NTASKS"},
		{{NULL, NULL, NULL, NULL, NULL, "1", "4", "["}, -1, "SLURM_STEP_NODELIST"},
		{{NULL}, -1, ""},
	};
	const struct mx_launch_options o = {.launched = true};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_launch l = {0};
		struct mx_err err = {0};
		set(cases[i].values);
		mx_status st = mx_launch_find(&o, "*:7000", 4, &l, &err);
		assert_int_equal(st == MX_OK, cases[i].number >= 0);
		if (st != MX_OK) {
			assert_string_equal(err.where, cases[i].text);
			continue;
		}
		assert_int_equal(l.number, cases[i].number);
		assert_int_equal(l.worker, l.number > 0);
		assert_string_equal(l.join, cases[i].text);
	}
}

static void test_options(void **state)
{
	struct mx_launch l = {0};
	struct mx_err err = {0};
	(void)state;
	struct mx_launch_options o = {.worker = true, .join = "a:1", .host = "2"};
	assert_int_equal(mx_launch_find(&o, "*:7000", 4, &l, &err), MX_OK);
	assert_true(l.worker && l.number == 2 && !strcmp(l.join, "a:1"));
	o.host = "4";
	assert_int_equal(mx_launch_find(&o, "*:7000", 4, &l, &err), MX_E_RANGE);
	o.host = "0";
	assert_int_equal(mx_launch_find(&o, "*:7000", 4, &l, &err), MX_E_RANGE);
	o = (struct mx_launch_options){.worker = true, .join = "a"};
	assert_int_equal(mx_launch_find(&o, "*:7000", 4, &l, &err), MX_E_INVALID);
	o.join = NULL;
	assert_int_equal(mx_launch_find(&o, "*:7000", 4, &l, &err), MX_E_INVALID);
	o.join = "a:1";
	assert_int_equal(mx_launch_find(&o, "*:7000", 1, &l, &err), MX_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_node),
		cmocka_unit_test(test_launchers),
		cmocka_unit_test(test_options),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
