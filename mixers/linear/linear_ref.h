/* SPDX-License-Identifier: Apache-2.0 */
/* The equations of linear.h in double precision, token by token, for tests. */
#ifndef MX_MIXERS_LINEAR_REF_H
#define MX_MIXERS_LINEAR_REF_H

#include "mixers/linear/linear.h"

/* y[n, heads * v_dim] of a sequence of n tokens from its first. max_draft counts for nothing.
 * False if there is no memory. */
bool lin_ref(const struct mx_lin_spec *s, size_t n, const struct mx_lin_in *in, double *y);

/* y[n, channels] of a sequence from its first token. */
void lin_ref_conv(const struct mx_conv_spec *s, size_t n, const float *weight, const float *bias,
                  const float *x, size_t ldx, double *y);

/* One row each: y is written. */
void lin_ref_norm(const struct mx_lin_norm *n, const float *gate, const float *x, double *y);
void lin_ref_l2norm(uint32_t heads, uint32_t dim, float eps, float scale, const float *x,
                    double *y);
double lin_ref_map(enum mx_lin_map f, double x);

#endif
