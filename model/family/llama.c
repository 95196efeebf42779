/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama, Mistral, Qwen2 and Qwen3. Their layers have one shape; they differ in
 * biases, q/k norms, some defaults, and in which layers have a sliding window.
 */
#include <string.h>

#include "model/family/family.h"

/* Reads an element of layer_types: does the layer have the window? */
static mx_status layer_type(const struct mx_plan_build *b, const json_t *types, uint32_t i,
                            bool *out)
{
	const char *type = json_string_value(json_array_get(types, i));
	if (type && (!strcmp(type, "sliding_attention") || !strcmp(type, "full_attention"))) {
		*out = type[0] == 's';
		return MX_OK;
	}
	return mx_fail(b->err, MX_E_UNSUPPORTED,
	               "layer_types[%u]: '%.60s' is neither full_attention nor sliding_attention", i,
	               type ? type : "?");
}

/* Applies Qwen's rule (Qwen2Config.__post_init__) to one layer. */
static mx_status window_of_layer(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 int64_t window, uint32_t i, int64_t *out)
{
	const json_t *types = mx_scope_get(scope, "layer_types");
	int64_t from = 0;
	mx_status s = mx_scope_int(scope, "max_window_layers", 0, INT32_MAX, 28, &from, b->err);
	if (s)
		return s;
	bool sliding = window && i >= from;
	if (types) {
		s = layer_type(b, types, i, &sliding);
		if (s)
			return s;
		if (sliding && !window)
			return mx_fail(b->err, MX_E_INVALID,
			               "layer_types[%u]: 'sliding_attention' without use_sliding_window and "
			               "sliding_window",
			               i);
	}
	*out = sliding ? window : 0;
	return MX_OK;
}

static mx_status check_layer_types(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   uint32_t n)
{
	const json_t *types = mx_scope_get(scope, "layer_types");
	if (!types || (json_is_array(types) && json_array_size(types) == n))
		return MX_OK;
	return mx_fail(b->err, MX_E_INVALID,
	               "layer_types: must be a list of num_hidden_layers = %u strings", n);
}

/* Reads the window of those layers that have one; 0 = no layer has. If windows are switched off,
 * any size is accepted. */
static mx_status read_window(const struct mx_plan_build *b, const struct mx_scope *scope,
                             int64_t *out)
{
	bool use = b->family->window == MX_WINDOW_ALL;
	mx_status s = MX_OK;
	if (b->family->window == MX_WINDOW_LAYERS || b->family->window == MX_WINDOW_IF_USED)
		s = mx_scope_bool(scope, "use_sliding_window", false, &use, b->err);
	if (s)
		return s;
	*out = 0;
	return use ? mx_window_read(b, scope, out) : MX_OK;
}

mx_status mx_llama_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	struct mx_rope_config rope = {0};
	struct mx_params full = {0}, windowed = {0};
	struct mx_mlp_spec mlp = {0};
	int64_t n = 0, window = 0;

	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = mx_attention_config_read(b, &scope, &full, &rope);
	if (!s)
		s = read_window(b, &scope, &window);
	if (!s && b->family->window == MX_WINDOW_LAYERS)
		s = check_layer_types(b, &scope, (uint32_t)n);
	if (!s)
		s = mx_attention_config_window(b, &full, window, &windowed);
	if (!s && !b->family->mlp)
		s = mx_mlp_config_read(b, &scope, &mlp);
	for (uint32_t i = 0; !s && i < n; i++) {
		int64_t w = window;
		if (b->family->window == MX_WINDOW_LAYERS)
			s = window_of_layer(b, &scope, window, i, &w);
		if (!s && b->family->mlp)
			s = b->family->mlp(b, &scope, i, &mlp);
		const struct mx_plan_mixer mixer = {.mixer = "attention",
		                                    .prefix = "self_attn.",
		                                    .params = w ? windowed : full,
		                                    .in_scale = 1,
		                                    .out_scale = 1};
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &mixer, .n_mixers = 1, .mlp = &mlp, .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s ? s : mx_rope_context_set(b, &rope);
}

/* Defaults: configuration_{llama,mistral,qwen2,qwen3}.py of transformers 5. */
const struct mx_family mx_family_llama = {
	.model_type = "llama",
	.names = &mx_llama_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = mx_llama_layers,
};

const struct mx_family mx_family_mistral = {
	.model_type = "mistral",
	.names = &mx_llama_names,
	.default_kv_heads = 8,
	.default_max_position = 4096 * 32,
	.default_window = 4096,
	.window = MX_WINDOW_ALL,
	.layers = mx_llama_layers,
};

const struct mx_family mx_family_qwen2 = {
	.model_type = "qwen2",
	.names = &mx_llama_names,
	.default_kv_heads = 32,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.qkv_bias = true,
	.layers = mx_llama_layers,
};

const struct mx_family mx_family_qwen3 = {
	.model_type = "qwen3",
	.names = &mx_llama_names,
	.default_kv_heads = 32,
	.default_head_dim = 128,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.has_attention_bias = true,
	.qk_norm = true,
	.layers = mx_llama_layers,
};
