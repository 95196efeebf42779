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
extern const struct mx_family mx_family_bamba, mx_family_falcon_h1, mx_family_granitemoehybrid,
	mx_family_nemotron_h, mx_family_zamba2;
extern const struct mx_family mx_family_glm4_moe, mx_family_qwen3_next, mx_family_qwen3_5,
	mx_family_qwen3_5_text, mx_family_qwen3_5_moe, mx_family_qwen3_5_moe_text;
extern const struct mx_family mx_family_deepseek_v2, mx_family_deepseek_v3, mx_family_kimi_k2,
	mx_family_glm4_moe_lite, mx_family_kimi_linear;
extern const struct mx_family mx_family_lfm2, mx_family_lfm2_moe;
extern const struct mx_family mx_family_mamba, mx_family_falcon_mamba, mx_family_jamba;
extern const struct mx_family mx_family_lfm3, mx_family_minimax_m2, mx_family_olmoe;
extern const struct mx_family mx_family_cohere, mx_family_gemma, mx_family_glm, mx_family_glm4,
	mx_family_ernie4_5, mx_family_exaone4, mx_family_starcoder2, mx_family_nemotron,
	mx_family_granitemoe, mx_family_granitemoeshared, mx_family_ernie4_5_moe, mx_family_dots1,
	mx_family_solar_open, mx_family_mellum;
extern const struct mx_family mx_family_hunyuan_v1_dense, mx_family_hunyuan_v1_moe,
	mx_family_stablelm, mx_family_helium, mx_family_internlm3, mx_family_vaultgemma,
	mx_family_youtu, mx_family_afmoe, mx_family_hyperclovax, mx_family_exaone_moe,
	mx_family_mistral4;
extern const struct mx_family mx_family_gpt_oss, mx_family_minimax, mx_family_minimax_text_01,
	mx_family_minimax_m1;
extern const struct mx_family mx_family_olmo_hybrid, mx_family_bailing_hybrid,
	mx_family_bailing_moe;
extern const struct mx_family mx_family_qwen2_vl, mx_family_qwen2_vl_text, mx_family_qwen2_5_vl,
	mx_family_qwen2_5_vl_text, mx_family_qwen3_vl, mx_family_qwen3_vl_text, mx_family_qwen3_vl_moe,
	mx_family_qwen3_vl_moe_text;
extern const struct mx_family mx_family_olmo, mx_family_gpt_bigcode, mx_family_nanochat,
	mx_family_phi;
extern const struct mx_family mx_family_rwkv7;
extern const struct mx_family mx_family_hyenadna, mx_family_safari, mx_family_stripedhyena;
extern const struct mx_family mx_family_gemma2, mx_family_gemma3_text, mx_family_gemma3;
extern const struct mx_family mx_family_gemma4_text, mx_family_gemma4;
extern const struct mx_family mx_family_phi3, mx_family_olmo2, mx_family_olmo3, mx_family_smollm3;
extern const struct mx_family mx_family_granite, mx_family_ministral, mx_family_ministral3;
extern const struct mx_family mx_family_mistral3, mx_family_cohere2, mx_family_gpt2;
extern const struct mx_family mx_family_gpt_neox, mx_family_granite_swa, mx_family_arcee;
extern const struct mx_family mx_family_seed_oss, mx_family_iquestcoder, mx_family_cwm;
/* flash-linear-attention */
extern const struct mx_family mx_family_delta_net, mx_family_gated_deltanet, mx_family_gla,
	mx_family_hgrn, mx_family_hgrn2, mx_family_kda, mx_family_linear_attn, mx_family_retnet;

/* mamba_ssm's own models, whose configs have no model_type: mx_mamba2_is_raw recognises them. */
extern const struct mx_family mx_family_mamba2_raw;
bool mx_mamba2_is_raw(const json_t *config);

/* Returns family i of all, NULL past the last. families.c */
const struct mx_family *mx_family_at(size_t i);

/* Rotary embedding as configured, ready for the attention mixer's parameters. */
struct mx_rope_config {
	const char *type; /* static: none, default, linear, dynamic, llama3, yarn, longrope */
	double theta, factor, attention_factor;
	uint32_t dim;
	bool pairs;                  /* x[2i], x[2i + 1] rotate together: the family's choice */
	const double *inv_freq;      /* [dim/2] in the arena */
	const double *long_inv_freq; /* longrope: likewise, of sequences longer than .. */
	int64_t original;            /* .. this; also q_beta's length */
	double q_beta;               /* llama_4_scaling_beta; 0 = none */
	double max_context;          /* longest sequence that the scaling is made for */
};

/* Reads rope_scaling or rope_parameters, and rope_theta, for heads of `head_dim`, of layers of the
 * type `layers`: "full_attention", "sliding_attention"; NULL = all have the same. */
