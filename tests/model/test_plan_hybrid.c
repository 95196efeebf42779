/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for hybrids and mixtures of experts: what
 * configs that leave keys out mean, old spellings, and what is refused. The arithmetic is tested by
 * the golden checkpoints, whose configs say most of their keys.
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

/* The least that a config must have, before keys of its own. */
#define LEAST(type, layers)                                                                        \
	"{\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":100," \
	"\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,\"num_key_value_heads\":2"
#define EXPERTS                                                                                    \
	",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"                   \
	"\"shared_expert_intermediate_size\":40"

static const char *mixer(const struct mx_plan *p, uint32_t layer)
{
	const struct mx_plan_block *b = p->layers[layer].blocks;
	return b->kind == MX_BLOCK_MIXER ? b->mixers[0].mixer : "";
}

static const struct mx_plan_block *feed_forward(const struct mx_plan *p, uint32_t layer)
{
	return &p->layers[layer].blocks[p->layers[layer].n_blocks - 1];
}

static void experts_have_their_families_rules(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("mixtral", "1") ",\"num_local_experts\":4,"
	                                                  "\"num_experts_per_tok\":2}",
	                            "{}");
	const struct mx_plan_experts *x = &feed_forward(p, 0)->experts;
	assert_true(x->n == 4 && x->width == 96 && x->rule.chosen == 2 && x->rule.normalize);
	assert_int_equal(x->rule.scores, MX_ROUTER_SOFTMAX);
	assert_true(x->rule.scale == 1 && !x->correction && !x->shared_gate && x->gated);
	assert_string_equal(x->router, "model.layers.0.block_sparse_moe.gate.weight");
	assert_string_equal(x->list, "model.layers.0.block_sparse_moe.experts.");
	assert_string_equal(x->gate, ".w1.weight");
	mx_plan_destroy(p);

	p = plan_of(LEAST("qwen2_moe", "1") EXPERTS "}", "{}");
	x = &feed_forward(p, 0)->experts;
	assert_false(x->rule.normalize);
	assert_int_equal(feed_forward(p, 0)->mlp.width, 40);
	assert_string_equal(x->shared_gate, "model.layers.0.mlp.shared_expert_gate.weight");
	assert_false(x->shared_gate_optional);
	assert_int_equal(get_int(p, 0, "bias"), 1);
	mx_plan_destroy(p);

	/* sparse where (i + 1) is a multiple of the step, but for the list */
	p = plan_of(LEAST("qwen3_moe", "6") EXPERTS ",\"head_dim\":16,\"decoder_sparse_step\":2,"
	                                            "\"mlp_only_layers\":[3],\"norm_topk_prob\":true}",
	            "{}");
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(feed_forward(p, i)->kind,
		                 i == 1 || i == 5 ? MX_BLOCK_EXPERTS : MX_BLOCK_MLP);
	assert_true(feed_forward(p, 1)->experts.rule.normalize);
	mx_plan_destroy(p);

	p = plan_of(
		LEAST("glm4_moe", "2") ",\"n_routed_experts\":8,\"num_experts_per_tok\":3,"
							   "\"moe_intermediate_size\":24,\"n_shared_experts\":2,\"n_group\":4,"
							   "\"topk_group\":2,\"routed_scaling_factor\":2.5}",
		"{}");
	assert_int_equal(feed_forward(p, 0)->kind, MX_BLOCK_MLP);
	x = &feed_forward(p, 1)->experts;
	assert_true(x->rule.scores == MX_ROUTER_SIGMOID && x->rule.normalize && x->rule.scale == 2.5f);
	assert_true(x->rule.groups == 4 && x->rule.kept_groups == 2 && x->rule.sum_epsilon == 1e-20f);
	assert_int_equal(feed_forward(p, 1)->mlp.width, 48);
	assert_string_equal(x->correction, "model.layers.1.mlp.gate.e_score_correction_bias");
	assert_true(p->skips_layers);
	assert_int_equal(get_int(p, 0, "rope_dim"), 8);
	mx_plan_destroy(p);
}

