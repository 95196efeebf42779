/* SPDX-License-Identifier: Apache-2.0 */
/* Tests where the chat templates of a checkpoint are found, and which one renders what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "model/chat_template.h"

static void put_file(const char *dir, const char *name, const char *text)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (!text) {
		unlink(path);
		return;
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void expect_loaded(const char *dir, mx_status want, const char *text, struct mx_err *err)
{
	struct mx_chat_template *t = NULL;
	struct mx_buf out = {0};
	json_t *v = json_object();
	memset(err, 0, sizeof *err);
	assert_int_equal(mx_chat_template_load(dir, &t, err), want);
	if (!want) {
		assert_int_equal(mx_chat_template_render(t, v, 0, NULL, &out, err), MX_OK);
		assert_string_equal(mx_buf_str(&out), text);
	} else {
		assert_null(t);
	}
	mx_chat_template_destroy(t);
	mx_buf_free(&out);
	json_decref(v);
}

static void templates_are_found_in_a_folder(void **state)
{
	(void)state;
	char dir[] = "/tmp/mixd-chat-XXXXXX";
	struct mx_err err;
	assert_non_null(mkdtemp(dir));
	expect_loaded(dir, MX_E_NOTFOUND, NULL, &err);
	put_file(dir, "tokenizer_config.json", "{}");
	expect_loaded(dir, MX_E_NOTFOUND, NULL, &err);
	put_file(dir, "tokenizer_config.json", "{\"chat_template\": null}");
	expect_loaded(dir, MX_E_NOTFOUND, NULL, &err);
	put_file(dir, "tokenizer_config.json", "{\"chat_template\": 5}");
	expect_loaded(dir, MX_E_FORMAT, NULL, &err);
	put_file(dir, "tokenizer_config.json", "{\"chat_template\": ");
	expect_loaded(dir, MX_E_FORMAT, NULL, &err);
	assert_non_null(strstr(err.where, "tokenizer_config.json"));
	put_file(dir, "tokenizer_config.json",
	         "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}]}");
	expect_loaded(dir, MX_E_NOTFOUND, NULL, &err);
	put_file(dir, "tokenizer_config.json",
	         "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"},"
	         " {\"name\": \"default\", \"template\": \"list {{ 1 }}\"}]}");
	expect_loaded(dir, MX_OK, "list 1", &err);
	put_file(dir, "tokenizer_config.json", "{\"chat_template\": \"string {{ 2 }}\"}");
	expect_loaded(dir, MX_OK, "string 2", &err);
	put_file(dir, "chat_template.json", "{\"chat_template\": \"json {{ 3 }}\"}");
	expect_loaded(dir, MX_OK, "json 3", &err);
	put_file(dir, "chat_template.jinja", "jinja {{ 4 }}\n");
	expect_loaded(dir, MX_OK, "jinja 4", &err);
	put_file(dir, "chat_template.jinja", "\n{{ 4 ");
	expect_loaded(dir, MX_E_FORMAT, NULL, &err); /* the first place decides */
	assert_non_null(strstr(err.where, "chat_template.jinja"));
	assert_int_equal(err.line, 2);
	put_file(dir, "chat_template.jinja", NULL);
	put_file(dir, "chat_template.json", NULL);
	put_file(dir, "tokenizer_config.json", NULL);
	rmdir(dir);
}

/* Renders the template of a folder with and without tools. */
static void expect_two(const char *dir, const char *plain, const char *with_tools)
{
	struct mx_chat_template *t = NULL;
	struct mx_buf out = {0};
	struct mx_err err = {0};
	json_t *v = json_pack("{s:n}", "tools");
	assert_int_equal(mx_chat_template_load(dir, &t, &err), MX_OK);
	assert_int_equal(mx_chat_template_render(t, v, 0, NULL, &out, &err), MX_OK);
	assert_string_equal(mx_buf_str(&out), plain);
	mx_buf_free(&out);
	json_object_set_new(v, "tools", json_pack("[{s:s}]", "type", "function"));
	assert_int_equal(mx_chat_template_render(t, v, 0, NULL, &out, &err), MX_OK);
	assert_string_equal(mx_buf_str(&out), with_tools);
	assert_true(mx_chat_template_reads(t, "tools"));
	assert_true(mx_chat_template_names(t, "type"));
	assert_false(mx_chat_template_reads(t, "documents"));
	mx_buf_free(&out);
	mx_chat_template_destroy(t);
	json_decref(v);
}

static void tools_may_have_a_template_of_their_own(void **state)
{
	(void)state;
	char dir[] = "/tmp/mixd-chat-XXXXXX", sub[128];
	struct mx_err err = {0};
	assert_non_null(mkdtemp(dir));
	put_file(dir, "tokenizer_config.json",
	         "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"{{ documents }}\"},"
	         " {\"name\": \"tool_use\", \"template\": \"tools {{ tools[0].type }}\"},"
	         " {\"name\": \"default\", \"template\": \"plain\"}]}");
	expect_two(dir, "plain", "tools function");
	put_file(dir, "tokenizer_config.json",
	         "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ 1\"},"
	         " {\"name\": \"default\", \"template\": \"plain\"}]}");
	expect_loaded(dir, MX_E_FORMAT, NULL, &err);
	put_file(dir, "tokenizer_config.json", NULL);
	put_file(dir, "chat_template.jinja", "jinja");
	snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
	assert_int_equal(mkdir(sub, 0700), 0);
	put_file(sub, "rag.jinja", "{{ documents }}");
	expect_loaded(dir, MX_OK, "jinja", &err);
	put_file(sub, "tool_use.jinja", "more {{ tools[0].type }}");
	expect_two(dir, "jinja", "more function");
	put_file(sub, "tool_use.jinja", NULL);
	put_file(sub, "rag.jinja", NULL);
	rmdir(sub);
	put_file(dir, "chat_template.jinja", NULL);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(templates_are_found_in_a_folder),
		cmocka_unit_test(tools_may_have_a_template_of_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
