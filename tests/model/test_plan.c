/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the way from config.json to the layer plan: the meaning of each family's keys, and
 * frequencies against those of transformers (tests/golden/rope).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/safetensors.h"
#include "tests/model/plan_util.h"

static const char llama[] =
	"{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
	"\"num_attention_heads\":4,\"vocab_size\":100,\"max_position_embeddings\":512}";

/* ---- families ---- */

static void llama_has_the_expected_shape(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(llama, "{\"rms_norm_eps\":1e-5,\"num_key_value_heads\":2}");
	assert_string_equal(p->family, "llama");
	assert_int_equal(p->width, 64);
	assert_int_equal(p->vocab, 100);
	assert_int_equal(p->n_layers, 2);
	assert_int_equal(p->max_context, 512);
	assert_true(p->norm == MX_NORM_RMS && p->norm_eps == 1e-5f);
	assert_string_equal(p->embed, "model.embed_tokens.weight");
	assert_string_equal(p->lm_head, "lm_head.weight");
	assert_string_equal(p->final_norm, "model.norm.weight");
	assert_true(p->embed_scale == 1 && p->logit_scale == 1);

	const struct mx_plan_layer *l = &p->layers[1];
	assert_int_equal(l->n_blocks, 2);
	assert_int_equal(l->blocks[0].kind, MX_BLOCK_MIXER);
	assert_int_equal(l->blocks[0].n_mixers, 1);
	assert_string_equal(l->blocks[0].norm, "model.layers.1.input_layernorm.weight");
	assert_string_equal(l->blocks[0].mixers[0].mixer, "attention");
	assert_string_equal(l->blocks[0].mixers[0].prefix, "model.layers.1.self_attn.");
	assert_int_equal(l->blocks[1].kind, MX_BLOCK_MLP);
	assert_int_equal(l->blocks[1].mlp.act, MX_ACT_SILU);
	assert_string_equal(l->blocks[1].norm, "model.layers.1.post_attention_layernorm.weight");
	assert_string_equal(l->blocks[1].mlp.gate, "model.layers.1.mlp.gate_proj.weight");
	assert_string_equal(l->blocks[1].mlp.up, "model.layers.1.mlp.up_proj.weight");
	assert_string_equal(l->blocks[1].mlp.down, "model.layers.1.mlp.down_proj.weight");
	assert_int_equal(l->blocks[1].mlp.width, 96);
	assert_false(l->blocks[1].mlp.bias);

	assert_int_equal(get_int(p, 1, "heads"), 4);
	assert_int_equal(get_int(p, 1, "kv_heads"), 2);
	assert_int_equal(get_int(p, 1, "head_dim"), 16);
	assert_int_equal(get_int(p, 1, "window"), 0);
	assert_int_equal(get_int(p, 1, "rope_dim"), 16);
	assert_true(mx_param_float(params_of(p, 1), "scale", 0) == 0.25);
	assert_string_equal(mx_param_string(params_of(p, 1), "rope", ""), "default");
	mx_plan_destroy(p);
	mx_plan_destroy(NULL);
}

static void layers_are_described_in_runs(void **state)
{
	(void)state;
	char text[128];
	struct mx_plan *p = plan_of(llama, "{}");
	mx_plan_describe_layers(p, text, sizeof text);
	assert_string_equal(text, "0-1 attention");
	mx_plan_destroy(p);
	p = plan_of(llama, "{\"model_type\":\"mixd\",\"num_hidden_layers\":\"-\",\"mixd_layers\":["
	                   "{\"mixer\":\"ema\"},{\"mixer\":\"ema\"},{\"mixer\":\"attention\"},"
	                   "{\"mixer\":\"ema\"}]}");
	mx_plan_describe_layers(p, text, sizeof text);
	assert_string_equal(text, "0-1 ema, 2 attention, 3 ema");
	mx_plan_describe_layers(p, text, 24);
	assert_string_equal(text, "0-1 ema, ...");
	mx_plan_describe_layers(p, text, 8);
	assert_string_equal(text, "...");
	mx_plan_destroy(p);
}

