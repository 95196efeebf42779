/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for the attention families beside Llama's: what
 * a config that leaves keys out means, old and new spellings, and what is refused by name. The
 * arithmetic is tested by the golden checkpoints, whose configs say most of their keys.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

/* The least that a config must have; keys that are absent have transformers' defaults. */
#define LEAST(type, layers)                                                                        \
	"{\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":96,"                    \
	"\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,\"vocab_size\":100}"

static double get_float(const struct mx_plan *p, uint32_t layer, const char *name)
{
	return mx_param_float(params_of(p, layer), name, NAN);
}

static const char *get_rope(const struct mx_plan *p, uint32_t layer)
{
	return mx_param_string(params_of(p, layer), "rope", "");
}

static bool has(const char *const *list, const char *name)
{
	for (; list && *list; list++)
		if (!strcmp(*list, name))
			return true;
	return false;
}

static void gemma2_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("gemma2", "3"), "{}");
	const struct mx_plan_block *b = p->layers[1].blocks;
	assert_true(p->norm_plus_one && p->embed_scale_rounds && p->embed_scale == 8);
	assert_true(p->logit_softcap == 30 && p->lm_head == p->embed);
	assert_string_equal(b[0].norm, "model.layers.1.input_layernorm.weight");
	assert_string_equal(b[0].post_norm, "model.layers.1.post_attention_layernorm.weight");
	assert_string_equal(b[1].norm, "model.layers.1.pre_feedforward_layernorm.weight");
	assert_string_equal(b[1].post_norm, "model.layers.1.post_feedforward_layernorm.weight");
	assert_int_equal(b[1].mlp.act, MX_ACT_GELU_TANH);
	assert_non_null(b[1].mlp.gate);
	assert_int_equal(get_int(p, 0, "head_dim"), 256);
	assert_int_equal(get_int(p, 0, "window"), 4096);
	assert_int_equal(get_int(p, 1, "window"), 0);
	assert_true(get_float(p, 0, "softcap") == 50 && get_float(p, 0, "scale") == 1.0 / 16);
	mx_plan_destroy(p);

	/* null is no cap; hidden_act has no effect beside hidden_activation */
	p = plan_of(LEAST("gemma2", "1"),
	            "{\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
	            "\"hidden_act\":\"gelu\",\"hidden_activation\":\"silu\"}");
	assert_true(p->logit_softcap == 0 && get_float(p, 0, "softcap") == 0);
	assert_int_equal(p->layers[0].blocks[1].mlp.act, MX_ACT_SILU);
	mx_plan_destroy(p);
}

static void gemma3_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("gemma3_text", "7"), "{}");
	assert_true(p->logit_softcap == 0 && get_float(p, 0, "softcap") == 0);
	assert_true(has(p->layers[0].blocks[0].mixers[0].plus_one, "q_norm.weight"));
	for (uint32_t i = 0; i < 7; i++) {
		assert_int_equal(get_int(p, i, "window"), i == 5 ? 0 : 4096);
		assert_true(get_float(p, i, "rope_theta") == (i == 5 ? 1e6 : 1e4));
		assert_int_equal(get_int(p, i, "qk_norm"), 1);
	}
	mx_plan_destroy(p);

	/* the old spelling: scaling is that of the full layers */
	p = plan_of(LEAST("gemma3_text", "2"),
	            "{\"sliding_window_pattern\":2,\"sliding_window\":64,\"rope_theta\":5e5,"
	            "\"rope_local_base_freq\":2e4,"
	            "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}");
	assert_string_equal(get_rope(p, 0), "default");
	assert_string_equal(get_rope(p, 1), "linear");
	assert_true(get_float(p, 0, "rope_theta") == 2e4 && get_float(p, 1, "rope_theta") == 5e5);
	mx_plan_destroy(p);
}

