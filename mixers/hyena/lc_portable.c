/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of long convolutions for any machine; the compiler's own vectors of four. */
#include "mixers/hyena/lc_body.h"

LC_TABLE(portable)
