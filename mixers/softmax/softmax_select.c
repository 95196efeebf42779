/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernel table for a level and a type of keys and values. */
#include "config.h"

#include "mixers/softmax/softmax_kernels.h"

static const struct attn_kernels *find_int8(enum mx_isa isa)
{
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX512)
		return __builtin_cpu_supports("avx512vnni") ? &attn_vnni_int8 : &attn_avx512_int8;
	if (isa == MX_ISA_AVX2)
		return &attn_avx2_int8;
#else
	(void)isa;
#endif
	return &attn_portable_int8;
}

const struct attn_kernels *attn_kernels_find(enum mx_isa isa, enum mx_dtype dtype)
{
	if (dtype == MX_I8)
		return find_int8(isa);
#ifdef MX_X86_64
	switch (isa) {
	case MX_ISA_AMX_BF16: return dtype == MX_F32 ? &attn_avx512_f32 : &attn_amx_bf16;
	case MX_ISA_AVX512_BF16: return dtype == MX_F32 ? &attn_avx512_f32 : &attn_dot_bf16;
	case MX_ISA_AVX512: return dtype == MX_F32 ? &attn_avx512_f32 : &attn_avx512_bf16;
	case MX_ISA_AVX2: return dtype == MX_F32 ? &attn_avx2_f32 : &attn_avx2_bf16;
	case MX_ISA_PORTABLE: break;
	}
#else
	(void)isa;
#endif
	return dtype == MX_F32 ? &attn_portable_f32 : &attn_portable_bf16;
}