static void gemma4_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		LEAST("gemma4_text", "6"),
		"{\"hidden_size_per_layer_input\":0,\"attention_k_eq_v\":true,"
		"\"num_global_key_value_heads\":2,\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
		"\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6}}}");
	assert_true(!p->norm_plus_one && get_float(p, 5, "scale") == 1);
	for (uint32_t i = 0; i < 6; i++) {
		const struct mx_param *freq = mx_param_find(params_of(p, i), "rope_inv_freq");
		assert_int_equal(get_int(p, i, "window"), i == 5 ? 0 : 512);
		assert_int_equal(get_int(p, i, "head_dim"), i == 5 ? 512 : 256);
		assert_int_equal(get_int(p, i, "kv_heads"), i == 5 ? 2 : 4);
		assert_int_equal(get_int(p, i, "k_is_v"), i == 5);
		assert_true(i == 5 ? freq->n == 256 && freq->v[63] > 0 && freq->v[64] == 0
		                   : freq->n == 128 && freq->v[127] > 0);
		assert_non_null(p->layers[i].blocks[1].scalar);
	}
	mx_plan_destroy(p);

	const struct refused cases[] = {
		{"{\"hidden_size_per_layer_input\":0}", MX_E_INVALID, "rope_parameters: is missing"},
		{"{\"vocab_size_per_layer_input\":99}", MX_E_RANGE, "vocab_size_per_layer_input: 99"},
	};
	check_refused(LEAST("gemma4_text", "1"), cases, sizeof cases / sizeof *cases);
}

#define GEMMA4_ROPE                                                                                \
	"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},"                         \
	"\"sliding_attention\":{\"rope_type\":\"default\"}}"

/* The small models: inputs of layers, keys of earlier layers of the same kind. */
static void gemma4_small(void **state)
{
	(void)state;
	static const char config[] = "{\"num_kv_shared_layers\":3,\"use_double_wide_mlp\":true,"
								 "\"layer_types\":[\"sliding_attention\",\"full_attention\","
								 "\"sliding_attention\",\"sliding_attention\","
								 "\"sliding_attention\",\"full_attention\"]," GEMMA4_ROPE "}";
	struct mx_plan *p = plan_of(LEAST("gemma4_text", "6"), config);
	static const uint32_t back[] = {0, 0, 0, 1, 2, 4};
	assert_true(p->inputs.width == 256 && p->inputs.vocab == 262144);
	assert_string_equal(p->inputs.embed, "model.embed_tokens_per_layer.weight");
	for (uint32_t i = 0; i < 6; i++) {
		const struct mx_plan_block *b = p->layers[i].blocks;
		assert_int_equal(p->layers[i].n_blocks, 3);
		assert_int_equal(b[0].mixers[0].pages_back, back[i]);
		assert_int_equal(get_int(p, i, "shared_kv"), i >= 3);
		assert_int_equal(get_int(p, i, "window"), i == 1 || i == 5 ? 0 : 512);
		assert_int_equal(b[1].mlp.width, i >= 3 ? 192 : 96);
		assert_true(b[2].kind == MX_BLOCK_MLP && b[2].mlp.from_input && !b[2].mlp.up && !b[2].norm);
		assert_true(!b[0].scalar && !b[1].scalar && b[2].scalar);
	}
	assert_string_equal(p->layers[2].blocks[2].post_norm,
	                    "model.layers.2.post_per_layer_input_norm.weight");
	assert_true(has(p->skipped, "*.layers.3.self_attn.k_proj.weight"));
	assert_false(has(p->skipped, "*.layers.2.self_attn.k_proj.weight"));
	mx_plan_destroy(p);

	p = plan_of(LEAST("gemma4_text", "2"), "{\"hidden_size_per_layer_input\":0," GEMMA4_ROPE "}");
	assert_true(!p->inputs.width && p->layers[0].n_blocks == 2 && !p->skipped);
	mx_plan_destroy(p);

	const struct refused cases[] = {
		{"{\"num_kv_shared_layers\":6," GEMMA4_ROPE "}", MX_E_RANGE, "num_kv_shared_layers"},
		{"{\"num_kv_shared_layers\":1," GEMMA4_ROPE "}", MX_E_INVALID,
	     "num_kv_shared_layers: no layer before them is of the kind of layer 5"},
	};
	check_refused(LEAST("gemma4_text", "6"), cases, sizeof cases / sizeof *cases);
}

