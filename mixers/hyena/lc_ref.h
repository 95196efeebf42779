/* SPDX-License-Identifier: Apache-2.0 */
/* Long convolutions' sums in double precision, as they stand, for tests. */
#ifndef MX_MIXERS_HYENA_REF_H
#define MX_MIXERS_HYENA_REF_H

#include "mixers/hyena/kernels.h"

/* Output t of a tile of side n. size: sum of the products' magnitudes, for tolerances. */
void lc_ref_tile(uint32_t n, const float *lags, const float *z, uint32_t t, double y[LC_LANES],
                 double size[LC_LANES]);

/* Output t of a block, without `far`: arguments as lc_kernels.window. */
void lc_ref_window(const float *h, const float *z, uint32_t past, uint32_t t, double y[LC_LANES],
                   double size[LC_LANES]);

/* The convolution of one channel: y[n] from h[n, ldh] and z[n, ldz]. n^2 / 2 products; lazily, each
 * output when it is due, and eagerly, each input into all outputs to come. */
void lc_ref_conv(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y);
void lc_ref_conv_eager(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y);

#endif