static void attention_layers_can_have_another_mixer(void **state)
{
	(void)state;
	const struct mx_param k = {.name = "top_k", .type = MX_PARAM_INT, .i = 40};
	const struct mx_param heads = {.name = "heads", .type = MX_PARAM_INT, .i = 4};
	struct mx_plan *p = plan_of(llama, "{\"num_hidden_layers\":9}");
	const struct mx_plan_override o = {
		"1, 4-6,8", "dci", {&k, 1}, "f.yaml:3:5: models[0].layers[0]"};
	char text[128];
	assert_int_equal(mx_plan_override(p, &o, NULL), MX_OK);
	mx_plan_describe_layers(p, text, sizeof text);
	assert_string_equal(text, "0 attention, 1 dci, 2-3 attention, 4-6 dci, 7 attention, 8 dci");
	assert_int_equal(get_int(p, 4, "top_k"), 40);
	assert_int_equal(get_int(p, 4, "heads"), get_int(p, 3, "heads"));
	assert_null(mx_param_find(params_of(p, 3), "top_k"));

	static const struct {
		const char *layers, *message;
	} faults[] = {{"9", "from 0 to 8"},        {"1-", "must be all"},
	              {"3-2", "must be all"},      {"", "must be all"},
	              {"1,,2", "must be all"},     {"1 2", "must be all"},
	              {"-1", "must be all"},       {"99999999999", "must be all"},
	              {"4", "no attention layer"}, {"all", "layer 1 is no attention layer"}};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		struct mx_err err = {0};
		struct mx_plan_override wrong = o;
		wrong.layers = faults[i].layers;
		assert_int_equal(mx_plan_override(p, &wrong, &err), MX_E_INVALID);
		assert_non_null(strstr(err.text, faults[i].message));
		assert_string_equal(err.where, o.origin);
	}
	struct mx_err err = {0};
	const struct mx_plan_override twice = {"0", "dci", {&heads, 1}, o.origin};
	assert_int_equal(mx_plan_override(p, &twice, &err), MX_E_INVALID);
	assert_non_null(strstr(err.text, "heads: the checkpoint's config says that"));
	mx_plan_describe_layers(p, text, sizeof text);
	assert_string_equal(text, "0 attention, 1 dci, 2-3 attention, 4-6 dci, 7 attention, 8 dci");
	mx_plan_destroy(p);
}

static void texts_become_parameters_of_their_types(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		enum mx_param_type type;
		double value;
	} cases[] = {{"12", MX_PARAM_INT, 12},     {"-3", MX_PARAM_INT, -3},
	             {"0.5", MX_PARAM_FLOAT, 0.5}, {"1e-2", MX_PARAM_FLOAT, 0.01},
	             {"true", MX_PARAM_BOOL, 1},   {"false", MX_PARAM_BOOL, 0},
	             {"auto", MX_PARAM_STRING, 0}, {"8-31", MX_PARAM_STRING, 0},
	             {"", MX_PARAM_STRING, 0},     {"-", MX_PARAM_STRING, 0},
	             {"e", MX_PARAM_STRING, 0},    {"99999999999999999999", MX_PARAM_FLOAT, 1e20}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_param p;
		mx_param_of_text("x", cases[i].text, &p);
		assert_int_equal(p.type, cases[i].type);
		assert_true(p.type == MX_PARAM_STRING || p.type == MX_PARAM_BOOL || p.f == cases[i].value);
		assert_true(p.type != MX_PARAM_BOOL || (double)p.i == cases[i].value);
	}
}

