/* SPDX-License-Identifier: Apache-2.0 */
/* Finds tensors of the checkpoint by name, checks them, and lists their uses in order. */
#include "engine/resolver.h"

#include <stdio.h>
#include <string.h>

void *mx_resolve_push(struct mx_arena *arena, void **list, size_t *n, size_t *cap, size_t size)
{
	if (*n == *cap) {
		size_t more = *cap ? *cap * 2 : 64;
		void *p = mx_arena_alloc(arena, more * size);
		if (!p)
			return NULL;
		if (*n)
			memcpy(p, *list, *n * size);
		*list = p;
		*cap = more;
	}
	return (unsigned char *)*list + (*n)++ * size;
}

static void print_shape(char *text, size_t cap, const uint64_t *shape, uint32_t ndim)
{
	size_t at = 0;
	for (uint32_t i = 0; i < ndim && at < cap; i++)
		at += (size_t)snprintf(text + at, cap - at, "%s%llu", i ? ", " : "",
		                       (unsigned long long)shape[i]);
	if (!ndim)
		text[0] = 0;
}

static mx_status check_shape(const struct mx_tensor *t, const uint64_t *shape, uint32_t ndim,
                             struct mx_err *err)
{
	if (t->ndim != ndim || memcmp(t->shape, shape, ndim * sizeof *shape)) {
		char has[128], wants[128];
		print_shape(has, sizeof has, t->shape, t->ndim);
		print_shape(wants, sizeof wants, shape, ndim);
		return mx_fail_at(err, MX_E_FORMAT, t->file,
		                  "tensor '%.160s' has shape [%s] where config.json asks for [%s]", t->name,
		                  has, wants);
	}
	return MX_OK;
}

static mx_status check_tensor(const struct mx_tensor *t, const uint64_t *shape, uint32_t ndim,
                              struct mx_err *err)
{
	mx_status st = check_shape(t, shape, ndim, err);
	if (st != MX_OK)
		return st;
	for (; t; t = t->values)
		if ((uintptr_t)t->data % mx_dtype_size(t->dtype))
			return mx_fail_at(err, MX_E_FORMAT, t->file,
			                  "tensor '%.160s' is not aligned to its %zu-byte elements", t->name,
			                  mx_dtype_size(t->dtype));
	return MX_OK;
}

/* The part of a matrix that is used. */
struct part {
	struct mx_weight_slice rows, cols;
};

/* Sets *out to the part that spec asks for of a tensor of `cols` columns; without slices, all. */
static mx_status check_slices(struct mx_resolver *r, const struct mx_weight_spec *spec,
                              uint64_t cols, struct part *out)
{
	struct part all = {{.n = spec->ndim ? spec->shape[0] : 1}, {.axis = 1, .n = cols}};
	*out = all;
	for (uint32_t i = 0; i < spec->n_slices; i++) {
		const struct mx_weight_slice *s = &spec->slices[i];
		struct mx_weight_slice *to = s->axis ? &out->cols : &out->rows;
		const uint64_t has = s->axis ? all.cols.n : all.rows.n;
		if (spec->n_slices > 2 || s->axis > 1 || (s->axis && spec->ndim != 2) ||
		    (i && s->axis == spec->slices[0].axis))
			return mx_fail(r->err, MX_E_UNSUPPORTED,
			               "a mixer asks for %u slices of tensor %s, one along axis %u; the engine "
			               "supports one slice along axis 0, and one along axis 1 of a matrix",
			               spec->n_slices, spec->name, s->axis);
		if (!s->n || s->first > has || s->n > has - s->first)
			return mx_fail(r->err, MX_E_INTERNAL,
			               "a mixer wants %s %llu .. of tensor %s, which has %llu",
			               s->axis ? "columns" : "rows", (unsigned long long)s->first, spec->name,
			               (unsigned long long)has);
		*to = *s;
	}
	return MX_OK;
}

/* Adds the tensor as a matrix that *out is rows first .. of. */
static mx_status push_use(struct mx_resolver *r, const struct mx_tensor *t, uint32_t first,
                          struct mx_weight *out)
{
	struct mx_model *m = r->model;
	if (out->cols > m->max_cols)
		m->max_cols = out->cols;
	struct mx_model_use *use =
		mx_resolve_push(&m->arena, (void **)&m->uses, &m->n_uses, &m->cap_uses, sizeof *use);
	if (!use)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*use = (struct mx_model_use){t, out, first};
	return MX_OK;
}

