/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors, and the conversions that need no kernel. Installed for mixers. */
#ifndef MX_DEVICE_DTYPE_H
#define MX_DEVICE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* MX_F8E4M3 (4 bits of exponent, 3 of mantissa, no infinity) is for states only. */
enum mx_dtype { MX_F32 = 0, MX_F16 = 1, MX_BF16 = 2, MX_F8E4M3 = 3 };

/* Returns the bytes of one element. */
static inline size_t mx_dtype_size(enum mx_dtype t)
{
	return t == MX_F32 ? 4 : t == MX_F8E4M3 ? 1 : 2;
}

static inline const char *mx_dtype_name(enum mx_dtype t)
{
	return t == MX_F32 ? "f32" : t == MX_F16 ? "f16" : t == MX_BF16 ? "bf16" : "fp8";
}

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
