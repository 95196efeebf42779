/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of long convolutions for AVX-512 (F, BW, DQ, VL). */
#include "mixers/hyena/lc_body.h"

LC_TABLE(avx512)
