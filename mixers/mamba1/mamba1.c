/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mamba1 mixer's table: memory, life cycle, state.
 *
 * Mamba, version 1 (Gu and Dao 2023, arXiv:2312.00752). See README.md; arithmetic is in
 * mamba1_forward.c and in mixers/recurrence.
 */
#include "mixers/mamba1/mamba1.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static mx_status mamba1_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                              struct mx_err *err)
{
	struct mamba1_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mamba1: this module runs on CPUs in f32");
	return mamba1_params_read(layer, &p, err);
}

static struct mx_select_spec select_spec(const struct mx_layer_desc *layer,
                                         const struct mamba1_params *p)
{
	return (struct mx_select_spec){
		.channels = p->inner, .states = p->states, .max_draft = layer->max_draft};
}

static struct mx_conv_spec conv_spec(const struct mx_layer_desc *layer,
                                     const struct mamba1_params *p)
{
	return (struct mx_conv_spec){
		.channels = p->inner, .width = p->taps, .silu = true, .max_draft = layer->max_draft};
}

static struct mx_recur_slots slots_of(const struct mx_select_spec *scan,
                                      const struct mx_conv_spec *conv)
{
	return (struct mx_recur_slots){.parts = {{.scan = scan}, {.conv = conv}}};
}

static mx_status mamba1_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                              struct mx_state_spec *out)
{
	struct mamba1_params p;
	struct mamba1_scratch scratch;
	(void)device;
	mx_status status = mamba1_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_select_spec scan = select_spec(layer, &p);
	const struct mx_conv_spec conv = conv_spec(layer, &p);
	const struct mx_recur_slots slots = slots_of(&scan, &conv);
	mamba1_scratch_layout(layer, &p, &scratch);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_recur_slots_bytes(&slots),
		.scratch_bytes = scratch.bytes,
		.snapshot_bytes = mx_recur_slots_snapshot_bytes(&slots),
		.instance_bytes = mx_select_packed(&scan) * sizeof(float),
	};
	return MX_OK;
}

static void mamba1_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->a);
	free(m);
}

/* Makes m->a: -exp(A_log), packed. */
static bool make_a(struct mx_mixer *m, const float *a_log)
{
	const size_t n = (size_t)m->params.inner * m->params.states;
	float *a = malloc(n * sizeof *a);
	m->a = malloc(mx_select_packed(&m->scan) * sizeof *m->a);
	if (a && m->a) {
		for (size_t i = 0; i < n; i++)
			a[i] = (float)-exp((double)a_log[i]);
		mx_select_pack(&m->scan, a, m->a);
	}
	bool made = a && m->a;
	free(a);
	return made;
}

static const struct mx_mixer_ops mamba1_ops;

static mx_status mamba1_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                               struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mamba1_params p;
	mx_status status = mamba1_params_read(layer, &p, err);
	if (status != MX_OK)
		return status;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "mamba1: out of memory");
	m->common = (struct mx_recur_mixer){
		.base = {&mamba1_ops, layer->index},
		.device = init->device,
		.slots = slots_of(&m->scan, &m->conv),
	};
	m->common.slots.base = init->slot_base;
	m->common.slots.stride = init->slot_stride;
	m->params = p;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa));
	m->scan = select_spec(layer, &p);
	m->conv = conv_spec(layer, &p);
	m->comm = init->comm;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	mamba1_scratch_layout(layer, &p, &m->scratch);
	mamba1_params_take(&p, init->weights, &m->w);
	if (!make_a(m, init->host_vectors[MAMBA1_A_LOG])) {
		mamba1_destroy(m);
		return mx_mixer_fail(err, MX_E_NOMEM, "mamba1: out of memory");
	}
	*out = m;
	return MX_OK;
}

static void mamba1_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct mamba1_params *p = &m->params;
	snprintf(text, cap, "mamba1: %u channels of %u states, kernels %s", p->inner, p->states,
	         mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops mamba1_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba1",
	.summary = "Mamba, version 1: selective state space with a state vector for each channel",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_RANKS,
	.probe = mamba1_probe,
	.weights = mamba1_params_weights,
	.state = mamba1_state,
	.extent = mx_mixer_extent_all,
	.create = mamba1_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = mamba1_destroy,
	.forward = mamba1_forward,
	.commit = mx_recur_slots_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = mamba1_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mamba1_ops;
}