mx_status mx_rope_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const char *layers, uint32_t head_dim, struct mx_rope_config *out);

/* Sets the plan's longest sequence to the one that the rope scaling is made for. */
mx_status mx_rope_context_set(const struct mx_plan_build *b, const struct mx_rope_config *rope);

/* Copies a rope configuration of the type "default" with another theta. MX_E_UNSUPPORTED for
 * another type. */
mx_status mx_rope_config_theta(const struct mx_plan_build *b, const struct mx_rope_config *from,
                               double theta, struct mx_rope_config *out);

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
	bool fused;                                                /* q, k and v are one tensor */
	bool qk_norm_whole, per_head, gate, sinks, v_norm, k_is_v; /* see plan.h */
	bool head_gate, wide_gate, shared_kv, norm_last;           /* see plan.h */
	const char *names;                                         /* NULL = the mixer's default */
	double softcap;                                            /* 0 = none */
};

/* Reads heads, head_dim and biases; scale is 1 / sqrt(head_dim). */
mx_status mx_attention_shape_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct mx_attention_shape *out);

/* Makes the attention mixer's parameters from a shape; norm_eps is the plan's. */
mx_status mx_attention_params(const struct mx_plan_build *b, const struct mx_attention_shape *shape,
                              const struct mx_rope_config *rope, struct mx_params *out);

/* Copies `params` with another window. The copy shares strings and lists with `params`. */
mx_status mx_attention_config_window(const struct mx_plan_build *b, const struct mx_params *params,
                                     int64_t window, struct mx_params *out);

/* Reads sliding_window: 0 = none. If the key is absent, the family's default. */
mx_status mx_window_read(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t *out);

/* The names of transformers for the tensors of models of Mamba layers alone. */
extern const struct mx_tensor_names mx_mamba_names;

/* A family's keys for the mixer "mamba"; NULL = it has no such key, and the default holds. */
struct mx_mamba_keys {
	const char *heads, *head_dim;
	bool head_dim_is_auto; /* when the key is absent: the width by the heads, instead of 64 */
	/* Width of all heads: the value of `inner`, or else of `expand` times that of the model; both
	 * NULL = whatever heads and head_dim come to. */
	const char *inner, *expand;
	const char *state, *groups, *kernel, *bias, *conv_bias;
	const char *out_bias; /* of out_proj; NULL = as bias */
	const char *limit;    /* of the step size; NULL = none */
	const char *norm, *before_gate;
	int64_t default_state; /* 0 = 128 */
	int64_t default_groups;
	bool default_norm, default_before_gate;
};

/* Parameters of a layer of Mamba-2. */
struct mx_mamba_config {
	int64_t heads, head_dim, state, groups, kernel;
	bool bias, out_bias, conv_bias, norm, before_gate;
	double norm_eps, limit[2];
	bool multiplied; /* multipliers are not all 1 */
	double multipliers[5];
};

/* Reads all but the multipliers; norm_eps is the plan's. */
mx_status mx_mamba_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               const struct mx_mamba_keys *keys, struct mx_mamba_config *out);
/* Makes the mixer's parameters. */
mx_status mx_mamba_params(const struct mx_plan_build *b, const struct mx_mamba_config *c,
                          struct mx_params *out);

/* Reads a multiplier, 1 if the key is absent; it may not be 0. */
mx_status mx_multiplier_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const char *key, float *out);
/* Reads a list of n multipliers, 1 if the key is absent. */
mx_status mx_multipliers_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const char *key, size_t n, double *out);

/* Returns a list of n words, one a layer, under the first of two keys that is there; NULL and an
 * error otherwise. */
const json_t *mx_layer_words(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const char *key, const char *other, size_t n);

/* Reads number, choice and width of experts; and, with out->router.scores of MX_ROUTER_SIGMOID,
 * what mx_router_config_read does. Other fields of *out stay as they are. */
mx_status mx_experts_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 const char *width_key, struct mx_mlp_spec *out);
/* Reads the scaling of out->router and, if grouped, its groups; what it has of these, other than 0,
 * are the defaults. The number of experts is set. */
mx_status mx_router_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                bool grouped, struct mx_mlp_spec *out);
/* Reads the feed-forward of one layer of a Qwen with experts. shared: there is a shared expert with
 * a gate; normalize: the default of norm_topk_prob. moe.c */
mx_status mx_qwen_mlp_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, bool shared, bool normalize, struct mx_mlp_spec *out);
/* Reads the number of shared experts, which are one expert of their widths together. The width of
 * an expert is set. */
mx_status mx_shared_experts_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 const char *key, int64_t shared, struct mx_mlp_spec *out);
/* Reads whether a layer is one of the first first_k_dense_replace, which have no experts. */
mx_status mx_first_dense_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              uint32_t layer, int64_t first, bool *out);
/* Reads experts that are chosen as DeepSeek-V3's: by sigmoids plus a correction. rule and shared
 * are what absent keys mean. */
