/* SPDX-License-Identifier: Apache-2.0 */
#include "model/finite.h"

/* Elements that are looked at together. */
#define RUN 4096

/* An element is not finite if all bits of its exponent are set. */
static size_t count16(const uint16_t *v, size_t n, uint16_t exponent)
{
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		count += (v[i] & exponent) == exponent;
	return count;
}

static size_t count32(const uint32_t *v, size_t n)
{
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		count += (v[i] & 0x7f800000u) == 0x7f800000u;
	return count;
}

static size_t count(const struct mx_tensor *t, size_t first, size_t n)
{
	if (t->dtype == MX_F32)
		return count32((const uint32_t *)t->data + first, n);
	return count16((const uint16_t *)t->data + first, n, t->dtype == MX_F16 ? 0x7c00 : 0x7f80);
}

size_t mx_tensor_count(const struct mx_tensor *t)
{
	return t->bytes / mx_dtype_size(t->dtype);
}

size_t mx_tensor_not_finite(const struct mx_tensor *t, size_t first, size_t n, size_t *out_index)
{
	size_t total = 0;
	if (t->dtype == MX_QUANT || /* codes are always finite; their scales are not looked at */
	    (uintptr_t)t->data % mx_dtype_size(t->dtype)) /* no model can use it */
		return 0;
	for (size_t at = first, end = first + n, k; at < end; at += k) {
		k = end - at < RUN ? end - at : RUN;
		size_t found = count(t, at, k);
		for (size_t i = at; found && !total; i++)
			if (count(t, i, 1)) {
				*out_index = i;
				break;
			}
		total += found;
	}
	return total;
}