static void configs_of_parts_are_their_text(void **state)
{
	(void)state;
	static const char parts[] =
		"{\"model_type\":\"mistral3\",\"vision_config\":{\"hidden_size\":8},\"text_config\":"
		"{\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,"
		"\"num_attention_heads\":8,\"vocab_size\":100,\"eos_token_id\":7}}";
	struct mx_plan *p = plan_of(parts, "{}");
	assert_string_equal(p->family, "mistral3");
	assert_int_equal(p->width, 64);
	assert_int_equal(get_int(p, 0, "window"), 0); /* Mistral alone would have 4096 */
	assert_true(p->may_be_tied && p->roots && p->skipped);
	assert_true(p->n_eos == 1 && p->eos[0] == 7);
	mx_plan_destroy(p);

	p = plan_of(parts, "{\"tie_word_embeddings\":true,\"eos_token_id\":[8,9]}");
	assert_true(!p->may_be_tied && p->lm_head == p->embed);
	assert_true(p->n_eos == 2 && p->eos[0] == 8);
	mx_plan_destroy(p);

	const struct refused cases[] = {
		{"{\"text_config\":\"-\"}", MX_E_INVALID, "text_config: must be an object"},
		{"{\"text_config\":{\"model_type\":\"gemma3\"}}", MX_E_UNSUPPORTED,
	     "text_config.model_type: 'gemma3' has parts itself"},
		{"{\"quantization_config\":{}}", MX_E_UNSUPPORTED, "quantization_config.quant_method: "},
	};
	check_refused(parts, cases, sizeof cases / sizeof *cases);
}

static void phi3_is_fused(void **state)
{
	(void)state;
	static const char changes[] =
		"{\"partial_rotary_factor\":0.5,\"max_position_embeddings\":1024,"
		"\"original_max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"su\","
		"\"short_factor\":[1,1,2,2],\"long_factor\":[4,4,4,4]}}";
	struct mx_plan *p = plan_of(LEAST("phi3", "1"), changes);
	const struct mx_plan_mlp *m = &p->layers[0].blocks[1].mlp;
	assert_true(m->fused && m->gate == m->up);
	assert_string_equal(m->up, "model.layers.0.mlp.gate_up_proj.weight");
	assert_int_equal(get_int(p, 0, "fused"), 1);
	assert_string_equal(get_rope(p, 0), "longrope");
	assert_int_equal(get_int(p, 0, "rope_dim"), 8);
	assert_int_equal(p->long_from, 256);
	assert_int_equal(p->max_context, 1024);
	const struct mx_param *brief = mx_param_find(params_of(p, 0), "rope_inv_freq");
	const struct mx_param *longer = mx_param_find(params_of(p, 0), "rope_long_inv_freq");
	assert_true(brief->v[0] == 1 && longer->v[0] == 0.25 && brief->n == 4 && longer->n == 4);
	assert_true(fabs(get_float(p, 0, "rope_attention_factor") - sqrt(1 + log(4) / log(256))) <
	            1e-12);
	mx_plan_destroy(p);
}

static void olmo_has_norms_after_blocks(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(LEAST("olmo3", "4"), "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
	                                 "\"original_max_position_embeddings\":512}}");
	for (uint32_t i = 0; i < 4; i++) {
		const struct mx_plan_block *b = p->layers[i].blocks;
		assert_true(!b[0].norm && b[0].post_norm && !b[1].norm && b[1].post_norm);
		assert_int_equal(get_int(p, i, "qk_norm_whole"), 1);
		assert_int_equal(get_int(p, i, "window"), i == 3 ? 0 : 4096);
		assert_string_equal(get_rope(p, i), i == 3 ? "yarn" : "default");
		assert_true(get_float(p, i, "rope_theta") == 5e5);
	}
	mx_plan_destroy(p);
}

