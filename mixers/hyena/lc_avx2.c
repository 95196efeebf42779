/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of long convolutions for AVX2 with FMA. */
#include "mixers/hyena/lc_body.h"

LC_TABLE(avx2)
