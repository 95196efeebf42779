/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a mixer's parameter from a config key of the same name. */
#include <string.h>

#include "model/family/family.h"

static mx_status numbers(const struct mx_plan_build *b, const json_t *list, struct mx_param *p,
                         const char *path)
{
	size_t n = json_array_size(list);
	double *v = mx_arena_alloc(b->arena, n * sizeof *v);
	if (!v)
		return mx_plan_no_memory(b);
	for (size_t i = 0; i < n; i++)
		if (!mx_json_number(json_array_get(list, i), &v[i]))
			return mx_fail(b->err, MX_E_INVALID, "%s%.60s[%zu]: must be a number", path, p->name,
			               i);
	p->type = MX_PARAM_FLOATS;
	p->v = v;
	p->n = n;
	return MX_OK;
}

mx_status mx_param_config_read(const struct mx_plan_build *b, const char *key, const json_t *v,
                               const char *path, struct mx_param *out)
{
	struct mx_param p = {.name = mx_arena_strndup(b->arena, key, strlen(key))};
	if (!p.name)
		return mx_plan_no_memory(b);
	if (json_is_boolean(v)) {
		p.type = MX_PARAM_BOOL;
		p.i = json_is_true(v);
		p.f = (double)p.i;
	} else if (json_is_integer(v)) {
		p.type = MX_PARAM_INT;
		p.i = json_integer_value(v);
		p.f = (double)p.i;
	} else if (mx_json_number(v, &p.f)) {
		p.type = MX_PARAM_FLOAT;
	} else if (json_is_string(v)) {
		p.type = MX_PARAM_STRING;
		p.s = mx_arena_strndup(b->arena, json_string_value(v), json_string_length(v));
		if (!p.s)
			return mx_plan_no_memory(b);
	} else if (json_is_array(v)) {
		mx_status s = numbers(b, v, &p, path);
		if (s)
			return s;
	} else {
		return mx_fail(b->err, MX_E_INVALID,
		               "%s%.60s: must be a boolean, a number, a string or a list of numbers", path,
		               key);
	}
	*out = p;
	return MX_OK;
}

mx_status mx_multiplier_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const char *key, float *out)
{
	double v = 1;
	mx_status s = mx_scope_float(scope, key, -1e9, 1e9, 1, &v, b->err);
	if (!s && v == 0)
		s = mx_fail(b->err, MX_E_RANGE, "%s%s: must not be 0", scope->where, key);
	if (!s)
		*out = (float)v;
	return s;
}

mx_status mx_multipliers_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const char *key, size_t n, double *out)
{
	const json_t *list = mx_scope_get(scope, key);
	for (size_t i = 0; i < n; i++)
		out[i] = 1;
	if (list && json_array_size(list) != n)
		return mx_fail(b->err, MX_E_INVALID, "%s%s: must be a list of %zu numbers", scope->where,
		               key, n);
	for (size_t i = 0; list && i < n; i++)
		if (!mx_json_number(json_array_get(list, i), &out[i]) || out[i] == 0 ||
		    !(out[i] >= -1e9 && out[i] <= 1e9))
			return mx_fail(b->err, MX_E_RANGE, "%s%s[%zu]: must be a number other than 0",
			               scope->where, key, i);
	return MX_OK;
}

const json_t *mx_layer_words(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const char *key, const char *other, size_t n)
{
	const json_t *list = mx_scope_get(scope, key);
	if (!list && other)
		list = mx_scope_get(scope, other);
	if (json_is_array(list) && json_array_size(list) == n)
		return list;
	mx_fail(b->err, MX_E_INVALID, "%s%s: must be a list of %zu strings, one a layer", scope->where,
	        key, n);
	return NULL;
}
