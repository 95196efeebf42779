/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles and renders chat templates. The interpreter is in model/jinja. */
#include "model/chat_template.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/jinja/jinja.h"

enum {
	DEFAULT_STEPS = 8000000,  /* about half a second; 1000 messages take some 50,000 */
	DEFAULT_OUTPUT = 8 << 20, /* bytes */
	PARSE_MEMORY = 256 << 20, /* bytes: some hundred times the largest template */
};

struct mx_chat_template {
	struct mx_arena arena; /* owns the program and the source */
	struct jj_program *prog;
	const char *source; /* [source_len] as it was given */
	size_t source_len;
	struct mx_chat_template *with_tools; /* owned; renders conversations with tools, or NULL */
};

static bool valid_utf8(const char *text, size_t len)
{
	for (size_t i = 0; i < len;) {
		utf8proc_int32_t cp;
		utf8proc_ssize_t n =
			utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &cp);
		if (n <= 0)
			return false;
		i += (size_t)n;
	}
	return true;
}

/* Lexes and parses. A failure returns here by longjmp. */
static mx_status compile(struct jj *j, const char *text, size_t len)
{
	if (setjmp(j->fail))
		return j->status;
	jj_lex(j, text, len);
	jj_parse(j);
	return MX_OK;
}

mx_status mx_chat_template_parse(const char *text, size_t len, struct mx_chat_template **out,
                                 struct mx_err *err)
{
	if (len > JJ_MAX_SOURCE)
		return mx_fail(err, MX_E_LIMIT, "template of %zu bytes is too long", len);
	if (!valid_utf8(text, len))
		return mx_fail(err, MX_E_FORMAT, "template is not UTF-8");
	struct mx_chat_template *t = calloc(1, sizeof *t);
	struct jj *j = calloc(1, sizeof *j);
	mx_status st = MX_E_NOMEM;
	if (t && j) {
		j->err = err;
		j->arena.limit = PARSE_MEMORY;
		j->max_cost = UINT64_MAX;
		st = compile(j, text, len);
		t->arena = j->arena;
		t->prog = j->prog;
		t->source_len = len;
		if (st == MX_OK && !(t->source = mx_arena_strndup(&t->arena, text, len)))
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
	} else {
		mx_fail(err, st, "out of memory");
	}
	free(j);
	if (st) {
		mx_chat_template_destroy(t);
		return st;
	}
	*out = t;
	return MX_OK;
}

void mx_chat_template_destroy(struct mx_chat_template *t)
{
	if (!t)
		return;
	mx_chat_template_destroy(t->with_tools);
	mx_arena_free(&t->arena);
	free(t);
}

void mx_chat_template_add_tools(struct mx_chat_template *t, struct mx_chat_template *with_tools)
{
	mx_chat_template_destroy(t->with_tools);
	t->with_tools = with_tools;
}

size_t mx_chat_template_max_output(size_t n)
{
	size_t most = ((size_t)256 << 10) + 4 * n;
	return most < DEFAULT_OUTPUT ? most : DEFAULT_OUTPUT;
}

static bool has_key(const struct jj_dict *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (jj_str_is(d->e[i].key.s, name))
			return true;
	return false;
}

bool mx_chat_template_reads(const struct mx_chat_template *t, const char *name)
{
	return has_key(t->prog->reads, name) ||
	       (t->with_tools && mx_chat_template_reads(t->with_tools, name));
}

static bool has_word(const struct mx_chat_template *t, const char *word)
{
	return has_key(t->prog->words, word) || (t->with_tools && has_word(t->with_tools, word));
}

bool mx_chat_template_names(const struct mx_chat_template *t, const char *word)
{
	bool reasoning = strcmp(word, "reasoning") == 0 || strcmp(word, "thinking") == 0 ||
	                 strcmp(word, "reasoning_content") == 0;
	return has_word(t, word) || (reasoning && (has_word(t, "reasoning_content") ||
	                                           has_word(t, "thinking"))); /* see message_value */
}

bool mx_chat_template_takes_parts(const struct mx_chat_template *t)
{
	return t->prog->loops_content || (t->with_tools && mx_chat_template_takes_parts(t->with_tools));
}

const char *mx_chat_template_source(const struct mx_chat_template *t, size_t *out_len)
{
	*out_len = t->source_len;
	return t->source;
}

