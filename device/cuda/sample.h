/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the host's part of sampling (sampler.c) and the kernels
 * (sample.cu, logprobs.cu): the description of a row to draw, and the launchers.
 */
#ifndef MX_DEVICE_CUDA_SAMPLE_H
#define MX_DEVICE_CUDA_SAMPLE_H

#include "device/cuda/impl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest vocabulary: a token id and a count share a word. */
#define MX_CUDA_MAX_VOCAB (1u << 20)

/* NOTHING: the row does not belong to this step, its token is 0. */
enum { MX_DRAW_NOTHING, MX_DRAW_LARGEST, MX_DRAW_RANDOM };

/* One row. Its lists are contiguous in the array of words, from index `first`:
 *   n_bias pairs (token, bits of the f32 to add),
 *   n_banned tokens,
 *   n_counts words token << 12 | occurrences in the output, for those below MX_DRAW_MANY,
 *   n_many pairs (token, occurrences in the output).
 * Tokens are below the vocabulary of the device's limits. */
struct mx_draw_row {
	uint32_t mode;
	float inv_temperature, min_p, top_p;
	uint32_t top_k; /* 0 = off */
	float repetition, presence, frequency;
	double uniform;  /* the random number, in [0, 1) */
	uint32_t serial; /* number of the step, returned with its tokens; always set in row 0 */
	uint32_t first, n_bias, n_banned, n_counts, n_many;
	uint32_t mask; /* the set of tokens that may be drawn is masks[mask - 1]; 0 = all may */
};

#define MX_DRAW_COUNT_BITS 12
#define MX_DRAW_MANY       ((1u << MX_DRAW_COUNT_BITS) - 1)

/* A token is returned as serial << 32 | (uint32_t)token. */

/* The log-probabilities to compute of a row. */
struct mx_logprob_ask {
	int32_t token;
	uint32_t n_top;
};

/* Called once: opts into the kernels' shared memory. */
cudaError_t mx_cuda_draw_setup(struct mx_device *d);
cudaError_t mx_cuda_logprobs_setup(struct mx_device *d);

/* Draws n tokens: row i by rows[i], into tokens[serial % 2 * max_rows + i] (pinned host memory).
 * masks: [][mask_words] sets of tokens. */
cudaError_t mx_cuda_draw_launch(struct mx_device *d, float *logits, size_t ld, size_t n,
                                uint32_t vocab, const struct mx_draw_row *rows,
                                const uint32_t *words, const uint32_t *masks, size_t mask_words,
                                uint64_t *tokens, size_t max_rows);

/* asks[n] and out[n] are pinned host memory. */
cudaError_t mx_cuda_logprobs_launch(struct mx_device *d, const float *logits, size_t ld, size_t n,
                                    uint32_t vocab, const struct mx_logprob_ask *asks,
                                    struct mx_logprob *out);

#ifdef __cplusplus
}
#endif

#endif
