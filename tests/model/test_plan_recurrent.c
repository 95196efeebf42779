/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for recurrent models: the meaning of each
 * dialect's keys, and the message for what is not supported.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

/* ---- Mamba-2 ---- */

/* As transformers 5 writes it. */
static const char mamba2[] =
	"{\"architectures\":[\"Mamba2ForCausalLM\"],\"model_type\":\"mamba2\",\"hidden_size\":64,"
	"\"num_hidden_layers\":2,\"num_heads\":8,\"head_dim\":16,\"state_size\":32,\"n_groups\":2,"
	"\"conv_kernel\":4,\"expand\":2,\"layer_norm_epsilon\":1e-5,\"vocab_size\":100,"
	"\"use_bias\":false,\"use_conv_bias\":true,\"hidden_act\":\"silu\",\"chunk_size\":256,"
	"\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}],\"time_step_rank\":4,"
	"\"residual_in_fp32\":true,\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* As state-spaces/mamba2-130m has it, smaller. */
static const char raw[] =
	"{\"d_model\":64,\"d_intermediate\":0,\"n_layer\":2,\"vocab_size\":101,"
	"\"ssm_cfg\":{\"layer\":\"Mamba2\"},\"attn_layer_idx\":[],\"attn_cfg\":{},\"rms_norm\":true,"
	"\"residual_in_fp32\":true,\"fused_add_norm\":true,\"pad_vocab_size_multiple\":16,"
	"\"tie_embeddings\":true}";

/* As flash-linear-attention writes it. */
static const char fla[] =
	"{\"model_type\":\"mamba2\",\"hidden_size\":64,\"num_hidden_layers\":2,\"head_dim\":32,"
	"\"state_size\":16,\"norm_eps\":1e-6,\"vocab_size\":100,\"expand\":2,\"conv_kernel\":4,"
	"\"dt_limit\":[0.25,{\"__float__\":\"Infinity\"}],\"rmsnorm\":true,"
	"\"norm_before_gate\":true,\"D_has_hdim\":false}";

static void mamba2_has_one_block_a_layer(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(mamba2, "{}");
	assert_string_equal(p->family, "mamba2");
	assert_int_equal(p->width, 64);
	assert_int_equal(p->vocab, 100);
	assert_int_equal(p->n_layers, 2);
	assert_int_equal(p->max_context, 1 << 20);
	assert_true(p->norm_eps == 1e-5f);
	assert_true(p->embed_scale == 1 && p->logit_scale == 1);
	assert_string_equal(p->embed, "backbone.embeddings.weight");
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_string_equal(p->final_norm, "backbone.norm_f.weight");
	assert_string_equal(p->layer_prefix, "backbone.layers.");
	assert_int_equal(p->n_eos, 1);
	assert_int_equal(p->eos[0], 2);
	assert_int_equal(p->bos, -1);

	const struct mx_plan_layer *l = &p->layers[1];
	assert_int_equal(l->n_blocks, 1);
	assert_int_equal(l->blocks[0].kind, MX_BLOCK_MIXER);
	assert_int_equal(l->blocks[0].n_mixers, 1);
	assert_true(l->blocks[0].residual_scale == 1);
	assert_string_equal(l->blocks[0].norm, "backbone.layers.1.norm.weight");
	assert_string_equal(l->blocks[0].mixers[0].mixer, "mamba");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "backbone.layers.1.mixer.");

	assert_int_equal(get_int(p, 0, "num_heads"), 8);
	assert_int_equal(get_int(p, 0, "head_dim"), 16);
	assert_int_equal(get_int(p, 0, "state_size"), 32);
	assert_int_equal(get_int(p, 0, "n_groups"), 2);
	assert_int_equal(get_int(p, 0, "conv_kernel"), 4);
	assert_int_equal(get_int(p, 0, "use_bias"), 0);
	assert_int_equal(get_int(p, 0, "use_conv_bias"), 1);
	assert_int_equal(get_int(p, 0, "rms_norm"), 1);
	assert_int_equal(get_int(p, 0, "norm_before_gate"), 0);
	assert_true(mx_param_float(params_of(p, 1), "layer_norm_epsilon", 0) == 1e-5f);
	const struct mx_param *limit = mx_param_find(params_of(p, 1), "time_step_limit");
	assert_int_equal(limit->n, 2);
	assert_true(limit->v[0] == 0 && limit->v[1] == INFINITY);
	mx_plan_destroy(p);
}