static void families_differ_as_in_transformers(void **state)
{
	(void)state;
	static const struct {
		const char *changes;
		int64_t kv_heads, head_dim, bias, o_bias, qk_norm, window0, window1;
	} cases[] = {
		{"{}", 4, 16, 0, 0, 0, 0, 0},
		{"{\"num_key_value_heads\":null,\"head_dim\":null}", 4, 16, 0, 0, 0, 0, 0},
		{"{\"num_attention_heads\":4.0,\"head_dim\":24}", 4, 24, 0, 0, 0, 0, 0},
		{"{\"attention_bias\":true}", 4, 16, 1, 1, 0, 0, 0},
		{"{\"sliding_window\":7}", 4, 16, 0, 0, 0, 0, 0}, /* Llama has none */
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":2}", 2, 16, 0, 0, 0, 4096, 4096},
		{"{\"model_type\":\"mistral\",\"num_attention_heads\":16}", 8, 4, 0, 0, 0, 4096, 4096},
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":4,\"sliding_window\":null}", 4, 16, 0,
	     0, 0, 0, 0},
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":4,\"sliding_window\":7}", 4, 16, 0, 0,
	     0, 7, 7},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"sliding_window\":7}", 2, 16, 1, 0,
	     0, 0, 0},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"use_sliding_window\":false,"
	     "\"sliding_window\":0,\"max_window_layers\":0}",
	     2, 16, 1, 0, 0, 0, 0},
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"sliding_window\":7,"
	     "\"use_sliding_window\":true}",
	     2, 16, 1, 0, 0, 0, 0}, /* max_window_layers is 28 by default */
		{"{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"sliding_window\":7,"
	     "\"use_sliding_window\":true,\"max_window_layers\":1}",
	     2, 16, 1, 0, 0, 0, 7},
		{"{\"model_type\":\"qwen3\",\"num_key_value_heads\":2}", 2, 128, 0, 0, 1, 0, 0},
		{"{\"model_type\":\"qwen3\",\"num_key_value_heads\":2,\"head_dim\":32,"
	     "\"attention_bias\":true,\"use_sliding_window\":true,\"sliding_window\":9,"
	     "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
	     2, 32, 1, 1, 1, 9, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = plan_of(llama, cases[i].changes);
		print_message("%s\n", cases[i].changes);
		assert_int_equal(get_int(p, 0, "kv_heads"), cases[i].kv_heads);
		assert_int_equal(get_int(p, 0, "head_dim"), cases[i].head_dim);
		assert_int_equal(get_int(p, 0, "bias"), cases[i].bias);
		assert_int_equal(get_int(p, 0, "o_bias"), cases[i].o_bias);
		assert_int_equal(get_int(p, 0, "qk_norm"), cases[i].qk_norm);
		assert_int_equal(get_int(p, 0, "window"), cases[i].window0);
		assert_int_equal(get_int(p, 1, "window"), cases[i].window1);
		mx_plan_destroy(p);
	}
}

static void embeddings_may_be_tied_and_mlp_biased(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(llama, "{\"tie_word_embeddings\":true,\"mlp_bias\":true}");
	assert_string_equal(p->lm_head, p->embed);
	assert_true(p->layers[0].blocks[1].mlp.bias);
	mx_plan_destroy(p);
}

static void context_is_stretched_by_scaling(void **state)
{
	(void)state;
	static const struct {
		const char *changes;
		uint32_t max_context;
	} cases[] = {
		{"{\"max_position_embeddings\":\"-\"}", 2048},
		{"{\"model_type\":\"mistral\",\"num_key_value_heads\":4,\"max_position_embeddings\":\"-\"}",
	     131072},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", 1280},
		{"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", 2048},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
	     "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}}",
	     512},
		{"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", 2048},
		{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"rope_theta\":1e6,"
	     "\"original_max_position_embeddings\":128}}",
	     512},
		/* 49 * (1 / 49.0) is less than 1 in binary. */
		{"{\"max_position_embeddings\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,"
	     "\"original_max_position_embeddings\":49}}",
	     1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_plan *p = plan_of(llama, cases[i].changes);
		if (p->max_context != cases[i].max_context)
			fail_msg("%s: %u, not %u", cases[i].changes, p->max_context, cases[i].max_context);
		mx_plan_destroy(p);
	}
}

/* ---- rope ---- */

static json_t *golden(const char *name)
{
	char path[4096];
	json_error_t je;
	const char *srcdir = getenv("srcdir");
	snprintf(path, sizeof path, "%s/tests/golden/%s", srcdir ? srcdir : ".", name);
	json_t *v = json_load_file(path, 0, &je);
	if (!v)
		fail_msg("%s: %s", path, je.text);
	return v;
}

static void check_frequencies(const char *name, const struct mx_plan *p, const json_t *want,
                              double want_factor)
{
	const struct mx_param *freq = mx_param_find(params_of(p, 0), "rope_inv_freq");
	assert_non_null(freq);
	assert_int_equal(freq->n, json_array_size(want));
	for (size_t i = 0; i < freq->n; i++) {
		double w = json_number_value(json_array_get(want, i));
		/* Four units in the last place of a float: pow and division round differently in torch. */
		if (!(fabs(freq->v[i] - w) <= 4 * 0x1p-24 * w))
			fail_msg("%s: frequency %zu is %.9g, not %.9g", name, i, freq->v[i], w);
	}
	double factor = mx_param_float(params_of(p, 0), "rope_attention_factor", 0);
	if (!(fabs(factor - want_factor) <= 1e-12))
		fail_msg("%s: attention factor %.15g, not %.15g", name, factor, want_factor);
}

