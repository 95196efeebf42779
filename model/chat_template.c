/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, compiles and renders chat templates. The interpreter is in model/jinja. */
#include "model/chat_template.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include "model/jinja/jinja.h"

enum {
	DEFAULT_STEPS = 8000000,  /* about half a second; 1000 messages take some 50,000 */
	DEFAULT_OUTPUT = 8 << 20, /* bytes */
	PARSE_MEMORY = 256 << 20, /* bytes: some hundred times the largest template */
	MAX_JSON = 64 << 20,      /* bytes of tokenizer_config.json */
};

struct mx_chat_template {
	struct mx_arena arena; /* owns the program and the source */
	struct jj_program *prog;
	const char *source; /* [source_len] as it was given */
	size_t source_len;
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
	mx_arena_free(&t->arena);
	free(t);
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
	return has_key(t->prog->reads, name);
}

bool mx_chat_template_names(const struct mx_chat_template *t, const char *word)
{
	return has_key(t->prog->words, word);
}

const char *mx_chat_template_source(const struct mx_chat_template *t, size_t *out_len)
{
	*out_len = t->source_len;
	return t->source;
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

/* ---- finding the template of a checkpoint ---- */

/* Reads a whole file into a new buffer; MX_E_NOTFOUND if it does not exist. */
static mx_status read_file(const char *path, size_t limit, char **out, size_t *out_len,
                           struct mx_err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat sb;
	char *data = NULL;
	size_t n = 0;
	mx_status st = MX_OK;
	if (fd < 0)
		return mx_fail_at(err, errno == ENOENT ? MX_E_NOTFOUND : MX_E_IO, path, "%s",
		                  strerror(errno));
	if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode))
		st = mx_fail_at(err, MX_E_IO, path, "not a readable file");
	else if (sb.st_size < 0 || (uint64_t)sb.st_size > limit)
		st = mx_fail_at(err, MX_E_LIMIT, path, "file is too large");
	else if (!(data = malloc((size_t)sb.st_size + 1)))
		st = mx_fail_at(err, MX_E_NOMEM, path, "out of memory");
	while (!st && n < (size_t)sb.st_size) {
		ssize_t k = read(fd, data + n, (size_t)sb.st_size - n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			st = mx_fail_at(err, MX_E_IO, path, "%s", strerror(errno));
		if (k <= 0)
			break;
		n += (size_t)k;
	}
	close(fd);
	if (st) {
		free(data);
		return st;
	}
	data[n] = 0;
	*out = data;
	*out_len = n;
	return MX_OK;
}

/* Returns the template of a JSON document: a string, or the list entry named "default". */
static const json_t *template_of(const json_t *root)
{
	const json_t *t = json_object_get(root, "chat_template"), *item;
	size_t i;
	if (!json_is_array(t))
		return t;
	json_array_foreach((json_t *)(uintptr_t)t, i, item)
	{
		const char *name = json_string_value(json_object_get(item, "name"));
		if (name && strcmp(name, "default") == 0)
			return json_object_get(item, "template");
	}
	return NULL;
}

static mx_status load_json(const char *path, struct mx_chat_template **out, struct mx_err *err)
{
	char *data;
	size_t len;
	mx_status st = read_file(path, MAX_JSON, &data, &len, err);
	if (st)
		return st;
	json_error_t je;
	json_t *root = json_loadb(data, len, 0, &je);
	free(data);
	if (!root)
		return mx_fail_at(err, MX_E_FORMAT, path, "line %d column %d: %s", je.line, je.column,
		                  je.text);
	const json_t *t = template_of(root);
	if (!t || json_is_null(t))
		st = mx_fail_at(err, MX_E_NOTFOUND, path, "no chat_template");
	else if (!json_is_string(t))
		st = mx_fail_at(err, MX_E_FORMAT, path, "chat_template is not a string");
	else
		st = mx_chat_template_parse(json_string_value(t), json_string_length(t), out, err);
	json_decref(root);
	if (st && st != MX_E_NOTFOUND && err)
		snprintf(err->where, sizeof err->where, "%s", path);
	return st;
}

static mx_status load_jinja(const char *path, struct mx_chat_template **out, struct mx_err *err)
{
	char *data;
	size_t len;
	mx_status st = read_file(path, JJ_MAX_SOURCE, &data, &len, err);
	if (st)
		return st;
	st = mx_chat_template_parse(data, len, out, err);
	free(data);
	if (st && err)
		snprintf(err->where, sizeof err->where, "%s", path);
	return st;
}

mx_status mx_chat_template_load(const char *dir, struct mx_chat_template **out, struct mx_err *err)
{
	static const struct {
		const char *name;
		mx_status (*load)(const char *path, struct mx_chat_template **out, struct mx_err *err);
	} places[] = {
		{"chat_template.jinja", load_jinja},
		{"chat_template.json", load_json},
		{"tokenizer_config.json", load_json},
	};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		char path[4096];
		int n = snprintf(path, sizeof path, "%s/%s", dir, places[i].name);
		if (n < 0 || (size_t)n >= sizeof path)
			return mx_fail(err, MX_E_INVALID, "path too long");
		mx_status st = places[i].load(path, out, err);
		if (st != MX_E_NOTFOUND)
			return st;
	}
	return mx_fail_at(err, MX_E_NOTFOUND, dir, "the checkpoint has no chat template");
}