static void mamba2_keys_are_obeyed(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		mamba2, "{\"time_step_limit\":[0.5,2],\"use_bias\":true,\"use_conv_bias\":false,"
				"\"tie_word_embeddings\":true,\"layer_norm_epsilon\":1e-3,\"conv_kernel\":2}");
	const struct mx_param *limit = mx_param_find(params_of(p, 0), "time_step_limit");
	assert_true(limit->v[0] == 0.5 && limit->v[1] == 2);
	assert_int_equal(get_int(p, 0, "use_bias"), 1);
	assert_int_equal(get_int(p, 0, "use_conv_bias"), 0);
	assert_int_equal(get_int(p, 0, "conv_kernel"), 2);
	assert_string_equal(p->lm_head, "backbone.embeddings.weight");
	assert_true(p->norm_eps == 1e-3f);
	assert_true(mx_param_float(params_of(p, 0), "layer_norm_epsilon", 0) == 1e-3f);
	mx_plan_destroy(p);

	/* transformers' defaults; a longest sequence if the config has one */
	p = plan_of(mamba2, "{\"num_heads\":\"-\",\"n_groups\":\"-\",\"state_size\":\"-\","
	                    "\"conv_kernel\":\"-\",\"expand\":\"-\",\"time_step_limit\":\"-\","
	                    "\"layer_norm_epsilon\":\"-\",\"max_position_embeddings\":4096}");
	assert_int_equal(get_int(p, 0, "num_heads"), 8);
	assert_int_equal(get_int(p, 0, "n_groups"), 8);
	assert_int_equal(get_int(p, 0, "state_size"), 128);
	assert_int_equal(get_int(p, 0, "conv_kernel"), 4);
	assert_true(p->norm_eps == 1e-5f);
	assert_int_equal(p->max_context, 4096);
	mx_plan_destroy(p);

	/* Mamba-Codestral has this key, and nothing obeys it. */
	p = plan_of(mamba2, "{\"norm_before_gate\":true,\"rms_norm\":true}");
	assert_int_equal(get_int(p, 0, "norm_before_gate"), 0);
	mx_plan_destroy(p);
}

static void mamba2_broken_configs_are_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"num_hidden_layers\":\"-\"}", MX_E_INVALID, "num_hidden_layers: is missing"},
		{"{\"num_heads\":0}", MX_E_RANGE, "num_heads: 0 is outside"},
		{"{\"num_heads\":4}", MX_E_RANGE,
	     "head_dim: 4 heads of 16 are not the mixer's width of 128"},
		{"{\"head_dim\":24,\"num_heads\":\"-\"}", MX_E_RANGE, "head_dim: 5 heads of 24 are not"},
		{"{\"expand\":3}", MX_E_RANGE, "head_dim: 8 heads of 16 are not the mixer's width of 192"},
		{"{\"expand\":0}", MX_E_RANGE, "expand: 0 is outside"},
		{"{\"n_groups\":3}", MX_E_RANGE, "n_groups: 3 does not divide the 8 heads"},
		{"{\"state_size\":0}", MX_E_RANGE, "state_size: 0 is outside"},
		{"{\"conv_kernel\":0}", MX_E_RANGE, "conv_kernel: 0 is outside"},
		{"{\"use_bias\":1}", MX_E_INVALID, "use_bias: must be true or false"},
		{"{\"time_step_limit\":[1]}", MX_E_RANGE, "time_step_limit: must be two numbers"},
		{"{\"time_step_limit\":0.1}", MX_E_RANGE, "time_step_limit: must be two numbers"},
		{"{\"time_step_limit\":[-1,1]}", MX_E_RANGE, "time_step_limit: must be two numbers"},
		{"{\"time_step_limit\":[1,0.5]}", MX_E_RANGE, "time_step_limit: must be two numbers"},
		{"{\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]}", MX_E_RANGE,
	     "time_step_limit: must be two numbers"},
		{"{\"time_step_limit\":[0,\"1\"]}", MX_E_RANGE, "time_step_limit: must be two numbers"},
		{"{\"rms_norm\":false}", MX_E_UNSUPPORTED, "rms_norm: false is not supported"},
		{"{\"hidden_act\":\"gelu\"}", MX_E_UNSUPPORTED, "hidden_act: 'gelu' is not silu"},
	};
	check_refused(mamba2, cases, sizeof cases / sizeof *cases);
}