static void granite_and_falcon_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		LEAST("granitemoehybrid", "3") ",\"shared_intermediate_size\":48,\"num_local_experts\":0,"
									   "\"layer_types\":[\"mamba\",\"attention\",\"linear_"
									   "attention\"],\"mamba_n_heads\":8,"
									   "\"logits_scaling\":4,\"residual_multiplier\":0.5}",
		"{}");
	assert_string_equal(mixer(p, 0), "mamba");
	assert_string_equal(mixer(p, 1), "attention");
	assert_string_equal(mixer(p, 2), "mamba");
	assert_int_equal(get_int(p, 0, "head_dim"), 16);
	assert_int_equal(get_int(p, 0, "state_size"), 256);
	assert_string_equal(mx_param_string(params_of(p, 1), "rope", ""), "none");
	/* the multiplier is the scale itself, and 1 if it is absent */
	assert_true(mx_param_float(params_of(p, 1), "scale", 0) == 1);
	assert_true(p->logit_scale == 0.25f && feed_forward(p, 0)->residual_scale == 0.5f);
	assert_true(feed_forward(p, 0)->mlp.fused);
	mx_plan_destroy(p);

	p = plan_of(LEAST("falcon_h1", "1") ",\"mamba_d_ssm\":96,\"mamba_n_heads\":6,"
	                                    "\"key_multiplier\":0.5,\"mlp_multipliers\":[2,3]}",
	            "{}");
	const struct mx_plan_block *b = p->layers[0].blocks;
	assert_int_equal(b->n_mixers, 2);
	assert_string_equal(b->mixers[0].mixer, "mamba");
	assert_string_equal(b->mixers[1].mixer, "attention");
	assert_int_equal(mx_param_int(&b->mixers[0].params, "head_dim", 0), 16);
	assert_int_equal(mx_param_int(&b->mixers[0].params, "rms_norm", 1), 0);
	assert_int_equal(mx_param_int(&b->mixers[0].params, "norm_before_gate", 0), 1);
	assert_null(mx_param_find(&b->mixers[0].params, "multipliers"));
	assert_true(mx_param_float(&b->mixers[1].params, "scale", 0) == 0.125);
	assert_true(b[1].mlp.gate_scale == 2 && b[1].residual_scale == 3);
	mx_plan_destroy(p);

	p = plan_of(LEAST("bamba", "2") ",\"attn_layer_indices\":[1],\"mamba_n_heads\":8}", "{}");
	assert_string_equal(mixer(p, 0), "mamba");
	assert_int_equal(get_int(p, 1, "rope_dim"), 8);
	mx_plan_destroy(p);
}

#define NEMOTRON                                                                                   \
	LEAST("nemotron_h", "9")                                                                       \
	",\"head_dim\":16,\"mamba_num_heads\":8,\"mamba_head_dim\":16,"                                \
	"\"ssm_state_size\":16"

static void nemotron_layers_are_one_block_each(void **state)
{
	(void)state;
	/* the pattern's length counts, not num_hidden_layers; older names of keys are read */
	struct mx_plan *p = plan_of(
		NEMOTRON ",\"hybrid_override_pattern\":\"M-*M\",\"mamba_n_groups\":2,\"mamba_d_conv\":3,"
				 "\"time_step_min\":0.001,\"tie_word_embeddings\":true}",
		"{}");
	assert_int_equal(p->n_layers, 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(p->layers[i].n_blocks, 1);
	assert_string_equal(mixer(p, 0), "mamba");
	assert_int_equal(p->layers[1].blocks[0].mlp.act, MX_ACT_RELU2);
	assert_null(p->layers[1].blocks[0].mlp.gate);
	assert_string_equal(mixer(p, 2), "attention");
	assert_int_equal(get_int(p, 3, "n_groups"), 2);
	assert_int_equal(get_int(p, 3, "conv_kernel"), 3);
	/* the step is not clamped to time_step_min */
	assert_true(mx_param_find(params_of(p, 0), "time_step_limit")->v[0] == 0);
	assert_string_equal(p->lm_head, "lm_head.weight");
	mx_plan_destroy(p);
}

static void qwen3_next_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("qwen3_next", "4") EXPERTS "}", "{}");
	for (uint32_t i = 0; i < 4; i++)
		assert_string_equal(mixer(p, i), i == 3 ? "attention" : "gla");
	assert_string_equal(mx_param_string(params_of(p, 0), "tensors", ""), "qwen3_next");
	assert_int_equal(get_int(p, 3, "gate"), 1);
	assert_int_equal(get_int(p, 3, "rope_dim"), 64);
	assert_true(p->norm_plus_one && feed_forward(p, 0)->experts.rule.normalize);
	mx_plan_destroy(p);

	p = plan_of(
		"{\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":false,\"text_config\":" LEAST(
			"qwen3_5_moe_text", "4") EXPERTS ",\"norm_topk_prob\":false}}",
		"{}");
	assert_string_equal(mx_param_string(params_of(p, 0), "tensors", ""), "qwen3_5");
	assert_true(feed_forward(p, 0)->experts.rule.normalize); /* always */
	assert_string_equal(p->roots[1], "model.language_model.");
	mx_plan_destroy(p);
}

