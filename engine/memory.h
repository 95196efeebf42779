/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a model instance: its sizes, for mx_engine_plan, and its layout, for
 * mx_engine_load. Both come from the same functions.
 */
#ifndef MX_ENGINE_MEMORY_H
#define MX_ENGINE_MEMORY_H

#include "engine/experts.h"
#include "engine/resolve.h"
#include "engine/tables.h"

/* Limits of a step, which size its buffers. */
struct mx_step_limits {
	uint32_t rows;      /* most rows of a step */
	uint32_t sequences; /* most spans */
	uint32_t logits;    /* rows of the logits buffer, >= 2 */
	uint32_t draws;     /* most rows that are drawn, or reported, in one call; <= logits */
	uint32_t recorded;  /* most sequences of a recorded step; 0 = no step is recorded */
	uint32_t drafted;   /* most tokens of a span with drafts or tentative tokens; 0 = has none */
	uint32_t ahead;     /* counts of tokens that a step has room for, see mx_scratch.ahead */
	bool gathers;       /* recorded spans of several tokens need the logits of the last one only */
	uint32_t context;   /* longest sequence */
	uint32_t slots;     /* most slots */
	size_t ld_logits;   /* floats from one row of logits to the next */
};

/* Which rows of hidden states the head for multi-token prediction moves (head.c). */
struct mx_head_moves {
	struct mx_row_move *follow; /* [2 R] of a step, for a step of n rows: n to h, n to pages */
	struct mx_row_move *draft;  /* [S] to h, of a row of drafts */
	struct mx_row_move *join;   /* [2 R] x and y side by side, to `beside`; always the same */
};

/* Buffers of a step. R = rows, S = sequences, L = logits of struct mx_step_limits. */
struct mx_scratch {
	/* In the device's memory. Elements of act_dtype, unless the field's type says otherwise. */
	void *h;      /* [R, width] residual stream */
	void *x;      /* [R, width] input of a block; after the last, the normed hidden states */
	void *y;      /* [R, width] output of a block; after the last, the rows of x that need logits */
	void *y2;     /* [R, width] output of a block's second mixer; NULL if no block has one */
	void *scaled; /* [R, width] a mixer's input times its in_scale; NULL if all are 1 */
	/* Asides (NULL if there are none): [R, width] embeddings, [R, width] hidden states plus the
	 * aside's output. */
	float *embedded, *aside;
	void *beside; /* [R, 2 width] two rows side by side, for asides and heads; NULL = neither */
	struct mx_head_moves moves; /* NULL if there is no head */
	float *low;    /* [R, max_rank] of a feed-forward's adapter; NULL if there is none */
	float *inputs; /* [R, n_layers * their width] inputs of layers; NULL if there are none */
	struct mx_experts_scratch experts;
	void *gate;    /* [R, widest mlp] */
	void *up;      /* [R, widest mlp]; NULL: `gate` is twice as wide and holds both */
	float *logits; /* [L, ld_logits] */
	void *mixer;   /* mx_step.scratch */
	void *settle[MX_ENGINE_MAX_MIXERS]; /* settle_scratch of each group, or NULL */
	unsigned char *block;               /* the step's tables (tables.h) as the device reads them */
	uint32_t *page_table;               /* page_table.h; NULL on CPUs */

	/* In the host's memory. */
	struct mx_tables tables;             /* CPUs: arrays in `block`, without spans */
	uint32_t *wants;                     /* [2 R] (row, item) of the rows whose logits are needed */
	struct mx_span *spans;               /* [S] */
	struct mx_kept *kept;                /* [S] */
	uint32_t *parents;                   /* [rows] of spans that are trees */
	uint32_t (*paths)[1 + MX_MAX_DRAFT]; /* [S] what is kept of trees */
	uint32_t *order;                     /* [S] see mx_resume_results */
	struct mx_sample_row *samples;       /* [L] */
	int32_t *tokens;                     /* [L] sampled tokens, or tokens to report */
	uint32_t *n_top;                     /* [L] */
	struct mx_logprob *probs;            /* [L] */
	uint32_t *copied;                    /* [L] sampled rows of a batch that are reported too */
	/* [limits.ahead] counts of tokens with drafts in them: of rows of sequences with penalties, on
	 * devices that draw all rows at once */
	struct mx_token_count *ahead;
	struct mx_logprob *prompt; /* [R] results: log-probabilities of the token behind each row */
};

/* Bytes of the buffers in the device's and in the host's memory. */
struct mx_scratch_bytes {
	size_t device, host;
};

/* Returns the most tokens of a span that may be taken back, or that a draft model gets at once; 0 =
 * there are no such spans. */
uint32_t mx_step_drafted(const struct mx_engine_config *config);

/* Computes the limits of a step from the configuration; of the device's `info` only own_memory and
 * records count. */
void mx_step_limits_of(const struct mx_plan *plan, const struct mx_engine_config *config,
                       const struct mx_device_info *info, struct mx_step_limits *out);

/* Returns the bytes of the block that holds a step's tables. */
size_t mx_step_tables_bytes(const struct mx_step_limits *l);

/* Returns the most pages of a sequence: the entries of its list in the page table. */
uint32_t mx_list_pages(const struct mx_model *m, const struct mx_step_limits *l);

/* Returns the bytes of the buffer through which the host reads hidden states from a device with
 * memory of its own: *out_rows of them, then one in f32. */
size_t mx_pooling_bytes(const struct mx_plan *plan, const struct mx_step_limits *l,
                        const struct mx_device_info *info, size_t *out_rows);

/* Divides the memory at `base`, aligned to 64, into the lists, and returns its bytes. With `base`
 * NULL only the size is computed. */
size_t mx_head_moves_layout(const struct mx_step_limits *l, unsigned char *base,
                            struct mx_head_moves *out);

/* Divides the memory at `device` and `host`, aligned to 64, into the buffers; with NULL only the
 * sizes are computed. On CPUs out->tables are in out->block. For a device with its own memory
 * out->tables are NULL: the caller allocates them where the device can copy from. */
void mx_scratch_layout(const struct mx_model *m, const struct mx_step_limits *l,
                       const struct mx_device_info *info, unsigned char *device,
                       unsigned char *host, struct mx_scratch *out,
                       struct mx_scratch_bytes *out_bytes);

/* Returns the part of config's `memory`, or of its default, that a draft model of that config and
 * device gets: what its buffers take, and of what is left for states a share in proportion to the
 * states of a sequence. The last four: its own, as those before. */
size_t mx_memory_draft_share(const struct mx_model *m, const struct mx_engine_config *config,
                             const struct mx_device *device, size_t device_scratch,
                             const struct mx_model *draft,
                             const struct mx_engine_config *draft_config,
                             const struct mx_device *draft_device, size_t draft_scratch);

/* Returns the `memory` of a model on a device with memory of its own whose draft model takes
 * `draft` bytes of it. */
size_t mx_memory_beside_draft(const struct mx_model *m, const struct mx_engine_config *config,
                              const struct mx_device *device, size_t device_scratch, size_t draft);

/* Fills the plan. m was resolved for `device`; device_scratch = bytes that the device has allocated
 * for itself (mx_load_own_bytes), which info.memory does not count as free. */
mx_status mx_memory_plan(const struct mx_model *m, const struct mx_engine_config *config,
                         uint32_t max_context, const struct mx_device *device,
                         size_t device_scratch, struct mx_memory_plan *out, struct mx_err *err);

#endif