static void mamba_ssm_configs_are_recognised(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(raw, "{}");
	assert_string_equal(p->family, "mamba2");
	assert_int_equal(p->width, 64);
	assert_int_equal(p->vocab, 112); /* 101 up to a multiple of 16 */
	assert_int_equal(p->n_layers, 2);
	assert_int_equal(p->max_context, 1 << 20);
	assert_true(p->norm_eps == 1e-5f);
	assert_string_equal(p->embed, "backbone.embedding.weight");
	assert_string_equal(p->lm_head, "backbone.embedding.weight");
	assert_string_equal(p->final_norm, "backbone.norm_f.weight");
	assert_string_equal(p->layers[1].blocks[0].norm, "backbone.layers.1.norm.weight");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].prefix, "backbone.layers.1.mixer.");
	assert_int_equal(p->n_eos, 1);
	assert_int_equal(p->eos[0], 0);
	assert_int_equal(p->bos, 0);
	assert_int_equal(get_int(p, 0, "num_heads"), 2);
	assert_int_equal(get_int(p, 0, "head_dim"), 64);
	assert_int_equal(get_int(p, 0, "state_size"), 128);
	assert_int_equal(get_int(p, 0, "n_groups"), 1);
	assert_int_equal(get_int(p, 0, "rms_norm"), 1);
	assert_int_equal(get_int(p, 0, "norm_before_gate"), 0);
	assert_true(mx_param_float(params_of(p, 0), "layer_norm_epsilon", 0) == 1e-5f);
	mx_plan_destroy(p);

	p = plan_of(raw,
	            "{\"tie_embeddings\":false,\"vocab_size\":96,\"eos_token_id\":7,"
	            "\"ssm_cfg\":{\"d_state\":16,\"d_conv\":3,\"expand\":1,\"headdim\":8,"
	            "\"ngroups\":4,\"rmsnorm\":false,\"norm_before_gate\":true,\"bias\":true,"
	            "\"conv_bias\":false,\"dt_limit\":[0.125,0.5],\"d_ssm\":null,\"chunk_size\":256}}");
	assert_int_equal(p->vocab, 96);
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_int_equal(p->eos[0], 7);
	assert_int_equal(get_int(p, 0, "num_heads"), 8);
	assert_int_equal(get_int(p, 0, "state_size"), 16);
	assert_int_equal(get_int(p, 0, "conv_kernel"), 3);
	assert_int_equal(get_int(p, 0, "n_groups"), 4);
	assert_int_equal(get_int(p, 0, "rms_norm"), 0);
	assert_int_equal(get_int(p, 0, "norm_before_gate"), 1);
	assert_int_equal(get_int(p, 0, "use_bias"), 1);
	assert_int_equal(get_int(p, 0, "use_conv_bias"), 0);
	assert_true(mx_param_find(params_of(p, 0), "time_step_limit")->v[0] == 0.125);
	mx_plan_destroy(p);
}

