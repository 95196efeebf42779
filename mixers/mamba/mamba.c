/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mamba mixer's table: parameters, weights, memory, life cycle, state.
 *
 * Mamba-2 (Dao and Gu 2024, arXiv:2405.21060). See README.md; arithmetic is in
 * mamba_forward.c and in mixers/recurrence.
 */
#include "mixers/mamba/mamba.h"

#include <stdlib.h>

static mx_status mamba_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                             struct mx_err *err)
{
	struct mamba_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mamba: this module runs on CPUs in f32");
	return mamba_params_read(layer, &p, err);
}

static struct mx_conv_spec conv_spec(const struct mx_layer_desc *layer,
                                     const struct mamba_params *p)
{
	return (struct mx_conv_spec){
		.channels = p->channels,
		.width = p->conv_kernel,
		.silu = true,
		.max_draft = layer->max_draft,
	};
}

static struct mx_recur_slots slots_of(const struct mx_recur_spec *recur,
                                      const struct mx_conv_spec *conv)
{
	return (struct mx_recur_slots){.parts = {{.recur = recur}, {.conv = conv}}};
}

static mx_status mamba_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                             struct mx_state_spec *out)
{
	struct mamba_params p;
	struct mamba_scratch scratch;
	mx_status status = mamba_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_recur_spec recur = mamba_recur_spec(layer, &p);
	const struct mx_conv_spec conv = conv_spec(layer, &p);
	const struct mx_recur_slots slots = slots_of(&recur, &conv);
	mamba_scratch_layout(layer, &p, &recur, device->info.threads, &scratch);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_recur_slots_bytes(&slots),
		.scratch_bytes = scratch.bytes,
		.snapshot_bytes = mx_recur_slots_snapshot_bytes(&slots),
	};
	return MX_OK;
}

static void mamba_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	mamba_weights_free(&m->w);
	free(m);
}

static const struct mx_mixer_ops mamba_ops;

static mx_status mamba_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                              struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	status = mamba_params_read(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	status = mamba_weights_take(&m->params, init, &m->w);
	if (status != MX_OK)
		goto fail;
	m->common = (struct mx_recur_mixer){
		.base = {&mamba_ops, layer->index},
		.device = init->device,
		.slots = slots_of(&m->recur, &m->conv),
	};
	m->common.slots.base = init->slot_base;
	m->common.slots.stride = init->slot_stride;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa));
	m->recur = mamba_recur_spec(layer, &m->params);
	m->conv = conv_spec(layer, &m->params);
	m->comm = init->comm;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	mamba_scratch_layout(layer, &m->params, &m->recur, init->device->info.threads, &m->scratch);
	m->params.multipliers = NULL; /* the layer's, which is not kept */
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "mamba: out of memory");
	mamba_destroy(m);
	return status;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct mamba_params *p = &m->params;
	snprintf(text, cap, "mamba: %u heads of %u, state %u, %u %s, kernels %s", p->heads, p->head_dim,
	         p->state_size, p->groups, p->groups == 1 ? "group" : "groups",
	         mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops mamba_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba",
	.summary = "Mamba-2: selective state space with one decay a head",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_RANKS,
	.probe = mamba_probe,
	.weights = mamba_weights,
	.state = mamba_state,
	.extent = mx_mixer_extent_all,
	.create = mamba_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = mamba_destroy,
	.forward = mamba_forward,
	.commit = mx_recur_slots_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mamba_ops;
}
