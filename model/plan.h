/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer plan: the structure of a model, read from config.json.
 *
 * A family (llama, mistral, qwen2, ..., mixd) translates its config.json into a
 * plan. A layer is a list of blocks that run in order. A block is a norm, then
 * one or more mixers in parallel on the normed input or a feed-forward (dense or
 * of experts), then a scaled residual add. This covers hybrids, layers with two
 * mixers in parallel and per-layer multipliers.
 *
 * The plan is plain data in one arena. It knows no device and no tensor contents.
 */
#ifndef MX_MODEL_PLAN_H
#define MX_MODEL_PLAN_H

#include "base/status.h"
#include "mixers/mixer.h"

enum mx_block_kind { MX_BLOCK_MIXER, MX_BLOCK_MLP, MX_BLOCK_EXPERTS, MX_BLOCK_ASIDE };

/* One mixer of a block. */
struct mx_plan_mixer {
	const char *mixer;  /* registry name: "attention" */
	const char *prefix; /* tensor name prefix: "model.layers.0.self_attn." */
	struct mx_params params;
	float in_scale, out_scale; /* multipliers on its input and output, 1 = none */
	/* Names, below the prefix, of vectors that the checkpoint stores less 1 (Gemma's norms multiply
	 * by 1 + w); ended by NULL. NULL = none. */
	const char *const *plus_one;
	/* If not 0: the mixer reads the pages of the mixer that is so many layers before it, and has
	 * none of its own. */
	uint32_t pages_back;
	const char *origin; /* where it was chosen, if not by the checkpoint's config; else NULL */
};

/* The kind of all norms of a model, except those inside mixers. */
enum mx_norm_kind {
	MX_NORM_RMS,   /* w x / sqrt(mean(x^2) + eps) */
	MX_NORM_LAYER, /* w (x - mean(x)) / sqrt(var(x) + eps) + b; b has w's name with ".bias" */
	MX_NORM_LAYER_NO_BIAS, /* the same without b */
};

/* Dense feed-forward: down(act(gate_scale * gate x) * up x), or down(act(up x)). */
struct mx_plan_mlp {
	enum mx_act act;
	const char *gate, *up, *down; /* full names of the weights; gate NULL = there is none */
	/* `up x` is the layer's input (struct mx_plan_inputs), of width elements; up is NULL. */
	bool from_input;
	bool fused; /* gate and up are one tensor, [2 width, ..], of which gate has the first rows */
	bool bias;  /* each has a bias: the weight's name with ".bias" for ".weight" */
	uint32_t width;   /* intermediate size */
	float gate_scale; /* 1 = none */
	/* If rank is not 0: adapter_out adapter_in x is added to [gate x | up x]. Full names, [rank,
	 * width of the model] and [2 width, rank]. */
	const char *adapter_in, *adapter_out;
	uint32_t rank;
};

/* Mixture of experts: the sum of the outputs of a token's experts, each times its score, and of a
 * shared expert that every token uses. Names are full; NULL = the model has no such tensor. */
struct mx_plan_experts {
	struct mx_router_rule rule;
	uint32_t n, width; /* number of experts, intermediate size of one */
	uint32_t latent;   /* width of the experts' inputs and outputs; 0 = that of the model */
	enum mx_act act;
	bool gated; /* as in struct mx_plan_mlp */
	/* If limit is not 0: the feed-forward's product is gate sigmoid(alpha gate) (up + 1) of gate
	 * cut at limit and up at +- limit (gpt-oss). */
	float alpha, limit;
	const char *router;      /* [n, width of the model] */
	const char *router_bias; /* [n] */
	const char *correction;  /* [n] added to the scores for the choice only */
	/* The experts' weights have these names, of which `list` comes before the expert's number and
	 * gate, up and down after it: "model.layers.0.mlp.experts.",
	 * ".gate_proj.weight". Or all are
	 * in two tensors, if the checkpoint has these: fused_up [n, 2 * width, latent], of each expert
	 * first the rows of gate, then those of up, and fused_down [n, latent, width]; or these two
	 * transposed: [n, latent, 2 * width] and [n, width, latent]. */
	const char *list, *gate, *up, *down;
	const char *fused_up, *fused_down;
	/* As gpt-oss has the two: [n, latent, 2 * width], of which gate has the even columns and up the
	 * odd ones, and [n, width, latent]; or MXFP4's "_blocks" and "_scales" of their transposes.
	 * They have biases: "_bias" [n, 2 * width], [n, latent]. Weights in a list have a bias each. */
	bool interleaved;
	const char *latent_in, *latent_out; /* [latent, width of the model], and the reverse */
	/* [1, width of the model]: the shared expert's output is multiplied by the sigmoid of its
	 * product with the token. */
	const char *shared_gate;
	/* Gemma 4: the experts and the router see the hidden states through norms of their own, the
	 * block's norm being that of the shared expert; router_norm's output is then multiplied by
	 * logit_scale. Norms of the shared expert's output and of the sum of the others'. */
	const char *norm, *post_norm, *shared_post_norm, *router_norm;
	float logit_scale;         /* 1 = none */
	const char *scales;        /* [n] factors of the experts' outputs, beside their scores */
	bool shared_gate_optional; /* a checkpoint without that tensor has no such gate */
};

