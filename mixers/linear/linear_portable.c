/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the recurrent mixers for any machine; the compiler's own vectors of four. */
#include "mixers/linear/linear_body.h"
#include "mixers/linear/rows_body.h"

LIN_TABLE(portable)
