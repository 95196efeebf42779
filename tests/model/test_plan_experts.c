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
		{"{\"quantization_config\":{\"quant_method\":\"awq\"}}", MX_E_UNSUPPORTED, "(awq)"},
		{"{\"swiglu_limit\":0}", MX_E_RANGE, "swiglu_limit"},
	};
	check_refused(OSS, refused, sizeof refused / sizeof *refused);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpt_oss_by_default),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
