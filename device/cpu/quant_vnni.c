/* SPDX-License-Identifier: Apache-2.0 */
/* Products with quantised weights by AVX-512 VNNI. */
#include "device/cpu/quant_dot.h"

void mx_quant_gemm_vnni(struct mx_gemm *g)
{
	quant_fill(g);
}
