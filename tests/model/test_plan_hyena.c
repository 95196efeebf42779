/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan for models with long convolutions: the meaning
 * of each dialect's keys, and the message for what is not supported.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

/* ---- HyenaDNA ---- */

/* As LongSafari/hyenadna-tiny-1k-seqlen-hf has it, smaller. */
static const char hyenadna[] =
	"{\"activation_freq\":10,\"architectures\":[\"HyenaDNAForCausalLM\"],\"d_inner\":64,"
	"\"d_model\":32,\"emb_dim\":5,\"embed_dropout\":0.1,\"filter_order\":16,\"hyena_dropout\":0.0,"
	"\"hyena_filter_dropout\":0.0,\"hyena_order\":2,\"initializer_range\":0.02,"
	"\"layer_norm_epsilon\":1e-05,\"max_seq_len\":1026,\"model_type\":\"hyenadna\",\"n_layer\":2,"
	"\"num_inner_mlps\":3,\"pad_token_id\":4,\"pad_vocab_size_multiple\":8,"
	"\"short_filter_order\":3,\"tie_word_embeddings\":false,\"train_freq\":true,"
	"\"use_bias\":true,\"vocab_size\":12}";

static void hyenadna_layers_are_a_mixer_and_a_feed_forward(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(hyenadna, "{}");
	assert_string_equal(p->family, "hyenadna");
	assert_int_equal(p->width, 32);
	assert_int_equal(p->vocab, 16);
	assert_int_equal(p->n_layers, 2);
	assert_int_equal(p->max_context, 1026);
	assert_int_equal(p->norm, MX_NORM_LAYER);
	assert_true(p->norm_eps == 1e-5f);
	assert_string_equal(p->embed, "hyena.backbone.embeddings.word_embeddings.weight");
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_string_equal(p->final_norm, "hyena.backbone.ln_f.weight");
	assert_string_equal(p->layer_prefix, "hyena.backbone.layers.");
	assert_int_equal(p->n_eos, 1);
	assert_int_equal(p->eos[0], 1); /* [SEP] */

	const struct mx_plan_layer *l = &p->layers[1];
	assert_int_equal(l->n_blocks, 2);
	assert_string_equal(l->blocks[0].norm, "hyena.backbone.layers.1.norm1.weight");
	assert_string_equal(l->blocks[0].mixers[0].mixer, "hyena");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "hyena.backbone.layers.1.mixer.");
	assert_string_equal(l->blocks[1].norm, "hyena.backbone.layers.1.norm2.weight");
	assert_int_equal(l->blocks[1].mlp.act, MX_ACT_GELU_TANH);
	assert_null(l->blocks[1].mlp.gate);
	assert_null(l->blocks[1].mlp.gate);
	assert_string_equal(l->blocks[1].mlp.up, "hyena.backbone.layers.1.mlp.fc1.weight");
	assert_string_equal(l->blocks[1].mlp.down, "hyena.backbone.layers.1.mlp.fc2.weight");
	assert_int_equal(l->blocks[1].mlp.width, 64);
	assert_true(l->blocks[1].mlp.bias);

	assert_int_equal(get_int(p, 1, "filter_len"), 1026);
	assert_int_equal(get_int(p, 1, "emb_dim"), 5);
	assert_int_equal(get_int(p, 1, "filter_order"), 16);
	assert_int_equal(get_int(p, 1, "inner_mlps"), 3);
	assert_int_equal(get_int(p, 1, "short_filter"), 3);
	assert_int_equal(get_int(p, 1, "modulate"), 1);
	assert_true(mx_param_float(params_of(p, 1), "shift", 0) == 0.05);
	mx_plan_destroy(p);
}

static void hyenadna_has_defaults(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(hyenadna, "{\"d_inner\":null,\"emb_dim\":\"-\",\"filter_order\":\"-\","
	                      "\"num_inner_mlps\":\"-\",\"max_seq_len\":\"-\","
	                      "\"tie_word_embeddings\":\"-\",\"layer_norm_epsilon\":\"-\","
	                      "\"pad_vocab_size_multiple\":1,\"eos_token_id\":3}");
	assert_int_equal(p->vocab, 12);
	assert_int_equal(p->max_context, 1024);
	assert_true(p->norm_eps == 1e-5f);
	assert_string_equal(p->lm_head, p->embed);
	assert_int_equal(p->eos[0], 3);
	assert_int_equal(p->layers[0].blocks[1].mlp.width, 128);
	assert_int_equal(get_int(p, 0, "filter_len"), 1024);
	assert_int_equal(get_int(p, 0, "emb_dim"), 3);
	assert_int_equal(get_int(p, 0, "filter_order"), 64);
	assert_int_equal(get_int(p, 0, "inner_mlps"), 2);
	mx_plan_destroy(p);
}

