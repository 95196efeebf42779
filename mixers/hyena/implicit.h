/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The implicit filter of Hyena (Poli et al. 2023, arXiv 2302.10866): a small
 * network of the position alone,
 *
 *     h[t] = W_n sin(f W_n-1 .. sin(f (W_0 z[t] + b_0)) ..) * (exp(-t' |delta|) + shift)
 *
 * with the checkpoint's z and t' = t / (len - 1). It is computed once, when a layer
 * is created. The arguments of the sines reach hundreds, and each sine amplifies
 * the errors of the one before, so everything up to the last product is in double
 * precision.
 */
#ifndef MX_MIXERS_HYENA_IMPLICIT_H
#define MX_MIXERS_HYENA_IMPLICIT_H

#include "device/device.h"

#define IMPLICIT_MAX_ORDER 1024
#define IMPLICIT_MAX_INNER 8
#define IMPLICIT_LINEARS   (IMPLICIT_MAX_INNER + 2)

/* The network. Its tensors are f32, in host memory, laid out as in the checkpoint. */
struct implicit_filter {
	uint32_t len;                          /* rows of z: lags of the whole filter */
	uint32_t emb_dim, order, inner, width; /* emb_dim, order <= IMPLICIT_MAX_ORDER */
	const float *z;                        /* [len, emb_dim] */
	const float *t;                        /* [len]; NULL: 0 .. 1 in equal steps */
	const float *freq;                     /* [order] */
	const float *weight[IMPLICIT_LINEARS]; /* [order, emb_dim], inner x [order, order], [width,
	                                        * order] */
	const float *bias[IMPLICIT_LINEARS];   /* [order]; none of the last */
	const float *deltas;                   /* [width]; NULL: no modulation */
	float shift;
};

/* Computes the first n <= len lags, h[n, width], on the device's threads. MX_E_NOMEM. */
mx_status implicit_filter(const struct implicit_filter *f, struct mx_device *d, uint32_t n,
                          float *h);

#endif
