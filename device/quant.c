/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses how a quantised matrix is packed, packs it, and reads it back. */
#include "device/quant.h"

#include <math.h>

#include "base/mem.h"
#include "device/convert.h"
#include "device/quant_decode.h"
#include "device/quant_pack.h"

/* ---- forms ---- */

static const int8_t iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
/* twice the values of e2m1 */
static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void blocks_form(enum mx_quant_format f, struct mx_quant *q)
{
	const bool k = f == MX_QUANT_Q2_K || f == MX_QUANT_Q4_K || f == MX_QUANT_Q5_K;
	*q = (struct mx_quant){.codes = MX_CODES_4, .scales = MX_SCALES_F16, .group = 32, .center = 8};
	if (k || f == MX_QUANT_Q3_K || f == MX_QUANT_Q6_K || f == MX_QUANT_IQ4_XS)
		q->scales = MX_SCALES_TWO;
	if (k || f == MX_QUANT_Q4_1 || f == MX_QUANT_Q5_1) {
		q->offset = MX_OFFSET_MIN;
		q->center = 0;
	}
	switch (f) {
	case MX_QUANT_Q8_0:
		q->codes = MX_CODES_8;
		q->center = 128;
		break;
	case MX_QUANT_Q5_0: q->center = 16; /* fall through */
	case MX_QUANT_Q5_1:
	case MX_QUANT_Q5_K: q->codes = MX_CODES_5; break;
	case MX_QUANT_Q6_K:
		q->codes = MX_CODES_6;
		q->center = 32;
		q->group = 16;
		break;
	case MX_QUANT_MXFP4:
	case MX_QUANT_FP4:
		q->scales = MX_SCALES_BF16;
		q->table = e2m1;
		break;
	case MX_QUANT_IQ4_NL:
	case MX_QUANT_IQ4_XS: q->table = iq4_nl; break;
	case MX_QUANT_Q3_K: q->center = 4; /* fall through */
	case MX_QUANT_Q2_K: q->group = 16; break;
	case MX_QUANT_TQ1_0:
	case MX_QUANT_TQ2_0:
		q->center = 1;
		q->group = MX_QUANT_SUPER;
		break;
	case MX_QUANT_IQ1_M:
	case MX_QUANT_IQ2_XS:
	case MX_QUANT_IQ2_S: q->group = 16; /* fall through */
	case MX_QUANT_IQ1_S:
	case MX_QUANT_IQ2_XXS:
	case MX_QUANT_IQ3_XXS:
	case MX_QUANT_IQ3_S:
		q->scales = MX_SCALES_F32;
		q->table = mx_quant_iq_table(f);
		break;
	default: break;
	}
	if (q->table) {
		q->codes = MX_CODES_TABLE;
		q->center = 0;
	}
}

/* Groups of codes in tensors of their own: of 32, 64, 128 or a multiple of 256 columns, or the row.
 */
static bool group_of(const struct mx_quant_source *s, uint32_t *out)
{
	if (s->group == 32 || s->group == 64 || s->group == 128) {
		*out = s->group;
		return true;
	}
	*out = MX_QUANT_SUPER;
	return s->group == s->cols || (s->group && s->group % MX_QUANT_SUPER == 0);
}

static bool codes_form(const struct mx_quant_source *s, struct mx_quant *q)
{
	const bool eight = s->format == MX_QUANT_INT8 || s->format == MX_QUANT_GPTQ8;
	*q = (struct mx_quant){
		.codes = eight ? MX_CODES_8 : MX_CODES_4,
		.scales = s->scale_dtype == MX_F32   ? MX_SCALES_F32
	              : s->scale_dtype == MX_F16 ? MX_SCALES_F16
	                                         : MX_SCALES_BF16,
		.offset = s->zeros ? MX_OFFSET_ZERO : MX_OFFSET_NONE,
		.center = s->zeros ? 0
	              : eight  ? 128
	                       : 8,
	};
	return group_of(s, &q->group) && !(eight && s->zeros);
}

static void set_bytes(struct mx_quant *q, uint32_t cols)
{
	q->super_bytes = mx_quant_layout_of(q).bytes;
	const size_t of = mx_quant_block_cols(q);
	q->panel_bytes = (cols + of - 1) / of * q->super_bytes;
}

