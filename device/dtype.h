/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors, and the conversions that need no kernel. Installed for mixers. */
#ifndef MX_DEVICE_DTYPE_H
#define MX_DEVICE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* MX_F8E4M3 (4 bits of exponent, 3 of mantissa, no infinity) and MX_I8 (with scales, as the mixer
 * says) are for states only. MX_QUANT is for weights only: quantised, as mx_weight.quant says. */
enum mx_dtype { MX_F32 = 0, MX_F16 = 1, MX_BF16 = 2, MX_F8E4M3 = 3, MX_QUANT = 4, MX_I8 = 5 };

/* Returns the bytes of one element; of MX_QUANT, which has none, 1. */
static inline size_t mx_dtype_size(enum mx_dtype t)
{
	return t == MX_F32 ? 4 : t == MX_F16 || t == MX_BF16 ? 2 : 1;
}

static inline const char *mx_dtype_name(enum mx_dtype t)
{
	return t == MX_F32     ? "f32"
	       : t == MX_F16   ? "f16"
	       : t == MX_BF16  ? "bf16"
	       : t == MX_QUANT ? "quantised"
	       : t == MX_I8    ? "int8"
	                       : "fp8";
}

/* How a checkpoint stores a matrix. The formats, bit by bit: ggml-common.h of llama.cpp (GGUF's
 * blocks), compressed-tensors, AutoAWQ, GPTQModel. */
enum mx_quant_format {
	MX_QUANT_PLAIN, /* elements of a dtype */
	/* GGUF's blocks, along a row */
	MX_QUANT_Q4_0,
	MX_QUANT_Q4_1,
	MX_QUANT_Q5_0,
	MX_QUANT_Q5_1,
	MX_QUANT_Q8_0,
	MX_QUANT_Q2_K,
	MX_QUANT_Q3_K,
	MX_QUANT_Q4_K,
	MX_QUANT_Q5_K,
	MX_QUANT_Q6_K,
	MX_QUANT_IQ4_NL,
	MX_QUANT_IQ4_XS,
	MX_QUANT_IQ1_S,
	MX_QUANT_IQ1_M,
	MX_QUANT_IQ2_XXS,
	MX_QUANT_IQ2_XS,
	MX_QUANT_IQ2_S,
	MX_QUANT_IQ3_XXS,
	MX_QUANT_IQ3_S,
	MX_QUANT_TQ1_0,
	MX_QUANT_TQ2_0,
	MX_QUANT_MXFP4,
	/* codes, scales and zeros in tensors of their own */
	MX_QUANT_INT8,    /* i8 [rows, cols], scales [rows, groups] */
	MX_QUANT_INT4,    /* compressed-tensors' pack-quantized, 4 bits; scales [rows, groups] */
	MX_QUANT_AWQ,     /* AutoAWQ's "gemm"; scales [groups, rows] */
	MX_QUANT_GPTQ,    /* GPTQ in 4 bits without act order; scales [groups, rows] */
	MX_QUANT_GPTQ8,   /* likewise in 8 bits */
	MX_QUANT_FP4,     /* MXFP4: codes u8 [rows, cols / 2], the first of two in the low bits; scales
	                     u8 [rows, cols / 32], powers of two (Open Compute Project's Microscaling
	                     Formats, v1.0, 2023) */
	MX_QUANT_FP8,     /* e4m3 [rows, cols], a scale for the tensor, each row, or each block */
	MX_QUANT_FORMATS, /* their number */
};

static inline float mx_bf16_to_f32(uint16_t v)
{
	uint32_t u = (uint32_t)v << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

/* Rounds to nearest even; a NaN remains a NaN. */
static inline uint16_t mx_f32_to_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40);
	u += 0x7fff + (u >> 16 & 1);
	return (uint16_t)(u >> 16);
}

/* Converts an IEEE half to float, exactly. */
static inline float mx_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 0x1f, man = h & 0x3ff, u;
	float f;
	if (exp == 0) {
		f = (float)man * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= sign;
	} else if (exp == 31) {
		u = sign | 0x7f800000u | man << 13;
	} else {
		u = sign | (exp + 112) << 23 | man << 13;
	}
	memcpy(&f, &u, 4);
	return f;
}

#endif
