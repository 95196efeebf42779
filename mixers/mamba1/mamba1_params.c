/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the mamba1 mixer, for the modules of every device. */
#include "mixers/mamba1/mamba1_params.h"

#include <string.h>

#include "mixers/recurrence/recurrence.h"

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

mx_status mamba1_params_read(const struct mx_layer_desc *layer, struct mamba1_params *out,
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
	if (status == MX_OK && p.inner < layer->ranks)
		status = mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                       "mamba1: %u channels cannot be split over %u ranks", p.inner,
		                       layer->ranks);
	if (status != MX_OK)
		return status;
	const struct mx_share own = mx_share_of_channels(p.inner, layer->rank, layer->ranks);
	p.all_inner = p.inner;
	p.inner = own.n;
	p.first = own.first;
	p.out_bias = p.bias && !layer->rank;
	*out = p;
	return MX_OK;
}

mx_status mamba1_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                size_t *out_n)
{
	struct mamba1_params p;
	mx_status status = mamba1_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const uint64_t width = layer->width, inner = p.all_inner, states = p.states, rank = p.rank;
	const uint64_t taps = p.taps, own = p.inner, first = p.first;
	size_t n = 0;

	const struct mx_weight_spec in = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {2 * inner, width});
	const struct mx_weight_spec x = mx_weight_spec_part(
		MX_WEIGHT_SPEC("x_proj.weight", MATRIX, {rank + 2 * states, inner}), 1, first, own);
	const struct mx_weight_spec out = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {width, inner});
	/* with an element, or a row, for each channel */
	const struct mx_weight_spec of_channels[] = {
		MX_WEIGHT_SPEC("conv1d.weight", VECTOR, {inner, 1, taps}),
		MX_WEIGHT_SPEC("dt_proj.bias", VECTOR, {inner}),
		MX_WEIGHT_SPEC("A_log", VECTOR, {inner, states}),
		MX_WEIGHT_SPEC("D", VECTOR, {inner}),
		MX_WEIGHT_SPEC("conv1d.bias", VECTOR, {inner}),
	};
	specs[n++] = mx_weight_spec_rows(in, first, own);           /* x */
	specs[n++] = mx_weight_spec_rows(in, inner + first, own);   /* z */
	specs[n++] = mx_weight_spec_rows(x, 0, rank);               /* dt */
	specs[n++] = mx_weight_spec_rows(x, rank, states);          /* B */
	specs[n++] = mx_weight_spec_rows(x, rank + states, states); /* C */
	specs[n++] =
		mx_weight_spec_part(MX_WEIGHT_SPEC("dt_proj.weight", MATRIX, {inner, rank}), 0, first, own);
	specs[n++] = mx_weight_spec_part(out, 1, first, own);
	for (size_t i = 0; i < 4 + (size_t)p.conv_bias; i++)
		specs[n++] = mx_weight_spec_part(of_channels[i], 0, first, own);
	if (p.norms == MAMBA1_WEIGHTED) {
		specs[n++] = MX_WEIGHT_SPEC("dt_layernorm.weight", VECTOR, {rank});
		specs[n++] = MX_WEIGHT_SPEC("b_layernorm.weight", VECTOR, {states});
		specs[n++] = MX_WEIGHT_SPEC("c_layernorm.weight", VECTOR, {states});
	}
	if (p.bias)
		specs[n++] = MX_WEIGHT_SPEC("in_proj.bias", VECTOR, {2 * inner});
	if (p.out_bias)
		specs[n++] = MX_WEIGHT_SPEC("out_proj.bias", VECTOR, {width});
	*out_n = n;
	return MX_OK;
}

void mamba1_params_take(const struct mamba1_params *p, const void *const *w,
                        struct mamba1_weights *out)
{
	size_t n = 11;
	*out = (struct mamba1_weights){
		.x = w[0],
		.z = w[1],
		.low = w[2],
		.b = w[3],
		.c = w[4],
		.dt = w[5],
		.out = w[6],
		.conv = w[MAMBA1_CONV],
		.dt_bias = w[8],
		.skip = w[10],
	};
	if (p->conv_bias)
		out->conv_bias = w[n++];
	if (p->norms == MAMBA1_WEIGHTED) {
		out->norm_dt = w[n++];
		out->norm_b = w[n++];
		out->norm_c = w[n++];
	}
	if (p->bias) {
		out->x_bias = (const float *)w[n++] + p->first;
		out->z_bias = out->x_bias + p->all_inner;
	}
	if (p->out_bias)
		out->out_bias = w[n++];
}
