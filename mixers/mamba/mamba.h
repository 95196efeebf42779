/* SPDX-License-Identifier: Apache-2.0 */
/* The mamba mixer's instance, shared by mamba.c and mamba_forward.c. */
#ifndef MX_MIXERS_MAMBA_MAMBA_H
#define MX_MIXERS_MAMBA_MAMBA_H

#include "mixers/recurrence/slots.h"
#include "mixers/mixer.h"

/* The layer's parameters, checked. */
struct mamba_params {
	uint32_t heads, head_dim, state_size, groups;
	uint32_t inner;       /* heads * head_dim */
	uint32_t channels;    /* of the convolution: inner + 2 * groups * state_size */
	uint32_t conv_kernel; /* taps */
	float dt_min, dt_max; /* limits of the step size */
	float norm_eps;
	bool bias, out_bias, conv_bias;
	const double *multipliers; /* [5] of z, x, B, C and dt as in_proj gives them; NULL = none */
	bool norm, norm_before_gate;
};

/* Where things are in the step's scratch memory, in bytes from its start. All are f32, the step's
 * rows one after the other. */
struct mamba_scratch {
	size_t z;    /* [max_rows, inner] */
	size_t xbc;  /* [max_rows, channels]: x, B and C */
	size_t dt;   /* [max_rows, heads] step sizes */
	size_t a;    /* [max_rows, heads] decay factors */
	size_t y;    /* [max_rows, inner] */
	size_t core; /* mx_recur_forward's */
	size_t bytes;
};

struct mx_mixer {
	struct mx_recur_mixer common; /* a slot: the recurrence's part, then the convolution's */
	struct mamba_params params;
	const struct mx_recur_kernels *kernels;
	struct mx_recur_spec recur;
	struct mx_conv_spec conv;
	const struct mx_weight *w_z, *w_xbc, *w_dt; /* rows of in_proj */
	const struct mx_weight *w_out;
	const float *b_z, *b_xbc, *b_out; /* NULL = none */
	const float *conv_weight;         /* [channels, conv_kernel] */
	const float *conv_bias;           /* [channels] or NULL */
	const float *norm_weight;         /* [inner] or NULL */
	const float *d;                   /* [heads] */
	float *own_conv_weight;           /* conv_weight if it is multiplied, else NULL; owned */
	float *a;                         /* [heads] -exp(A_log), owned */
	float *b_dt;         /* [heads] all that is added to dt before it is multiplied, owned */
	float mul_z, mul_dt; /* multipliers of z and dt */
	uint32_t width, max_rows;
	struct mamba_scratch scratch;
};

/* mamba_forward.c */
void mamba_scratch_layout(const struct mx_layer_desc *layer, const struct mamba_params *p,
                          const struct mx_recur_spec *recur, unsigned threads,
                          struct mamba_scratch *out);
mx_status mamba_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
