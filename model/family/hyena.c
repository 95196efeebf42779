/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hyena with implicit filters. Every layer is a LayerNorm and the mixer "hyena",
 * then a LayerNorm and a feed-forward with GELU. Two dialects of config.json:
 *
 *   hyenadna  the Hugging Face port of HyenaDNA (LongSafari/hyenadna-*-hf)
 *   safari    SimpleLMHeadModel and ConvLMHeadModel of HazyResearch/safari and
 *             hyena-dna, which have no config.json: one is written with
 *             their arguments (docs/hyena.md)
 *
 * A sequence cannot be longer than the filter.
 */
#include <string.h>

#include "model/family/family.h"

#define MAX_FILTER_LEN (1 << 24)
#define MAX_NETWORK    1024 /* limit of the width of the filter's network and of its input */

/* The configuration of the long filter and of the short one. */
struct filter_config {
	int64_t len, emb_dim, order, inner_mlps, short_taps;
	bool modulate;
	double shift;
};

/* Reads the filter's network, whose keys are the same in both dialects. */
static mx_status read_network(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct filter_config *out)
{
	mx_status s = mx_scope_int(scope, "emb_dim", 1, MAX_NETWORK, 3, &out->emb_dim, b->err);
	if (!s && (out->emb_dim < 3 || out->emb_dim % 2 == 0))
		s = mx_fail(b->err, MX_E_RANGE, "%semb_dim: %lld is not an odd number above 2",
		            scope->where, (long long)out->emb_dim);
	if (!s)
		s = mx_scope_int(scope, "filter_order", 1, MAX_NETWORK, 64, &out->order, b->err);
	if (!s)
		s = mx_scope_int(scope, "num_inner_mlps", 0, 8, 2, &out->inner_mlps, b->err);
	return s;
}

/* Makes the mixer's parameters, see mixers/hyena/README.md. */
static mx_status mixer_params(const struct mx_plan_build *b, const struct filter_config *f,
                              struct mx_params *out)
{
	const struct mx_param params[] = {
		mx_param_of_int("filter_len", f->len),
		mx_param_of_int("emb_dim", f->emb_dim),
		mx_param_of_int("filter_order", f->order),
		mx_param_of_int("inner_mlps", f->inner_mlps),
		mx_param_of_int("short_filter", f->short_taps),
		mx_param_of_bool("modulate", f->modulate),
		{.name = "shift", .type = MX_PARAM_FLOAT, .f = f->shift},
	};
	struct mx_param *items = mx_arena_alloc(b->arena, sizeof params);
	if (!items)
		return mx_plan_no_memory(b);
	memcpy(items, params, sizeof params);
	*out = (struct mx_params){.items = items, .n = sizeof params / sizeof *params};
	return MX_OK;
}

/* Fills n_layer equal layers. The longest context is the filter's length. */
static mx_status fill_layers(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const struct filter_config *f)
{
	struct mx_plan_layer *layers = NULL;
	struct mx_plan_mixer mixer = {
		.mixer = "hyena", .prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	int64_t n = 0, inner = 4 * (int64_t)b->plan->width;
	mx_status s = mx_scope_need_int(scope, "n_layer", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_scope_int(scope, "d_inner", 1, MX_PLAN_MAX_WIDTH * 4, inner, &inner, b->err);
	if (!s)
		s = mixer_params(b, f, &mixer.params);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	const struct mx_mlp_spec mlp = {
		.act = MX_ACT_GELU_TANH, .plain = true, .width = (uint32_t)inner, .bias = true};
	for (uint32_t i = 0; !s && i < n; i++) {
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &mixer, .n_mixers = 1, .mlp = &mlp, .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	b->plan->max_context = (uint32_t)f->len;
	return s;
}

/* ---- the Hugging Face port ---- */

/* Sets what the config leaves out: sequences end in [SEP]. The head is tied to the embedding unless
 * the config says otherwise, the default of transformers before version 5. */
static mx_status hyenadna_vocabulary(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	static const int32_t end[] = {1};
	struct mx_plan *p = b->plan;
	bool tied = true;
	mx_status s = mx_vocab_pad(b, scope, 8);
	if (!s)
		s = mx_scope_bool(scope, "tie_word_embeddings", true, &tied, b->err);
	if (s)
		return s;
	p->lm_head = tied ? p->embed : b->family->names->lm_head;
	if (p->vocab > 1) {
		p->eos = end;
		p->n_eos = 1;
	}
	return MX_OK;
}

/* Ignored keys: use_bias and the dropouts do not affect inference; activation_freq is the initial
 * value of a tensor of the checkpoint. */
static mx_status hyenadna_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct filter_config f = {.short_taps = 3, .modulate = true, .shift = 0.05};
	mx_status s =
		mx_scope_int(&scope, "max_seq_len", 1, MAX_FILTER_LEN, b->max_position, &f.len, b->err);
	if (!s)
		s = mx_scope_only_int(&scope, "hyena_order", 2, b->err);
	if (!s) /* the model pads for 3, whatever this key is */
		s = mx_scope_only_int(&scope, "short_filter_order", 3, b->err);
	if (!s) /* else the frequencies are not in the checkpoint */
		s = mx_scope_only_bool(&scope, "train_freq", true, b->err);
	if (!s)
		s = read_network(b, &scope, &f);
	if (!s && b->plan->norm_eps != 1e-5f) /* the layers' norms use 1e-5, whatever this key is */
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "layer_norm_epsilon: %g is not supported, only 1e-5",
		            (double)b->plan->norm_eps);
	if (!s)
		s = hyenadna_vocabulary(b, &scope);
	return s ? s : fill_layers(b, &scope, &f);
}

/* ---- safari ---- */

/* Refuses unknown keys: a misspelt key must not silently give a default. The known keys that
 * nothing reads concern training, kernels and the filter's initial values. */
static mx_status known_layer_keys(const struct mx_plan_build *b, const struct mx_scope *layer)
{
	static const char *const known[] = {
		"_name_",
		"d_model",
		"l_max",
		"order",
		"filter_order",
		"num_heads",
		"inner_factor",
		"num_blocks",
		"fused_bias_fc",
		"outer_mixing",
		"dropout",
		"filter_dropout",
		"filter_cls",
		"post_order_ffn",
		"jit_filter",
		"short_filter_order",
		"activation",
		"return_state",
		"emb_dim",
		"fused_fft_conv",
		"lr",
		"lr_pos_emb",
		"w",
		"wd",
		"bias",
		"num_inner_mlps",
		"normalized",
		"modulate",
		"shift",
		"local_order",
		"fast_decay_pct",
		"slow_decay_pct",
		"target",
		"modulation_lr",
	};
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)layer->outer, key, v)
	{
		size_t i = 0;
		while (i < sizeof known / sizeof *known && strcmp(key, known[i]))
			i++;
		if (i == sizeof known / sizeof *known)
			return mx_fail(b->err, MX_E_INVALID, "layer.%.60s: unknown key", key);
	}
	return MX_OK;
}

