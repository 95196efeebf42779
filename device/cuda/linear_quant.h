/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with quantised weights, whose panels have their codes in fragments
 * (device/quant_pack.h). Which kernel computes a product depends on its rows:
 *
 * - few: up to MX_CUDA_QUANT_FEW rows, limited by reading W, which it streams. Codes become bf16,
 *   exactly; the sums of a group are f32, multiplied by its scale.
 * - one: one row with codes of 4 bits, on compute capability 9.0 and up, where bits may depend on
 * the number of rows. As few, with fewer instructions for scales and zeros.
 * - many: up to 64 rows (128 of large matrices in fp8), on compute capability 9.0. As few, by
 *   tiles.
 * - fp8: more rows, where W is in fp8 with one scale a row, on compute capability 9.0. The rows of
 *   x are rounded to fp8, and cuBLASLt multiplies.
 * - expand: more rows otherwise. W is expanded in scratch to the activations' type for a product of
 *   linear.h.
 *
 * The order of the sums of `few` depends on the number of W's columns only: lane l of
 * MX_LINEAR_LANES sums the blocks l, l + 8, l + 16 ... of MX_QUANT_FRAGMENT columns, then the
 * lanes' sums are added in order.
 */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_H
#define MX_DEVICE_CUDA_LINEAR_QUANT_H

#include "device/cuda/linear.h"
#include "device/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX_CUDA_QUANT_FEW  32
#define MX_CUDA_QUANT_FP8  256 /* more rows than these are rounded to fp8 */
#define MX_CUDA_QUANT_TILE 128 /* rows of W of a CTA of `many` */

/* The form of a matrix: struct mx_quant, with the places of a block's parts. */
struct mx_cuda_quant {
	uint32_t super_bytes;
	uint32_t second, minima, second_minima, zeros, codes; /* bytes from a block's begin */
	uint32_t group_shift;                                 /* columns of a group, log2 */
	uint32_t center; /* MX_CODES_4 without zeros: the code that stands for 0 */
	enum mx_quant_codes codes_as;
	enum mx_quant_scales scales;
	enum mx_quant_offset offset;
};

struct mx_cuda_quant_product {
	struct mx_cuda_product p; /* w: panels */
	struct mx_cuda_quant q;
};

/* Returns the form of matrices that mx_quant_choose_fragments has packed. */
struct mx_cuda_quant mx_cuda_quant_form(const struct mx_quant *q);

/* All return cudaSuccess or the error of the launch. setup: called once, with the device current.
 * room: most shared memory of a thread block, in bytes, as in linear.h. */
cudaError_t mx_cuda_quant_few_setup(size_t room);

/* Requires bf16 activations, x aligned to 16 bytes, ldx a multiple of 8, and n as above. ask: a
 * counter of mx_cuda_linear_counter. */
cudaError_t mx_cuda_quant_few(const struct mx_cuda_quant_product *p, uint32_t *ask, int sms,
                              size_t room, cudaStream_t stream);

/* The same of one row, on compute capability 9.0 and up, with another order of sums: it depends on
 * the number of W's columns only. can: true if there are kernels of the form. */
bool mx_cuda_quant_one_can(const struct mx_cuda_quant *q);
cudaError_t mx_cuda_quant_one_setup(void);
cudaError_t mx_cuda_quant_one(const struct mx_cuda_quant_product *p, uint32_t *ask, int sms,
                              cudaStream_t stream);

/* The same, of any n, on compute capability 9.0. The order of sums depends on n. */
cudaError_t mx_cuda_quant_many_setup(void);
cudaError_t mx_cuda_quant_many(const struct mx_cuda_quant_product *p, int sms, cudaStream_t stream);

/* Writes rows first .. first + n - 1 of a matrix [rows, cols] to y [n, cols], as bf16 or f32;
 * `first` is a multiple of MX_QUANT_ROWS. */
cudaError_t mx_cuda_quant_expand(const struct mx_cuda_quant *q, const void *panels, uint32_t cols,
                                 uint32_t first, uint32_t n, bool bf16, void *y,
                                 cudaStream_t stream);

/* The same of MX_CODES_E4M3 with a scale a row: codes as they are, and their scales [n]. */
cudaError_t mx_cuda_quant_e4m3(const struct mx_cuda_quant *q, const void *panels, uint32_t cols,
                               uint32_t first, uint32_t n, void *y, float *scales,
                               cudaStream_t stream);

/* Rounds rows of x [n, ldx] in bf16 to e4m3 [n, cols], with a scale each [n]; x is aligned to 16
 * bytes, ldx and cols are multiples of 8. */
cudaError_t mx_cuda_quant_round(const void *x, size_t ldx, uint32_t cols, uint32_t n, void *y,
                                float *scales, cudaStream_t stream);

/* y[i] = row ids[i] of a table [rows, cols]; NaN if there is no such row. */
cudaError_t mx_cuda_quant_rows(const struct mx_cuda_quant *q, const void *panels, uint32_t rows,
                               uint32_t cols, const int32_t *ids, size_t n, bool bf16, void *y,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