/* Adds a use of rows of a matrix that is stored in two parts. */
static mx_status use_joined(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct part *wanted, struct mx_weight *out)
{
	struct mx_model_packed *x;
	if (wanted->cols.n < t->shape[1])
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, t->file,
		                  "tensor '%.160s' is in two parts, and its columns cannot be split over "
		                  "ranks",
		                  t->name);
	if (r->others)
		return MX_OK;
	mx_status st = mx_resolve_joined(r, t, &wanted->rows, &x);
	if (st != MX_OK)
		return st;
	*out = (struct mx_weight){.dtype = x->made.dtype, .rows = x->n, .cols = (uint32_t)t->shape[1]};
	return push_use(r, &x->made, 0, out);
}

/* Adds a use of rows that are packed at load, or expanded. */
static mx_status use_packed(struct mx_resolver *r, const struct mx_quant_matrix *from,
                            const struct mx_weight_slice *part, int bits, bool plain,
                            struct mx_weight *out)
{
	struct mx_model_packed *x;
	if (r->others)
		return MX_OK;
	mx_status st = mx_resolve_packed(r, from, part, bits, plain, &x);
	if (st != MX_OK)
		return st;
	*out = (struct mx_weight){.dtype = x->made.dtype, .rows = x->n, .cols = from->source.cols};
	if (!x->plain)
		out->quant = &x->quant;
	return push_use(r, &x->made, 0, out);
}

/* Adds a use of a part of a matrix [rows, cols]; `t` is the tensor as it is used. Rows are used
 * where they are, columns are copied. */
static mx_status use_part(struct mx_resolver *r, const struct mx_tensor *t, uint64_t rows,
                          uint64_t cols, const struct part *wanted, enum mx_quantise how,
                          struct mx_weight *out)
{
	struct mx_weight_slice whole_rows, *part = &whole_rows;
	if (t->values)
		return use_joined(r, t, wanted, out);
	mx_status st = t->order.n ? mx_resolve_ordered(r, t, &t) : MX_OK;
	if (st != MX_OK)
		return st;
	if (!wanted->rows.n || !cols || rows > UINT32_MAX || cols > UINT32_MAX)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, t->name, "tensor %.160s has an unusable shape",
		                  t->name);
	whole_rows = wanted->rows;
	/* copies of one rank are of whole tensors, which several uses share */
	const bool own = r->limits->ranks > 1 && r->limits->copy_weights && t->data && !r->others &&
	                 wanted->rows.n < rows;
	if (wanted->cols.n < cols || own) {
		st = mx_resolve_part(r, t, cols, &wanted->rows, &wanted->cols, &t);
		if (st != MX_OK)
			return st;
		rows = wanted->rows.n;
		cols = wanted->cols.n;
		whole_rows = (struct mx_weight_slice){.n = rows};
	}
	const int bits = mx_resolve_bits(r, how, part->n, cols);
	if (t->dtype == MX_QUANT || bits) {
		const struct mx_quant_matrix from = {t,
		                                     {.format = t->format,
		                                      .dtype = t->dtype,
		                                      .rows = (uint32_t)rows,
		                                      .cols = (uint32_t)cols}};
		return use_packed(r, &from, part, bits, how == MX_QUANTISE_NEVER, out);
	}
	if (r->others) {
		if (part->n == rows) /* all of the tensor is mapped by another rank */
			r->model->mapped_bytes += t->bytes;
		return MX_OK;
	}
	if (r->limits->copy_weights && t->data)
		st = mx_resolve_copied(r, t, &t);
	if (st != MX_OK)
		return st;
	const struct mx_weight whole = {t->dtype, (uint32_t)rows, (uint32_t)cols, t->data, NULL};
	*out = mx_weight_rows(&whole, (uint32_t)part->first, (uint32_t)part->n);
	if (!t->data) /* it is still to be made */
		out->data = NULL;
	return push_use(r, t, (uint32_t)part->first, out);
}

