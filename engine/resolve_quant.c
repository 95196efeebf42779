/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices of safetensors: finds the tensors that stand for one, and checks their types
 * and shapes. The methods' layouts: see enum mx_quant_format.
 */
#include <stdio.h>
#include <string.h>

#include "engine/resolver.h"

struct parts {
	struct mx_resolver *r;
	char stem[224]; /* the matrix's name without "weight" */
	const struct mx_plan_quant *how;
	uint32_t rows, cols;
	struct mx_quant_matrix *out;
};

/* Finds stem + part: of `dtype` as the file names it, or with NULL a tensor of numbers. */
static mx_status part_of(const struct parts *p, const char *part, const char *dtype,
                         const struct mx_tensor **out, struct mx_err *err)
{
	char name[256];
	snprintf(name, sizeof name, "%s%s", p->stem, part);
	return dtype ? mx_resolve_find_raw(p->r, name, dtype, out, err)
	             : mx_resolve_find(p->r, name, out, err);
}

static bool has_part(const struct parts *p, const char *part, const char *dtype)
{
	const struct mx_tensor *t;
	return part_of(p, part, dtype, &t, NULL) == MX_OK;
}

static mx_status bad_shape(const struct parts *p, const struct mx_tensor *t)
{
	return mx_fail_at(p->r->err, MX_E_FORMAT, t->file,
	                  "tensor '%.160s' has not the shape that a matrix of %u x %u in %s needs",
	                  t->name, p->rows, p->cols, mx_quant_format_name(p->out->source.format));
}

/* Checks a tensor [rows, cols]; [rows] will do for one column. */
static mx_status need_shape(const struct parts *p, const struct mx_tensor *t, uint64_t rows,
                            uint64_t cols)
{
	const bool two = t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols;
	const bool one = t->ndim == 1 && cols == 1 && t->shape[0] == rows;
	return two || one ? MX_OK : bad_shape(p, t);
}

static mx_status set_scales(const struct parts *p, const struct mx_tensor *t, uint64_t rows,
                            uint64_t cols)
{
	p->out->source.scales = t->data;
	p->out->source.scale_dtype = t->dtype;
	return need_shape(p, t, rows, cols);
}

/* ---- AWQ, GPTQ ---- */

/* True if all words are the one that a symmetric matrix has for zeros. */
static bool all_words(const struct mx_tensor *t, uint32_t word)
{
	for (size_t i = 0; i < t->bytes; i += 4)
		if (memcmp((const unsigned char *)t->data + i, &word, 4))
			return false;
	return true;
}

/* g_idx: the group of each column, which must be its own. */
static mx_status check_order(const struct parts *p, uint32_t group)
{
	const struct mx_tensor *t;
	if (part_of(p, "g_idx", "I32", &t, NULL) != MX_OK)
		return MX_OK;
	mx_status st = need_shape(p, t, p->cols, 1);
	for (uint32_t k = 0; st == MX_OK && k < p->cols; k++) {
		uint32_t g;
		memcpy(&g, (const unsigned char *)t->data + 4 * (size_t)k, 4);
		if (g != k / group)
			return mx_fail_at(p->r->err, MX_E_UNSUPPORTED, t->file,
			                  "tensor '%.160s': column %u is of group %u: columns in another "
			                  "order (desc_act=true) are not supported",
			                  t->name, k, g);
	}
	return st;
}

static mx_status find_qweight(struct parts *p)
{
	struct mx_quant_source *s = &p->out->source;
	const struct mx_plan_quant *how = p->how;
	const bool awq = how->method == MX_PLAN_AWQ, eight = how->bits == 8;
	const uint32_t group = how->group ? how->group : p->cols, per = eight ? 4 : 8;
	const uint32_t groups = (p->cols + group - 1) / group;
	const struct mx_tensor *codes, *zeros, *scales;
	s->format = awq ? MX_QUANT_AWQ : eight ? MX_QUANT_GPTQ8 : MX_QUANT_GPTQ;
	s->group = group;
	s->zeros_less_one = how->zeros_less_one;
	mx_status st = part_of(p, "qweight", "I32", &codes, p->r->err);
	if (st == MX_OK)
		st = part_of(p, "qzeros", "I32", &zeros, p->r->err);
	if (st == MX_OK)
		st = part_of(p, "scales", NULL, &scales, p->r->err);
	if (st != MX_OK)
		return st;
	p->out->tensor = codes;
	if (p->cols % per || p->rows % per)
		return bad_shape(p, codes);
	st = awq ? need_shape(p, codes, p->cols, p->rows / 8)
	         : need_shape(p, codes, p->cols / per, p->rows);
	if (st == MX_OK)
		st = need_shape(p, zeros, groups, p->rows / per);
	if (st == MX_OK)
		st = set_scales(p, scales, groups, p->rows);
	if (st == MX_OK && !awq)
		st = check_order(p, group);
	if (st != MX_OK)
		return st;
	const uint32_t field = eight ? 0x80 : 8, ones = eight ? 0x01010101 : 0x11111111;
	if (!awq && all_words(zeros, (field - how->zeros_less_one) * ones))
		return MX_OK;
	if (eight)
		return mx_fail_at(p->r->err, MX_E_UNSUPPORTED, zeros->file,
		                  "tensor '%.160s': 8 bits with zeros other than 128 are not supported",
		                  zeros->name);
	s->zeros = zeros->data;
	return MX_OK;
}

/* ---- compressed-tensors, fp8 ---- */

