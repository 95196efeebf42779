/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the rwkv mixer on CUDA devices, and their arguments. For C and CUDA C++. "act" is
 * the device's activation type, bf16 or f32.
 */
#ifndef MX_MIXERS_RWKV_CUDA_RWKV_KERNELS_H
#define MX_MIXERS_RWKV_CUDA_RWKV_KERNELS_H

#include <cuda_runtime_api.h>

#include "mixers/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RWKV_SHIFTED 6   /* inputs that time mixing makes of one */
#define RWKV_MAX_DIM 128 /* most elements of a head */
#define RWKV_LONG    32  /* tokens of a span from which on it is long */
#define RWKV_MADE    6   /* streams that the recurrence takes */

/* What all kernels of a step take. */
struct rwkv_step {
	const struct mx_device_span *spans;
	const uint32_t *row_span;
	uint32_t n_rows, n_spans;
	unsigned char *slot_base;
	size_t slot_stride;
};

/* The token shift: y[i] = x + (x of the token before - x) mu[i]. Its ring of inputs, act
 * [cap][width], that of position p at p % cap, is the first part of a slot. */
struct rwkv_shift_args {
	struct rwkv_step step;
	uint32_t width, cap;
	uint32_t n; /* outputs: RWKV_SHIFTED or 1 */
	const float *mu[RWKV_SHIFTED];
	const void *x;         /* act [n_rows, width] */
	void *y[RWKV_SHIFTED]; /* act [n_rows, width] each */
};

/* The first products of low ranks: tanh of columns 0 .. tanh - 1, sigmoid of those from
 * `sigmoid` to `end` - 1; in place. */
struct rwkv_low_args {
	uint32_t n_rows, ld;
	uint32_t tanh, sigmoid, end;
	void *low; /* act [n_rows, ld] */
};

/*
 * The layout of a head's state, a unit. Offsets in bytes from its beginning:
 *     0     u32 base: tokens that S includes, all but the last
 *     64    S f32 [2][padded / 32][padded / 2 pairs of columns][8 lanes][4]; row i of a column is
 *           element i % 4 of lane i / 4 % 8, in part i / 32
 *     ring  f32 [cap][5][padded]: w, b, k, v and p of the tokens since, that of position p at
 *           p % cap
 */
struct rwkv_unit {
	uint32_t padded; /* elements of a head: 64 or RWKV_MAX_DIM */
	uint32_t cap;    /* tokens of the ring: one, and a draft's */
	size_t ring, bytes;
};

/* Time mixing's recurrence, with what comes before and after it in a head. */
struct rwkv_time_args {
	struct rwkv_step step;
	uint32_t heads, dim;
	struct rwkv_unit unit;
	size_t units_at; /* of the units in a slot */
	void *r;         /* act [n_rows, heads * dim]; outputs take its place */
	const void *k, *v, *g;
	const void *v_first, *v_share; /* act, likewise: mixed into v; NULL = not */
	float *w, *a;                  /* likewise, before their functions */
	const float *k_k, *k_a, *r_k;  /* [heads * dim] */
	const float *norm, *norm_bias; /* [heads * dim] */
	float norm_eps, l2_eps;
	/* Of long spans, f32 [n_rows, heads * dim] each, the first two in the place of w and a; and
	 * [n_rows, heads]. */
	float *made[RWKV_MADE], *y;
	float *bonus;
};

/* Fills the layout of a unit for heads of `dim` elements, at most RWKV_MAX_DIM. */
void rwkv_cuda_unit(uint32_t dim, uint32_t max_draft, struct rwkv_unit *out);

/* Launches. act: MX_BF16 or MX_F32. time: of short spans, and of all if `dim` is not `padded`;
 * `one` and `more` tell whether there are some of one token that stays, and others. prompt: of long
 * ones. */
cudaError_t rwkv_cuda_shift(cudaStream_t stream, enum mx_dtype act,
                            const struct rwkv_shift_args *a);
cudaError_t rwkv_cuda_low(cudaStream_t stream, enum mx_dtype act, const struct rwkv_low_args *a);
cudaError_t rwkv_cuda_time(cudaStream_t stream, enum mx_dtype act, const struct rwkv_time_args *a,
                           bool one, bool more);
cudaError_t rwkv_cuda_prompt(cudaStream_t stream, enum mx_dtype act,
                             const struct rwkv_time_args *a);

#ifdef __cplusplus
}
#endif

#endif
