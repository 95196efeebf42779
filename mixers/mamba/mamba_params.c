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
	return MX_OK;
}

/* Takes the rank's share of the heads, and the groups of B and C that belong to them. */
static mx_status take_share(const struct mx_layer_desc *layer, struct mamba_params *p,
                            struct mx_err *err)
{
	const uint32_t heads = p->heads, groups = p->groups;
	struct mx_group_share own;
	if (!mx_share_of_groups(groups, heads / groups, false, layer->rank, layer->ranks, &own))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "mamba: %u heads in %u groups cannot be split over %u ranks", heads,
		                     groups, layer->ranks);
	p->all_heads = heads;
	p->all_groups = groups;
	p->shared = groups < layer->ranks;
	p->heads = own.members.n;
	p->groups = own.groups.n;
	p->first_head = own.members.first;
	p->first_group = own.groups.first;
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
		status = take_share(layer, &p, err);
	if (status == MX_OK)
		status = read_limits(in, &p, err);
	if (status == MX_OK)
		status = read_flags(in, &p, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "mamba", "use_out_bias", p.bias, &p.out_bias, err);
	if (layer->rank)
		p.out_bias = false; /* the first rank's summand has it */
	if (status == MX_OK)
		status = read_multipliers(in, &p, err);
	if (status == MX_OK)
		status = read_epsilon(in, &p, err);
	if (status == MX_OK)
		*out = p;
	return status;
}

/* Rows of in_proj: z, then the channels of the convolution (x, B, C), then dt. */
struct rows {
	uint64_t z, x, b, c, dt, all; /* where each begins; the channels begin with x */
};

static struct rows rows_of(const struct mamba_params *p)
{
	const uint64_t inner = (uint64_t)p->all_heads * p->head_dim;
	const uint64_t bc = (uint64_t)p->all_groups * p->state_size;
	return (struct rows){
		0, inner, 2 * inner, 2 * inner + bc, 2 * inner + 2 * bc, 2 * inner + 2 * bc + p->all_heads};
}

/* True if the rank has a part of the channels only. */
static bool is_share(const struct mamba_params *p)
{
	return p->heads < p->all_heads;
}

/* Returns the channel of the layer that is the rank's channel c. */
static size_t channel_of(const struct mamba_params *p, uint32_t c)
{
	const struct rows r = rows_of(p);
	const uint32_t bc = p->groups * p->state_size;
	const size_t group = (size_t)p->first_group * p->state_size;
	if (c < p->inner)
		return (size_t)p->first_head * p->head_dim + c;
	c -= p->inner;
	return c < bc ? r.b - r.x + group + c : r.c - r.x + group + c - bc;
}

mx_status mamba_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n)
{
	struct mamba_params p;
	mx_status status = mamba_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct rows r = rows_of(&p);
	const uint64_t width = layer->width, taps = p.conv_kernel, inner = r.x, channels = r.dt - r.x;
	const uint64_t h = p.all_heads, from = (uint64_t)p.first_head * p.head_dim;
	const uint64_t bc = (uint64_t)p.groups * p.state_size;
	const uint64_t group = (uint64_t)p.first_group * p.state_size;
	const bool share = is_share(&p);
	size_t n = 0;

	const struct mx_weight_spec in_proj = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {r.all, width});
	const struct mx_weight_spec of_heads[] = {MX_WEIGHT_SPEC("dt_bias", VECTOR, {h}),
	                                          MX_WEIGHT_SPEC("A_log", VECTOR, {h}),
	                                          MX_WEIGHT_SPEC("D", VECTOR, {h})};
	specs[n++] = mx_weight_spec_rows(in_proj, r.z + from, p.inner);
	specs[n++] = mx_weight_spec_rows(in_proj, r.x + from, share ? p.inner : channels);
	specs[n++] = mx_weight_spec_rows(in_proj, r.dt + p.first_head, p.heads);
	specs[n++] = mx_weight_spec_part(MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {width, inner}), 1,
	                                 from, p.inner);
	specs[n++] = MX_WEIGHT_SPEC("conv1d.weight", VECTOR, {channels, 1, taps});
	for (size_t i = 0; i < sizeof of_heads / sizeof *of_heads; i++)
		specs[n++] = mx_weight_spec_part(of_heads[i], 0, p.first_head, p.heads);
	if (p.conv_bias)
		specs[n++] = MX_WEIGHT_SPEC("conv1d.bias", VECTOR, {channels});
	if (p.norm)
		specs[n++] =
			mx_weight_spec_part(MX_WEIGHT_SPEC("norm.weight", VECTOR, {inner}), 0, from, p.inner);
	if (p.bias)
		specs[n++] = MX_WEIGHT_SPEC("in_proj.bias", VECTOR, {r.all});
	if (p.out_bias)
		specs[n++] = MX_WEIGHT_SPEC("out_proj.bias", VECTOR, {width});
	if (share) {
		specs[n++] = mx_weight_spec_rows(in_proj, r.b + group, bc);
		specs[n++] = mx_weight_spec_rows(in_proj, r.c + group, bc);
	}
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

