/* SPDX-License-Identifier: Apache-2.0 */
/* Values from JSON, and to JSON. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- from jansson ---- */

struct jj_value jj_from_json(struct jj *j, const json_t *v, unsigned depth)
{
	if (depth > JJ_MAX_VALUE)
		jj_raise(j, MX_E_LIMIT, "template variables are nested too deeply");
	switch (json_typeof(v)) {
	case JSON_NULL: return jj_none();
	case JSON_TRUE: return jj_bool(true);
	case JSON_FALSE: return jj_bool(false);
	case JSON_INTEGER: return jj_int(json_integer_value(v));
	case JSON_REAL: return jj_float(json_real_value(v));
	case JSON_STRING: return jj_text(j, json_string_value(v), json_string_length(v));
	case JSON_ARRAY: {
		size_t n = json_array_size(v);
		struct jj_list *l = jj_list_new(j, n);
		for (size_t i = 0; i < n; i++)
			jj_push(j, l, jj_from_json(j, json_array_get(v, i), depth + 1));
		return jj_seq(JJ_LIST, l);
	}
	case JSON_OBJECT: break;
	}
	struct jj_dict *d = jj_dict_new(j);
	/* jansson's iterators take a non-const object but do not change it */
	json_t *o = (json_t *)(uintptr_t)v;
	for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
		const char *key = json_object_iter_key(it);
		struct jj_value value = jj_from_json(j, json_object_iter_value(it), depth + 1);
		jj_dict_set(j, d, jj_cstr(j, key), value);
	}
	return (struct jj_value){.type = JJ_DICT, .d = d};
}

/* ---- to JSON, as Python's json.dumps ---- */

struct dump {
	struct jj_sb *sb;
	bool ascii, sort;
	const struct jj_str *indent; /* one level, or NULL */
	const struct jj_str *item_sep, *key_sep;
	unsigned level;
};

