/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the chat template interpreter: it renders byte for byte what transformers does
 * (tests/golden/chat and tests/golden/jinja), names place and reason when it refuses a template,
 * and ends soon on hostile ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "model/chat_template.h"

/* ---- allocation failures: the program is linked with --wrap ---- */

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static long fail_at; /* this allocation, counted down, gives NULL; 0 = none */

void *__wrap_calloc(size_t n, size_t size)
{
	return fail_at && --fail_at == 0 ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fail_at && --fail_at == 0 ? NULL : __real_realloc(p, n);
}

/* ---- helpers ---- */

static const char *source_dir(void)
{
	const char *s = getenv("srcdir");
	return s ? s : ".";
}

static json_t *load_golden(const char *name)
{
	char path[1024];
	json_error_t je;
	snprintf(path, sizeof path, "%s/tests/golden/%s", source_dir(), name);
	json_t *j = json_load_file(path, 0, &je);
	if (!j)
		fail_msg("%s: %s", path, je.text);
	return j;
}

static char *read_text(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	char *text = malloc(1 << 20);
	assert_non_null(text);
	*len = fread(text, 1, 1 << 20, f);
	fclose(f);
	return text;
}

/* Parses and renders; *out gets the text. */
static mx_status render(const char *source, size_t len, const json_t *vars,
                        const struct mx_chat_limits *limits, struct mx_buf *out, struct mx_err *err)
{
	struct mx_chat_template *t = NULL;
	mx_status st = mx_chat_template_parse(source, len, &t, err);
	if (!st)
		st = mx_chat_template_render(t, vars, 1700000000, limits, out, err);
	mx_chat_template_destroy(t);
	return st;
}

/* Renders with variables given as JSON text and compares. */
static void expect(const char *source, const char *vars, const char *want)
{
	json_t *v = json_loads(vars, JSON_DECODE_ANY, NULL);
	struct mx_buf out = {0};
	struct mx_err err = {0};
	assert_non_null(v);
	if (render(source, strlen(source), v, NULL, &out, &err))
		fail_msg("%s: %u:%u: %s", source, err.line, err.column, err.text);
	assert_string_equal(mx_buf_str(&out), want);
	mx_buf_free(&out);
	json_decref(v);
}

/* Expects a failure with a status, and text in the message unless NULL. */
static void refuse(const char *source, mx_status want, const char *text, struct mx_err *err)
{
	json_t *v = json_pack("{s:[{s:s}]}", "messages", "role", "user");
	struct mx_buf out = {0};
	memset(err, 0, sizeof *err);
	mx_buf_puts(&out, "before");
	mx_status st = render(source, strlen(source), v, NULL, &out, err);
	if (st != want || err->status != want)
		fail_msg("%.200s: got %d (%s)", source, st, err->text);
	if (text && !strstr(err->text, text))
		fail_msg("%.200s: message is '%s'", source, err->text);
	assert_string_equal(mx_buf_str(&out), "before"); /* nothing is appended by a failure */
	mx_buf_free(&out);
	json_decref(v);
}

/* ---- golden ---- */

/* Checks one rendering of a checkpoint's template; false after a printed complaint. */
static bool check_case(const char *name, const char *source, size_t len, const char *what,
                       const json_t *given, const json_t *want)
{
	json_t *vars = json_pack("{s:s,s:s}", "bos_token", "<s>", "eos_token", "</s>");
	struct mx_buf out = {0};
	struct mx_err err = {0};
	json_object_update(vars, (json_t *)(uintptr_t)given);
	mx_status st = render(source, len, vars, NULL, &out, &err);
	bool ok;
	if (json_is_string(want)) {
		ok = !st && out.len == json_string_length(want) &&
		     memcmp(mx_buf_str(&out), json_string_value(want), out.len) == 0;
	} else {
		const char *text = json_string_value(json_object_get(want, "error"));
		/* where Python only has its recursion limit to stop it, we have ours */
		ok = text ? st == MX_E_INVALID && strcmp(text, err.text) == 0
		          : st == MX_E_INVALID || st == MX_E_LIMIT;
	}
	if (!ok)
		print_error("%s, %s: status %d, line %u: %s\n--- got\n%s\n", name, what, st, err.line,
		            err.text, mx_buf_str(&out));
	mx_buf_free(&out);
	json_decref(vars);
	return ok;
}

