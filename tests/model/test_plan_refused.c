/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a plan refuses: the message and the place for every kind of broken config. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/plan_util.h"

static const char llama[] =
	"{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
	"\"num_attention_heads\":4,\"vocab_size\":100,\"max_position_embeddings\":512}";

static void broken_generation_configs_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		mx_status status;
		const char *message;
	} cases[] = {
		{"{", MX_E_FORMAT, "not valid JSON at line 1, column 1"},
		{"[1]", MX_E_FORMAT, "is not a JSON object"},
		{"{\"eos_token_id\":\"</s>\"}", MX_E_INVALID, "eos_token_id: must be a token id or a list"},
		{"{\"eos_token_id\":[1,\"x\"]}", MX_E_INVALID,
	     "eos_token_id: must be a token id or a list"},
		{"{\"eos_token_id\":100}", MX_E_RANGE, "eos_token_id: 100 is not below vocab_size 100"},
		{"{\"eos_token_id\":-1}", MX_E_RANGE, "eos_token_id: -1 is not below"},
		{"{\"bos_token_id\":[1]}", MX_E_INVALID, "bos_token_id: must be a token id"},
		{"{\"temperature\":-0.5}", MX_E_RANGE, "temperature: -0.5 is outside"},
		{"{\"temperature\":NaN}", MX_E_RANGE, "temperature: nan is outside"},
		{"{\"top_p\":0}", MX_E_RANGE, "top_p: 0 is outside"},
		{"{\"top_p\":\"1\"}", MX_E_INVALID, "top_p: must be a number, not a string"},
		{"{\"top_k\":2.5}", MX_E_INVALID, "top_k: must be an integer"},
		{"{\"min_p\":1.5}", MX_E_RANGE, "min_p: 1.5 is outside 0 to 1"},
		{"{\"repetition_penalty\":0}", MX_E_RANGE, "repetition_penalty: 0 is outside"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = NULL;
		struct mx_err err = {0};
		mx_status s = plan_parse(llama, "{}", cases[i].text, &p, &err);
		if (s != cases[i].status || !strstr(err.text, cases[i].message) || p)
			fail_msg("%s gave %d '%s'", cases[i].text, s, err.text);
		assert_string_equal(err.where, "generation_config.json");
	}
}