static void dump_str(struct jj *j, const struct dump *d, const struct jj_str *s)
{
	static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
	jj_sb_put(j, d->sb, "\"", 1);
	for (size_t i = 0; i < s->len;) {
		size_t run = i;
		while (run < s->len && (unsigned char)s->p[run] >= 0x20 && s->p[run] != '"' &&
		       s->p[run] != '\\' && !(d->ascii && (unsigned char)s->p[run] >= 0x7f))
			run++;
		jj_sb_put(j, d->sb, s->p + i, run - i);
		if (run >= s->len)
			break;
		i = run;
		int32_t cp = jj_next_cp(s, &i);
		const char *hit = cp && cp < 0x7f ? strchr(from, (int)cp) : NULL;
		char esc[16];
		if (hit)
			snprintf(esc, sizeof esc, "\\%c", to[hit - from]);
		else if (cp >= 0x10000)
			snprintf(esc, sizeof esc, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
			         (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
		else
			snprintf(esc, sizeof esc, "\\u%04x", (unsigned)cp);
		jj_sb_puts(j, d->sb, esc);
	}
	jj_sb_put(j, d->sb, "\"", 1);
}

static void dump_newline(struct jj *j, const struct dump *d)
{
	if (!d->indent)
		return;
	jj_sb_put(j, d->sb, "\n", 1);
	for (unsigned i = 0; i < d->level; i++)
		jj_sb_put(j, d->sb, d->indent->p, d->indent->len);
}

static void dump(struct jj *j, struct dump *d, struct jj_value v);

static void dump_list(struct jj *j, struct dump *d, const struct jj_list *l)
{
	jj_sb_put(j, d->sb, "[", 1);
	d->level++;
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			jj_sb_put(j, d->sb, d->item_sep->p, d->item_sep->len);
		dump_newline(j, d);
		dump(j, d, l->v[i]);
	}
	d->level--;
	if (l->n)
		dump_newline(j, d);
	jj_sb_put(j, d->sb, "]", 1);
}

static void dump_float(struct jj *j, const struct dump *d, double f)
{
	char text[32];
	jj_repr_float(f, text);
	jj_sb_puts(j, d->sb, isnan(f) ? "NaN" : isinf(f) ? (f < 0 ? "-Infinity" : "Infinity") : text);
}

static void dump_key(struct jj *j, const struct dump *d, struct jj_value k)
{
	char text[32];
	switch (k.type) {
	case JJ_STR: dump_str(j, d, k.s); return;
	case JJ_NONE: jj_sb_puts(j, d->sb, "\"null\""); return;
	case JJ_BOOL: jj_sb_puts(j, d->sb, k.b ? "\"true\"" : "\"false\""); return;
	case JJ_INT:
		snprintf(text, sizeof text, "\"%lld\"", (long long)k.i);
		jj_sb_puts(j, d->sb, text);
		return;
	case JJ_FLOAT:
		jj_sb_put(j, d->sb, "\"", 1);
		dump_float(j, d, k.f);
		jj_sb_put(j, d->sb, "\"", 1);
		return;
	default:
		jj_raise(j, MX_E_INVALID, "keys must be str, int, float, bool or None, not %s",
		         jj_type_name(k));
	}
}

/* Stable merge sort of entry numbers by key. A comparison may raise. */
static void sort_keys(struct jj *j, const struct jj_dict *d, size_t *a, size_t *tmp, size_t n)
{
	if (n < 2)
		return;
	size_t m = n / 2, i = 0, k = m, o = 0;
	sort_keys(j, d, a, tmp, m);
	sort_keys(j, d, a + m, tmp, n - m);
	jj_charge(j, n * 16);
	while (i < m && k < n)
		tmp[o++] = jj_order(j, d->e[a[k]].key, d->e[a[i]].key, "<") < 0 ? a[k++] : a[i++];
	while (i < m)
		tmp[o++] = a[i++];
	memcpy(a, tmp, o * sizeof *a);
}

static void dump_dict(struct jj *j, struct dump *d, const struct jj_dict *o)
{
	size_t *order = NULL;
	if (d->sort) {
		order = jj_alloc(j, o->n * 2, sizeof *order);
		for (size_t i = 0; i < o->n; i++)
			order[i] = i;
		sort_keys(j, o, order, order + o->n, o->n);
	}
	jj_sb_put(j, d->sb, "{", 1);
	d->level++;
	for (size_t i = 0; i < o->n; i++) {
		const struct jj_entry *e = &o->e[order ? order[i] : i];
		if (i)
			jj_sb_put(j, d->sb, d->item_sep->p, d->item_sep->len);
		dump_newline(j, d);
		dump_key(j, d, e->key);
		jj_sb_put(j, d->sb, d->key_sep->p, d->key_sep->len);
		dump(j, d, e->value);
	}
	d->level--;
	if (o->n)
		dump_newline(j, d);
	jj_sb_put(j, d->sb, "}", 1);
}

static void dump(struct jj *j, struct dump *d, struct jj_value v)
{
	char text[32];
	jj_charge(j, JJ_STEP / 4);
	jj_enter(j);
	switch (v.type) {
	case JJ_NONE: jj_sb_puts(j, d->sb, "null"); break;
	case JJ_BOOL: jj_sb_puts(j, d->sb, v.b ? "true" : "false"); break;
	case JJ_INT:
		snprintf(text, sizeof text, "%lld", (long long)v.i);
		jj_sb_puts(j, d->sb, text);
		break;
	case JJ_FLOAT: dump_float(j, d, v.f); break;
	case JJ_STR: dump_str(j, d, v.s); break;
	case JJ_LIST:
	case JJ_TUPLE: dump_list(j, d, v.l); break;
	case JJ_DICT: dump_dict(j, d, v.d); break;
	default:
		jj_raise(j, MX_E_INVALID, "Object of type %s is not JSON serializable", jj_type_name(v));
	}
	j->depth--;
}

struct jj_value jj_tojson(struct jj *j, struct jj_value self, struct jj_args *args)
{
	struct jj_value arg[4];
	jj_bind(j, "tojson", "| ensure_ascii indent separators sort_keys", args, arg);
	struct jj_sb sb = {0};
	struct dump d = {.sb = &sb,
	                 .ascii = jj_truth(j, arg[0]),
	                 .sort = jj_truth(j, arg[3]),
	                 .item_sep = jj_cstr(j, ", ").s,
	                 .key_sep = jj_cstr(j, ": ").s};
	if (arg[1].type != JJ_MISSING && arg[1].type != JJ_NONE) {
		d.item_sep = jj_cstr(j, ",").s;
		struct jj_sb indent = {0};
		if (arg[1].type != JJ_STR)
			jj_sb_fill(j, &indent, jj_want_int(j, arg[1], "indent"), ' ');
		d.indent = arg[1].type == JJ_STR ? arg[1].s : jj_sb_done(j, &indent).s;
	}
	if (arg[2].type != JJ_MISSING && arg[2].type != JJ_NONE) {
		const struct jj_list *l = jj_items(j, arg[2]);
		if (l->n != 2)
			jj_raise(j, MX_E_INVALID, "separators must be a pair");
		d.item_sep = jj_want_str(j, l->v[0], "separators");
		d.key_sep = jj_want_str(j, l->v[1], "separators");
	}
	dump(j, &d, self);
	return jj_sb_done(j, &sb);
}
