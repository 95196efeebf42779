/* SPDX-License-Identifier: Apache-2.0 */
/* Building a plan: what a family is, and what it builds layers with. Internal to model/. */
#ifndef MX_MODEL_PLAN_BUILD_H
#define MX_MODEL_PLAN_BUILD_H

#include <jansson.h>

#include "base/mem.h"
#include "model/config_json.h"
#include "model/plan.h"

/* Bounds of what a config may ask for: far above any model, far below overflow. */
#define MX_PLAN_MAX_LAYERS   1024
#define MX_PLAN_MAX_WIDTH    (1 << 20)
#define MX_PLAN_MAX_VOCAB    (1 << 24)
#define MX_PLAN_MAX_HEADS    (1 << 16)
#define MX_PLAN_MAX_HEAD_DIM 1024
#define MX_PLAN_MAX_MIXERS   8 /* of a layer */
#define MX_PLAN_MAX_EXPERTS  4096
#define MX_PLAN_MAX_POSITION (1 << 30)

/* Which layers look back only sliding_window tokens. */
enum mx_window_rule {
	MX_WINDOW_NONE,    /* the family has no window, whatever the config says */
	MX_WINDOW_ALL,     /* every layer, unless sliding_window is null (Mistral) */
	MX_WINDOW_LAYERS,  /* by use_sliding_window, then layer_types or max_window_layers (Qwen) */
	MX_WINDOW_IF_USED, /* every layer if use_sliding_window is true (Qwen3-MoE) */
	MX_WINDOW_OWN,     /* each layer that has the key (mixd) */
	MX_WINDOW_TYPES,   /* by layer_types, else all but each sliding_window_pattern-th (Gemma) */
	MX_WINDOW_NO_ROPE, /* by layer_types, else those without rope if use_sliding_window (SmolLM3) */
};

struct mx_plan_build;
struct mx_mlp_spec;

/* Names of the tensors of a mixture of experts, below a layer; see struct mx_plan_experts. */
struct mx_expert_names {
	const char *router, *router_bias, *correction;
	const char *list, *gate, *up, *down;
	const char *fused_up, *fused_down;
	bool interleaved;
	const char *latent_in, *latent_out;
	const char
		*shared; /* prefix of the shared expert's gate, up and down, named as a dense one's */
	const char *shared_gate;
	const char *norm, *post_norm, *shared_post_norm, *router_norm, *scales;
};

/* A family's tensor names. Names of a layer's tensors begin with `layers` and the layer's number.
 */
struct mx_tensor_names {
	const char *embed, *final_norm, *lm_head;
	const char *layers;       /* "model.layers." */
	const char *mixer_norm;   /* "input_layernorm.weight"; NULL = none */
	const char *mlp_norm;     /* "post_attention_layernorm.weight"; NULL = none */
	const char *layer_scalar; /* NULL = none */
	/* Of the feed-forward on a layer's input, in plans that have inputs: gate, down, and the norm
	 * of its output. */
	const char *input_gate, *input_down, *input_post_norm;
	const char *mixer_post_norm, *mlp_post_norm; /* of the blocks' outputs; NULL = none */
	const char *mlp;                             /* "mlp.", the prefix of the three below */
	const char *gate;                            /* "gate_proj.weight"; fused: NULL */
	const char *up;                              /* "up_proj.weight" */
	const char *down;                            /* "down_proj.weight" */
	const struct mx_expert_names *experts;       /* NULL = mx_qwen_experts */
};

/* One model_type. The defaults are those of transformers' configuration classes: a config written
 * by them may leave such keys out. */
