/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zamba 2 (arXiv:2411.15242): layers of Mamba-2, and before some of them a transformer whose output
 * is added to the layer's input. A few such transformers are shared by all layers that have one,
 * in turns; each use has low-rank matrices of its own beside the shared ones.
 *
 * The step of Mamba-2 has no lower limit, as in the authors' kernels: transformers cuts that of
 * prompts, but not that of decoding, at time_step_min.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family/family.h"

static const struct mx_mamba_keys keys = {
	.heads = "n_mamba_heads",
	.expand = "mamba_expand",
	.state = "mamba_d_state",
	.groups = "mamba_ngroups",
	.kernel = "mamba_d_conv",
	.bias = "add_bias_linear",
	.default_state = 64,
	.default_groups = 1,
};

/* What the layers share. */
struct zamba {
	uint32_t n, shared; /* layers, shared transformers */
	uint32_t *owners;   /* [shared] layers under whose names the shared tensors are */
	struct mx_params attention, mamba;
	struct mx_mlp_spec mlp;
	uint32_t rank;
	bool attention_adapters;
};

static mx_status read_attention(const struct mx_plan_build *b, const struct mx_scope *scope,
                                struct zamba *z)
{
	struct mx_attention_shape shape = {0};
	struct mx_rope_config rope = {.type = "none"};
	bool rotates = false;
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_scope_bool(scope, "use_mem_rope", false, &rotates, b->err);
	if (!s) /* transformers ties the shared transformers by this key too */
		s = mx_scope_only_bool(scope, "tie_word_embeddings", true, b->err);
	if (!s) /* transformers 5 has lost the other base that this meant */
		s = mx_scope_only_bool(scope, "use_long_context", false, b->err);
	if (!s && 2 * b->plan->width % shape.heads)
		s = mx_fail(b->err, MX_E_RANGE,
		            "num_attention_heads: %u does not divide twice the hidden_size %u", shape.heads,
		            b->plan->width);
	if (s)
		return s;
	shape.dim = 2 * b->plan->width / shape.heads;
	shape.scale = 1 / sqrt(shape.dim / 2.0);
	if (rotates && (s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope)))
		return s;
	s = mx_attention_params(b, &shape, &rope, &z->attention);
	return s || !rotates ? s : mx_rope_context_set(b, &rope);
}

static mx_status read_mamba(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct zamba *z)
{
	struct mx_mamba_config c = {0};
	mx_status s = mx_mamba_config_read(b, scope, &keys, &c);
	c.norm_eps = 1e-5;
	return s ? s : mx_mamba_params(b, &c, &z->mamba);
}

static mx_status read_adapters(const struct mx_plan_build *b, const struct mx_scope *scope,
                               struct zamba *z)
{
	int64_t rank = 0, shared = 0;
	mx_status s = mx_scope_only_bool(scope, "use_shared_mlp_adapter", true, b->err);
	if (!s)
		s = mx_scope_bool(scope, "use_shared_attention_adapter", false, &z->attention_adapters,
		                  b->err);
	if (!s)
		s = mx_scope_int(scope, "adapter_rank", 1, MX_PLAN_MAX_WIDTH, 128, &rank, b->err);
	if (!s)
		s = mx_scope_int(scope, "num_mem_blocks", 1, MX_PLAN_MAX_LAYERS, 1, &shared, b->err);
	if (s)
		return s;
	z->rank = (uint32_t)rank;
	z->shared = (uint32_t)shared;
	z->owners = mx_arena_alloc(b->arena, z->shared * sizeof *z->owners);
	return z->owners ? MX_OK : mx_plan_no_memory(b);
}

/* Makes the name of a tensor of a shared transformer: PART USE REST. */
static const char *shared_name(const struct mx_plan_build *b, uint32_t owner, const char *part,
                               uint32_t use, const char *rest)
{
	char name[160];
	snprintf(name, sizeof name, "shared_transformer.%s%u%s", part, use, rest);
	return mx_plan_layer_name(b, owner, name, "");
}

