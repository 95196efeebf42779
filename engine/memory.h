/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a model instance go: the arithmetic behind
 * mx_engine_plan, and the same arithmetic again when the memory is there.
 */
#ifndef MX_ENGINE_MEMORY_H
#define MX_ENGINE_MEMORY_H

#include "engine/experts.h"
#include "engine/resolve.h"
#include "engine/tables.h"

/* Numbers of a step that the buffers are sized by. */
struct mx_step_limits {
	uint32_t rows;      /* most rows of a step */
	uint32_t sequences; /* most spans */
	uint32_t logits;    /* rows of logits made at a time, >= 2 */
	uint32_t recorded;  /* most sequences of a step that is recorded; 0 = none is */
	uint32_t context;   /* longest sequence */
	size_t ld_logits;   /* floats between rows of logits */
};

/* Buffers of the step path. R = rows, S = sequences, L = logits. */
struct mx_scratch {
	/* In the device's memory, elements of act_dtype unless a type says otherwise. */
	void *h;      /* [R, width] residual stream */
	void *x;      /* [R, width] input of a block; in the end the normed hidden states */
	void *y;      /* [R, width] output of a block; in the end rows of x that need logits */
	void *y2;     /* [R, width] of a second mixer beside it, or NULL */
	void *scaled; /* [R, width] an input times its in_scale, or NULL */
	struct mx_experts_scratch experts;
	void *gate;    /* [R, widest mlp] */
	void *up;      /* [R, widest mlp]; NULL: rows of `gate` have both, one behind the other */
	float *logits; /* [L, ld_logits] */
	void *mixer;   /* the mixers' own */
	void *settle[MX_ENGINE_MAX_MIXERS]; /* of each group, for settle; or NULL */
	unsigned char *block; /* the step's tables (tables.h), where the device reads them */

	/* In the host's. */
	struct mx_tables tables;       /* of a step of R rows; no spans and pages on CPUs */
	uint32_t *wants;               /* [2 R] (row, item) of rows whose logits are wanted */
	struct mx_span *spans;         /* [S] */
	struct mx_kept *kept;          /* [S] */
	struct mx_sample_row *samples; /* [L] */
	int32_t *tokens;               /* [L] drawn, or whose probability is asked */
	uint32_t *n_top;               /* [L] */
	struct mx_logprob *probs;      /* [L] */
	struct mx_logprob *prompt;     /* [R] log-probabilities of prompt tokens, kept for the caller */
};

/* Bytes of them. On CPUs all is the host's. */
struct mx_scratch_bytes {
	size_t device, host;
};

void mx_step_limits_of(const struct mx_plan *plan, const struct mx_engine_config *config,
                       const struct mx_device_info *device, struct mx_step_limits *out);

/* Of the block in which a step's tables are laid out. */
size_t mx_step_tables_bytes(const struct mx_model *m, const struct mx_step_limits *l);

/* Lays the buffers out from `device` and `host`, memory aligned to 64 (NULL to learn the sizes). On
 * CPUs tables and block are the same memory; else the tables are left to the caller, who puts them
 * where the device can copy from. */
void mx_scratch_layout(const struct mx_model *m, const struct mx_step_limits *l,
                       const struct mx_device_info *info, unsigned char *device,
                       unsigned char *host, struct mx_scratch *out,
                       struct mx_scratch_bytes *out_bytes);

/* Memory this process may use: the host's, or its cgroup's limit where that is less. */
size_t mx_host_memory(void);

/* Fills the plan. `device` as for mx_model_resolve; device_scratch is its own memory, which
 * info.memory does not count as free any more. */
mx_status mx_memory_plan(const struct mx_model *m, const struct mx_engine_config *config,
                         uint32_t max_context, const struct mx_device *device,
                         size_t device_scratch, struct mx_memory_plan *out, struct mx_err *err);

#endif