static void checkpoints_render_as_in_transformers(void **state)
{
	(void)state;
	char dir[1024], path[2048];
	snprintf(dir, sizeof dir, "%s/tests/golden/chat", source_dir());
	json_t *all = load_golden("chat/conversations.json");
	json_t *conversations = json_object_get(all, "conversations");
	DIR *d = opendir(dir);
	struct dirent *e;
	int bad = 0, n = 0;
	assert_non_null(d);
	while ((e = readdir(d))) {
		size_t stem = strlen(e->d_name);
		if (stem < 7 || strcmp(e->d_name + stem - 6, ".jinja"))
			continue;
		snprintf(path, sizeof path, "chat/%.*s.json", (int)stem - 6, e->d_name);
		json_t *want = load_golden(path);
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		size_t len;
		char *source = read_text(path, &len);
		const char *key;
		json_t *vars;
		assert_int_equal(json_object_size(want), json_object_size(conversations));
		json_object_foreach(conversations, key, vars)
		{
			n++;
			bad += !check_case(e->d_name, source, len, key, vars, json_object_get(want, key));
		}
		free(source);
		json_decref(want);
	}
	closedir(d);
	json_decref(all);
	assert_true(n > 500);
	assert_int_equal(bad, 0);
}

static void small_templates_render_as_in_jinja(void **state)
{
	(void)state;
	json_t *all = load_golden("jinja/cases.json"), *cases = json_object_get(all, "cases"), *c;
	json_t *vars = json_object_get(all, "vars");
	size_t i;
	int bad = 0;
	assert_true(json_array_size(cases) > 500);
	json_array_foreach(cases, i, c)
	{
		const json_t *source = json_array_get(c, 0), *want = json_array_get(c, 1);
		struct mx_buf out = {0};
		struct mx_err err = {0};
		mx_status st =
			render(json_string_value(source), json_string_length(source), vars, NULL, &out, &err);
		bool ok = json_is_null(want)
		              ? st && st != MX_E_INTERNAL && st != MX_E_NOMEM && err.text[0]
		              : !st && out.len == json_string_length(want) &&
		                    memcmp(mx_buf_str(&out), json_string_value(want), out.len) == 0;
		if (!ok) {
			bad++;
			print_error("%s\n  want %s\n  got  %s (%d: %s)\n", json_string_value(source),
			            json_is_null(want) ? "an error" : json_string_value(want), mx_buf_str(&out),
			            st, err.text);
		}
		mx_buf_free(&out);
	}
	json_decref(all);
	assert_int_equal(bad, 0);
}

/* ---- refusals ---- */

