/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3: Llama's layer with multipliers of the embedding, of scores, of what a block adds, and
 * a divisor of logits. */
#include "model/family/family.h"

static mx_status granite_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	double embed = 1, residual = 1, scale = 1, logits = 1;
	const struct {
		const char *key;
		double *to;
	} keys[] = {
		{"embedding_multiplier", &embed},
		{"residual_multiplier", &residual},
		{"attention_multiplier", &scale},
		{"logits_scaling", &logits},
	};
	mx_status s = mx_dense_read(b, &d);
	for (size_t i = 0; !s && i < sizeof keys / sizeof *keys; i++)
		s = mx_scope_float(&scope, keys[i].key, 1e-9, 1e9, 1, keys[i].to, b->err);
	if (s)
		return s;
	d.shape.scale = scale;
	d.residual_scale = (float)residual;
	b->plan->embed_scale = (float)embed;
	b->plan->logit_scale = (float)(1 / logits);
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_granite.py of transformers 5. */
const struct mx_family mx_family_granite = {
	.model_type = "granite",
	.names = &mx_llama_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.layers = granite_layers,
};
