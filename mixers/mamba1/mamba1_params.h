/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the mamba1 mixer, for the modules of every device. */
#ifndef MX_MIXERS_MAMBA1_PARAMS_H
#define MX_MIXERS_MAMBA1_PARAMS_H

#include "mixers/mixer.h"

/* Norms of dt, B and C before they are used. */
enum mamba1_norms { MAMBA1_NONE, MAMBA1_WEIGHTED, MAMBA1_PLAIN };

/* The layer's parameters, checked. */
struct mamba1_params {
	uint32_t inner;            /* channels of the rank's share */
	uint32_t all_inner, first; /* the share in the layer */
	bool out_bias;             /* of out_proj: the first rank's */
	uint32_t states, taps, rank;
	bool bias, conv_bias;
	enum mamba1_norms norms;
	float norm_eps;
};

/* The layer's weights as create gets them; vectors that are not there are NULL. */
struct mamba1_weights {
	const struct mx_weight *x, *z;          /* rows of in_proj: [inner, width] each */
	const struct mx_weight *low, *b, *c;    /* rows of x_proj: [rank or states, inner] */
	const struct mx_weight *dt, *out;       /* [inner, rank], [width, inner] */
	const float *x_bias, *z_bias;           /* [inner] each */
	const float *dt_bias, *out_bias;        /* [inner], [width] */
	const float *conv, *conv_bias;          /* [inner, taps], [inner] */
	const float *norm_dt, *norm_b, *norm_c; /* [rank], [states], [states] */
	const float *skip;                      /* [inner] D */
};

/* Numbers in create's lists. */
#define MAMBA1_CONV  7 /* the convolution's weights [inner, taps] */
#define MAMBA1_A_LOG 9 /* A_log [inner, states] */

/* Reads and checks a layer's parameters; *err tells which one is wrong. Pure. */
mx_status mamba1_params_read(const struct mx_layer_desc *layer, struct mamba1_params *out,
                             struct mx_err *err);
/* mx_mixer_ops.weights. */
mx_status mamba1_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                size_t *out_n);
/* Takes the pointers of create, which are in the order of mamba1_params_weights. */
void mamba1_params_take(const struct mamba1_params *p, const void *const *w,
                        struct mamba1_weights *out);

#endif
