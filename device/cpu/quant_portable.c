/* SPDX-License-Identifier: Apache-2.0 */
/* Products with quantised weights on any processor. */
#include "device/cpu/quant_dot.h"

void mx_quant_gemm_portable(struct mx_gemm *g)
{
	quant_fill(g);
}
