/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the mamba1 mixer on CUDA devices, and their arguments. For C and CUDA C++. "act"
 * is the device's activation type, bf16 or f32.
 */
#ifndef MX_MIXERS_MAMBA1_CUDA_MAMBA1_KERNELS_H
#define MX_MIXERS_MAMBA1_CUDA_MAMBA1_KERNELS_H

#include <cuda_runtime_api.h>

#include "mixers/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MAMBA1_UNIT  32 /* channels of a unit */
#define MAMBA1_LANES 4  /* threads of a channel */

/*
 * A slot: units of MAMBA1_UNIT channels, each with state of its own, so that no two thread blocks
 * share what one of them writes; then the convolution's ring of raw inputs. Offsets of a unit, in
 * bytes from its beginning:
 *     0      u32 base: tokens that h includes, all but the last
 *     64     h f32 [padded / 16][channel][lane][4]; state n of a channel is element n % 4 of lane
 *            n / 4 % 4, in part n / 16
 *     steps  [cap][channel] of (dt, dt x) of the tokens since, that of position p at p % cap
 *     b      f32 [cap][padded] their B
 */
struct mamba1_unit {
	uint32_t padded; /* states, a multiple of 16 */
	uint32_t cap;    /* tokens of the rings: one, and a draft's */
	size_t steps, b, bytes;
};

struct mamba1_args {
	const struct mx_device_span *spans;
	const uint32_t *row_span;
	uint32_t n_rows, n_spans;
	uint32_t channels, states, taps, rank;
	unsigned char *slot_base;
	size_t slot_stride;
	struct mamba1_unit unit;
	size_t conv_at;    /* of the convolution's ring in a slot: act [conv_cap][channels] */
	uint32_t conv_cap; /* tokens of that ring: taps, and a draft's */
	const void *xz;    /* act [n_rows, 2 channels]: raw x, z */
	/* [taps, channels], the token itself first, then the one before it ..; [channels] or NULL */
	const float *conv, *conv_bias;
	void *x;               /* act [n_rows, channels]: x, then the outputs in its place */
	const float *selected; /* [n_rows, rank + 2 states]: dt, B and C as projected */
	bool norm;
	float norm_eps;
	const float *norm_dt, *norm_b, *norm_c; /* weights of the norms; NULL = 1 */
	void *low;                              /* act [n_rows, rank] */
	float *bc;                              /* [n_rows, 2 padded]: B, C, padded with zeros */
	const float *dt;                        /* [n_rows, channels], before its softplus */
	const float *a;                         /* -exp(A_log) log2(e), in the order of h */
	const float *skip;                      /* [channels] */
};

/* Fills the layout of a unit. */
void mamba1_cuda_unit(uint32_t states, uint32_t max_draft, struct mamba1_unit *out);

/* The launches of a step, in this order; the products of W_x between the first two and of W_dt
 * between the last two. act: MX_BF16 or MX_F32.
 * conv: x from raw x. select: `low` and `bc` from `selected`. scan: outputs from everything, and
 * slots; `one` and `more` tell whether there are spans of one token that stays, and others. */
cudaError_t mamba1_cuda_conv(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a);
cudaError_t mamba1_cuda_select(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a);
cudaError_t mamba1_cuda_scan(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a,
                             bool one, bool more);

#ifdef __cplusplus
}
#endif

#endif
