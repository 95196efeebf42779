/* SPDX-License-Identifier: Apache-2.0 */
/* The families, and the readers of config keys that several families share. Internal to
 * model/family/. */
#ifndef MX_MODEL_FAMILY_H
#define MX_MODEL_FAMILY_H

#include "model/plan_build.h"

/* families.c chooses one by model_type. Families with the same translation share a file. */
extern const struct mx_family mx_family_llama, mx_family_mistral, mx_family_qwen2, mx_family_qwen3,
	mx_family_mamba2, mx_family_mixd;
extern const struct mx_family mx_family_mixtral, mx_family_qwen2_moe, mx_family_qwen3_moe;
extern const struct mx_family mx_family_hyenadna, mx_family_safari, mx_family_stripedhyena;
/* flash-linear-attention */
extern const struct mx_family mx_family_delta_net, mx_family_gated_deltanet, mx_family_gla,
	mx_family_hgrn, mx_family_hgrn2, mx_family_kda, mx_family_linear_attn, mx_family_retnet;

/* mamba_ssm's own models, whose configs have no model_type: mx_mamba2_is_raw recognises them. */
extern const struct mx_family mx_family_mamba2_raw;
bool mx_mamba2_is_raw(const json_t *config);

/* Rotary embedding as configured, ready for the attention mixer's parameters. */
struct mx_rope_config {
	const char *type; /* static: none, default, linear, dynamic, llama3, yarn */
	double theta, factor, attention_factor;
	uint32_t dim;
	const double *inv_freq; /* [dim/2] in the arena */
	double max_context;     /* longest sequence that the scaling is made for */
};

/* Reads rope_scaling or rope_parameters, and rope_theta, for heads of `head_dim`. */
mx_status mx_rope_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              uint32_t head_dim, struct mx_rope_config *out);

/* Reads the attention mixer's parameters for one layer. `window` is items[0] and 0 here; the caller
 * sets it. *out_rope is the rope configuration that went into them. */
mx_status mx_attention_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   struct mx_params *out, struct mx_rope_config *out_rope);

/* The shape of one attention layer. */
struct mx_attention_shape {
	uint32_t heads, kv_heads, dim;
	double scale; /* of q.k */
	bool bias;    /* of q, k and v */
	bool o_bias, qk_norm;
	bool fused; /* q, k and v are one tensor */
};

/* Makes the attention mixer's parameters from a shape; norm_eps is the plan's. */
mx_status mx_attention_params(const struct mx_plan_build *b, const struct mx_attention_shape *shape,
                              const struct mx_rope_config *rope, struct mx_params *out);

/* Copies `params` with another window. The copy shares strings and lists with `params`. */
mx_status mx_attention_config_window(const struct mx_plan_build *b, const struct mx_params *params,
                                     int64_t window, struct mx_params *out);

/* Reads sliding_window: 0 = none. If the key is absent, the family's default. */
mx_status mx_window_read(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t *out);

/* Reads the layers of a transformer like Llama: mx_family.layers of several families. llama.c */
mx_status mx_llama_layers(struct mx_plan_build *b);

/* Reads number, choice and width of experts; and, with out->router.scores of MX_ROUTER_SIGMOID,
 * groups and scaling. Other fields of *out stay as they are. */
mx_status mx_experts_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 const char *width_key, struct mx_mlp_spec *out);
/* Reads whether a layer has experts, by decoder_sparse_step and mlp_only_layers. */
mx_status mx_expert_layer_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, bool *out);

/* Makes a parameter of the same name from a key: a boolean, number, string or list of numbers.
 * `where` goes before the key in messages. */
mx_status mx_param_config_read(const struct mx_plan_build *b, const char *key, const json_t *v,
                               const char *where, struct mx_param *out);

#endif
