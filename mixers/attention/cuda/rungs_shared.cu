/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of rungs.cu for ranks that share pages. */
#define ATTN_SHARED
#include "mixers/attention/cuda/rungs.cu"
