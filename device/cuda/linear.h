/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of activations with a weight matrix, y = W x: the kernels behind linear, and when each
 * is used.
 *
 *   few    1 .. MX_CUDA_FEW rows: limited by reading W, which it streams; up to MX_CUDA_FEW_MAX
 *          with MX_CUDA_CHAIN_ROWS rows of W or fewer
 *   chain  bf16 on compute capability 9.0: MX_CUDA_CHAIN_MIN .. MX_CUDA_CHAIN_MAX rows,
 *          on a deterministic device any number
 *   exact  more rows on a deterministic device without `chain`: bit-equal to `few`
 *   many   more rows otherwise: cuBLASLt
 *   any    what the others do not support: odd widths, unaligned addresses
 *
 * The order of a bf16 product on a deterministic device depends only on the number of W's columns.
 * `chain` has one chain of sums over the columns (linear_chain.cu). `few` and `exact` divide W's
 * columns into blocks of MX_LINEAR_BLOCK. Lane l of MX_LINEAR_LANES multiplies the blocks l, l + 8,
 * l + 16 ... in that order into one accumulator of mma.m16n8k16 (A = W, B = x). Then the lanes'
 * sums are added in order. The bias comes next, then the old y.
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

#define MX_LINEAR_BLOCK    64 /* columns */
#define MX_LINEAR_LANES    8
#define MX_CUDA_FEW        16  /* with more rows cuBLASLt is faster */
#define MX_CUDA_FEW_MAX    32  /* most rows of `few` in bf16; in f32 MX_CUDA_FEW */
#define MX_CUDA_PAIR       8   /* most rows of `few` for products that are gated or have a norm */
#define MX_CUDA_CHAIN_MIN  5   /* with fewer rows `few` is faster */
#define MX_CUDA_CHAIN_MAX  32  /* with more rows cuBLASLt is as fast */
#define MX_CUDA_CHAIN_ROWS 256 /* with no more rows of W `few` is faster than both */
/* Bytes of shared memory of a thread block of the products of few rows. Beside a wide one, of which
 * no two fit on a multiprocessor of compute capability 9.0, one that is not wide fits. So where
 * wide products and others alternate, each multiprocessor has one thread block of each kernel, and
 * the next kernel's can fill its ring. Without wide ones, two of a kernel came to lie on one
 * multiprocessor, and took longer than those that were alone. */
#define MX_CUDA_WIDE   (115 * 1024)
#define MX_CUDA_NARROW (110 * 1024)

#define MX_CUDA_EXPANDED ((size_t)256 << 20) /* bytes of scratch for weights that are expanded */

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
	bool gated; /* w is [2 rows, cols], gate and then up: y = silu(gate x) * up x, of which both
	               products are rounded to bf16 first; bf16, no bias, nothing added to y */
	const float *norm; /* [cols] x goes through rmsnorm first, rounded to bf16; NULL = no norm */
	float norm_eps;
	bool wide; /* few rows: see MX_CUDA_WIDE */
	/* Of `few` in bf16, not gated: a second product of the same x in the same kernel, in f32 and
	 * without a norm of its own. */
	struct mx_cuda_second {
		const void *w;
		const float *bias;
		float *y;
		size_t ldy;
		uint32_t rows; /* 0 = none */
	} second;
};

/* All return cudaSuccess or the error of the launch. setup: called once, with the device current.
 * room: most shared memory of a thread block, in bytes, the same at setup and later (227 KiB on
 * compute capability 9.0, 163 on 8.0, 99 on 8.6, 8.9 and 12.0). */
cudaError_t mx_cuda_linear_few_setup(size_t room);
cudaError_t mx_cuda_linear_exact_setup(size_t room);
cudaError_t mx_cuda_linear_chain_setup(void);

/* Requires cols and ldx to be multiples of 16 bytes, w and x aligned to 16 bytes, and n as above.
 * Only `few`, mx_cuda_quant_few and mx_cuda_quant_one take a norm, and gated products besides
 * `chain`: in bf16, of n <= MX_CUDA_PAIR rows. A gated one needs rows that are a multiple of 16, a
 * norm x that fits (can_norm). Bit-equal to the operators rmsnorm, linear and act_mul. */
bool mx_cuda_linear_few_can_norm(const struct mx_cuda_product *p, size_t room);
cudaError_t mx_cuda_linear_few(const struct mx_cuda_product *p, int sms, size_t room,
                               cudaStream_t stream);

/* bf16 only. Requires cols, ldx, w and x as for `few`; any n. */
cudaError_t mx_cuda_linear_exact(const struct mx_cuda_product *p, size_t room, cudaStream_t stream);

/* can: true if there are kernels for compute capability `sm`, 10 times the major version and the
 * minor one. chain: bf16 only; requires cols, ldx, w and x as for `few`; any n. If gated, rows and
 * ldy must be multiples of 8 and y aligned to 16 bytes. */
bool mx_cuda_linear_chain_can(int sm);
cudaError_t mx_cuda_linear_chain(const struct mx_cuda_product *p, int sms, cudaStream_t stream);

/* Supports every product. The order of its sums depends on cols only, but differs from the others'.
 */
cudaError_t mx_cuda_linear_any(const struct mx_cuda_product *p, cudaStream_t stream);

/* y = bias, or y += bias with accumulate; called before a product that adds to y. */
cudaError_t mx_cuda_linear_bias(const struct mx_cuda_product *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