/* Adds to attention's parameters the adapters of one use. Their names are below the mixer's prefix.
 */
static mx_status adapt(const struct mx_plan_build *b, const struct zamba *z, uint32_t use,
                       struct mx_params *out)
{
	static const char *const params[] = {"q_adapter_in",  "q_adapter_out", "k_adapter_in",
	                                     "k_adapter_out", "v_adapter_in",  "v_adapter_out"};
	const struct mx_params *p = &z->attention;
	struct mx_param *items = mx_arena_alloc(b->arena, (p->n + 8) * sizeof *items);
	size_t n = p->n;
	if (!items)
		return mx_plan_no_memory(b);
	memcpy(items, p->items, n * sizeof *items);
	items[n++] = mx_param_of_int("input_width", 2 * (int64_t)b->plan->width);
	for (size_t i = 0; z->attention_adapters && i < 6; i++) {
		char name[64];
		int len = snprintf(name, sizeof name, "linear_%c_adapter_list.%u.%zu.weight", params[i][0],
		                   use, i % 2);
		const char *s = mx_arena_strndup(b->arena, name, (size_t)len);
		if (!s)
			return mx_plan_no_memory(b);
		items[n++] = (struct mx_param){.name = params[i], .type = MX_PARAM_STRING, .s = s};
	}
	if (z->attention_adapters)
		items[n++] = mx_param_of_int("adapter_rank", z->rank);
	*out = (struct mx_params){.items = items, .n = n};
	return MX_OK;
}

/* Fills the block before layer i: use `use` of the shared transformers. */
static mx_status fill_aside(const struct mx_plan_build *b, const struct zamba *z, uint32_t i,
                            uint32_t use, struct mx_plan_block *out)
{
	static const char ff[] = "shared_transformer.feed_forward.";
	uint32_t owner = z->owners[use % z->shared];
	struct mx_plan_mixer *mixer = mx_arena_alloc(b->arena, sizeof *mixer);
	if (!mixer)
		return mx_plan_no_memory(b);
	*mixer = (struct mx_plan_mixer){
		.mixer = "attention",
		.prefix = mx_plan_layer_name(b, owner, "shared_transformer.self_attn.", ""),
		.in_scale = 1,
		.out_scale = 1};
	*out = (struct mx_plan_block){
		.kind = MX_BLOCK_ASIDE,
		.residual_scale = 1,
		.mixers = mixer,
		.n_mixers = 1,
		.aside = {.norm =
	                  mx_plan_layer_name(b, owner, "shared_transformer.", "input_layernorm.weight"),
	              .mlp_norm = mx_plan_layer_name(b, owner, "shared_transformer.",
	                                             "pre_ff_layernorm.weight"),
	              .out = mx_plan_layer_name(b, i, "linear.weight", "")},
		.mlp = {.act = z->mlp.act,
	            .fused = true,
	            .up = mx_plan_layer_name(b, owner, ff, "gate_up_proj.weight"),
	            .down = mx_plan_layer_name(b, owner, ff, "down_proj.weight"),
	            .bias = z->mlp.bias,
	            .width = z->mlp.width,
	            .gate_scale = 1,
	            .adapter_in = shared_name(b, owner, "feed_forward.gate_up_proj_adapter_list.", use,
	                                      ".0.weight"),
	            .adapter_out = shared_name(b, owner, "feed_forward.gate_up_proj_adapter_list.", use,
	                                       ".1.weight"),
	            .rank = z->rank},
	};
	out->mlp.gate = out->mlp.up;
	if (!mixer->prefix || !out->aside.norm || !out->aside.mlp_norm || !out->aside.out ||
	    !out->mlp.up || !out->mlp.down || !out->mlp.adapter_in || !out->mlp.adapter_out)
		return mx_plan_no_memory(b);
	return adapt(b, z, use, &mixer->params);
}