/* Refuses options of safari's models that are not supported. */
static mx_status refuse_safari(const struct mx_plan_build *b, const struct mx_scope *model,
                               const struct mx_scope *layer)
{
	static const struct {
		const char *key;
		int64_t only;
	} numbers[] = {{"order", 2}, {"num_heads", 1}, {"inner_factor", 1}, {"num_blocks", 1}};
	static const struct {
		const char *key;
		bool only;
	} flags[] = {
		{"outer_mixing", false}, {"post_order_ffn", false}, {"normalized", false}, {"bias", true}};
	static const struct {
		const char *key, *only;
	} names[] = {{"_name_", "hyena"}, {"filter_cls", "hyena-filter"}, {"activation", "id"}};
	mx_status s = mx_scope_only_int(model, "max_position_embeddings", 0, b->err);
	if (!s && json_array_size(mx_scope_get(model, "attn_layer_idx")))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "attn_layer_idx: attention layers of safari are not supported");
	for (size_t i = 0; !s && i < sizeof numbers / sizeof *numbers; i++)
		s = mx_scope_only_int(layer, numbers[i].key, numbers[i].only, b->err);
	for (size_t i = 0; !s && i < sizeof flags / sizeof *flags; i++)
		s = mx_scope_only_bool(layer, flags[i].key, flags[i].only, b->err);
	for (size_t i = 0; !s && i < sizeof names / sizeof *names; i++)
		s = mx_scope_only_string(layer, names[i].key, names[i].only, b->err);
	return s;
}

static mx_status safari_layers(struct mx_plan_build *b)
{
	const struct mx_scope model = {.where = "", .outer = b->config};
	const struct mx_scope layer = {.where = "layer.", .outer = mx_scope_get(&model, "layer")};
	struct filter_config f = {0};
	if (!json_is_object(layer.outer))
		return mx_fail(b->err, MX_E_INVALID, "layer: must be an object");
	mx_status s = known_layer_keys(b, &layer);
	if (!s)
		s = refuse_safari(b, &model, &layer);
	if (!s)
		s = mx_scope_need_int(&layer, "l_max", 1, MAX_FILTER_LEN, &f.len, b->err);
	if (!s)
		s = read_network(b, &layer, &f);
	if (!s)
		s = mx_scope_int(&layer, "short_filter_order", 1, 8, 3, &f.short_taps, b->err);
	if (!s)
		s = mx_scope_bool(&layer, "modulate", true, &f.modulate, b->err);
	if (!s)
		s = mx_scope_float(&layer, "shift", -1e6, 1e6, 0, &f.shift, b->err);
	if (!s)
		s = mx_vocab_pad(b, &model, 1);
	b->plan->lm_head = b->plan->embed; /* always */
	return s ? s : fill_layers(b, &model, &f);
}

/* ---- names ---- */

#define NAMES(root, head)                                                                          \
	{                                                                                              \
		.embed = root "backbone.embeddings.word_embeddings.weight",                                \
		.final_norm = root "backbone.ln_f.weight", .lm_head = head,                                \
		.layers = root "backbone.layers.", .mixer_norm = "norm1.weight",                           \
		.mlp_norm = "norm2.weight", .mlp = "mlp.", .up = "fc1.weight", .down = "fc2.weight"        \
	}

static const struct mx_tensor_names hyenadna_names = NAMES("hyena.", "lm_head.weight");
static const struct mx_tensor_names safari_names = NAMES("", "lm_head.weight");

/* Buffers: the decay of a filter without modulation, and positions that are computed here. */
static const char *const skipped[] = {"*.modulation.deltas", "*.pos_emb.t", "*.pos_emb.z", NULL};

/* Defaults: configuration_hyena.py of the port. */
const struct mx_family mx_family_hyenadna = {
	.model_type = "hyenadna",
	.names = &hyenadna_names,
	.skipped = skipped,
	.width_key = "d_model",
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.max_position_key = "max_seq_len",
	.default_max_position = 1024,
	.layers = hyenadna_layers,
};

/* Defaults: simple_lm.py and hyena.py of safari. */
const struct mx_family mx_family_safari = {
	.model_type = "safari",
	.names = &safari_names,
	.skipped = skipped,
	.width_key = "d_model",
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.max_position_key = "l_max", /* a key of `layer`, which safari_layers reads */
	.layers = safari_layers,
};
