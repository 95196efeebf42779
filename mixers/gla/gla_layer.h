/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of the gla mixer, on any device: linear attention and its descendants are rows of one
 * table over the core in mixers/recurrence. The maths of each is in README.md.
 *
 * A layer computes *streams* from its input: q, k, v, the decay a, beta and the
 * output gate. Each is a projection (or two, through a low rank), a short
 * convolution if there is one, and an activation. The core runs the recurrence
 * over them; a norm with the gate and the output projection follow.
 */
#ifndef MX_MIXERS_GLA_GLA_LAYER_H
#define MX_MIXERS_GLA_GLA_LAYER_H

#include "mixers/recurrence/layer.h"

/* How the factors a are computed from stream A, which holds z. */
enum gla_decay {
	GLA_NO_DECAY,
	GLA_RETENTION, /* 1 - 2^(-5-h), no stream */
	GLA_LIGHTNING, /* exp(-8/H (1 - layer/layers) h), no stream */
	GLA_SLOPES, /* exp(-2^(-8 (h + 1) / H) (1 - layer / (layers - 1 + 1e-5) + 1e-5)), no stream */
	GLA_LOGSIGMOID,  /* exp(max(log sigmoid(z) / normalizer, clamp_min)) */
	GLA_SOFTPLUS,    /* exp(-e^A_log softplus(z)); exp(bound sigmoid(e^A_log z)) with a bound */
	GLA_LOWER_BOUND, /* b + (1 - b) sigmoid(z), b from model.lower_bounds */
};

/* Names of a stream's tensors; NULL = has none. */
struct gla_names {
	const char *weight;    /* [n, width], or [rank, width] if there is `up` */
	const char *up;        /* [n, rank] */
	const char *bias;      /* [n] */
	const char *conv;      /* [n, 1, taps] */
	const char *conv_bias; /* [n], optional */
};

struct gla_feature_name {
	const char *name; /* NULL ends a list */
	enum mx_recur_feature feature;
};

/* Which parameters give the sizes. */
enum gla_shape {
	GLA_EXPANSION, /* num_heads, expand_k and expand_v of the width */
	GLA_HEAD_DIM,  /* num_heads, num_v_heads, head_dim, expand_v of it */
	GLA_RATIO,     /* expand_ratio is the head's size; k = 1 - a, no k stream (HGRN2) */
	GLA_CHANNELS,  /* expand_ratio of the width, a state per channel (HGRN) */
};

/* An optional part: never there, always there, or chosen by a key with default off or on. */
enum gla_option { GLA_NEVER, GLA_OFF, GLA_ON, GLA_ALWAYS };

struct gla_variant {
	const char *name; /* the parameter `variant`; fla's model_type */
	enum gla_shape shape;
	uint32_t heads, head_dim; /* defaults; these and those below are fla's */
	double expand_k, expand_v;
	bool kv_heads; /* has num_kv_heads */
	enum gla_decay decay;
	bool vector;   /* a is a vector: a factor for each k */
	bool a_log_4d; /* A_log is stored as [1, 1, heads, 1] */
	bool delta;
	enum gla_option conv; /* use_short_conv */
	enum gla_option gate; /* gate_key */
	const char *gate_key;
	enum mx_recur_gate gate_function;
	bool gate_activation;              /* has output_gate_activation, which may say sigmoid */
	const char *feature_key, *feature; /* the key and its default, NULL = identity */
	const struct gla_feature_name *features;
	bool feature_norms; /* norm_q, norm_k, norm_feature_map, tie_feature_map_qk */
	bool silu_conv;     /* q, k and v go through SiLU if they have a convolution */
	bool silu_q, silu_k, silu_v;
	bool l2; /* q and k are made unit vectors */
	bool rope;
	bool unscaled;          /* q is not divided by sqrt(k_dim) */
	bool packed;            /* its tensors are GLA_TENSORS_MINIMAX */
	bool norm_whole;        /* one output norm over all heads */
	const char *norm;       /* name of the norm's weight */
	const char *norm_fused; /* its name if the norm is fused with the gate; NULL = the same */
	double norm_eps;
	struct gla_names streams[MX_RECUR_STREAMS];
};

extern const struct gla_variant gla_variants[];
extern const size_t gla_n_variants;

