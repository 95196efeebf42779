/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/model/plan_util.h"

static void merge(json_t *into, json_t *changes)
{
	const char *key;
	json_t *v;
	json_object_foreach(changes, key, v)
	{
		json_t *old = json_object_get(into, key);
		const char *s = json_string_value(v);
		if (s && !strcmp(s, "-"))
			json_object_del(into, key);
		else if (json_is_object(old) && json_is_object(v))
			merge(old, v);
		else
			json_object_set(into, key, v);
	}
}

mx_status plan_parse(const char *base, const char *changes, const char *generation,
                     struct mx_plan **out, struct mx_err *err)
{
	json_error_t je;
	json_t *config = json_loads(base, 0, &je), *c = json_loads(changes, 0, &je);
	if (!config || !c)
		fail_msg("%s: %s", changes, je.text);
	merge(config, c);
	char *text = json_dumps(config, 0);
	assert_non_null(text);
	mx_status s = mx_plan_parse(text, strlen(text), generation, generation ? strlen(generation) : 0,
	                            out, err);
	free(text);
	json_decref(config);
	json_decref(c);
	return s;
}

struct mx_plan *plan_of(const char *base, const char *changes)
{
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	if (plan_parse(base, changes, NULL, &p, &err))
		fail_msg("%s: %s", changes, err.text);
	assert_string_equal(err.where, "");
	return p;
}

const struct mx_params *params_of(const struct mx_plan *p, uint32_t layer)
{
	assert_true(layer < p->n_layers);
	return &p->layers[layer].blocks[0].mixers[0].params;
}

int64_t get_int(const struct mx_plan *p, uint32_t layer, const char *name)
{
	const struct mx_param *q = mx_param_find(params_of(p, layer), name);
	if (!q)
		fail_msg("no parameter %s", name);
	assert_true(q->type == MX_PARAM_INT || q->type == MX_PARAM_BOOL);
	return q->i;
}

void check_refused(const char *base, const struct refused *cases, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct mx_plan *p = NULL;
		struct mx_err err = {0};
		mx_status s = plan_parse(base, cases[i].changes, NULL, &p, &err);
		if (s != cases[i].status || !strstr(err.text, cases[i].message) || p)
			fail_msg("%s gave %d '%s', not %d '%s'", cases[i].changes, s, err.text, cases[i].status,
			         cases[i].message);
		assert_string_equal(err.where, "config.json");
	}
}
