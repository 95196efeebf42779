/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mamba mixer's table: parameters, weights, memory, life cycle, state.
 *
 * Mamba-2 (Dao and Gu 2024, arXiv:2405.21060). See README.md; arithmetic is in
 * mamba_forward.c and in mixers/recurrence.
 */
#include "mixers/mamba/mamba.h"

#include <math.h>
#include <stdlib.h>

/* Limits far above any model, so that no product of sizes overflows. */
#define MAX_HEADS  4096
#define MAX_DIM    1024
#define MAX_KERNEL 8

static mx_status read_dims(const struct mx_params *in, struct mamba_params *p, struct mx_err *err)
{
	const struct {
		const char *name;
		int64_t def;
		uint32_t max, *to;
	} dims[] = {
		{"num_heads", -1, MAX_HEADS, &p->heads},         {"head_dim", -1, MAX_DIM, &p->head_dim},
		{"state_size", -1, MAX_DIM, &p->state_size},     {"n_groups", 1, MAX_HEADS, &p->groups},
		{"conv_kernel", 4, MAX_KERNEL, &p->conv_kernel},
	};
	mx_status status = MX_OK;
	for (size_t i = 0; status == MX_OK && i < sizeof dims / sizeof *dims; i++)
		status = mx_param_read_u32(in, "mamba", dims[i].name, dims[i].def, 1, dims[i].max,
		                           dims[i].to, err);
	if (status != MX_OK)
		return status;
	if (p->heads % p->groups)
		return mx_mixer_fail(err, MX_E_RANGE, "mamba: n_groups %u does not divide num_heads %u",
		                     p->groups, p->heads);
	p->inner = p->heads * p->head_dim;
	p->channels = p->inner + 2 * p->groups * p->state_size;
	return MX_OK;
}

static mx_status read_limits(const struct mx_params *in, struct mamba_params *p, struct mx_err *err)
{
	const struct mx_param *q = mx_param_find(in, "time_step_limit");
	p->dt_min = 0;
	p->dt_max = INFINITY;
	if (!q)
		return MX_OK;
	if (q->type != MX_PARAM_FLOATS || q->n != 2 || !(q->v[0] >= 0) || !(q->v[0] <= q->v[1]))
		return mx_mixer_fail(err, MX_E_RANGE,
		                     "mamba: time_step_limit must be two numbers, 0 <= low <= high");
	p->dt_min = (float)q->v[0];
	p->dt_max = (float)q->v[1];
	return MX_OK;
}

static mx_status read_flags(const struct mx_params *in, struct mamba_params *p, struct mx_err *err)
{
	const struct {
		const char *name;
		bool def, *to;
	} flags[] = {
		{"use_bias", false, &p->bias},
		{"use_conv_bias", true, &p->conv_bias},
		{"rms_norm", true, &p->norm},
		{"norm_before_gate", false, &p->norm_before_gate},
	};
	mx_status status = MX_OK;
	for (size_t i = 0; status == MX_OK && i < sizeof flags / sizeof *flags; i++)
		status = mx_param_read_bool(in, "mamba", flags[i].name, flags[i].def, flags[i].to, err);
	return status;
}

static mx_status read_multipliers(const struct mx_params *in, struct mamba_params *p,
                                  struct mx_err *err)
{
	const struct mx_param *q = mx_param_find(in, "multipliers");
	if (!q)
		return MX_OK;
	if (q->type != MX_PARAM_FLOATS || q->n != 5)
		return mx_mixer_fail(err, MX_E_INVALID, "mamba: multipliers must be five numbers");
	for (int i = 0; i < 5; i++)
		if (!isfinite(q->v[i]) || q->v[i] == 0) /* dt_bias is divided by the last one */
			return mx_mixer_fail(err, MX_E_RANGE, "mamba: multipliers must be finite and not 0");
	p->multipliers = q->v;
	return MX_OK;
}

