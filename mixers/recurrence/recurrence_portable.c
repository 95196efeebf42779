/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the recurrent mixers for any machine; the compiler's own vectors of four. */
#include "mixers/recurrence/recurrence_body.h"
#include "mixers/recurrence/rows_body.h"

RECUR_TABLE(portable)