static void hyenadna_of_another_kind_is_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"hyena_order\":3}", MX_E_UNSUPPORTED, "hyena_order: 3 is not supported, only 2"},
		{"{\"short_filter_order\":4}", MX_E_UNSUPPORTED,
	     "short_filter_order: 4 is not supported, only 3"},
		{"{\"train_freq\":false}", MX_E_UNSUPPORTED, "train_freq: false is not supported"},
		{"{\"layer_norm_epsilon\":1e-6}", MX_E_UNSUPPORTED,
	     "layer_norm_epsilon: 1e-06 is not supported"},
		{"{\"emb_dim\":4}", MX_E_RANGE, "emb_dim: 4 is not an odd number above 2"},
		{"{\"emb_dim\":1}", MX_E_RANGE, "emb_dim: 1 is not an odd number above 2"},
		{"{\"filter_order\":0}", MX_E_RANGE, "filter_order: 0 is outside"},
		{"{\"num_inner_mlps\":9}", MX_E_RANGE, "num_inner_mlps: 9 is outside"},
		{"{\"max_seq_len\":0}", MX_E_RANGE, "max_seq_len: 0 is outside"},
		{"{\"max_seq_len\":16777217}", MX_E_RANGE, "max_seq_len: 16777217 is outside"},
		{"{\"n_layer\":\"-\"}", MX_E_INVALID, "n_layer: is missing"},
		{"{\"d_model\":\"-\"}", MX_E_INVALID, "d_model: is missing"},
		{"{\"d_inner\":0}", MX_E_RANGE, "d_inner: 0 is outside"},
		{"{\"pad_vocab_size_multiple\":0}", MX_E_RANGE, "pad_vocab_size_multiple: 0 is outside"},
		{"{\"eos_token_id\":16}", MX_E_RANGE, "eos_token_id: 16 is not below"},
	};
	check_refused(hyenadna, cases, sizeof cases / sizeof *cases);
}

/* ---- safari ---- */

/* Hyena-small's arguments (safari's configs/evals/hyena_small_150b.yaml), smaller. */
static const char safari[] =
	"{\"model_type\":\"safari\",\"d_model\":32,\"d_inner\":64,\"n_layer\":2,\"vocab_size\":50257,"
	"\"embed_dropout\":0.0,\"layer\":{\"_name_\":\"hyena\",\"emb_dim\":33,\"filter_order\":64,"
	"\"local_order\":3,\"l_max\":2048,\"modulate\":false,\"w\":14},\"fused_mlp\":true,"
	"\"fused_dropout_add_ln\":true,\"residual_in_fp32\":true,\"pad_vocab_size_multiple\":8}";

static void safari_has_arguments_for_keys(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(safari, "{}");
	assert_string_equal(p->family, "safari");
	assert_int_equal(p->vocab, 50264);
	assert_int_equal(p->max_context, 2048);
	assert_int_equal(p->norm, MX_NORM_LAYER);
	assert_string_equal(p->embed, "backbone.embeddings.word_embeddings.weight");
	assert_string_equal(p->lm_head, p->embed);
	assert_string_equal(p->final_norm, "backbone.ln_f.weight");
	assert_string_equal(p->layers[1].blocks[0].norm, "backbone.layers.1.norm1.weight");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].prefix, "backbone.layers.1.mixer.");
	assert_int_equal(p->layers[1].blocks[1].mlp.width, 64);
	assert_int_equal(p->n_eos, 0);
	assert_int_equal(get_int(p, 1, "filter_len"), 2048);
	assert_int_equal(get_int(p, 1, "emb_dim"), 33);
	assert_int_equal(get_int(p, 1, "filter_order"), 64);
	assert_int_equal(get_int(p, 1, "inner_mlps"), 2);
	assert_int_equal(get_int(p, 1, "short_filter"), 3); /* nothing reads local_order */
	assert_int_equal(get_int(p, 1, "modulate"), 0);
	assert_true(mx_param_float(params_of(p, 1), "shift", 1) == 0);
	mx_plan_destroy(p);

	p = plan_of(safari, "{\"layer_norm_epsilon\":1e-6,\"pad_vocab_size_multiple\":\"-\","
	                    "\"d_inner\":\"-\",\"max_position_embeddings\":0,\"attn_layer_idx\":[],"
	                    "\"layer\":{\"modulate\":\"-\",\"shift\":0.05,\"short_filter_order\":4,"
	                    "\"num_inner_mlps\":1,\"emb_dim\":\"-\",\"filter_order\":\"-\"}}");
	assert_int_equal(p->vocab, 50257);
	assert_true(p->norm_eps == 1e-6f);
	assert_int_equal(p->layers[0].blocks[1].mlp.width, 128);
	assert_int_equal(get_int(p, 0, "modulate"), 1);
	assert_true(mx_param_float(params_of(p, 0), "shift", 0) == 0.05);
	assert_int_equal(get_int(p, 0, "short_filter"), 4);
	assert_int_equal(get_int(p, 0, "inner_mlps"), 1);
	assert_int_equal(get_int(p, 0, "emb_dim"), 3);
	assert_int_equal(get_int(p, 0, "filter_order"), 64);
	mx_plan_destroy(p);
}

