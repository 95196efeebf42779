/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast a GPU reads its memory: the roof of its benchmarks. */
#ifndef MX_BENCH_GPU_READ_H
#define MX_BENCH_GPU_READ_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `bytes` (a multiple of 16) from p and discards them. Writes the 4 bytes at `out` only for
 * one value of the sum in 2^32. */
cudaError_t read_all(const void *p, size_t bytes, unsigned *out, int sms, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