static void mamba_ssm_models_of_other_layers_are_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"ssm_cfg\":{\"layer\":\"-\"}}", MX_E_UNSUPPORTED,
	     "ssm_cfg.layer: 'Mamba1' is not Mamba2"},
		{"{\"ssm_cfg\":{\"layer\":\"Mamba3\"}}", MX_E_UNSUPPORTED, "'Mamba3' is not Mamba2"},
		{"{\"ssm_cfg\":\"-\"}", MX_E_INVALID, "model_type: is missing"},
		{"{\"attn_layer_idx\":[9,18]}", MX_E_UNSUPPORTED, "attn_layer_idx: attention layers"},
		{"{\"d_intermediate\":512}", MX_E_UNSUPPORTED, "d_intermediate: must be 0, not 512"},
		{"{\"rms_norm\":false}", MX_E_UNSUPPORTED, "rms_norm: false (LayerNorm)"},
		{"{\"n_layer\":\"-\"}", MX_E_INVALID, "n_layer: is missing"},
		{"{\"d_model\":0}", MX_E_RANGE, "d_model: 0 is outside"},
		{"{\"d_model\":65}", MX_E_RANGE,
	     "ssm_cfg.headdim: 2 heads of 64 are not the mixer's width of 130"},
		{"{\"pad_vocab_size_multiple\":0}", MX_E_RANGE, "pad_vocab_size_multiple: 0 is outside"},
		{"{\"ssm_cfg\":{\"d_ssm\":64}}", MX_E_UNSUPPORTED, "ssm_cfg.d_ssm: 64 is not supported"},
		{"{\"ssm_cfg\":{\"D_has_hdim\":true}}", MX_E_UNSUPPORTED, "ssm_cfg.D_has_hdim: true"},
		{"{\"ssm_cfg\":{\"d_sate\":64}}", MX_E_INVALID, "ssm_cfg.d_sate: unknown key"},
		{"{\"ssm_cfg\":{\"ngroups\":3}}", MX_E_RANGE, "ssm_cfg.ngroups: 3 does not divide"},
		{"{\"ssm_cfg\":{\"dt_limit\":[2,1]}}", MX_E_RANGE, "ssm_cfg.dt_limit: must be two"},
	};
	check_refused(raw, cases, sizeof cases / sizeof *cases);
}

static void flash_linear_attention_has_its_own_keys(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(fla, "{}");
	assert_true(p->norm_eps == 1e-6f);
	assert_int_equal(get_int(p, 0, "num_heads"), 4);
	assert_int_equal(get_int(p, 0, "n_groups"), 1);
	assert_int_equal(get_int(p, 0, "norm_before_gate"), 1);
	assert_true(mx_param_float(params_of(p, 0), "layer_norm_epsilon", 0) == 1e-6);
	assert_true(mx_param_find(params_of(p, 0), "time_step_limit")->v[0] == 0.25);
	assert_string_equal(p->embed, "backbone.embeddings.weight");
	mx_plan_destroy(p);
	static const struct refused cases[] = {
		{"{\"D_has_hdim\":true}", MX_E_UNSUPPORTED, "D_has_hdim: true is not supported"},
		{"{\"dt_limit\":[]}", MX_E_RANGE, "dt_limit: must be two numbers"},
	};
	check_refused(fla, cases, sizeof cases / sizeof *cases);
}

/* ---- flash-linear-attention's own models ---- */

/* As fla-hub/gla-1.3B-100B has it, smaller. */
static const char gla[] =
	"{\"architectures\":[\"GLAForCausalLM\"],\"model_type\":\"gla\",\"attn_mode\":\"chunk\","
	"\"bos_token_id\":1,\"clamp_min\":null,\"conv_size\":4,\"elementwise_affine\":true,"
	"\"eos_token_id\":2,\"expand_k\":0.5,\"expand_v\":1,\"fuse_cross_entropy\":true,"
	"\"fuse_norm\":true,\"hidden_act\":\"swish\",\"hidden_ratio\":4,\"hidden_size\":64,"
	"\"intermediate_size\":null,\"max_position_embeddings\":2048,\"norm_eps\":1e-5,"
	"\"num_heads\":4,\"num_hidden_layers\":3,\"share_conv_kernel\":false,"
	"\"tie_word_embeddings\":false,\"use_gk\":true,\"use_gv\":false,\"use_output_gate\":true,"
	"\"use_short_conv\":false,\"vocab_size\":100}";