const struct mx_chat_template *mx_chat_template_tools(const struct mx_chat_template *t)
{
	return t->with_tools;
}

/* Makes the value of a message: without members that are null, and with its reasoning under the
 * names that templates read, as apply_chat_template of transformers does. */
static struct jj_value message_value(struct jj *j, const json_t *message)
{
	static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
	if (!json_is_object(message))
		return jj_from_json(j, message, 0);
	struct jj_value reasoning = {.type = JJ_MISSING};
	struct jj_dict *d = jj_dict_new(j);
	for (size_t i = 0; i < sizeof names / sizeof *names && reasoning.type == JJ_MISSING; i++) {
		const json_t *v = json_object_get(message, names[i]);
		if (v && !json_is_null(v))
			reasoning = jj_from_json(j, v, 0);
	}
	if (reasoning.type != JJ_MISSING)
		jj_dict_set(j, d, jj_cstr(j, "thinking"), reasoning);
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)(uintptr_t)message, key, v)
	{
		if (!json_is_null(v))
			jj_dict_set(j, d, jj_cstr(j, key), jj_from_json(j, v, 0));
	}
	if (reasoning.type != JJ_MISSING)
		jj_dict_set(j, d, jj_cstr(j, "reasoning_content"), reasoning);
	return (struct jj_value){.type = JJ_DICT, .d = d};
}

static struct jj_value messages_value(struct jj *j, const json_t *messages)
{
	if (!json_is_array(messages))
		return jj_from_json(j, messages, 0);
	struct jj_list *l = jj_list_new(j, json_array_size(messages));
	for (size_t i = 0; i < json_array_size(messages); i++)
		jj_push(j, l, message_value(j, json_array_get(messages, i)));
	return jj_seq(JJ_LIST, l);
}

static mx_status run(struct jj *j, const json_t *vars)
{
	if (setjmp(j->fail))
		return j->status;
	if (!json_is_object(vars))
		jj_raise(j, MX_E_INVALID, "template variables are not an object");
	j->root = jj_alloc(j, j->prog->n_names, sizeof *j->root);
	for (size_t i = 0; i < j->prog->n_names; i++) {
		const struct jj_str *name = j->prog->names[i];
		char *key = jj_alloc(j, name->len + 1, 1); /* with a NUL at its end */
		memcpy(key, name->p, name->len);
		const json_t *v = json_object_get(vars, key);
		if (v && strcmp(key, "messages") == 0)
			j->root[i] = messages_value(j, v);
		else if (v)
			j->root[i] = jj_from_json(j, v, 0);
		else if (strcmp(key, "tools") == 0 || strcmp(key, "documents") == 0)
			j->root[i] = jj_none(); /* transformers always passes these */
		else if (strcmp(key, "add_generation_prompt") == 0)
			j->root[i] = jj_bool(false);
	}
	jj_run(j);
	return MX_OK;
}

mx_status mx_chat_template_render(const struct mx_chat_template *t, const json_t *vars, int64_t now,
                                  const struct mx_chat_limits *limits, struct mx_buf *out,
                                  struct mx_err *err)
{
	uint64_t steps = limits && limits->max_steps ? limits->max_steps : DEFAULT_STEPS;
	size_t max_output = limits && limits->max_output ? limits->max_output : DEFAULT_OUTPUT;
	size_t start = out->len;
	const json_t *tools = json_object_get(vars, "tools");
	if (t->with_tools && tools && !json_is_null(tools))
		t = t->with_tools;
	struct jj *j = calloc(1, sizeof *j);
	if (!j)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	j->err = err;
	j->prog = t->prog;
	j->now = now;
	j->arena.limit = MX_CHAT_MEMORY;
	j->max_cost = steps > UINT64_MAX / JJ_STEP / 2 ? UINT64_MAX / 2 : steps * JJ_STEP;
	j->out = out;
	j->out_end = max_output > SIZE_MAX - start ? SIZE_MAX : start + max_output;
	mx_status st = run(j, vars);
	mx_arena_free(&j->arena);
	free(j);
	if (st) { /* a failed rendering appends nothing */
		out->len = start;
		if (out->data)
			out->data[start] = 0;
	}
	return st;
}
