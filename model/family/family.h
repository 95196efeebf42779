/* SPDX-License-Identifier: Apache-2.0 */
/* The families, and what several of them read alike. Internal to model/family/. */
#ifndef MX_MODEL_FAMILY_H
#define MX_MODEL_FAMILY_H

#include "model/plan_build.h"

/* One a file, but for those that share a translation; families.c chooses by model_type. */
extern const struct mx_family mx_family_llama, mx_family_mistral, mx_family_qwen2, mx_family_qwen3,
	mx_family_mamba2, mx_family_mixd;
extern const struct mx_family mx_family_hyenadna, mx_family_safari, mx_family_stripedhyena;
/* flash-linear-attention */
extern const struct mx_family mx_family_delta_net, mx_family_gated_deltanet, mx_family_gla,
	mx_family_hgrn, mx_family_hgrn2, mx_family_kda, mx_family_linear_attn, mx_family_retnet;

/* Configs of mamba_ssm's own models, which have no model_type. */
extern const struct mx_family mx_family_mamba2_raw;
bool mx_mamba2_is_raw(const json_t *config);

/* Rotary embedding as a config says it, ready for params. */
struct mx_rope_config {
	const char *type; /* static: none, default, linear, dynamic, llama3, yarn */
	double theta, factor, attention_factor;
	uint32_t dim;
	const double *inv_freq; /* [dim/2] in the arena */
	double max_context;     /* tokens the scaling is made for */
};

/* Reads rope_scaling or rope_parameters, and rope_theta, for heads of `head_dim`. */
mx_status mx_rope_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              uint32_t head_dim, struct mx_rope_config *out);

/* The attention mixer's parameters for one layer, without `window` (that is items[0] and 0 here;
 * the caller sets it). *out_rope is for the caller's interest. */
mx_status mx_attention_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   struct mx_params *out, struct mx_rope_config *out_rope);

/* What a family knows of one attention layer. */
struct mx_attention_shape {
	uint32_t heads, kv_heads, dim;
	double scale; /* of q.k */
	bool bias;    /* of q, k and v */
	bool o_bias, qk_norm;
	bool fused; /* q, k and v are one tensor */
};

/* The same parameters from a shape; norm_eps is the plan's. */
mx_status mx_attention_params(const struct mx_plan_build *b, const struct mx_attention_shape *shape,
                              const struct mx_rope_config *rope, struct mx_params *out);

/* Copies `params` with another window; shares everything else. */
mx_status mx_attention_config_window(const struct mx_plan_build *b, const struct mx_params *params,
                                     int64_t window, struct mx_params *out);

/* sliding_window of that scope: 0 = none. The key's absence gives the family's default. */
mx_status mx_window_read(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t *out);

/* One key of a mixer as it stands: boolean, number, string or list of numbers. `where` goes before
 * the key in messages. */
mx_status mx_param_config_read(const struct mx_plan_build *b, const char *key, const json_t *v,
                               const char *where, struct mx_param *out);

#endif
