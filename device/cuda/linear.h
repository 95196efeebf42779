/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of activations with a weight matrix, y = W x: the kernels behind linear, and when each
 * is used.
 *
 *   few    1 .. MX_CUDA_FEW rows: limited by the reading of W, which it streams
 *   exact  more rows, on a deterministic device: bit for bit what `few` gives
 *   many   more rows otherwise: cuBLASLt
 *   any    whatever the others cannot take: odd widths, addresses that are not aligned
 *
 * The order of a bf16 product on a deterministic device, which `few` and `exact` share: W's columns
 * are cut into blocks of MX_LINEAR_BLOCK; lane l of MX_LINEAR_LANES takes the blocks l, l + 8,
 * l + 16 ... in that order into one accumulator of mma.m16n8k16 (A = W, B = x); then the lanes'
 * sums are added in order, then the bias, then what y held. It depends on W's columns only.
 */
#ifndef MX_DEVICE_CUDA_LINEAR_H
#define MX_DEVICE_CUDA_LINEAR_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MX_LINEAR_BLOCK 64 /* columns */
#define MX_LINEAR_LANES 8
#define MX_CUDA_FEW     16 /* rows from which on cuBLASLt is faster */
#define MX_CUDA_FEW_MAX 32 /* most rows that `few` takes in bf16; f32 takes MX_CUDA_FEW */

struct mx_cuda_product {
	const void *w;     /* [rows, cols], row-major */
	const void *x;     /* [n, ldx], of W's type */
	const float *bias; /* [rows], or NULL */
	void *y;           /* [n, ldy]: columns 0 .. rows-1 are written */
	size_t ldx, ldy;   /* elements */
	uint32_t rows, cols, n;
	bool accumulate; /* y += W x + bias */
	bool bf16;       /* type of W and x; otherwise f32 */
	bool bf16_out;   /* type of y */
};

/* All return cudaSuccess or why the launch failed. setup: once, with the device current. */
cudaError_t mx_cuda_linear_few_setup(void);
cudaError_t mx_cuda_linear_exact_setup(void);

/* cols and ldx multiples of 16 bytes, w and x aligned to 16 bytes; n as above. */
cudaError_t mx_cuda_linear_few(const struct mx_cuda_product *p, int sms, cudaStream_t stream);

/* bf16; cols, ldx, w and x as `few`; any n. */
cudaError_t mx_cuda_linear_exact(const struct mx_cuda_product *p, cudaStream_t stream);

/* Anything. The order of its sums depends on cols only, and is another than that of the others. */
cudaError_t mx_cuda_linear_any(const struct mx_cuda_product *p, cudaStream_t stream);

/* y = bias, or y += bias with accumulate: before a product that adds to y. */
cudaError_t mx_cuda_linear_bias(const struct mx_cuda_product *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