/* Makes the taps and biases of the rank's channels. The taps are multiplied instead of their inputs
 * x, B and C, if there are multipliers. */
static void own_channels(const struct mamba_params *p, const float *weight, const float *bias,
                         struct mamba_weights *w)
{
	const uint32_t bc = p->groups * p->state_size, taps = p->conv_kernel;
	for (uint32_t c = 0; c < p->channels; c++) {
		const uint32_t part = c < p->inner ? 1 : c < p->inner + bc ? 2 : 3;
		const double factor = p->multipliers ? p->multipliers[part] : 1;
		const size_t from = channel_of(p, c);
		for (uint32_t i = 0; w->own_conv && i < taps; i++)
			w->own_conv[c * taps + i] = (float)((double)weight[from * taps + i] * factor);
		if (w->own_conv_bias)
			w->own_conv_bias[c] = bias[from];
	}
}

/* Points to the rank's parts of in_proj's bias. */
static void take_in_bias(const struct mamba_params *p, const float *bias, struct mamba_weights *w)
{
	const struct rows r = rows_of(p);
	const size_t from = (size_t)p->first_head * p->head_dim;
	const size_t group = (size_t)p->first_group * p->state_size;
	w->b_z = bias + r.z + from;
	w->b_xbc = bias + r.x + from;
	w->b_b = bias + r.b + group;
	w->b_c = bias + r.c + group;
}

static mx_status alloc_own(const struct mamba_params *p, struct mamba_weights *w)
{
	const bool convs = p->multipliers || is_share(p), biases = p->conv_bias && is_share(p);
	w->a = calloc(p->heads, sizeof(float));
	w->b_dt = calloc(p->heads, sizeof(float));
	if (convs)
		w->own_conv = calloc((size_t)p->channels * p->conv_kernel, sizeof(float));
	if (biases)
		w->own_conv_bias = calloc(p->channels, sizeof(float));
	return w->a && w->b_dt && (w->own_conv || !convs) && (w->own_conv_bias || !biases) ? MX_OK
	                                                                                   : MX_E_NOMEM;
}

mx_status mamba_weights_take(const struct mamba_params *p, const struct mx_mixer_init *init,
                             struct mamba_weights *out)
{
	const void *const *from = init->weights;
	const float *const *host = init->host_vectors;
	const float *in_bias = NULL, *conv_bias = NULL;
	struct mamba_weights w = {.z = from[0], .xbc = from[1], .dt = from[2], .out = from[3]};
	size_t n = 8;

	mx_status status = alloc_own(p, &w);
	*out = w;
	if (status != MX_OK)
		return status;
	w.conv = from[4];
	w.d = from[7];
	if (p->conv_bias) {
		conv_bias = host[n];
		w.conv_bias = from[n++];
	}
	if (p->norm)
		w.norm = from[n++];
	if (p->bias) {
		in_bias = host[n] + rows_of(p).dt + p->first_head;
		take_in_bias(p, from[n++], &w);
	}
	if (p->out_bias)
		w.b_out = from[n++];
	if (is_share(p)) {
		w.b = from[n++];
		w.c = from[n++];
	}
	for (uint32_t h = 0; h < p->heads; h++) {
		w.a[h] = (float)-exp((double)host[6][h]);
		w.b_dt[h] = p->multipliers ? (float)((double)host[5][h] / p->multipliers[4]) : host[5][h];
		w.b_dt[h] += in_bias ? in_bias[h] : 0;
	}
	w.mul_z = p->multipliers ? (float)p->multipliers[0] : 1;
	w.mul_dt = p->multipliers ? (float)p->multipliers[4] : 1;
	if (w.own_conv)
		own_channels(p, host[4], conv_bias, &w);
	*out = w;
	return MX_OK;
}

void mamba_weights_free(struct mamba_weights *w)
{
	free(w->own_conv);
	free(w->own_conv_bias);
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
		.share_group = p->first_group,
		.share_groups = p->norm && p->shared ? p->all_groups : 0,
		.share_dim = mamba_group_dim(p),
		.gate_scale = w->mul_z,
	};
}
