/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel table serves a level. */
#include "config.h"

#include "mixers/linear/linear_kernels.h"

const struct mx_lin_kernels *mx_lin_kernels_find(enum mx_isa isa)
{
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX512)
		return &lin_avx512;
	if (isa == MX_ISA_AVX2)
		return &lin_avx2;
#else
	(void)isa;
#endif
	return &lin_portable;
}

const char *mx_lin_kernels_name(const struct mx_lin_kernels *k)
{
	return k->name;
}
