/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gla mixer's internals: linear attention and its descendants are rows of one
 * table over the core in mixers/recurrence. The maths of each is in README.md.
 *
 * A layer computes *streams* from its input: q, k, v, the decay a, beta and the
 * output gate. Each is a projection (or two, through a low rank), a short
 * convolution if there is one, and an activation. The core runs the recurrence
 * over them; a norm with the gate and the output projection follow.
 */
#ifndef MX_MIXERS_GLA_GLA_H
#define MX_MIXERS_GLA_GLA_H

#include "mixers/recurrence/slots.h"

enum gla_stream { GLA_Q, GLA_K, GLA_V, GLA_A, GLA_BETA, GLA_GATE, GLA_STREAMS };

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

/* The feature map of q and k, before the recurrence. */
enum gla_feature {
	GLA_IDENTITY,
	GLA_RELU,
	GLA_SIGMOID,
	GLA_SILU,
	GLA_ELU,      /* elu(x) + 1 */
	GLA_PRODUCT,  /* L1 x * L2 x */
	GLA_T2R,      /* relu(L x) */
	GLA_HEDGEHOG, /* softmax(2 L x, -2 L x) */
	GLA_DPFP,     /* products of (relu x, relu -x) with its rotations by 1 .. 4 */
};

/* Norm that divides each head of q and k. */
enum gla_qk_norm {
	GLA_QK_NONE,
	GLA_QK_L2,  /* sqrt(sum x^2 + 1e-6) */
	GLA_QK_L1,  /* max(sum |x|, 1e-6) */
	GLA_QK_SUM, /* sum x + 1e-4 */
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
	enum gla_feature feature;
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
	struct gla_names streams[GLA_STREAMS];
};

extern const struct gla_variant gla_variants[];
extern const size_t gla_n_variants;

struct gla_stream_shape {
	uint32_t n;    /* elements a row; 0 = the layer has no such stream */
	uint32_t ld;   /* elements between rows */
	uint32_t rank; /* 0 = one projection */
	bool conv;
	bool silu;
};

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
	struct mx_recur_spec recur;
	/* Sizes of a head, as projected; with some feature maps those in `recur` are larger. */
	uint32_t k_dim, v_dim;
	struct gla_stream_shape streams[GLA_STREAMS];
	uint32_t conv_size;
	enum gla_feature feature;
	bool feature_tied; /* one map for q and k */
	enum gla_qk_norm norm_q, norm_k;
	bool normalize;  /* outputs are divided by q . sum of k: v has a column of ones */
	bool neg_eigval; /* beta is doubled */
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
	struct gla_stream_weights streams[GLA_STREAMS];
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

/* Lists all tensors of a layer, at most MX_MIXER_MAX_WEIGHTS; returns their number. */
size_t gla_tensors(const struct mx_layer_desc *layer, const struct gla_params *p,
                   struct gla_tensor *out);

/* ---- an instance ---- */

struct mx_mixer {
	struct mx_recur_mixer common; /* a slot: the recurrence's part, then one for each of convs */
	const struct mx_recur_kernels *kernels;
	struct gla_params params;
	struct gla_weights w;
	uint32_t width, max_rows;
	struct mx_conv_spec convs[GLA_STREAMS]; /* of the streams that have one */
	float *inv_freq;                        /* [k_dim / 2] with rope */
	float *fixed_a;    /* [heads] a of GLA_RETENTION, GLA_LIGHTNING, GLA_SLOPES */
	float *beta_scale; /* [heads] factor of sigmoid; without a stream BETA, beta itself */
	/* Stream A becomes f(z * pre) * mul + add, each [n]; NULL = left out. */
	float *pre, *mul, *add;
};

/* Returns the convolution of a stream. A slot and a snapshot are the recurrence's part, then a part
 * for each stream with a convolution. */
struct mx_conv_spec gla_conv_spec(const struct gla_params *p, int stream);

/* The step's scratch memory. */
struct gla_buffers {
	float *streams[GLA_STREAMS], *low[GLA_STREAMS]; /* low: first products of low-rank streams */
	float *features[2];                             /* features of q and k, if larger than those */
	float *layers[2];                               /* products of a feature map */
	float *y;                                       /* [rows, heads * recur.v_dim] */
	float *qkvz, *ba; /* products that streams are taken from, key head by key head */
	void *core;
};

/* Places the buffers in `base` (NULL: computes the size only) and returns their bytes. */
size_t gla_layout(const struct gla_params *p, size_t max_rows, unsigned threads,
                  unsigned char *base, struct gla_buffers *out);

mx_status gla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

/* ---- functions of rows that the core lacks; in gla_rows.c ---- */

/* x <- max(x * mul + add, min), columns n of each row; add NULL = 0. */
void gla_affine(struct mx_device *d, size_t n_rows, size_t n, const float *mul, const float *add,
                float min, float *x);

/* y <- scale * f(x): maps each of `heads` groups of `dim` elements to one of gla_feature_dim
 * elements and divides it as `norm` says (not GLA_QK_L2). x2 is the second factor of GLA_PRODUCT. y
 * may be x if the sizes are equal. */
struct gla_features {
	enum gla_feature feature;
	uint32_t heads, dim;
	enum gla_qk_norm norm;
	float scale;
};
uint32_t gla_feature_dim(enum gla_feature f, uint32_t dim);
int gla_feature_layers(enum gla_feature f); /* number of trained products, 0 to 2 */
void gla_apply_features(struct mx_device *d, const struct gla_features *f, size_t n_rows,
                        const float *x, const float *x2, float *y);

/* Takes the streams q, k, v, gate, beta and a of `n_rows` rows from qkvz [rows, k_heads,
 * q|k|v|gate] and ba [rows, k_heads, beta|a], and adds bias [heads] to a. */
void gla_unpack(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                const struct gla_buffers *b, const float *bias);

/* Takes the streams q, k and v from qkv [rows, heads, q|k|v]. */
void gla_unpack_qkv(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                    const struct gla_buffers *b);

/* k <- 1 - a */
void gla_complement(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *k);
/* v <- v * (1 - a) */
void gla_input_gate(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *v);
/* Appends a 1 to each of `heads` groups of dim elements: a row becomes groups of dim + 1. */
void gla_append_ones(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *v);
/* The reverse: divides each group of dim + 1 by its last element + 1e-10; rows do not move. */
void gla_divide(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *y);

#endif
