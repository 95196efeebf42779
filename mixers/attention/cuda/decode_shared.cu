/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of decode.cu for ranks that share pages. */
#define ATTN_SHARED
#include "mixers/attention/cuda/decode.cu"