static void safari_of_another_kind_is_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"layer\":\"-\"}", MX_E_INVALID, "layer: must be an object"},
		{"{\"layer\":[]}", MX_E_INVALID, "layer: must be an object"},
		{"{\"layer\":{\"l_max\":\"-\"}}", MX_E_INVALID, "layer.l_max: is missing"},
		{"{\"layer\":{\"l_maxx\":1}}", MX_E_INVALID, "layer.l_maxx: unknown key"},
		{"{\"layer\":{\"_name_\":\"h3\"}}", MX_E_UNSUPPORTED,
	     "layer._name_: 'h3' is not supported, only hyena"},
		{"{\"layer\":{\"order\":3}}", MX_E_UNSUPPORTED, "layer.order: 3 is not supported, only 2"},
		{"{\"layer\":{\"num_heads\":2}}", MX_E_UNSUPPORTED, "layer.num_heads: 2 is not supported"},
		{"{\"layer\":{\"inner_factor\":2}}", MX_E_UNSUPPORTED,
	     "layer.inner_factor: 2 is not supported"},
		{"{\"layer\":{\"num_blocks\":2}}", MX_E_UNSUPPORTED,
	     "layer.num_blocks: 2 is not supported"},
		{"{\"layer\":{\"outer_mixing\":true}}", MX_E_UNSUPPORTED,
	     "layer.outer_mixing: true is not supported"},
		{"{\"layer\":{\"post_order_ffn\":true}}", MX_E_UNSUPPORTED,
	     "layer.post_order_ffn: true is not supported"},
		{"{\"layer\":{\"normalized\":true}}", MX_E_UNSUPPORTED,
	     "layer.normalized: true is not supported"},
		{"{\"layer\":{\"bias\":false}}", MX_E_UNSUPPORTED, "layer.bias: false is not supported"},
		{"{\"layer\":{\"activation\":\"gelu\"}}", MX_E_UNSUPPORTED,
	     "layer.activation: 'gelu' is not supported, only id"},
		{"{\"layer\":{\"filter_cls\":\"ssm\"}}", MX_E_UNSUPPORTED,
	     "layer.filter_cls: 'ssm' is not supported"},
		{"{\"layer\":{\"emb_dim\":6}}", MX_E_RANGE, "layer.emb_dim: 6 is not an odd number"},
		{"{\"layer\":{\"l_max\":16777217}}", MX_E_RANGE, "layer.l_max: 16777217 is outside"},
		{"{\"layer\":{\"shift\":\"x\"}}", MX_E_INVALID, "layer.shift: must be a number"},
		{"{\"attn_layer_idx\":[1]}", MX_E_UNSUPPORTED, "attn_layer_idx: attention layers"},
		{"{\"max_position_embeddings\":1024}", MX_E_UNSUPPORTED,
	     "max_position_embeddings: 1024 is not supported, only 0"},
		{"{\"n_layer\":0}", MX_E_RANGE, "n_layer: 0 is outside"},
	};
	check_refused(safari, cases, sizeof cases / sizeof *cases);
}

/* ---- StripedHyena ---- */

