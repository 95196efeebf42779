/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices. Each use of one is packed once at load (device/quant.h), in the host's
 * memory: what the checkpoint stores quantised, and what the operator wants quantised. Where a
 * matrix cannot be packed (a mixer reads its elements, the device has no products for it, the
 * format has none) it is expanded to bf16, or f32 if the embedding is. What is for a device with
 * memory of its own is copied there and then given back.
 */
#include <string.h>

#include "base/pool.h"
#include "device/convert.h"
#include "engine/resolver.h"
#include "engine/touch.h"

/* Smaller matrices are not rounded: there is nothing to gain. */
#define LEAST_SIDE 64

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
		const size_t per = x->plain ? EXPAND_ROWS : MX_QUANT_ROWS;
		const size_t n_tasks = (x->n + per - 1) / per;
		if (pool)
			mx_pool_run(pool, n_tasks, x->plain ? expand_task : pack_task, &g);
		else
			d->ops->parallel(d, n_tasks, x->plain ? expand_task : pack_task, &g);
		x->made.data = at;
		at += mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
	}
	mx_pool_destroy(pool);
	for (struct mx_model_packed *x = m->packed; x; x = x->next)
		if (!is_used(m, x->from.tensor)) /* which may be anonymous memory, that then is zero */
			mx_touch_forget(x->from.tensor->data, x->from.tensor->bytes);
	for (size_t i = 0; i < m->n_uses; i++)
		if (!m->uses[i].weight->data)
			m->uses[i].weight->data = m->uses[i].tensor->data;
	return MX_OK;
}