static void faults_are_told_with_their_place(void **state)
{
	(void)state;
	static const struct {
		const char *source;
		mx_status status;
		uint32_t line, column;
		const char *text;
	} cases[] = {
		{"a\n{% include 'x' %}", MX_E_UNSUPPORTED, 2, 4, "tag 'include' is not supported"},
		{"{% extends 'x' %}", MX_E_UNSUPPORTED, 1, 4, "tag 'extends'"},
		{"{% import 'x' as y %}", MX_E_UNSUPPORTED, 1, 4, "tag 'import'"},
		{"{% block b %}{% endblock %}", MX_E_UNSUPPORTED, 1, 4, "tag 'block'"},
		{"{% autoescape true %}{% endautoescape %}", MX_E_UNSUPPORTED, 1, 4, "tag 'autoescape'"},
		{"\n\n {{ x | urlize }}", MX_E_UNSUPPORTED, 3, 9, "filter 'urlize' is not supported"},
		{"{{ x is prime }}", MX_E_UNSUPPORTED, 1, 9, "test 'prime' is not supported"},
		{"{% if x %}\n{{ y }}", MX_E_FORMAT, 1, 4, "'if' is not closed"},
		{"x\n{{ (1 }}", MX_E_FORMAT, 2, 7, "unexpected closing bracket"},
		{"{{ 'abc }}", MX_E_FORMAT, 1, 4, "string is not closed"},
		{"a\n\n{# c", MX_E_FORMAT, 3, 1, "comment is not closed"},
		{"{% endif %}", MX_E_UNSUPPORTED, 1, 4, "tag 'endif'"},
		{"{{ 1 + }}", MX_E_FORMAT, 1, 8, "expected an expression, got }}"},
		{"{% for x of y %}{% endfor %}", MX_E_FORMAT, 1, 10, "expected 'in', got 'of'"},
		{"{{ 99999999999999999999 }}", MX_E_FORMAT, 1, 4, "64 bits"},
		{"\n{{ raise_exception('no ' ~ 'way') }}", MX_E_INVALID, 2, 19, "no way"},
		{"{{ messages[0].role.x.y }}", MX_E_INVALID, 1, 23, "'str object' has no attribute 'x'"},
		{"{{ messages[3].role }}", MX_E_INVALID, 1, 16, "list object has no element 3"},
		{"{{ nobody.x }}", MX_E_INVALID, 1, 11, "'nobody' is undefined"},
		{"{{ messages.append(1) }}", MX_E_INVALID, 0, 0,
	     "access to attribute 'append' of 'list' object is unsafe."},
		{"{{ 'x'.encode() }}", MX_E_UNSUPPORTED, 0, 0, "not supported"},
		{"{% set x = 9223372036854775807 %}{{ x + 1 }}", MX_E_LIMIT, 1, 39, "64 bits"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_err err;
		refuse(cases[i].source, cases[i].status, cases[i].text, &err);
		if (cases[i].line && (err.line != cases[i].line || err.column != cases[i].column))
			fail_msg("%s: placed at %u:%u", cases[i].source, err.line, err.column);
	}
}

static void text_that_is_no_utf8_is_refused(void **state)
{
	(void)state;
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_chat_template_parse("a\xff", 2, &t, &err), MX_E_FORMAT);
	assert_int_equal(mx_chat_template_parse("\xc3", 1, &t, NULL), MX_E_FORMAT);
	assert_null(t);
	assert_int_equal(mx_chat_template_parse("a\0b", 3, &t, &err), MX_OK); /* NUL is text */
	mx_chat_template_destroy(t);
}

static void long_messages_are_cut_between_characters(void **state)
{
	(void)state;
	struct mx_err err;
	for (int shift = 0; shift < 4; shift++) {
		char source[128];
		snprintf(source, sizeof source, "{{ raise_exception('%.*s' ~ '日' * 1000) }}", shift,
		         "aaaa");
		refuse(source, MX_E_INVALID, "日", &err);
		json_t *j = json_string(err.text); /* jansson takes nothing but UTF-8 */
		assert_non_null(j);
		json_decref(j);
		assert_true(strlen(err.text) > 480);
	}
}

/* ---- hostile templates ---- */

/* Computing time: a busy machine makes nothing longer. */
static double seconds(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void hostile_templates_end_soon(void **state)
{
	(void)state;
	static const char *const sources[] = {
		"{{ 'x' * 10**9 }}",
		"{{ 'x' * 10**18 }}",
		"{{ [1] * 10**12 }}",
		"{{ (('x' * 10**6) * 10**6)|length }}",
		"{% for i in range(10**12) %}{% endfor %}",
		"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(1) "
		"}}",
		"{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}",
		"{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}"
		"{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
		"{% endfor %}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}"
		"{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[]) %}{% for i in range(50000) %}{% set ns.s = [ns.s] %}"
		"{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[]) %}{% for i in range(50000) %}{% set ns.s = [ns.s] %}"
		"{% endfor %}{{ ns.s|tojson }}",
		"{% set ns = namespace(s=(), t=()) %}{% for i in range(50000) %}{% set ns.s = (ns.s,) %}"
		"{% set ns.t = (ns.t,) %}{% endfor %}{{ ns.s == ns.t }}",
		"{% set ns = namespace(s=()) %}{% for i in range(50000) %}{% set ns.s = (ns.s,) %}"
		"{% endfor %}{{ {ns.s: 1} }}",
		"{% set ns = namespace(s=()) %}{% for i in range(50000) %}{% set ns.s = (ns.s,) %}"
		"{% endfor %}{{ ns.s < ns.s or ns.s|first < ns.s }}",
		"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
		"{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns.l == [ns] }}{{ ns.l }}",
		"{{ [1, [2]]|tojson(indent=10**9) }}",
		"{{ [1, [2]]|tojson(indent='x' * 10**7) }}",
		"{{ 'a'|center(10**10) }}",
		"{{ 'a'.ljust(10**12) }}",
		"{{ '%1000000000d' % 5 }}",
		"{{ '{:>2000000000}'.format(5) }}",
		"{{ ('a\\n' * 1000000)|indent(10**6) }}",
		"{{ ('ab' * 100000).replace('', 'x' * 100000) }}",
		"{{ ('a' * 100000 ~ 'b').find('a' * 50000 ~ 'c') }}"
		"{% for i in range(100000) %}{{ ('a' * 100000).rfind('b' * 2000) }}{% endfor %}",
		"{% set s = 'é' * 100000 %}{% for i in range(100000) %}{{ s[99999] }}{% endfor %}",
		"{{ ['x' * 1000000] * 1000 }}",
		"{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{% if s == s ~ '' %}{% endif %}"
		"{% endfor %}",
		"{% set l = range(100000)|list %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
		"{% for i in range(100000) %}{{ range(100000)|list|sort|length }}{% endfor %}",
		"{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
		"{{ 2 ** 100 }}",
		"{{ 'x'|batch(1000000000, 'y')|list }}",
		"{{ 'x'|slice(1000000000)|list }}",
		"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"{% macro m() %}{{ caller() }}{% endmacro %}{% macro f() %}{% call m() %}{{ f() }}"
		"{% endcall %}{% endmacro %}{{ f() }}",
	};
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		struct mx_err err;
		double start = seconds();
		refuse(sources[i], MX_E_LIMIT, NULL, &err);
		double took = seconds() - start;
		if (getenv("VERBOSE"))
			print_message("%.3f s: %s\n", took, sources[i]);
		if (took > 60) /* far above what it takes even with sanitizers */
			fail_msg("%s took %.1f s", sources[i], took);
	}
}

