/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2: learned positions, LayerNorm, biases everywhere, matrices stored [inputs, outputs]; and
 * GPT-BigCode (StarCoder, SantaCoder), whose matrices are stored as usual and whose heads share a
 * key. */
#include <string.h>

#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "transformer.wte.weight",
	.final_norm = "transformer.ln_f.weight",
	.lm_head = "lm_head.weight",
	.layers = "transformer.h.",
	.mixer_norm = "ln_1.weight",
	.mlp_norm = "ln_2.weight",
	.mlp = "mlp.",
	.up = "c_fc.weight",
	.down = "c_proj.weight",
};

static const char *const aliases[] = {"n_embd",
                                      "hidden_size",
                                      "n_layer",
                                      "num_hidden_layers",
                                      "n_head",
                                      "num_attention_heads",
                                      "n_inner",
                                      "intermediate_size",
                                      "n_positions",
                                      "max_position_embeddings",
                                      "activation_function",
                                      "hidden_act",
                                      NULL};

/* Masks, which older files have. */
static const char *const skipped[] = {"*.attn.bias", "*.attn.masked_bias", NULL};
static const char *const roots[] = {"transformer.", "", NULL};

/* Gives each layer its scale: divided by its number from 1 on. */
static mx_status scale_by_layer(const struct mx_plan_build *b)
{
	struct mx_plan_layer *layers = (struct mx_plan_layer *)b->plan->layers;
	for (uint32_t i = 0; i < b->plan->n_layers; i++) {
		struct mx_plan_mixer *m = (struct mx_plan_mixer *)layers[i].blocks[0].mixers;
		struct mx_params own;
		mx_status s = mx_attention_config_window(b, &m->params, 0, &own);
		if (s)
			return s;
		for (size_t k = 0; k < own.n; k++)
			if (!strcmp(own.items[k].name, "scale"))
				((struct mx_param *)own.items)[k].f /= i + 1;
		m->params = own;
	}
	return MX_OK;
}

static mx_status gpt2_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const bool bigcode = !strcmp(b->family->model_type, "gpt_bigcode");
	bool scaled = true, by_layer = false, cross = false, single = true, conv1d = !bigcode;
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "scale_attn_weights", true, &scaled, b->err);
	if (!s)
		s = bigcode ? mx_scope_bool(&scope, "multi_query", true, &single, b->err)
		            : mx_scope_bool(&scope, "scale_attn_by_inverse_layer_idx", false, &by_layer,
		                            b->err);
	if (!s && !bigcode) /* false: of GGUF, whose converter turns the matrices */
		s = mx_scope_bool(&scope, "conv1d", true, &conv1d, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "add_cross_attention", false, &cross, b->err);
	if (!s && cross)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "add_cross_attention: true is not supported");
	if (s)
		return s;
	if (!scaled)
		d.shape.scale = 1;
	if (bigcode) {
		d.shape.kv_heads = single ? 1 : d.shape.heads;
		d.shape.per_head = !single;
	}
	d.shape.names = "gpt2";
	d.shape.fused = d.shape.bias = d.shape.o_bias = true;
	d.prefix = "attn.";
	d.mlp.plain = d.mlp.bias = true;
	for (uint32_t i = 0; i < d.n; i++)
		d.no_rope[i] = true;
	b->plan->transposed = conv1d;
	b->plan->positions = "transformer.wpe.weight";
	b->plan->n_positions = (uint32_t)b->max_position;
	s = mx_dense_fill(b, &d);
	return !s && by_layer ? scale_by_layer(b) : s;
}

/* Defaults: configuration_{gpt2,gpt_bigcode}.py of transformers 5. */
#define FAMILY(type, act)                                                                          \
	{                                                                                              \
		.model_type = (type), .names = &names, .aliases = aliases, .roots = roots,                 \
		.skipped = skipped, .tied = true, .norm = MX_NORM_LAYER,                                   \
		.norm_eps_key = "layer_norm_epsilon", .default_norm_eps = 1e-5,                            \
		.default_max_position = 1024, .window = MX_WINDOW_NONE, .default_act = (act),              \
		.default_mlp_factor = 4, .layers = gpt2_layers,                                            \
	}

const struct mx_family mx_family_gpt2 = FAMILY("gpt2", "gelu_new");
const struct mx_family mx_family_gpt_bigcode = FAMILY("gpt_bigcode", "gelu_pytorch_tanh");