static void fla_layers_are_a_mixer_and_a_feed_forward(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(gla, "{}");
	assert_string_equal(p->family, "gla");
	assert_int_equal(p->n_layers, 3);
	assert_int_equal(p->max_context, 2048);
	assert_true(p->norm_eps == 1e-5f);
	assert_string_equal(p->embed, "model.embeddings.weight");
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_string_equal(p->final_norm, "model.norm.weight");

	const struct mx_plan_layer *l = &p->layers[2];
	assert_int_equal(l->n_blocks, 2);
	assert_string_equal(l->blocks[0].norm, "model.layers.2.attn_norm.weight");
	assert_int_equal(l->blocks[0].n_mixers, 1);
	assert_string_equal(l->blocks[0].mixers[0].mixer, "gla");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "model.layers.2.attn.");
	assert_string_equal(l->blocks[1].norm, "model.layers.2.mlp_norm.weight");
	assert_string_equal(l->blocks[1].mlp.gate, "model.layers.2.mlp.gate_proj.weight");
	assert_int_equal(l->blocks[1].mlp.width, 256); /* 64 * 4 * 2/3 = 170, up to 256 */
	assert_false(l->blocks[1].mlp.bias);

	const struct mx_params *q = params_of(p, 0);
	assert_string_equal(mx_param_string(q, "variant", ""), "gla");
	assert_int_equal(get_int(p, 0, "num_heads"), 4);
	assert_int_equal(get_int(p, 0, "use_output_gate"), 1);
	assert_true(mx_param_float(q, "expand_k", 0) == 0.5);
	assert_true(mx_param_float(q, "norm_eps", 0) == 1e-5);
	assert_null(mx_param_find(q, "clamp_min"));
	assert_null(mx_param_find(q, "attn_mode"));
	assert_null(mx_param_find(q, "vocab_size"));
	mx_plan_destroy(p);

	p = plan_of(gla, "{\"tie_word_embeddings\":true,\"intermediate_size\":96}");
	assert_string_equal(p->lm_head, "model.embeddings.weight");
	assert_int_equal(p->layers[0].blocks[1].mlp.width, 96);
	mx_plan_destroy(p);
}

static void fla_feed_forwards_have_a_rule(void **state)
{
	(void)state;
	static const struct {
		const char *changes;
		uint32_t width;
	} cases[] = {
		{"{\"hidden_size\":2048}", 5632}, /* gla-1.3B */
		{"{\"hidden_size\":2048,\"hidden_ratio\":\"-\"}", 5632},
		{"{\"hidden_size\":2048,\"hidden_ratio\":3}", 4096}, /* exactly */
		{"{\"model_type\":\"retnet\",\"hidden_size\":2048,\"hidden_ratio\":\"-\"}", 2816},
		{"{\"model_type\":\"retnet\",\"hidden_size\":2048,\"hidden_ratio\":null}", 5632},
		{"{\"model_type\":\"retnet\",\"hidden_size\":2048,\"hidden_ratio\":2}", 2816},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = plan_of(gla, cases[i].changes);
		if (p->layers[0].blocks[1].mlp.width != cases[i].width)
			fail_msg("%s: %u, not %u", cases[i].changes, p->layers[0].blocks[1].mlp.width,
			         cases[i].width);
		mx_plan_destroy(p);
	}
}

