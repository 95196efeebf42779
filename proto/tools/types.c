/* SPDX-License-Identifier: Apache-2.0 */
/* What the parameters of a request's tools are. */
#include <string.h>

#include "proto/tools/impl.h"

struct parameter {
	const char *name;
	size_t len;
	enum mx_tool_type type;
};

struct tool {
	const char *name;
	size_t len;
	const struct parameter *parameters; /* [n] */
	size_t n;
};

struct mx_tool_types {
	const struct tool *tools; /* [n] */
	size_t n;
};

/* Returns true if a schema's `type` allows strings; *only: and nothing else. */
static bool type_has_strings(const json_t *schema, bool *only)
{
	const json_t *type = json_object_get(schema, "type");
	size_t i, n = json_array_size(type);
	const json_t *v;
	bool has = !type;
	*only = false;
	if (json_is_string(type)) {
		has = *only = !strcmp(json_string_value(type), "string");
		return has;
	}
	json_array_foreach((json_t *)(uintptr_t)type, i, v)
	{
		has = has || (json_is_string(v) && !strcmp(json_string_value(v), "string"));
	}
	*only = has && n == 1;
	return has;
}

bool mx_tool_is_string(const json_t *schema)
{
	const json_t *constant = json_object_get(schema, "const");
	const json_t *values = json_object_get(schema, "enum");
	size_t i;
	const json_t *v;
	bool only;
	if (!type_has_strings(schema, &only) || only)
		return only;
	if (constant)
		return json_is_string(constant);
	json_array_foreach((json_t *)(uintptr_t)values, i, v)
	{
		if (!json_is_string(v))
			return false;
	}
	return json_array_size(values) > 0;
}

static enum mx_tool_type type_of_schema(const json_t *schema)
{
	if (mx_tool_is_string(schema))
		return MX_TYPE_STRING;
	return json_is_string(json_object_get(schema, "type")) ? MX_TYPE_OTHER : MX_TYPE_UNKNOWN;
}

static mx_status read_tool(const json_t *function, struct mx_arena *arena, struct tool *out)
{
	const json_t *name = json_object_get(function, "name");
	json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
	size_t n = json_object_size(properties);
	struct parameter *all = mx_arena_alloc(arena, (n + 1) * sizeof(*all));
	char *copy = mx_arena_strndup(arena, json_string_value(name), json_string_length(name));
	if (!all || !copy)
		return MX_E_NOMEM;
	*out = (struct tool){copy, json_string_length(name), all, n};
	const char *key;
	const json_t *schema;
	json_object_foreach(properties, key, schema)
	{
		size_t len = strlen(key);
		char *own = mx_arena_strndup(arena, key, len);
		if (!own)
			return MX_E_NOMEM;
		*all++ = (struct parameter){own, len, type_of_schema(schema)};
	}
	return MX_OK;
}

mx_status mx_tool_types_read(const json_t *tools, struct mx_arena *arena,
                             const struct mx_tool_types **out)
{
	size_t i, n = json_array_size(tools);
	const json_t *tool;
	struct mx_tool_types *t = mx_arena_alloc(arena, sizeof(*t));
	struct tool *all = mx_arena_alloc(arena, (n + 1) * sizeof(*all));
	if (!t || !all)
		return MX_E_NOMEM;
	*t = (struct mx_tool_types){.tools = all};
	json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
	{
		const json_t *function = json_object_get(tool, "function");
		function = function ? function : tool;
		if (!json_is_string(json_object_get(function, "name")))
			continue;
		if (read_tool(function, arena, &all[t->n]) != MX_OK)
			return MX_E_NOMEM;
		t->n++;
	}
	*out = t;
	return MX_OK;
}

static bool equals(const char *s, size_t len, const struct mx_buf *b)
{
	return b->len == len && !memcmp(mx_buf_str(b), s, len);
}

static const struct tool *find(const struct mx_tool_types *t, const struct mx_buf *name)
{
	for (size_t i = 0; t && i < t->n; i++)
		if (equals(t->tools[i].name, t->tools[i].len, name))
			return &t->tools[i];
	return NULL;
}

enum mx_tool_type mx_tool_type_of(const struct mx_tool_types *t, const struct mx_buf *tool,
                                  const struct mx_buf *parameter)
{
	const struct tool *f = find(t, tool);
	for (size_t i = 0; f && i < f->n; i++)
		if (equals(f->parameters[i].name, f->parameters[i].len, parameter))
			return f->parameters[i].type;
	return MX_TYPE_UNKNOWN;
}

bool mx_tool_exists(const struct mx_tool_types *t, const struct mx_buf *name)
{
	return !t || find(t, name);
}
