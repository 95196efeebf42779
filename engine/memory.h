/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a model instance go: the arithmetic behind
 * mx_engine_plan, and the same arithmetic again when the memory is there.
 */
#ifndef MX_ENGINE_MEMORY_H
#define MX_ENGINE_MEMORY_H

#include "engine/experts.h"
#include "engine/resolve.h"

/* Numbers of a step that the buffers are sized by. */
struct mx_step_limits {
	uint32_t rows;      /* most rows of a step */
	uint32_t sequences; /* most spans */
	uint32_t logits;    /* rows of logits made at a time, >= 2 */
	size_t ld_logits;   /* floats between rows of logits */
};

/* Buffers of the step path. R = rows, S = sequences, L = logits, all of act_dtype f32. */
struct mx_scratch {
	float *h;      /* [R, width] residual stream */
	float *x;      /* [R, width] input of a block; hidden states of rows that need logits */
	float *y;      /* [R, width] output of a mixer */
	float *y2;     /* [R, width] of a second mixer beside it, or NULL */
	float *scaled; /* [R, width] an input times its in_scale, or NULL */
	struct mx_experts_scratch experts;
	float *gate;                   /* [R, widest mlp] */
	float *up;                     /* [R, widest mlp] */
	float *logits;                 /* [L, ld_logits] */
	void *mixer;                   /* the mixers' own */
	int32_t *ids;                  /* [R] */
	uint32_t *pos;                 /* [R] */
	uint32_t *wants;               /* [2 R] (row, item) of rows whose logits are wanted */
	struct mx_span *spans;         /* [S] */
	uint32_t *kept;                /* [S] */
	struct mx_sample_row *samples; /* [L] */
	int32_t *tokens;               /* [L] drawn, or whose probability is asked */
	uint32_t *n_top;               /* [L] */
	struct mx_logprob *probs;      /* [L] */
	struct mx_logprob *prompt;     /* [R] log-probabilities of prompt tokens, kept for the caller */
};

void mx_step_limits_of(const struct mx_model *m, const struct mx_engine_config *config,
                       struct mx_step_limits *out);

/* Lays the buffers out from `base` (aligned to 64; NULL to learn the size) and returns the bytes.
 */
size_t mx_scratch_layout(const struct mx_model *m, const struct mx_step_limits *l,
                         unsigned char *base, struct mx_scratch *out);

/* Memory this process may use: the host's, or its cgroup's limit where that is less. */
size_t mx_host_memory(void);

/* Fills the plan. `device` as for mx_model_resolve; device_scratch is its own memory. */
mx_status mx_memory_plan(const struct mx_model *m, const struct mx_engine_config *config,
                         uint32_t max_context, const struct mx_device *device,
                         size_t device_scratch, struct mx_memory_plan *out, struct mx_err *err);

#endif
