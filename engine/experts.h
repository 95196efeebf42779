/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixture of experts needs in a step. R rows, E experts, K of them chosen by each row. */
#ifndef MX_ENGINE_EXPERTS_H
#define MX_ENGINE_EXPERTS_H

#include <stdint.h>

/* An expert of a row, or a row of an expert, and the weight of what comes out. */
struct mx_expert_link {
	uint32_t index;
	float weight;
};

struct mx_experts_scratch {
	float *probs;                   /* [R, E] */
	struct mx_expert_link *choices; /* [R, K] the experts of each row */
	struct mx_expert_link *rows;    /* [R K] the rows of each expert, experts in order */
	uint32_t *begin;                /* [E + 1] where an expert's rows begin in `rows` */
	float *x, *y;                   /* [R, width] input and output of one expert */
};

#endif