/* A block that the hidden states pass by (Zamba 2's shared transformer): its output
 *     t = out mlp(mlp_norm(mixer(norm([h | e]))))
 * is added to the input of the next block only, which is norm(h + t). e is the embedding of the
 * token. The mixer's input has twice the model's width. Full names; norms of the plan's kind, [2
 * width of the model] and [width of the model]. */
struct mx_plan_aside {
	const char *norm, *mlp_norm;
	const char *out; /* [width of the model, width of the model] */
};

struct mx_plan_block {
	enum mx_block_kind kind;
	const char *norm;      /* full name of the weight of the norm before the block; NULL = none */
	const char *post_norm; /* likewise of the norm of the block's output; NULL = none */
	/* Full name of a tensor [1], or NULL: h *= that after the block. */
	const char *scalar;
	float residual_scale; /* h += residual_scale * post_norm(block(norm(h))) */
	/* If not 0, that is added to carried * norm(h), which h is replaced by (MiniMax). Not of a
	 * parallel block. */
	float carried;
	/* The block sees the same hidden states as the block before it: both outputs are added to them
	 * together. Without a norm its input is that of the block before it. Feed-forwards only,
	 * without post_norm, and of the same residual_scale. */
	bool parallel;
	const struct mx_plan_mixer *mixers; /* MX_BLOCK_MIXER: outputs are summed; aside: one */
	uint32_t n_mixers;
	struct mx_plan_mlp mlp;         /* the feed-forward, or the shared expert (width 0: none) */
	struct mx_plan_aside aside;     /* MX_BLOCK_ASIDE, which has no norm, scale or scalar */
	struct mx_plan_experts experts; /* MX_BLOCK_EXPERTS */
};

struct mx_plan_layer {
	const struct mx_plan_block *blocks;
	uint32_t n_blocks;
};

/* A head that predicts a further token (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2): a layer
 * behind the model's. At the position of token t, which follows hidden state h of the model (after
 * its final norm), its layer's input is
 *     projection [embed_norm(embedding of t) | hidden_norm(h)]
 * and final_norm of the layer's output, by the model's lm_head, gives the logits of the token after
 * t. Used again, it takes its own normed output for h. Full names; norms of the plan's kind, the
 * projection [width, 2 width]. */
struct mx_plan_head {
	/* n = 0: the model has none, or (n > 1) several, which are not used. */
	uint32_t n;
	/* Its mixers let no later position see the first, which has no h (skip_first). */
	const struct mx_plan_layer *layer;
	const char *projection, *embed_norm, *hidden_norm, *final_norm;
	/* Names of all its tensors, as in mx_plan.skipped; of these `unused` are of no use: copies. */
	const char *tensors;
	const char *const *unused; /* ended by NULL */
};

/* What layers get of a token beside its hidden states (Gemma 4's per-layer embeddings): layer i
 * elements i width .. (i + 1) width - 1 of
 *     (norm(projection x / sqrt(width of the model)) + sqrt(width) embed[token]) / sqrt(2)
 * where x is the token's embedding as the first layer gets it, and the norm is of each layer's
 * part. */
struct mx_plan_inputs {
	uint32_t width; /* 0 = there are none */
	uint32_t vocab; /* rows of embed: at least the plan's */
	/* Full names: [vocab, n_layers width], [n_layers width, width of the model], [width]. */
	const char *embed, *projection, *norm;
};