static void lfm2_and_jamba_by_default(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(LEAST("lfm2", "3") ",\"block_ff_dim\":12288,"
	                               "\"full_attn_idxs\":[1],\"tie_embedding\":false}",
	            "{}");
	assert_string_equal(mixer(p, 0), "shortconv");
	assert_string_equal(mixer(p, 1), "attention");
	assert_int_equal(feed_forward(p, 0)->mlp.width, 8192);
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_true(mx_param_float(params_of(p, 1), "rope_theta", 0) == 1e6);
	mx_plan_destroy(p);

	p = plan_of(LEAST("lfm2_moe", "3") EXPERTS ",\"layer_types\":[\"conv\",\"conv\",\"conv\"]}",
	            "{}");
	assert_int_equal(feed_forward(p, 1)->kind, MX_BLOCK_MLP);
	assert_int_equal(feed_forward(p, 1)->mlp.width, 96);
	assert_true(feed_forward(p, 2)->experts.rule.sum_epsilon == 1e-6f);
	assert_string_equal(feed_forward(p, 2)->experts.correction,
	                    "model.layers.2.feed_forward.expert_bias");
	mx_plan_destroy(p);

	p = plan_of(LEAST("jamba", "8") ",\"num_experts\":4,\"num_experts_per_tok\":2}", "{}");
	for (uint32_t i = 0; i < 8; i++) {
		assert_string_equal(mixer(p, i), i == 4 ? "attention" : "mamba1");
		assert_int_equal(feed_forward(p, i)->kind, i % 2 ? MX_BLOCK_EXPERTS : MX_BLOCK_MLP);
	}
	assert_false(feed_forward(p, 1)->experts.rule.normalize);
	assert_int_equal(get_int(p, 0, "time_step_rank"), 4);
	mx_plan_destroy(p);
}

/* A config that says no more than its sizes: every fourth layer is of attention, or the last of
 * fewer; without rope. */
static void olmo_hybrid_by_default(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(LEAST("olmo_hybrid", "8") "}", "{}");
	for (uint32_t i = 0; i < 8; i++) {
		const struct mx_plan_block *b = p->layers[i].blocks;
		const bool full = i % 4 == 3;
		assert_string_equal(mixer(p, i), full ? "attention" : "gla");
		assert_true(!b[0].norm == full && !b[0].post_norm == !full);
		assert_true(!b[1].norm == full && !b[1].post_norm == !full);
	}
	assert_string_equal(p->layers[3].blocks[1].post_norm,
	                    "model.layers.3.post_feedforward_layernorm.weight");
	assert_string_equal(mx_param_string(params_of(p, 3), "rope", ""), "none");
	assert_int_equal(get_int(p, 3, "qk_norm_whole"), 1);
	assert_int_equal(get_int(p, 0, "num_v_heads"), 4);
	assert_int_equal(get_int(p, 0, "head_dim"), 12);
	assert_true(mx_param_float(params_of(p, 0), "expand_v", 0) == 2);
	assert_int_equal(get_int(p, 0, "allow_neg_eigval"), 1);
	mx_plan_destroy(p);

	p = plan_of(LEAST("olmo_hybrid", "2") "}", "{\"rope_parameters\":{\"rope_theta\":1e5}}");
	assert_string_equal(mixer(p, 1), "attention");
	assert_string_equal(mx_param_string(params_of(p, 1), "rope", ""), "default");
	mx_plan_destroy(p);

	static const struct refused cases[] = {
		{"{\"layer_types\":[\"linear_attention\",\"conv\"]}", MX_E_UNSUPPORTED, "layer_types[1]"},
		{"{\"linear_num_key_heads\":0}", MX_E_RANGE, "linear_num_key_heads"},
	};
	check_refused(LEAST("olmo_hybrid", "2") "}", cases, sizeof cases / sizeof *cases);
}

