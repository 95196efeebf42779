/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mamba1 mixer's table: parameters, weights, memory, life cycle, state.
 *
 * Mamba, version 1 (Gu and Dao 2023, arXiv:2312.00752). See README.md; arithmetic is in
 * mamba1_forward.c and in mixers/recurrence.
 */
#include "mixers/mamba1/mamba1.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits far above any model, so that no product of sizes overflows. */
#define MAX_INNER  (1 << 20)
#define MAX_KERNEL 8

static mx_status read_norms(const struct mx_params *in, struct mamba1_params *p, struct mx_err *err)
{
	static const char *const names[] = {"none", "weighted", "plain"};
	const char *name = mx_param_string(in, "norms", names[0]);
	double eps = 0;
	size_t i = 0;
	while (i < 3 && strcmp(names[i], name))
		i++;
	if (i == 3)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "mamba1: norms '%.60s' is none of none, weighted, plain", name);
	p->norms = (enum mamba1_norms)i;
	mx_status status = mx_param_read_number(in, "mamba1", "norm_eps", 1e-6, 0, 1, &eps, err);
	p->norm_eps = (float)eps;
	return status;
}

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct mamba1_params *out,
                             struct mx_err *err)
{
	static const char *const known[] = {
		"intermediate_size", "state_size",    "conv_kernel", "time_step_rank",
		"use_bias",          "use_conv_bias", "norms",       "norm_eps"};
	const struct mx_params *in = &layer->params;
	struct mamba1_params p = {0};
	const struct {
		const char *name;
		int64_t def;
		uint32_t max, *to;
	} sizes[] = {
		{"intermediate_size", 2 * (int64_t)layer->width, MAX_INNER, &p.inner},
		{"state_size", 16, MX_SELECT_STATES, &p.states},
		{"conv_kernel", 4, MAX_KERNEL, &p.taps},
		{"time_step_rank", ((int64_t)layer->width + 15) / 16, MAX_INNER, &p.rank},
	};
	mx_status status = mx_params_known(in, known, sizeof known / sizeof *known, "mamba1", err);
	for (size_t i = 0; status == MX_OK && i < sizeof sizes / sizeof *sizes; i++)
		status = mx_param_read_u32(in, "mamba1", sizes[i].name, sizes[i].def, 1, sizes[i].max,
		                           sizes[i].to, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "mamba1", "use_bias", false, &p.bias, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "mamba1", "use_conv_bias", true, &p.conv_bias, err);
	if (status == MX_OK)
		status = read_norms(in, &p, err);
	if (status == MX_OK)
		*out = p;
	return status;
}

static mx_status mamba1_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                              struct mx_err *err)
{
	struct mamba1_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mamba1: this module runs on CPUs in f32");
	return read_params(layer, &p, err);
}

static mx_status mamba1_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                size_t *out_n)
{
	struct mamba1_params p;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const uint64_t width = layer->width, inner = p.inner, states = p.states, rank = p.rank;
	const uint64_t taps = p.taps;
	size_t n = 0;

	const struct mx_weight_spec in = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {2 * inner, width});
	const struct mx_weight_spec x =
		MX_WEIGHT_SPEC("x_proj.weight", MATRIX, {rank + 2 * states, inner});
	specs[n++] = mx_weight_spec_rows(in, 0, inner);             /* x */
	specs[n++] = mx_weight_spec_rows(in, inner, inner);         /* z */
	specs[n++] = mx_weight_spec_rows(x, 0, rank);               /* dt */
	specs[n++] = mx_weight_spec_rows(x, rank, states);          /* B */
	specs[n++] = mx_weight_spec_rows(x, rank + states, states); /* C */
	specs[n++] = MX_WEIGHT_SPEC("dt_proj.weight", MATRIX, {inner, rank});
	specs[n++] = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {width, inner});
	specs[n++] = MX_WEIGHT_SPEC("conv1d.weight", VECTOR, {inner, 1, taps});
	specs[n++] = MX_WEIGHT_SPEC("dt_proj.bias", VECTOR, {inner});
	specs[n++] = MX_WEIGHT_SPEC("A_log", VECTOR, {inner, states});
	specs[n++] = MX_WEIGHT_SPEC("D", VECTOR, {inner});
	if (p.conv_bias)
		specs[n++] = MX_WEIGHT_SPEC("conv1d.bias", VECTOR, {inner});
	if (p.norms == MAMBA1_WEIGHTED) {
		specs[n++] = MX_WEIGHT_SPEC("dt_layernorm.weight", VECTOR, {rank});
		specs[n++] = MX_WEIGHT_SPEC("b_layernorm.weight", VECTOR, {states});
		specs[n++] = MX_WEIGHT_SPEC("c_layernorm.weight", VECTOR, {states});
	}
	if (p.bias) {
		specs[n++] = MX_WEIGHT_SPEC("in_proj.bias", VECTOR, {2 * inner});
		specs[n++] = MX_WEIGHT_SPEC("out_proj.bias", VECTOR, {width});
	}
	*out_n = n;
	return MX_OK;
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
	mx_status status = read_params(layer, &p, NULL);
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

/* Takes the pointers that create gets, in the order of mamba1_weights. */
static void take_weights(struct mx_mixer *m, const void *const *w)
{
	const struct mamba1_params *p = &m->params;
	size_t n = 11;
	m->w_x = w[0];
	m->w_z = w[1];
	m->w_low = w[2];
	m->w_b = w[3];
	m->w_c = w[4];
	m->w_dt = w[5];
	m->w_out = w[6];
	m->conv_weight = w[7];
	m->b_dt = w[8];
	m->d = w[10];
	if (p->conv_bias)
		m->conv_bias = w[n++];
	if (p->norms == MAMBA1_WEIGHTED) {
		m->norm_dt = w[n++];
		m->norm_b = w[n++];
		m->norm_c = w[n++];
	}
	if (p->bias) {
		m->b_x = w[n++];
		m->b_z = m->b_x + p->inner;
		m->b_out = w[n++];
	}
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
	mx_status status = read_params(layer, &p, err);
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
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	mamba1_scratch_layout(layer, &p, &m->scratch);
	take_weights(m, init->weights);
	if (!make_a(m, init->host_vectors[9])) {
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

/* commit does nothing: the next span's position tells which tokens were kept (recurrence.h). */
static const struct mx_mixer_ops mamba1_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba1",
	.summary = "Mamba, version 1: selective state space with a state vector for each channel",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = mamba1_probe,
	.weights = mamba1_weights,
	.state = mamba1_state,
	.extent = mx_mixer_extent_all,
	.create = mamba1_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = mamba1_destroy,
	.forward = mamba1_forward,
	.commit = mx_mixer_commit_nothing,
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