mx_status mx_quant_choose(const struct mx_quant_source *s, int bits, struct mx_quant *out)
{
	struct mx_quant q;
	switch (s->format) {
	case MX_QUANT_PLAIN:
		q = (struct mx_quant){
			.codes = MX_CODES_8, .scales = MX_SCALES_F16, .group = MX_QUANT_BLOCK, .center = 128};
		if (bits == 4) {
			q.codes = MX_CODES_4;
			q.offset = MX_OFFSET_ZERO;
			q.center = 0;
		}
		break;
	case MX_QUANT_FP8:
	case MX_QUANT_FORMATS: return MX_E_UNSUPPORTED;
	case MX_QUANT_INT8:
	case MX_QUANT_INT4:
	case MX_QUANT_AWQ:
	case MX_QUANT_GPTQ:
	case MX_QUANT_GPTQ8:
		if (!codes_form(s, &q))
			return MX_E_UNSUPPORTED;
		break;
	default: blocks_form(s->format, &q); break;
	}
	set_bytes(&q, s->cols);
	*out = q;
	return MX_OK;
}

/* The form of fp8 in fragments. */
static mx_status e4m3_form(const struct mx_quant_source *s, struct mx_quant *q)
{
	*q = (struct mx_quant){.codes = MX_CODES_E4M3,
	                       .scales = s->scale_dtype == MX_F32   ? MX_SCALES_F32
	                                 : s->scale_dtype == MX_F16 ? MX_SCALES_F16
	                                                            : MX_SCALES_BF16,
	                       .whole = s->group >= s->cols};
	return group_of(s, &q->group) && s->group_rows ? MX_OK : MX_E_UNSUPPORTED;
}

mx_status mx_quant_choose_fragments(const struct mx_quant_source *s, int bits, bool experts,
                                    struct mx_quant *out)
{
	struct mx_quant q;
	mx_status st = s->cols % 8                 ? MX_E_UNSUPPORTED /* x is read by 8 columns */
	               : s->format == MX_QUANT_FP8 ? e4m3_form(s, &q)
	                                           : mx_quant_choose(s, bits, &q);
	if (st != MX_OK)
		return st;
	if (experts && (s->format == MX_QUANT_MXFP4 || s->format == MX_QUANT_FP4)) {
		q.codes = MX_CODES_E2M1;
		q.table = NULL;
	} else if (q.codes != MX_CODES_4 && q.codes != MX_CODES_E4M3) {
		q.codes = MX_CODES_8;
		q.center = 128;
		q.table = NULL;
	}
	q.fragments = true;
	if (q.group > MX_QUANT_FRAGMENT)
		q.group = MX_QUANT_FRAGMENT;
	if (q.scales != MX_SCALES_TWO && (q.group >= 64 || q.codes == MX_CODES_E4M3))
		q.scales = MX_SCALES_F32; /* which costs little, and is read as it is */
	set_bytes(&q, s->cols);
	*out = q;
	return MX_OK;
}

size_t mx_quant_bytes(const struct mx_quant *q, uint32_t rows)
{
	return (rows + (size_t)MX_QUANT_ROWS - 1) / MX_QUANT_ROWS * q->panel_bytes;
}

/* ---- decoding ---- */