/* How the quantised matrices of a checkpoint are stored; which ones are, its tensors tell. */
enum mx_plan_method {
	MX_PLAN_UNQUANTISED,
	MX_PLAN_AWQ,
	MX_PLAN_GPTQ,
	MX_PLAN_COMPRESSED, /* compressed-tensors, whose tensors say the rest */
	MX_PLAN_FP8,
};

struct mx_plan_quant {
	enum mx_plan_method method;
	uint32_t bits, group; /* of AWQ and GPTQ; group 0 = whole rows */
	bool zeros_less_one;  /* GPTQ: stored zeros are one less */
	uint32_t block[2];    /* fp8: rows and columns that share a scale; 0 = not by blocks */
};

struct mx_plan {
	const char *family; /* model_type */
	struct mx_plan_quant quant;
	uint32_t width, vocab, n_layers;
	/* Longest sequence: max_position_embeddings, times the rope scaling if the family does so. */
	uint32_t max_context;
	enum mx_norm_kind norm;
	float norm_eps;
	bool
		norm_plus_one; /* norms multiply by 1 + w; see mx_plan_mixer.plus_one for those in mixers */
	/* Names of tensors begin with roots[0], or in the checkpoint with another of the roots:
	 * "model." or "model.language_model.". Ended by NULL; NULL = names are as they are. lm_head is
	 * found below the root, beside it ("language_model.lm_head.weight") or as it is. */
	const char *const *roots;
	/* Pairs of a part of tensors' names and what some checkpoints have instead: "input_layernorm.",
	 * "attention_layer_norm.". Ended by NULL; NULL = none. */
	const char *const *also;
	/* Vectors that no checkpoint has, each element being 1: names as in `skipped`. NULL = none. */
	const char *const *ones;
	/* Tensors of the checkpoint that the model does not use, knowingly: "vision_tower.*", "*.bias".
	 * Ended by NULL; NULL = none. A tensor that nobody asked for is an error otherwise. */
	const char *const *skipped;
	bool skips_layers; /* the same for layers from n_layers on (multi-token prediction) */
	bool transposed; /* matrices of mixers and feed-forwards are stored [inputs, outputs] (GPT-2) */
	const char *embed;      /* tensor names */
	bool lm_head_bias;      /* lm_head has one: its name with ".bias" for ".weight" */
	const char *embed_norm; /* norm of the embedding, of the plan's kind; NULL = none */
	const char *positions; /* learned positions [n_positions, width], added to embed; NULL = none */
	uint32_t n_positions;
	struct mx_plan_inputs inputs;
	const char *final_norm;
	const char *lm_head;            /* the same as embed if tied */
	bool may_be_tied;               /* embed serves where the checkpoint has no lm_head */
	const char *layer_prefix;       /* what comes before a layer's number: "model.layers." */
	float embed_scale, logit_scale; /* multipliers, 1 = none */
	bool embed_scale_rounds; /* embed_scale is rounded to the type of the embedding (Gemma) */
	float logit_softcap;     /* logits = cap tanh(logits / cap); 0 = none */
	/* Sequences that may grow longer than this have other states from their first token on than
	 * those that cannot (longrope); 0 = none. The prefix cache keeps them apart. */
	uint32_t long_from;
	const struct mx_plan_layer *layers;
	struct mx_plan_head head; /* layer n_layers */

	/* From generation_config.json, else config.json. */
	const int32_t *eos; /* [n_eos] */
	size_t n_eos;
	int32_t bos; /* -1 = none */
	/* Sampling defaults of generation_config.json; NaN, or -1 for top_k, if absent. */
	float temperature, top_p, min_p, repetition_penalty;
	int32_t top_k;
};

/* Reads DIR/config.json and generation_config.json (optional), or the metadata of a GGUF file, from
 * which these are made. Destroy with mx_plan_destroy. */
mx_status mx_plan_load(const char *dir, struct mx_plan **out, struct mx_err *err);
/* As mx_plan_load, from texts in memory; generation may be NULL. */
mx_status mx_plan_parse(const char *config, size_t config_len, const char *generation,
                        size_t generation_len, struct mx_plan **out, struct mx_err *err);
void mx_plan_destroy(struct mx_plan *p); /* takes NULL */

