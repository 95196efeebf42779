/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modal filters on CUDA devices. The filter's part of a slot, in numbers of 4 bytes:
 *
 *     [channels]                  position up to which the states include all tokens
 *     [size][2][channels]         states, real and imaginary parts
 *     [max_draft + 1][channels]   inputs since, by position
 *
 * A snapshot has the same with one input, that of the token before its position.
 */
#ifndef MX_MIXERS_HYENA_CUDA_MODAL_CUDA_H
#define MX_MIXERS_HYENA_CUDA_MODAL_CUDA_H

#include "mixers/hyena/cuda/lc_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lcg_modal {
	uint32_t size, rows; /* states of a channel; inputs that a slot has room for */
	uint32_t dim;        /* channels of a head: rows of the projection are x0, x1, v of each head */
	const float *skip, *poles, *residues; /* [channels], [channels, size, 2] twice */
};

static inline size_t lcg_modal_bytes(uint32_t channels, uint32_t size, uint32_t rows)
{
	return (1 + 2 * (size_t)size + rows) * channels * 4;
}

/* Computes the rows of a step. z, gates: [n_rows, channels] of workspace. */
cudaError_t lcg_modal_rows(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_layer *layer, const struct lcg_modal *m,
                           const struct mx_step *step, const struct lcg_rows *rows, float *z,
                           float *gates);
/* The filter's part of a snapshot: of a slot after `pos` tokens; to a slot. */
cudaError_t lcg_modal_save(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_modal *m, unsigned char *slot, uint32_t pos, void *out);
cudaError_t lcg_modal_load(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_modal *m, unsigned char *slot, const void *in);

#ifdef __cplusplus
}
#endif

#endif
