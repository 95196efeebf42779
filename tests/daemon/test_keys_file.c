/* SPDX-License-Identifier: Apache-2.0 */
/* The file of keys: what it may say, where its faults are, and who may read it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/keys_file.h"

/* SHA-256 of "key-of-alice-1234". */
#define ALICE "f15101dc800a01dcaa1595e7e33f14a540a1d9bf1a0aa08e4dab6c6ebc0f8ac0"
#define H64   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define G64   "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static mx_status parse(const char *text, struct mx_keys *keys, struct mx_err *err)
{
	*err = (struct mx_err){0};
	return mx_keys_file_parse("k.yaml", text, strlen(text), keys, err);
}

static void refuse(const char *text, const char *where, const char *message)
{
	struct mx_err err;
	assert_int_not_equal(parse(text, NULL, &err), MX_OK);
	if (strcmp(err.where, where) != 0 || !strstr(err.text, message))
		fail_msg("%s: %s, not %s: %s", err.where, err.text, where, message);
}

static void faults_have_their_place(void **state)
{
	(void)state;
	refuse("{a: 1}", "k.yaml:1:1: (top level)", "must be a list of principals");
	refuse("- name: a\n", "k.yaml:1:3: [0]", "the key \"sha256\" is missing");
	refuse("- {name: a, sha256: 12}\n", "k.yaml:1:3: [0]", "64 hexadecimal digits");
	refuse("- {name: a, sha256: " H64 ", wieght: 3}\n", "k.yaml:1:87: [0].wieght",
	       "did you mean \"weight\"");
	refuse("- {name: a, sha256: " H64 ", weight: 0}\n", "k.yaml:1:95: [0].weight",
	       "must be 1 to 1000");
	refuse("- {name: a, sha256: " H64 ", priority: 1.5}\n", "k.yaml:1:3: [0]", "a whole number");
	refuse("- {name: 'a b', sha256: " H64 "}\n", "k.yaml:1:3: [0]", "letters, digits");
	refuse("- {name: a, sha256: " H64 ", cache: mine}\n", "k.yaml:1:94: [0].cache",
	       "shared, private");
	refuse("- {name: a, sha256: " H64 ", router: maybe}\n", "k.yaml:1:95: [0].router", "true");
	refuse("- {name: a, sha256: " H64 "}\n- {name: a, sha256: " G64 "}\n", "k.yaml:2:3: [1]",
	       "used twice");
	refuse("- {name: a, sha256: " H64 "}\n- {name: b, sha256: " H64 "}\n", "k.yaml:2:3: [1]",
	       "a and b have the same key");
}

/* Returns the Authorization of a key that mixd makes, and writes its line of the file. */
static void make(char key[80], char line[100])
{
	char text[300] = {0};
	FILE *f = fmemopen(text, sizeof(text), "w");
	assert_int_equal(mx_hash_key(NULL, f), 0);
	fclose(f);
	const char *at = strstr(text, "): ");
	assert_non_null(at);
	assert_int_equal(sscanf(at + 3, "%79s", key), 1);
	const char *hash = strstr(text, "sha256: ");
	assert_non_null(hash);
	assert_int_equal(snprintf(line, 100, "%.72s", hash), 72);
}

static void keys_are_made_and_known(void **state)
{
	(void)state;
	struct mx_keys *keys = NULL;
	struct mx_principal *who = NULL;
	struct mx_err err;
	struct mx_api_error why;
	char a[80], b[80], line_a[100], line_b[100], text[600], bearer[100];
	make(a, line_a);
	make(b, line_b);
	assert_string_not_equal(a, b);
	assert_int_equal(strlen(a), 46);
	snprintf(text, sizeof(text),
	         "- { name: ann, %s, models: [m, gpt-m], priority: -3, requests_per_minute: 5,\n"
	         "    tokens_per_minute: 100, concurrent: 2, weight: 7, cache: private }\n"
	         "- { name: bob, %s, router: true }\n",
	         line_a, line_b);
	assert_int_equal(mx_keys_create(&keys), MX_OK);
	assert_false(mx_keys_wanted(keys));
	assert_int_equal(parse(text, keys, &err), MX_OK);
	assert_true(mx_keys_wanted(keys));
	snprintf(bearer, sizeof(bearer), "bearer  %s", a);
	assert_int_equal(mx_keys_authenticate(keys, bearer, &who, &why), MX_OK);
	assert_string_equal(mx_principal_name(who), "ann");
	struct mx_principal_share share = mx_principal_share(who);
	assert_int_equal(share.weight, 7);
	assert_int_equal(share.priority, -3);
	assert_true(share.private_cache);
	assert_false(mx_principal_is_router(who));
	assert_true(mx_principal_may_use(who, "x", "m") && mx_principal_may_use(who, "gpt-m", "y"));
	assert_false(mx_principal_may_use(who, "x", "y"));
	snprintf(bearer, sizeof(bearer), "Bearer %s", b);
	assert_int_equal(mx_keys_authenticate(keys, bearer, &who, &why), MX_OK);
	assert_string_equal(mx_principal_name(who), "bob");
	assert_true(mx_principal_is_router(who));
	assert_true(mx_principal_may_use(who, "x", "y"));
	/* a faulty file changes nothing */
	assert_int_not_equal(parse("- { name: carl }\n", keys, &err), MX_OK);
	assert_int_equal(mx_keys_authenticate(keys, bearer, &who, &why), MX_OK);
	/* one who is listed no longer has no rights */
	assert_int_equal(parse("[]\n", keys, &err), MX_OK);
	assert_false(mx_principal_is_router(who));
	mx_keys_destroy(keys);
}

static void a_given_key_has_the_hash_of_sha256sum(void **state)
{
	(void)state;
	char in[] = "key-of-alice-1234\n", out[200] = {0};
	FILE *from = fmemopen(in, sizeof(in) - 1, "r"), *to = fmemopen(out, sizeof(out), "w");
	assert_int_equal(mx_hash_key(from, to), 0);
	fclose(from);
	fclose(to);
	assert_string_equal(out, "sha256: " ALICE "\n");
	char brief[] = "short\n";
	from = fmemopen(brief, sizeof(brief) - 1, "r");
	to = fmemopen(out, sizeof(out), "w");
	assert_int_equal(mx_hash_key(from, to), 2);
	fclose(from);
	fclose(to);
}

static void others_must_not_read_it(void **state)
{
	(void)state;
	char name[] = "/tmp/mixd-test-keys-XXXXXX";
	int fd = mkstemp(name);
	struct mx_err err = {0};
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "[]\n", 3), 3);
	close(fd);
	assert_int_equal(mx_keys_file_load(name, NULL, &err), MX_OK);
	assert_int_equal(chmod(name, 0440), 0); /* of its group, as Kubernetes mounts Secrets */
	assert_int_equal(mx_keys_file_load(name, NULL, &err), MX_OK);
	static const mode_t modes[] = {0644, 0604, 0620, 0601};
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		assert_int_equal(chmod(name, modes[i]), 0);
		assert_int_equal(mx_keys_file_load(name, NULL, &err), MX_E_INVALID);
		assert_non_null(strstr(err.text, "chmod 640"));
	}
	unlink(name);
	assert_int_equal(mx_keys_file_load(name, NULL, &err), MX_E_IO);
	assert_int_equal(mx_keys_file_load("/tmp", NULL, &err), MX_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(faults_have_their_place),
		cmocka_unit_test(keys_are_made_and_known),
		cmocka_unit_test(a_given_key_has_the_hash_of_sha256sum),
		cmocka_unit_test(others_must_not_read_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
