/* SPDX-License-Identifier: Apache-2.0 */
/* Places of weights: matrices in the checkpoint's mapping or in the device's memory, and the
 * vectors' f32 copies. */
#include "engine/resolver.h"

#include <math.h>
#include <stdlib.h>

#include "device/convert.h"

/* Alignment of matrices in a device's own memory, in bytes. The rows of real models are multiples
 * of it, so there are no gaps between the matrices of one product. */
#define MATRIX_ALIGN 256

static int by_tensor(const void *a, const void *b)
{
	const struct mx_model_matrix *x = a, *y = b;
	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* Lists each matrix once, even if it is used twice (tied), and counts their mapped bytes. */
static mx_status count_matrices(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	size_t n = 0;
	m->matrices = mx_arena_alloc(&m->arena, m->n_uses * sizeof *m->matrices);
	if (!m->matrices)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (size_t i = 0; i < m->n_uses; i++)
		m->matrices[i] = (struct mx_model_matrix){m->uses[i].tensor, SIZE_MAX, 0, SIZE_MAX};
	qsort(m->matrices, m->n_uses, sizeof *m->matrices, by_tensor);
	for (size_t i = 0; i < m->n_uses; i++)
		if (!n || m->matrices[n - 1].tensor != m->matrices[i].tensor) {
			m->matrices[n++] = m->matrices[i];
			if (m->matrices[i].tensor->data) /* else it is made at load */
				m->mapped_bytes += m->matrices[i].tensor->bytes;
		}
	m->n_matrices = n;
	return MX_OK;
}

enum mx_dtype mx_model_dtype(const struct mx_tensor *t, enum mx_dtype dtype)
{
	return t->dtype == MX_QUANT ? MX_QUANT : dtype;
}

struct mx_model_matrix *mx_model_used(const struct mx_model *m, const struct mx_model_use *use)
{
	const struct mx_model_matrix key = {.tensor = use->tensor};
	return bsearch(&key, m->matrices, m->n_matrices, sizeof key, by_tensor);
}

/* Extends what is copied of each matrix to the rows of each of its uses. */
static void find_rows(struct mx_model *m)
{
	for (size_t i = 0; i < m->n_uses; i++) {
		const struct mx_model_use *use = &m->uses[i];
		const struct mx_weight *w = use->weight;
		struct mx_model_matrix *x = mx_model_used(m, use);
		size_t first = (size_t)use->first * w->cols, end = first + (size_t)w->rows * w->cols;
		if (x->tensor->dtype == MX_QUANT) {
			first = 0;
			end = x->tensor->bytes / mx_dtype_size(MX_QUANT);
		}
		if (first < x->first)
			x->first = first;
		if (end > x->end)
			x->end = end;
	}
}

/* With a device's own memory: gives each matrix its offset there, in the order of first use, and
 * the tables of experts theirs. */
static void find_places(struct mx_model *m, const struct mx_device *device)
{
	for (size_t i = 0; device->info.own_memory && i < m->n_uses; i++) {
		struct mx_model_matrix *x = mx_model_used(m, &m->uses[i]);
		if (x->offset != SIZE_MAX)
			continue;
		x->offset = m->weight_bytes;
		const enum mx_dtype dtype = mx_model_dtype(x->tensor, device->info.act_dtype);
		m->weight_bytes += mx_round_up((x->end - x->first) * mx_dtype_size(dtype), MATRIX_ALIGN);
	}
	m->experts_offset = m->weight_bytes;
	if (device->info.own_memory)
		m->weight_bytes += m->n_experts * sizeof(struct mx_expert_weights);
}

mx_status mx_resolve_places(struct mx_resolver *r)
{
	mx_status st = count_matrices(r);
	if (st != MX_OK)
		return st;
	find_rows(r->model);
	find_places(r->model, r->device);
	return MX_OK;
}

/* Converts the rows of a tensor to their places. */
static void convert_rows(const struct mx_model_vector *v, float *to)
{
	const unsigned char *from = v->tensor->data;
	const size_t n = v->row_len, size = n * mx_dtype_size(v->tensor->dtype);
	for (size_t r = 0; r * n < v->n; r++)
		mx_convert(to + mx_row_of(&v->order, r) * n, MX_F32, from + r * size, v->tensor->dtype, n);
}

void mx_model_convert(struct mx_model *m, unsigned char *at, unsigned char *base)
{
	for (size_t i = 0; i < m->n_vectors; i++) {
		struct mx_model_vector *v = &m->vectors[i];
		v->copy = (float *)(void *)base;
		if (v->same != SIZE_MAX)
			v->copy = m->vectors[v->same].copy;
		*v->dest = v->copy + v->first;
		if (v->same != SIZE_MAX)
			continue;
		if (v->order.n)
			convert_rows(v, (float *)(void *)at);
		else
			mx_convert(at, MX_F32, v->tensor->data, v->tensor->dtype, v->n);
		for (size_t k = 0; k < v->n && v->tensor->minus_exp; k++)
			((float *)(void *)at)[k] = logf(-((float *)(void *)at)[k]);
		for (size_t k = 0; k < v->n && v->plus != 0; k++)
			((float *)(void *)at)[k] += v->plus;
		at += mx_round_up(v->n * sizeof(float), MX_VECTOR_ALIGN);
		base += mx_round_up(v->n * sizeof(float), MX_VECTOR_ALIGN);
	}
}

void mx_model_place(struct mx_model *m, unsigned char *base, enum mx_dtype dtype)
{
	for (size_t i = 0; i < m->n_uses; i++) {
		const struct mx_model_use *use = &m->uses[i];
		const struct mx_model_matrix *x = mx_model_used(m, use);
		const size_t before = (size_t)use->first * use->weight->cols - x->first;
		use->weight->data = base + x->offset + before * mx_dtype_size(dtype);
		use->weight->dtype = mx_model_dtype(use->tensor, dtype);
	}
}
