/* SPDX-License-Identifier: Apache-2.0 */
/* See checkpoint_gguf.h. */
#include "model/checkpoint_gguf.h"

#include <stdlib.h>
#include <string.h>

#include "model/gguf/names.h"

#define MAX_TENSORS (1u << 22) /* a mixture of 256 experts has some 50 thousand */

/* The types that are supported. */
static const struct {
	uint32_t type;
	enum mx_dtype dtype;
	enum mx_quant_format format;
} types[] = {
	{MX_GGUF_TYPE_F32, MX_F32, MX_QUANT_PLAIN},
	{MX_GGUF_TYPE_F16, MX_F16, MX_QUANT_PLAIN},
	{MX_GGUF_TYPE_BF16, MX_BF16, MX_QUANT_PLAIN},
	{MX_GGUF_TYPE_Q4_0, MX_QUANT, MX_QUANT_Q4_0},
	{MX_GGUF_TYPE_Q4_1, MX_QUANT, MX_QUANT_Q4_1},
	{MX_GGUF_TYPE_Q5_0, MX_QUANT, MX_QUANT_Q5_0},
	{MX_GGUF_TYPE_Q5_1, MX_QUANT, MX_QUANT_Q5_1},
	{MX_GGUF_TYPE_Q8_0, MX_QUANT, MX_QUANT_Q8_0},
	{MX_GGUF_TYPE_Q4_K, MX_QUANT, MX_QUANT_Q4_K},
	{MX_GGUF_TYPE_Q5_K, MX_QUANT, MX_QUANT_Q5_K},
	{MX_GGUF_TYPE_Q6_K, MX_QUANT, MX_QUANT_Q6_K},
	{MX_GGUF_TYPE_IQ4_NL, MX_QUANT, MX_QUANT_IQ4_NL},
	{MX_GGUF_TYPE_IQ4_XS, MX_QUANT, MX_QUANT_IQ4_XS},
	{MX_GGUF_TYPE_Q2_K, MX_QUANT, MX_QUANT_Q2_K},
	{MX_GGUF_TYPE_Q3_K, MX_QUANT, MX_QUANT_Q3_K},
	{MX_GGUF_TYPE_IQ1_S, MX_QUANT, MX_QUANT_IQ1_S},
	{MX_GGUF_TYPE_IQ1_M, MX_QUANT, MX_QUANT_IQ1_M},
	{MX_GGUF_TYPE_IQ2_XXS, MX_QUANT, MX_QUANT_IQ2_XXS},
	{MX_GGUF_TYPE_IQ2_XS, MX_QUANT, MX_QUANT_IQ2_XS},
	{MX_GGUF_TYPE_IQ2_S, MX_QUANT, MX_QUANT_IQ2_S},
	{MX_GGUF_TYPE_IQ3_XXS, MX_QUANT, MX_QUANT_IQ3_XXS},
	{MX_GGUF_TYPE_IQ3_S, MX_QUANT, MX_QUANT_IQ3_S},
	{MX_GGUF_TYPE_TQ1_0, MX_QUANT, MX_QUANT_TQ1_0},
	{MX_GGUF_TYPE_TQ2_0, MX_QUANT, MX_QUANT_TQ2_0},
	{MX_GGUF_TYPE_MXFP4, MX_QUANT, MX_QUANT_MXFP4},
};
#define N_TYPES (sizeof types / sizeof *types)

struct table {
	struct mx_arena *arena;
	struct mx_tensor *v;
	size_t n, cap;
	struct mx_err *err;
};

static mx_status no_memory(const struct table *t)
{
	return mx_fail(t->err, MX_E_NOMEM, "no memory for the table of tensors");
}

static mx_status grow(struct table *t)
{
	if (t->n < t->cap)
		return MX_OK;
	size_t cap = t->cap ? t->cap * 2 : 256;
	if (cap > MAX_TENSORS)
		return mx_fail(t->err, MX_E_LIMIT, "has more than %u tensors", MAX_TENSORS);
	struct mx_tensor *v = mx_realloc(t->v, cap, sizeof *v);
	if (!v)
		return no_memory(t);
	t->v = v;
	t->cap = cap;
	return MX_OK;
}

/* Finds the type of a tensor; *out is its index in `types`. */
static mx_status type_of(const struct table *t, const struct mx_gguf_tensor *from, size_t *out)
{
	size_t k = 0;
	while (k < N_TYPES && types[k].type != from->type)
		k++;
	*out = k;
	if (k < N_TYPES)
		return MX_OK;
	return mx_fail_at(t->err, MX_E_UNSUPPORTED, from->file,
	                  "tensor '%.160s': GGUF type %u (%s) is not supported; use Q4_K_M or Q8_0",
	                  from->name, from->type, mx_gguf_type_info(from->type)->name);
}

/* Adds what struct mx_tensor's `values` points to. */
static mx_status add_values(const struct table *t, const struct mx_gguf_tensor *from,
                            const struct mx_tensor **out)
{
	struct mx_tensor *to = mx_arena_alloc(t->arena, sizeof *to);
	size_t k;
	mx_status s = type_of(t, from, &k);
	if (s)
		return s;
	if (!to)
		return no_memory(t);
	*to = (struct mx_tensor){
		.name = from->name,
		.dtype = types[k].dtype,
		.format = types[k].format,
		.ndim = from->ndim,
		.data = from->data,
		.bytes = from->bytes,
		.file = from->file,
	};
	memcpy(to->shape, from->shape, sizeof from->shape);
	*out = to;
	return MX_OK;
}

static mx_status add(void *arg, const struct mx_gguf_named *named)
{
	struct table *t = arg;
	const struct mx_gguf_tensor *from = named->tensor;
	const struct mx_tensor *values = NULL;
	size_t k;
	mx_status s = type_of(t, from, &k);
	if (!s && named->values)
		s = add_values(t, named->values, &values);
	if (!s)
		s = grow(t);
	if (s)
		return s;
	struct mx_tensor *to = &t->v[t->n];
	*to = (struct mx_tensor){
		.name = mx_arena_strndup(t->arena, named->name, strlen(named->name)),
		.dtype = types[k].dtype,
		.format = types[k].format,
		.ndim = named->ndim,
		.data = named->data,
		.bytes = named->bytes,
		.file = from->file,
		.order = named->order,
		.minus_exp = named->minus_exp,
		.values = values,
	};
	memcpy(to->shape, named->shape, sizeof named->shape);
	if (!to->name)
		return no_memory(t);
	t->n++;
	return MX_OK;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct mx_tensor *)a)->name, ((const struct mx_tensor *)b)->name);
}

mx_status mx_checkpoint_gguf(const struct mx_gguf *g, struct mx_arena *arena,
                             struct mx_tensor **out, size_t *n, struct mx_err *err)
{
	struct table t = {.arena = arena, .err = err};
	mx_status s = mx_gguf_names(g, add, &t, err);
	if (!s && t.n)
		qsort(t.v, t.n, sizeof *t.v, by_name);
	for (size_t i = 1; !s && i < t.n; i++)
		if (!by_name(&t.v[i - 1], &t.v[i]))
			s = mx_fail_at(err, MX_E_FORMAT, t.v[i].file,
			               "two tensors of the file are '%.160s' of its checkpoint", t.v[i].name);
	if (s) {
		free(t.v);
		return s;
	}
	*out = t.v;
	*n = t.n;
	return MX_OK;
}
