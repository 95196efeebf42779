/* SPDX-License-Identifier: Apache-2.0 */
#include "device/convert.h"

#include <math.h>

bool mx_converts(enum mx_dtype to, enum mx_dtype from)
{
	return to == from || ((to == MX_F32 || to == MX_BF16) && from != MX_F8E4M3);
}

static uint16_t half_at(const void *p, size_t i)
{
	uint16_t h;
	memcpy(&h, (const unsigned char *)p + i * sizeof h, sizeof h);
	return h;
}

static float value_at(const void *p, enum mx_dtype dtype, size_t i)
{
	if (dtype == MX_F32) {
		float f;
		memcpy(&f, (const unsigned char *)p + i * sizeof f, sizeof f);
		return f;
	}
	uint16_t h = half_at(p, i);
	return dtype == MX_BF16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
}

void mx_convert(void *to, enum mx_dtype to_dtype, const void *from, enum mx_dtype dtype, size_t n)
{
	if (to_dtype == dtype) {
		memcpy(to, from, n * mx_dtype_size(dtype));
		return;
	}
	unsigned char *out = to;
	for (size_t i = 0; i < n; i++) {
		float f = value_at(from, dtype, i);
		if (to_dtype == MX_F32) {
			memcpy(out + i * sizeof f, &f, sizeof f);
		} else {
			uint16_t h = mx_f32_to_bf16(f);
			memcpy(out + i * sizeof h, &h, sizeof h);
		}
	}
}
