/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF's blocks of 1, 2 and 3 bits whose codes are numbers of points in a grid, four or eight
 * columns each, with signs beside them (ggml-common.h and ggml-quants.c of llama.cpp define them).
 *
 * A column's code is its coordinate, with the sign in the bit above: what mx_quant_iq_table has a
 * number for.
 *
 * The grids are llama.cpp's (ggml-common.h), by way of its package gguf: Copyright (c) 2023-2026
 * The ggml authors, MIT licence.
 */
#include "device/quant_decode.h"
#include "device/quant_grids.inc"

/* Coordinates 0, 1, 2 of 2 bits, then those with the sign. */
static const int8_t two[16] = {8, 25, 43, 0, -8, -25, -43};
static const int8_t three_xxs[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                     -4, -12, -20, -28, -36, -44, -52, -62};
static const int8_t three_s[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
/* Eight times -1, 0 and 1 plus an eighth, then less an eighth. */
static const int8_t one[16] = {-7, 1, 9, 0, -9, -1, 7};

const int8_t *mx_quant_iq_table(enum mx_quant_format f)
{
	switch (f) {
	case MX_QUANT_IQ2_XXS:
	case MX_QUANT_IQ2_XS:
	case MX_QUANT_IQ2_S: return two;
	case MX_QUANT_IQ3_XXS: return three_xxs;
	case MX_QUANT_IQ3_S: return three_s;
	case MX_QUANT_IQ1_S:
	case MX_QUANT_IQ1_M: return one;
	default: return NULL;
	}
}

static unsigned two_bytes(const unsigned char *p)
{
	return (unsigned)(p[0] | p[1] << 8);
}

static uint32_t four_bytes(const unsigned char *p)
{
	return two_bytes(p) | (uint32_t)two_bytes(p + 2) << 16;
}

static float half_at(const unsigned char *p)
{
	return mx_f16_to_f32((uint16_t)two_bytes(p));
}

/* The eighth sign makes their number even. */
static unsigned eight_signs(unsigned seven)
{
	return seven | (unsigned)(__builtin_popcount(seven) & 1) << 7;
}

/* Eight columns of 2 bits each. */
static void eight(unsigned point, unsigned signs, uint8_t *code)
{
	for (int i = 0; i < 8; i++)
		code[i] = (uint8_t)((point >> 2 * i & 3) | (signs >> i & 1) << 2);
}

/* Four columns of 3 bits each. */
static void four(unsigned point, unsigned signs, uint8_t *code)
{
	for (int i = 0; i < 4; i++)
		code[i] = (uint8_t)((point >> 3 * i & 7) | (signs >> i & 1) << 3);
}

static void decode_iq2_xxs(const unsigned char *b, struct mx_quant_part *out)
{
	for (int g = 0; g < 8; g++) {
		const unsigned char *q = b + 2 + 8 * g;
		const uint32_t beside = four_bytes(q + 4);
		out->scale[g] = half_at(b) * (0.5f + (float)(beside >> 28)) * 0.25f;
		for (int k = 0; k < 4; k++)
			eight(iq2_xxs[q[k]], eight_signs(beside >> 7 * k & 127), out->code + 32 * g + 8 * k);
	}
}

/* The scales of IQ2_XS and IQ2_S: of 16 columns each. */
static void scales_2(const unsigned char *b, const unsigned char *scales, struct mx_quant_part *out)
{
	for (int g = 0; g < 16; g++)
		out->scale[g] = half_at(b) * (0.5f + (float)(scales[g / 2] >> 4 * (g & 1) & 15)) * 0.25f;
}

static void decode_iq2_xs(const unsigned char *b, struct mx_quant_part *out)
{
	scales_2(b, b + 66, out);
	for (int k = 0; k < 32; k++) {
		const unsigned q = two_bytes(b + 2 + 2 * k);
		eight(iq2_xs[q & 511], eight_signs(q >> 9), out->code + 8 * k);
	}
}

static void decode_iq2_s(const unsigned char *b, struct mx_quant_part *out)
{
	scales_2(b, b + 74, out);
	for (int k = 0; k < 32; k++) {
		const unsigned high = b[66 + k / 4] >> 2 * (k & 3) & 3u;
		eight(iq2_s[b[2 + k] | high << 8], b[34 + k], out->code + 8 * k);
	}
}

static void decode_iq3_xxs(const unsigned char *b, struct mx_quant_part *out)
{
	for (int g = 0; g < 8; g++) {
		const uint32_t beside = four_bytes(b + 66 + 4 * g);
		out->scale[g] = half_at(b) * (0.5f + (float)(beside >> 28)) * 0.5f;
		for (int k = 0; k < 8; k++) {
			const unsigned signs = eight_signs(beside >> 7 * (k / 2) & 127);
			four(iq3_xxs[b[2 + 8 * g + k]], signs >> 4 * (k & 1), out->code + 32 * g + 4 * k);
		}
	}
}

static void decode_iq3_s(const unsigned char *b, struct mx_quant_part *out)
{
	const unsigned char *qs = b + 2, *qh = b + 66, *signs = b + 74, *scales = b + 106;
	for (int g = 0; g < 8; g++)
		out->scale[g] = half_at(b) * (float)(1 + 2 * (scales[g / 2] >> 4 * (g & 1) & 15));
	for (int k = 0; k < 64; k++) {
		const unsigned high = qh[k / 8] >> (k & 7) & 1u;
		four(iq3_s[qs[k] | high << 8], (unsigned)(signs[k / 2] >> 4 * (k & 1)), out->code + 4 * k);
	}
}

static void decode_iq1_s(const unsigned char *b, struct mx_quant_part *out)
{
	for (int g = 0; g < 8; g++) {
		const unsigned qh = two_bytes(b + 34 + 2 * g);
		out->scale[g] = half_at(b) * (float)(2 * (qh >> 12 & 7) + 1) * 0.125f;
		for (int k = 0; k < 4; k++)
			eight(iq1[b[2 + 4 * g + k] | (qh >> 3 * k & 7) << 8], qh >> 15 ? 255 : 0,
			      out->code + 32 * g + 8 * k);
	}
}

/* The scale of the block is the high bits of the scales. */
static void decode_iq1_m(const unsigned char *b, struct mx_quant_part *out)
{
	unsigned d = 0;
	for (int i = 0; i < 4; i++)
		d |= two_bytes(b + 48 + 2 * i) >> 12 << 4 * i;
	for (int g = 0; g < 16; g++) {
		const unsigned scale = two_bytes(b + 48 + g / 4 * 2) >> 3 * (g & 3) & 7;
		out->scale[g] = mx_f16_to_f32((uint16_t)d) * (float)(2 * scale + 1) * 0.125f;
	}
	for (int k = 0; k < 32; k++) {
		const unsigned qh = b[32 + k / 2] >> 4 * (k & 1) & 15u;
		eight(iq1[b[k] | (qh & 7) << 8], qh & 8 ? 255 : 0, out->code + 8 * k);
	}
}

void mx_quant_decode_iq(enum mx_quant_format f, const unsigned char *b, struct mx_quant_part *out)
{
	switch (f) {
	case MX_QUANT_IQ2_XXS: decode_iq2_xxs(b, out); return;
	case MX_QUANT_IQ2_XS: decode_iq2_xs(b, out); return;
	case MX_QUANT_IQ2_S: decode_iq2_s(b, out); return;
	case MX_QUANT_IQ3_XXS: decode_iq3_xxs(b, out); return;
	case MX_QUANT_IQ3_S: decode_iq3_s(b, out); return;
	case MX_QUANT_IQ1_S: decode_iq1_s(b, out); return;
	default: decode_iq1_m(b, out); return;
	}
}