/* Fills the block of a layer whose tensors begin with `under`. */
static mx_status fill_mamba(const struct mx_plan_build *b, const struct zamba *z, uint32_t i,
                            const char *under, struct mx_plan_block *out)
{
	struct mx_plan_mixer *mixer = mx_arena_alloc(b->arena, sizeof *mixer);
	if (!mixer)
		return mx_plan_no_memory(b);
	*mixer = (struct mx_plan_mixer){.mixer = "mamba",
	                                .prefix = mx_plan_layer_name(b, i, under, "mamba."),
	                                .params = z->mamba,
	                                .in_scale = 1,
	                                .out_scale = 1};
	*out = (struct mx_plan_block){.kind = MX_BLOCK_MIXER,
	                              .norm = mx_plan_layer_name(b, i, under, "input_layernorm.weight"),
	                              .residual_scale = 1,
	                              .mixers = mixer,
	                              .n_mixers = 1};
	return mixer->prefix && out->norm ? MX_OK : mx_plan_no_memory(b);
}

/* Fills all layers. Checkpoints may repeat the shared tensors under later layers. */
static mx_status fill_layers(const struct mx_plan_build *b, const struct zamba *z,
                             const json_t *types, struct mx_plan_layer *layers)
{
	const char **skipped = mx_arena_alloc(b->arena, (z->n + 1) * sizeof *skipped);
	uint32_t use = 0, n_skipped = 0;
	mx_status s = skipped ? MX_OK : mx_plan_no_memory(b);
	for (uint32_t i = 0; !s && i < z->n; i++) {
		const char *type = json_string_value(json_array_get(types, i));
		bool hybrid = type && !strcmp(type, "hybrid");
		struct mx_plan_block *blocks = mx_arena_alloc(b->arena, 2 * sizeof *blocks);
		if (!hybrid && (!type || (strcmp(type, "mamba") && strcmp(type, "linear_attention"))))
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               "layers_block_type[%u]: '%.60s' is neither mamba nor hybrid", i,
			               type ? type : "?");
		if (!blocks)
			return mx_plan_no_memory(b);
		if (hybrid && use < z->shared)
			z->owners[use] = i;
		else if (hybrid &&
		         !(skipped[n_skipped++] = mx_plan_layer_name(b, i, "shared_transformer.*", "")))
			return mx_plan_no_memory(b);
		if (hybrid)
			s = fill_aside(b, z, i, use++, &blocks[0]);
		if (!s)
			s = fill_mamba(b, z, i, hybrid ? "mamba_decoder." : "", &blocks[hybrid]);
		layers[i] = (struct mx_plan_layer){.blocks = blocks, .n_blocks = 1 + hybrid};
	}
	b->plan->skipped = skipped;
	return s;
}

static mx_status zamba_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	struct zamba z = {0};
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = read_attention(b, &scope, &z);
	if (!s)
		s = read_mamba(b, &scope, &z);
	if (!s)
		s = read_adapters(b, &scope, &z);
	if (!s)
		s = mx_mlp_config_read(b, &scope, &z.mlp);
	if (s)
		return s;
	z.n = (uint32_t)n;
	const json_t *types = mx_layer_words(b, &scope, "layers_block_type", "layer_types", z.n);
	if (!types)
		return MX_E_INVALID;
	s = mx_plan_layers_alloc(b, z.n, &layers);
	return s ? s : fill_layers(b, &z, types, layers);
}

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.final_layernorm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
};

static const char *const aliases[] = {"add_bias_linear", "mlp_bias", NULL};

/* Defaults: configuration_zamba2.py of transformers 5. */
const struct mx_family mx_family_zamba2 = {
	.model_type = "zamba2",
	.names = &names,
	.aliases = aliases,
	.tied = true,
	.default_norm_eps = 1e-5,
	.default_max_position = 4096,
	.window = MX_WINDOW_NONE,
	.has_mlp_bias = true,
	.default_act = "gelu",
	.default_mlp_factor = 4,
	.layers = zamba_layers,
};