/* A sound generation_config.json does not hide what is wrong with config.json's own ids. */
static void token_ids_of_config_are_checked_too(void **state)
{
	(void)state;
	static const struct {
		const char *config;
		mx_status status;
		const char *message;
	} cases[] = {
		{"{\"eos_token_id\":100}", MX_E_RANGE, "eos_token_id: 100 is not below vocab_size 100"},
		{"{\"eos_token_id\":\"</s>\"}", MX_E_INVALID, "eos_token_id: must be a token id or a list"},
		{"{\"eos_token_id\":[1,-1]}", MX_E_RANGE, "eos_token_id: -1 is not below"},
		{"{\"bos_token_id\":1e2}", MX_E_INVALID, "bos_token_id: must be a token id"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = NULL;
		struct mx_err err = {0};
		mx_status s =
			plan_parse(llama, cases[i].config, "{\"eos_token_id\":2,\"bos_token_id\":1}", &p, &err);
		if (s != cases[i].status || !strstr(err.text, cases[i].message) || p)
			fail_msg("%s gave %d '%s'", cases[i].config, s, err.text);
		assert_string_equal(err.where, "config.json");
	}
}

/* ---- broken configs ---- */

static void broken_configs_are_refused(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{\"model_type\":\"-\"}", MX_E_INVALID, "model_type: is missing"},
		{"{\"model_type\":7}", MX_E_INVALID, "model_type: must be a string, not a number"},
		{"{\"model_type\":\"gpt1\"}", MX_E_UNSUPPORTED, "model_type: 'gpt1' is not supported"},
		{"{\"hidden_act\":\"gelu\"}", MX_E_UNSUPPORTED, "hidden_act: 'gelu' is not silu"},
		{"{\"quantization_config\":{\"bits\":4}}", MX_E_UNSUPPORTED,
	     "quantization_config.quant_method: \"\" is not"},
		{"{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}", MX_E_UNSUPPORTED,
	     "quantization_config.quant_method: \"bitsandbytes\" is not supported (have fp8, "},
		{"{\"quantization_config\":{\"quant_method\":\"awq\",\"version\":\"gemv\"}}",
	     MX_E_UNSUPPORTED,
	     "quantization_config.version: awq: version \"gemv\" is not supported; use \"gemm\""},
		{"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":8}}", MX_E_UNSUPPORTED,
	     "quantization_config.bits: awq with 8 bits"},
		{"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":3}}", MX_E_UNSUPPORTED,
	     "quantization_config.bits: num_bits 3: only 4 and 8"},
		{"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"desc_"
	     "act\":true}}",
	     MX_E_UNSUPPORTED,
	     "quantization_config.desc_act: gptq: desc_act=true with group_size 128 is not"},
		{"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":"
	     "\"marlin\"}}",
	     MX_E_UNSUPPORTED, "quantization_config.checkpoint_format: gptq: \"marlin\""},
		{"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}", MX_E_UNSUPPORTED,
	     "quantization_config.config_groups: is not a table"},
		{"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{"
	     "\"group_0\":{\"format\":\"marlin-24\"}}}}",
	     MX_E_UNSUPPORTED,
	     "quantization_config.config_groups: compressed-tensors: group_0 format \"marlin-24\" is "
	     "not"},
		{"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-"
	     "quantized\",\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":3}}}}}",
	     MX_E_UNSUPPORTED, "quantization_config.config_groups: group_0: num_bits 3: only 4 and 8"},
		{"{\"quantization_config\":{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\"}}",
	     MX_E_UNSUPPORTED, "quantization_config.scale_fmt: fp8 with ue8m0"},
		{"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}}",
	     MX_E_INVALID, "quantization_config.weight_block_size: must be"},
		{"{\"quantization_config\":{\"quant_method\":\"awq\",\"group_size\":0}}", MX_E_INVALID,
	     "quantization_config.group_size: 0 of awq"},
		{"{\"hidden_size\":\"-\"}", MX_E_INVALID, "hidden_size: is missing"},
		{"{\"hidden_size\":0}", MX_E_RANGE, "hidden_size: 0 is outside 1 to"},
		{"{\"hidden_size\":-64}", MX_E_RANGE, "hidden_size: -64 is outside"},
		{"{\"hidden_size\":4611686018427387904}", MX_E_RANGE,
	     "hidden_size: 4611686018427387904 is"},
		{"{\"hidden_size\":1e300}", MX_E_INVALID, "hidden_size: must be an integer"},
		{"{\"hidden_size\":64.5}", MX_E_INVALID, "hidden_size: must be an integer, not a number"},
		{"{\"hidden_size\":[64]}", MX_E_INVALID, "hidden_size: must be an integer, not a list"},
		{"{\"vocab_size\":0}", MX_E_RANGE, "vocab_size: 0 is outside"},
		{"{\"intermediate_size\":null}", MX_E_INVALID, "intermediate_size: is missing"},
		{"{\"num_hidden_layers\":0}", MX_E_RANGE, "num_hidden_layers: 0 is outside 1 to 1024"},
		{"{\"num_hidden_layers\":1000000000}", MX_E_RANGE, "num_hidden_layers: 1000000000 is"},
		{"{\"max_position_embeddings\":0}", MX_E_RANGE, "max_position_embeddings: 0 is outside"},
		{"{\"rms_norm_eps\":-1}", MX_E_RANGE, "rms_norm_eps: -1 is outside"},
		{"{\"rms_norm_eps\":{\"__float__\":\"NaN\"}}", MX_E_RANGE, "rms_norm_eps: nan is outside"},
		{"{\"tie_word_embeddings\":1}", MX_E_INVALID, "tie_word_embeddings: must be true or false"},
		{"{\"num_attention_heads\":0}", MX_E_RANGE, "num_attention_heads: 0 is outside"},
		{"{\"num_attention_heads\":5}", MX_E_RANGE,
	     "num_attention_heads: 5 does not divide hidden_size 64"},
		{"{\"num_key_value_heads\":0}", MX_E_RANGE, "num_key_value_heads: 0 is outside"},
		{"{\"num_key_value_heads\":3}", MX_E_RANGE,
	     "num_key_value_heads: 3 does not divide num_attention_heads 4"},
		{"{\"num_key_value_heads\":8}", MX_E_RANGE, "num_key_value_heads: 8 does not divide"},
		{"{\"head_dim\":15}", MX_E_RANGE, "head_dim: rope over 15 dimensions, which must be even"},
		{"{\"head_dim\":1}", MX_E_RANGE, "head_dim: rope over 1 dimensions"},
		{"{\"head_dim\":1048576}", MX_E_RANGE, "head_dim: 1048576 is outside"},
		{"{\"hidden_size\":8192,\"num_attention_heads\":1}", MX_E_RANGE,
	     "head_dim: comes to 8192, more than 1024"},
		{"{\"partial_rotary_factor\":0.5}", MX_E_UNSUPPORTED, "partial_rotary_factor: 0.5 is not"},
		{"{\"rope_theta\":0}", MX_E_RANGE, "rope_theta: 0 is outside"},
		{"{\"rope_theta\":{\"__float__\":\"Infinity\"}}", MX_E_RANGE, "rope_theta: inf is outside"},
		{"{\"rope_parameters\":[]}", MX_E_INVALID, "rope_parameters: must be an object"},
		{"{\"rope_parameters\":{\"rope_type\":3}}", MX_E_INVALID,
	     "rope_parameters.rope_type: must be"},
		{"{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", MX_E_UNSUPPORTED,
	     "rope_parameters: parameters by type of layer are not supported for model_type 'llama'"},
		{"{\"rope_scaling\":{\"type\":\"longrope\"}}", MX_E_INVALID,
	     "rope_scaling.short_factor: must be a list of 8 numbers"},
		{"{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1,1,1,1,0]}}", MX_E_RANGE,
	     "rope_scaling.short_factor[7]: must be a positive number"},
		{"{\"rope_scaling\":{\"type\":\"mrope\"}}", MX_E_UNSUPPORTED,
	     "rope_scaling.type: 'mrope' is none of default, linear, dynamic, llama3, yarn, longrope"},
		{"{\"rope_scaling\":{\"rope_type\":\"none\"}}", MX_E_UNSUPPORTED,
	     "rope_type: 'none' is none"},
		{"{\"rope_scaling\":{\"type\":\"linear\"}}", MX_E_INVALID,
	     "rope_scaling.factor: is missing"},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", MX_E_RANGE,
	     "rope_scaling.factor: 0.5 is outside"},
		{"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2},\"head_dim\":2}", MX_E_RANGE,
	     "head_dim: dynamic rope needs 4 dimensions, not 2"},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e6},"
	     "\"max_position_embeddings\":1000000}",
	     MX_E_RANGE, "max_position_embeddings: rope scaling stretches it to 1e+12"},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}}",
	     MX_E_INVALID, "rope_scaling.low_freq_factor: is missing"},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
	     "\"high_freq_factor\":4}}",
	     MX_E_RANGE, "rope_scaling.high_freq_factor: 4 is not above low_freq_factor 4"},
		{"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
	     "\"original_max_position_embeddings\":0}}",
	     MX_E_RANGE, "rope_scaling.original_max_position_embeddings: 0 is outside"},
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":4,\"sliding_window\":0}", MX_E_RANGE,
	     "sliding_window: 0 is outside"},
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":4,\"attention_bias\":true}",
	     MX_E_UNSUPPORTED, "attention_bias: true is not supported for model_type 'mistral'"},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":4,\"mlp_bias\":true}", MX_E_UNSUPPORTED,
	     "mlp_bias: true is not supported for model_type 'qwen2'"},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":4,\"layer_types\":[\"full_attention\"]"
	     "}",
	     MX_E_INVALID, "layer_types: must be a list of num_hidden_layers = 2 strings"},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":4,"
	     "\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
	     MX_E_UNSUPPORTED, "layer_types[1]: 'linear_attention' is neither"},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":4,"
	     "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	     MX_E_INVALID, "layer_types[1]: 'sliding_attention' without use_sliding_window"},
		{"{\"eos_token_id\":1000}", MX_E_RANGE, "eos_token_id: 1000 is not below vocab_size 100"},
		{"{\"model_type\":\"mixd\"}", MX_E_INVALID, "mixd_layers: must be a list of 1 to 1024"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[]}", MX_E_INVALID,
	     "mixd_layers: must be a list"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"}]}", MX_E_INVALID,
	     "mixd_layers: has 1 entries for num_hidden_layers 2"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},7]}", MX_E_INVALID,
	     "mixd_layers[1]: must be an object"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{}]}", MX_E_INVALID,
	     "mixd_layers[1].mixer: must be the name of a mixer"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixers\":[]}]}",
	     MX_E_INVALID, "mixd_layers[1].mixers: must be a list of 1 to 8 objects"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixers\":{}}]}",
	     MX_E_INVALID, "mixd_layers[1].mixers: must be a list of 1 to 8 objects"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixers\":[{\"mixer\":"
	     "\"ema\"},{}]}]}",
	     MX_E_INVALID, "mixd_layers[1].mixers[1].mixer: must be the name of a mixer"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixers\":[{\"mixer\":"
	     "\"ema\"}],\"mixer\":\"ema\"}]}",
	     MX_E_INVALID, "mixd_layers[1].mixers: stands beside"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixers\":[{\"mixer\":"
	     "\"ema\",\"in_scale\":\"x\"}]}]}",
	     MX_E_INVALID, "mixd_layers[1].mixers[0].in_scale: must be a number"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "7}]}",
	     MX_E_INVALID, "mixd_layers[1].mlp: must be false, true or an object"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "{\"num_experts\":3}}]}",
	     MX_E_INVALID, "mixd_layers[1].mlp.num_experts_per_tok: is missing"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "{\"num_experts\":3,\"num_experts_per_tok\":4}}]}",
	     MX_E_RANGE, "mixd_layers[1].mlp.num_experts_per_tok: 4 is outside 1 to 3"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "{\"num_experts\":3,\"num_experts_per_tok\":1,\"moe_intermediate_size\":8,\"mlp_bias\":"
	     "true}}]}",
	     MX_E_UNSUPPORTED, "mixd_layers[1].mlp.mlp_bias: experts have none"},
		{"{\"model_type\":\"mixd\",\"norm_type\":\"batchnorm\",\"mixd_layers\":[{\"mixer\":\"ema\"}"
	     ","
	     "{\"mixer\":\"ema\"}]}",
	     MX_E_UNSUPPORTED, "norm_type: 'batchnorm' is neither rmsnorm nor layernorm"},
		{"{\"model_type\":\"mixd\",\"norm_type\":\"layernorm\",\"layer_norm_eps\":-1,"
	     "\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\"}]}",
	     MX_E_RANGE, "layer_norm_eps: -1 is outside"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "{\"mlp_type\":\"relu\"}}]}",
	     MX_E_UNSUPPORTED, "mixd_layers[1].mlp.mlp_type: 'relu' is neither swiglu nor gelu_tanh"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{\"mixer\":\"ema\",\"mlp\":"
	     "{\"hidden_act\":\"gelu\"}}]}",
	     MX_E_UNSUPPORTED, "mixd_layers[1].mlp.hidden_act: 'gelu' is not silu"},
		{"{\"model_type\":\"mixd\",\"mlp_type\":\"gelu_tanh\",\"num_experts_per_tok\":1,"
	     "\"moe_intermediate_size\":8,\"mixd_layers\":[{\"mixer\":\"ema\"},"
	     "{\"mixer\":\"ema\",\"mlp\":{\"num_experts\":3}}]}",
	     MX_E_UNSUPPORTED, "mixd_layers[1].mlp.mlp_type: experts are swiglu"},
		{"{\"embedding_scale\":true,\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},{"
	     "\"mixer\":\"ema\"}]}",
	     MX_E_INVALID, "embedding_scale: must be a number"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},"
	     "{\"mixer\":\"attention\",\"head_dim\":0}]}",
	     MX_E_RANGE, "mixd_layers[1].head_dim: 0 is outside"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},"
	     "{\"mixer\":\"attention\",\"sliding_windw\":40}]}",
	     MX_E_INVALID, "mixd_layers[1].sliding_windw: unknown key"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},"
	     "{\"mixers\":[{\"mixer\":\"ema\"}],\"decay\":1}]}",
	     MX_E_INVALID, "mixd_layers[1].decay: unknown key"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\"},"
	     "{\"mixer\":\"ema\",\"mlp\":{\"num_expert\":4}}]}",
	     MX_E_INVALID, "mixd_layers[1].mlp.num_expert: unknown key"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\",\"x\":[1,\"2\"]},"
	     "{\"mixer\":\"ema\"}]}",
	     MX_E_INVALID, "mixd_layers[0].x[1]: must be a number"},
		{"{\"model_type\":\"mixd\",\"mixd_layers\":[{\"mixer\":\"ema\",\"x\":{}},"
	     "{\"mixer\":\"ema\"}]}",
	     MX_E_INVALID, "mixd_layers[0].x: must be a boolean, a number, a string or a list"},
	};
	check_refused(llama, cases, sizeof cases / sizeof *cases);
}