static void frequencies_are_those_of_transformers(void **state)
{
	(void)state;
	json_t *file = golden("rope/inv_freq.json"), *c;
	size_t i;
	json_array_foreach(json_object_get(file, "cases"), i, c)
	{
		const char *name = json_string_value(json_object_get(c, "name"));
		char *text = json_dumps(json_object_get(c, "config"), 0);
		struct mx_plan *p = NULL;
		struct mx_err err = {0};
		if (mx_plan_parse(text, strlen(text), NULL, 0, &p, &err))
			fail_msg("%s: %s", name, err.text);
		check_frequencies(name, p, json_object_get(c, "inv_freq"),
		                  json_number_value(json_object_get(c, "attention_factor")));
		mx_plan_destroy(p);
		free(text);
	}
	assert_true(i >= 15);
	json_decref(file);
}

static void dynamic_keeps_what_its_formula_needs(void **state)
{
	(void)state;
	struct mx_plan *p =
		plan_of(llama, "{\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2.0,"
	                   "\"rope_theta\":50000}}");
	const struct mx_params *q = params_of(p, 0);
	assert_string_equal(mx_param_string(q, "rope", ""), "dynamic");
	assert_true(mx_param_float(q, "rope_theta", 0) == 50000);
	assert_true(mx_param_float(q, "rope_factor", 0) == 2);
	assert_int_equal(mx_param_int(q, "rope_max_position", 0), 512);
	assert_true(mx_param_float(q, "rope_attention_factor", 0) == 1);
	mx_plan_destroy(p);
}

/* ---- our own format ---- */

static void mixd_layers_have_multipliers_and_feed_forwards_of_their_own(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		llama,
		"{\"model_type\":\"mixd\",\"num_hidden_layers\":\"-\",\"embedding_scale\":12,"
		"\"logit_scale\":0.25,\"residual_scale\":0.5,\"mlp_bias\":true,"
		"\"moe_intermediate_size\":7,\"mixd_layers\":["
		"{\"mixers\":[{\"mixer\":\"ema\",\"in_scale\":2,\"x\":1},"
		"{\"mixer\":\"attention\",\"out_scale\":3}],\"mlp\":false},"
		"{\"mixer\":\"ema\",\"out_scale\":4,\"residual_scale\":1,\"mlp\":{\"mlp_bias\":false,"
		"\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
		"\"shared_expert_intermediate_size\":5}},"
		"{\"mixer\":\"ema\",\"mlp\":{\"intermediate_size\":11}},"
		"{\"mixer\":\"ema\",\"mlp\":true}]}");
	assert_int_equal(p->n_layers, 4);
	assert_true(p->embed_scale == 12 && p->logit_scale == 0.25f);
	const struct mx_plan_layer *l = p->layers;
	assert_int_equal(l[0].n_blocks, 1);
	assert_int_equal(l[0].blocks[0].n_mixers, 2);
	assert_true(l[0].blocks[0].residual_scale == 0.5f);
	const struct mx_plan_mixer *m = l[0].blocks[0].mixers;
	assert_string_equal(m[0].mixer, "ema");
	assert_string_equal(m[0].prefix, "model.layers.0.mixers.0.");
	assert_true(m[0].in_scale == 2 && m[0].out_scale == 1);
	assert_int_equal(m[0].params.n, 1); /* the scales are not the mixer's */
	assert_string_equal(m[1].mixer, "attention");
	assert_string_equal(m[1].prefix, "model.layers.0.mixers.1.");
	assert_true(m[1].in_scale == 1 && m[1].out_scale == 3);

	assert_int_equal(l[1].n_blocks, 2);
	assert_true(l[1].blocks[0].mixers[0].out_scale == 4);
	assert_true(l[1].blocks[0].residual_scale == 1 && l[1].blocks[1].residual_scale == 1);
	assert_int_equal(l[1].blocks[1].kind, MX_BLOCK_EXPERTS);
	const struct mx_plan_experts *x = &l[1].blocks[1].experts;
	assert_int_equal(x->n, 6);
	assert_int_equal(x->rule.chosen, 2);
	assert_int_equal(x->width, 7);
	assert_true(x->rule.normalize);
	assert_string_equal(x->router, "model.layers.1.mlp.gate.weight");
	assert_string_equal(x->list, "model.layers.1.mlp.experts.");
	assert_string_equal(x->shared_gate, "model.layers.1.mlp.shared_expert_gate.weight");
	assert_int_equal(l[1].blocks[1].mlp.width, 5);
	assert_string_equal(l[1].blocks[1].mlp.down,
	                    "model.layers.1.mlp.shared_expert.down_proj.weight");

	assert_int_equal(l[2].blocks[1].kind, MX_BLOCK_MLP);
	assert_int_equal(l[2].blocks[1].mlp.width, 11);
	assert_int_equal(l[3].blocks[1].mlp.width, 96);
	assert_true(l[3].blocks[1].mlp.bias);
	assert_true(l[3].blocks[1].residual_scale == 0.5f);
	char text[64];
	mx_plan_describe_layers(p, text, sizeof text);
	assert_string_equal(text, "0 ema + attention, 1-3 ema");
	mx_plan_destroy(p);
}

