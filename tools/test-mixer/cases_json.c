/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/cases_json.h"

#include <stdlib.h>

#include "model/family/family.h"

#define MAX_FILE   (1 << 20)
#define MAX_WIDTH  8192
#define MIN_TOKENS 100 /* the test's short texts and positions need that many */
#define MAX_TOKENS 8192

/* Where the reader is: `where` begins every message, "CASES.json: cases[1] (name): ". */
struct reader {
	const char *file;
	char where[200];
	struct mx_arena *arena;
	struct mx_err *err;
};

static struct mx_scope scope_of(const struct reader *r, const json_t *object)
{
	return (struct mx_scope){.where = r->where, .inner = object};
}

/* Makes `where`: the file, and the entry of a list if there is one. */
static void enter(struct reader *r, const char *list, size_t i, const char *label)
{
	if (!list)
		snprintf(r->where, sizeof r->where, "%.80s: ", r->file);
	else if (!label)
		snprintf(r->where, sizeof r->where, "%.80s: %s[%zu]: ", r->file, list, i);
	else
		snprintf(r->where, sizeof r->where, "%.80s: %s[%zu] (%.60s): ", r->file, list, i, label);
}

static mx_status no_memory(const struct reader *r)
{
	return mx_fail(r->err, MX_E_NOMEM, "%sout of memory", r->where);
}

/* Refuses a value that is no object and an object with keys that are not in `keys` [n]. */
static mx_status check_object(const struct reader *r, const json_t *v, const char *what,
                              const char *const *keys, size_t n)
{
	const char *key;
	json_t *value;
	if (!json_is_object(v))
		return mx_fail(r->err, MX_E_INVALID, "%s%s must be an object", r->where, what);
	json_object_foreach((json_t *)v, key, value)
	{
		size_t k = 0;
		while (k < n && strcmp(keys[k], key))
			k++;
		if (k == n)
			return mx_fail(r->err, MX_E_INVALID, "%sunknown key '%.60s' in %s", r->where, key,
			               what);
	}
	return MX_OK;
}

static mx_status need_string(const struct reader *r, const json_t *object, const char *key,
                             const char **out)
{
	const struct mx_scope s = scope_of(r, object);
	mx_status st = mx_scope_string(&s, key, NULL, out, r->err);
	if (st == MX_OK && !(*out && **out))
		return mx_fail(r->err, MX_E_INVALID, "%s%s must be there, a string", r->where, key);
	return st;
}

static mx_status read_dtype(const struct reader *r, const json_t *object, const char *key,
                            enum mx_dtype last, enum mx_dtype *out)
{
	const struct mx_scope s = scope_of(r, object);
	const char *name;
	mx_status st = mx_scope_string(&s, key, "f32", &name, r->err);
	if (st != MX_OK)
		return st;
	for (enum mx_dtype t = MX_F32; t <= last; t++)
		if (t != MX_QUANT && !strcmp(name, mx_dtype_name(t))) {
			*out = t;
			return MX_OK;
		}
	return mx_fail(r->err, MX_E_INVALID, "%s%s must be f32, f16%s", r->where, key,
	               last == MX_BF16 ? " or bf16" : ", bf16, fp8 or int8");
}

/* Reads the members of "params" as a model's config would give them. */
static mx_status read_params(struct reader *r, const json_t *object, struct mx_param *out,
                             size_t max, size_t *out_n)
{
	const struct mx_plan_build build = {.arena = r->arena, .err = r->err};
	const json_t *params = json_object_get(object, "params");
	const char *key;
	json_t *value;
	size_t n = 0;
	*out_n = 0;
	if (!params)
		return MX_OK;
	if (!json_is_object(params) || json_object_size(params) > max)
		return mx_fail(r->err, MX_E_INVALID, "%sparams must be an object, of at most %zu", r->where,
		               max);
	json_object_foreach((json_t *)params, key, value)
	{
		mx_status st = mx_param_config_read(&build, key, value, r->where, &out[n++]);
		if (st != MX_OK)
			return st;
	}
	*out_n = n;
	return MX_OK;
}

static mx_status read_tensor(const struct reader *r, const char *name, const json_t *v,
                             struct mixer_weight *out)
{
	static const char *const keys[] = {"mean", "std"};
	const struct mx_scope s = scope_of(r, v);
	double mean, std;
	*out = (struct mixer_weight){name, 0, -1};
	if (json_is_string(v) && !strcmp(json_string_value(v), "absent"))
		return MX_OK;
	mx_status st = check_object(r, v, name, keys, 2);
	if (st == MX_OK)
		st = mx_scope_float(&s, "mean", -1e6, 1e6, 0, &mean, r->err);
	if (st == MX_OK)
		st = mx_scope_float(&s, "std", 0, 1e6, 0, &std, r->err);
	if (st == MX_OK)
		*out = (struct mixer_weight){name, (float)mean, (float)std};
	return st;
}

static mx_status read_tensors(struct reader *r, const json_t *object,
                              const struct mixer_weight **out)
{
	const json_t *tensors = json_object_get(object, "tensors");
	const char *name;
	json_t *value;
	size_t n = 0;
	if (!tensors)
		return MX_OK;
	if (!json_is_object(tensors))
		return mx_fail(r->err, MX_E_INVALID, "%stensors must be an object", r->where);
	struct mixer_weight *list =
		mx_arena_alloc(r->arena, (json_object_size(tensors) + 1) * sizeof *list);
	if (!list)
		return no_memory(r);
	json_object_foreach((json_t *)tensors, name, value)
	{
		mx_status st = read_tensor(r, name, value, &list[n++]);
		if (st != MX_OK)
			return st;
	}
	*out = list;
	return MX_OK;
}