/* Repeats `open`, then `mid`, then `close`. */
static char *nested(const char *open, const char *mid, const char *close, size_t n)
{
	struct mx_buf b = {0};
	for (size_t i = 0; i < n; i++)
		mx_buf_puts(&b, open);
	mx_buf_puts(&b, mid);
	for (size_t i = 0; i < n; i++)
		mx_buf_puts(&b, close);
	assert_false(b.failed);
	return b.data;
}

static void deep_sources_are_refused(void **state)
{
	(void)state;
	static const char *const cases[][3] = {
		{"(", "1", ")"},         {"[", "1", "]"},           {"{1:", "1", "}"},
		{"-", "1", ""},          {"not ", "1", ""},         {"f(", "1", ")"},
		{"x[", "1", "]"},        {"1 if 1 else ", "1", ""}, {"1 is eq(", "1", ")"},
		{"1 is eq [", "1", "]"},
	};
	struct mx_err err;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char *body = nested(cases[i][0], cases[i][1], cases[i][2], 20000);
		struct mx_buf b = {0};
		mx_buf_printf(&b, "{{ %s }}", body);
		refuse(b.data, MX_E_LIMIT, "nested", &err);
		mx_buf_free(&b);
		free(body);
	}
	char *blocks = nested("{% if 1 %}", "x", "{% endif %}", 20000);
	refuse(blocks, MX_E_LIMIT, "nested", &err);
	free(blocks);
	struct mx_buf sum = {0};
	mx_buf_puts(&sum, "{{ 0");
	for (int i = 0; i < 20000; i++)
		mx_buf_puts(&sum, " + 1"); /* flat to read, but a deep tree */
	mx_buf_puts(&sum, " }}");
	refuse(sum.data, MX_E_LIMIT, "nested", &err);
	mx_buf_free(&sum);
}

/* Long but flat constructs are no trouble. */
static void long_flat_sources_are_fine(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	for (int i = 0; i < 2000; i++)
		mx_buf_printf(&b, "{%% %s x == %d %%}%d", i ? "elif" : "if", i, i);
	mx_buf_puts(&b, "{% endif %}");
	expect(b.data, "{\"x\": 1999}", "1999");
	mx_buf_clear(&b);
	mx_buf_puts(&b, "{{ ''");
	for (int i = 0; i < 5000; i++)
		mx_buf_puts(&b, " ~ 'a'");
	mx_buf_puts(&b, "|upper }}");
	json_t *v = json_object();
	struct mx_buf out = {0};
	assert_int_equal(render(b.data, b.len, v, NULL, &out, NULL), MX_OK);
	assert_int_equal(out.len, 5000);
	mx_buf_free(&out);
	mx_buf_free(&b);
	json_decref(v);
}