/* As togethercomputer/StripedHyena-Nous-7B has it, smaller; it lists one hyena layer too many. */
static const char striped[] =
	"{\"architectures\":[\"StripedHyenaModelForCausalLM\"],\"attn_layer_idxs\":[1],"
	"\"column_split\":false,\"column_split_hyena\":true,\"eps\":1e-05,\"final_norm\":true,"
	"\"hidden_size\":64,\"hyena_filter_groups\":1,\"hyena_layer_idxs\":[0,2,3],"
	"\"inference_mode\":false,\"inner_mlp_size\":96,\"log_intermediate_values\":false,"
	"\"make_vocab_size_divisible_by\":8,\"max_seqlen\":4096,\"mha_out_proj_bias\":false,"
	"\"model_parallel_size\":1,\"model_type\":\"stripedhyena\",\"num_attention_heads\":8,"
	"\"num_filters\":64,\"num_layers\":3,\"pipe_parallel_size\":1,\"prefill_style\":\"fft\","
	"\"proj_groups\":4,\"qkv_proj_bias\":false,\"rotary_emb_base\":500000,"
	"\"short_filter_bias\":true,\"short_filter_length\":3,\"smeared_gqa\":false,"
	"\"split_k0\":true,\"state_size\":2,\"tie_embeddings\":false,\"torch_dtype\":\"bfloat16\","
	"\"use_cache\":false,\"use_flash_attention_2\":true,\"use_flash_depthwise\":false,"
	"\"use_flash_rmsnorm\":true,\"use_flashfft\":false,\"vocab_size\":100}";

static void stripedhyena_mixes_two_kinds_of_layers(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(striped, "{}");
	assert_string_equal(p->family, "stripedhyena");
	assert_int_equal(p->width, 64);
	assert_int_equal(p->vocab, 100);
	assert_int_equal(p->n_layers, 3);
	assert_int_equal(p->max_context, 4096);
	assert_int_equal(p->norm, MX_NORM_RMS);
	assert_true(p->norm_eps == 1e-5f);
	assert_string_equal(p->embed, "backbone.embedding_layer.weight");
	assert_string_equal(p->lm_head, "backbone.unembed.weight");
	assert_string_equal(p->final_norm, "backbone.norm.scale");

	const struct mx_plan_layer *l = &p->layers[0];
	assert_string_equal(l->blocks[0].norm, "backbone.blocks.0.pre_norm.scale");
	assert_string_equal(l->blocks[0].mixers[0].mixer, "hyena");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "backbone.blocks.0.");
	assert_string_equal(l->blocks[1].norm, "backbone.blocks.0.post_norm.scale");
	assert_int_equal(l->blocks[1].mlp.act, MX_ACT_SILU);
	assert_string_equal(l->blocks[1].mlp.gate, "backbone.blocks.0.mlp.l1.weight");
	assert_string_equal(l->blocks[1].mlp.up, "backbone.blocks.0.mlp.l2.weight");
	assert_string_equal(l->blocks[1].mlp.down, "backbone.blocks.0.mlp.l3.weight");
	assert_int_equal(l->blocks[1].mlp.width, 96);
	assert_false(l->blocks[1].mlp.bias);
	assert_string_equal(mx_param_string(params_of(p, 0), "filter", ""), "modal");
	assert_int_equal(get_int(p, 0, "state_size"), 2);
	assert_int_equal(get_int(p, 0, "short_filter"), 3);
	assert_int_equal(get_int(p, 0, "heads"), 8);

	l = &p->layers[1];
	assert_string_equal(l->blocks[0].mixers[0].mixer, "attention");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "backbone.blocks.1.inner_mha_cls.");
	const struct mx_params *q = params_of(p, 1);
	assert_int_equal(get_int(p, 1, "fused"), 1);
	assert_int_equal(get_int(p, 1, "heads"), 8);
	assert_int_equal(get_int(p, 1, "kv_heads"), 2);
	assert_int_equal(get_int(p, 1, "head_dim"), 8);
	assert_int_equal(get_int(p, 1, "bias"), 0);
	assert_int_equal(get_int(p, 1, "o_bias"), 0);
	assert_true(mx_param_float(q, "rope_theta", 0) == 500000);
	const struct mx_param *freq = mx_param_find(q, "rope_inv_freq");
	assert_int_equal(freq->n, 4);
	assert_true(freq->v[0] == 1);
	assert_float_equal(freq->v[2], 1 / 707.1067811865, 1e-8);
	assert_string_equal(p->layers[2].blocks[0].mixers[0].mixer, "hyena");
	mx_plan_destroy(p);
}

