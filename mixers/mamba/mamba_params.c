/* SPDX-License-Identifier: Apache-2.0 */
/* A Mamba-2 layer's parameters, tensors and description; see README.md. */
#include <math.h>
#include <stdlib.h>

#include "mixers/mamba/mamba_layer.h"

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

mx_status mamba_params_read(const struct mx_layer_desc *layer, struct mamba_params *out,
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

mx_status mamba_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n)
{
	struct mamba_params p;
	mx_status status = mamba_params_read(layer, &p, NULL);
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

struct mx_recur_spec mamba_recur_spec(const struct mx_layer_desc *layer,
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

/* Multiplies the convolution's taps instead of its inputs x, B and C, if there are multipliers. */
static void multiply_conv(const struct mamba_params *p, const float *weight,
                          struct mamba_weights *w)
{
	const uint32_t bc = p->groups * p->state_size;
	w->mul_z = w->mul_dt = 1;
	if (!p->multipliers)
		return;
	for (uint32_t c = 0; c < p->channels; c++) {
		uint32_t part = c < p->inner ? 1 : c < p->inner + bc ? 2 : 3;
		for (uint32_t i = 0; i < p->conv_kernel; i++)
			w->own_conv[c * p->conv_kernel + i] =
				(float)((double)weight[c * p->conv_kernel + i] * p->multipliers[part]);
	}
	w->mul_z = (float)p->multipliers[0];
	w->mul_dt = (float)p->multipliers[4];
}

mx_status mamba_weights_take(const struct mamba_params *p, const struct mx_mixer_init *init,
                             struct mamba_weights *out)
{
	const void *const *from = init->weights;
	const float *const *host = init->host_vectors;
	const uint32_t dt = p->inner + p->channels; /* first row of in_proj for dt */
	const float *in_bias = NULL;
	struct mamba_weights w = {.z = from[0], .xbc = from[1], .dt = from[2], .out = from[3]};
	size_t n = 8;

	w.a = calloc(p->heads, sizeof(float));
	w.b_dt = calloc(p->heads, sizeof(float));
	if (p->multipliers)
		w.own_conv = calloc((size_t)p->channels * p->conv_kernel, sizeof(float));
	*out = w;
	if (!w.a || !w.b_dt || (p->multipliers && !w.own_conv))
		return MX_E_NOMEM;
	w.conv = from[4];
	w.d = from[7];
	if (p->conv_bias)
		w.conv_bias = from[n++];
	if (p->norm)
		w.norm = from[n++];
	if (p->bias) {
		in_bias = host[n];
		w.b_z = from[n++];
		w.b_xbc = w.b_z + p->inner;
	}
	if (p->out_bias)
		w.b_out = from[n++];
	for (uint32_t h = 0; h < p->heads; h++) {
		w.a[h] = (float)-exp((double)host[6][h]);
		w.b_dt[h] = p->multipliers ? (float)((double)host[5][h] / p->multipliers[4]) : host[5][h];
		w.b_dt[h] += in_bias ? in_bias[dt + h] : 0;
	}
	multiply_conv(p, host[4], &w);
	*out = w;
	return MX_OK;
}

void mamba_weights_free(struct mamba_weights *w)
{
	free(w->own_conv);
	free(w->a);
	free(w->b_dt);
}

void mamba_describe(const struct mx_layer_desc *layer, const struct mamba_params *p,
                    const struct mamba_weights *w, struct mx_recur_layer *out)
{
	const uint32_t bc = p->groups * p->state_size;
	*out = (struct mx_recur_layer){
		.core = mamba_recur_spec(layer, p),
		.k_dim = p->state_size,
		.v_dim = p->head_dim,
		.streams = {[MX_RECUR_Q] = {.n = bc, .conv = true, .silu = true},
	                [MX_RECUR_K] = {.n = bc, .conv = true, .silu = true},
	                [MX_RECUR_V] = {.n = p->inner, .conv = true, .silu = true},
	                [MX_RECUR_BETA] = {.n = p->heads},
	                [MX_RECUR_GATE] = {.n = p->inner}},
		.taps = p->conv_kernel,
		.q_scale = 1,
		.decay = MX_RECUR_A_STEP,
		.beta = MX_RECUR_BETA_STEP,
		.beta_scale = w->mul_dt,
		.step_min = p->dt_min,
		.step_max = p->dt_max,
		.norm = p->norm,
		.out = {.groups = p->groups,
	            .dim = p->inner / p->groups,
	            .weight_per_group = true,
	            .eps = p->norm_eps,
	            .gate = MX_RECUR_GATE_SILU,
	            .gate_first = !p->norm_before_gate},
		.gate_scale = w->mul_z,
	};
}