static void fla_model_types_are_variants(void **state)
{
	(void)state;
	static const char *const types[] = {"delta_net", "gated_deltanet", "gla",   "hgrn", "hgrn2",
	                                    "kda",       "linear_attn",    "retnet"};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		char changes[256];
		snprintf(changes, sizeof changes,
		         "{\"model_type\":\"%s\",\"lower_bound\":-5,\"qk_norm\":\"sum\","
		         "\"norm_feature_map\":true}",
		         types[i]);
		struct mx_plan *p = plan_of(gla, changes);
		const struct mx_params *q = params_of(p, 1);
		assert_string_equal(p->family, types[i]);
		assert_string_equal(mx_param_string(q, "variant", ""), types[i]);
		assert_string_equal(mx_param_string(q, "qk_norm", ""), "sum");
		assert_int_equal(mx_param_int(q, "lower_bound", 0), -5);
		assert_int_equal(mx_param_int(q, "norm_feature_map", 0), 1);
		/* HGRN2's output norm does not get it. */
		assert_int_equal(!mx_param_find(q, "norm_eps"), !strcmp(types[i], "hgrn2"));
		mx_plan_destroy(p);
	}
}

static void fla_layers_may_be_attention(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		gla, "{\"attn\":{\"layers\":[1],\"num_heads\":4,\"num_kv_heads\":2,\"qkv_bias\":true,"
			 "\"window_size\":48,\"rope_theta\":5000.0}}");
	assert_string_equal(p->layers[0].blocks[0].mixers[0].mixer, "gla");
	assert_string_equal(p->layers[2].blocks[0].mixers[0].mixer, "gla");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].mixer, "attention");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].prefix, "model.layers.1.attn.");
	const struct mx_params *q = params_of(p, 1);
	assert_int_equal(mx_param_int(q, "heads", 0), 4);
	assert_int_equal(mx_param_int(q, "kv_heads", 0), 2);
	assert_int_equal(mx_param_int(q, "head_dim", 0), 16);
	assert_int_equal(mx_param_int(q, "window", 0), 48);
	assert_int_equal(mx_param_int(q, "bias", 0), 1);
	assert_int_equal(mx_param_int(q, "o_bias", 1), 0);
	assert_int_equal(mx_param_int(q, "qk_norm", 1), 0);
	assert_true(mx_param_float(q, "scale", 0) == 0.25);
	assert_string_equal(mx_param_string(q, "rope", ""), "default");
	assert_true(mx_param_float(q, "rope_theta", 0) == 5000);
	assert_int_equal(mx_param_int(q, "rope_dim", 0), 16);
	assert_int_equal(mx_param_find(q, "rope_inv_freq")->n, 8);
	mx_plan_destroy(p);

	/* Several kinds; what a window_size of the top level would mean, nobody says. */
	p = plan_of(gla, "{\"window_size\":3,\"attn\":[{\"layers\":[0],\"num_heads\":8},"
	                 "{\"layers\":[2],\"num_heads\":2,\"num_kv_heads\":null,"
	                 "\"window_size\":null}]}");
	assert_int_equal(mx_param_int(params_of(p, 0), "heads", 0), 8);
	assert_int_equal(mx_param_int(params_of(p, 0), "kv_heads", 0), 8);
	assert_int_equal(mx_param_int(params_of(p, 0), "bias", 1), 0);
	assert_string_equal(p->layers[1].blocks[0].mixers[0].mixer, "gla");
	assert_int_equal(mx_param_int(params_of(p, 2), "heads", 0), 2);
	assert_int_equal(mx_param_int(params_of(p, 2), "window", 1), 0);
	assert_true(mx_param_float(params_of(p, 2), "rope_theta", 0) == 10000);
	mx_plan_destroy(p);

	p = plan_of(gla, "{\"attn\":null}");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].mixer, "gla");
	mx_plan_destroy(p);
}