/* How a checkpoint holds the tensors: of gated_deltanet the parameter `tensors`. */
enum gla_tensors_form {
	GLA_TENSORS_FLA,        /* one for each stream, as the variant names them */
	GLA_TENSORS_QWEN3_5,    /* q, k and v are rows of one, their convolutions too */
	GLA_TENSORS_QWEN3_NEXT, /* q, k, v and the gate are rows of one, key head by key head; beta and
	                         * a likewise; convolutions as in Qwen3.5 */
	GLA_TENSORS_MINIMAX,    /* q, k and v are rows of one, head by head */
};

struct gla_params {
	const struct gla_variant *variant;
	enum gla_tensors_form form;
	/* Heads and streams below are those of this rank's share, of all_heads. */
	uint32_t ranks, all_heads;
	/* Of the layer's units, which divide the heads of every kind: key heads with what belongs to
	 * them. */
	struct mx_share share;
	uint32_t units;
	struct mx_recur_spec recur;
	/* Sizes of a head, as projected; with some feature maps those in `recur` are larger. */
	uint32_t k_dim, v_dim;
	struct mx_recur_stream_desc streams[MX_RECUR_STREAMS];
	uint32_t conv_size;
	enum mx_recur_feature feature;
	bool feature_tied; /* one map for q and k */
	enum mx_recur_qk_norm norm_q, norm_k;
	bool normalize;  /* outputs are divided by q . sum of k: v has a column of ones */
	bool neg_eigval; /* beta is doubled */
	bool ba_joined;  /* beta and a come from one tensor, rows of beta first */
	/* If not 0: in o_proj's columns the heads that share a key head, so many, are no neighbours:
	 * the first of each key head, then the second of each. */
	uint32_t by_turns;
	enum mx_recur_gate gate;
	bool norm_affine;
	const char *norm_name;
	float norm_eps;
	float normalizer, clamp_min; /* GLA_LOGSIGMOID */
	bool has_bound;              /* GLA_SOFTPLUS */
	float bound;
	bool has_lower_bounds; /* GLA_LOWER_BOUND */
};

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
mx_status gla_params_read(const struct mx_layer_desc *layer, struct gla_params *out,
                          struct mx_err *err);

/* ---- weights ---- */

struct gla_stream_weights {
	const struct mx_weight *w, *up;
	const float *bias, *conv, *conv_bias;
};

struct gla_weights {
	struct gla_stream_weights streams[MX_RECUR_STREAMS];
	const struct mx_weight *feature[2][2]; /* [q, k][layer] */
	const float *feature_bias[2][2];
	const float *a_log, *lower_bounds; /* host vectors, NULL after create */
	const float *norm;
	const struct mx_weight *o;
	/* GLA_TENSORS_QWEN3_NEXT, GLA_TENSORS_MINIMAX: the streams have no w, but are taken from these
	 * products. Of MiniMax the gate has its own. */
	const struct mx_weight *qkvz, *ba;
};

struct gla_tensor {
	struct mx_weight_spec spec;
	size_t offset; /* of the pointer in struct gla_weights */
	bool on_host;  /* only create reads it: the pointer is one of init->host_vectors */
};

/* mx_mixer_ops.weights: of several ranks each has its heads' rows and columns. */
mx_status gla_list_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                           size_t *out_n);

/* Lists all tensors of a layer with the sizes of a rank's share, at most MX_MIXER_MAX_WEIGHTS;
 * returns their number. */
size_t gla_tensors(const struct mx_layer_desc *layer, const struct gla_params *p,
                   struct gla_tensor *out);

/* Stores the pointers that create gets, in the order of gla_tensors; checks that of tied feature
 * maps there is one. */
mx_status gla_take_weights(const struct mx_mixer_init *init, const struct gla_params *p,
                           struct gla_weights *out, struct mx_err *err);

/* Fills the description of the layer. */
void gla_describe(const struct gla_params *p, struct mx_recur_layer *out);

/* Computes the layer's vectors; a_log and lower_bounds are host vectors, NULL if the layer has
 * none. gla_tables_free frees them, also after MX_E_NOMEM. */
mx_status gla_tables_fill(const struct mx_layer_desc *layer, const struct gla_params *p,
                          const struct gla_weights *w, struct mx_recur_tables *out);
void gla_tables_free(struct mx_recur_tables *t);

#endif
