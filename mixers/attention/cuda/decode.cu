/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of decode_kernels.cuh where each rank has pages of its own, and what chooses. */
#include "mixers/attention/cuda/decode_kernels.cuh"