/* Finds weight_packed, of 4 or 8 bits. */
static mx_status find_packed(struct parts *p)
{
	struct mx_quant_source *s = &p->out->source;
	const struct mx_tensor *codes, *scales, *zeros;
	s->format = MX_QUANT_INT4;
	mx_status st = part_of(p, "weight_packed", "I32", &codes, p->r->err);
	if (st == MX_OK)
		st = part_of(p, "weight_scale", NULL, &scales, p->r->err);
	if (st != MX_OK)
		return st;
	p->out->tensor = codes;
	if (codes->ndim == 2 && codes->shape[1] == (p->cols + 3) / 4 && p->cols % 4 == 0)
		s->format = MX_QUANT_INT8;
	const uint64_t groups = scales->ndim == 2 ? scales->shape[1] : 1;
	if (!groups || p->cols % groups)
		return bad_shape(p, scales);
	s->group = (uint32_t)(p->cols / groups);
	s->codes_unsigned = true;
	if (s->format == MX_QUANT_INT4)
		st = need_shape(p, codes, p->rows, (p->cols + 7) / 8);
	if (st == MX_OK)
		st = set_scales(p, scales, p->rows, groups);
	if (st != MX_OK || part_of(p, "weight_zero_point", "I32", &zeros, NULL) != MX_OK)
		return st;
	if (s->format == MX_QUANT_INT8)
		return mx_fail_at(p->r->err, MX_E_UNSUPPORTED, zeros->file,
		                  "tensor '%.160s': 8 bits with zero points are not supported",
		                  zeros->name);
	s->zeros = zeros->data;
	return need_shape(p, zeros, (p->rows + 7) / 8, groups);
}

/* Finds weight in I8 with weight_scale. */
static mx_status find_int8(struct parts *p)
{
	struct mx_quant_source *s = &p->out->source;
	const struct mx_tensor *codes, *scales;
	s->format = MX_QUANT_INT8;
	s->group = p->cols;
	mx_status st = part_of(p, "weight", "I8", &codes, p->r->err);
	if (st == MX_OK)
		st = part_of(p, "weight_scale", NULL, &scales, p->r->err);
	if (st != MX_OK)
		return st;
	p->out->tensor = codes;
	if (has_part(p, "weight_zero_point", "I8"))
		return mx_fail_at(p->r->err, MX_E_UNSUPPORTED, codes->file,
		                  "tensor '%.160s': 8 bits with zero points are not supported",
		                  codes->name);
	st = need_shape(p, codes, p->rows, p->cols);
	return st == MX_OK ? set_scales(p, scales, p->rows, 1) : st;
}

/* Finds weight in F8_E4M3 with weight_scale_inv or weight_scale: one number, one for each row, or
 * one for each block. */
static mx_status find_fp8(struct parts *p)
{
	struct mx_quant_source *s = &p->out->source;
	const struct mx_tensor *codes, *scales;
	s->format = MX_QUANT_FP8;
	mx_status st = part_of(p, "weight", "F8_E4M3", &codes, p->r->err);
	if (st != MX_OK)
		return st;
	p->out->tensor = codes;
	if ((st = need_shape(p, codes, p->rows, p->cols)) != MX_OK)
		return st;
	if (part_of(p, "weight_scale_inv", NULL, &scales, NULL) != MX_OK &&
	    part_of(p, "weight_scale", NULL, &scales, NULL) != MX_OK)
		return mx_fail_at(p->r->err, MX_E_FORMAT, codes->file,
		                  "tensor '%.160s' is F8_E4M3 but has neither weight_scale nor "
		                  "weight_scale_inv of F32, F16 or BF16",
		                  codes->name);
	s->group = p->cols;
	s->group_rows = p->rows;
	if (scales->bytes == mx_dtype_size(scales->dtype)) {
		s->scales = scales->data;
		s->scale_dtype = scales->dtype;
		return MX_OK;
	}
	const uint32_t block_rows = p->how->block[0] ? p->how->block[0] : 128;
	const uint32_t block_cols = p->how->block[1] ? p->how->block[1] : 128;
	const uint32_t tall = (p->rows - 1) / block_rows + 1, wide = (p->cols - 1) / block_cols + 1;
	const bool blocks = scales->ndim == 2 && (scales->shape[1] > 1 || p->how->block[0]);
	if (blocks && scales->shape[0] == tall && scales->shape[1] == wide) {
		s->group_rows = block_rows;
		s->group = block_cols;
		return set_scales(p, scales, tall, wide);
	}
	s->group_rows = 1;
	return set_scales(p, scales, p->rows, 1);
}

mx_status mx_resolve_quantised(struct mx_resolver *r, const char *name, uint64_t rows,
                               uint64_t cols, struct mx_quant_matrix *out)
{
	const struct mx_plan_quant *how = &r->model->plan->quant;
	const size_t n = strlen(name), tail = strlen("weight");
	struct parts p = {.r = r, .how = how, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
	if (how->method == MX_PLAN_UNQUANTISED || n < tail || strcmp(name + n - tail, "weight") != 0 ||
	    n - tail >= sizeof p.stem || rows > UINT32_MAX || cols > UINT32_MAX)
		return MX_E_NOTFOUND;
	memcpy(p.stem, name, n - tail);
	struct mx_quant_matrix found = {.source = {.rows = p.rows, .cols = p.cols}};
	p.out = &found;
	mx_status st = MX_E_NOTFOUND;
	if (how->method == MX_PLAN_AWQ || how->method == MX_PLAN_GPTQ) {
		if (has_part(&p, "qweight", "I32"))
			st = find_qweight(&p);
	} else if (has_part(&p, "weight_packed", "I32")) {
		st = find_packed(&p);
	} else if (has_part(&p, "weight", "I8")) {
		st = find_int8(&p);
	} else if (has_part(&p, "weight", "F8_E4M3")) {
		st = find_fp8(&p);
	}
	if (st == MX_OK)
		*out = found;
	return st;
}