static mx_status read_case(struct reader *r, const json_t *v, struct mixer_case *out)
{
	static const char *const keys[] = {"label",       "width",  "tokens",  "weight_dtype",
	                                   "state_dtype", "params", "tensors", "reach"};
	struct mx_scope s = scope_of(r, v);
	int64_t width, tokens, reach;
	mx_status st = check_object(r, v, "the case", keys, sizeof keys / sizeof *keys);
	if (st == MX_OK)
		st = mx_scope_need_int(&s, "width", 1, MAX_WIDTH, &width, r->err);
	if (st == MX_OK)
		st = mx_scope_int(&s, "tokens", MIN_TOKENS, MAX_TOKENS, 300, &tokens, r->err);
	if (st == MX_OK)
		st = mx_scope_int(&s, "reach", 1, CASE_REACH, CASE_REACH, &reach, r->err);
	if (st == MX_OK)
		st = read_dtype(r, v, "weight_dtype", MX_BF16, &out->weight_dtype);
	if (st == MX_OK)
		st = read_dtype(r, v, "state_dtype", MX_I8, &out->state_dtype);
	if (st == MX_OK)
		st = read_params(r, v, out->params, CASE_MAX_PARAMS, &out->n_params);
	if (st == MX_OK)
		st = read_tensors(r, v, &out->weights);
	if (st != MX_OK)
		return st;
	out->width = (uint32_t)width;
	out->tokens = (uint32_t)tokens;
	out->reach = (uint32_t)reach;
	return MX_OK;
}

static mx_status read_cases(struct reader *r, const json_t *list, struct mixer_set *out)
{
	size_t n = json_array_size(list); /* 0 if it is no list */
	if (!n)
		return mx_fail(r->err, MX_E_INVALID, "%scases must be there, a list of cases", r->where);
	struct mixer_case *cases = mx_arena_alloc(r->arena, n * sizeof *cases);
	if (!cases)
		return no_memory(r);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		enter(r, "cases", i, NULL);
		mx_status st = need_string(r, v, "label", &cases[i].label);
		if (st == MX_OK) {
			enter(r, "cases", i, cases[i].label);
			st = read_case(r, v, &cases[i]);
		}
		if (st != MX_OK)
			return st;
	}
	out->cases = cases;
	out->n_cases = n;
	return MX_OK;
}

static mx_status read_wrongs(struct reader *r, const json_t *list, struct mixer_set *out)
{
	static const char *const keys[] = {"params", "says"};
	size_t n = json_array_size(list);
	enter(r, NULL, 0, NULL);
	if (list && !json_is_array(list))
		return mx_fail(r->err, MX_E_INVALID, "%swrong_params must be a list", r->where);
	struct mixer_wrong *wrongs = mx_arena_alloc(r->arena, (n + 1) * sizeof *wrongs);
	if (!wrongs)
		return no_memory(r);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		size_t n_params;
		enter(r, "wrong_params", i, NULL);
		mx_status st = check_object(r, v, "the entry", keys, 2);
		if (st == MX_OK)
			st = need_string(r, v, "says", &wrongs[i].says);
		if (st == MX_OK)
			st = read_params(r, v, &wrongs[i].param, 1, &n_params);
		if (st == MX_OK && n_params != 1)
			st = mx_fail(r->err, MX_E_INVALID, "%sparams must have one parameter", r->where);
		if (st != MX_OK)
			return st;
	}
	out->wrongs = wrongs;
	out->n_wrongs = n;
	return MX_OK;
}

mx_status cases_read(const char *file, struct case_file *out, struct mx_err *err)
{
	static const char *const keys[] = {"mixer", "max_draft", "cases", "wrong_params"};
	struct reader r = {.file = file, .arena = &out->arena, .err = err};
	struct mixer_set *set = &out->set;
	char *text = NULL;
	size_t len;
	int64_t max_draft = 0;
	*out = (struct case_file){0};
	mx_status st = mx_json_slurp(file, MAX_FILE, &text, &len, err);
	if (st == MX_OK)
		st = mx_json_parse(text, len, file, &out->json, err);
	free(text);
	if (st != MX_OK)
		return st;
	const struct mx_scope s = scope_of(&r, out->json);
	enter(&r, NULL, 0, NULL);
	st = check_object(&r, out->json, "the file", keys, sizeof keys / sizeof *keys);
	if (st == MX_OK)
		st = need_string(&r, out->json, "mixer", &set->mixer);
	if (st == MX_OK)
		st = mx_scope_int(&s, "max_draft", 0, 1024, 0, &max_draft, err);
	if (st == MX_OK)
		st = read_cases(&r, json_object_get(out->json, "cases"), set);
	if (st == MX_OK)
		st = read_wrongs(&r, json_object_get(out->json, "wrong_params"), set);
	set->max_draft = (uint32_t)max_draft;
	return st;
}

void cases_free(struct case_file *f)
{
	json_decref(f->json);
	mx_arena_free(&f->arena);
}