/* Finds a matrix of shape spec->shape; `t` is the tensor as it is used. */
static mx_status use_matrix(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct mx_weight_spec *spec, enum mx_quantise how,
                            struct mx_weight *out)
{
	struct part part;
	uint64_t cols = spec->ndim ? 1 : 0;
	for (uint32_t i = 1; i < spec->ndim; i++)
		cols *= spec->shape[i];
	mx_status st = check_tensor(t, spec->shape, spec->ndim, r->err);
	if (st == MX_OK)
		st = check_slices(r, spec, cols, &part);
	return st == MX_OK ? use_part(r, t, spec->shape[0], cols, &part, how, out) : st;
}

/* Finds a matrix that the checkpoint has quantised. MX_E_NOTFOUND if it has not. */
static mx_status need_quantised(struct mx_resolver *r, const char *name,
                                const struct mx_weight_spec *spec, struct mx_weight *out)
{
	struct mx_quant_matrix from;
	struct part part;
	if (spec->ndim != 2)
		return MX_E_NOTFOUND;
	mx_status st = mx_resolve_quantised(r, name, spec->shape[0], spec->shape[1], &from);
	if (st == MX_OK)
		st = check_slices(r, spec, spec->shape[1], &part);
	if (st == MX_OK && part.cols.n < spec->shape[1])
		return mx_fail_at(
			r->err, MX_E_UNSUPPORTED, from.tensor->file,
			"tensor '%.160s' is quantised, and its columns cannot be split over ranks",
			from.tensor->name);
	return st == MX_OK ? use_packed(r, &from, &part.rows, 0, spec->form == MX_WEIGHT_PLAIN, out)
	                   : st;
}

mx_status mx_need_matrix(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         struct mx_weight *out)
{
	const struct mx_tensor *t;
	mx_status st = need_quantised(r, name, spec, out);
	if (st != MX_E_NOTFOUND)
		return st;
	st = mx_resolve_find(r, name, &t, r->err);
	if (st == MX_OK && r->model->plan->transposed && spec->ndim == 2) {
		const uint64_t shape[2] = {spec->shape[1], spec->shape[0]};
		st = check_tensor(t, shape, 2, r->err);
		if (st == MX_OK)
			st = mx_resolve_transposed(r, t, false, &t);
	}
	const enum mx_quantise how = spec->form == MX_WEIGHT_PLAIN ? MX_QUANTISE_NEVER : MX_QUANTISE;
	return st == MX_OK ? use_matrix(r, t, spec, how, out) : st;
}

mx_status mx_need_exact_2d(struct mx_resolver *r, const char *name, uint32_t rows, uint32_t cols,
                           struct mx_weight *out)
{
	const struct mx_weight_spec spec = MX_WEIGHT_SPEC(name, PLAIN, {rows, cols});
	return mx_need_matrix(r, name, &spec, out);
}

mx_status mx_need_matrix_3d(struct mx_resolver *r, const char *name, const uint64_t shape[3],
                            uint32_t first, uint32_t n, struct mx_weight *out)
{
	const struct mx_tensor *t;
	const struct part part = {{.first = first, .n = n}, {.axis = 1, .n = shape[2]}};
	mx_status st = mx_resolve_find(r, name, &t, r->err);
	if (st == MX_OK)
		st = check_tensor(t, shape, 3, r->err);
	return st == MX_OK ? use_part(r, t, shape[0] * shape[1], shape[2], &part, MX_QUANTISE, out)
	                   : st;
}

/* Finds rows of the matrices [n, rows, cols] that MXFP4's codes [n, rows, cols / 32, 16] and scales
 * [n, rows, cols / 32] stand for. */
static mx_status need_mxfp4(struct mx_resolver *r, const char *name, const uint64_t shape[3],
                            bool pairs, const struct mx_weight_slice *rows, struct mx_weight *out)
{
	const uint64_t blocks[4] = {shape[0], shape[1], shape[2] / 32, 16};
	const struct mx_tensor *codes, *scales;
	char part[256];
	if (shape[2] % 32)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor %s has no whole blocks of 32", name);
	if (snprintf(part, sizeof part, "%s_blocks", name) >= (int)sizeof part)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", name);
	mx_status st = mx_checkpoint_find_raw(r->model->checkpoint, part, "U8", &codes, r->err);
	if (st == MX_OK)
		st = check_shape(codes, blocks, 4, r->err);
	snprintf(part, sizeof part, "%s_scales", name);
	if (st == MX_OK)
		st = mx_checkpoint_find_raw(r->model->checkpoint, part, "U8", &scales, r->err);
	if (st == MX_OK)
		st = check_shape(scales, blocks, 3, r->err);
	if (st != MX_OK)
		return st;
	const struct mx_quant_matrix from = {codes,
	                                     {.format = MX_QUANT_FP4,
	                                      .rows = (uint32_t)(shape[0] * shape[1]),
	                                      .cols = (uint32_t)shape[2],
	                                      .codes = codes->data,
	                                      .scales = scales->data,
	                                      .group = 32,
	                                      .pairs = pairs ? (uint32_t)shape[1] : 0}};
	return use_packed(r, &from, rows, 0, false, out);
}

