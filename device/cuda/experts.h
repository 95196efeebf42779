/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts on the device. A call is a chain of kernels whose grids depend on numbers
 * that the host knows, so that a step can be recorded:
 *
 *   route    each row's experts, in ascending order, with their weights
 *   group    the links (row, expert) in order of expert, those of the rank's experts divided into
 *            tiles of one expert each
 *   up       product[link] = act(gate x) * up x, tile by tile
 *   down     out[link] = down product
 *   combine  y = (share) y + the sum over the row's links with such experts of weight * out
 *
 * There are as many blocks for tiles as the worst case has tiles; those without one end at once.
 * The order of a link's sums depends on neither tile nor place in it.
 *
 * Three kinds of kernels multiply: `few` for few links an expert, limited by reading matrices, in
 * the order of sums of linear.h; `many` for more, in another order, so not on deterministic
 * devices; `any` for every width and f32, one warp a row of a matrix. Packed matrices have kernels
 * of their own (experts_quant.h).
 */
#ifndef MX_DEVICE_CUDA_EXPERTS_H
#define MX_DEVICE_CUDA_EXPERTS_H

#include <cuda_runtime_api.h>

#include "device/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Links of one expert that are computed together. */
struct mx_expert_tile {
	struct mx_expert_weights w;
	uint32_t first, n; /* in `order` */
};

/* Arguments of all kernels. K = m.rule.chosen. */
struct mx_cuda_experts {
	struct mx_experts m;
	const float *logits; /* [n, m.n] */
	const void *x;       /* [n, m.cols] */
	void *y;             /* [n, m.cols] */
	const float *share;  /* [n] or NULL */
	bool add;
	uint32_t n;         /* rows */
	uint32_t tile;      /* most links of a tile */
	uint32_t max_tiles; /* of any routing */

	/* Workspace. Link l is of row l / K. */
	struct mx_expert_link *choices; /* [n, K]; behind group, index UINT32_MAX = of another rank */
	uint32_t *order;                /* [n K] links in order of expert */
	struct mx_expert_tile *tiles;   /* [max_tiles] of which n_tiles are there */
	uint32_t *n_tiles;
	void *product; /* [n K, m.width], in the order of `order` */
	void *out;     /* [n K, m.cols], in the order of links */
};

/* Called once each, with the device current. room: most shared memory of a thread block, bytes. */
cudaError_t mx_cuda_experts_few_setup(size_t room);
cudaError_t mx_cuda_experts_many_setup(void);

/* All return cudaSuccess or the error of the launch; bf16: the type of x, y and the matrices, else
 * f32. */
cudaError_t mx_cuda_experts_route(const struct mx_cuda_experts *p, cudaStream_t stream);
cudaError_t mx_cuda_experts_combine(const struct mx_cuda_experts *p, bool bf16,
                                    cudaStream_t stream);

/* up and down. few and many: bf16; require m.cols and m.width to be multiples of 8, and addresses
 * of 16 bytes; tile is 8, 16 or 32, and 64 or 128. any: every tile. room: as at setup. */
cudaError_t mx_cuda_experts_few(const struct mx_cuda_experts *p, int sms, size_t room,
                                cudaStream_t stream);
cudaError_t mx_cuda_experts_many(const struct mx_cuda_experts *p, cudaStream_t stream);
cudaError_t mx_cuda_experts_any(const struct mx_cuda_experts *p, bool bf16, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
