/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ministral (windows by layer), Ministral 3 (queries that grow with their position), and Mistral 3,
 * which adds images to Mistral or Ministral 3.
 */
#include "model/family/family.h"

/* Defaults: configuration_{ministral,ministral3,mistral3}.py of transformers 5. */
const struct mx_family mx_family_ministral = {
	.model_type = "ministral",
	.names = &mx_llama_names,
	.default_kv_heads = 8,
	.default_max_position = 4096 * 32,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_act = "silu",
	.layers = mx_dense_layers,
};

static mx_status ministral3_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	if (!mx_scope_get(&scope, "rope_parameters") && !mx_scope_get(&scope, "rope_scaling"))
		return mx_fail(b->err, MX_E_INVALID, "rope_parameters: is missing");
	return mx_dense_layers(b);
}

const struct mx_family mx_family_ministral3 = {
	.model_type = "ministral3",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 262144,
	.window = MX_WINDOW_ALL,
	.default_act = "silu",
	.default_theta = 1e6,
	.layers = ministral3_layers,
};

/* Images are refused by the front end: their tensors are skipped. */
static const char *const roots[] = {"model.", "language_model.model.", "model.language_model.",
                                    NULL};
static const char *const skipped[] = {"vision_tower.*", "multi_modal_projector.*",
                                      "model.vision_tower.*", "model.multi_modal_projector.*",
                                      NULL};

const struct mx_family mx_family_mistral3 = {
	.model_type = "mistral3",
	.text_type = "mistral",
	.roots = roots,
	.skipped = skipped,
};
