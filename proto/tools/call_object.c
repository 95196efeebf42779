/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a call that is written as {"name": ..., "arguments": {...}}, in any order and with other
 * members, or as {"function": {...}} of those. */
#include <string.h>

#include <jansson.h>

#include "proto/tools/impl.h"

enum member { M_NONE, M_NAME, M_ARGUMENTS, M_ID, M_FUNCTION, M_OTHER };

void mx_call_object_begin(struct mx_tool_parser *p)
{
	p->r.object = (struct mx_call_object){.base = 1};
	mx_buf_clear(&p->r.name);
	mx_buf_clear(&p->r.id);
	mx_buf_clear(&p->r.value);
	mx_buf_clear(&p->r.key);
}

static enum member member_of(const struct mx_call_object *o)
{
	static const struct {
		const char *key;
		enum member member;
	} keys[] = {{"name", M_NAME},       {"arguments", M_ARGUMENTS}, {"parameters", M_ARGUMENTS},
	            {"tool_name", M_NAME},  {"args", M_ARGUMENTS},      {"id", M_ID},
	            {"tool_call_id", M_ID}, {"function", M_FUNCTION}};
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (strlen(keys[i].key) == o->key_len && !memcmp(keys[i].key, o->key, o->key_len))
			return keys[i].member;
	return M_OTHER;
}

/* Decodes the JSON string in p->r.value to *out. */
static bool decode(struct mx_tool_parser *p, struct mx_buf *out)
{
	json_t *v = json_loadb(mx_buf_str(&p->r.value), p->r.value.len, JSON_DECODE_ANY, NULL);
	bool ok = json_is_string(v) && json_string_length(v) > 0;
	mx_buf_clear(out);
	if (ok)
		mx_tool_append(p, out, json_string_value(v), json_string_length(v));
	json_decref(v);
	return ok;
}

/* Tells that the call begins, and the arguments that came before its name. */
static bool begin_call(struct mx_tool_parser *p)
{
	if (p->in.bare && !mx_tool_exists(p->o.types, &p->r.name))
		return false;
	if (!mx_tool_begin(p))
		return false;
	mx_tool_arguments(p, mx_buf_str(&p->r.key), p->r.key.len);
	mx_buf_clear(&p->r.key);
	return true;
}

/* Tells arguments, or keeps them in p->r.key while the name is not known. */
static void arguments(struct mx_tool_parser *p, const char *s, size_t n)
{
	if (p->calls.open)
		mx_tool_arguments(p, s, n);
	else
		mx_tool_append(p, &p->r.key, s, n);
}

/* Begins the value of a member whose first byte is c. */
static bool begin_value(struct mx_tool_parser *p, char c)
{
	struct mx_call_object *o = &p->r.object;
	o->member = (uint8_t)member_of(o);
	o->collecting = false;
	if (o->member == M_FUNCTION) {
		if (c == '"')
			o->member = M_NAME;
		else if (c == '{' && o->base == 1) {
			o->base = 2;
			o->member = M_NONE;
			return true;
		}
	}
	if (o->member == M_NAME) {
		if (c != '"' || o->named)
			return false;
		o->collecting = true;
	}
	if (o->member == M_ID)
		o->collecting = c == '"';
	if (o->member == M_ARGUMENTS) {
		if (o->has_args || (c != '{' && c != '"' && c != 'n'))
			return false;
		o->has_args = true;
		o->quoted = c == '"';
		o->collecting = c != '{';
		if (o->named && !begin_call(p))
			return false;
	}
	if (o->collecting)
		mx_buf_clear(&p->r.value);
	return true;
}

/* Tells arguments that were null, or a JSON text in a string. */
static bool other_arguments(struct mx_tool_parser *p)
{
	if (!p->r.object.quoted) {
		arguments(p, "{}", 2);
		return true;
	}
	struct mx_buf text = {0};
	bool ok = decode(p, &text);
	json_t *v = ok ? json_loadb(text.data, text.len, JSON_ALLOW_NUL, NULL) : NULL;
	ok = json_is_object(v);
	json_decref(v);
	if (ok)
		arguments(p, text.data, text.len);
	mx_buf_free(&text);
	return ok;
}

/* Ends the value of a member. */
static bool end_value(struct mx_tool_parser *p)
{
	struct mx_call_object *o = &p->r.object;
	enum member member = o->member;
	o->member = M_NONE;
	if (member == M_ID && o->collecting && p->r.value.len <= MX_TOOL_NAME)
		(void)decode(p, &p->r.id);
	if (member == M_ARGUMENTS && o->collecting && !other_arguments(p))
		return false;
	if (member == M_NAME) {
		if (p->r.value.len > MX_TOOL_NAME || !decode(p, &p->r.name))
			return false;
		o->named = true;
		if (o->has_args && !begin_call(p))
			return false;
	}
	o->collecting = false;
	return true;
}