/* Returns f as the nearest half, to even. */
static uint16_t to_half(float f)
{
	uint32_t u, sign;
	memcpy(&u, &f, 4);
	sign = u >> 16 & 0x8000;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (u >= 0x477ff000) /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (u < 0x38800000) { /* subnormal: a multiple of 2^-24 */
		memcpy(&f, &u, 4);
		return (uint16_t)(sign | (uint32_t)nearbyintf(f * 0x1p24f));
	}
	u += 0xfff + (u >> 13 & 1);
	return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

static float number_at(const void *p, enum mx_dtype dtype, size_t i)
{
	float f;
	mx_convert(&f, MX_F32, (const unsigned char *)p + i * mx_dtype_size(dtype), dtype, 1);
	return f;
}

/* Returns 4 bits of an array of them in words of 32, the lowest first. */
static uint8_t nibble_at(const void *p, size_t i)
{
	return ((const unsigned char *)p)[i / 2] >> (i & 1 ? 4 : 0) & 15;
}

/* AutoAWQ's order: column n of 8 lies in this nibble of the word. */
static size_t awq_nibble(size_t n)
{
	static const uint8_t at[8] = {0, 4, 1, 5, 2, 6, 3, 7};
	return (n & ~(size_t)7) + at[n & 7];
}

static uint8_t code_at(const struct mx_quant_source *s, size_t row, size_t col)
{
	const unsigned char *p = s->codes;
	switch (s->format) {
	case MX_QUANT_INT8: return p[row * s->cols + col] ^ (s->codes_unsigned ? 0 : 0x80);
	case MX_QUANT_INT4: return nibble_at(p + row * ((s->cols + 7) / 8 * 4), col);
	case MX_QUANT_AWQ: return nibble_at(p + col * (s->rows / 2), awq_nibble(row));
	case MX_QUANT_GPTQ: return nibble_at(p + (col / 8 * s->rows + row) * 4, col & 7);
	default: return p[(col / 4 * s->rows + row) * 4 + (col & 3)]; /* GPTQ8 */
	}
}

static uint8_t zero_at(const struct mx_quant_source *s, size_t row, size_t group, size_t groups)
{
	const unsigned char *p = s->zeros;
	switch (s->format) {
	case MX_QUANT_INT4: /* packed along the rows: [ceil(rows / 8), groups] words */
		return nibble_at(p + (row / 8 * groups + group) * 4, row & 7);
	case MX_QUANT_AWQ: return nibble_at(p + group * (s->rows / 2), awq_nibble(row));
	default: return (uint8_t)(nibble_at(p + group * (s->rows / 2), row) + s->zeros_less_one);
	}
}

/* Codes, scales and zeros of tensors of their own. n columns from col on. */
static void decode_codes(const struct mx_quant_source *s, const struct mx_quant *q, size_t row,
                         size_t col, size_t n, struct mx_quant_part *out)
{
	const size_t groups = (s->cols + s->group - 1) / s->group;
	const bool by_group = s->format == MX_QUANT_AWQ || s->format == MX_QUANT_GPTQ ||
	                      s->format == MX_QUANT_GPTQ8; /* scales are [groups, rows] */
	for (size_t i = 0; i < n; i++)
		out->code[i] = code_at(s, row, col + i);
	for (size_t g = 0; g * q->group < n; g++) {
		const size_t of = (col + g * q->group) / s->group;
		const size_t at = by_group ? of * s->rows + row : row * groups + of;
		out->scale[g] = number_at(s->scales, s->scale_dtype, at);
		if (s->zeros)
			out->zero[g] = zero_at(s, row, of, groups);
	}
}

/* The same of MX_QUANT_FP8. A NaN makes its group's scale one, since the products read no NaN. */
static void decode_e4m3(const struct mx_quant_source *s, const struct mx_quant *q, size_t row,
                        size_t col, size_t n, struct mx_quant_part *out)
{
	const size_t groups = (s->cols + s->group - 1) / s->group;
	const unsigned char *p = (const unsigned char *)s->codes + row * s->cols + col;
	memcpy(out->code, p, n);
	for (size_t g = 0; g * q->group < n; g++)
		out->scale[g] = number_at(s->scales, s->scale_dtype,
		                          row / s->group_rows * groups + (col + g * q->group) / s->group);
	for (size_t i = 0; i < n; i++)
		if ((p[i] & 127) == 127)
			out->scale[i / q->group] = NAN;
}

/* Returns the row of the checkpoint that is row `row` of the matrix. */
static size_t stored_row(const struct mx_quant_source *s, size_t row)
{
	if (!s->pairs)
		return row;
	const size_t r = row % s->pairs, half = s->pairs / 2;
	return row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
}

/* The same of MX_QUANT_FP4. */
static void decode_fp4(const struct mx_quant_source *s, size_t row, size_t col, size_t n,
                       struct mx_quant_part *out)
{
	const size_t at = stored_row(s, row) * s->cols + col;
	for (size_t i = 0; i < n; i++)
		out->code[i] = nibble_at(s->codes, at + i);
	for (size_t g = 0; g * 32 < n; g++)
		out->scale[g] = mx_quant_e2m1_scale(((const unsigned char *)s->scales)[at / 32 + g]);
}

static uint8_t clamp(float f, float low, float high)
{
	return (uint8_t)(f < low ? low : f > high ? high : f);
}

/* Rounds a group of n elements to 8 bits, its scale that of the largest; a group that is not finite
 * gets such a scale. */
static void round_8(const float *x, size_t n, uint8_t *code, float *scale)
{
	float most = 0;
	for (size_t i = 0; i < n; i++)
		most = fabsf(x[i]) <= most ? most : fabsf(x[i]);
	*scale = mx_f16_to_f32(to_half(most / 127));
	for (size_t i = 0; i < n; i++)
		code[i] = !(*scale > 0) || !isfinite(*scale)
		              ? 128
		              : (uint8_t)(clamp(nearbyintf(x[i] / *scale) + 128, 1, 255));
}

/* To 4 bits: 0 and 15 stand for the smallest and the largest, and one code for 0. */
static void round_4(const float *x, size_t n, uint8_t *code, float *scale, uint8_t *zero)
{
	float low = 0, high = 0;
	for (size_t i = 0; i < n; i++) {
		low = x[i] >= low ? low : x[i];
		high = x[i] <= high ? high : x[i];
	}
	*scale = mx_f16_to_f32(to_half((high - low) / 15));
	const bool some = *scale > 0 && isfinite(*scale);
	*zero = some ? clamp(nearbyintf(-low / *scale), 0, 15) : 0;
	for (size_t i = 0; i < n; i++)
		code[i] = some ? clamp(nearbyintf(x[i] / *scale) + *zero, 0, 15) : 0;
}

static void decode_plain(const struct mx_quant_source *s, const struct mx_quant *q, size_t row,
                         size_t col, size_t n, struct mx_quant_part *out)
{
	float x[MX_QUANT_SUPER];
	const size_t at = row * s->cols + col;
	mx_convert(x, MX_F32, (const unsigned char *)s->codes + at * mx_dtype_size(s->dtype), s->dtype,
	           n);
	for (size_t g = 0, i = 0; i < n; g++, i += q->group) {
		const size_t size = n - i < q->group ? n - i : q->group;
		if (q->codes == MX_CODES_8)
			round_8(x + i, size, out->code + i, &out->scale[g]);
		else
			round_4(x + i, size, out->code + i, &out->scale[g], &out->zero[g]);
	}
}

void mx_quant_decode(const struct mx_quant_source *s, const struct mx_quant *q, size_t row,
                     size_t col, struct mx_quant_part *out)
{
	const size_t left = s->cols - col, n = left < MX_QUANT_SUPER ? left : MX_QUANT_SUPER;
	*out = (struct mx_quant_part){0};
	memset(out->code, q->center, sizeof out->code);
	if (s->format == MX_QUANT_PLAIN)
		decode_plain(s, q, row, col, n, out);
	else if (s->format == MX_QUANT_FP8)
		decode_e4m3(s, q, row, col, n, out);
	else if (s->format == MX_QUANT_FP4)
		decode_fp4(s, row, col, n, out);
	else if (s->format < MX_QUANT_INT8)
		mx_quant_decode_blocks(s->format,
		                       (const unsigned char *)s->codes +
		                           row * mx_quant_row_bytes(s->format, s->cols),
		                       col, n, out);
	else
		decode_codes(s, q, row, col, n, out);
}

/* As a half, the exponent's bias is 8 more: exact, but for NaN. */
static float e4m3(uint8_t b)
{
	if ((b & 127) == 127)
		return NAN;
	return mx_f16_to_f32((uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7)) * 256;
}

float mx_quant_value(const struct mx_quant *q, const struct mx_quant_part *p, size_t i)
{
	if (q->codes == MX_CODES_E4M3)
		return e4m3(p->code[i]) * p->scale[i / q->group];
	const size_t g = i / q->group;
	const bool two = q->scales == MX_SCALES_TWO;
	const float scale = two ? p->scale[0] * p->second[g] : p->scale[g];
	const int32_t code = q->codes == MX_CODES_TABLE  ? q->table[p->code[i]]
	                     : q->codes == MX_CODES_E2M1 ? e2m1[p->code[i]]
	                                                 : p->code[i];
	if (q->offset == MX_OFFSET_ZERO)
		return (float)(code - p->zero[g]) * scale;
	const float v = (float)(code - q->center) * scale;
	if (q->offset != MX_OFFSET_MIN)
		return v;
	return v - (two ? p->minimum[0] * p->second_minimum[g] : p->minimum[g]);
}

static void expand_fp8(const struct mx_quant_source *s, size_t row, size_t col, size_t n, float *y)
{
	const unsigned char *p = (const unsigned char *)s->codes + row * s->cols;
	const size_t groups = (s->cols + s->group - 1) / s->group;
	for (size_t k = col; k < col + n; k++)
		y[k - col] = e4m3(p[k]) * number_at(s->scales, s->scale_dtype,
		                                    row / s->group_rows * groups + k / s->group);
}

/* A source that is not packed: int8 with zeros, groups of another size. */
static void expand_codes(const struct mx_quant_source *s, size_t row, size_t col, size_t n,
                         float *y)
{
	const size_t groups = (s->cols + s->group - 1) / s->group;
	const bool eight = s->format == MX_QUANT_INT8 || s->format == MX_QUANT_GPTQ8;
	const bool by_group = s->format != MX_QUANT_INT8 && s->format != MX_QUANT_INT4;
	for (size_t k = col; k < col + n; k++) {
		const size_t g = k / s->group;
		const int zero = s->zeros ? zero_at(s, row, g, groups) : eight ? 128 : 8;
		y[k - col] =
			(float)(code_at(s, row, k) - zero) *
			number_at(s->scales, s->scale_dtype, by_group ? g * s->rows + row : row * groups + g);
	}
}

/* Expands n <= MX_QUANT_SUPER columns from col on, which is a multiple of that. */
static void expand_part(const struct mx_quant_source *s, size_t row, size_t col, size_t n, float *y)
{
	struct mx_quant q;
	struct mx_quant_part p;
	const size_t at = (row * s->cols + col) * mx_dtype_size(s->dtype);
	if (s->format == MX_QUANT_PLAIN) {
		mx_convert(y, MX_F32, (const unsigned char *)s->codes + at, s->dtype, n);
	} else if (s->format == MX_QUANT_FP8) {
		expand_fp8(s, row, col, n, y);
	} else if (mx_quant_choose(s, 0, &q) != MX_OK) {
		expand_codes(s, row, col, n, y);
	} else {
		mx_quant_decode(s, &q, row, col, &p);
		for (size_t i = 0; i < n; i++)
			y[i] = mx_quant_value(&q, &p, i);
	}
}

void mx_quant_expand_as(const struct mx_quant_source *s, size_t row, enum mx_dtype dtype, void *to)
{
	float y[MX_QUANT_SUPER];
	for (size_t col = 0; col < s->cols; col += MX_QUANT_SUPER) {
		const size_t left = s->cols - col, n = left < MX_QUANT_SUPER ? left : MX_QUANT_SUPER;
		expand_part(s, row, col, n, y);
		mx_convert((unsigned char *)to + col * mx_dtype_size(dtype), dtype, y, MX_F32, n);
	}
}

void mx_quant_expand(const struct mx_quant_source *s, size_t row, float *y)
{
	mx_quant_expand_as(s, row, MX_F32, y);
}

/* ---- packing ---- */

static void put_number(unsigned char *to, enum mx_quant_scales scales, size_t i, float f)
{
	if (scales == MX_SCALES_F32) {
		memcpy(to + 4 * i, &f, 4);
		return;
	}
	const uint16_t h = scales == MX_SCALES_BF16 ? mx_f32_to_bf16(f) : to_half(f);
	memcpy(to + 2 * i, &h, 2);
}

static float get_number(const unsigned char *from, enum mx_quant_scales scales, size_t i)
{
	return number_at(from,
	                 scales == MX_SCALES_F32    ? MX_F32
	                 : scales == MX_SCALES_BF16 ? MX_BF16
	                                            : MX_F16,
	                 i);
}

/* Byte of a block's first 4 or 8 bits for row r and column i; *out_k: see quant_pack.h. */
static size_t byte_of(size_t r, size_t i, size_t *out_k)
{
	*out_k = i / 4;
	return r * 4 + i % 4;
}

static bool of_four_bits(const struct mx_quant *q)
{
	return q->codes == MX_CODES_4 || q->codes == MX_CODES_E2M1;
}

/* Codes of 8 bits lie in fragments as they are multiplied: signed. */
static uint8_t fragment_flip(const struct mx_quant *q)
{
	return q->codes == MX_CODES_8 ? 0x80 : 0;
}

static void put_fragments(const struct mx_quant *q, unsigned char *words, size_t r,
                          const uint8_t *code)
{
	const bool four = of_four_bits(q);
	const uint8_t flip = fragment_flip(q);
	for (size_t i = 0; i < MX_QUANT_FRAGMENT; i++) {
		unsigned shift;
		const size_t at = 4 * mx_quant_fragment(four, r, i, &shift);
		words[at + shift / 8] |= (unsigned char)((code[i] ^ flip) << shift % 8);
	}
}

static uint8_t get_fragment(const struct mx_quant *q, const unsigned char *words, size_t r,
                            size_t i)
{
	unsigned shift;
	const size_t at = 4 * mx_quant_fragment(of_four_bits(q), r, i, &shift);
	const unsigned c = words[at + shift / 8];
	return (uint8_t)(of_four_bits(q) ? c >> shift % 8 & 15 : c ^ fragment_flip(q));
}

static void put_codes(const struct mx_quant *q, const struct mx_quant_layout *l,
                      unsigned char *super, size_t r, const uint8_t *code)
{
	if (q->fragments) {
		put_fragments(q, super + l->codes, r, code);
		return;
	}
	for (size_t i = 0; i < MX_QUANT_SUPER; i++) {
		unsigned char *block = super + l->codes + i / MX_QUANT_BLOCK * l->block_bytes;
		size_t k, at = byte_of(r, i % MX_QUANT_BLOCK, &k);
		const unsigned c = code[i];
		if (q->codes == MX_CODES_8) {
			block[k * 64 + at] = (unsigned char)c;
			continue;
		}
		block[(k & 3) * 64 + at] |= (unsigned char)((c & 15) << (k < 4 ? 0 : 4));
		if (q->codes == MX_CODES_5)
			block[256 + at] |= (unsigned char)((c >> 4) << k);
		if (q->codes == MX_CODES_6)
			block[256 + (k >> 2) * 64 + at] |= (unsigned char)((c >> 4) << 2 * (k & 3));
	}
}

static uint8_t get_code(const struct mx_quant *q, const struct mx_quant_layout *l,
                        const unsigned char *super, size_t r, size_t i)
{
	if (q->fragments)
		return get_fragment(q, super + l->codes, r, i);
	const unsigned char *block = super + l->codes + i / MX_QUANT_BLOCK * l->block_bytes;
	size_t k, at = byte_of(r, i % MX_QUANT_BLOCK, &k);
	if (q->codes == MX_CODES_8)
		return block[k * 64 + at];
	unsigned c = block[(k & 3) * 64 + at] >> (k < 4 ? 0 : 4) & 15;
	if (q->codes == MX_CODES_5)
		c |= (block[256 + at] >> k & 1u) << 4;
	if (q->codes == MX_CODES_6)
		c |= (block[256 + (k >> 2) * 64 + at] >> 2 * (k & 3) & 3u) << 4;
	return (uint8_t)c;
}

/* Place of row r among the 16 of a group. */
static size_t place_of(const struct mx_quant *q, size_t r)
{
	return q->fragments ? 2 * (r % 8) + r / 8 : r;
}

/* Puts the columns of a part from `col` on, a block's; the part's groups have `group` columns. */
static void put_part(const struct mx_quant *q, const struct mx_quant_layout *l,
                     unsigned char *super, size_t r, const struct mx_quant_part *p, size_t col,
                     size_t group)
{
	const bool two = q->scales == MX_SCALES_TWO;
	for (size_t g = 0; g < l->groups; g++) {
		const size_t at = g * MX_QUANT_ROWS + place_of(q, r), of = (col + g * q->group) / group;
		if (!two || !g)
			put_number(super, q->scales, at, p->scale[two ? 0 : of]);
		if ((!two || !g) && q->offset == MX_OFFSET_MIN)
			put_number(super + l->minima, q->scales, at, p->minimum[two ? 0 : of]);
		if (two)
			super[l->second + at] = (unsigned char)p->second[of];
		if (two && q->offset == MX_OFFSET_MIN)
			super[l->second_minima + at] = (unsigned char)p->second_minimum[of];
		if (q->offset == MX_OFFSET_ZERO)
			super[l->zeros + at] = p->zero[of];
	}
	put_codes(q, l, super, r, p->code + col);
}

static void get_part(const struct mx_quant *q, const struct mx_quant_layout *l,
                     const unsigned char *super, size_t r, struct mx_quant_part *p)
{
	const bool two = q->scales == MX_SCALES_TWO;
	for (size_t g = 0; g < l->groups; g++) {
		const size_t at = g * MX_QUANT_ROWS + place_of(q, r);
		if (!two || !g)
			p->scale[g] = get_number(super, q->scales, at);
		if ((!two || !g) && q->offset == MX_OFFSET_MIN)
			p->minimum[g] = get_number(super + l->minima, q->scales, at);
		if (two)
			p->second[g] = (int8_t)super[l->second + at];
		if (two && q->offset == MX_OFFSET_MIN)
			p->second_minimum[g] = (int8_t)super[l->second_minima + at];
		if (q->offset == MX_OFFSET_ZERO)
			p->zero[g] = super[l->zeros + at];
	}
	for (size_t i = 0; i < mx_quant_block_cols(q); i++)
		p->code[i] = get_code(q, l, super, r, i);
}

/* Makes codes of fewer bits, or of a table, codes of 8 bits: the number that is multiplied by the
 * scale, plus 128. */
static void widen(const struct mx_quant *as, uint8_t *code)
{
	for (size_t i = 0; i < MX_QUANT_SUPER; i++)
		code[i] = (uint8_t)((as->table ? as->table[code[i]] : code[i] - as->center) + 128);
}

void mx_quant_pack(const struct mx_quant *q, const struct mx_quant_source *s, size_t first,
                   size_t n, void *to)
{
	const struct mx_quant_layout l = mx_quant_layout_of(q);
	const size_t cols = mx_quant_block_cols(q);
	struct mx_quant as; /* how the source has its codes */
	struct mx_quant_part p;
	if (!q->fragments || mx_quant_choose(s, q->codes == MX_CODES_4 ? 4 : 8, &as) != MX_OK)
		as = *q;
	memset(to, 0, q->panel_bytes);
	for (size_t col = 0; col < s->cols; col += MX_QUANT_SUPER)
		for (size_t r = 0; r < n; r++) {
			mx_quant_decode(s, &as, first + r, col, &p);
			if (q->codes == MX_CODES_8 && q->codes != as.codes)
				widen(&as, p.code);
			for (size_t at = 0; at < MX_QUANT_SUPER && col + at < s->cols; at += cols)
				put_part(q, &l, (unsigned char *)to + (col + at) / cols * l.bytes, r, &p, at,
				         as.group);
		}
}

void mx_quant_row(const struct mx_weight *w, size_t row, float *y)
{
	const struct mx_quant_layout l = mx_quant_layout_of(w->quant);
	const unsigned char *super =
		(const unsigned char *)w->data + row / MX_QUANT_ROWS * w->quant->panel_bytes;
	struct mx_quant_part p;
	const size_t cols = mx_quant_block_cols(w->quant);
	for (size_t k = 0; k < w->cols; k++) {
		if (k % cols == 0)
			get_part(w->quant, &l, super + k / cols * l.bytes, row % MX_QUANT_ROWS, &p);
		y[k] = mx_quant_value(w->quant, &p, k % cols);
	}
}