mx_status mx_need_matrix_oss(struct mx_resolver *r, const char *name, const uint64_t shape[3],
                             bool pairs, uint32_t first, uint32_t n, struct mx_weight *out)
{
	const uint64_t stored[3] = {shape[0], shape[2], shape[1]};
	const struct part part = {{.first = first, .n = n}, {.axis = 1, .n = shape[2]}};
	const struct mx_tensor *t;
	mx_status st = mx_resolve_find(r, name, &t, NULL);
	if (st == MX_E_NOTFOUND)
		return need_mxfp4(r, name, shape, pairs, &part.rows, out);
	if (st == MX_OK)
		st = check_tensor(t, stored, 3, r->err);
	if (st == MX_OK)
		st = mx_resolve_transposed(r, t, pairs, &t);
	return st == MX_OK ? use_part(r, t, shape[0] * shape[1], shape[2], &part, MX_QUANTISE, out)
	                   : st;
}

mx_status mx_need_table(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                        bool logits, struct mx_weight *out)
{
	const struct mx_tensor *t;
	mx_status st = need_quantised(r, name, spec, out);
	if (st != MX_E_NOTFOUND)
		return st;
	st = mx_resolve_find(r, name, &t, r->err);
	const enum mx_quantise how = logits ? MX_QUANTISE_8 : MX_QUANTISE_STORED;
	return st == MX_OK ? use_matrix(r, t, spec, how, out) : st;
}

static const char ones_name[] = "(ones)";

/* Returns a tensor of ones that is in no file. */
static const struct mx_tensor *ones_of(struct mx_resolver *r, const struct mx_weight_spec *spec)
{
	struct mx_model *m = r->model;
	size_t n = 1;
	for (uint32_t i = 0; i < spec->ndim; i++)
		n *= spec->shape[i];
	for (size_t i = 0; i < m->n_vectors; i++)
		if (m->vectors[i].tensor->name == ones_name && m->vectors[i].n == n)
			return m->vectors[i].tensor;
	struct mx_tensor *t = mx_arena_alloc(&m->arena, sizeof *t);
	float *data = mx_arena_alloc(&m->arena, n * sizeof *data);
	if (!t || !data)
		return NULL;
	for (size_t i = 0; i < n; i++)
		data[i] = 1;
	*t = (struct mx_tensor){.name = ones_name,
	                        .dtype = MX_F32,
	                        .ndim = spec->ndim,
	                        .data = data,
	                        .bytes = n * sizeof *data,
	                        .file = ones_name};
	memcpy(t->shape, spec->shape, spec->ndim * sizeof *t->shape);
	return t;
}

/* Adds a use of a vector from element `first` of its copy on. pairs, if not 0: of each run of so
 * many elements those of even number come first, then the others. */
static mx_status use_vector(struct mx_resolver *r, const struct mx_tensor *t, size_t first,
                            float plus, uint32_t pairs, float **dest)
{
	struct mx_model *m = r->model;
	if (t->dtype == MX_QUANT)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, t->file,
		                  "tensor '%.160s' is quantised, which only matrices can be", t->name);
	size_t same = 0, n = t->bytes / mx_dtype_size(t->dtype);
	while (same < m->n_vectors && (m->vectors[same].tensor != t || m->vectors[same].plus != plus))
		same++;
	bool copied = same < m->n_vectors;
	struct mx_model_vector *v =
		mx_resolve_push(&m->arena, (void **)&m->vectors, &m->n_vectors, &m->cap_vectors, sizeof *v);
	if (!v)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*v = (struct mx_model_vector){
		.tensor = t,
		.dest = dest,
		.same = copied ? same : SIZE_MAX,
		.n = n,
		.first = first,
		.plus = plus,
		.order = t->order,
		.row_len = t->ndim ? n / t->shape[0] : n,
	};
	if (pairs) {
		v->order = (struct mx_row_order){.n = 2, .m = pairs / 2, .run = 1};
		v->row_len = 1;
	}
	if (copied)
		return MX_OK;
	m->private_bytes += mx_round_up(v->n * sizeof(float), MX_VECTOR_ALIGN);
	if (t->name != ones_name)
		m->mapped_bytes += t->bytes;
	return MX_OK;
}

