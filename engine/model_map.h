/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a loaded model consists of, for people: its layers in order with the mixers and kernels that
 * were chosen, and the plan of its memory. All of it is constant from loading on, so any thread may
 * ask. The engine must be one of mx_engine_load.
 */
#ifndef MX_ENGINE_MODEL_MAP_H
#define MX_ENGINE_MODEL_MAP_H

#include "engine/load.h"

struct mx_model_map {
	uint32_t n_layers, width, vocab;
	const char *isa;       /* the device's kernels: "avx512", "sm_90" */
	enum mx_dtype weights; /* of the embedding, as it is computed with */
	enum mx_dtype act;     /* of activations */
	unsigned threads;      /* of a CPU */
	bool deterministic;    /* a row's bits depend on that row alone */
	size_t embed_bytes;    /* of the matrix of embeddings */
	size_t head_bytes;     /* of that of the logits; 0 = it is the same one */
	const struct mx_memory_plan *memory;
};
void mx_model_map_get(const struct mx_engine *e, struct mx_model_map *out);

/* A part of a layer: a mixer, or a feed-forward. */
struct mx_model_map_part {
	uint32_t layer;
	enum mx_block_kind kind; /* MX_BLOCK_ASIDE: the feed-forward behind a mixer that stands aside */
	/* MX_BLOCK_MIXER: */
	const char *mixer;         /* the module's name */
	char kernels[192];         /* what the instance says of itself */
	size_t bytes_per_token;    /* in pages */
	size_t bytes_per_sequence; /* in its slot */
	/* The others: */
	uint32_t width; /* intermediate size, of one expert if there are any */
	uint32_t n_experts, n_chosen;
	size_t weight_bytes; /* of its matrices */
};

/* Where an enumeration is; zero at first. */
struct mx_model_map_cursor {
	uint32_t block, part;
};
/* Describes the next part, in the order in which they are computed; false after the last. */
bool mx_model_map_next(const struct mx_engine *e, struct mx_model_map_cursor *at,
                       struct mx_model_map_part *out);

#endif
