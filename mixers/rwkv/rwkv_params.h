/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the rwkv mixer, for the modules of every device. */
#ifndef MX_MIXERS_RWKV_PARAMS_H
#define MX_MIXERS_RWKV_PARAMS_H

#include "mixers/mixer.h"

enum rwkv_part { RWKV_TIME, RWKV_CHANNEL };

/* The low-rank products of time mixing. */
enum rwkv_lora { RWKV_W, RWKV_A, RWKV_V, RWKV_G, RWKV_LORAS };

struct rwkv_params {
	enum rwkv_part part;
	/* time mixing */
	uint32_t heads, dim;   /* the rank's heads; dim: of a head's keys and values */
	struct mx_share share; /* which of the layer's heads, or of channel mixing's elements */
	uint32_t rank[RWKV_LORAS];
	bool value_residual; /* v is mixed with that of the model's first time mixing */
	float norm_eps;      /* of the group norm */
	float l2_eps;        /* of the norm of removal keys */
	/* Elements of the rank's heads, or of its share of channel mixing. */
	uint32_t inner;
};

/* How an input is mixed with that of the token before: in the order of the rows of x_x. */
enum rwkv_shift { RWKV_X_R, RWKV_X_W, RWKV_X_K, RWKV_X_V, RWKV_X_A, RWKV_X_G, RWKV_SHIFTS };

/* Widths are those of the rank's share, but for what meets the layer's input: x, and the columns of
 * r, k, v, down and key. */
struct rwkv_weights {
	const float *x[RWKV_SHIFTS]; /* [width]; channel mixing has RWKV_X_K only */
	const float *x_x;            /* [6, width] all of them; or NULL */
	const struct mx_weight *r, *k, *v, *o;
	const struct mx_weight *down[RWKV_LORAS], *up[RWKV_LORAS]; /* [rank, width], [width, rank] */
	const float *bias[RWKV_LORAS];                             /* NULL = none */
	const float *k_k, *k_a;                                    /* [width] */
	const float *r_k;                                          /* [heads, dim] */
	const float *norm, *norm_bias;                             /* [width] */
	const struct mx_weight *key, *value;                       /* of channel mixing */
};

/* Reads and checks a layer's parameters; *err tells which one is wrong. Pure. */
mx_status rwkv_params_read(const struct mx_layer_desc *layer, struct rwkv_params *out,
                           struct mx_err *err);
/* mx_mixer_ops.weights. */
mx_status rwkv_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n);
/* Takes the pointers of create, which are in the order of rwkv_params_weights. MX_E_FORMAT if a
 * vector of the shift is missing. */
mx_status rwkv_params_take(const struct mx_layer_desc *layer, const struct rwkv_params *p,
                           const void *const *weights, struct rwkv_weights *out,
                           struct mx_err *err);

#endif
