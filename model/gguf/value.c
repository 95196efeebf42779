/* SPDX-License-Identifier: Apache-2.0 */
/* Values of metadata as integers, numbers, booleans and texts. */
#include <math.h>
#include <string.h>

#include "model/gguf/file.h"

/* A number of any kind: an integer, exact in i unless it is beyond int64_t, or a float in f. */
struct number {
	bool integer, fits;
	int64_t i;
	double f;
};

static uint64_t bits_of(const unsigned char *at, unsigned n)
{
	uint64_t v = 0;
	for (unsigned i = 0; i < n; i++)
		v |= (uint64_t)at[i] << 8 * i;
	return v;
}

static struct number integer(int64_t i, bool fits)
{
	return (struct number){true, fits, i, (double)i};
}

/* Reads a number or boolean at `at`; false if the kind is of others. */
static bool read_number(enum mx_gguf_kind kind, const unsigned char *at, struct number *out)
{
	uint64_t v;
	float f;
	double d;
	switch (kind) {
	case MX_GGUF_U8: *out = integer((int64_t)bits_of(at, 1), true); return true;
	case MX_GGUF_BOOL: *out = integer(at[0] != 0, true); return true;
	case MX_GGUF_I8: *out = integer((int8_t)bits_of(at, 1), true); return true;
	case MX_GGUF_U16: *out = integer((int64_t)bits_of(at, 2), true); return true;
	case MX_GGUF_I16: *out = integer((int16_t)bits_of(at, 2), true); return true;
	case MX_GGUF_U32: *out = integer((int64_t)bits_of(at, 4), true); return true;
	case MX_GGUF_I32: *out = integer((int32_t)bits_of(at, 4), true); return true;
	case MX_GGUF_U64:
		v = bits_of(at, 8);
		*out = integer((int64_t)v, v <= INT64_MAX);
		return true;
	case MX_GGUF_I64: *out = integer((int64_t)bits_of(at, 8), true); return true;
	case MX_GGUF_F32:
		v = bits_of(at, 4);
		memcpy(&f, &(uint32_t){(uint32_t)v}, sizeof f);
		*out = (struct number){.f = (double)f};
		return true;
	case MX_GGUF_F64:
		v = bits_of(at, 8);
		memcpy(&d, &v, sizeof d);
		*out = (struct number){.f = d};
		return true;
	case MX_GGUF_STRING:
	case MX_GGUF_ARRAY: break;
	}
	return false;
}

static mx_status wrong(const struct mx_gguf *g, const char *key, const char *what,
                       struct mx_err *err)
{
	return mx_fail_at(err, MX_E_FORMAT, g->name, "key '%.100s': must be %s", key, what);
}

/* Finds a key; *there tells whether it is present. */
static const struct mx_gguf_value *find(const struct mx_gguf *g, const char *key, bool *there)
{
	const struct mx_gguf_value *v = mx_gguf_find(g, key);
	if (there)
		*there = v != NULL;
	return v;
}

mx_status mx_gguf_int(const struct mx_gguf *g, const char *key, int64_t *out, bool *there,
                      struct mx_err *err)
{
	const struct mx_gguf_value *v = find(g, key, there);
	struct number n;
	if (!v)
		return MX_OK;
	if (!read_number(v->kind, v->at, &n) || !n.integer || !n.fits)
		return wrong(g, key, "an integer", err);
	*out = n.i;
	return MX_OK;
}

mx_status mx_gguf_float(const struct mx_gguf *g, const char *key, double *out, bool *there,
                        struct mx_err *err)
{
	const struct mx_gguf_value *v = find(g, key, there);
	struct number n;
	if (!v)
		return MX_OK;
	if (!read_number(v->kind, v->at, &n) || !isfinite(n.f))
		return wrong(g, key, "a finite number", err);
	*out = n.f;
	return MX_OK;
}

mx_status mx_gguf_bool(const struct mx_gguf *g, const char *key, bool *out, bool *there,
                       struct mx_err *err)
{
	const struct mx_gguf_value *v = find(g, key, there);
	if (!v)
		return MX_OK;
	if (v->kind != MX_GGUF_BOOL)
		return wrong(g, key, "true or false", err);
	*out = v->at[0] != 0;
	return MX_OK;
}

mx_status mx_gguf_text(const struct mx_gguf *g, const char *key, struct mx_gguf_string *out,
                       bool *there, struct mx_err *err)
{
	const struct mx_gguf_value *v = find(g, key, there);
	if (!v)
		return MX_OK;
	if (v->kind != MX_GGUF_STRING)
		return wrong(g, key, "a string", err);
	*out = (struct mx_gguf_string){(const char *)v->at, (size_t)v->n};
	return MX_OK;
}

bool mx_gguf_element(const struct mx_gguf_value *v, uint64_t i, double *out)
{
	static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
	struct number n;
	if (v->kind != MX_GGUF_ARRAY || i >= v->n ||
	    !read_number(v->element, v->at + i * sizes[v->element], &n))
		return false;
	*out = n.f;
	return true;
}

struct mx_gguf_string mx_gguf_next(const unsigned char **at)
{
	struct mx_gguf_string s = {(const char *)*at + 8, (size_t)bits_of(*at, 8)};
	*at += 8 + s.n;
	return s;
}
