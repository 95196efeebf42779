/* SPDX-License-Identifier: Apache-2.0 */
/* The equations of recurrence.h in double precision, token by token, for tests. */
#ifndef MX_MIXERS_RECURRENCE_REF_H
#define MX_MIXERS_RECURRENCE_REF_H

#include "mixers/recurrence/recurrence.h"

/* Computes y[n, heads * v_dim] of the first n tokens of a sequence; max_draft is not used. False if
 * there is no memory. */
bool recur_ref(const struct mx_recur_spec *s, size_t n, const struct mx_recur_in *in, double *y);

/* Computes y[n, channels] of the first n tokens of a sequence. */
void recur_ref_conv(const struct mx_conv_spec *s, size_t n, const float *weight, const float *bias,
                    const float *x, size_t ldx, double *y);

/* Each computes y of one row. */
void recur_ref_norm(const struct mx_recur_norm *n, const float *gate, const float *x, double *y);
void recur_ref_l2norm(uint32_t heads, uint32_t dim, float eps, float scale, const float *x,
                      double *y);
double recur_ref_map(enum mx_recur_map f, double x);

#endif
