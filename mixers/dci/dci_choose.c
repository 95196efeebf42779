/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernel tables for a level and a type of keys and values. */
#include "config.h"

#include "mixers/dci/dci_kernels.h"

const struct dci_search *dci_search_find(enum mx_isa isa)
{
#ifdef MX_X86_64
	switch (isa) {
	case MX_ISA_AMX_BF16:
	case MX_ISA_AVX512_BF16:
	case MX_ISA_AVX512: return &dci_search_avx512;
	case MX_ISA_AVX2: return &dci_search_avx2;
	case MX_ISA_PORTABLE: break;
	}
#else
	(void)isa;
#endif
	return &dci_search_portable;
}

const struct dci_rows *dci_rows_find(enum mx_isa isa, enum mx_dtype dtype)
{
#ifdef MX_X86_64
	switch (isa) {
	case MX_ISA_AMX_BF16:
	case MX_ISA_AVX512_BF16: return dtype == MX_F32 ? &dci_rows_avx512_f32 : &dci_rows_dot_bf16;
	case MX_ISA_AVX512: return dtype == MX_F32 ? &dci_rows_avx512_f32 : &dci_rows_avx512_bf16;
	case MX_ISA_AVX2: return dtype == MX_F32 ? &dci_rows_avx2_f32 : &dci_rows_avx2_bf16;
	case MX_ISA_PORTABLE: break;
	}
#else
	(void)isa;
#endif
	return dtype == MX_F32 ? &dci_rows_portable_f32 : &dci_rows_portable_bf16;
}
