/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for latent attention: DeepSeek, Kimi and GLM 4.7
 * Flash. What configs that leave keys out mean, both spellings of Kimi Linear, and what is refused.
 * The arithmetic is tested by the golden checkpoints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/model/plan_util.h"

#define LEAST(type, layers)                                                                        \
	"{\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":100," \
	"\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,\"moe_intermediate_size\":24"
#define ROUTED ",\"n_routed_experts\":32,\"num_experts_per_tok\":3}"
#define V2     LEAST("deepseek_v2", "3") ROUTED
#define V3     LEAST("deepseek_v3", "5") ROUTED
#define KIMI                                                                                       \
	LEAST("kimi_linear", "6")                                                                      \
	",\"num_experts\":32,\"num_experts_per_token\":3,"                                             \
	"\"model_max_length\":4096}"

static double number(const struct mx_plan *p, uint32_t layer, const char *name)
{
	return mx_param_float(params_of(p, layer), name, -1);
}

static const char *mixer(const struct mx_plan *p, uint32_t layer)
{
	return p->layers[layer].blocks[0].mixers[0].mixer;
}

static const struct mx_plan_block *feed_forward(const struct mx_plan *p, uint32_t layer)
{
	return &p->layers[layer].blocks[1];
}

static void sizes_have_their_defaults(void **state)
{
	(void)state;
	static const struct {
		const char *config;
		int64_t q_rank, nope, v;
	} cases[] = {
		{V2, 1536, 128, 128},
		{V3, 1536, 128, 128},
		{LEAST("kimi_k2", "2") ROUTED, 1536, 128, 128},
		{LEAST("glm4_moe_lite", "2") ROUTED, 768, 192, 256},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = plan_of(cases[i].config, "{}");
		assert_string_equal(mixer(p, 0), "mla");
		assert_int_equal(get_int(p, 0, "heads"), 4);
		assert_int_equal(get_int(p, 0, "q_lora_rank"), cases[i].q_rank);
		assert_int_equal(get_int(p, 0, "kv_lora_rank"), 512);
		assert_int_equal(get_int(p, 0, "qk_nope_head_dim"), cases[i].nope);
		assert_int_equal(get_int(p, 0, "qk_rope_head_dim"), 64);
		assert_int_equal(get_int(p, 0, "v_head_dim"), cases[i].v);
		assert_int_equal(get_int(p, 0, "rope_pairs"), 1);
		assert_true(p->skips_layers);
		mx_plan_destroy(p);
	}
	struct mx_plan *p = plan_of(V3, "{\"q_lora_rank\":null,\"rope_interleave\":false}");
	assert_int_equal(get_int(p, 0, "q_lora_rank"), 0);
	assert_int_equal(get_int(p, 0, "rope_pairs"), 0);
	mx_plan_destroy(p);
	p = plan_of(V2, "{\"rope_interleave\":false}"); /* no key of V2's */
	assert_int_equal(get_int(p, 0, "rope_pairs"), 1);
	mx_plan_destroy(p);
}

/* Yarn's magnitude multiplies scores twice, and cos and sin by the quotient of both. */
static void yarn_scales_scores(void **state)
{
	(void)state;
	const double plain = 1 / sqrt(192), m = 0.1 * 0.707 * log(40) + 1;
	struct mx_plan *p = plan_of(V2, "{}");
	assert_true(fabs(number(p, 0, "scale") - plain) < 1e-9);
	mx_plan_destroy(p);
	static const char *const spellings[] = {
		"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
		"\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096}}",
		"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
		"\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096}}",
	};
	for (int i = 0; i < 2; i++) {
		p = plan_of(V2, spellings[i]);
		assert_true(fabs(number(p, 0, "scale") - plain * m * m) < 1e-9);
		assert_true(fabs(number(p, 0, "rope_attention_factor") - 1) < 1e-9);
		assert_int_equal(p->max_context, 163840);
		mx_plan_destroy(p);
	}
	p = plan_of(V2, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
	                "\"original_max_position_embeddings\":4096}}");
	assert_true(fabs(number(p, 0, "scale") - plain) < 1e-9);
	assert_true(fabs(number(p, 0, "rope_attention_factor") - (0.1 * log(40) + 1)) < 1e-9);
	mx_plan_destroy(p);
}