static void mixd_has_two_kinds_of_norm_and_of_feed_forward(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		llama, "{\"model_type\":\"mixd\",\"norm_type\":\"layernorm\",\"rms_norm_eps\":0.5,"
			   "\"mlp_type\":\"gelu_tanh\",\"mlp_bias\":true,\"mixd_layers\":[{\"mixer\":\"ema\"},"
			   "{\"mixer\":\"ema\",\"mlp\":{\"mlp_type\":\"swiglu\",\"mlp_bias\":false}}]}");
	assert_true(p->norm == MX_NORM_LAYER && p->norm_eps == 1e-5f);
	const struct mx_plan_mlp *gelu = &p->layers[0].blocks[1].mlp;
	assert_int_equal(gelu->act, MX_ACT_GELU_TANH);
	assert_null(gelu->gate);
	assert_string_equal(gelu->up, "model.layers.0.mlp.up_proj.weight");
	assert_string_equal(gelu->down, "model.layers.0.mlp.down_proj.weight");
	assert_int_equal(gelu->width, 96);
	assert_true(gelu->bias);
	const struct mx_plan_mlp *swiglu = &p->layers[1].blocks[1].mlp;
	assert_int_equal(swiglu->act, MX_ACT_SILU);
	assert_string_equal(swiglu->gate, "model.layers.1.mlp.gate_proj.weight");
	assert_false(swiglu->bias);
	mx_plan_destroy(p);
	p = plan_of(llama,
	            "{\"model_type\":\"mixd\",\"num_hidden_layers\":1,\"norm_type\":\"layernorm\","
	            "\"layer_norm_eps\":0.25,\"mixd_layers\":[{\"mixer\":\"ema\"}]}");
	assert_true(p->norm == MX_NORM_LAYER && p->norm_eps == 0.25f);
	mx_plan_destroy(p);
}

