/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of level avx512: the templates at this instruction set. */
#include "device/cpu/rows.h"

#include "device/cpu/dot.h"

void mx_kernels_avx512(struct mx_kernels *k)
{
	rows_fill(k);
	dot_fill(k);
}
