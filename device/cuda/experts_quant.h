/* SPDX-License-Identifier: Apache-2.0 */
/* Products of experts whose matrices are packed; experts.h has the chain of kernels around them. */
#ifndef MX_DEVICE_CUDA_EXPERTS_QUANT_H
#define MX_DEVICE_CUDA_EXPERTS_QUANT_H

#include "device/cuda/experts.h"
#include "device/cuda/linear_quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called once each, with the device current. room: most shared memory of a thread block, bytes. */
cudaError_t mx_cuda_experts_quant_few_setup(size_t room);
cudaError_t mx_cuda_experts_quant_many_setup(void);

/* up and down of bf16 rows, by matrices of the forms `up` (gate, too) and `down`. Both return
 * cudaSuccess or the error of the launch; both require m.cols and m.width to be multiples of 8, and
 * addresses of 16 bytes.
 *
 *   few   tile is 8 or 16; compute capability 9.0 and up. The order of a link's sums depends on the
 *         number of columns only
 *   many  tile is 32, 64 or 128; compute capability 9.0 only. Another order, which does not depend
 *         on the tile either; what has smaller groups than 128 columns or minima is rounded to
 *         bf16 after its scale */
cudaError_t mx_cuda_experts_quant_few(const struct mx_cuda_experts *p,
                                      const struct mx_cuda_quant *up,
                                      const struct mx_cuda_quant *down, int sms, size_t room,
                                      cudaStream_t stream);
cudaError_t mx_cuda_experts_quant_many(const struct mx_cuda_experts *p,
                                       const struct mx_cuda_quant *up,
                                       const struct mx_cuda_quant *down, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
