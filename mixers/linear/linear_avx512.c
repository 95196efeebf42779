/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the recurrent mixers for AVX-512 (F, BW, DQ, VL). */
#include "mixers/linear/linear_body.h"
#include "mixers/linear/rows_body.h"

LIN_TABLE(avx512)
