/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer plan: what config.json says of a model, in terms the engine acts on.
 *
 * A family (llama, mistral, qwen2, ..., mixd) is one translation from
 * config.json to this. A layer is a list of blocks run in order; a block is a
 * norm, one or more mixers side by side on the normed input or a feed-forward
 * (dense or of experts), and a scaled residual add. So hybrids, layers with two
 * mixers in parallel and per-layer multipliers need no new shape.
 *
 * The plan is plain data in one arena: no device, no tensors' contents.
 */
#ifndef MX_MODEL_PLAN_H
#define MX_MODEL_PLAN_H

#include "base/status.h"
#include "mixers/mixer.h"

enum mx_block_kind { MX_BLOCK_MIXER, MX_BLOCK_MLP, MX_BLOCK_EXPERTS };

/* One mixer of a block. */
struct mx_plan_mixer {
	const char *mixer;  /* registry name: "attention" */
	const char *prefix; /* tensor name prefix: "model.layers.0.self_attn." */
	struct mx_params params;
	float in_scale, out_scale; /* multipliers on its input and output, 1 = none */
};

/* Of all norms of a model. */
enum mx_norm_kind {
	MX_NORM_RMS,   /* w x / sqrt(mean(x^2) + eps) */
	MX_NORM_LAYER, /* w (x - mean(x)) / sqrt(var(x) + eps) + b, b being w's name with ".bias" */
};

enum mx_mlp_kind {
	MX_MLP_SWIGLU,    /* down(silu(gate x) * up x) */
	MX_MLP_GELU_TANH, /* down(gelu(up x)), GELU in its tanh form */
};

/* Dense feed-forward. */
struct mx_plan_mlp {
	enum mx_mlp_kind kind;
	const char *gate, *up, *down; /* full names of weights; gate NULL if the kind has none */
	bool bias;                    /* of each: its weight's name with ".bias" for ".weight" */
	uint32_t width;               /* intermediate size */
};

/* Mixture of experts. A router gives each token a softmax over the experts; the token's output is
 * the sum of the `chosen` likeliest experts', times their probabilities. */
struct mx_plan_experts {
	const char *router; /* full name; [n, width of the model] */
	const char
		*prefix; /* of the experts' weights, before the number: "model.layers.0.mlp.experts." */
	uint32_t n, chosen, width; /* width: intermediate size of an expert */
	bool normalize;            /* the probabilities of the chosen are scaled to sum 1 */
	/* Full name; optional tensor [1, width of the model]: the shared expert's output is multiplied
	 * by the sigmoid of this. */
	const char *shared_gate;
};

struct mx_plan_block {
	enum mx_block_kind kind;
	const char *norm;                   /* full name of the weight of the norm before it */
	float residual_scale;               /* h += residual_scale * block(norm(h)) */
	const struct mx_plan_mixer *mixers; /* MX_BLOCK_MIXER: outputs are summed */
	uint32_t n_mixers;
	struct mx_plan_mlp
		mlp; /* MX_BLOCK_MLP; of MX_BLOCK_EXPERTS the shared expert, width 0 = none */
	struct mx_plan_experts experts; /* MX_BLOCK_EXPERTS */
};

struct mx_plan_layer {
	const struct mx_plan_block *blocks;
	uint32_t n_blocks;
};

struct mx_plan {
	const char *family; /* model_type */
	uint32_t width, vocab, n_layers;
	uint32_t
		max_context; /* max_position_embeddings, stretched by rope scaling as the family does */
	enum mx_norm_kind norm;
	float norm_eps;
	const char *embed; /* tensor names */
	const char *final_norm;
	const char *lm_head;            /* equals embed when tied */
	const char *layer_prefix;       /* of all layers' tensors, before the number: "model.layers." */
	float embed_scale, logit_scale; /* multipliers, 1 = none */
	const struct mx_plan_layer *layers;

	/* From generation_config.json, else config.json. */
	const int32_t *eos; /* [n_eos] */
	size_t n_eos;
	int32_t bos; /* -1 = none */
	/* Sampling defaults of generation_config.json; NaN / -1 where it is silent. */
	float temperature, top_p, min_p, repetition_penalty;
	int32_t top_k;
};

/* Reads DIR/config.json and generation_config.json (optional). Destroy with mx_plan_destroy. */
mx_status mx_plan_load(const char *dir, struct mx_plan **out, struct mx_err *err);
/* The same from texts already in memory; generation may be NULL. */
mx_status mx_plan_parse(const char *config, size_t config_len, const char *generation,
                        size_t generation_len, struct mx_plan **out, struct mx_err *err);
void mx_plan_destroy(struct mx_plan *p); /* takes NULL */

/* Which mixers run which layers, for people: "0-2 gla, 3 attention, 4-6 gla". Ends in "..." where
 * that does not fit into cap (>= 8) bytes with the NUL. */
void mx_plan_describe_layers(const struct mx_plan *p, char *text, size_t cap);

/* Parameters of the "attention" mixer as the families above write them:
 *   heads, kv_heads, head_dim (INT), window (INT, 0 = none; a token sees itself and window - 1
 *   before it), scale (FLOAT, of q.k), bias (BOOL: q, k, v), o_bias (BOOL), qk_norm (BOOL),
 *   fused (BOOL: q, k and v are one tensor), norm_eps (FLOAT),
 *   rope (STRING: none|default|linear|dynamic|llama3|yarn), and unless none: rope_theta (FLOAT),
 *   rope_dim (INT), rope_factor, rope_attention_factor (FLOAT, 1 = none), rope_inv_freq (FLOATS
 *   [rope_dim/2], with the scaling applied; for dynamic: the unscaled ones), rope_max_position
 * (INT, max_position_embeddings: dynamic's Lmax).
 *
 * Frequencies are float32 values, computed as transformers 5 does.
 *
 * "dynamic" is a function of the absolute position here: a token at position p < Lmax has the
 * unscaled frequencies; a later one those of the base
 *     theta * (factor * (p + 1) / Lmax - (factor - 1)) ^ (rope_dim / (rope_dim - 2)).
 * transformers takes the length fed so far for p + 1, for all tokens of one forward call. So the
 * two agree for every prompt up to Lmax and whatever is generated after it, token by token; in a
 * prompt longer than Lmax, transformers' result depends on how the prompt was cut into calls, and
 * ours is the one of feeding it token by token. (vLLM uses one base for all positions, that of p +
 * 1 = factor * Lmax, and so differs from transformers for short prompts too.) Only a function of
 * the position keeps results equal bit for bit however a prompt is cut into chunks.
 */

#endif