static void layers_without_rope(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("smollm3", "4"), "{}");
	for (uint32_t i = 0; i < 4; i++)
		assert_string_equal(get_rope(p, i), i == 3 ? "none" : "default");
	mx_plan_destroy(p);

	p = plan_of(LEAST("cohere2", "4"), "{}");
	for (uint32_t i = 0; i < 4; i++) {
		assert_string_equal(get_rope(p, i), i == 3 ? "none" : "default");
		assert_int_equal(get_int(p, i, "window"), i == 3 ? 0 : 4096);
	}
	assert_int_equal(get_int(p, 0, "rope_pairs"), 1);
	assert_true(p->norm == MX_NORM_LAYER_NO_BIAS && p->logit_scale == 0.0625f);
	assert_true(p->layers[0].blocks[1].parallel && !p->layers[0].blocks[1].norm);
	mx_plan_destroy(p);

	p = plan_of(LEAST("granite_swa", "5"), "{\"layer_rope_theta\":[0,10,10,0,20]}");
	for (uint32_t i = 0; i < 5; i++) {
		assert_string_equal(get_rope(p, i), i % 3 ? "default" : "none");
		assert_int_equal(get_int(p, i, "window"), i % 4 ? 128 : 0);
		assert_int_equal(get_int(p, i, "sinks"), 1);
	}
	assert_true(get_float(p, 4, "rope_theta") == 20 && get_float(p, 1, "rope_theta") == 10);
	mx_plan_destroy(p);
}

static void gpt_families_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of("{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":2,\"n_head\":4,"
	                            "\"vocab_size\":100,\"scale_attn_by_inverse_layer_idx\":true}",
	                            "{}");
	assert_true(p->transposed && p->norm == MX_NORM_LAYER && p->n_positions == 1024);
	assert_string_equal(p->positions, "transformer.wpe.weight");
	assert_int_equal(p->layers[0].blocks[1].mlp.width, 256);
	assert_null(p->layers[0].blocks[1].mlp.gate);
	assert_true(get_float(p, 0, "scale") == 0.25 && get_float(p, 1, "scale") == 0.125);
	assert_string_equal(get_rope(p, 0), "none");
	mx_plan_destroy(p);

	p = plan_of(LEAST("gpt_neox", "1"), "{\"num_key_value_heads\":2}");
	assert_int_equal(get_int(p, 0, "kv_heads"), 4);
	assert_int_equal(get_int(p, 0, "rope_dim"), 4);
	assert_int_equal(get_int(p, 0, "per_head"), 1);
	assert_int_equal(get_int(p, 0, "o_bias"), 1);
	assert_int_equal(p->layers[0].blocks[1].mlp.act, MX_ACT_GELU);
	assert_true(p->layers[0].blocks[1].parallel && p->layers[0].blocks[1].norm);
	mx_plan_destroy(p);
}

static void queries_grow_with_their_position(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(LEAST("ministral3", "1"),
	            "{\"num_key_value_heads\":4,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_"
	            "theta\":1e6,\"factor\":16,"
	            "\"original_max_position_embeddings\":16384,\"mscale\":1,\"mscale_all_dim\":1,"
	            "\"llama_4_scaling_beta\":0.1}}");
	assert_true(get_float(p, 0, "q_scale_beta") == 0.1);
	assert_int_equal(get_int(p, 0, "q_scale_length"), 16384);
	assert_true(get_float(p, 0, "rope_attention_factor") == 1);
	assert_int_equal(p->max_context, 262144);
	mx_plan_destroy(p);
}

