/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of the mamba mixer, on any device: parameters, tensors and description. */
#ifndef MX_MIXERS_MAMBA_MAMBA_LAYER_H
#define MX_MIXERS_MAMBA_MAMBA_LAYER_H

#include "mixers/recurrence/layer.h"

/* The layer's parameters, checked. Heads, groups and what is computed from them are a rank's
 * share. */
struct mamba_params {
	uint32_t heads, head_dim, state_size, groups;
	uint32_t all_heads, all_groups, first_head, first_group; /* the share in the layer */
	bool shared;                                             /* ranks share groups */
	uint32_t inner;                                          /* heads * head_dim */
	uint32_t channels;    /* of the convolution: inner + 2 * groups * state_size */
	uint32_t conv_kernel; /* taps */
	float dt_min, dt_max; /* limits of the step size */
	float norm_eps;
	bool bias, out_bias, conv_bias;
	const double *multipliers; /* [5] of z, x, B, C and dt as in_proj gives them; NULL = none */
	bool norm, norm_before_gate;
};

/* Pointers that create gets, and vectors that are computed from them. */
struct mamba_weights {
	const struct mx_weight *z, *xbc, *dt; /* rows of in_proj */
	/* With several ranks xbc is x only. Else NULL. */
	const struct mx_weight *b, *c;
	const struct mx_weight *out;
	const float *b_z, *b_xbc, *b_out; /* NULL = none */
	const float *b_b, *b_c;           /* biases of b and c */
	const float *conv;                /* [channels, conv_kernel] */
	const float *conv_bias;           /* [channels] or NULL */
	const float *norm;                /* [inner] or NULL */
	const float *d;                   /* [heads] */
	/* In host memory, owned: */
	/* [channels, conv_kernel] conv if it is multiplied or a share, else NULL; its biases [channels]
	 * if they are a share */
	float *own_conv, *own_conv_bias;
	float *a;            /* [heads] -exp(A_log) */
	float *b_dt;         /* [heads] all that is added to dt before it is multiplied */
	float mul_z, mul_dt; /* multipliers of z and dt */
};

/* Returns the elements of a whole group of the layer's heads. */
static inline uint32_t mamba_group_dim(const struct mamba_params *p)
{
	return p->all_heads / p->all_groups * p->head_dim;
}

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
mx_status mamba_params_read(const struct mx_layer_desc *layer, struct mamba_params *out,
                            struct mx_err *err);

/* mx_mixer_ops.weights */
mx_status mamba_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n);

/* Takes the pointers that create gets, in the order of mamba_weights, and computes the rest.
 * MX_E_NOMEM; free what it holds in any case. */
mx_status mamba_weights_take(const struct mamba_params *p, const struct mx_mixer_init *init,
                             struct mamba_weights *out);
void mamba_weights_free(struct mamba_weights *w);

struct mx_recur_spec mamba_recur_spec(const struct mx_layer_desc *layer,
                                      const struct mamba_params *p);

/* Fills the description of the layer. */
void mamba_describe(const struct mx_layer_desc *layer, const struct mamba_params *p,
                    const struct mamba_weights *w, struct mx_recur_layer *out);

#endif
