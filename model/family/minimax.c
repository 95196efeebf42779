/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MiniMax-Text-01 and MiniMax-M1: layers of lightning attention (linear attention whose heads decay
 * at fixed rates) or softmax attention, all with experts. What a block adds to is its normed input.
 * Configs as published differ from those of transformers in the names of keys.
 *
 * transformers rotates all of a head and ignores rotary_dim, which published configs have; we do as
 * the authors' code.
 */
#include <string.h>

#include "model/family/family.h"

/* What the layers of a model have in common. */
struct minimax {
	struct mx_plan_mixer full, linear;
	float carried[3]; /* alpha of layers of softmax attention, of linear ones, of experts */
	float mlp_beta;
	struct mx_mlp_spec mlp;
};

/* Reads whether layer i is one of linear attention. */
static mx_status is_linear(const struct mx_plan_build *b, const struct mx_scope *scope, uint32_t i,
                           bool *out)
{
	const json_t *words = mx_scope_get(scope, "layer_types");
	const json_t *numbers = mx_scope_get(scope, "attn_type_list");
	const char *word = json_string_value(json_array_get(words, i));
	double number = -1;
	*out = i % 2;
	if (words && word && (!strcmp(word, "linear_attention") || !strcmp(word, "full_attention")))
		*out = word[0] == 'l';
	else if (words)
		return mx_fail(b->err, MX_E_INVALID,
		               "layer_types[%u]: is neither linear_attention nor full_attention", i);
	else if (numbers && mx_json_number(json_array_get(numbers, i), &number) &&
	         (number == 0 || number == 1))
		*out = number == 0;
	else if (numbers)
		return mx_fail(b->err, MX_E_INVALID, "attn_type_list[%u]: is neither 0 nor 1", i);
	return MX_OK;
}

static mx_status read_factors(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct minimax *out)
{
	const struct {
		const char *key;
		float *to;
	} factors[] = {
		{"full_attn_alpha_factor", &out->carried[0]},
		{"linear_attn_alpha_factor", &out->carried[1]},
		{"mlp_alpha_factor", &out->carried[2]},
		{"full_attn_beta_factor", &out->full.out_scale},
		{"linear_attn_beta_factor", &out->linear.out_scale},
		{"mlp_beta_factor", &out->mlp_beta},
	};
	mx_status s = MX_OK;
	for (size_t i = 0; !s && i < sizeof factors / sizeof *factors; i++)
		s = mx_multiplier_read(b, scope, factors[i].key, factors[i].to);
	return s;
}

/* Makes both mixers. */
static mx_status read_mixers(struct mx_plan_build *b, const struct mx_scope *scope,
                             struct minimax *out)
{
	struct mx_attention_shape shape;
	struct mx_rope_config rope;
	struct mx_param *items = mx_arena_alloc(b->arena, 3 * sizeof *items);
	int64_t window = 0;
	if (!items)
		return mx_plan_no_memory(b);
	out->full = (struct mx_plan_mixer){.mixer = "attention", .prefix = "self_attn.", .in_scale = 1};
	out->linear = (struct mx_plan_mixer){.mixer = "gla", .prefix = "self_attn.", .in_scale = 1};
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	if (!s)
		s = mx_attention_params(b, &shape, &rope, &out->full.params);
	if (!s)
		s = mx_window_read(b, scope, &window);
	if (!s)
		s = mx_attention_config_window(b, &out->full.params, window, &out->full.params);
	if (s)
		return s;
	items[0] = (struct mx_param){.name = "variant", .type = MX_PARAM_STRING, .s = "minimax"};
	items[1] = mx_param_of_int("num_heads", shape.heads);
	items[2] = mx_param_of_int("head_dim", shape.dim);
	out->linear.params = (struct mx_params){.items = items, .n = 3};
	return mx_rope_context_set(b, &rope);
}

static mx_status minimax_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct minimax m = {.mlp = {.router = {.normalize = true}}};
	struct mx_plan_layer *layers = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = mx_scope_only_bool(&scope, "postnorm", true, b->err);
	if (!s)
		s = mx_scope_only_int(&scope, "shared_intermediate_size", 0, b->err);
	if (!s)
		s = read_mixers(b, &scope, &m);
	if (!s)
		s = read_factors(b, &scope, &m);
	if (!s)
		s = mx_experts_config_read(b, &scope, "intermediate_size", &m.mlp);
	m.mlp.out_scale = m.mlp_beta;
	for (uint32_t i = 0; !s && i < n; i++) {
		bool linear = false;
		s = is_linear(b, &scope, i, &linear);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = linear ? &m.linear : &m.full,
		                                   .n_mixers = 1,
		                                   .mlp = &m.mlp,
		                                   .residual_scale = 1,
		                                   .carried = {m.carried[linear], m.carried[2]}};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

static const struct mx_expert_names w123 = {
	.router = "block_sparse_moe.gate.weight",
	.list = "block_sparse_moe.experts.",
	.gate = ".w1.weight",
	.up = ".w3.weight",
	.down = ".w2.weight",
};

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.experts = &w123,
};

static const char *const skipped[] = {"*.slope_rate", "*.query_decay", "*.key_decay",
                                      "*.diagonal_decay", NULL};

/* clang-format off */
static const char *const aliases[] = {
	"layernorm_full_attention_alpha", "full_attn_alpha_factor",
	"layernorm_full_attention_beta", "full_attn_beta_factor",
	"layernorm_linear_attention_alpha", "linear_attn_alpha_factor",
	"layernorm_linear_attention_beta", "linear_attn_beta_factor",
	"layernorm_mlp_alpha", "mlp_alpha_factor",
	"layernorm_mlp_beta", "mlp_beta_factor",
	NULL,
};
/* clang-format on */

/* Defaults: configuration_minimax.py of transformers 5. */
#define MINIMAX(type)                                                                              \
	{                                                                                              \
		.model_type = (type), .names = &names, .aliases = aliases, .default_norm_eps = 1e-5,       \
		.default_kv_heads = 8, .default_max_position = 131072, .default_theta = 1e6,               \
		.default_partial = 1, .skipped = skipped, .layers = minimax_layers,                        \
	}

const struct mx_family mx_family_minimax = MINIMAX("minimax");
const struct mx_family mx_family_minimax_text_01 = MINIMAX("minimax_text_01");
const struct mx_family mx_family_minimax_m1 = MINIMAX("minimax_m1");