static void what_is_not_done_is_named(void **state)
{
	(void)state;
	const struct refused gemma[] = {
		{"{\"use_bidirectional_attention\":true}", MX_E_UNSUPPORTED,
	     "use_bidirectional_attention: models of embeddings"},
		{"{\"hidden_activation\":\"relu\"}", MX_E_UNSUPPORTED, "hidden_act: 'relu' is none of"},
		{"{\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", MX_E_UNSUPPORTED,
	     "layer_types[1]: 'chunked_attention' is neither"},
		{"{\"layer_types\":[\"full_attention\"]}", MX_E_INVALID, "layer_types: must be a list of"},
		{"{\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	     MX_E_INVALID, "layer_types[1]: 'sliding_attention' without sliding_window"},
		{"{\"sliding_window_pattern\":0}", MX_E_RANGE, "sliding_window_pattern: 0 is outside"},
	};
	const struct refused gpt2[] = {
		{"{\"add_cross_attention\":true}", MX_E_UNSUPPORTED, "add_cross_attention: true"},
		{"{\"attention_bias\":true}", MX_E_UNSUPPORTED, "attention_bias: true is not supported"},
	};
	const struct refused granite[] = {
		{"{\"layer_rope_theta\":[1e4]}", MX_E_INVALID, "layer_rope_theta: must be a list"},
		{"{\"layer_rope_theta\":[1e4,-1]}", MX_E_RANGE, "layer_rope_theta[1]: must be 0 or above"},
		{"{\"layer_rope_theta\":[1e4,1e4],\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
	     MX_E_UNSUPPORTED, "rope_parameters: 'linear' with a theta for each layer"},
	};
	const struct refused smollm3[] = {
		{"{\"no_rope_layers\":[1]}", MX_E_INVALID, "no_rope_layers: must be a list"},
		{"{\"no_rope_layers\":[1,\"a\"]}", MX_E_INVALID, "no_rope_layers[1]: is not a number"},
	};
	const struct refused ministral3[] = {{"{}", MX_E_INVALID, "rope_parameters: is missing"}};
	check_refused(LEAST("gemma3_text", "2"), gemma, sizeof gemma / sizeof *gemma);
	check_refused(LEAST("gpt2", "1"), gpt2, sizeof gpt2 / sizeof *gpt2);
	check_refused(LEAST("granite_swa", "2"), granite, sizeof granite / sizeof *granite);
	check_refused(LEAST("smollm3", "2"), smollm3, sizeof smollm3 / sizeof *smollm3);
	check_refused(LEAST("ministral3", "1"), ministral3, 1);
}

static void older_families_by_default(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(LEAST("gemma", "1"), "{\"hidden_act\":\"gelu\",\"num_key_value_heads\":1}");
	assert_int_equal(p->layers[0].blocks[1].mlp.act, MX_ACT_GELU_TANH);
	assert_true(p->norm_plus_one && p->embed_scale_rounds && p->lm_head == p->embed);
	assert_true(get_int(p, 0, "head_dim") == 256 && !p->layers[0].blocks[0].post_norm);
	mx_plan_destroy(p);

	p = plan_of(LEAST("glm4", "1"), "{}");
	assert_true(get_int(p, 0, "bias") && !get_int(p, 0, "o_bias") && get_int(p, 0, "rope_pairs"));
	assert_true(get_int(p, 0, "rope_dim") == 64 && p->layers[0].blocks[1].mlp.fused);
	assert_true(p->layers[0].blocks[0].post_norm && p->layers[0].blocks[1].post_norm);
	mx_plan_destroy(p);

	p = plan_of(LEAST("exaone4", "8"), "{\"sliding_window\":30,\"num_key_value_heads\":2}");
	for (uint32_t i = 0; i < 8; i++) {
		const struct mx_param *rope = mx_param_find(params_of(p, i), "rope");
		assert_int_equal(get_int(p, i, "window"), i % 4 == 3 ? 0 : 30);
		assert_string_equal(rope->s, i % 4 == 3 ? "none" : "default");
	}
	assert_true(!p->layers[0].blocks[0].norm && get_int(p, 0, "qk_norm"));
	mx_plan_destroy(p);
	p = plan_of(LEAST("exaone4", "1"), "{\"sliding_window\":null,\"num_key_value_heads\":2}");
	assert_string_equal(mx_param_find(params_of(p, 0), "rope")->s, "default");
	mx_plan_destroy(p);

	p = plan_of(LEAST("starcoder2", "1"), "{}");
	assert_true(get_int(p, 0, "bias") && get_int(p, 0, "o_bias") && get_int(p, 0, "window") == 0);
	assert_true(p->norm == MX_NORM_LAYER && !p->layers[0].blocks[1].mlp.gate);
	assert_string_equal(p->layers[0].blocks[1].mlp.up, "model.layers.0.mlp.c_fc.weight");
	mx_plan_destroy(p);

	p = plan_of(LEAST("nemotron", "1"), "{}");
	assert_true(p->norm == MX_NORM_LAYER && p->norm_plus_one && p->norm_eps == 1e-5f);
	assert_int_equal(p->layers[0].blocks[1].mlp.act, MX_ACT_RELU2);
	mx_plan_destroy(p);

	const struct refused cohere[] = {{"{\"use_qk_norm\":true}", MX_E_UNSUPPORTED, "use_qk_norm"}};
	check_refused(LEAST("cohere", "1"), cohere, 1);
	p = plan_of(LEAST("cohere", "2"), "{}");
	assert_true(get_int(p, 1, "rope_pairs") && p->logit_scale == 0.0625f);
	mx_plan_destroy(p);
}

static void more_families_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("hunyuan_v1_dense", "1"),
	                            "{\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0,"
	                            "\"factor\":1.0}}");
	assert_true(get_int(p, 0, "qk_norm") && get_int(p, 0, "norm_last"));
	assert_string_equal(mx_param_string(params_of(p, 0), "names", ""), "hunyuan");
	assert_string_equal(get_rope(p, 0), "default");
	assert_true(fabs(get_float(p, 0, "rope_theta") / (1e4 * pow(1000, 16 / 14.0)) - 1) < 1e-12);
	assert_int_equal(p->max_context, 2048);
	mx_plan_destroy(p);
	p = plan_of(LEAST("hunyuan_v1_dense", "1"),
	            "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}");
	assert_string_equal(get_rope(p, 0), "dynamic");
	mx_plan_destroy(p);

	p = plan_of(LEAST("stablelm", "1"), "{\"num_key_value_heads\":4,\"use_qkv_bias\":true}");
	assert_true(p->norm == MX_NORM_LAYER && get_int(p, 0, "rope_dim") == 4);
	assert_true(get_int(p, 0, "bias") && !get_int(p, 0, "o_bias"));
	mx_plan_destroy(p);

	p = plan_of(LEAST("helium", "1"), "{\"num_key_value_heads\":4}");
	assert_true(get_int(p, 0, "rope_pairs") && get_int(p, 0, "head_dim") == 128);
	mx_plan_destroy(p);

	p = plan_of(LEAST("internlm3", "1"), "{\"bias\":true,\"qkv_bias\":true}");
	assert_true(get_int(p, 0, "bias") && get_int(p, 0, "o_bias"));
	assert_true(p->layers[0].blocks[1].mlp.bias && get_int(p, 0, "kv_heads") == 2);
	mx_plan_destroy(p);

	p = plan_of(LEAST("vaultgemma", "2"), "{}");
	assert_true(p->norm_plus_one && p->logit_softcap == 30 && get_float(p, 0, "softcap") == 50);
	assert_true(!p->layers[0].blocks[0].post_norm && !p->layers[0].blocks[1].post_norm);
	assert_string_equal(p->layers[1].blocks[1].norm,
	                    "model.layers.1.pre_feedforward_layernorm.weight");
	assert_true(get_int(p, 0, "window") == 4096 && get_int(p, 1, "window") == 0);
	mx_plan_destroy(p);

	p = plan_of(LEAST("hyperclovax", "1"), "{\"logits_scaling\":0.25,\"residual_multiplier\":0.5}");
	assert_true(p->logit_scale == 0.25f && get_float(p, 0, "scale") == 0.25);
	assert_true(p->layers[0].blocks[1].residual_scale == 0.5f);
	assert_string_equal(p->layers[0].blocks[1].post_norm, "model.layers.0.post_norm2.weight");
	mx_plan_destroy(p);

	const struct refused hunyuan[] = {{"{\"use_qk_norm\":false}", MX_E_UNSUPPORTED, "use_qk_norm"}};
	check_refused(LEAST("hunyuan_v1_dense", "1"), hunyuan, 1);
	const struct refused stable[] = {
		{"{\"qk_layernorm\":true}", MX_E_UNSUPPORTED, "qk_layernorm"},
		{"{\"use_parallel_residual\":true}", MX_E_UNSUPPORTED, "use_parallel_residual"},
	};
	check_refused(LEAST("stablelm", "1"), stable, 2);
	const struct refused phi[] = {{"{\"qk_layernorm\":true}", MX_E_UNSUPPORTED, "qk_layernorm"}};
	check_refused(LEAST("phi", "1"), phi, 1);
	p = plan_of(LEAST("phi", "1"), "{}");
	assert_true(p->lm_head_bias && p->layers[0].blocks[1].parallel && !p->layers[0].blocks[1].norm);
	assert_int_equal(get_int(p, 0, "rope_dim"), 8);
	mx_plan_destroy(p);
	p = plan_of(LEAST("nanochat", "1"), "{}");
	const struct mx_param *turns = mx_param_find(params_of(p, 0), "rope_inv_freq");
	assert_true(p->logit_softcap == 15 && p->embed_norm && turns && turns->v[0] == -1);
	mx_plan_destroy(p);
	p = plan_of(LEAST("nanochat", "1"), "{\"final_logit_softcapping\":null}");
	assert_true(p->logit_softcap == 0);
	mx_plan_destroy(p);
	const struct refused olmo[] = {{"{\"clip_qkv\":8}", MX_E_UNSUPPORTED, "clip_qkv"}};
	check_refused(LEAST("olmo", "1"), olmo, 1);
	p = plan_of(LEAST("olmo", "1"), "{\"clip_qkv\":null}");
	assert_true(p->norm == MX_NORM_LAYER_NO_BIAS && p->norm_eps == 1e-5f && p->ones);
	mx_plan_destroy(p);
	p = plan_of(LEAST("gpt_bigcode", "1"), "{}");
	assert_true(get_int(p, 0, "kv_heads") == 1 && !get_int(p, 0, "per_head") && !p->transposed);
	mx_plan_destroy(p);
	p = plan_of(LEAST("gpt_bigcode", "1"), "{\"multi_query\":false}");
	assert_true(get_int(p, 0, "kv_heads") == 4 && get_int(p, 0, "per_head") && !p->transposed);
	mx_plan_destroy(p);
	const struct refused intern[] = {{"{\"qkv_bias\":true}", MX_E_UNSUPPORTED, "qkv_bias"}};
	check_refused(LEAST("internlm3", "1"), intern, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gemma2_by_default),
		cmocka_unit_test(gemma3_by_default),
		cmocka_unit_test(gemma4_by_default),
		cmocka_unit_test(gemma4_small),
		cmocka_unit_test(configs_of_parts_are_their_text),
		cmocka_unit_test(phi3_is_fused),
		cmocka_unit_test(olmo_has_norms_after_blocks),
		cmocka_unit_test(layers_without_rope),
		cmocka_unit_test(gpt_families_by_default),
		cmocka_unit_test(queries_grow_with_their_position),
		cmocka_unit_test(what_is_not_done_is_named),
		cmocka_unit_test(older_families_by_default),
		cmocka_unit_test(more_families_by_default),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
