/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of long spans in stretches of 64 tokens, bf16, compute capability 9.0: its sums
 * have another order than decoding's, so a deterministic device takes recur_cuda_prompt. What it
 * leaves in a slot is of the same form.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_STRETCH_H
#define MX_MIXERS_RECURRENCE_CUDA_STRETCH_H

#include "mixers/recurrence/cuda/recur_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns true if the kernels are built for compute capability `sm` and these keys. */
bool recur_cuda_stretch_can(int sm, uint32_t kpad);

/* Opts the kernels into their shared memory; once for a size of keys and kind of factors. */
cudaError_t recur_cuda_stretch_prepare(uint32_t kpad, bool vector);

/* Computes the long spans; `records` has a->n_notes * heads of recur_cuda_note_bytes. */
cudaError_t recur_cuda_stretch(cudaStream_t stream, const struct recur_core *a);
size_t recur_cuda_note_bytes(uint32_t kpad, bool vector, bool delta);

/* Its first part: in stretch_prepare.cu; with vectors of factors in stretch_vector.cu. beside: 0,
 * or the thread blocks, one a multiprocessor, that leave the others to the next kernel: it may
 * begin at once and waits for each note's `done`. */
cudaError_t recur_cuda_stretch_scores(cudaStream_t stream, const struct recur_core *a,
                                      uint32_t beside);
cudaError_t recur_cuda_stretch_scores_prepare(uint32_t kpad);
cudaError_t recur_cuda_stretch_vectors(cudaStream_t stream, const struct recur_core *a);
cudaError_t recur_cuda_stretch_vectors_prepare(uint32_t kpad);

/* Without the delta rule, of a span that is cut into segments: what all pieces but those of the
 * last segment add to S, to a->pieces. maps: struct tensors of stretch_copy.cuh; pieces: of a
 * segment. */
cudaError_t recur_cuda_stretch_pieces(cudaStream_t stream, const struct recur_core *a,
                                      const void *maps, uint32_t segments, uint32_t pieces);
cudaError_t recur_cuda_stretch_pieces_prepare(uint32_t kpad, bool vector);

#ifdef __cplusplus
}
#endif

#endif
