/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of a mixer layer, as the checkpoint's config gives them, and errors about them.
 * Installed, part of the mixer contract (mixers/mixer.h): inline functions only, because a module
 * links against nothing.
 */
#ifndef MX_MIXERS_PARAMS_H
#define MX_MIXERS_PARAMS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Fills *err (may be NULL) with `status` and the formatted text; returns `status`. */
static inline mx_status mx_mixer_fail(struct mx_err *err, mx_status status, const char *fmt, ...)
	MX_PRINTF(3, 4);
static inline mx_status mx_mixer_fail(struct mx_err *err, mx_status status, const char *fmt, ...)
{
	if (err) {
		va_list args;
		va_start(args, fmt);
		err->status = status;
		vsnprintf(err->text, sizeof(err->text), fmt, args);
		va_end(args);
	}
	return status;
}

enum mx_param_type {
	MX_PARAM_BOOL,
	MX_PARAM_INT,
	MX_PARAM_FLOAT,
	MX_PARAM_STRING,
	MX_PARAM_FLOATS
};

struct mx_param {
	const char *name;
	enum mx_param_type type;
	int64_t i;       /* BOOL, INT */
	double f;        /* FLOAT; an INT's value too */
	const char *s;   /* STRING */
	const double *v; /* FLOATS: [n] */
	size_t n;
};

struct mx_params {
	const struct mx_param *items;
	size_t n;
};

/* Returns the parameter of that name, or NULL. */
static inline const struct mx_param *mx_param_find(const struct mx_params *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (!strcmp(p->items[i].name, name))
			return &p->items[i];
	return NULL;
}

/* Each returns the parameter's value, or `def` if it is absent or has another type. */
static inline int64_t mx_param_int(const struct mx_params *p, const char *name, int64_t def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && (q->type == MX_PARAM_INT || q->type == MX_PARAM_BOOL) ? q->i : def;
}

static inline double mx_param_float(const struct mx_params *p, const char *name, double def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && (q->type == MX_PARAM_FLOAT || q->type == MX_PARAM_INT) ? q->f : def;
}

static inline const char *mx_param_string(const struct mx_params *p, const char *name,
                                          const char *def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && q->type == MX_PARAM_STRING ? q->s : def;
}

/*
 * For probe: strict readers. Each writes *out and returns MX_OK, or returns an error that names
 * `mixer` and the parameter. An absent parameter has the value `def`.
 */

/* Reads a whole number in min .. max. With a negative `def` the parameter must be given. */
static inline mx_status mx_param_read_u32(const struct mx_params *p, const char *mixer,
                                          const char *name, int64_t def, uint32_t min, uint32_t max,
                                          uint32_t *out, struct mx_err *err)
{
	const struct mx_param *q = mx_param_find(p, name);
	if (q && q->type != MX_PARAM_INT)
		return mx_mixer_fail(err, MX_E_INVALID, "%s: %s must be a whole number", mixer, name);
	if (!q && def < 0)
		return mx_mixer_fail(err, MX_E_INVALID, "%s: %s must be given", mixer, name);
	int64_t v = q ? q->i : def;
	if (v < min || v > max)
		return mx_mixer_fail(err, MX_E_RANGE, "%s: %s must be %u..%u, not %lld", mixer, name, min,
		                     max, (long long)v);
	*out = (uint32_t)v;
	return MX_OK;
}

/* Reads a number in min .. max; `def` may lie outside. */
static inline mx_status mx_param_read_number(const struct mx_params *p, const char *mixer,
                                             const char *name, double def, double min, double max,
                                             double *out, struct mx_err *err)
{
	const struct mx_param *q = mx_param_find(p, name);
	if (q && q->type != MX_PARAM_INT && q->type != MX_PARAM_FLOAT)
		return mx_mixer_fail(err, MX_E_INVALID, "%s: %s must be a number", mixer, name);
	if (q && !(q->f >= min && q->f <= max))
		return mx_mixer_fail(err, MX_E_RANGE, "%s: %s must be %g to %g, not %g", mixer, name, min,
		                     max, q->f);
	*out = q ? q->f : def;
	return MX_OK;
}

static inline mx_status mx_param_read_bool(const struct mx_params *p, const char *mixer,
                                           const char *name, bool def, bool *out,
                                           struct mx_err *err)
{
	const struct mx_param *q = mx_param_find(p, name);
	if (q && q->type != MX_PARAM_BOOL)
		return mx_mixer_fail(err, MX_E_INVALID, "%s: %s must be true or false", mixer, name);
	*out = q ? q->i != 0 : def;
	return MX_OK;
}

/* Makes a parameter of a text: a whole number, a number, true or false, else a string. Keeps the
 * pointers. */
static inline void mx_param_of_text(const char *name, const char *text, struct mx_param *out)
{
	struct mx_param p;
	size_t sign = *text == '-', digits = strspn(text + sign, "0123456789");
	char *end = NULL;
	bool number = *text && strspn(text, "0123456789.eE+-") == strlen(text);
	double f = number ? strtod(text, &end) : 0;
	memset(&p, 0, sizeof p);
	p.name = name;
	p.type = MX_PARAM_STRING;
	p.s = text;
	if (!strcmp(text, "true") || !strcmp(text, "false")) {
		p.type = MX_PARAM_BOOL;
		p.i = *text == 't';
	} else if (digits && digits < 16 && !text[sign + digits]) {
		p.type = MX_PARAM_INT;
		p.i = strtoll(text, NULL, 10);
		p.f = (double)p.i;
	} else if (number && !*end && isfinite(f)) {
		p.type = MX_PARAM_FLOAT;
		p.f = f;
	}
	*out = p;
}

/* For probe: returns MX_OK if every parameter is one of `names` [n], else an error that names the
 * one that is not. A misspelt key must not leave a layer with a default. */
static inline mx_status mx_params_known(const struct mx_params *p, const char *const *names,
                                        size_t n, const char *mixer, struct mx_err *err)
{
	for (size_t i = 0; i < p->n; i++) {
		size_t k = 0;
		while (k < n && strcmp(p->items[i].name, names[k]))
			k++;
		if (k == n)
			return mx_mixer_fail(err, MX_E_INVALID, "%s: unknown parameter '%.60s'", mixer,
			                     p->items[i].name);
	}
	return MX_OK;
}

#endif