mx_status mx_need_vector(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         float plus, float **dest)
{
	const struct mx_tensor *t;
	const bool one = mx_resolve_is_one(r, name);
	if (one && !(t = ones_of(r, spec)))
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	mx_status st = one ? MX_OK : mx_resolve_find(r, name, &t, r->err);
	struct mx_weight_spec of_rows = *spec;
	struct part part;
	if (st == MX_OK)
		st = check_tensor(t, spec->shape, spec->ndim, r->err);
	if (st != MX_OK)
		return st;
	/* of an axis behind axes of one index the elements are as those of axis 0 */
	uint32_t axis = spec->n_slices == 1 ? spec->slices[0].axis : 0;
	for (uint32_t i = 0; i < axis && axis < spec->ndim; i++)
		if (spec->shape[i] != 1)
			axis = 0;
	if (axis && axis < spec->ndim) {
		of_rows.shape[0] = spec->shape[axis];
		of_rows.slices[0].axis = 0;
	}
	size_t n = t->bytes / mx_dtype_size(t->dtype), cols = spec->ndim ? n / of_rows.shape[0] : 1;
	st = check_slices(r, &of_rows, cols, &part);
	if (st == MX_OK && part.cols.n < cols)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "a mixer asks for columns of the vector %s", name);
	return st == MX_OK ? use_vector(r, t, cols * part.rows.first, plus, 0, dest) : st;
}

mx_status mx_need_rows(struct mx_resolver *r, const char *name, const uint64_t shape[2], bool pairs,
                       size_t first, float **dest)
{
	const struct mx_tensor *t;
	mx_status st = mx_resolve_find(r, name, &t, r->err);
	if (st == MX_OK)
		st = check_tensor(t, shape, 2, r->err);
	return st == MX_OK ? use_vector(r, t, first, 0, pairs ? (uint32_t)shape[1] : 0, dest) : st;
}

mx_status mx_need_matrix_2d(struct mx_resolver *r, const char *name, uint32_t rows, uint32_t cols,
                            struct mx_weight *out)
{
	const struct mx_weight_spec spec = MX_WEIGHT_SPEC(name, MATRIX, {rows, cols});
	return mx_need_matrix(r, name, &spec, out);
}

mx_status mx_need_vector_1d(struct mx_resolver *r, const char *name, uint32_t n, float plus,
                            float **dest)
{
	const struct mx_weight_spec spec = MX_WEIGHT_SPEC(name, VECTOR, {n});
	return mx_need_vector(r, name, &spec, plus, dest);
}

mx_status mx_bias_name(struct mx_resolver *r, const char *weight, char *out, size_t cap)
{
	size_t stem = strlen(weight);
	if (stem > 7 && !strcmp(weight + stem - 7, ".weight"))
		stem -= 7;
	if (snprintf(out, cap, "%.*s.bias", (int)stem, weight) >= (int)cap)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", weight);
	return MX_OK;
}

mx_status mx_need_bias(struct mx_resolver *r, const char *weight, uint32_t n, float **dest)
{
	char name[256];
	mx_status st = mx_bias_name(r, weight, name, sizeof name);
	return st == MX_OK ? mx_need_vector_1d(r, name, n, 0, dest) : st;
}

mx_status mx_resolve_norm(struct mx_resolver *r, const char *weight, struct mx_model_norm *out)
{
	const struct mx_plan *p = r->model->plan;
	if (!weight)
		return MX_OK;
	mx_status st = mx_need_vector_1d(r, weight, p->width, p->norm_plus_one ? 1 : 0, &out->weight);
	return st != MX_OK || p->norm != MX_NORM_LAYER ? st
	                                               : mx_need_bias(r, weight, p->width, &out->bias);
}
