/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernel table of an instruction-set level. */
#include "config.h"

#include "mixers/recurrence/recurrence_kernels.h"

const struct mx_recur_kernels *mx_recur_kernels_find(enum mx_isa isa)
{
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX512)
		return &recur_avx512;
	if (isa == MX_ISA_AVX2)
		return &recur_avx2;
#else
	(void)isa;
#endif
	return &recur_portable;
}

const char *mx_recur_kernels_name(const struct mx_recur_kernels *k)
{
	return k->name;
}
