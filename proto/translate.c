/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/translate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/parse.h"

void mx_translation_begin(struct mx_translation *t)
{
	*t = (struct mx_translation){.chat = json_object(), .places = json_array(), .at = "messages"};
	t->messages = json_array();
	mx_translation_set(t, "messages", t->messages);
	if (t->failed)
		t->messages = NULL;
}

void mx_translation_drop(struct mx_translation *t)
{
	json_decref(t->chat);
	json_decref(t->places);
	*t = (struct mx_translation){0};
}

json_t *mx_translation_take(struct mx_translation *t)
{
	json_t *chat = t->chat;
	t->chat = NULL;
	return chat;
}

/* Sets a member, which takes `v` over. NULL in place of either: memory ran out. */
static void set(struct mx_translation *t, json_t *object, const char *name, json_t *v)
{
	if (json_object_set_new(object, name, v))
		t->failed = true;
}

static void append(struct mx_translation *t, json_t *array, json_t *v)
{
	if (json_array_append_new(array, v))
		t->failed = true;
}

void mx_translation_set(struct mx_translation *t, const char *name, json_t *v)
{
	set(t, t->chat, name, v);
}

void mx_translation_share(struct mx_translation *t, const char *name, const json_t *body,
                          const char *theirs)
{
	json_t *v = mx_parse_get(body, theirs);
	if (v)
		set(t, t->chat, name, json_incref(v));
}

json_t *mx_translation_message(struct mx_translation *t, const char *role)
{
	json_t *m = json_object();
	set(t, m, "role", json_string(role));
	append(t, t->messages, m);
	append(t, t->places, json_string(t->at));
	t->assistant = t->failed || strcmp(role, "assistant") ? NULL : m;
	return t->failed ? NULL : m;
}

/* Returns a text as a part of a content. */
static json_t *part(struct mx_translation *t, json_t *text)
{
	json_t *p = json_object();
	set(t, p, "type", json_string("text"));
	set(t, p, "text", json_incref(text));
	return p;
}

/* Nearly all messages have one text, and are then what chats usually send. */
void mx_translation_text(struct mx_translation *t, json_t *message, json_t *text)
{
	json_t *content = json_object_get(message, "content");
	if (!content) {
		set(t, message, "content", json_incref(text));
		return;
	}
	if (json_is_string(content)) {
		json_t *parts = json_array();
		append(t, parts, part(t, content));
		append(t, parts, part(t, text));
		set(t, message, "content", parts);
		return;
	}
	append(t, content, part(t, text));
}

bool mx_translation_system(struct mx_translation *t, json_t *text)
{
	size_t n = json_array_size(t->messages);
	json_t *first = json_array_get(t->messages, 0);
	const char *role = json_string_value(json_object_get(first, "role"));
	if (n > 1 || (role && strcmp(role, "system")))
		return false;
	mx_translation_text(t, first ? first : mx_translation_message(t, "system"), text);
	return true;
}

/* Returns the assistant's message that the last one is, or a new one. */
static json_t *assistant_of(struct mx_translation *t)
{
	return t->assistant ? t->assistant : mx_translation_message(t, "assistant");
}

void mx_translation_reasoning(struct mx_translation *t, json_t *text)
{
	static const char name[] = "reasoning_content";
	json_t *m = assistant_of(t);
	if (!json_object_get(m, name))
		set(t, m, name, json_array());
	append(t, json_object_get(m, name), json_incref(text)); /* complete_messages joins them */
}

void mx_translation_call(struct mx_translation *t, json_t *id, json_t *name, json_t *arguments)
{
	json_t *m = assistant_of(t);
	if (!json_object_get(m, "tool_calls"))
		set(t, m, "tool_calls", json_array());
	json_t *call = json_object(), *function = json_object();
	set(t, function, "name", json_incref(name));
	set(t, function, "arguments", json_incref(arguments));
	set(t, call, "id", json_incref(id));
	set(t, call, "type", json_string("function"));
	set(t, call, "function", function);
	append(t, json_object_get(m, "tool_calls"), call);
}

json_t *mx_translation_result(struct mx_translation *t, json_t *id)
{
	json_t *m = mx_translation_message(t, "tool");
	set(t, m, "tool_call_id", json_incref(id));
	return m;
}

json_t *mx_translation_tool(json_t *name, json_t *description, json_t *parameters, json_t *strict)
{
	struct mx_translation t = {0};
	json_t *tool = json_object(), *function = json_object();
	set(&t, function, "name", json_incref(name));
	if (description)
		set(&t, function, "description", json_incref(description));
	if (parameters)
		set(&t, function, "parameters", json_incref(parameters));
	if (strict)
		set(&t, function, "strict", json_incref(strict));
	set(&t, tool, "type", json_string("function"));
	set(&t, tool, "function", function);
	if (!t.failed)
		return tool;
	json_decref(tool);
	return NULL;
}

json_t *mx_translation_named(json_t *name)
{
	return mx_translation_tool(name, NULL, NULL, NULL);
}

