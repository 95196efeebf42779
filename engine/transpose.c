/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that a checkpoint stores the other way round (GPT-2's Conv1D): copies of them in the
 * host's memory, made once at load. */
#include <string.h>

#include "engine/resolver.h"

#define TILE 32 /* elements: rows and columns of a tile both stay in the cache */

mx_status mx_resolve_transposed(struct mx_resolver *r, const struct mx_tensor *t,
                                const struct mx_tensor **out)
{
	struct mx_model *m = r->model;
	for (struct mx_model_transpose *x = m->transposes; x; x = x->next)
		if (x->from == t) {
			*out = &x->made;
			return MX_OK;
		}
	struct mx_model_transpose *x = mx_arena_alloc(&m->arena, sizeof *x);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*x = (struct mx_model_transpose){.made = *t, .from = t, .next = m->transposes};
	x->made.shape[0] = t->shape[1];
	x->made.shape[1] = t->shape[0];
	x->made.data = NULL;
	m->transposes = x;
	m->transposed_bytes += mx_round_up(t->bytes, MX_VECTOR_ALIGN);
	if (!r->device->info.own_memory) /* else they are there until they are copied to the device */
		m->instance_bytes += mx_round_up(t->bytes, MX_VECTOR_ALIGN);
	*out = &x->made;
	return MX_OK;
}

/* Fills a tile of the copy: rows [r0, r0 + TILE), columns [c0, c0 + TILE). */
static void transpose_tile(const struct mx_model_transpose *x, unsigned char *to, size_t r0,
                           size_t c0)
{
	const unsigned char *from = x->from->data;
	size_t rows = x->made.shape[0], cols = x->made.shape[1], size = mx_dtype_size(x->made.dtype);
	for (size_t r = r0; r < rows && r < r0 + TILE; r++)
		for (size_t c = c0; c < cols && c < c0 + TILE; c++)
			memcpy(to + (r * cols + c) * size, from + (c * rows + r) * size, size);
}

mx_status mx_model_transpose(struct mx_model *m)
{
	if (!m->transposes)
		return MX_OK;
	m->transposed = mx_map(m->transposed_bytes);
	if (!m->transposed)
		return MX_E_NOMEM;
	unsigned char *at = m->transposed;
	for (struct mx_model_transpose *x = m->transposes; x; x = x->next) {
		for (size_t r = 0; r < x->made.shape[0]; r += TILE)
			for (size_t c = 0; c < x->made.shape[1]; c += TILE)
				transpose_tile(x, at, r, c);
		x->made.data = at;
		at += mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
	}
	for (size_t i = 0; i < m->n_uses; i++) {
		struct mx_weight *w = m->uses[i].weight;
		if (!w->data)
			w->data = (const unsigned char *)m->uses[i].tensor->data +
			          (size_t)m->uses[i].first * w->cols * mx_dtype_size(w->dtype);
	}
	return MX_OK;
}