struct mx_family {
	const char *model_type;
	const struct mx_tensor_names *names;
	const char *width_key;    /* NULL = hidden_size */
	const char *norm_eps_key; /* NULL = rms_norm_eps */
	double default_norm_eps;  /* 0 = 1e-6 */
	enum mx_norm_kind norm;
	int64_t default_kv_heads;     /* 0 = as many as heads */
	int64_t default_head_dim;     /* 0 = hidden_size / heads */
	const char *max_position_key; /* NULL = max_position_embeddings */
	int64_t default_max_position;
	int64_t default_window; /* sliding_window when the key is absent */
	enum mx_window_rule window;
	bool qkv_bias;           /* q, k and v always have a bias, o never */
	bool has_attention_bias; /* the key attention_bias has an effect */
	bool has_mlp_bias;
	bool qk_norm;
	bool bias_by_default;    /* attention_bias when the key is absent */
	int64_t default_pattern; /* sliding_window_pattern when the key is absent; 0 = no full layers */
	bool first_full;         /* the first layer of each pattern has no window, not the last */
	/* Rope: theta when the key is absent (0 = 10000); partial_rotary_factor likewise (0 = the
	 * family always rotates all of a head). by type: layers with a window have parameters of their
	 * own, in the old spelling under local_theta_key. */
	double default_theta, default_partial;
	bool rope_by_type;
	bool rope_alpha; /* "dynamic" with alpha stretches the base, whatever the position (Hunyuan) */
	bool three_positions; /* the type "mrope": for text it is "default" (Qwen 2 VL) */
	const char *local_theta_key;
	double default_local_theta;
	/* hidden_act when the key is absent; NULL = always silu */
	const char *default_act;
	uint32_t default_mlp_factor; /* intermediate_size / hidden_size if absent; 0 = it is required */
	/* Pairs of a key of this family and the usual one, which it stands for; ended by NULL. */
	const char *const *aliases;
	/* For configs of several parts: model_type of text_config if that does not say it. The family
	 * of the text reads it; roots and skipped are of this one. If it has `layers` itself, it reads
	 * configs without text_config. */
	const char *text_type;
	const char *const *roots;   /* see struct mx_plan */
	const char *const *also;    /* likewise, of the family of the text */
	const char *const *ones;    /* likewise */
	const char *const *skipped; /* likewise, beside what all families skip */
	const char *quantized;      /* quant_method beside those of mx_quantisation_read; NULL = none */
	bool tied;                  /* tie_word_embeddings when the key is absent */
	bool own; /* our format: qk_norm, partial rotary, rope "none", attention_multiplier */
	/* Reads the feed-forward of a layer; NULL = mx_mlp_config_read for all layers. */
	mx_status (*mlp)(const struct mx_plan_build *b, const struct mx_scope *scope, uint32_t layer,
	                 struct mx_mlp_spec *out);
	/* Fills plan->layers and n_layers. May change any field that is already set. */
	mx_status (*layers)(struct mx_plan_build *b);
};

/* Llama's tensor names, which most families use. */
extern const struct mx_tensor_names mx_llama_names;
/* Qwen's tensor names of experts. */
extern const struct mx_expert_names mx_qwen_experts;

/* A plan under construction. */
struct mx_plan_build {
	const struct mx_family *family;
	const json_t *config;
	struct mx_plan *plan; /* width and vocab are set before layers() */
	struct mx_arena *arena;
	const struct mx_family *wrapper; /* of which `config` is the text_config; NULL = none */
	const json_t *whole;             /* all of config.json, if `config` is a part or was changed */
	json_t *own;                     /* owned: config with aliases resolved, or NULL */
	int64_t max_position; /* max_position_embeddings, or the value of the family's own key */
	struct mx_err *err;
};

/* Make one parameter of a mixer. */
static inline struct mx_param mx_param_of_int(const char *name, int64_t v)
{
	return (struct mx_param){.name = name, .type = MX_PARAM_INT, .i = v, .f = (double)v};
}

static inline struct mx_param mx_param_of_bool(const char *name, bool v)
{
	return (struct mx_param){.name = name, .type = MX_PARAM_BOOL, .i = v, .f = v};
}

/* A feed-forward: dense, or experts. */
struct mx_mlp_spec {
	enum mx_act act;
	bool plain;     /* no gate */
	bool fused;     /* gate and up are one tensor; not of experts */
	uint32_t width; /* intermediate size; with experts that of the shared expert, 0 = none */
	bool bias;
	float gate_scale, out_scale; /* multipliers of gate x and of the output; 0 = none, as 1 */
	uint32_t experts;            /* 0 = dense, and the rest has no meaning */
	uint32_t expert_width, latent;
	struct mx_router_rule router;
	float alpha, limit;        /* see struct mx_plan_experts */
	float logit_scale;         /* likewise; 0 = 1 */
	bool corrected;            /* there is a correction of the scores */
	bool shared_gate;          /* the shared expert has a gate */
	bool shared_gate_optional; /* if the checkpoint has its tensor */
};