static mx_status read_epsilon(const struct mx_params *in, struct mamba_params *p,
                              struct mx_err *err)
{
	double eps = 0;
	mx_status status =
		mx_param_read_number(in, "mamba", "layer_norm_epsilon", 1e-5, 0, 1, &eps, err);
	p->norm_eps = (float)eps;
	return status;
}

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct mamba_params *out,
                             struct mx_err *err)
{
	static const char *const known[] = {
		"num_heads",          "head_dim",     "state_size",    "n_groups", "conv_kernel",
		"time_step_limit",    "use_bias",     "use_conv_bias", "rms_norm", "norm_before_gate",
		"layer_norm_epsilon", "use_out_bias", "multipliers"};
	const struct mx_params *in = &layer->params;
	struct mamba_params p = {0};
	mx_status status = mx_params_known(in, known, sizeof known / sizeof *known, "mamba", err);
	if (status == MX_OK)
		status = read_dims(in, &p, err);
	if (status == MX_OK)
		status = read_limits(in, &p, err);
	if (status == MX_OK)
		status = read_flags(in, &p, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "mamba", "use_out_bias", p.bias, &p.out_bias, err);
	if (status == MX_OK)
		status = read_multipliers(in, &p, err);
	if (status == MX_OK)
		status = read_epsilon(in, &p, err);
	if (status == MX_OK)
		*out = p;
	return status;
}

static mx_status mamba_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                             struct mx_err *err)
{
	struct mamba_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mamba: this module runs on CPUs in f32");
	return read_params(layer, &p, err);
}

static mx_status mamba_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                               size_t *out_n)
{
	struct mamba_params p;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const uint64_t width = layer->width, inner = p.inner, channels = p.channels, h = p.heads;
	const uint64_t in = inner + channels + h, taps = p.conv_kernel;
	size_t n = 0;

	const struct mx_weight_spec in_proj = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {in, width});
	specs[n++] = mx_weight_spec_rows(in_proj, 0, inner);            /* z */
	specs[n++] = mx_weight_spec_rows(in_proj, inner, channels);     /* x, B, C */
	specs[n++] = mx_weight_spec_rows(in_proj, inner + channels, h); /* dt */
	specs[n++] = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {width, inner});
	specs[n++] = MX_WEIGHT_SPEC("conv1d.weight", VECTOR, {channels, 1, taps});
	specs[n++] = MX_WEIGHT_SPEC("dt_bias", VECTOR, {h});
	specs[n++] = MX_WEIGHT_SPEC("A_log", VECTOR, {h});
	specs[n++] = MX_WEIGHT_SPEC("D", VECTOR, {h});
	if (p.conv_bias)
		specs[n++] = MX_WEIGHT_SPEC("conv1d.bias", VECTOR, {channels});
	if (p.norm)
		specs[n++] = MX_WEIGHT_SPEC("norm.weight", VECTOR, {inner});
	if (p.bias)
		specs[n++] = MX_WEIGHT_SPEC("in_proj.bias", VECTOR, {in});
	if (p.out_bias)
		specs[n++] = MX_WEIGHT_SPEC("out_proj.bias", VECTOR, {width});
	*out_n = n;
	return MX_OK;
}

static struct mx_recur_spec recur_spec(const struct mx_layer_desc *layer,
                                       const struct mamba_params *p)
{
	return (struct mx_recur_spec){
		.heads = p->heads,
		.q_heads = p->groups,
		.k_heads = p->groups,
		.v_heads = p->heads,
		.a_heads = p->heads,
		.k_dim = p->state_size,
		.v_dim = p->head_dim,
		.decay = MX_RECUR_SCALAR,
		.gain = true,
		.max_draft = layer->max_draft,
	};
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
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_recur_spec recur = recur_spec(layer, &p);
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
	free(m->own_conv_weight);
	free(m->a);
	free(m->b_dt);
	free(m);
}

