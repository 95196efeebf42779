/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the recurrent mixers for AVX2 with FMA. */
#include "mixers/recurrence/recurrence_body.h"
#include "mixers/recurrence/rows_body.h"

RECUR_TABLE(avx2)
