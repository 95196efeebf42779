/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantization_config: which tensors stand for a quantised matrix, and what is not supported of
 * them. Whether a matrix is quantised, the checkpoint's tensors tell.
 */
#include <string.h>

#include "model/plan_build.h"

#define KEY "quantization_config."

static const char *text_of(const json_t *q, const char *key, const char *other)
{
	const json_t *v = json_object_get(q, key);
	return json_is_string(v) ? json_string_value(v) : other;
}

/* Returns an integer under one of two keys. */
static json_int_t number_of(const json_t *q, const char *key, const char *also, json_int_t other)
{
	const json_t *v = json_object_get(q, key);
	v = v ? v : json_object_get(q, also);
	return json_is_integer(v) ? json_integer_value(v) : other;
}

/* Reads group_size: -1 stands for whole rows. */
static mx_status read_group(const struct mx_plan_build *b, const json_t *q, const char *method,
                            uint32_t *out)
{
	const json_int_t group = number_of(q, "group_size", "q_group_size", -1);
	if (group != -1 && (group < 1 || group > MX_PLAN_MAX_WIDTH))
		return mx_fail(b->err, MX_E_INVALID, KEY "group_size: %lld of %s: must be 1 or more, or -1",
		               (long long)group, method);
	*out = group < 0 ? 0 : (uint32_t)group;
	return MX_OK;
}

static mx_status read_awq(const struct mx_plan_build *b, const json_t *q, struct mx_plan_quant *out)
{
	const json_int_t bits = number_of(q, "bits", "w_bit", 4);
	const char *version = text_of(q, "version", text_of(q, "format", "gemm"));
	if (bits != 4)
		return mx_fail(b->err, MX_E_UNSUPPORTED, KEY "bits: awq with %lld bits: only 4 are known",
		               (long long)bits);
	if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "version: awq: version \"%.40s\" is not supported; use \"gemm\"",
		               version);
	out->method = MX_PLAN_AWQ;
	out->bits = 4;
	return read_group(b, q, "awq", &out->group);
}

static mx_status read_gptq(const struct mx_plan_build *b, const json_t *q,
                           struct mx_plan_quant *out)
{
	const json_int_t bits = number_of(q, "bits", "w_bit", 0);
	const char *format = text_of(q, "checkpoint_format", text_of(q, "format", "gptq"));
	const char *pack = text_of(q, "pack_dtype", "int32");
	if (bits != 4 && bits != 8)
		return mx_fail(b->err, MX_E_UNSUPPORTED, KEY "bits: num_bits %lld: only 4 and 8",
		               (long long)bits);
	if ((strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0) ||
	    strcmp(pack, "int32") != 0)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "checkpoint_format: gptq: \"%.40s\" packed in %.20s is not supported; "
		                   "use \"gptq\" or \"gptq_v2\" in int32",
		               format, pack);
	out->method = MX_PLAN_GPTQ;
	out->bits = (uint32_t)bits;
	out->zeros_less_one = !strcmp(format, "gptq");
	mx_status st = read_group(b, q, "gptq", &out->group);
	if (st == MX_OK && json_is_true(json_object_get(q, "desc_act")) && out->group)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "desc_act: gptq: desc_act=true with group_size %u is not supported; use "
		                   "desc_act=false",
		               out->group);
	return st;
}

/* Checks the arguments of one group of compressed-tensors' layers. */
static mx_status check_group(const struct mx_plan_build *b, const char *name, const json_t *group,
                             const char *format)
{
	const json_t *w = json_object_get(group, "weights");
	const json_t *order = json_object_get(w, "actorder");
	const json_int_t bits = number_of(w, "num_bits", "num_bits", 0);
	format = text_of(group, "format", format);
	static const char *const known[] = {"pack-quantized", "int-quantized", "float-quantized",
	                                    "naive-quantized"};
	bool ok = false;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		ok |= !strcmp(format, known[i]);
	if (!ok)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "config_groups: compressed-tensors: %.40s format \"%.40s\" is not "
		                   "supported (have pack-quantized, int-quantized, float-quantized)",
		               name, format);
	if (bits != 8 && bits != 4)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "config_groups: %.40s: num_bits %lld: only 4 and 8", name,
		               (long long)bits);
	/* "weight" and "static" order the columns before they are grouped, and store them unordered */
	if (json_is_true(order) ||
	    (json_is_string(order) && !strcmp(json_string_value(order), "group")))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "config_groups: %.40s: actorder \"group\" is not supported", name);
	return MX_OK;
}

/* Reads two numbers of rows and columns that share a scale; out stays if there are none. */
static mx_status read_block(const struct mx_plan_build *b, const char *key, const json_t *block,
                            uint32_t out[2])
{
	for (size_t i = 0; i < 2 && json_is_array(block); i++) {
		const json_int_t n = json_integer_value(json_array_get(block, i));
		if (n < 1 || n > MX_PLAN_MAX_WIDTH || json_array_size(block) != 2)
			return mx_fail(b->err, MX_E_INVALID, KEY "%s: must be two numbers of 1 or more", key);
		if (out[i] && out[i] != n)
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               KEY "%s: is not the same in all groups, which is not supported", key);
		out[i] = (uint32_t)n;
	}
	return MX_OK;
}

static mx_status read_compressed(const struct mx_plan_build *b, const json_t *q,
                                 struct mx_plan_quant *out)
{
	json_t *groups = json_object_get(q, "config_groups"), *group;
	const char *name;
	if (!json_is_object(groups) || !json_object_size(groups))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               KEY "config_groups: is not a table of groups, as compressed-tensors has it");
	json_object_foreach(groups, name, group)
	{
		const json_t *weights = json_object_get(group, "weights");
		mx_status st = check_group(b, name, group, text_of(q, "format", ""));
		if (st == MX_OK)
			st = read_block(b, "config_groups: block_structure",
			                json_object_get(weights, "block_structure"), out->block);
		if (st != MX_OK)
			return st;
	}
	out->method = MX_PLAN_COMPRESSED;
	return MX_OK;
}

static mx_status read_fp8(const struct mx_plan_build *b, const json_t *q, struct mx_plan_quant *out)
{
	const json_t *block = json_object_get(q, "weight_block_size");
	const char *scale = text_of(q, "scale_fmt", "float");
	out->method = MX_PLAN_FP8;
	if (!strcmp(scale, "ue8m0"))
		return mx_fail(b->err, MX_E_UNSUPPORTED, KEY "scale_fmt: fp8 with ue8m0 is not supported");
	return read_block(b, "weight_block_size", block, out->block);
}

mx_status mx_quantisation_read(const struct mx_plan_build *b, const json_t *q,
                               struct mx_plan_quant *out)
{
	static const struct {
		const char *method;
		mx_status (*read)(const struct mx_plan_build *b, const json_t *q,
		                  struct mx_plan_quant *out);
	} methods[] = {
		{"awq", read_awq},
		{"gptq", read_gptq},
		{"compressed-tensors", read_compressed},
		{"fp8", read_fp8},
	};
	const char *method = text_of(q, "quant_method", "");
	if (b->family->quantized && !strcmp(method, b->family->quantized))
		return MX_OK;
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (!strcmp(method, methods[i].method))
			return methods[i].read(b, q, out);
	return mx_fail(b->err, MX_E_UNSUPPORTED,
	               KEY "quant_method: \"%.40s\" is not supported (have fp8, compressed-tensors, "
	                   "awq, gptq%s%s); fetch such a variant, or one in BF16, F16 or F32",
	               method, b->family->quantized ? ", " : "",
	               b->family->quantized ? b->family->quantized : "");
}
