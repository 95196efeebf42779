/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU reads from its memory at most. */
#ifndef MX_BENCH_GPU_READ_H
#define MX_BENCH_GPU_READ_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `bytes` (a multiple of 16) from p and throws them away; out is 4 bytes that stay as they
 * are, but for one sum in 2^32. */
cudaError_t read_all(const void *p, size_t bytes, unsigned *out, int sms, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
