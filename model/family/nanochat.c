/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nanochat: RMS norms without weights, of the embedding and of q and k too, a feed-forward of
 * squared ReLU without a gate, rope that turns the other way, and capped logits.
 *
 * q and k are normed before rope here and after it there, which is the same without weights.
 */
#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.up = "fc1.weight",
	.down = "fc2.weight",
};

static const char *const ones[] = {"*norm.weight", NULL};

static mx_status nanochat_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	double cap = 15;
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s && d.rope[0].long_inv_freq)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "rope_parameters: longrope is not supported");
	if (!s && mx_scope_has(&scope, "final_logit_softcapping") &&
	    !mx_scope_get(&scope, "final_logit_softcapping"))
		cap = 0;
	else if (!s)
		s = mx_scope_float(&scope, "final_logit_softcapping", 1e-3, 1e9, cap, &cap, b->err);
	if (s)
		return s;
	double *turns = mx_arena_alloc(b->arena, d.rope[0].dim / 2 * sizeof *turns);
	if (!turns)
		return mx_plan_no_memory(b);
	for (uint32_t i = 0; i < d.rope[0].dim / 2; i++)
		turns[i] = -d.rope[0].inv_freq[i];
	d.rope[0].inv_freq = d.rope[1].inv_freq = turns;
	d.mlp.plain = true;
	b->plan->embed_norm = names.final_norm;
	b->plan->logit_softcap = (float)cap;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_nanochat.py of transformers 5. */
const struct mx_family mx_family_nanochat = {
	.model_type = "nanochat",
	.names = &names,
	.ones = ones,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.qk_norm = true,
	.default_act = "relu2",
	.layers = nanochat_layers,
};
