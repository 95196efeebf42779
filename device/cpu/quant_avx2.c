/* SPDX-License-Identifier: Apache-2.0 */
/* Products with quantised weights by AVX2. */
#include "device/cpu/quant_dot.h"

void mx_quant_gemm_avx2(struct mx_gemm *g)
{
	quant_fill(g);
}
