/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/command.h"

#include <jansson.h>
#include <string.h>

#include "base/closest.h"

/* The commands, and what each takes beside its name. */
static const struct shape {
	const char *name;
	const char *member; /* NULL = none */
	bool required;
} shapes[] = {
	[MX_ADMIN_STATUS] = {"status", NULL, false},
	[MX_ADMIN_REQUESTS] = {"requests", NULL, false},
	[MX_ADMIN_RELOAD] = {"reload", NULL, false},
	[MX_ADMIN_DRAIN] = {"drain", "model", false},
	[MX_ADMIN_UNDRAIN] = {"undrain", "model", false},
	[MX_ADMIN_CANCEL] = {"cancel", "id", true},
	[MX_ADMIN_LOG] = {"log", "level", true},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static const char *const levels[] = {
	[MX_LOG_ERROR] = "error",
	[MX_LOG_WARNING] = "warning",
	[MX_LOG_INFO] = "info",
	[MX_LOG_DEBUG] = "debug",
};

/* Returns the level of that name, or -1. */
static int level_of(const char *name)
{
	for (int i = 0; i < (int)(sizeof levels / sizeof *levels); i++)
		if (!strcmp(levels[i], name))
			return i;
	return -1;
}

static mx_status unknown_command(const char *name, struct mx_err *err)
{
	const char *names[N_SHAPES];
	for (size_t i = 0; i < N_SHAPES; i++)
		names[i] = shapes[i].name;
	const char *closest = mx_closest(name, names, N_SHAPES);
	return mx_fail(err, MX_E_INVALID, "no command \"%.40s\"%s%s%s", name,
	               closest ? "; did you mean \"" : "", closest ? closest : "",
	               closest ? "\"?" : "");
}

/* Copies a string that is not empty and fits. */
static mx_status take(const json_t *v, const char *name, char *out, size_t cap, struct mx_err *err)
{
	size_t n = json_string_length(v);
	if (!json_is_string(v) || !n || n >= cap)
		return mx_fail(err, MX_E_INVALID, "\"%s\" must be a string of 1 to %zu bytes", name,
		               cap - 1);
	if (strlen(json_string_value(v)) != n)
		return mx_fail(err, MX_E_INVALID, "\"%s\" contains a NUL character", name);
	memcpy(out, json_string_value(v), n + 1);
	return MX_OK;
}

static mx_status take_member(enum mx_admin_kind kind, const json_t *v, struct mx_admin_command *c,
                             struct mx_err *err)
{
	char level[16];
	if (kind == MX_ADMIN_CANCEL)
		return take(v, "id", c->id, sizeof c->id, err);
	if (kind != MX_ADMIN_LOG)
		return take(v, "model", c->model, sizeof c->model, err);
	mx_status st = take(v, "level", level, sizeof level, err);
	int found = st == MX_OK ? level_of(level) : 0;
	if (found < 0)
		return mx_fail(err, MX_E_INVALID, "no level \"%s\": must be error, warning, info or debug",
		               level);
	c->level = (enum mx_log_level)found;
	return st;
}

static mx_status read_command(const json_t *root, struct mx_admin_command *out, struct mx_err *err)
{
	struct mx_admin_command c = {0};
	char name[40];
	if (!json_is_object(root))
		return mx_fail(err, MX_E_INVALID, "must be an object with \"command\"");
	mx_status st = take(json_object_get(root, "command"), "command", name, sizeof name, err);
	if (st)
		return st;
	size_t kind = 0;
	while (kind < N_SHAPES && strcmp(shapes[kind].name, name))
		kind++;
	if (kind == N_SHAPES)
		return unknown_command(name, err);
	c.kind = (enum mx_admin_kind)kind;
	const struct shape *shape = &shapes[kind];
	const json_t *member = shape->member ? json_object_get(root, shape->member) : NULL;
	if (json_object_size(root) > (member ? 2u : 1u))
		return mx_fail(err, MX_E_INVALID, "\"%s\" takes no member but %s", name,
		               shape->member ? shape->member : "\"command\"");
	if (!member && shape->required)
		return mx_fail(err, MX_E_INVALID, "\"%s\" needs \"%s\"", name, shape->member);
	if (member)
		st = take_member(c.kind, member, &c, err);
	if (st == MX_OK)
		*out = c;
	return st;
}

mx_status mx_admin_parse(const char *line, size_t n, struct mx_admin_command *out,
                         struct mx_err *err)
{
	json_error_t fault;
	if (n > MX_ADMIN_LINE)
		return mx_fail(err, MX_E_LIMIT, "the line is longer than %d bytes", MX_ADMIN_LINE);
	json_t *root = json_loadb(line, n, JSON_REJECT_DUPLICATES, &fault);
	if (!root)
		return mx_fail(err, MX_E_INVALID, "not valid JSON: column %d: %s", fault.column,
		               fault.text);
	mx_status st = read_command(root, out, err);
	json_decref(root);
	return st;
}
