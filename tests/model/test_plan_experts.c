/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for families of attention and experts: what keys
 * that are left out mean, and what is refused. The arithmetic is tested by the golden checkpoints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

#define LEAST(type, layers)                                                                        \
	"{\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":100," \
	"\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,\"num_key_value_heads\":2"

static const struct mx_plan_block *feed_forward(const struct mx_plan *p, uint32_t layer)
{
	return &p->layers[layer].blocks[p->layers[layer].n_blocks - 1];
}

#define OSS                                                                                        \
	LEAST("gpt_oss", "2")                                                                          \
	",\"num_local_experts\":8,\"num_experts_per_tok\":2,\"rope_theta\":150000,\"rope_scaling\":{"  \
	"\"rope_type\":\"yarn\",\"factor\":32.0,\"original_max_position_embeddings\":4096}}"

static void gpt_oss_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(OSS, "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 0)->experts;
	assert_true(x->n == 8 && x->width == 96 && x->rule.chosen == 2 && x->rule.normalize);
	assert_true(x->interleaved && x->alpha == 1.702f && x->limit == 7);
	assert_string_equal(x->router_bias, "model.layers.0.mlp.router.bias");
	assert_string_equal(x->fused_up, "model.layers.0.mlp.experts.gate_up_proj");
	assert_true(get_int(p, 0, "sinks") && get_int(p, 0, "bias") && get_int(p, 0, "o_bias"));
	assert_int_equal(get_int(p, 0, "head_dim"), 64);
	assert_int_equal(get_int(p, 0, "window"), 128);
	assert_int_equal(get_int(p, 1, "window"), 0);
	assert_true(p->max_context == 131072 && p->norm_eps == 1e-5f);
	mx_plan_destroy(p);
	p = plan_of(OSS, "{\"quantization_config\":{\"quant_method\":\"mxfp4\"},\"swiglu_limit\":2.5}");
	assert_true(feed_forward(p, 0)->experts.limit == 2.5f);
	mx_plan_destroy(p);
	const struct refused refused[] = {
		{"{\"rope_scaling\":\"-\"}", MX_E_INVALID, "rope_parameters: is missing"},
		{"{\"quantization_config\":{\"quant_method\":\"quark\"}}", MX_E_UNSUPPORTED, "quark"},
		{"{\"swiglu_limit\":0}", MX_E_RANGE, "swiglu_limit"},
	};
	check_refused(OSS, refused, sizeof refused / sizeof *refused);
}

#define MINIMAX(type, more)                                                                        \
	LEAST(type, "3") ",\"num_local_experts\":4,\"num_experts_per_tok\":2" more "}"

static void minimax_adds_to_normed_inputs(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(MINIMAX("minimax", ",\"mlp_beta_factor\":0.5,\"head_dim\":32"), "{}");
	for (uint32_t i = 0; i < 3; i++) {
		const struct mx_plan_block *mixer = &p->layers[i].blocks[0];
		assert_string_equal(mixer->mixers[0].mixer, i == 1 ? "gla" : "attention");
		assert_true(mixer->carried == 1 && mixer->residual_scale == 1);
		assert_true(feed_forward(p, i)->carried == 1 && feed_forward(p, i)->residual_scale == 0.5f);
	}
	assert_int_equal(get_int(p, 0, "rope_dim"), 32);
	assert_int_equal(get_int(p, 1, "head_dim"), 32);
	mx_plan_destroy(p);

	p = plan_of(MINIMAX("minimax_m1",
	                    ",\"attn_type_list\":[0,1,0],\"head_dim\":32,\"rotary_dim\":16,"
	                    "\"layernorm_full_attention_alpha\":3.5,"
	                    "\"layernorm_linear_attention_alpha\":2.5,"
	                    "\"layernorm_full_attention_beta\":0.25"),
	            "{}");
	assert_string_equal(p->layers[0].blocks[0].mixers[0].mixer, "gla");
	assert_true(p->layers[0].blocks[0].carried == 2.5f && p->layers[1].blocks[0].carried == 3.5f);
	assert_true(p->layers[1].blocks[0].mixers[0].out_scale == 0.25f);
	assert_int_equal(get_int(p, 1, "rope_dim"), 16);
	mx_plan_destroy(p);
	const struct refused refused[] = {
		{"{\"postnorm\":false}", MX_E_UNSUPPORTED, "postnorm"},
		{"{\"shared_intermediate_size\":64}", MX_E_UNSUPPORTED, "shared_intermediate_size"},
		{"{\"attn_type_list\":[0,2,0]}", MX_E_INVALID, "attn_type_list[1]"},
		{"{\"layer_types\":[\"mamba\",\"mamba\",\"mamba\"]}", MX_E_INVALID, "layer_types[0]"},
		{"{\"mlp_alpha_factor\":0}", MX_E_RANGE, "mlp_alpha_factor"},
	};
	check_refused(MINIMAX("minimax", ""), refused, sizeof refused / sizeof *refused);
}