mx_status mx_corrected_experts_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                    const struct mx_router_rule *rule, int64_t shared,
                                    struct mx_mlp_spec *out);
/* Names of Ling's tensors. bailing.c */
extern const struct mx_tensor_names mx_bailing_names;
/* Names of OLMo's tensors, whose norms are after the blocks. olmo.c */
extern const struct mx_tensor_names mx_olmo_names;
/* Names of DeepSeek's tensors, and of those who take its experts. */
extern const struct mx_expert_names mx_deepseek_experts;
extern const struct mx_tensor_names mx_deepseek_names;

/* Keys as Kimi Linear and Ling spell them, each before its usual name (mx_family.aliases). */
extern const char *const mx_kimi_aliases[];

/* Reads whether a layer has experts, by decoder_sparse_step and mlp_only_layers. */
mx_status mx_expert_layer_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, bool *out);

/* Latent attention (mixers/mla/README.md): sizes when the keys are absent, q_rank 0 = none. */
struct mx_mla_config {
	int64_t heads, q_rank, rank, nope, rope, v;
	bool bias;
	bool rotates; /* there is a rope */
	bool pairs;   /* x[2i], x[2i + 1] of it are a pair */
	bool head_gate;
};

/* Reads the keys of latent attention and makes the mixer of a layer. Sets the plan's max_context by
 * the rope, if there is one. mla_config.c */
mx_status mx_mla_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const struct mx_mla_config *defaults, struct mx_plan_mixer *out);

/* A gated delta net: what absent keys mean. */
struct mx_delta_config {
	const char *tensors; /* the mixer's parameter */
	int64_t k_heads, v_heads;
	int64_t k_dim;   /* 0 = k_width by the heads */
	int64_t k_width; /* of the keys of all heads */
	int64_t v_dim;   /* 0 = twice k_dim */
	bool neg_eigval;
	double norm_eps; /* of the output's norm; no key of it is read */
};

/* Reads the keys of a gated delta net and makes the parameters of the mixer "gla". delta_config.c
 */
mx_status mx_delta_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               const struct mx_delta_config *defaults, struct mx_params *out);
/* Reads whether a layer is of linear attention, by a list of layer_types. delta_config.c */
mx_status mx_linear_layer_read(const struct mx_plan_build *b, const json_t *types, uint32_t layer,
                               bool *out);

/* Makes layers of one mixer and a feed-forward each, which b->family->mlp reads. mixer_of returns
 * the mixer of a layer. deepseek.c */
mx_status mx_deepseek_layers(struct mx_plan_build *b, const struct mx_plan_mixer *mixers,
                             const uint8_t *mixer_of);
/* Reads a feed-forward of DeepSeek-V3's kind. first_dense and rule are what absent keys mean.
 * deepseek.c */
mx_status mx_deepseek_mlp_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, int64_t first_dense,
                               const struct mx_router_rule *rule, struct mx_mlp_spec *out);

/* Makes a parameter of the same name from a key: a boolean, number, string or list of numbers.
 * `where` goes before the key in messages. */
mx_status mx_param_config_read(const struct mx_plan_build *b, const char *key, const json_t *v,
                               const char *where, struct mx_param *out);

/* unknown.c: fails for a model_type that is none of the n names. The message has the closest of
 * them, and says which parts of the model are missing here, as far as its config.json names them.
 */
mx_status mx_family_unknown(const struct mx_plan_build *b, const char *type,
                            const char *const *names, size_t n);

/* ---- dense.c: layers of attention and a dense feed-forward ---- */

/* What a family's layers have in common, and where they differ. */
struct mx_dense {
	uint32_t n;
	struct mx_attention_shape shape;
	const struct mx_attention_shape *window_shape; /* of layers with a window; NULL = the same */
	struct mx_mlp_spec mlp;
	struct mx_rope_config rope[2];           /* of layers without a window, of those with one */
	const struct mx_rope_config *layer_rope; /* [n] of each layer; NULL = rope says it */
	int64_t window;
	bool *sliding, *no_rope; /* [n] in the arena */
	const char *prefix;      /* of attention's tensors */
	const char *const *plus_one;
	float residual_scale;
	bool parallel;
	uint32_t shared_kv; /* so many of the last layers read the keys of the last one of their kind */
};

/* Reads what the family's fields say; the family may change it before mx_dense_fill. */
mx_status mx_dense_read(const struct mx_plan_build *b, struct mx_dense *out);
/* Makes the plan's layers and sets its max_context. */
mx_status mx_dense_fill(const struct mx_plan_build *b, const struct mx_dense *d);
/* mx_family.layers of families that need no more than their fields. */
mx_status mx_dense_layers(struct mx_plan_build *b);

#endif