static void what_is_not_done_is_refused(void **state)
{
	static const struct refused mixtral[] = {
		{"{\"num_experts_per_tok\":9}", MX_E_RANGE, "num_experts_per_tok"},
		{"{\"num_local_experts\":\"-\"}", MX_E_INVALID, "num_experts"},
	};
	static const struct refused qwen[] = {
		{"{\"qkv_bias\":false}", MX_E_UNSUPPORTED, "qkv_bias"},
		{"{\"use_sliding_window\":true}", MX_E_UNSUPPORTED, "without layer_types"},
		{"{\"shared_expert_intermediate_size\":\"-\"}", MX_E_INVALID,
	     "shared_expert_intermediate_size"},
	};
	static const struct refused glm[] = {
		{"{\"n_group\":3}", MX_E_RANGE, "8 experts in 3 groups"},
		{"{\"n_group\":8}", MX_E_RANGE, "8 experts in 8 groups"},
		{"{\"n_group\":4,\"topk_group\":1}", MX_E_RANGE, "fewer than the 3 of a token"},
		{"{\"n_group\":1000}", MX_E_RANGE, "n_group"},
	};
	static const struct refused nemotron[] = {
		{"{\"hybrid_override_pattern\":\"MX\"}", MX_E_UNSUPPORTED, "layer 1 is none of"},
		{"{\"hybrid_override_pattern\":\"\"}", MX_E_INVALID, "must be a list"},
		{"{\"mlp_hidden_act\":\"silu\"}", MX_E_UNSUPPORTED, "mlp_hidden_act"},
		{"{\"mamba_num_heads\":\"-\"}", MX_E_INVALID, "mamba_num_heads"},
	};
	static const struct refused granite[] = {
		{"{\"layer_types\":[\"mamba\"]}", MX_E_INVALID, "layer_types: must be a list of 2"},
		{"{\"layer_types\":[\"mamba\",\"rwkv\"]}", MX_E_UNSUPPORTED, "'rwkv' is neither"},
		{"{\"position_embedding_type\":\"alibi\"}", MX_E_UNSUPPORTED, "'alibi' is not rope"},
		{"{\"residual_multiplier\":0}", MX_E_RANGE, "residual_multiplier: must not be 0"},
		{"{\"mamba_d_head\":24}", MX_E_RANGE, "8 heads of 24"},
	};
	static const struct refused lfm[] = {
		{"{\"layer_types\":[\"conv\",\"mamba\"]}", MX_E_UNSUPPORTED, "'mamba' is neither conv"},
		{"{\"block_ffn_dim_multiplier\":0}", MX_E_RANGE, "block_ffn_dim_multiplier"},
	};
	(void)state;
	check_refused(LEAST("mixtral", "1") ",\"num_local_experts\":4,\"num_experts_per_tok\":2}",
	              mixtral, sizeof mixtral / sizeof *mixtral);
	check_refused(LEAST("qwen2_moe", "1") EXPERTS "}", qwen, sizeof qwen / sizeof *qwen);
	check_refused(LEAST("glm4_moe", "2") ",\"n_routed_experts\":8,\"num_experts_per_tok\":3,"
	                                     "\"moe_intermediate_size\":24}",
	              glm, sizeof glm / sizeof *glm);
	check_refused(NEMOTRON ",\"hybrid_override_pattern\":\"M-\"}", nemotron,
	              sizeof nemotron / sizeof *nemotron);
	check_refused(LEAST("granitemoehybrid",
	                    "2") ",\"shared_intermediate_size\":48,"
	                         "\"num_local_experts\":0,\"layer_types\":[\"mamba\",\"attention\"],"
	                         "\"mamba_n_heads\":8}",
	              granite, sizeof granite / sizeof *granite);
	check_refused(LEAST("lfm2", "2") ",\"layer_types\":[\"conv\",\"conv\"]}", lfm,
	              sizeof lfm / sizeof *lfm);
}

