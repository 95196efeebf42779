/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of gated short convolutions on CUDA devices. For C and CUDA C++. */
#ifndef MX_MIXERS_SHORTCONV_CUDA_CONV_H
#define MX_MIXERS_SHORTCONV_CUDA_CONV_H

#include <cuda_runtime_api.h>

#include "mixers/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shortconv_args {
	const struct mx_device_span *spans;
	const uint32_t *row_span;
	uint32_t n_rows, longest; /* longest: tokens of the longest span */
	uint32_t width, taps;
	/* The slot: a ring of the products B x, f32 [cap][width], that of position p at p % cap. */
	unsigned char *slot_base;
	size_t slot_stride;
	uint32_t cap;
	const void *in;             /* [n_rows, 3 width] activations: B, C, x */
	const float *weight, *bias; /* [width, taps]; [width] or NULL */
	void *out;                  /* [n_rows, width] activations: C conv(B x) */
};

/* Computes the outputs of a step and keeps in the slots what the next one needs. act: MX_BF16 or
 * MX_F32. */
cudaError_t shortconv_cuda(cudaStream_t stream, enum mx_dtype act, const struct shortconv_args *a);

#ifdef __cplusplus
}
#endif

#endif