static void routers_have_their_families_rules(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(V2, "{\"first_k_dense_replace\":1,\"routed_scaling_factor\":16,"
	                                "\"n_group\":8,\"topk_group\":3,"
	                                "\"topk_method\":\"group_limited_greedy\"}");
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	const struct mx_plan_block *f = feed_forward(p, 1);
	assert_true(f->experts.rule.scores == MX_ROUTER_SOFTMAX && f->experts.rule.by_best);
	assert_true(f->experts.rule.groups == 8 && f->experts.rule.kept_groups == 3);
	assert_true(f->experts.rule.scale == 16 && !f->experts.rule.normalize);
	assert_true(!f->experts.correction && f->mlp.width == 48); /* two shared experts */
	mx_plan_destroy(p);
	p = plan_of(V2, "{\"n_group\":8,\"topk_group\":3}"); /* greedy: groups have no effect */
	assert_true(feed_forward(p, 0)->experts.rule.groups <= 1);
	mx_plan_destroy(p);

	p = plan_of(V3, "{}");
	f = feed_forward(p, 3);
	assert_int_equal(feed_forward(p, 2)->kind, MX_BLOCK_MLP);
	assert_true(f->experts.rule.scores == MX_ROUTER_SIGMOID && !f->experts.rule.by_best);
	assert_true(f->experts.rule.groups == 8 && f->experts.rule.kept_groups == 4);
	assert_true(f->experts.rule.scale == 2.5f && f->experts.rule.normalize);
	assert_string_equal(f->experts.correction, "model.layers.3.mlp.gate.e_score_correction_bias");
	assert_int_equal(f->mlp.width, 24);
	mx_plan_destroy(p);

	p = plan_of(LEAST("glm4_moe_lite", "2") ROUTED, "{}");
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	assert_true(feed_forward(p, 1)->experts.rule.scale == 1.8f);
	mx_plan_destroy(p);
	p = plan_of(LEAST("glm4_moe_lite", "2") ROUTED, "{\"mlp_layer_types\":[\"sparse\",\"dense\"]}");
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_EXPERTS);
	assert_int_equal(feed_forward(p, 1)->kind, MX_BLOCK_MLP);
	mx_plan_destroy(p);
}

static void check_kinds(const char *changes, const char *kinds)
{
	struct mx_plan *p = plan_of(KIMI, changes);
	for (uint32_t i = 0; i < 6; i++)
		assert_string_equal(mixer(p, i), kinds[i] == 'k' ? "gla" : "mla");
	mx_plan_destroy(p);
}

static void kimi_linear_has_two_spellings(void **state)
{
	(void)state;
	check_kinds("{}", "kkkkmk");
	check_kinds("{\"linear_attn_config\":{\"full_attn_layers\":[2,6],\"kda_layers\":[1,3,4,5]}}",
	            "kmkkkm");
	check_kinds("{\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\","
	            "\"linear_attention\",\"linear_attention\",\"full_attention\"]}",
	            "mkkkkm");
	struct mx_plan *p = plan_of(KIMI, "{\"linear_attn_config\":{\"head_dim\":16,\"num_heads\":3,"
	                                  "\"short_conv_kernel_size\":5},\"moe_renormalize\":false,"
	                                  "\"num_expert_group\":4,\"topk_group\":2,"
	                                  "\"num_shared_experts\":2}");
	const struct mx_plan_block *f = feed_forward(p, 1);
	assert_true(get_int(p, 0, "head_dim") == 16 && get_int(p, 0, "num_heads") == 3);
	assert_true(get_int(p, 0, "conv_size") == 5 && number(p, 0, "norm_eps") < 1.1e-5);
	assert_string_equal(mx_param_string(params_of(p, 4), "rope", ""), "none");
	assert_int_equal(get_int(p, 4, "q_lora_rank"), 0);
	assert_int_equal(p->max_context, 4096);
	assert_true(f->experts.rule.groups == 4 && !f->experts.rule.normalize && f->mlp.width == 48);
	assert_true(f->experts.rule.scale == 2.446f);
	mx_plan_destroy(p);
	p = plan_of(KIMI, "{\"linear_num_heads\":5,\"linear_head_dim\":24,"
	                  "\"linear_conv_kernel_dim\":3}");
	assert_true(get_int(p, 0, "head_dim") == 24 && get_int(p, 0, "num_heads") == 5);
	assert_int_equal(get_int(p, 0, "conv_size"), 3);
	mx_plan_destroy(p);
}