static void mixd_layers_name_their_mixers(void **state)
{
	(void)state;
	struct mx_plan *p = plan_of(
		llama,
		"{\"model_type\":\"mixd\",\"attention_bias\":true,\"mixd_layers\":["
		"{\"mixer\":\"attention\",\"num_attention_heads\":8,\"num_key_value_heads\":2,"
		"\"qk_norm\":true,\"sliding_window\":5,\"partial_rotary_factor\":0.5,"
		"\"attention_multiplier\":0.125,\"rope_parameters\":{\"rope_type\":\"default\","
		"\"rope_theta\":100}},"
		"{\"mixer\":\"ema\",\"decay\":0.9,\"taps\":[1,2.5],\"on\":true,\"off\":false,\"steps\":3,"
		"\"name\":\"x\",\"limit\":{\"__float__\":\"Infinity\"},\"absent\":null},"
		"{\"mixer\":\"attention\",\"rope_parameters\":{\"rope_type\":\"none\"}}],"
		"\"num_hidden_layers\":3}");
	assert_int_equal(p->n_layers, 3);
	assert_string_equal(p->layers[0].blocks[0].mixers[0].prefix, "model.layers.0.mixer.");
	assert_int_equal(get_int(p, 0, "heads"), 8);
	assert_int_equal(get_int(p, 0, "kv_heads"), 2);
	assert_int_equal(get_int(p, 0, "head_dim"), 8);
	assert_int_equal(get_int(p, 0, "rope_dim"), 4);
	assert_int_equal(get_int(p, 0, "window"), 5);
	assert_int_equal(get_int(p, 0, "qk_norm"), 1);
	assert_int_equal(get_int(p, 0, "bias"), 1); /* from the top level */
	assert_true(mx_param_float(params_of(p, 0), "scale", 0) == 0.125);
	assert_true(mx_param_float(params_of(p, 0), "rope_theta", 0) == 100);

	const struct mx_params *ema = params_of(p, 1);
	assert_string_equal(p->layers[1].blocks[0].mixers[0].mixer, "ema");
	assert_string_equal(p->layers[1].blocks[0].mixers[0].prefix, "model.layers.1.mixer.");
	assert_int_equal(ema->n, 7);
	assert_true(mx_param_float(ema, "decay", 0) == 0.9);
	assert_int_equal(mx_param_find(ema, "on")->type, MX_PARAM_BOOL);
	assert_int_equal(mx_param_int(ema, "on", 0), 1);
	assert_int_equal(mx_param_int(ema, "off", 1), 0);
	assert_int_equal(mx_param_find(ema, "steps")->type, MX_PARAM_INT);
	assert_int_equal(mx_param_int(ema, "steps", 0), 3);
	assert_string_equal(mx_param_string(ema, "name", ""), "x");
	assert_true(isinf(mx_param_float(ema, "limit", 0)));
	assert_int_equal(mx_param_find(ema, "taps")->n, 2);
	assert_true(mx_param_find(ema, "taps")->v[1] == 2.5);
	assert_null(mx_param_find(ema, "absent"));

	assert_int_equal(get_int(p, 2, "heads"), 4);
	assert_int_equal(get_int(p, 2, "window"), 0);
	assert_string_equal(mx_param_string(params_of(p, 2), "rope", ""), "none");
	assert_null(mx_param_find(params_of(p, 2), "rope_inv_freq"));
	mx_plan_destroy(p);
}

/* ---- generation ---- */

static void generation_config_wins_over_config(void **state)
{
	(void)state;
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	assert_int_equal(plan_parse(llama, "{\"eos_token_id\":2,\"bos_token_id\":1}", NULL, &p, &err),
	                 MX_OK);
	assert_int_equal(p->n_eos, 1);
	assert_int_equal(p->eos[0], 2);
	assert_int_equal(p->bos, 1);
	assert_true(isnan(p->temperature) && isnan(p->top_p) && isnan(p->min_p));
	assert_true(isnan(p->repetition_penalty));
	assert_int_equal(p->top_k, -1);
	mx_plan_destroy(p);

	p = NULL;
	assert_int_equal(
		plan_parse(llama, "{\"eos_token_id\":2,\"bos_token_id\":1}",
	               "{\"eos_token_id\":[5,6,7],\"bos_token_id\":null,\"temperature\":0.6,"
	               "\"top_p\":0.95,\"top_k\":20,\"min_p\":0.05,\"repetition_penalty\":1.1,"
	               "\"do_sample\":false}",
	               &p, &err),
		MX_OK);
	assert_int_equal(p->n_eos, 3);
	assert_int_equal(p->eos[2], 7);
	assert_int_equal(p->bos, 1);
	assert_true(p->temperature == 0.6f && p->top_p == 0.95f && p->min_p == 0.05f);
	assert_true(p->repetition_penalty == 1.1f);
	assert_int_equal(p->top_k, 20);
	mx_plan_destroy(p);

	p = plan_of(llama, "{\"eos_token_id\":null}");
	assert_int_equal(p->n_eos, 0);
	assert_int_equal(p->bos, -1);
	mx_plan_destroy(p);
}

/* ---- plan and tensors of the golden checkpoints fit together ---- */