static void variables_nested_too_deeply_are_refused(void **state)
{
	(void)state;
	json_t *v = json_array();
	for (int i = 0; i < 100000; i++) {
		json_t *outer = json_array();
		json_array_append_new(outer, v);
		v = outer;
	}
	json_t *vars = json_pack("{s:O}", "x", v);
	struct mx_buf out = {0};
	struct mx_err err = {0};
	assert_int_equal(render("{{ x }}", 7, vars, NULL, &out, &err), MX_E_LIMIT);
	mx_buf_free(&out);
	json_decref(vars);
	while (json_array_size(v)) { /* jansson frees recursively: take it apart from outside */
		json_t *inner = json_incref(json_array_get(v, 0));
		json_decref(v);
		v = inner;
	}
	json_decref(v);
}

/* ---- limits ---- */

static void limits_are_those_given(void **state)
{
	(void)state;
	struct mx_chat_limits steps = {.max_steps = 100}, output = {.max_output = 10};
	struct mx_buf out = {0};
	struct mx_err err = {0};
	json_t *v = json_object();
	const char *loop = "{% for i in range(99) %}{{ i }}{% endfor %}";
	assert_int_equal(render(loop, strlen(loop), v, &steps, &out, &err), MX_E_LIMIT);
	assert_string_equal(err.text, "template takes too many steps");
	assert_int_equal(render("0123456789", 10, v, &output, &out, &err), MX_OK);
	assert_int_equal(render("0123456789", 10, v, &output, &out, &err), MX_OK); /* appended */
	assert_string_equal(mx_buf_str(&out), "01234567890123456789");
	assert_int_equal(render("0123456789A", 11, v, &output, &out, &err), MX_E_LIMIT);
	assert_string_equal(err.text, "template output is too long");
	assert_int_equal(out.len, 20);
	/* 60 MB for a prompt of no bytes: more than a worker may take */
	const char *large = "{% set a = 'x' * 20000000 %}{% set b = a ~ 'y' ~ a %}{{ b|length }}";
	assert_int_equal(render(large, strlen(large), v, NULL, &out, &err), MX_E_LIMIT);
	assert_string_equal(err.text, "template needs too much memory");
	mx_buf_free(&out);
	json_decref(v);
}

/* A text built piece by piece costs time and memory in proportion to its length. */
static void building_text_by_pieces_is_linear(void **state)
{
	(void)state;
	const char *source = "{% set ns = namespace(s='') %}{% for i in range(100000) %}"
						 "{% set ns.s = ns.s ~ '0123456789' %}{% endfor %}{{ ns.s }}";
	json_t *v = json_object();
	struct mx_buf out = {0};
	struct mx_err err = {0};
	if (render(source, strlen(source), v, NULL, &out, &err))
		fail_msg("%s", err.text);
	assert_int_equal(out.len, 1000000);
	assert_memory_equal(out.data + 999980, "01234567890123456789", 20);
	mx_buf_free(&out);
	/* a prefix that was shared keeps its own text */
	expect(
		"{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }} {{ b }} {{ c }}",
		"{}", "xy xy1 xy2");
	json_decref(v);
}

/* ---- sharing ---- */

struct worker {
	const struct mx_chat_template *t;
	int bad;
};

static void *render_many(void *arg)
{
	struct worker *w = arg;
	json_t *v = json_pack("{s:[{s:s}]}", "messages", "content", "Grüße");
	for (int i = 0; i < 200; i++) {
		struct mx_buf out = {0};
		mx_status st = mx_chat_template_render(w->t, v, 0, NULL, &out, NULL);
		w->bad += st || strcmp(mx_buf_str(&out), "ab\nü GRÜSSE 1970 x1") != 0;
		mx_buf_free(&out);
	}
	json_decref(v);
	return NULL;
}

