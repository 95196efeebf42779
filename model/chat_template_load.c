/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the chat template of a checkpoint, and the one that it has for conversations with tools. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/chat_template.h"
#include "model/gguf/texts.h"

enum {
	MAX_SOURCE = 4 << 20, /* bytes of a template: more is refused when it is compiled */
	MAX_JSON = 64 << 20,  /* bytes of tokenizer_config.json */
};

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

/* Returns the template of a JSON document: a string, which has no name, or the list entry of that
 * name. */
static const json_t *template_of(const json_t *root, const char *want)
{
	const json_t *t = json_object_get(root, "chat_template"), *item;
	size_t i;
	if (!json_is_array(t))
		return strcmp(want, "default") == 0 ? t : NULL;
	json_array_foreach((json_t *)(uintptr_t)t, i, item)
	{
		const char *name = json_string_value(json_object_get(item, "name"));
		if (name && strcmp(name, want) == 0)
			return json_object_get(item, "template");
	}
	return NULL;
}

static mx_status parse_named(const json_t *root, const char *name, const char *path,
                             struct mx_chat_template **out, struct mx_err *err)
{
	const json_t *t = template_of(root, name);
	if (!t || json_is_null(t))
		return mx_fail_at(err, MX_E_NOTFOUND, path, "no chat_template");
	if (!json_is_string(t))
		return mx_fail_at(err, MX_E_FORMAT, path, "chat_template is not a string");
	return mx_chat_template_parse(json_string_value(t), json_string_length(t), out, err);
}

/* Makes the templates of the text of a JSON file. */
static mx_status parse_json(const char *data, size_t len, const char *path,
                            struct mx_chat_template **out, struct mx_err *err)
{
	mx_status st;
	json_error_t je;
	json_t *root = json_loadb(data, len, 0, &je);
	if (!root)
		return mx_fail_at(err, MX_E_FORMAT, path, "line %d column %d: %s", je.line, je.column,
		                  je.text);
	struct mx_chat_template *t = NULL, *with_tools = NULL;
	st = parse_named(root, "default", path, &t, err);
	if (st == MX_OK)
		st = parse_named(root, "tool_use", path, &with_tools, err);
	if (with_tools)
		mx_chat_template_add_tools(t, with_tools);
	if (st == MX_E_NOTFOUND && t)
		st = MX_OK;
	json_decref(root);
	if (st && st != MX_E_NOTFOUND && err)
		snprintf(err->where, sizeof err->where, "%s", path);
	if (st)
		mx_chat_template_destroy(t);
	else
		*out = t;
	return st;
}

static mx_status load_json(const char *path, struct mx_chat_template **out, struct mx_err *err)
{
	char *data;
	size_t len;
	mx_status st = read_file(path, MAX_JSON, &data, &len, err);
	if (st)
		return st;
	st = parse_json(data, len, path, out, err);
	free(data);
	return st;
}

/* Loads the templates in a GGUF file's metadata. */
static mx_status load_gguf(const char *path, struct mx_chat_template **out, struct mx_err *err)
{
	char *data;
	size_t len;
	mx_status st = mx_gguf_file(path, "tokenizer_config.json", &data, &len, err);
	if (st)
		return st;
	st = parse_json(data, len, path, out, err);
	free(data);
	return st;
}

static mx_status load_jinja(const char *path, struct mx_chat_template **out, struct mx_err *err)
{
	char *data;
	size_t len;
	mx_status st = read_file(path, MAX_SOURCE, &data, &len, err);
	if (st)
		return st;
	st = mx_chat_template_parse(data, len, out, err);
	free(data);
	if (st && err)
		snprintf(err->where, sizeof err->where, "%s", path);
	return st;
}

static mx_status path_of(const char *dir, const char *name, char path[static 4096],
                         struct mx_err *err)
{
	int n = snprintf(path, 4096, "%s/%s", dir, name);
	return n < 0 || n >= 4096 ? mx_fail(err, MX_E_INVALID, "path too long") : MX_OK;
}

/* Loads the template from the first of the places that has it. */
static mx_status load_default(const char *dir, struct mx_chat_template **out, struct mx_err *err)
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
		mx_status st = path_of(dir, places[i].name, path, err);
		if (st == MX_OK)
			st = places[i].load(path, out, err);
		if (st != MX_E_NOTFOUND)
			return st;
	}
	return mx_fail_at(err, MX_E_NOTFOUND, dir, "the checkpoint has no chat template");
}

mx_status mx_chat_template_load(const char *dir, struct mx_chat_template **out, struct mx_err *err)
{
	struct mx_chat_template *t = NULL, *with_tools = NULL;
	char path[4096];
	if (mx_gguf_is(dir))
		return load_gguf(dir, out, err);
	mx_status st = load_default(dir, &t, err);
	if (st == MX_OK)
		st = path_of(dir, "additional_chat_templates/tool_use.jinja", path, err);
	if (st == MX_OK)
		st = load_jinja(path, &with_tools, err);
	if (with_tools)
		mx_chat_template_add_tools(t, with_tools);
	if (st && !(t && st == MX_E_NOTFOUND)) {
		mx_chat_template_destroy(t);
		return st;
	}
	*out = t;
	return MX_OK;
}
