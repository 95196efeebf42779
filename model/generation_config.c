/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generation_config.json: stop tokens, and the sampling defaults of requests.
 * The sampling values are used whatever do_sample says, as in vLLM, which takes
 * the file as the server's defaults.
 */
#include <float.h>
#include <math.h>

#include "model/plan_build.h"

#define MAX_EOS 256

static mx_status token_id(const struct mx_plan_build *b, const char *key, const json_t *v,
                          int32_t *out)
{
	if (!json_is_integer(v))
		return mx_fail(b->err, MX_E_INVALID, "%s: must be a token id or a list of token ids", key);
	json_int_t id = json_integer_value(v);
	if (id < 0 || id >= b->plan->vocab)
		return mx_fail(b->err, MX_E_RANGE,
		               "%s: %" JSON_INTEGER_FORMAT " is not below vocab_size %u", key, id,
		               b->plan->vocab);
	*out = (int32_t)id;
	return MX_OK;
}

static mx_status read_eos(const struct mx_plan_build *b, const json_t *v)
{
	size_t n = json_is_array(v) ? json_array_size(v) : 1;
	if (!v)
		return MX_OK;
	if (n > MAX_EOS)
		return mx_fail(b->err, MX_E_LIMIT, "eos_token_id: has %zu ids, more than %d", n, MAX_EOS);
	int32_t *ids = mx_arena_alloc(b->arena, n * sizeof *ids);
	if (!ids)
		return mx_plan_no_memory(b);
	for (size_t i = 0; i < n; i++) {
		mx_status s =
			token_id(b, "eos_token_id", json_is_array(v) ? json_array_get(v, i) : v, &ids[i]);
		if (s)
			return s;
	}
	b->plan->eos = ids;
	b->plan->n_eos = n;
	return MX_OK;
}

static mx_status read_float(const struct mx_plan_build *b, const struct mx_scope *g,
                            const char *key, double lo, double hi, float *out)
{
	double d = 0;
	mx_status s = mx_scope_float(g, key, lo, hi, NAN, &d, b->err);
	if (!s)
		*out = (float)d;
	return s;
}

mx_status mx_generation_config_read(const struct mx_plan_build *b, const json_t *generation)
{
	const struct mx_scope g = {.where = "", .outer = generation};
	struct mx_plan *p = b->plan;
	const json_t *eos = mx_scope_get(&g, "eos_token_id"), *bos = mx_scope_get(&g, "bos_token_id");
	int64_t top_k = -1;
	mx_status s = MX_OK;

	if (eos)
		s = read_eos(b, eos);
	if (!s && bos)
		s = token_id(b, "bos_token_id", bos, &p->bos);
	if (!s)
		s = read_float(b, &g, "temperature", 0, 1e3, &p->temperature);
	if (!s)
		s = read_float(b, &g, "top_p", FLT_MIN, 1, &p->top_p);
	if (!s)
		s = read_float(b, &g, "min_p", 0, 1, &p->min_p);
	if (!s)
		s = read_float(b, &g, "repetition_penalty", 1e-6, 1e6, &p->repetition_penalty);
	if (!s)
		s = mx_scope_int(&g, "top_k", -1, INT32_MAX, -1, &top_k, b->err);
	if (!s)
		p->top_k = (int32_t)top_k;
	return s;
}