/* Another mixer for some attention layers, which takes the parameters and tensors of attention. */
struct mx_plan_override {
	const char *layers;      /* "8-31", "0, 4-7" or "all" */
	const char *mixer;       /* registry name */
	struct mx_params params; /* besides those of the layer */
	const char *origin; /* where this was said, for messages: "mixd.yaml:7:5"; NULL = nowhere */
};

/* Changes the plan; copies what it keeps. Fails, with o->origin as err->where, if `layers` is not
 * understood, names a layer that is not of attention or whose keys another layer reads, or a
 * parameter is one that the layer has. The mixer checks its parameters when the model is resolved.
 */
mx_status mx_plan_override(struct mx_plan *p, const struct mx_plan_override *o, struct mx_err *err);

/* Describes which mixers run which layers, for people: "0-2 gla, 3 attention, 4-6 gla". The text
 * ends in "..." if it does not fit into cap (>= 8) bytes with the NUL. */
void mx_plan_describe_layers(const struct mx_plan *p, char *text, size_t cap);

/* Parameters of the "attention" mixer, as all families write them; those that are absent are 0,
 * false or none:
 *   heads, kv_heads, head_dim (INT), window (INT; a token sees itself and window - 1 before it),
 *   scale (FLOAT, of q.k), bias (BOOL: q, k, v), o_bias (BOOL), norm_eps (FLOAT),
 *   qk_norm (BOOL: a norm of each head of q and k), qk_norm_whole (BOOL: of all heads of a token
 *   together), softcap (FLOAT: scores are softcap tanh(scores / softcap)), sinks (BOOL: each head
 *   has a logit without a value), v_norm (BOOL: a norm of each head of v, without a weight), k_is_v
 *   (BOOL: v is what k is before its norm), wide_gate (BOOL: the output
 * is multiplied by the sigmoids of gate_proj x), norm_last (BOOL: qk_norm comes after
 * rope), shared_kv (BOOL: there are no k and v, the layer reads the pages of an earlier
 * one; on CPUs), skip_first (BOOL: no row but the first sees the key of position 0),
 * input_width (INT, of x; 0 = the model's), adapter_rank (INT: adapter_out
 * adapter_in x is added to q, k and v; STRINGs q_adapter_in, q_adapter_out, k_adapter_in ...
 * v_adapter_out are the names of these tensors; on CPUs), gate (BOOL: q_proj has rows [q | gate]
 * for each head; the head's output is multiplied by sigmoid(gate)), head_gate (BOOL: it is
 * multiplied by the sigmoid of one number, a row of gate_proj; on CPUs), names (STRING: of the
 * tensors, see mixers/attention/README.md), fused (BOOL: q, k and v are one tensor), per_head
 * (BOOL: the rows of the fused tensor are [q | k | v] head by head), q_scale_beta (FLOAT),
 * q_scale_length (INT: q is multiplied by 1 + beta ln(1 + floor(position / length))), rope (STRING:
 * none|default|linear|dynamic|llama3|yarn|longrope), and unless none: rope_theta (FLOAT), rope_dim
 * (INT), rope_pairs (BOOL: x[2i], x[2i+1] are a pair instead of x[i], x[i + rope_dim/2]),
 * rope_factor, rope_attention_factor (FLOAT, 1 = none), rope_inv_freq (FLOATS [rope_dim/2], with
 * the scaling applied; for dynamic: the unscaled ones), rope_max_position (INT,
 * max_position_embeddings: dynamic's Lmax); for longrope: rope_long_inv_freq (FLOATS, of sequences
 * that may grow longer than) rope_original (INT).
 *
 * Frequencies are float32 values, computed as transformers 5 does.
 *
 * Here "dynamic" is a function of the absolute position: a token at position p < Lmax uses the
 * unscaled frequencies; a later one uses those of the base
 *     theta * (factor * (p + 1) / Lmax - (factor - 1)) ^ (rope_dim / (rope_dim - 2)).
 * transformers takes the length fed so far for p + 1, for all tokens of one forward call. So the
 * two agree for every prompt up to Lmax and whatever is generated after it, token by token; in a
 * prompt longer than Lmax, transformers' result depends on how the prompt was cut into calls, and
 * ours is the one of feeding it token by token. (vLLM uses one base for all positions, that of p +
 * 1 = factor * Lmax, and so differs from transformers for short prompts too.) Only a function of
 * the position keeps results equal bit for bit however a prompt is cut into chunks.
 */

#endif