/* Reads one byte. */
static enum mx_scan_result step(struct mx_tool_parser *p, char c)
{
	struct mx_call_object *o = &p->r.object;
	enum mx_scan_state before = o->scan.state;
	uint16_t depth = o->scan.depth;
	bool member_level = depth == o->base;
	if (member_level && before == MX_SCAN_VALUE && !mx_json_space(c) && !begin_value(p, c))
		return MX_SCAN_BAD;
	enum mx_scan_result r = mx_json_step(&o->scan, c);
	if (r != MX_SCAN_MORE)
		return r;
	if (o->collecting) {
		/* too long a name or id is told apart at its end; more is not kept */
		if (o->member == M_ARGUMENTS || p->r.value.len <= MX_TOOL_NAME)
			mx_tool_append(p, &p->r.value, &c, 1);
	}
	if (member_level && (before == MX_SCAN_KEY || before == MX_SCAN_FIRST_KEY) &&
	    o->scan.state == MX_SCAN_STRING)
		o->key_len = 0;
	else if (member_level && before == MX_SCAN_STRING && o->scan.key &&
	         o->scan.state != MX_SCAN_COLON && o->key_len < sizeof(o->key))
		o->key[o->key_len++] = c;
	if (o->scan.depth < o->base)
		o->base = o->scan.depth;
	else if (o->member != M_NONE && o->scan.depth == o->base && o->scan.state == MX_SCAN_BEHIND &&
	         (before != MX_SCAN_BEHIND || depth != o->base) && !end_value(p))
		return MX_SCAN_BAD;
	return r;
}

/* Ends the object. */
static enum mx_tool_status end_object(struct mx_tool_parser *p)
{
	struct mx_call_object *o = &p->r.object;
	if (!o->named || (p->in.bare && !o->has_args))
		return MX_TOOL_BAD;
	if (!o->has_args) {
		if (!begin_call(p))
			return MX_TOOL_BAD;
		mx_tool_arguments(p, "{}", 2);
	}
	mx_tool_end(p);
	return MX_TOOL_DONE;
}

/* Returns true while bytes belong to arguments that are told as they come. */
static bool telling(const struct mx_call_object *o)
{
	return o->member == M_ARGUMENTS && !o->collecting;
}

static bool raw_control(const struct mx_json_scan *s, char c)
{
	return s->state == MX_SCAN_STRING && (unsigned char)c < 0x20;
}

static void control(struct mx_tool_parser *p, char c)
{
	static const char hex[] = "0123456789abcdef";
	arguments(p, (const char[]){'\\', 'u', '0', '0', hex[(unsigned char)c >> 4], hex[c & 15]}, 6);
}

enum mx_tool_status mx_call_object_feed(struct mx_tool_parser *p, const char *s, size_t n,
                                        size_t *used)
{
	struct mx_call_object *o = &p->r.object;
	size_t from = 0; /* arguments that are not told yet begin here */
	enum mx_scan_result r = MX_SCAN_MORE;
	size_t i = 0;
	while (i < n && r == MX_SCAN_MORE) {
		bool was = telling(o);
		bool escape = was && raw_control(&o->scan, s[i]);
		r = step(p, s[i]);
		if (r == MX_SCAN_BAD) {
			if (was)
				arguments(p, s + from, i - from);
			break;
		}
		if (!was && telling(o))
			from = i;
		if (escape) {
			arguments(p, s + from, i - from);
			control(p, s[i]);
			from = i + 1;
		}
		i++;
		if (was && !telling(o))
			arguments(p, s + from, i - from);
	}
	if (r == MX_SCAN_MORE && telling(o))
		arguments(p, s + from, i - from);
	*used = i;
	if (r == MX_SCAN_MORE)
		return MX_TOOL_MORE;
	if (r == MX_SCAN_BAD)
		return MX_TOOL_BAD;
	enum mx_tool_status status = end_object(p);
	*used = status == MX_TOOL_BAD ? i - 1 : i; /* the byte that cannot stand there is not read */
	return status;
}

enum mx_tool_status mx_call_arguments_feed(struct mx_tool_parser *p, const char *s, size_t n,
                                           size_t *used)
{
	size_t from = 0, i = 0;
	enum mx_scan_result r = MX_SCAN_MORE;
	while (i < n && r == MX_SCAN_MORE) {
		bool escape = raw_control(&p->r.scan, s[i]);
		r = mx_json_step(&p->r.scan, s[i]);
		if (r == MX_SCAN_BAD)
			break;
		if (escape) {
			mx_tool_arguments(p, s + from, i - from);
			control(p, s[i]);
			from = i + 1;
		}
		i++;
	}
	mx_tool_arguments(p, s + from, i - from);
	*used = i;
	return r == MX_SCAN_BAD ? MX_TOOL_BAD : r == MX_SCAN_END ? MX_TOOL_DONE : MX_TOOL_MORE;
}
