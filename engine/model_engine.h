/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model engine's parts: an engine (core.h) with a device, a resolved model
 * and one mapping for private weights, slots, pages and scratch.
 *
 * load.c builds it, forward.c runs the layers (experts.c those feed-forwards
 * that are a mixture), logits.c turns hidden states into tokens and
 * log-probabilities, model_engine.c is the step around them.
 */
#ifndef MX_ENGINE_MODEL_ENGINE_H
#define MX_ENGINE_MODEL_ENGINE_H

#include "engine/core.h"
#include "engine/memory.h"
#include "engine/touch.h"

struct mx_model_engine {
	struct mx_core core;
	struct mx_device *device;
	struct mx_model model;
	struct mx_step_limits limits;
	struct mx_scratch scratch;
	unsigned char *map; /* mx_map */
	size_t map_bytes;
	struct mx_toucher toucher;
	unsigned char *slots;     /* [max_sequences, slot_bytes] in the map, as what follows */
	unsigned char *pages;     /* [n_pages, page_bytes] */
	unsigned char *snapshots; /* [n_snapshots], each of a saved slot and a page */
};

extern const struct mx_engine_ops mx_model_engine_ops;
extern const struct mx_state_ops mx_model_state_ops;

/* Destroys instances, device, map and tables; takes a half-built engine. */
void mx_model_engine_destroy(struct mx_engine *e);

/* Runs the layers over the rows of the step; leaves the residual stream in scratch.h. */
mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step);

/* y[rows, width] = the feed-forward of x[rows, width], or += with `add`. x is not y. */
mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m, const float *x,
                     size_t rows, float *y, bool add);

/* scratch.y = the mixture of experts of scratch.x, for rows of them. */
mx_status mx_experts_run(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows);

/* Tells the mixers what stays: all of it. */
mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step);

/* Draws tokens and computes log-probabilities for the items of a step whose rows are in scratch.h.
 * Fills results but the status of items whose numbers are sound. Adds the nanoseconds to *times. */
mx_status mx_logits_run(struct mx_model_engine *e, const struct mx_step_item *items,
                        const struct mx_span *spans, uint32_t n, struct mx_step_result *results,
                        struct mx_step_times *times);

#endif