static void python_number_words_are_taken(void **state)
{
	(void)state;
	static const char text[] =
		"{\"model_type\":\"mixd\",\"hidden_size\":8,\"vocab_size\":9,\"intermediate_size\":8,\n"
		" \"say\":\"NaN \\\" Infinity\",\n"
		" \"mixd_layers\":[{\"mixer\":\"ema\",\"a\":-Infinity,\"b\":[0,Infinity,NaN],"
		"\"c\":\"Infinity\"}]}";
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_plan_parse(text, sizeof text - 1, NULL, 0, &p, &err), MX_OK);
	const struct mx_params *q = params_of(p, 0);
	assert_true(mx_param_float(q, "a", 0) == -INFINITY);
	assert_true(mx_param_find(q, "b")->v[1] == INFINITY);
	assert_true(isnan(mx_param_find(q, "b")->v[2]));
	assert_string_equal(mx_param_string(q, "c", ""), "Infinity");
	mx_plan_destroy(p);
}

static void json_errors_have_a_position(void **state)
{
	(void)state;
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	static const char text[] = "{\"a\": NaN,\n \"b\": Nan}";
	assert_int_equal(mx_plan_parse(text, sizeof text - 1, NULL, 0, &p, &err), MX_E_FORMAT);
	assert_int_equal(err.line, 2);
	assert_string_equal(err.where, "config.json");
	assert_non_null(strstr(err.text, "not valid JSON at line 2, column"));
	assert_int_equal(mx_plan_parse("", 0, NULL, 0, &p, &err), MX_E_FORMAT);

	/* Nesting does not use up the stack. */
	enum { DEEP = 100000 };
	char *deep = malloc(DEEP);
	assert_non_null(deep);
	memset(deep, '[', DEEP);
	assert_int_equal(mx_plan_parse(deep, DEEP, NULL, 0, &p, &err), MX_E_FORMAT);
	free(deep);
	assert_null(p);
}

static void a_folder_needs_a_config(void **state)
{
	(void)state;
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_plan_load("no-such-folder", &p, &err), MX_E_NOTFOUND);
	assert_string_equal(err.where, "no-such-folder");
	assert_null(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(broken_generation_configs_are_refused),
		cmocka_unit_test(token_ids_of_config_are_checked_too),
		cmocka_unit_test(broken_configs_are_refused),
		cmocka_unit_test(python_number_words_are_taken),
		cmocka_unit_test(json_errors_have_a_position),
		cmocka_unit_test(a_folder_needs_a_config),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
