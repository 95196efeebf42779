/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of activations with a weight matrix, y = W x: the kernels behind linear, and when each
 * is used.
 *
 *   few    1 .. MX_CUDA_FEW rows: limited by reading W, which it streams
 *   exact  more rows, on a deterministic device: bit-equal to `few`
 *   many   more rows otherwise: cuBLASLt
 *   any    everything that the others do not support: odd widths, unaligned addresses
 *
 * The order of a bf16 product on a deterministic device, which `few` and `exact` share: W's columns
 * are divided into blocks of MX_LINEAR_BLOCK. Lane l of MX_LINEAR_LANES multiplies the blocks l,
 * l + 8, l + 16 ... in that order into one accumulator of mma.m16n8k16 (A = W, B = x). Then the
 * lanes' sums are added in order, then the bias, then the old y. The order depends only on the
 * number of W's columns.
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
#define MX_CUDA_FEW     16 /* with more rows cuBLASLt is faster */
#define MX_CUDA_FEW_MAX 32 /* most rows of `few` in bf16; in f32 MX_CUDA_FEW */

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

/* All return cudaSuccess or the error of the launch. setup: called once, with the device current.
 */
cudaError_t mx_cuda_linear_few_setup(void);
cudaError_t mx_cuda_linear_exact_setup(void);

/* Requires cols and ldx to be multiples of 16 bytes, w and x aligned to 16 bytes, and n as above.
 */
cudaError_t mx_cuda_linear_few(const struct mx_cuda_product *p, int sms, cudaStream_t stream);

/* bf16 only. Requires cols, ldx, w and x as for `few`; any n. */
cudaError_t mx_cuda_linear_exact(const struct mx_cuda_product *p, cudaStream_t stream);

/* Supports every product. The order of its sums depends on cols only, but differs from the others'.
 */
cudaError_t mx_cuda_linear_any(const struct mx_cuda_product *p, cudaStream_t stream);

/* y = bias, or y += bias with accumulate; called before a product that adds to y. */
cudaError_t mx_cuda_linear_bias(const struct mx_cuda_product *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
