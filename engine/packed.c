/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices. Each use of one is packed once at load (device/quant.h), in the host's
 * memory: what the checkpoint stores quantised, and what the operator wants quantised. Where a
 * matrix cannot be packed (a mixer reads its elements, the device has no products for it, the
 * format has none) it is expanded to bf16, or f32 if the embedding is. What is for a device with
 * memory of its own is copied there and then given back.
 *
 * kv_b of latent attention in GGUF, which is stored in two parts (struct mx_tensor), is expanded
 * too, whatever its type.
 */
#include <string.h>

#include "base/pool.h"
#include "device/convert.h"
#include "engine/resolver.h"
#include "engine/touch.h"

/* Smaller matrices are not rounded: there is nothing to gain. */
#define LEAST_SIDE 64

/* Most rows of keys that a head of latent attention has. */
#define MAX_NOPE 4096

/* Rows of an expanded matrix that one task makes. */
#define EXPAND_ROWS 64

static struct mx_model_packed *find(const struct mx_model *m, const struct mx_quant_matrix *from,
                                    const struct mx_weight_slice *part, bool plain)
{
	for (struct mx_model_packed *x = m->packed; x; x = x->next)
		if (x->from.tensor == from->tensor && x->first == part->first && x->n == part->n &&
		    x->plain == plain)
			return x;
	return NULL;
}

static enum mx_dtype expanded_dtype(const struct mx_model *m)
{
	return m->embed.cols && m->embed.dtype == MX_F32 ? MX_F32 : MX_BF16;
}

int mx_resolve_bits(const struct mx_resolver *r, enum mx_quantise how, uint64_t rows, uint64_t cols)
{
	const int bits = r->limits->weight_bits;
	if (how < MX_QUANTISE || !bits || r->expands || rows < LEAST_SIDE || cols < LEAST_SIDE)
		return 0;
	return how == MX_QUANTISE_8 ? 8 : bits;
}

static mx_status choose(const struct mx_resolver *r, const struct mx_quant_source *s, int bits,
                        struct mx_quant *out)
{
	return r->device->info.own_memory ? mx_quant_choose_fragments(s, bits, r->experts, out)
	                                  : mx_quant_choose(s, bits, out);
}

mx_status mx_resolve_packed(struct mx_resolver *r, const struct mx_quant_matrix *from,
                            const struct mx_weight_slice *part, int bits, bool plain,
                            struct mx_model_packed **out)
{
	struct mx_model *m = r->model;
	struct mx_quant quant;
	plain = plain || r->expands || choose(r, &from->source, bits, &quant) != MX_OK;
	struct mx_model_packed *x = find(m, from, part, plain);
	if ((*out = x))
		return MX_OK;
	x = mx_arena_alloc(&m->arena, sizeof *x);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*x = (struct mx_model_packed){.from = *from,
	                              .made = *from->tensor,
	                              .first = (uint32_t)part->first,
	                              .n = (uint32_t)part->n,
	                              .plain = plain};
	struct mx_tensor *made = &x->made;
	const uint64_t cols = from->source.cols;
	made->data = NULL;
	made->format = MX_QUANT_PLAIN;
	made->ndim = 2;
	made->shape[0] = x->n;
	made->shape[1] = cols;
	if (plain) {
		made->dtype = expanded_dtype(m);
		made->bytes = x->n * cols * mx_dtype_size(made->dtype);
	} else {
		x->quant = quant;
		made->dtype = MX_QUANT;
		made->bytes = mx_quant_bytes(&x->quant, x->n);
	}
	m->packed_bytes += mx_round_up(made->bytes, MX_VECTOR_ALIGN);
	x->next = m->packed;
	*out = m->packed = x;
	return MX_OK;
}

mx_status mx_resolve_joined(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct mx_weight_slice *part, struct mx_model_packed **out)
{
	struct mx_model *m = r->model;
	const struct mx_quant_matrix from = {
		t,
		{.format = t->format,
	     .dtype = t->dtype,
	     .rows = (uint32_t)(t->values->shape[0] * t->shape[1]),
	     .cols = (uint32_t)(t->shape[0] / t->values->shape[0] - t->values->shape[1])}};
	if (from.source.cols > MAX_NOPE)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, t->file,
		                  "tensor '%.160s' has heads of more than %d rows of keys", t->name,
		                  MAX_NOPE);
	struct mx_model_packed *x = find(m, &from, part, true);
	if ((*out = x))
		return MX_OK;
	x = mx_arena_alloc(&m->arena, sizeof *x);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*x = (struct mx_model_packed){.from = from,
	                              .made = *t,
	                              .first = (uint32_t)part->first,
	                              .n = (uint32_t)part->n,
	                              .plain = true,
	                              .joined = true};
	struct mx_tensor *made = &x->made;
	made->data = NULL;
	made->values = NULL;
	made->format = MX_QUANT_PLAIN;
	made->dtype = t->dtype == MX_F32 || t->dtype == MX_F16 ? MX_F32 : expanded_dtype(m);
	made->shape[0] = x->n;
	made->bytes = x->n * t->shape[1] * mx_dtype_size(made->dtype);
	m->packed_bytes += mx_round_up(made->bytes, MX_VECTOR_ALIGN);
	x->next = m->packed;
	*out = m->packed = x;
	return MX_OK;
}

/* ---- at load ---- */

struct packing {
	const struct mx_model_packed *x;
	struct mx_quant_source s;
	unsigned char *to;
};