static void stripedhyena_keys_are_obeyed(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		striped, "{\"tie_embeddings\":true,\"inner_mlp_size\":null,\"inner_size_multiple_of\":16,"
				 "\"proj_groups\":1,\"state_size\":8,\"qkv_proj_bias\":true,"
				 "\"mha_out_proj_bias\":true,\"column_split_hyena\":false,"
				 "\"use_interpolated_rotary_pos_emb\":true,\"rotary_emb_scaling_factor\":16,"
				 "\"rotary_emb_base\":10000,\"short_filter_length\":4,\"eps\":1e-6}");
	assert_string_equal(p->lm_head, p->embed);
	assert_true(p->norm_eps == 1e-6f);
	assert_int_equal(p->layers[0].blocks[1].mlp.width, 176); /* 64 * 8/3 = 170, up to 16 * 11 */
	assert_int_equal(get_int(p, 0, "state_size"), 8);
	assert_int_equal(get_int(p, 0, "heads"), 1);
	assert_int_equal(get_int(p, 0, "short_filter"), 4);
	assert_int_equal(get_int(p, 1, "kv_heads"), 8);
	assert_int_equal(get_int(p, 1, "bias"), 1);
	assert_int_equal(get_int(p, 1, "o_bias"), 1);
	assert_true(mx_param_find(params_of(p, 1), "rope_inv_freq")->v[0] == 1.0 / 16);
	mx_plan_destroy(p);

	p = plan_of(striped, "{\"attn_layer_idxs\":[],\"hyena_layer_idxs\":[0,1,2]}");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].mixer, "hyena");
	mx_plan_destroy(p);
}

static void stripedhyena_of_another_kind_is_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"hyena_filter_groups\":4}", MX_E_UNSUPPORTED,
	     "hyena_filter_groups: 4 is not supported, only 1"},
		{"{\"num_filters\":32}", MX_E_UNSUPPORTED, "num_filters: 32 is not supported, only 64"},
		{"{\"model_parallel_size\":2}", MX_E_UNSUPPORTED, "model_parallel_size: 2"},
		{"{\"mlp_activation\":\"gelu\"}", MX_E_UNSUPPORTED,
	     "mlp_activation: 'gelu' is not supported, only silu"},
		{"{\"long_fir_threshold\":128}", MX_E_UNSUPPORTED, "long_fir_threshold: filters"},
		{"{\"short_filter_bias\":false}", MX_E_UNSUPPORTED, "short_filter_bias: false"},
		{"{\"final_norm\":false}", MX_E_UNSUPPORTED, "final_norm: false is not supported"},
		{"{\"smeared_gqa\":true}", MX_E_UNSUPPORTED, "smeared_gqa: true is not supported"},
		{"{\"use_flash_rmsnorm\":false}", MX_E_UNSUPPORTED, "use_flash_rmsnorm: false"},
		{"{\"attn_layer_idxs\":[]}", MX_E_INVALID, "hyena_layer_idxs: layer 1 is neither here"},
		{"{\"attn_layer_idxs\":[1,2]}", MX_E_INVALID,
	     "hyena_layer_idxs[1]: layer 2 is listed twice"},
		{"{\"attn_layer_idxs\":3}", MX_E_INVALID, "attn_layer_idxs: must be a list"},
		{"{\"attn_layer_idxs\":[-1]}", MX_E_RANGE, "attn_layer_idxs[0]: must be a layer"},
		{"{\"num_attention_heads\":7}", MX_E_RANGE, "num_attention_heads: hidden_size 64 in 7"},
		{"{\"proj_groups\":3}", MX_E_RANGE, "proj_groups: 3 does not divide"},
		{"{\"state_size\":0}", MX_E_RANGE, "state_size: 0 is outside"},
		{"{\"rotary_emb_base\":0}", MX_E_RANGE, "rotary_emb_base: 0 is outside"},
		{"{\"num_attention_heads\":64,\"proj_groups\":1}", MX_E_RANGE, "head_dim: rope over 1"},
		{"{\"max_seqlen\":0}", MX_E_RANGE, "max_seqlen: 0 is outside"},
	};
	check_refused(striped, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hyenadna_layers_are_a_mixer_and_a_feed_forward),
		cmocka_unit_test(hyenadna_has_defaults),
		cmocka_unit_test(hyenadna_of_another_kind_is_refused),
		cmocka_unit_test(safari_has_arguments_for_keys),
		cmocka_unit_test(safari_of_another_kind_is_refused),
		cmocka_unit_test(stripedhyena_mixes_two_kinds_of_layers),
		cmocka_unit_test(stripedhyena_keys_are_obeyed),
		cmocka_unit_test(stripedhyena_of_another_kind_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
