/* SPDX-License-Identifier: Apache-2.0 */
/* The mamba1 mixer's instance, shared by mamba1.c and mamba1_forward.c. */
#ifndef MX_MIXERS_MAMBA1_MAMBA1_H
#define MX_MIXERS_MAMBA1_MAMBA1_H

#include "mixers/mamba1/mamba1_params.h"
#include "mixers/recurrence/slots.h"

/* Where things are in the step's scratch memory, in bytes from its start. All are f32, the step's
 * rows one after the other. */
struct mamba1_scratch {
	size_t x, z, dt; /* [max_rows, inner] */
	size_t low;      /* [max_rows, rank]; of several ranks followed by b and c of a step */
	size_t b, c;     /* [max_rows, states] */
	size_t bytes;
};

struct mx_mixer {
	struct mx_recur_mixer common; /* a slot: the scan's part, then the convolution's */
	struct mamba1_params params;
	const struct mx_recur_kernels *kernels;
	struct mx_select_spec scan;
	struct mx_conv_spec conv;
	struct mamba1_weights w;
	float *a;             /* packed -exp(A_log), owned */
	struct mx_comm *comm; /* NULL = one rank */
	uint32_t width, max_rows;
	struct mamba1_scratch scratch;
};

/* mamba1_forward.c */
void mamba1_scratch_layout(const struct mx_layer_desc *layer, const struct mamba1_params *p,
                           struct mamba1_scratch *out);
mx_status mamba1_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