/* A layer as a family describes it: mixers in parallel, then a feed-forward, or a mixer that stands
 * in its place. */
struct mx_layer_spec {
	uint32_t index;
	const struct mx_plan_mixer *mixers; /* [n_mixers]; prefixes are under the layer: "self_attn." */
	uint32_t n_mixers;                  /* 0 = the layer is a feed-forward only */
	const struct mx_mlp_spec *mlp;      /* NULL = none */
	/* A mixer in the feed-forward's place, after its norm; NULL = none. */
	const struct mx_plan_mixer *mlp_mixer;
	float residual_scale; /* 1 = none */
	float carried[2]; /* of the mixers' block and of the feed-forward's, see struct mx_plan_block */
	bool parallel;    /* of the feed-forward, see struct mx_plan_block */
};

/* Fills one layer of the plan: makes the tensor names and copies the mixers. */
mx_status mx_plan_layer_fill(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                             struct mx_plan_layer *out);

/* Fills the experts of a layer's feed-forward block; the shared expert is not part of it.
 * plan_experts.c */
mx_status mx_plan_experts_fill(const struct mx_plan_build *b, uint32_t layer,
                               const struct mx_mlp_spec *spec, struct mx_plan_experts *out);

/* Makes the name of a layer's tensor: "model.layers.LAYER." PART REST. NULL if out of memory. */
const char *mx_plan_layer_name(const struct mx_plan_build *b, uint32_t layer, const char *part,
                               const char *rest);

/* Refuses a hidden_act that is not SwiGLU's. */
mx_status mx_hidden_act_check(const struct mx_plan_build *b, const struct mx_scope *scope);

/* Reads intermediate_size, mlp_bias and, of families that have default_act, hidden_act of a
 * feed-forward with a gate. */
mx_status mx_mlp_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_mlp_spec *out);

/* Names of the tensors of a head for multi-token prediction; see struct mx_plan_head. Those of its
 * layer begin with `layers` and `index`, the others with `prefix`. */
struct mx_head_names {
	const char *prefix, *layers;
	uint32_t index;
	const char *projection, *embed_norm, *hidden_norm, *final_norm;
	const char *const *unused; /* full names, ended by NULL; NULL = none */
};

/* Makes the plan's head, one of `n`: a layer of attention, of the mixer `attention` with a
 * feed-forward. plan_head.c */
mx_status mx_plan_head_fill(const struct mx_plan_build *b, const struct mx_head_names *names,
                            uint32_t n, const struct mx_plan_mixer *attention,
                            const struct mx_mlp_spec *mlp);

/* Allocates n zeroed layers in the arena and sets them as the plan's. */
mx_status mx_plan_layers_alloc(const struct mx_plan_build *b, uint32_t n,
                               struct mx_plan_layer **out);

/* Rounds the plan's vocabulary up to a multiple of pad_vocab_size_multiple. */
mx_status mx_vocab_pad(const struct mx_plan_build *b, const struct mx_scope *scope,
                       int64_t default_multiple);

/* Makes an empty b->plan and its b->arena. Destroy the plan with mx_plan_destroy. Returns
 * MX_E_NOMEM without a message. */
mx_status mx_plan_new(struct mx_plan_build *b);

/* Returns the arena that holds the plan. */
struct mx_arena *mx_plan_arena(struct mx_plan *p);

/* Returns MX_E_NOMEM with the message that the plan does not fit in its arena. */
mx_status mx_plan_no_memory(const struct mx_plan_build *b);

/* Reads EOS, BOS and sampling defaults from `generation`. plan->vocab must be set. */
mx_status mx_generation_config_read(const struct mx_plan_build *b, const json_t *generation);

/* Reads quantization_config. MX_E_UNSUPPORTED for methods and variants that cannot be read. */
mx_status mx_quantisation_read(const struct mx_plan_build *b, const json_t *q,
                               struct mx_plan_quant *out);

#endif
