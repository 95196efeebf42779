/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory of the mixture of experts: R rows, E experts, each row chooses K of them. */
#ifndef MX_ENGINE_EXPERTS_H
#define MX_ENGINE_EXPERTS_H

#include <stdint.h>

/* An expert chosen by a row, or a row that chose an expert, with the weight of its output. */
struct mx_expert_link {
	uint32_t index;
	float weight;
};

struct mx_experts_scratch {
	float *probs;                   /* [R, E] */
	struct mx_expert_link *choices; /* [R, K] the experts of each row */
	struct mx_expert_link *rows;    /* [R K] the rows of each expert, in order of expert */
	uint32_t *begin;                /* [E + 1] begin[e] = index in `rows` of expert e's first row */
	float *x, *y;        /* [R, width or the largest latent] input and output of one expert */
	float *latent, *sum; /* [R, largest latent] the experts' input, and the sum of their outputs */
};

#endif