static void pack_task(void *arg, size_t task, unsigned worker)
{
	const struct packing *g = arg;
	const struct mx_model_packed *x = g->x;
	const size_t r = task * MX_QUANT_ROWS, left = x->n - r;
	(void)worker;
	mx_quant_pack(&x->quant, &g->s, x->first + r, left < MX_QUANT_ROWS ? left : MX_QUANT_ROWS,
	              g->to + task * x->quant.panel_bytes);
}

/* Expands rows, a piece at a time where they are rounded to bf16. */
static void expand_task(void *arg, size_t task, unsigned worker)
{
	const struct packing *g = arg;
	const struct mx_model_packed *x = g->x;
	const size_t cols = x->made.shape[1], end = (task + 1) * EXPAND_ROWS;
	(void)worker;
	for (size_t r = task * EXPAND_ROWS; r < end && r < x->n; r++)
		mx_quant_expand_as(&g->s, x->first + r, x->made.dtype,
		                   g->to + r * cols * mx_dtype_size(x->made.dtype));
}

/* Makes one head's rows of kv_b: those of keys, stored transposed, then those of values. Rows that
 * the rank does not have are left out. */
static void join_task(void *arg, size_t head, unsigned worker)
{
	const struct packing *g = arg;
	const struct mx_model_packed *x = g->x;
	const struct mx_tensor *values = x->from.tensor->values;
	const size_t rank = x->made.shape[1], nope = g->s.cols, v = values->shape[1];
	const size_t size = mx_dtype_size(x->made.dtype), first = head * (nope + v);
	const struct mx_quant_source of_values = {.format = values->format,
	                                          .dtype = values->dtype,
	                                          .rows = (uint32_t)(values->shape[0] * v),
	                                          .cols = (uint32_t)rank,
	                                          .codes = values->data};
	_Alignas(4) unsigned char keys[MAX_NOPE * sizeof(float)];
	(void)worker;
	for (size_t c = 0; c < rank; c++) {
		mx_quant_expand_as(&g->s, head * rank + c, x->made.dtype, keys);
		for (size_t r = 0; r < nope; r++)
			if (first + r - x->first < x->n)
				memcpy(g->to + ((first + r - x->first) * rank + c) * size, keys + r * size, size);
	}
	for (size_t r = first + nope; r < first + nope + v; r++)
		if (r - x->first < x->n)
			mx_quant_expand_as(&of_values, head * v + r - first - nope, x->made.dtype,
			                   g->to + (r - x->first) * rank * size);
}

/* The work of one matrix: so many tasks of a function. */
static mx_parallel_f *work_of(const struct mx_model_packed *x, size_t *out_tasks)
{
	const size_t per = x->plain ? EXPAND_ROWS : MX_QUANT_ROWS;
	*out_tasks = x->joined ? x->from.tensor->values->shape[0] : (x->n + per - 1) / per;
	return x->joined ? join_task : x->plain ? expand_task : pack_task;
}

static bool is_used(const struct mx_model *m, const struct mx_tensor *t)
{
	for (size_t i = 0; i < m->n_uses; i++)
		if (m->uses[i].tensor == t)
			return true;
	return false;
}

/* True of a copy that the panels were made of and nothing else needs: mx_model_pack gives its
 * memory back. */
static bool is_forgotten(const struct mx_model *m, const struct mx_model_made *made)
{
	const struct mx_model_packed *x = m->packed;
	while (x && x->from.tensor != &made->made)
		x = x->next;
	return x && !is_used(m, &made->made);
}

size_t mx_model_copied_bytes(const struct mx_model *m)
{
	size_t bytes = m->made_bytes + m->packed_bytes;
	for (const struct mx_model_made *x = m->made; x; x = x->next)
		if (is_forgotten(m, x))
			bytes -= mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
	return bytes;
}

static void forget(const struct mx_tensor *t)
{
	mx_touch_forget(t->data, t->bytes);
	if (t->values)
		mx_touch_forget(t->values->data, t->values->bytes);
}

mx_status mx_model_pack(struct mx_model *m, struct mx_device *d)
{
	struct mx_pool *pool = NULL; /* other devices have no threads on the host */
	if (!m->packed)
		return MX_OK;
	m->packed_map = mx_map(m->packed_bytes);
	if (!m->packed_map)
		return MX_E_NOMEM;
	mx_status st = d->info.own_memory ? mx_pool_create(0, &pool) : MX_OK;
	if (st != MX_OK)
		return st;
	unsigned char *at = m->packed_map;
	for (struct mx_model_packed *x = m->packed; x; x = x->next) {
		struct packing g = {x, x->from.source, at};
		g.s.codes = x->from.tensor->data; /* which may have been made at load itself */
		size_t n_tasks;
		mx_parallel_f *work = work_of(x, &n_tasks);
		if (pool)
			mx_pool_run(pool, n_tasks, work, &g);
		else
			d->ops->parallel(d, n_tasks, work, &g);
		x->made.data = at;
		at += mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
	}
	mx_pool_destroy(pool);
	for (struct mx_model_packed *x = m->packed; x; x = x->next)
		if (!is_used(m, x->from.tensor)) /* which may be anonymous memory, that then is zero */
			forget(x->from.tensor);
	for (size_t i = 0; i < m->n_uses; i++)
		if (!m->uses[i].weight->data)
			m->uses[i].weight->data = m->uses[i].tensor->data;
	return MX_OK;
}
