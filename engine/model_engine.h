/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model engine's parts: an engine (core.h) with a device, a resolved model
 * and one mapping for private weights, slots, pages and scratch; where the device
 * has memory of its own, one block there for these and the weights, and a mapping
 * for what the host computes with.
 *
 * load.c builds it, forward.c runs the layers (experts.c those feed-forwards
 * that are a mixture), logits.c turns hidden states into tokens and
 * log-probabilities, launch.c is the step on a device that runs behind the host,
 * model_engine.c the step around them.
 */
#ifndef MX_ENGINE_MODEL_ENGINE_H
#define MX_ENGINE_MODEL_ENGINE_H

#include "engine/core.h"
#include "engine/memory.h"
#include "engine/touch.h"

/* Decode steps of up to so many sequences, recorded. */
struct mx_bucket {
	uint32_t rows;
	struct mx_recording *recording;
	struct mx_tables host, device; /* where the step's tables are laid out, and read */
	struct mx_device_tables tables;
	size_t bytes; /* of the tables without pages */
};

/* 1, 2, 4, 8, 12, 16, 24 .. 64, 80 .. 128, 160 .. 256, 320 .. 512 */
#define MX_MAX_BUCKETS 24

struct mx_model_engine {
	struct mx_core core;
	struct mx_device *device;
	struct mx_model model;
	struct mx_step_limits limits;
	struct mx_scratch scratch;
	unsigned char *map; /* mx_map */
	size_t map_bytes;
	struct mx_toucher toucher;
	unsigned char *arena;     /* memory of a device that has its own: all the engine takes of it */
	unsigned char *tables;    /* the step's, in memory that the device copies from */
	unsigned char *slots;     /* [max_sequences, slot_bytes] in the map or arena, as what follows */
	unsigned char *pages;     /* [n_pages, page_bytes] */
	unsigned char *snapshots; /* [n_snapshots], each of a saved slot and a page */

	struct mx_bucket buckets[MX_MAX_BUCKETS]; /* in ascending order */
	uint32_t n_recorded;
	uint64_t recording_ns;

	/* The step that has begun. */
	struct mx_step step;
	struct mx_device_tables step_tables; /* of one that is not recorded */
	uint32_t n_wants, n_sample;          /* rows whose logits are wanted; the first are sampled */
	bool in_order;                       /* wanted row i is row i of the step */
	const void *hidden;                  /* [n_wants, width] normed hidden states of these */
	bool drawing;                        /* the device draws all that is wanted of this step */
	uint64_t begin_ns;                   /* that begin took */
};

extern const struct mx_engine_ops mx_model_engine_ops;
extern const struct mx_state_ops mx_model_state_ops;

/* Destroys instances, device, map and tables; takes a half-built engine. */
void mx_model_engine_destroy(struct mx_engine *e);

/* Runs the layers over the rows of the step, the token of row i being ids[i] (in the device's
 * memory); leaves the normed hidden states in scratch.x. */
mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids);

/* y[rows, width] = the feed-forward of x[rows, width], or += with `add`. x is not y. */
mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                     size_t rows, void *y, bool add);

/* scratch.y = the mixture of experts of scratch.x, for rows of them. */
mx_status mx_experts_run(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows);

/* Has the mixers rebuild what load left out, for the sequences of the step, which has no rows. */
mx_status mx_forward_resume(struct mx_model_engine *e, const struct mx_step *step);

/* Commits all tokens of the step, then settles. */
mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step);

/* ---- logits.c, in the order of the calls; items are core.items, spans those in scratch ---- */

/* Finds the rows whose logits are wanted. */
void mx_logits_collect(struct mx_model_engine *e);
/* Writes their numbers to rows[n_wants]. */
void mx_logits_list(const struct mx_model_engine *e, uint32_t *rows);
/* Points e->hidden at their hidden states; `rows` as listed, in the device's memory. */
mx_status mx_logits_gather(struct mx_model_engine *e, const uint32_t *rows);

/* Draws tokens and computes log-probabilities, and waits for both. Fills results but the status of
 * items whose numbers are sound. Adds the nanoseconds to *times. */
mx_status mx_logits_run(struct mx_model_engine *e, struct mx_step_result *results,
                        struct mx_step_times *times);

/* Whether the tokens can be drawn while the host goes on: all wanted rows are sampled, none is
 * reported. */
bool mx_logits_simple(const struct mx_model_engine *e);
/* Then: has them drawn; and takes them, waiting. */
mx_status mx_logits_launch(struct mx_model_engine *e);
mx_status mx_logits_take(struct mx_model_engine *e, struct mx_step_result *results);
/* The parts of launch. Tells the device how to draw n >= n_wants rows, greedily where none is
 * wanted; and logits of x[n, width] to scratch.logits. */
mx_status mx_logits_describe(struct mx_model_engine *e, uint32_t n);
mx_status mx_logits_make(struct mx_model_engine *e, const void *x, size_t n);

/* ---- launch.c: devices that run behind the host ---- */

/* Records the decode steps, if the device records. Once, when the rest is there. */
mx_status mx_launch_prepare(struct mx_model_engine *e, struct mx_err *err);
void mx_launch_forget(struct mx_model_engine *e);

/* Asks the device for the whole step of core.items, as far as the host need not see anything in
 * between. */
mx_status mx_launch_step(struct mx_model_engine *e);

#endif
