/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/finite.h"

#include <math.h>

#include "device/quant.h"

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

/* Counts elements of blocks. Blocks follow each other without gaps, whatever the rows are. */
static size_t count_blocks(const struct mx_tensor *t, size_t first, size_t n)
{
	const size_t block = mx_quant_block_elements(t->format);
	const struct mx_quant_source s = {
		.format = t->format, .rows = 1, .cols = (uint32_t)block, .codes = t->data};
	float y[MX_QUANT_SUPER];
	size_t count = 0;
	for (size_t b = first / block; b * block < first + n; b++) {
		mx_quant_expand(&s, b, y);
		for (size_t i = 0; i < block; i++)
			count += b * block + i >= first && b * block + i < first + n && !isfinite(y[i]);
	}
	return count;
}

/* Counts elements that stand for -exp(x). */
static size_t count_positive(const struct mx_tensor *t, size_t first, size_t n)
{
	size_t count = 0;
	for (size_t i = first; i < first + n; i++) {
		const float v = t->dtype == MX_F32    ? ((const float *)t->data)[i]
		                : t->dtype == MX_BF16 ? mx_bf16_to_f32(((const uint16_t *)t->data)[i])
		                                      : mx_f16_to_f32(((const uint16_t *)t->data)[i]);
		count += !isfinite(v) || v > 0;
	}
	return count;
}

static size_t count(const struct mx_tensor *t, size_t first, size_t n)
{
	if (t->dtype == MX_QUANT)
		return count_blocks(t, first, n);
	if (t->minus_exp)
		return count_positive(t, first, n);
	if (t->dtype == MX_F32)
		return count32((const uint32_t *)t->data + first, n);
	return count16((const uint16_t *)t->data + first, n, t->dtype == MX_F16 ? 0x7c00 : 0x7f80);
}

/* True of GGUF's blocks, the only ones that are whole in a tensor. */
static bool has_blocks(const struct mx_tensor *t)
{
	return t->dtype == MX_QUANT && mx_quant_block_elements(t->format) > 1;
}

size_t mx_tensor_count(const struct mx_tensor *t)
{
	if (has_blocks(t))
		return t->bytes / mx_quant_row_bytes(t->format, mx_quant_block_elements(t->format)) *
		       mx_quant_block_elements(t->format);
	return t->bytes / mx_dtype_size(t->dtype);
}

size_t mx_tensor_not_finite(const struct mx_tensor *t, size_t first, size_t n, size_t *out_index)
{
	size_t total = 0;
	if (t->dtype == MX_QUANT ? !has_blocks(t) /* panels that were packed */
	                         : (uintptr_t)t->data % mx_dtype_size(t->dtype)) /* of no use */
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
