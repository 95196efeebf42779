/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the memory of a model, divides it, and fills it with the weights. */
#include <stdlib.h>

#include "engine/load_parts.h"

/* Bytes of slots and pages that are resident before the engine is ready: room for the first
 * requests. */
#define TOUCH_STATES ((size_t)64 << 20)

/* Divides the memory from base + states on into slots, pages and snapshots. */
static void divide_states(struct mx_model_engine *e, const struct mx_memory_plan *p, size_t states,
                          unsigned char *base)
{
	e->slots = base + states;
	e->pages = e->slots + p->slots;
	e->snapshots = e->pages + p->pages;
}

/* Makes the mapped matrices resident. */
static void touch_weights(struct mx_model_engine *e, struct mx_touch_progress *progress)
{
	const struct mx_model *m = &e->model;
	for (size_t i = 0; i < m->n_matrices; i++)
		mx_touch(e->device, m->matrices[i].tensor->data, m->matrices[i].tensor->bytes, false,
		         progress);
}

/* For CPUs: maps one region for f32 vectors, scratch, slots, pages and snapshots, each aligned to
 * info.align. Its first part is made resident now, the rest in the background. */
static mx_status load_host_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                                  struct mx_touch_progress *progress, struct mx_load_vectors *out,
                                  struct mx_err *err)
{
	struct mx_model *m = &e->model;
	const struct mx_device_info *info = &e->device->info;
	struct mx_scratch_bytes bytes;
	mx_scratch_layout(m, &e->limits, info, NULL, NULL, &e->scratch, &bytes);
	size_t scratch = mx_round_up(bytes.device + bytes.host, info->align);
	size_t first = p->weights_private + scratch, states = p->slots + p->pages + p->snapshots;
	e->map_bytes = first + states;
	e->map = mx_map(e->map_bytes);
	if (!e->map)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB of memory",
		               (double)e->map_bytes / (1 << 20));
	divide_states(e, p, first, e->map);
	first += states < TOUCH_STATES ? states : TOUCH_STATES;
	/* Weights that do not fit in memory are read from the file as they are used. */
	bool fits = m->mapped_bytes + e->map_bytes + p->instances + p->weights_made < mx_host_memory();
	progress->all = first + (fits ? m->mapped_bytes : 0);
	if (fits)
		touch_weights(e, progress);
	mx_touch(e->device, e->map, first, true, progress);
	mx_toucher_start(&e->toucher, e->map + first, e->map_bytes - first);
	mx_model_convert(m, e->map, e->map);
	*out = (struct mx_load_vectors){e->map, e->map};
	unsigned char *at = e->map + p->weights_private;
	mx_scratch_layout(m, &e->limits, info, at, at + bytes.device, &e->scratch, &bytes);
	e->moves = e->scratch.moves;
	return MX_OK;
}

/* Copies the matrices to the device's memory at `base`, in the order of their use. */
static mx_status load_weights(struct mx_model_engine *e, unsigned char *base,
                              struct mx_touch_progress *progress)
{
	struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	mx_model_place(m, base, d->info.act_dtype);
	progress->all = m->mapped_bytes;
	const unsigned char *end = base; /* end of the matrices copied so far */
	mx_status st = MX_OK;
	for (size_t i = 0; i < m->n_uses && st == MX_OK; i++) {
		const struct mx_model_matrix *x = mx_model_used(m, &m->uses[i]);
		const struct mx_tensor *t = x->tensor;
		unsigned char *at = base + x->offset;
		if (at < end) /* tied: copied already */
			continue;
		const size_t n = x->end - x->first, size = mx_dtype_size(t->dtype);
		const enum mx_dtype to = mx_model_dtype(t, d->info.act_dtype);
		st = d->ops->load(d, at, to, (const unsigned char *)t->data + x->first * size, t->dtype, n);
		end = at + n * mx_dtype_size(to);
		mx_touch_count(progress, t->bytes);
	}
	return st;
}

/* Converts norms and biases on the host, in memory that the caller frees, and copies them to the
 * device. */
static mx_status load_vectors(struct mx_model_engine *e, struct mx_load_vectors *v)
{
	struct mx_model *m = &e->model;
	size_t n = m->private_bytes / sizeof(float);
	v->host = mx_calloc(n, sizeof(float));
	if (!v->host)
		return MX_E_NOMEM;
	mx_model_convert(m, v->host, v->base);
	mx_status st = e->device->ops->load(e->device, v->base, MX_F32, v->host, MX_F32, n);
	return st == MX_OK ? e->device->ops->wait(e->device) : st;
}