static void what_is_not_supported_is_refused(void **state)
{
	(void)state;
	static const struct refused v2[] = {
		{"{\"topk_method\":\"noaux_tc\"}", MX_E_UNSUPPORTED, "topk_method"},
		{"{\"norm_topk_prob\":true}", MX_E_UNSUPPORTED, "norm_topk_prob"},
		{"{\"scoring_func\":\"sigmoid\"}", MX_E_UNSUPPORTED, "scoring_func"},
		{"{\"moe_layer_freq\":2}", MX_E_UNSUPPORTED, "moe_layer_freq"},
		{"{\"mlp_bias\":true,\"first_k_dense_replace\":1}", MX_E_UNSUPPORTED, "mlp_bias"},
		{"{\"kv_lora_rank\":0}", MX_E_RANGE, "kv_lora_rank"},
		{"{\"qk_rope_head_dim\":15}", MX_E_RANGE, "15"},
		{"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", MX_E_UNSUPPORTED, "dynamic"},
		{"{\"n_group\":5,\"topk_group\":1,\"topk_method\":\"group_limited_greedy\"}", MX_E_RANGE,
	     "5 groups"},
	};
	static const struct refused v3[] = {
		{"{\"topk_method\":\"greedy\"}", MX_E_UNSUPPORTED, "topk_method"},
		{"{\"scoring_func\":\"softmax\"}", MX_E_UNSUPPORTED, "scoring_func"},
		{"{\"quantization_config\":{\"quant_method\":\"quark\"}}", MX_E_UNSUPPORTED, "quark"},
		{"{\"mlp_layer_types\":[\"dense\",\"odd\",\"dense\",\"dense\",\"dense\"]}",
	     MX_E_UNSUPPORTED, "mlp_layer_types[1]"},
	};
	static const struct refused kimi[] = {
		{"{\"mla_use_nope\":false}", MX_E_UNSUPPORTED, "mla_use_nope"},
		{"{\"moe_router_activation_func\":\"softmax\"}", MX_E_UNSUPPORTED, "activation_func"},
		{"{\"linear_attn_config\":{\"gate_lower_bound\":-5}}", MX_E_UNSUPPORTED,
	     "gate_lower_bound"},
		{"{\"linear_attn_config\":{\"full_attn_layers\":[2,7],\"kda_layers\":[1]}}", MX_E_RANGE,
	     "full_attn_layers[1]"},
		{"{\"linear_attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1,2]}}", MX_E_RANGE,
	     "kda_layers[1]"},
		{"{\"linear_attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1]}}", MX_E_INVALID,
	     "layer 3"},
		{"{\"layer_types\":[\"full_attention\",\"conv\",\"full_attention\",\"full_attention\","
	     "\"full_attention\",\"full_attention\"]}",
	     MX_E_UNSUPPORTED, "layer_types[1]"},
	};
	check_refused(V2, v2, sizeof v2 / sizeof *v2);
	check_refused(V3, v3, sizeof v3 / sizeof *v3);
	check_refused(KIMI, kimi, sizeof kimi / sizeof *kimi);
}