static void fla_broken_configs_are_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"num_hidden_layers\":\"-\"}", MX_E_INVALID, "num_hidden_layers: is missing"},
		{"{\"hidden_act\":\"powlu\"}", MX_E_UNSUPPORTED, "hidden_act: 'powlu' is not silu"},
		{"{\"attnres_block_size\":2}", MX_E_UNSUPPORTED, "attnres_block_size: attention over"},
		{"{\"norm_first\":true}", MX_E_UNSUPPORTED, "norm_first: true is not supported"},
		{"{\"share_conv_kernel\":true}", MX_E_UNSUPPORTED, "share_conv_kernel: true is not"},
		{"{\"norm_eps\":2}", MX_E_RANGE, "norm_eps: 2 is outside"},
		{"{\"hidden_ratio\":0}", MX_E_RANGE, "hidden_ratio: 0 is outside"},
		{"{\"hidden_size\":1048576,\"hidden_ratio\":1000}", MX_E_RANGE,
	     "hidden_ratio: 1000 makes a feed-forward"},
		{"{\"num_heads\":{}}", MX_E_INVALID, "num_heads: must be a boolean, a number"},
		{"{\"attn\":7}", MX_E_INVALID, "attn: must be an object"},
		{"{\"attn\":[7]}", MX_E_INVALID, "attn[0]: must be an object"},
		{"{\"attn\":{}}", MX_E_INVALID, "attn.num_heads: is missing"},
		{"{\"attn\":{\"num_heads\":4}}", MX_E_INVALID, "attn.layers: must be a list"},
		{"{\"attn\":{\"num_heads\":4,\"layers\":[3]}}", MX_E_RANGE,
	     "attn.layers[0]: must be a layer, 0 to 2"},
		{"{\"attn\":{\"num_heads\":4,\"layers\":[0,-1]}}", MX_E_RANGE, "attn.layers[1]: must be"},
		{"{\"attn\":{\"num_heads\":4,\"layers\":[1.5]}}", MX_E_RANGE, "attn.layers[0]: must be"},
		{"{\"attn\":[{\"num_heads\":4,\"layers\":[0]},{\"num_heads\":2,\"layers\":[0]}]}",
	     MX_E_INVALID, "attn[1].layers[0]: layer 0 is listed twice"},
		{"{\"attn\":{\"num_heads\":5,\"layers\":[]}}", MX_E_RANGE,
	     "attn.num_heads: hidden_size 64 in 5 heads"},
		{"{\"attn\":{\"num_heads\":4,\"num_kv_heads\":3,\"layers\":[]}}", MX_E_RANGE,
	     "attn.num_kv_heads: 3 does not divide"},
		{"{\"attn\":{\"num_heads\":4,\"window_size\":0,\"layers\":[]}}", MX_E_RANGE,
	     "attn.window_size: 0 is outside"},
		{"{\"attn\":{\"num_heads\":4,\"qkv_bias\":1,\"layers\":[]}}", MX_E_INVALID,
	     "attn.qkv_bias: must be true or false"},
		{"{\"attn\":{\"num_heads\":4,\"rope_theta\":0,\"layers\":[]}}", MX_E_RANGE,
	     "attn.rope_theta: 0 is outside"},
		{"{\"attn\":{\"num_heads\":64,\"layers\":[]}}", MX_E_RANGE, "head_dim: rope over 1"},
	};
	check_refused(gla, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mamba2_has_one_block_a_layer),
		cmocka_unit_test(mamba2_keys_are_obeyed),
		cmocka_unit_test(mamba2_broken_configs_are_refused),
		cmocka_unit_test(mamba_ssm_configs_are_recognised),
		cmocka_unit_test(mamba_ssm_models_of_other_layers_are_refused),
		cmocka_unit_test(flash_linear_attention_has_its_own_keys),
		cmocka_unit_test(fla_layers_are_a_mixer_and_a_feed_forward),
		cmocka_unit_test(fla_feed_forwards_have_a_rule),
		cmocka_unit_test(fla_model_types_are_variants),
		cmocka_unit_test(fla_layers_may_be_attention),
		cmocka_unit_test(fla_broken_configs_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
