/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba of the first version, Falcon Mamba, and Jamba. */
#include <stdio.h>

#include "model/gguf/arch.h"

static const struct mx_gguf_rename mamba[] = {
	{.from = "attn_norm", .to = "norm"},
	{.from = "ssm_in", .to = "mixer.in_proj"},
	{.from = "ssm_conv1d.weight", .to = "mixer.conv1d.weight", .form = MX_GGUF_CONV, .whole = true},
	{.from = "ssm_conv1d.bias", .to = "mixer.conv1d.bias", .whole = true},
	{.from = "ssm_x", .to = "mixer.x_proj"},
	{.from = "ssm_dt", .to = "mixer.dt_proj"},
	{.from = "ssm_a", .to = "mixer.A_log", .form = MX_GGUF_MINUS_EXP_ALL, .whole = true},
	{.from = "ssm_d", .to = "mixer.D", .whole = true},
	{.from = "ssm_out", .to = "mixer.out_proj"},
	{NULL},
};

static const struct mx_gguf_rename jamba[] = {
	{.from = "ssm_in", .to = "mamba.in_proj"},
	{.from = "ssm_conv1d.weight", .to = "mamba.conv1d.weight", .form = MX_GGUF_CONV, .whole = true},
	{.from = "ssm_conv1d.bias", .to = "mamba.conv1d.bias", .whole = true},
	{.from = "ssm_x", .to = "mamba.x_proj"},
	{.from = "ssm_dt", .to = "mamba.dt_proj"},
	{.from = "ssm_a", .to = "mamba.A_log", .form = MX_GGUF_MINUS_EXP_ALL, .whole = true},
	{.from = "ssm_d", .to = "mamba.D", .whole = true},
	{.from = "ssm_dt_norm", .to = "mamba.dt_layernorm"},
	{.from = "ssm_b_norm", .to = "mamba.b_layernorm"},
	{.from = "ssm_c_norm", .to = "mamba.c_layernorm"},
	{.from = "ssm_out", .to = "mamba.out_proj"},
	{.from = "ffn_norm", .to = "pre_ff_layernorm"},
	{.from = "ffn_gate", .to = "feed_forward.gate_proj"},
	{.from = "ffn_up", .to = "feed_forward.up_proj"},
	{.from = "ffn_down", .to = "feed_forward.down_proj"},
	{.from = "ffn_gate_inp", .to = "feed_forward.router"},
	{.from = "ffn_gate_exps", .to = "feed_forward.experts.%u.gate_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "feed_forward.experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "feed_forward.experts.%u.down_proj", .form = MX_GGUF_LIST},
	{NULL},
};

static const struct mx_gguf_rename *const mamba_names[] = {mamba, NULL};
static const struct mx_gguf_rename *const jamba_names[] = {jamba, mx_gguf_attention_names, NULL};

/* Returns ssm.inner_size over the width. */
static int64_t expansion(struct mx_gguf_maker *m)
{
	int64_t inner = mx_gguf_need_int(m, "ssm.inner_size");
	int64_t width = mx_gguf_need_int(m, "embedding_length");
	if (!m->status && (width < 1 || inner % width))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "ssm.inner_size %lld is no multiple of embedding_length %lld",
		               (long long)inner, (long long)width);
	return m->status ? 1 : inner / width;
}

/* Falcon Mamba norms dt, B and C, by the epsilon of its norms in llama.cpp. */
static void mamba_config(struct mx_gguf_maker *m)
{
	double eps = mx_gguf_get_float(m, "attention.layer_norm_rms_epsilon", 1e-5);
	if (mx_gguf_get_bool(m, "ssm.dt_b_c_rms", false))
		mx_gguf_set_string(m, "model_type", "falcon_mamba");
	mx_gguf_set_int(m, "expand", expansion(m));
	mx_gguf_set_int(m, "state_size", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "conv_kernel", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "time_step_rank", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_float(m, "layer_norm_epsilon", eps);
	mx_gguf_set_float(m, "mixer_rms_eps", eps);
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "ssm_in.bias"));
	mx_gguf_set_bool(m, "use_conv_bias", mx_gguf_a_layer_has(m, "ssm_conv1d.bias"));
}

/* Says the layers that have the tensor as offset and period, which they must have. */
static void rhythm(struct mx_gguf_maker *m, const char *marks, const char *period_key,
                   const char *offset_key)
{
	int64_t offset = -1, period = 0;
	for (int64_t i = 0; !m->status && i < m->layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%lld.%s", (long long)i, marks);
		bool has = mx_gguf_has_tensor(m, name);
		if (has && offset < 0)
			offset = i;
		else if (has && !period)
			period = i - offset;
		else if (has != (offset >= 0 && period && (i - offset) % period == 0) && period)
			mx_gguf_refuse(m, MX_E_UNSUPPORTED, "layers with %s do not come regularly", marks);
	}
	if (!period) /* one such layer, or none */
		period = m->layers + 1;
	if (period <= offset)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "layers with %s do not come regularly", marks);
	mx_gguf_set_int(m, period_key, period);
	mx_gguf_set_int(m, offset_key, offset < 0 ? m->layers : offset);
}

static void jamba_config(struct mx_gguf_maker *m)
{
	rhythm(m, "attn_q.weight", "attn_layer_period", "attn_layer_offset");
	rhythm(m, "ffn_gate_inp.weight", "expert_layer_period", "expert_layer_offset");
	if (mx_gguf_get_int(m, "expert_count", 0) > 0)
		mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	else
		mx_gguf_set_int(m, "num_experts", 1);
	mx_gguf_copy_int(m, "expert_used_count", "num_experts_per_tok");
	mx_gguf_set_int(m, "mamba_expand", expansion(m));
	mx_gguf_set_int(m, "mamba_d_state", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "mamba_d_conv", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "mamba_dt_rank", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_bool(m, "mamba_proj_bias", mx_gguf_a_layer_has(m, "ssm_in.bias"));
	mx_gguf_set_bool(m, "mamba_conv_bias", mx_gguf_a_layer_has(m, "ssm_conv1d.bias"));
}

const struct mx_gguf_arch mx_gguf_mamba_archs[] = {
	{"mamba", "mamba", .also = "falcon_mamba", .embed = "backbone.embeddings",
     .final_norm = "backbone.norm_f", .lm_head = "lm_head", .layers = "backbone.layers.",
     .renames = mamba_names, .config = mamba_config},
	{"jamba", "jamba", .embed = "model.embed_tokens", .final_norm = "model.final_layernorm",
     .lm_head = "lm_head", .layers = "model.layers.", .renames = jamba_names,
     .config = jamba_config, .hybrid = true},
	{NULL},
};
