/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory of mixtures of experts: R rows, E experts, each row chooses K of them. */
#ifndef MX_ENGINE_EXPERTS_H
#define MX_ENGINE_EXPERTS_H

#include "device/experts.h"

struct mx_experts_scratch {
	float *probs; /* [R, E] the router's logits */
	/* [R, largest latent] of the activation dtype: the experts' input, and the sum of their outputs
	 */
	void *latent, *sum;

	/* On CPUs. */
	struct mx_expert_link *choices; /* [R, K] the experts of each row */
	struct mx_expert_link *rows;    /* [R K] the rows of each expert, in order of expert */
	uint32_t *begin;                /* [E + 1] begin[e] = index in `rows` of expert e's first row */
	float *x, *y; /* [R, width or the largest latent] input and output of one expert */

	/* On devices with memory of their own. */
	float *share; /* [R] logits of the shared expert's gate */
	void *work;   /* mx_experts_work */
};

#endif
