/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rwkv mixer's table: memory, life cycle, state. A step is in rwkv_forward.c; see README.md.
 */
#include "mixers/rwkv/rwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_status rwkv_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_err *err)
{
	struct rwkv_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "rwkv: this module runs on CPUs in f32");
	return rwkv_params_read(layer, &p, err);
}

/* ---- memory and life cycle ---- */

static struct mx_conv_spec shift_spec(const struct mx_layer_desc *layer)
{
	return (struct mx_conv_spec){
		.channels = layer->width, .width = 2, .max_draft = layer->max_draft};
}

static struct mx_recur_spec recur_spec(const struct mx_layer_desc *layer,
                                       const struct rwkv_params *p)
{
	return (struct mx_recur_spec){.heads = p->heads,
	                              .q_heads = p->heads,
	                              .k_heads = p->heads,
	                              .v_heads = p->heads,
	                              .a_heads = p->heads,
	                              .k_dim = p->dim,
	                              .v_dim = p->dim,
	                              .decay = MX_RECUR_VECTOR,
	                              .removal = true,
	                              .max_draft = layer->max_draft};
}

/* Bytes of v of a step, which the model's first time mixing keeps: the one without a value
 * residual. */
static size_t v_first_bytes(const struct mx_layer_desc *layer, const struct rwkv_params *p)
{
	return p->part == RWKV_TIME && !p->value_residual
	           ? (size_t)layer->max_rows * p->inner * sizeof(float)
	           : 0;
}

static mx_status rwkv_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct rwkv_params p;
	mx_status st = rwkv_params_read(layer, &p, NULL);
	if (st != MX_OK)
		return st;
	const bool time = p.part == RWKV_TIME;
	const struct mx_conv_spec shift = shift_spec(layer);
	const struct mx_recur_spec recur = recur_spec(layer, &p);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_conv_slot_bytes(&shift) + (time ? mx_recur_slot_bytes(&recur) : 0),
		.snapshot_bytes =
			mx_conv_snapshot_bytes(&shift) + (time ? mx_recur_snapshot_bytes(&recur) : 0),
		.scratch_bytes = rwkv_layout(&p, &recur, layer->width, layer->max_rows,
	                                 device->info.threads, NULL, NULL),
		.instance_bytes = 2 * layer->width * sizeof(float) + v_first_bytes(layer, &p),
	};
	return MX_OK;
}

static void rwkv_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (m->is_first)
		free(m->v_first);
	free(m->taps);
	free(m);
}

static const struct mx_mixer_ops rwkv_ops;

static mx_status rwkv_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                             struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct rwkv_params p;
	mx_status st = rwkv_params_read(layer, &p, err);
	if (st != MX_OK)
		return st;
	struct mx_mixer *m = calloc(1, sizeof *m);
	float *taps = malloc(2 * (size_t)layer->width * sizeof *taps);
	if (!m || !taps) {
		free(m);
		free(taps);
		return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: out of memory");
	}
	*m = (struct mx_mixer){
		.base = {&rwkv_ops, layer->index},
		.device = init->device,
		.kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa)),
		.params = p,
		.width = layer->width,
		.max_rows = layer->max_rows,
		.shift = shift_spec(layer),
		.taps = taps,
		.recur = recur_spec(layer, &p),
		.slot_base = init->slot_base,
		.slot_stride = init->slot_stride,
	};
	m->shift_bytes = mx_conv_slot_bytes(&m->shift);
	m->shift_snapshot = mx_conv_snapshot_bytes(&m->shift);
	m->slot_bytes = m->shift_bytes + (p.part == RWKV_TIME ? mx_recur_slot_bytes(&m->recur) : 0);
	for (uint32_t i = 0; i < layer->width; i++) {
		taps[2 * i] = 1;
		taps[2 * i + 1] = -1;
	}
	st = rwkv_params_take(layer, &p, init->weights, &m->w, err);
	if (st != MX_OK) {
		rwkv_destroy(m);
		return st;
	}
	*out = m;
	return MX_OK;
}

/* Finds the model's first time mixing, and shares its memory for v with the others. */
static mx_status rwkv_prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	float *v_first = NULL;
	for (uint32_t i = 0; i < n_layers; i++) {
		struct mx_mixer *m = layers[i];
		if (m->params.part != RWKV_TIME)
			continue;
		m->is_first = !v_first;
		if (m->is_first)
			v_first = malloc((size_t)m->max_rows * m->params.inner * sizeof *v_first);
		if (!v_first)
			return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: out of memory");
		m->v_first = v_first;
	}
	return MX_OK;
}

/* ---- a sequence's state ---- */

static unsigned char *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	return m->slot_base + slot * m->slot_stride;
}

static mx_status rwkv_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                           uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(slot_of(layers[i], to_slot), slot_of(layers[i], from_slot), layers[i]->slot_bytes);
	return MX_OK;
}

static void save_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, void *out)
{
	const unsigned char *from = slot_of(m, slot);
	unsigned char *to = out;
	mx_conv_save(&m->shift, from, pos, to);
	if (m->params.part == RWKV_TIME)
		mx_recur_save(&m->recur, from + m->shift_bytes, pos, to + m->shift_snapshot);
}

static void load_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, const void *in)
{
	const unsigned char *from = in;
	unsigned char *to = slot_of(m, slot);
	mx_conv_load(&m->shift, to, pos, from);
	if (m->params.part == RWKV_TIME)
		mx_recur_load(&m->recur, to + m->shift_bytes, pos, from + m->shift_snapshot);
}

static mx_status rwkv_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                           uint32_t pos, void *const *out)
{
	return mx_recur_save_layers(layers[0]->device, layers, n_layers, slot, pos, out, save_layer);
}

static mx_status rwkv_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                           uint32_t pos, const void *const *in)
{
	return mx_recur_load_layers(layers[0]->device, layers, n_layers, slot, pos, in, load_layer);
}

static void commit_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos,
                         const struct mx_kept *kept)
{
	unsigned char *at = slot_of(m, slot);
	mx_conv_commit(&m->shift, at, pos, kept);
	if (m->params.part == RWKV_TIME)
		mx_recur_commit(&m->recur, at + m->shift_bytes, pos, kept);
}

static mx_status rwkv_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                             const struct mx_step *step, const struct mx_kept *kept)
{
	return mx_recur_commit_layers(layers[0]->device, layers, n_layers, step, kept, commit_layer);
}

static void rwkv_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct rwkv_params *p = &m->params;
	if (p->part == RWKV_TIME)
		snprintf(text, cap, "rwkv: time mixing, %u heads of %u, kernels %s", p->heads, p->dim,
		         mx_recur_kernels_name(m->kernels));
	else
		snprintf(text, cap, "rwkv: channel mixing of %u, kernels %s", p->inner,
		         mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops rwkv_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "rwkv",
	.summary = "RWKV-7: time mixing by a generalised delta rule, and channel mixing",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_RANKS,
	.probe = rwkv_probe,
	.weights = rwkv_params_weights,
	.state = rwkv_state,
	.extent = mx_mixer_extent_all,
	.create = rwkv_create,
	.prepare = rwkv_prepare,
	.destroy = rwkv_destroy,
	.forward = rwkv_forward,
	.commit = rwkv_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = rwkv_fork,
	.save = rwkv_save,
	.load = rwkv_load,
	.resume = mx_mixer_resume_nothing,
	.describe = rwkv_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &rwkv_ops;
}