/* Tells the device where the matrices of each expert are. */
static mx_status load_experts(struct mx_model_engine *e, unsigned char *base)
{
	struct mx_model *m = &e->model;
	const enum mx_dtype byte = MX_F8E4M3; /* elements of one byte, which load leaves as they are */
	const size_t bytes = m->n_experts * sizeof(struct mx_expert_weights);
	if (!bytes)
		return MX_OK;
	struct mx_expert_weights *host = mx_calloc(m->n_experts, sizeof *host);
	if (!host)
		return MX_E_NOMEM;
	void *to = base + m->experts_offset;
	mx_experts_tables(m, host, to);
	mx_status st = e->device->ops->load(e->device, to, byte, host, byte, bytes);
	if (st == MX_OK)
		st = e->device->ops->wait(e->device);
	free(host);
	return st;
}

/* For a device with its own memory: allocates one block there for matrices, vectors, scratch,
 * slots, pages and snapshots, and maps memory for the host's buffers. */
static mx_status load_device_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                                    struct mx_touch_progress *progress, struct mx_load_vectors *out,
                                    struct mx_err *err)
{
	struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	struct mx_scratch_bytes bytes;
	void *arena, *tables;
	mx_scratch_layout(m, &e->limits, &d->info, NULL, NULL, &e->scratch, &bytes);
	size_t vectors = mx_round_up(m->weight_bytes, d->info.align);
	size_t scratch = vectors + p->weights_private;
	size_t states = scratch + mx_round_up(bytes.device, d->info.align);
	size_t all = states + p->slots + p->pages + p->snapshots;
	e->map_bytes = bytes.host;
	e->map = mx_map(e->map_bytes);
	if (!e->map)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB of memory",
		               (double)e->map_bytes / (1 << 20));
	mx_status st = d->ops->alloc(d, all, &arena);
	if (st != MX_OK)
		return mx_fail(err, st, "%s does not give %.1f MiB of memory", d->info.name,
		               (double)all / (1 << 20));
	e->arena = arena;
	st = d->ops->host_alloc(d, mx_step_tables_bytes(&e->limits), &tables);
	if (st != MX_OK)
		return mx_fail(err, st, "no memory that %s can copy from", d->info.name);
	e->tables = tables;
	size_t rows, pooling = mx_pooling_bytes(m->plan, &e->limits, &d->info, &rows);
	st = d->ops->host_alloc(d, pooling, &tables);
	if (st != MX_OK)
		return mx_fail(err, st, "no memory that %s can copy to", d->info.name);
	e->pooling = tables;
	if (m->head.on) {
		struct mx_head_moves moves;
		st = d->ops->host_alloc(d, mx_head_moves_layout(&e->limits, NULL, &moves), &tables);
		if (st != MX_OK)
			return mx_fail(err, st, "no memory that %s can copy from", d->info.name);
		e->moves_memory = tables;
		mx_head_moves_layout(&e->limits, e->moves_memory, &e->moves);
	}
	divide_states(e, p, states, e->arena);
	mx_scratch_layout(m, &e->limits, &d->info, e->arena + scratch, e->map, &e->scratch, &bytes);
	st = d->ops->zero(d, e->arena + scratch, bytes.device);
	if (st == MX_OK)
		st = load_weights(e, e->arena, progress);
	out->base = e->arena + vectors;
	if (st == MX_OK)
		st = load_vectors(e, out);
	if (st == MX_OK)
		st = load_experts(e, e->arena);
	if (st != MX_OK)
		return mx_fail(err, st, "the weights cannot be copied to %s: %s", d->info.name,
		               mx_status_str(st));
	for (size_t i = 0; i < m->n_matrices; i++)
		mx_touch_forget(m->matrices[i].tensor->data, m->matrices[i].tensor->bytes);
	return MX_OK;
}

mx_status mx_load_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                         struct mx_touch_progress *progress, struct mx_load_vectors *out,
                         struct mx_err *err)
{
	*out = (struct mx_load_vectors){0};
	if (mx_model_make(&e->model, e->device) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB for converted matrices",
		               (double)e->model.made_bytes / (1 << 20));
	if (mx_model_pack(&e->model, e->device) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB for quantised matrices",
		               (double)e->model.packed_bytes / (1 << 20));
	return e->device->info.own_memory ? load_device_memory(e, p, progress, out, err)
	                                  : load_host_memory(e, p, progress, out, err);
}

void mx_load_vectors_free(const struct mx_model_engine *e, struct mx_load_vectors *v)
{
	if (e->device->info.own_memory)
		free(v->host);
	*v = (struct mx_load_vectors){0};
}
