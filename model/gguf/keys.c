/* SPDX-License-Identifier: Apache-2.0 */
/* Reads keys of a file, and writes keys of a config.json. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf/arch.h"

/* Returns the whole key; the buffer holds the longest of our own keys. */
static const char *whole(const struct mx_gguf_maker *m, const char *key, char out[128])
{
	snprintf(out, 128, "%.60s.%.60s", m->arch->name, key);
	return out;
}

void mx_gguf_refuse(struct mx_gguf_maker *m, mx_status status, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	if (m->status)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	m->status = mx_fail_at(m->err, status, mx_gguf_name(m->g), "%s", text);
}

bool mx_gguf_has(const struct mx_gguf_maker *m, const char *key)
{
	char k[128];
	return mx_gguf_find(m->g, whole(m, key, k)) != NULL;
}

bool mx_gguf_has_list(const struct mx_gguf_maker *m, const char *key)
{
	char k[128];
	const struct mx_gguf_value *v = mx_gguf_find(m->g, whole(m, key, k));
	return v && v->kind == MX_GGUF_ARRAY;
}

int64_t mx_gguf_get_int(struct mx_gguf_maker *m, const char *key, int64_t def)
{
	char k[128];
	int64_t v = def;
	if (!m->status)
		m->status = mx_gguf_int(m->g, whole(m, key, k), &v, NULL, m->err);
	return v;
}

int64_t mx_gguf_need_int(struct mx_gguf_maker *m, const char *key)
{
	char k[128];
	if (!m->status && !mx_gguf_has(m, key))
		mx_gguf_refuse(m, MX_E_FORMAT, "key '%s' is missing", whole(m, key, k));
	return mx_gguf_get_int(m, key, 0);
}

double mx_gguf_get_float(struct mx_gguf_maker *m, const char *key, double def)
{
	char k[128];
	double v = def;
	if (!m->status)
		m->status = mx_gguf_float(m->g, whole(m, key, k), &v, NULL, m->err);
	return v;
}

bool mx_gguf_get_bool(struct mx_gguf_maker *m, const char *key, bool def)
{
	char k[128];
	bool v = def;
	if (!m->status)
		m->status = mx_gguf_bool(m->g, whole(m, key, k), &v, NULL, m->err);
	return v;
}

int64_t mx_gguf_of_layer(struct mx_gguf_maker *m, const char *key, int64_t layer, int64_t def)
{
	char k[128];
	double v;
	const struct mx_gguf_value *a = mx_gguf_find(m->g, whole(m, key, k));
	if (m->status || !a || a->kind != MX_GGUF_ARRAY)
		return mx_gguf_get_int(m, key, def);
	if (layer < 0 || !mx_gguf_element(a, (uint64_t)layer, &v) || v < INT32_MIN || v > INT32_MAX) {
		mx_gguf_refuse(m, MX_E_FORMAT, "key '%s' has no integer for layer %lld", k,
		               (long long)layer);
		return def;
	}
	return (int64_t)v;
}

int64_t mx_gguf_first_of(struct mx_gguf_maker *m, const char *key, int64_t def)
{
	int64_t v = mx_gguf_of_layer(m, key, 0, def);
	for (int64_t i = 1; !m->status && !v && i < m->layers; i++)
		v = mx_gguf_of_layer(m, key, i, def);
	return v;
}

bool mx_gguf_has_tensor(const struct mx_gguf_maker *m, const char *name)
{
	return mx_gguf_tensor(m->g, name) != NULL;
}

void mx_gguf_set(struct mx_gguf_maker *m, const char *key, json_t *v)
{
	if (m->status)
		json_decref(v);
	else if (json_object_set_new(m->out, key, v))
		mx_gguf_refuse(m, MX_E_NOMEM, "out of memory");
}

void mx_gguf_set_int(struct mx_gguf_maker *m, const char *key, int64_t v)
{
	mx_gguf_set(m, key, json_integer(v));
}

void mx_gguf_set_float(struct mx_gguf_maker *m, const char *key, double v)
{
	mx_gguf_set(m, key, json_real(v));
}

void mx_gguf_set_bool(struct mx_gguf_maker *m, const char *key, bool v)
{
	mx_gguf_set(m, key, json_boolean(v));
}

void mx_gguf_set_string(struct mx_gguf_maker *m, const char *key, const char *v)
{
	mx_gguf_set(m, key, json_string(v));
}

void mx_gguf_copy_int(struct mx_gguf_maker *m, const char *from, const char *to)
{
	if (mx_gguf_has(m, from))
		mx_gguf_set_int(m, to, mx_gguf_get_int(m, from, 0));
}

void mx_gguf_copy_float(struct mx_gguf_maker *m, const char *from, const char *to)
{
	if (mx_gguf_has(m, from))
		mx_gguf_set_float(m, to, mx_gguf_get_float(m, from, 0));
}