static void a_template_may_be_rendered_by_threads(void **state)
{
	(void)state;
	const char *source =
		"{% set k = 'a' 'b' '\\n' %}{{ k ~ 'Grüße'[2] }} {{ messages[0].content|upper }} "
		"{{ strftime_now('%Y') }}{% macro f(x) %} x{{ x }}{% endmacro %}{{ f(1) }}";
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_chat_template_parse(source, strlen(source), &t, &err), MX_OK);
	pthread_t th[4];
	struct worker w[4];
	for (int i = 0; i < 4; i++) {
		w[i] = (struct worker){.t = t};
		assert_int_equal(pthread_create(&th[i], NULL, render_many, &w[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(th[i], NULL);
		assert_int_equal(w[i].bad, 0);
	}
	mx_chat_template_destroy(t);
}

/* ---- variables ---- */

static void what_transformers_always_passes_is_defined(void **state)
{
	(void)state;
	const char *source = "{{ tools is defined }}{{ tools is none }}{{ documents is none }}"
						 "{{ add_generation_prompt }}{{ bos_token is defined }}";
	expect(source, "{}", "TrueTrueTrueFalseFalse");
	expect(source, "{\"tools\": [], \"bos_token\": null, \"add_generation_prompt\": true}",
	       "TrueFalseTrueTrueTrue");
	struct mx_err err = {0};
	struct mx_buf out = {0};
	json_t *v = json_array();
	assert_int_equal(render("x", 1, v, NULL, &out, &err), MX_E_INVALID);
	json_decref(v);
	mx_buf_free(&out);
}

static bool reads(const char *source, size_t len, const char *name)
{
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	if (mx_chat_template_parse(source, len, &t, &err))
		fail_msg("%.200s: %s", source, err.text);
	bool r = mx_chat_template_reads(t, name);
	mx_chat_template_destroy(t);
	return r;
}

static void variables_that_are_read_are_known(void **state)
{
	(void)state;
	static const char *const yes[] = {
		"{{ tools }}",
		"{% if tools %}{% endif %}",
		"{% if not tools is defined %}{% set tools = none %}{% endif %}",
		"{% for t in tools or [] %}{% endfor %}",
		"{% set x = tools | tojson %}",
		"{{ f(1, a=[{'k': tools}]) }}",
		"{% macro m() %}{{ x[tools] }}{% endmacro %}",
		"{{ x if y else tools.z }}",
		"{{ -tools ** 2 }}{% set a, b = 1, tools %}",
	};
	static const char *const no[] = {
		"{{ messages }}",
		"{{ message.tools }}{{ message['tools'] }}",
		"tools {# {{ tools }} #}{% raw %}{{ tools }}{% endraw %}",
		"{% set tools = 1 %}{% for tools in x %}{% endfor %}{% for tools, b in x %}{% endfor %}",
		"{{ f(tools=1) }}{{ custom_tools }}{{ 'tools' }}",
		"{{ x | join('tools') }}",
	};
	for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
		if (!reads(yes[i], strlen(yes[i]), "tools"))
			fail_msg("reads tools: %s", yes[i]);
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (reads(no[i], strlen(no[i]), "tools"))
			fail_msg("does not read tools: %s", no[i]);
}

static bool names(const char *source, const char *word)
{
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	if (mx_chat_template_parse(source, strlen(source), &t, &err))
		fail_msg("%.200s: %s", source, err.text);
	bool r = mx_chat_template_names(t, word);
	mx_chat_template_destroy(t);
	return r;
}

static void members_that_are_named_are_known(void **state)
{
	(void)state;
	static const char *const yes[] = {
		"{{ m.calls }}",
		"{{ m['calls'] }}{{ m.x }}",
		"{% if m.get('calls') %}{% endif %}",
		"{% if 'calls' in m %}{% endif %}",
		"{{ ms | selectattr(\"calls\") | list }}",
		"{% set k = 'ca' 'lls' %}{{ m[k] }}",
		"{% macro f() %}{% for m in ms %}{{ m.a.calls.b }}{% endfor %}{% endmacro %}",
	};
	static const char *const no[] = {
		"{{ calls }}",
		"calls {# m.calls #}{% raw %}{{ m.calls }}{% endraw %}",
		"{{ m.call }}{{ 'the calls' }}{{ f(calls=1) }}",
	};
	for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
		if (!names(yes[i], "calls"))
			fail_msg("names calls: %s", yes[i]);
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (names(no[i], "calls"))
			fail_msg("does not name calls: %s", no[i]);
	/* reasoning is shown under the names that templates read */
	assert_true(names("{{ m.reasoning_content }}", "reasoning"));
	assert_true(names("{{ m.thinking }}", "reasoning_content"));
	assert_false(names("{{ m.reasoning }}", "thinking"));
	assert_false(names("{{ m.reasoning_content }}", "calls"));
}

static bool takes_parts(const char *source)
{
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_chat_template_parse(source, strlen(source), &t, &err), MX_OK);
	bool r = mx_chat_template_takes_parts(t);
	mx_chat_template_destroy(t);
	return r;
}

static void templates_that_take_parts_are_known(void **state)
{
	(void)state;
	assert_true(takes_parts("{% for p in m.content %}{% endfor %}"));
	assert_true(takes_parts("{% for p in m['content'] | selectattr('text') | list %}{% endfor %}"));
	assert_true(
		takes_parts("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}"));
	assert_false(takes_parts("{% for m in messages %}{{ m.content }}{% endfor %}"));
	assert_false(takes_parts("{% for p in m.content.split('x') %}{{ p }}{% endfor %}"));
}

/* What a real template does not read does not change what it renders. */
static void variables_that_are_not_read_change_nothing(void **state)
{
	(void)state;
	char dir[1024], path[2048];
	snprintf(dir, sizeof dir, "%s/tests/golden/chat", source_dir());
	DIR *d = opendir(dir);
	assert_non_null(d);
	struct dirent *e;
	int with = 0, without = 0;
	while ((e = readdir(d))) {
		size_t stem = strlen(e->d_name), len;
		if (stem < 7 || strcmp(e->d_name + stem - 6, ".jinja"))
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		char *source = read_text(path, &len);
		if (reads(source, len, "tools")) {
			with++;
		} else {
			without++;
			json_t *v = json_pack("{s:[{s:s,s:s}],s:s,s:s}", "messages", "role", "user", "content",
			                      "hi", "bos_token", "<s>", "eos_token", "</s>");
			struct mx_buf plain = {0}, out = {0};
			struct mx_err err = {0};
			mx_status st = render(source, len, v, NULL, &plain, &err);
			json_object_set_new(
				v, "tools",
				json_pack("[{s:s,s:{s:s}}]", "type", "function", "function", "name", "weather"));
			assert_int_equal(render(source, len, v, NULL, &out, &err), st);
			assert_string_equal(mx_buf_str(&out), mx_buf_str(&plain));
			mx_buf_free(&plain);
			mx_buf_free(&out);
			json_decref(v);
		}
		free(source);
	}
	closedir(d);
	print_message("%d templates read tools, %d do not\n", with, without);
	assert_true(with > 5 && without > 5);
}

/* ---- allocation failures ---- */

static void every_allocation_may_fail(void **state)
{
	(void)state;
	const char *source = "{% for m in messages %}{{ m.role ~ ('x' * 40000)|length }}{{ m|tojson }}"
						 "{% endfor %}{{ 'y' * 70000 }}";
	json_t *v = json_pack("{s:[{s:s}]}", "messages", "role", "user");
	struct mx_err err = {0};
	long n = 1;
	for (;; n++) {
		struct mx_buf out = {0};
		fail_at = n;
		mx_status st = render(source, strlen(source), v, NULL, &out, &err);
		bool failed = fail_at == 0;
		fail_at = 0;
		mx_buf_free(&out);
		if (!failed) {
			assert_int_equal(st, MX_OK);
			break;
		}
		assert_int_equal(st, MX_E_NOMEM);
		assert_int_equal(err.status, MX_E_NOMEM);
	}
	assert_true(n > 8);
	json_decref(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checkpoints_render_as_in_transformers),
		cmocka_unit_test(small_templates_render_as_in_jinja),
		cmocka_unit_test(faults_are_told_with_their_place),
		cmocka_unit_test(text_that_is_no_utf8_is_refused),
		cmocka_unit_test(long_messages_are_cut_between_characters),
		cmocka_unit_test(hostile_templates_end_soon),
		cmocka_unit_test(deep_sources_are_refused),
		cmocka_unit_test(long_flat_sources_are_fine),
		cmocka_unit_test(variables_nested_too_deeply_are_refused),
		cmocka_unit_test(limits_are_those_given),
		cmocka_unit_test(building_text_by_pieces_is_linear),
		cmocka_unit_test(a_template_may_be_rendered_by_threads),
		cmocka_unit_test(what_transformers_always_passes_is_defined),
		cmocka_unit_test(variables_that_are_read_are_known),
		cmocka_unit_test(members_that_are_named_are_known),
		cmocka_unit_test(templates_that_take_parts_are_known),
		cmocka_unit_test(variables_that_are_not_read_change_nothing),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
