/* SPDX-License-Identifier: Apache-2.0 */
/* The mamba mixer's instance on CPUs, shared by mamba.c and mamba_forward.c. */
#ifndef MX_MIXERS_MAMBA_MAMBA_H
#define MX_MIXERS_MAMBA_MAMBA_H

#include "mixers/mamba/mamba_layer.h"
#include "mixers/recurrence/slots.h"

/* Where things are in the step's scratch memory, in bytes from its start. All are f32, the step's
 * rows one after the other. */
struct mamba_scratch {
	size_t z;    /* [max_rows, inner] */
	size_t xbc;  /* [max_rows, channels]: x, B and C */
	size_t dt;   /* [max_rows, heads] step sizes */
	size_t a;    /* [max_rows, heads] decay factors */
	size_t y;    /* [max_rows, inner] */
	size_t sums; /* [max_rows, all_groups] of squares, where ranks share groups */
	size_t core; /* mx_recur_forward's */
	size_t bytes;
};

struct mx_mixer {
	struct mx_recur_mixer common; /* a slot: the recurrence's part, then the convolution's */
	struct mamba_params params;
	const struct mx_recur_kernels *kernels;
	struct mx_recur_spec recur;
	struct mx_conv_spec conv;
	struct mamba_weights w;
	struct mx_comm *comm; /* NULL = one rank */
	uint32_t width, max_rows;
	struct mamba_scratch scratch;
};

/* mamba_forward.c */
void mamba_scratch_layout(const struct mx_layer_desc *layer, const struct mamba_params *p,
                          const struct mx_recur_spec *recur, unsigned threads,
                          struct mamba_scratch *out);
mx_status mamba_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
