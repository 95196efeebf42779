/* SPDX-License-Identifier: Apache-2.0 */
/* Long convolutions as a decoder without tiles computes them: the peer of bench/gpu/hyena. */
#ifndef MX_BENCH_GPU_LAZY_H
#define MX_BENCH_GPU_LAZY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The next output of each channel of some sequences, from n inputs, a multiple of 128, at most 8
 * sequences: y[sequences, channels] from z[sequences, channels, n] and the lags h[channels, n], in
 * reverse. Channels are those of all layers. */
cudaError_t lazy_step(cudaStream_t stream, const float *z, const float *h, uint32_t sequences,
                      uint32_t channels, uint32_t n, float *y);

#ifdef __cplusplus
}
#endif

#endif