/* Ling 3: every sixth layer is of latent attention, the first two have no experts. */
static void bailing_hybrid_by_default(void **state)
{
	(void)state;
	static const char config[] =
		LEAST("bailing_hybrid", "12") ",\"num_experts\":16,\"num_experts_per_tok\":2,"
									  "\"moe_intermediate_size\":24}";
	struct mx_plan *p = plan_of(config, "{\"partial_rotary_factor\":0.5,\"head_dim\":24}");
	for (uint32_t i = 0; i < 12; i++) {
		const struct mx_plan_block *b = p->layers[i].blocks;
		assert_string_equal(b->mixers[0].mixer, i % 6 == 5 ? "mla" : "gla");
		assert_int_equal(b[1].kind, i < 2 ? MX_BLOCK_MLP : MX_BLOCK_EXPERTS);
	}
	const struct mx_router_rule *rule = &p->layers[2].blocks[1].experts.rule;
	assert_true(rule->groups == 8 && rule->kept_groups == 4 && rule->scale == 2.5f);
	assert_string_equal(p->layers[2].blocks[1].experts.correction,
	                    "model.layers.2.mlp.gate.expert_bias");
	assert_string_equal(mx_param_string(params_of(p, 0), "variant", ""), "ling");
	assert_int_equal(get_int(p, 0, "head_dim"), 24);
	assert_int_equal(get_int(p, 0, "num_heads"), 4);
	assert_true(number(p, 0, "lower_bound") == -5);
	assert_int_equal(get_int(p, 5, "head_gate"), 1);
	assert_int_equal(get_int(p, 5, "rope_pairs"), 1);
	mx_plan_destroy(p);

	p = plan_of(config, "{\"kda_safe_gate\":false}");
	assert_null(mx_param_find(params_of(p, 0), "lower_bound"));
	mx_plan_destroy(p);

	static const struct refused cases[] = {
		{"{\"group_norm_size\":4}", MX_E_UNSUPPORTED, "lightning attention (Ling 2.5)"},
		{"{\"score_function\":\"softmax\"}", MX_E_UNSUPPORTED, "score_function"},
		{"{\"kda_lower_bound\":1}", MX_E_RANGE, "kda_lower_bound"},
		{"{\"layer_types\":[\"full_attention\"]}", MX_E_INVALID, "layer_types"},
	};
	check_refused(config, cases, sizeof cases / sizeof *cases);
}

static void mistral4_and_youtu_by_default(void **state)
{
	(void)state;
	static const char mistral[] =
		"{\"model_type\":\"mistral4\",\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":"
		"100,"
		"\"num_hidden_layers\":2,\"num_attention_heads\":4,\"n_routed_experts\":8,"
		"\"num_experts_per_tok\":2,\"moe_intermediate_size\":24}";
	struct mx_plan *p = plan_of(
		mistral, "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":128,"
				 "\"llama_4_scaling_beta\":0.1,\"original_max_position_embeddings\":8192}}");
	const struct mx_plan_experts *x = &feed_forward(p, 0)->experts;
	assert_true(x->rule.scores == MX_ROUTER_SOFTMAX && x->rule.normalize && !x->rule.by_best);
	assert_true(!x->correction && x->rule.scale == 1 && feed_forward(p, 1)->mlp.width == 24);
	assert_int_equal(get_int(p, 0, "kv_lora_rank"), 256);
	assert_int_equal(get_int(p, 0, "qk_nope_head_dim"), 64);
	assert_int_equal(get_int(p, 0, "q_scale_length"), 8192);
	assert_true(fabs(number(p, 0, "q_scale_beta") - 0.1) < 1e-12);
	mx_plan_destroy(p);
	const struct refused part[] = {
		{"{\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}",
	     MX_E_RANGE, "partial_rotary_factor: 32 elements of a head are not qk_rope_head_dim 64"}};
	check_refused(mistral, part, 1);
	p = plan_of(mistral, "{\"rope_parameters\":{\"rope_type\":\"default\","
	                     "\"partial_rotary_factor\":0.5}}");
	mx_plan_destroy(p);
	p = plan_of(mistral, "{}");
	assert_null(mx_param_find(params_of(p, 0), "q_scale_beta"));
	mx_plan_destroy(p);

	p = plan_of("{\"model_type\":\"youtu\",\"hidden_size\":64,\"intermediate_size\":96,"
	            "\"vocab_size\":100,\"num_hidden_layers\":1,\"num_attention_heads\":4}",
	            "{}");
	assert_true(feed_forward(p, 0)->kind == MX_BLOCK_MLP && p->lm_head == p->embed);
	assert_int_equal(get_int(p, 0, "q_lora_rank"), 1536);
	mx_plan_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_have_their_defaults),
		cmocka_unit_test(yarn_scales_scores),
		cmocka_unit_test(routers_have_their_families_rules),
		cmocka_unit_test(kimi_linear_has_two_spellings),
		cmocka_unit_test(bailing_hybrid_by_default),
		cmocka_unit_test(mistral4_and_youtu_by_default),
		cmocka_unit_test(what_is_not_supported_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