/* Multiplies the convolution's taps instead of its inputs x, B and C, if there are multipliers. */
static void multiply_conv(struct mx_mixer *m, const float *weight)
{
	const struct mamba_params *p = &m->params;
	const uint32_t bc = p->groups * p->state_size;
	if (!p->multipliers)
		return;
	for (uint32_t c = 0; c < p->channels; c++) {
		uint32_t part = c < p->inner ? 1 : c < p->inner + bc ? 2 : 3;
		for (uint32_t i = 0; i < p->conv_kernel; i++)
			m->own_conv_weight[c * p->conv_kernel + i] =
				(float)((double)weight[c * p->conv_kernel + i] * p->multipliers[part]);
	}
	m->conv_weight = m->own_conv_weight;
	m->mul_z = (float)p->multipliers[0];
	m->mul_dt = (float)p->multipliers[4];
}

/* Takes the pointers that create gets, in the order of mamba_weights. host: init->host_vectors, for
 * what is computed here. */
static void take_weights(struct mx_mixer *m, const void *const *w, const float *const *host)
{
	const struct mamba_params *p = &m->params;
	const uint32_t dt = p->inner + p->channels; /* first row of in_proj for dt */
	const float *in_bias = NULL;
	size_t n = 8;

	m->w_z = w[0];
	m->w_xbc = w[1];
	m->w_dt = w[2];
	m->w_out = w[3];
	m->conv_weight = w[4];
	m->d = w[7];
	if (p->conv_bias)
		m->conv_bias = w[n++];
	if (p->norm)
		m->norm_weight = w[n++];
	if (p->bias) {
		in_bias = host[n];
		m->b_z = w[n++];
		m->b_xbc = m->b_z + p->inner;
	}
	if (p->out_bias)
		m->b_out = w[n++];
	for (uint32_t h = 0; h < p->heads; h++) {
		m->a[h] = (float)-exp((double)host[6][h]);
		m->b_dt[h] = p->multipliers ? (float)((double)host[5][h] / p->multipliers[4]) : host[5][h];
		m->b_dt[h] += in_bias ? in_bias[dt + h] : 0;
	}
	multiply_conv(m, host[4]);
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
	status = read_params(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	m->a = calloc(m->params.heads, sizeof(float));
	m->b_dt = calloc(m->params.heads, sizeof(float));
	if (m->params.multipliers)
		m->own_conv_weight =
			calloc((size_t)m->params.channels * m->params.conv_kernel, sizeof(float));
	if (!m->a || !m->b_dt || (m->params.multipliers && !m->own_conv_weight)) {
		status = MX_E_NOMEM;
		goto fail;
	}
	m->mul_z = m->mul_dt = 1;
	m->common = (struct mx_recur_mixer){
		.base = {&mamba_ops, layer->index},
		.device = init->device,
		.slots = slots_of(&m->recur, &m->conv),
	};
	m->common.slots.base = init->slot_base;
	m->common.slots.stride = init->slot_stride;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa));
	m->recur = recur_spec(layer, &m->params);
	m->conv = conv_spec(layer, &m->params);
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	mamba_scratch_layout(layer, &m->params, &m->recur, init->device->info.threads, &m->scratch);
	take_weights(m, init->weights, init->host_vectors);
	m->params.multipliers = NULL; /* the layer's, which is not kept */
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "mamba: out of memory");
	mamba_destroy(m);
	return status;
}

static void mamba_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct mamba_params *p = &m->params;
	snprintf(text, cap, "mamba: %u heads of %u, state %u, %u %s, kernels %s", p->heads, p->head_dim,
	         p->state_size, p->groups, p->groups == 1 ? "group" : "groups",
	         mx_recur_kernels_name(m->kernels));
}

/* commit does nothing: the next span's position tells which tokens were kept (recurrence.h). */
static const struct mx_mixer_ops mamba_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba",
	.summary = "Mamba-2: selective state space with one decay a head",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = mamba_probe,
	.weights = mamba_weights,
	.state = mamba_state,
	.extent = mx_mixer_extent_all,
	.create = mamba_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = mamba_destroy,
	.forward = mamba_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = mamba_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mamba_ops;
}
