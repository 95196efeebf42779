/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 17 to 128 rows with quantised weights, limited by reading W (linear_quant_stream.cu).
 */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_STREAM_H
#define MX_DEVICE_CUDA_LINEAR_QUANT_STREAM_H

#include <stdbool.h>

#include "device/cuda/linear_quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX_CUDA_QUANT_STREAM 128 /* most rows of x */

/* Called once, with the device current. Returns cudaSuccess or the error. */
cudaError_t mx_cuda_quant_stream_setup(void);

/* True if there are products of the form. */
bool mx_cuda_quant_stream_can(const struct mx_cuda_quant *q);

/* Returns the bytes of `image` below: n rows of x, with all that rounds n and cols up. */
size_t mx_cuda_quant_stream_bytes(uint32_t n, uint32_t cols);

/* The product, on compute capability 9.0. Requires bf16 activations, x aligned to 16 bytes, ldx a
 * multiple of 8, 1 <= n <= MX_CUDA_QUANT_STREAM and a form for which `can` is true. `image`:
 * scratch memory of the device, aligned to 16 bytes. The order of sums depends on the number of W's
 * rows and on `sms`, the device's multiprocessors. Returns cudaSuccess or the error of the launch.
 */
cudaError_t mx_cuda_quant_stream(const struct mx_cuda_quant_product *p, void *image, int sms,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
