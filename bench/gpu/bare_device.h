/* SPDX-License-Identifier: Apache-2.0 */
/* GPU 0 as a device whose products do nothing: for benchmarks of what a mixer computes beside them,
 * on outputs of products that are random numbers. Whatever fails ends the program. */
#ifndef MX_BENCH_GPU_BARE_DEVICE_H
#define MX_BENCH_GPU_BARE_DEVICE_H

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "mixers/mixer.h"

/* Ends the program with a line unless the call returns cudaSuccess. */
#define CUDA(call)                                                                                 \
	do {                                                                                           \
		cudaError_t error_ = (call);                                                               \
		if (error_ != cudaSuccess) {                                                               \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));                        \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

/* Opens the device, of static memory, with a stream of its own; prints the GPU's name. Activations
 * are bf16; of the operators there are linear, alloc, release, load, wait and parallel. */
struct mx_cuda_base *bare_device_open(void);

/* Loads FOLDER/MIXER-cuda.so, which stays. */
const struct mx_mixer_ops *bare_device_module(const char *folder, const char *mixer);

#endif
