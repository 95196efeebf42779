/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the way from config.json to the layer plan for RWKV-7: what its keys mean, and what of them
 * is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

/* As fla-hub has RWKV-7, smaller. num_heads is there, and means nothing beside head_dim. */
static const char rwkv7[] =
	"{\"architectures\":[\"RWKV7ForCausalLM\"],\"model_type\":\"rwkv7\",\"attn\":null,"
	"\"attn_mode\":\"chunk\",\"hidden_size\":128,\"intermediate_size\":null,\"hidden_ratio\":4.0,"
	"\"num_hidden_layers\":3,\"head_dim\":32,\"num_heads\":32,\"decay_low_rank_dim\":8,"
	"\"a_low_rank_dim\":9,\"v_low_rank_dim\":10,\"gate_low_rank_dim\":11,\"hidden_act\":\"sqrelu\","
	"\"norm_eps\":0.001,\"norm_bias\":true,\"norm_first\":true,\"fuse_norm\":false,"
	"\"max_position_embeddings\":2048,\"value_dim\":[128,128,128],\"vocab_size\":100,"
	"\"bos_token_id\":0,\"eos_token_id\":0,\"tie_word_embeddings\":false}";

static const struct mx_plan_mixer *mixer_of(const struct mx_plan *p, uint32_t layer, uint32_t block)
{
	assert_int_equal(p->layers[layer].blocks[block].n_mixers, 1);
	return &p->layers[layer].blocks[block].mixers[0];
}

static void a_layer_is_time_mixing_and_channel_mixing(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(rwkv7, "{}");
	assert_string_equal(p->family, "rwkv7");
	assert_int_equal(p->n_layers, 3);
	assert_int_equal(p->max_context, 1 << 20); /* nothing in the model depends on positions */
	assert_int_equal(p->norm, MX_NORM_LAYER);
	assert_true(p->norm_eps == 1e-3f);
	assert_string_equal(p->embed, "model.embeddings.weight");
	assert_string_equal(p->embed_norm, "model.layers.0.pre_norm.weight");
	assert_string_equal(p->final_norm, "model.norm.weight");
	assert_string_equal(p->lm_head, "lm_head.weight");

	const struct mx_plan_block *b = p->layers[2].blocks;
	assert_int_equal(p->layers[2].n_blocks, 2);
	assert_int_equal(b[0].kind, MX_BLOCK_MIXER);
	assert_string_equal(b[0].norm, "model.layers.2.attn_norm.weight");
	assert_string_equal(mixer_of(p, 2, 0)->mixer, "rwkv");
	assert_string_equal(mixer_of(p, 2, 0)->prefix, "model.layers.2.attn.");
	assert_int_equal(b[1].kind, MX_BLOCK_MIXER);
	assert_string_equal(b[1].norm, "model.layers.2.ffn_norm.weight");
	assert_string_equal(mixer_of(p, 2, 1)->mixer, "rwkv");
	assert_string_equal(mixer_of(p, 2, 1)->prefix, "model.layers.2.ffn.");
	assert_true(b[0].residual_scale == 1 && b[1].residual_scale == 1);

	assert_int_equal(get_int(p, 2, "head_dim"), 32);
	assert_int_equal(get_int(p, 2, "decay_low_rank_dim"), 8);
	assert_int_equal(get_int(p, 2, "a_low_rank_dim"), 9);
	assert_int_equal(get_int(p, 2, "v_low_rank_dim"), 10);
	assert_int_equal(get_int(p, 2, "gate_low_rank_dim"), 11);
	assert_int_equal(get_int(p, 2, "fuse_norm"), 0);
	assert_true(mx_param_float(params_of(p, 2), "norm_eps", 0) == (double)1e-3f);
	const struct mx_params *channel = &mixer_of(p, 2, 1)->params;
	assert_string_equal(mx_param_string(channel, "part", ""), "channel");
	assert_int_equal(mx_param_int(channel, "intermediate_size", 0), 512);
	/* the first layer has no share of its own values */
	assert_int_equal(get_int(p, 0, "value_residual"), 0);
	assert_int_equal(get_int(p, 1, "value_residual"), 1);
	assert_int_equal(get_int(p, 2, "value_residual"), 1);
	mx_plan_destroy(p);
}

static void options_and_defaults(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(rwkv7, "{\"norm_bias\":false,\"norm_first\":false,"
	                                   "\"tie_word_embeddings\":true,\"intermediate_size\":200,"
	                                   "\"head_dim\":null,\"num_heads\":8,\"value_dim\":128}");
	assert_int_equal(p->norm, MX_NORM_LAYER_NO_BIAS);
	assert_null(p->embed_norm);
	assert_string_equal(p->lm_head, "model.embeddings.weight");
	assert_int_equal(get_int(p, 0, "head_dim"), 16);
	assert_int_equal(mx_param_int(&mixer_of(p, 0, 1)->params, "intermediate_size", 0), 200);
	mx_plan_destroy(p);

	p = plan_of("{\"model_type\":\"rwkv7\",\"hidden_size\":64,\"num_hidden_layers\":1,"
	            "\"vocab_size\":100}",
	            "{\"hidden_ratio\":2.6}");
	assert_true(p->norm_eps == 1e-5f);
	assert_int_equal(p->norm, MX_NORM_LAYER);
	assert_non_null(p->embed_norm);
	assert_int_equal(get_int(p, 0, "head_dim"), 64);
	assert_int_equal(get_int(p, 0, "decay_low_rank_dim"), 64);
	assert_int_equal(get_int(p, 0, "a_low_rank_dim"), 64);
	assert_int_equal(get_int(p, 0, "v_low_rank_dim"), 16);
	assert_int_equal(get_int(p, 0, "gate_low_rank_dim"), 128);
	assert_int_equal(get_int(p, 0, "fuse_norm"), 1);
	/* 166, up to a multiple of 32 */
	assert_int_equal(mx_param_int(&mixer_of(p, 0, 1)->params, "intermediate_size", 0), 192);
	mx_plan_destroy(p);
}

static void what_is_not_supported_is_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"hidden_act\":\"silu\"}", MX_E_UNSUPPORTED, "hidden_act: 'silu' is not sqrelu"},
		{"{\"attn\":{\"layers\":[1],\"num_heads\":4}}", MX_E_UNSUPPORTED, "attn: layers"},
		{"{\"value_dim\":256}", MX_E_UNSUPPORTED, "value_dim: only that of hidden_size, 128"},
		{"{\"value_dim\":[128,256,128]}", MX_E_UNSUPPORTED, "value_dim: only that"},
		{"{\"head_dim\":0}", MX_E_RANGE, "head_dim: 0 is outside"},
		{"{\"head_dim\":null,\"num_heads\":3}", MX_E_RANGE,
	     "num_heads: hidden_size 128 in 3 heads"},
		{"{\"gate_low_rank_dim\":0}", MX_E_RANGE, "gate_low_rank_dim: 0 is outside"},
		{"{\"hidden_ratio\":1000,\"hidden_size\":1048576}", MX_E_UNSUPPORTED, "value_dim"},
		{"{\"hidden_ratio\":1000,\"hidden_size\":1048576,\"value_dim\":null}", MX_E_RANGE,
	     "hidden_ratio: 1000 makes a feed-forward of 1048576000"},
		{"{\"num_hidden_layers\":\"-\"}", MX_E_INVALID, "num_hidden_layers: is missing"},
	};
	check_refused(rwkv7, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layer_is_time_mixing_and_channel_mixing),
		cmocka_unit_test(options_and_defaults),
		cmocka_unit_test(what_is_not_supported_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