/* Joins texts, each on lines of its own. */
static json_t *join(const json_t *texts)
{
	struct mx_buf all = {0};
	for (size_t i = 0; i < json_array_size(texts); i++) {
		const json_t *text = json_array_get(texts, i);
		if (i)
			mx_buf_putc(&all, '\n');
		mx_buf_append(&all, json_string_value(text), json_string_length(text));
	}
	json_t *joined = all.failed ? NULL : json_stringn(mx_buf_str(&all), all.len);
	mx_buf_free(&all);
	return joined;
}

/* A message of the assistant that says nothing but has calls is what chats send: with null. One
 * that has reasoning only is empty. */
static void complete_messages(struct mx_translation *t)
{
	size_t i;
	json_t *m;
	json_array_foreach(t->messages, i, m)
	{
		const json_t *reasoning = json_object_get(m, "reasoning_content");
		if (reasoning)
			set(t, m, "reasoning_content", join(reasoning));
		if (!json_object_get(m, "content"))
			set(t, m, "content", json_object_get(m, "tool_calls") ? json_null() : json_string(""));
	}
}

mx_status mx_translation_end(struct mx_translation *t, const struct mx_rename *names, size_t n,
                             struct mx_api_unknown *unknown, struct mx_api_request *out,
                             struct mx_api_error *err)
{
	complete_messages(t);
	if (t->failed) {
		mx_translation_drop(t);
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	}
	mx_status s = mx_api_parse_json(MX_API_CHAT, mx_translation_take(t), unknown, out, err);
	if (s == MX_OK) {
		out->may_drop_reasoning = true;
		/* kept with the request, which has none of that name */
		if (!json_object_set(out->root, "", t->places))
			out->places = t->places;
	} else {
		mx_rename_error(err, names, n);
	}
	mx_translation_drop(t);
	return s;
}

enum { NAME = 48 }; /* bytes of a name in the client's API */

/* True if a name ends here: "tools" in "tools[0]", not in "tools_x". */
static bool ends(char c)
{
	return !c || c == '.' || c == '[' || c == '\'' || c == '/';
}

/* Returns how much of a text a name of the translated request is, 0 if it begins with another one;
 * *digits: what stands for '#' in it. */
static size_t match(const char *text, const char *name, const char **digits, int *n_digits)
{
	const char *s = text;
	for (; *name; name++) {
		if (*name == '#') {
			*digits = s;
			*n_digits = (int)strspn(s, "0123456789");
			s += *n_digits;
			if (!*n_digits)
				return 0;
		} else if (*s++ != *name) {
			return 0;
		}
	}
	return ends(*s) ? (size_t)(s - text) : 0;
}

/* Returns the length of the name at the beginning of a text that has another one in the client's
 * API, which goes to `to`; 0: there is none. */
static size_t find(const char *text, const struct mx_rename *names, size_t n, char to[NAME])
{
	for (size_t i = 0; i < n; i++) {
		const char *digits = "", *gap = strchr(names[i].to, '#');
		int n_digits = 0;
		size_t len = match(text, names[i].from, &digits, &n_digits);
		if (!len)
			continue;
		snprintf(to, NAME, "%.*s%.*s%s", gap ? (int)(gap - names[i].to) : (int)strlen(names[i].to),
		         names[i].to, gap ? n_digits : 0, digits, gap ? gap + 1 : "");
		return len;
	}
	return 0;
}

/* Replaces `len` bytes at `at` of a string of `cap` bytes, which is cut off if it gets too long. */
static void replace(char *text, size_t cap, size_t at, size_t len, const char *by)
{
	char rest[640];
	snprintf(rest, sizeof(rest), "%s", text + at + len);
	snprintf(text + at, cap - at, "%s%s", by, rest);
}

void mx_rename_error(struct mx_api_error *err, const struct mx_rename *names, size_t n)
{
	_Static_assert(sizeof(err->message) <= 640, "the rest of a message fits replace()");
	char to[NAME];
	size_t len = find(err->param, names, n, to);
	if (len)
		replace(err->param, sizeof(err->param), 0, len, to);
	/* names are quoted in messages; each is replaced once, so that no new name is replaced again */
	for (size_t at = 0; err->message[at]; at++) {
		len = err->message[at] == '\'' ? find(err->message + at + 1, names, n, to) : 0;
		if (!len)
			continue;
		replace(err->message, sizeof(err->message), at + 1, len, to);
		at += strlen(to);
		if (at >= strlen(err->message))
			break;
	}
}

void mx_place(char out[MX_PLACE], const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(out, MX_PLACE, fmt, ap);
	va_end(ap);
}

mx_status mx_wrong_type_at(struct mx_api_error *err, const char *at, const char *name,
                           const char *expected, const json_t *found)
{
	char whole[MX_PLACE];
	mx_place(whole, "%s%s%s", at, *at && *name ? "." : "", name);
	return mx_parse_wrong_type(err, whole, expected, found);
}