static void need(const struct mx_checkpoint *c, const char *prefix, const char *name, uint64_t rows,
                 uint64_t cols)
{
	char full[200];
	const struct mx_tensor *t = NULL;
	struct mx_err err = {0};
	snprintf(full, sizeof full, "%s%s", prefix, name);
	if (mx_checkpoint_find(c, full, &t, &err))
		fail_msg("%s", err.text);
	if (t->shape[0] != rows || t->ndim != (cols ? 2u : 1u) || (cols && t->shape[1] != cols))
		fail_msg("%s has another shape", full);
}

static void check_layer(const struct mx_checkpoint *c, const struct mx_plan *p, uint32_t i)
{
	const struct mx_plan_block *b = p->layers[i].blocks;
	const char *prefix = b[0].mixers[0].prefix;
	uint64_t q = (uint64_t)(get_int(p, i, "heads") * get_int(p, i, "head_dim"));
	uint64_t kv = (uint64_t)(get_int(p, i, "kv_heads") * get_int(p, i, "head_dim"));
	need(c, "", b[0].norm, p->width, 0);
	need(c, prefix, "q_proj.weight", q, p->width);
	need(c, prefix, "k_proj.weight", kv, p->width);
	need(c, prefix, "v_proj.weight", kv, p->width);
	need(c, prefix, "o_proj.weight", p->width, q);
	if (get_int(p, i, "bias"))
		need(c, prefix, "k_proj.bias", kv, 0);
	if (get_int(p, i, "o_bias"))
		need(c, prefix, "o_proj.bias", p->width, 0);
	if (get_int(p, i, "qk_norm"))
		need(c, prefix, "k_norm.weight", (uint64_t)get_int(p, i, "head_dim"), 0);
	need(c, "", b[1].norm, p->width, 0);
	need(c, "", b[1].mlp.gate, b[1].mlp.width, p->width);
	need(c, "", b[1].mlp.up, b[1].mlp.width, p->width);
	need(c, "", b[1].mlp.down, p->width, b[1].mlp.width);
}

static void golden_checkpoints_hold_what_their_plans_name(void **state)
{
	(void)state;
	static const char *const names[] = {
		"llama",      "llama-llama3", "llama-linear", "llama-dynamic", "llama-yarn",
		"llama-tied", "llama-bias",   "llama-bf16",   "llama-f16",     "llama-sharded",
		"mistral",    "qwen2",        "qwen2-window", "qwen3",         "mixd-attention",
	};
	for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
		const char *srcdir = getenv("srcdir");
		struct mx_plan *p = NULL;
		struct mx_checkpoint *c = NULL;
		struct mx_err err = {0};
		char dir[4096];
		snprintf(dir, sizeof dir, "%s/tests/golden/models/%s", srcdir ? srcdir : ".", names[n]);
		if (mx_plan_load(dir, &p, &err) || mx_checkpoint_open(dir, &c, &err))
			fail_msg("%s: %s: %s", names[n], err.where, err.text);
		need(c, "", p->embed, p->vocab, p->width);
		need(c, "", p->lm_head, p->vocab, p->width);
		need(c, "", p->final_norm, p->width, 0);
		for (uint32_t i = 0; i < p->n_layers; i++)
			check_layer(c, p, i);
		assert_true(p->max_context >= 513 + 32); /* the longest case fits */
		mx_checkpoint_close(c);
		mx_plan_destroy(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(llama_has_the_expected_shape),
		cmocka_unit_test(layers_are_described_in_runs),
		cmocka_unit_test(attention_layers_can_have_another_mixer),
		cmocka_unit_test(texts_become_parameters_of_their_types),
		cmocka_unit_test(families_differ_as_in_transformers),
		cmocka_unit_test(embeddings_may_be_tied_and_mlp_biased),
		cmocka_unit_test(context_is_stretched_by_scaling),
		cmocka_unit_test(frequencies_are_those_of_transformers),
		cmocka_unit_test(dynamic_keeps_what_its_formula_needs),
		cmocka_unit_test(mixd_layers_name_their_mixers),
		cmocka_unit_test(mixd_has_two_kinds_of_norm_and_of_feed_forward),
		cmocka_unit_test(mixd_layers_have_multipliers_and_feed_forwards_of_their_own),
		cmocka_unit_test(generation_config_wins_over_config),
		cmocka_unit_test(golden_checkpoints_hold_what_their_plans_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
