/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of long convolutions in double precision, without tiles or transforms, for tests. */
#ifndef MX_MIXERS_HYENA_REF_H
#define MX_MIXERS_HYENA_REF_H

#include "mixers/hyena/kernels.h"

/* Output t of a tile of side n. size: sum of the products' magnitudes, for tolerances. */
void lc_ref_tile(uint32_t n, const float *lags, const float *z, uint32_t t, double y[LC_LANES],
                 double size[LC_LANES]);

/* Output t of a block without the sums of tiles: arguments as for lc_kernels.window. */
void lc_ref_window(const float *h, const float *z, uint32_t past, uint32_t t, double y[LC_LANES],
                   double size[LC_LANES]);

/* The convolution of one channel with n^2 / 2 products: y[n] from h[n, ldh] and z[n, ldz]. The lazy
 * form sums each output when it is needed; the eager one adds each input to all later outputs. */
void lc_ref_conv(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y);
void lc_ref_conv_eager(size_t n, const float *h, size_t ldh, const float *z, size_t ldz, double *y);

#endif