/* Shared transformers stand before some layers and take turns; each use has adapters of its own. */
static void zamba2_shares_transformers(void **state)
{
	(void)state;
	static const char config[] =
		"{\"model_type\":\"zamba2\",\"hidden_size\":64,\"num_hidden_layers\":5,\"vocab_size\":100,"
		"\"num_attention_heads\":4,\"n_mamba_heads\":8,\"num_mem_blocks\":2,\"adapter_rank\":6,"
		"\"layers_block_type\":[\"mamba\",\"hybrid\",\"hybrid\",\"linear_attention\",\"hybrid\"]}";
	struct mx_plan *p = plan_of(config, "{}");
	static const uint32_t owner[] = {0, 1, 2, 0, 1}, use[] = {0, 0, 1, 0, 2};
	assert_true(p->lm_head == p->embed);
	for (uint32_t i = 0; i < 5; i++) {
		const struct mx_plan_block *b = p->layers[i].blocks;
		char name[128];
		bool hybrid = owner[i] > 0;
		assert_int_equal(p->layers[i].n_blocks, 1 + hybrid);
		snprintf(name, sizeof name, "model.layers.%u.%smamba.", i, hybrid ? "mamba_decoder." : "");
		assert_string_equal(b[hybrid].mixers[0].prefix, name);
		if (!hybrid)
			continue;
		assert_int_equal(b->kind, MX_BLOCK_ASIDE);
		snprintf(name, sizeof name, "model.layers.%u.shared_transformer.self_attn.", owner[i]);
		assert_string_equal(b->mixers[0].prefix, name);
		snprintf(name, sizeof name,
		         "model.layers.%u.shared_transformer.feed_forward.gate_up_proj_adapter_list.%u.1."
		         "weight",
		         owner[i], use[i]);
		assert_string_equal(b->mlp.adapter_out, name);
		snprintf(name, sizeof name, "model.layers.%u.linear.weight", i);
		assert_string_equal(b->aside.out, name);
		assert_true(b->mlp.rank == 6 && b->mlp.width == 256 && b->mlp.act == MX_ACT_GELU);
	}
	const struct mx_params *attention = params_of(p, 1);
	assert_int_equal(get_int(p, 1, "head_dim"), 32);
	assert_int_equal(get_int(p, 1, "input_width"), 128);
	assert_true(mx_param_float(attention, "scale", 0) == 0.25);
	assert_string_equal(mx_param_string(attention, "rope", ""), "none");
	assert_null(mx_param_find(attention, "adapter_rank"));
	assert_true(p->skipped && p->skipped[0] && !p->skipped[1]);
	assert_string_equal(p->skipped[0], "model.layers.4.shared_transformer.*");
	mx_plan_destroy(p);

	p = plan_of(config, "{\"use_shared_attention_adapter\":true,\"use_mem_rope\":true}");
	assert_string_equal(mx_param_string(params_of(p, 4), "k_adapter_in", ""),
	                    "linear_k_adapter_list.2.0.weight");
	assert_int_equal(get_int(p, 4, "adapter_rank"), 6);
	assert_string_equal(mx_param_string(params_of(p, 4), "rope", ""), "default");
	mx_plan_destroy(p);

	const struct refused cases[] = {
		{"{\"use_long_context\":true}", MX_E_UNSUPPORTED, "use_long_context"},
		{"{\"tie_word_embeddings\":false}", MX_E_UNSUPPORTED, "tie_word_embeddings"},
		{"{\"layers_block_type\":[\"mamba\",\"mamba\",\"mamba\",\"mamba\",\"attention\"]}",
	     MX_E_UNSUPPORTED, "layers_block_type[4]: 'attention' is neither mamba nor hybrid"},
	};
	check_refused(config, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_have_their_families_rules),
		cmocka_unit_test(granite_and_falcon_by_default),
		cmocka_unit_test(nemotron_layers_are_one_block_each),
		cmocka_unit_test(qwen3_next_by_default),
		cmocka_unit_test(lfm2_and_jamba_by_default),
		cmocka_unit_test(olmo_hybrid_by_default),
		cmocka_unit_test(zamba2_shares_transformers),
		cmocka_unit_test(what_is_not_done_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
