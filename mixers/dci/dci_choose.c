/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernel table for a level and a type of keys and values. */
#include "config.h"

#include "mixers/dci/dci_kernels.h"

const struct dci_kernels *dci_kernels_find(enum mx_isa isa, enum mx_dtype dtype)
{
#ifdef MX_X86_64
	switch (isa) {
	case MX_ISA_AMX_BF16:
	case MX_ISA_AVX512_BF16:
	case MX_ISA_AVX512: return dtype == MX_F32 ? &dci_avx512_f32 : &dci_avx512_bf16;
	case MX_ISA_AVX2: return dtype == MX_F32 ? &dci_avx2_f32 : &dci_avx2_bf16;
	case MX_ISA_PORTABLE: break;
	}
#else
	(void)isa;
#endif
	return dtype == MX_F32 ? &dci_portable_f32 : &dci_portable_bf16;
}