static void gemma4_has_experts_beside_the_feed_forward(void **state)
{
	(void)state;
	static const char config[] = LEAST(
		"gemma4_text", "2") ",\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,"
							"\"num_experts\":8,\"top_k_experts\":3,\"moe_intermediate_size\":24,"
							"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},"
							"\"sliding_attention\":{\"rope_type\":\"default\"}}}";
	struct mx_plan *p = plan_of(config, "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 1)->experts;
	assert_int_equal(feed_forward(p, 1)->kind, MX_BLOCK_EXPERTS);
	assert_int_equal(feed_forward(p, 1)->mlp.width, 96);
	assert_true(x->n == 8 && x->width == 24 && x->rule.chosen == 3 && x->rule.normalize);
	assert_true(x->logit_scale == 0.125f && x->act == MX_ACT_GELU_TANH);
	assert_string_equal(x->router_norm, "model.layers.1.router.scale");
	assert_string_equal(x->scales, "model.layers.1.router.per_expert_scale");
	assert_string_equal(x->norm, "model.layers.1.pre_feedforward_layernorm_2.weight");
	mx_plan_destroy(p);
	p = plan_of(config, "{\"enable_moe_block\":false}");
	assert_int_equal(feed_forward(p, 1)->kind, MX_BLOCK_MLP);
	mx_plan_destroy(p);
}

/* What configs mean that leave keys out. */
static void other_families_by_default(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(LEAST("ernie4_5_moe",
	                  "3") ",\"moe_num_experts\":8,\"moe_k\":2,\"moe_intermediate_size\":24}",
	            "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 1)->experts;
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	assert_true(x->n == 8 && x->rule.chosen == 2 && x->rule.normalize);
	assert_true(x->rule.scores == MX_ROUTER_SOFTMAX && feed_forward(p, 1)->mlp.width == 48);
	assert_string_equal(x->correction, "model.layers.1.mlp.moe_statics.e_score_correction_bias");
	assert_true(get_int(p, 0, "rope_pairs") && p->lm_head == p->embed);
	mx_plan_destroy(p);

	p = plan_of(LEAST("dots1", "2") ",\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
	                                "\"moe_intermediate_size\":24,\"sliding_window\":30,"
	                                "\"max_window_layers\":1}",
	            "{}");
	x = &feed_forward(p, 0)->experts;
	assert_true(x->rule.scores == MX_ROUTER_SIGMOID && !x->rule.normalize && x->correction);
	assert_int_equal(feed_forward(p, 0)->mlp.width, 0);
	assert_true(get_int(p, 0, "window") == 0 && get_int(p, 1, "window") == 30);
	assert_true(get_int(p, 0, "qk_norm"));
	mx_plan_destroy(p);

	p = plan_of(LEAST("solar_open", "1") ",\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
	                                     "\"moe_intermediate_size\":24,\"attention_bias\":true}",
	            "{}");
	assert_true(feed_forward(p, 0)->experts.rule.normalize && feed_forward(p, 0)->mlp.width == 24);
	assert_true(get_int(p, 0, "bias") && !get_int(p, 0, "o_bias"));
	mx_plan_destroy(p);

	p = plan_of(LEAST("mellum", "2") ",\"num_experts\":8,\"num_experts_per_tok\":2,"
	                                 "\"moe_intermediate_size\":24}",
	            "{}");
	assert_true(feed_forward(p, 0)->experts.rule.normalize && get_int(p, 0, "window") == 0);
	mx_plan_destroy(p);
	p = plan_of(LEAST("mellum", "2") ",\"num_experts\":8,\"num_experts_per_tok\":2,"
	                                 "\"moe_intermediate_size\":24,\"layer_types\":["
	                                 "\"sliding_attention\",\"full_attention\"],"
	                                 "\"mlp_layer_types\":[\"dense\",\"sparse\"]}",
	            "{}");
	assert_true(get_int(p, 0, "window") == 1024 && get_int(p, 1, "window") == 0);
	assert_true(feed_forward(p, 0)->kind == MX_BLOCK_MLP && feed_forward(p, 1)->experts.n == 8);
	mx_plan_destroy(p);
}

static void granite_has_experts(void **state)
{
	(void)state;
	static const char plain[] = LEAST("granitemoe", "1") ",\"num_local_experts\":8,"
														 "\"num_experts_per_tok\":2}";
	static const char shared[] = LEAST("granitemoeshared", "1") ",\"num_local_experts\":8,"
																"\"num_experts_per_tok\":2}";
	struct mx_plan *p = plan_of(plain, "{\"shared_intermediate_size\":40}"); /* not its key */
	const struct mx_plan_experts *x = &feed_forward(p, 0)->experts;
	assert_true(x->n == 8 && x->width == 96 && x->rule.normalize && x->rule.chosen == 2);
	assert_int_equal(feed_forward(p, 0)->mlp.width, 0);
	assert_string_equal(x->fused_up, "model.layers.0.block_sparse_moe.input_linear.weight");
	assert_string_equal(x->list, "model.layers.0.block_sparse_moe.experts."); /* of GGUF files */
	mx_plan_destroy(p);
	p = plan_of(shared, "{}");
	assert_int_equal(feed_forward(p, 0)->mlp.width, 0);
	mx_plan_destroy(p);
	p = plan_of(shared, "{\"shared_intermediate_size\":40,\"residual_multiplier\":0.5}");
	assert_true(feed_forward(p, 0)->mlp.width == 40 && feed_forward(p, 0)->mlp.fused);
	assert_true(feed_forward(p, 0)->residual_scale == 0.5f);
	assert_string_equal(feed_forward(p, 0)->mlp.up,
	                    "model.layers.0.shared_mlp.input_linear.weight");
	mx_plan_destroy(p);
}

static void other_families_refuse_what_they_cannot(void **state)
{
	(void)state;
	const struct refused ernie[] = {{"{\"use_bias\":true}", MX_E_UNSUPPORTED, "use_bias"}};
	check_refused(LEAST("ernie4_5_moe", "2") ",\"moe_num_experts\":8,\"moe_k\":2,"
	                                         "\"moe_intermediate_size\":24}",
	              ernie, 1);
	const struct refused mellum[] = {
		{"{\"mlp_layer_types\":[\"sparse\"]}", MX_E_INVALID, "mlp_layer_types[1]"}};
	check_refused(LEAST("mellum", "2") ",\"num_experts\":8,\"num_experts_per_tok\":2,"
	                                   "\"moe_intermediate_size\":24}",
	              mellum, 1);
}

static void hunyuan_and_exaone_by_default(void **state)
{
	(void)state;
	static const char hunyuan[] = LEAST("hunyuan_v1_moe", "2") ",\"num_experts\":8}";
	struct mx_plan *p = plan_of(hunyuan, "{\"moe_topk\":[2,3]}");
	for (uint32_t i = 0; i < 2; i++) {
		const struct mx_plan_experts *x = &feed_forward(p, i)->experts;
		assert_true(x->n == 8 && x->rule.chosen == 2 + i && x->rule.normalize && x->width == 96);
		assert_int_equal(feed_forward(p, i)->mlp.width, 96);
	}
	assert_string_equal(feed_forward(p, 1)->experts.router, "model.layers.1.mlp.gate.wg.weight");
	assert_string_equal(feed_forward(p, 1)->mlp.up, "model.layers.1.mlp.shared_mlp.up_proj.weight");
	mx_plan_destroy(p);
	p = plan_of(hunyuan, "{}");
	assert_int_equal(feed_forward(p, 0)->experts.rule.chosen, 1);
	mx_plan_destroy(p);
	const struct refused cases[] = {
		{"{\"moe_topk\":[2]}", MX_E_RANGE, "moe_topk[1]"},
		{"{\"moe_topk\":9}", MX_E_RANGE, "moe_topk"},
		{"{\"use_cla\":true}", MX_E_UNSUPPORTED, "use_cla"},
	};
	check_refused(hunyuan, cases, sizeof cases / sizeof *cases);

	p = plan_of(LEAST("exaone_moe", "4") ",\"num_key_value_heads\":2,\"num_experts\":8,"
	                                     "\"num_experts_per_tok\":2,\"moe_intermediate_size\":24}",
	            "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 1)->experts;
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	assert_true(x->rule.scale == 2.5f && x->rule.normalize && feed_forward(p, 1)->mlp.width == 24);
	assert_string_equal(x->correction, "model.layers.1.mlp.e_score_correction_bias");
	assert_non_null(p->layers[0].blocks[0].norm);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(get_int(p, i, "window"), i == 3 ? 0 : 4096);
		assert_string_equal(mx_param_string(params_of(p, i), "rope", ""),
		                    i == 3 ? "none" : "default");
	}
	mx_plan_destroy(p);
}

static void afmoe_by_default(void **state)
{
	(void)state;
	static const char config[] = LEAST(
		"afmoe", "4") ",\"num_experts\":8,\"num_experts_per_tok\":2,"
					  "\"moe_intermediate_size\":24,\"route_scale\":2.0,\"mup_enabled\":true}";
	struct mx_plan *p = plan_of(config, "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 1)->experts;
	assert_true(p->embed_scale == 8 && !p->embed_scale_rounds);
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	assert_true(x->rule.scale == 2 && x->rule.normalize && feed_forward(p, 1)->mlp.width == 48);
	assert_string_equal(x->correction, "model.layers.1.mlp.expert_bias");
	assert_string_equal(feed_forward(p, 1)->norm, "model.layers.1.pre_mlp_layernorm.weight");
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(get_int(p, i, "window"), i == 3 ? 0 : 1024);
		assert_int_equal(get_int(p, i, "wide_gate"), 1);
		assert_string_equal(mx_param_string(params_of(p, i), "rope", ""),
		                    i == 3 ? "none" : "default");
	}
	mx_plan_destroy(p);
	const struct refused cases[] = {
		{"{\"score_func\":\"softmax\"}", MX_E_UNSUPPORTED, "score_func"}};
	check_refused(config, cases, 1);
}

/* Ling 2; Ling 1 has the same model_type and softmax scores. */
static void bailing_moe_by_default(void **state)
{
	(void)state;
	static const char config[] =
		"{\"model_type\":\"bailing_moe\",\"hidden_size\":64,\"intermediate_size\":96,"
		"\"vocab_size\":100,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
		"\"num_key_value_heads\":2,\"num_experts\":8,\"num_experts_per_tok\":2,"
		"\"moe_intermediate_size\":24,\"score_function\":\"sigmoid\"}";
	struct mx_plan *p = plan_of(config, "{\"first_k_dense_replace\":1,\"use_qk_norm\":true,"
	                                    "\"partial_rotary_factor\":0.5}");
	const struct mx_plan_block *b = p->layers[1].blocks;
	assert_int_equal(p->layers[0].blocks[1].kind, MX_BLOCK_MLP);
	assert_int_equal(b[1].kind, MX_BLOCK_EXPERTS);
	assert_int_equal(b[1].experts.rule.scores, MX_ROUTER_SIGMOID);
	assert_true(b[1].experts.rule.normalize && b[1].experts.rule.groups == 1);
	assert_true(b[1].experts.rule.scale == 1 && b[1].mlp.width == 24);
	assert_int_equal(get_int(p, 1, "fused"), 1);
	assert_int_equal(get_int(p, 1, "qk_norm"), 1);
	assert_int_equal(get_int(p, 1, "rope_dim"), 8);
	assert_string_equal(b[0].mixers[0].prefix, "model.layers.1.attention.");
	mx_plan_destroy(p);

	static const struct refused cases[] = {
		{"{\"score_function\":null}", MX_E_UNSUPPORTED, "score_function: 'softmax'"},
		{"{\"norm_topk_prob\":false}", MX_E_UNSUPPORTED, "norm_topk_prob"},
		{"{\"n_group\":3}", MX_E_RANGE, "8 experts in 3 groups"},
	};
	check_refused(config, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpt_oss_by_default),
		cmocka_unit_test(gemma4_has_experts_beside_the_feed_forward),
		cmocka_unit_test(other_families_by_default),
		cmocka_unit_test(granite_has_experts),
		cmocka_unit_test(other_families_refuse_what_they_cannot),
		cmocka_unit_test(hunyuan_and_exaone_by_default),
		cmocka_unit_test(afmoe_by_default),
		cmocka_unit_test(minimax_adds_to_normed_inputs),
		cmocka_unit_test(bailing_moe_by_default),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
