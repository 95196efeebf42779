/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF's blocks of codes (ggml-common.h and ggml-quants.c of llama.cpp define them). d, m: f16. */
#include "device/quant_decode.h"

static const struct {
	const char *name;
	uint16_t elements, bytes;
} formats[MX_QUANT_FORMATS] = {
	[MX_QUANT_PLAIN] = {"plain", 1, 0},        [MX_QUANT_Q4_0] = {"Q4_0", 32, 18},
	[MX_QUANT_Q4_1] = {"Q4_1", 32, 20},        [MX_QUANT_Q5_0] = {"Q5_0", 32, 22},
	[MX_QUANT_Q5_1] = {"Q5_1", 32, 24},        [MX_QUANT_Q8_0] = {"Q8_0", 32, 34},
	[MX_QUANT_Q4_K] = {"Q4_K", 256, 144},      [MX_QUANT_Q5_K] = {"Q5_K", 256, 176},
	[MX_QUANT_Q6_K] = {"Q6_K", 256, 210},      [MX_QUANT_IQ4_NL] = {"IQ4_NL", 32, 18},
	[MX_QUANT_Q2_K] = {"Q2_K", 256, 84},       [MX_QUANT_Q3_K] = {"Q3_K", 256, 110},
	[MX_QUANT_IQ1_S] = {"IQ1_S", 256, 50},     [MX_QUANT_IQ1_M] = {"IQ1_M", 256, 56},
	[MX_QUANT_IQ2_XXS] = {"IQ2_XXS", 256, 66}, [MX_QUANT_IQ2_XS] = {"IQ2_XS", 256, 74},
	[MX_QUANT_IQ2_S] = {"IQ2_S", 256, 82},     [MX_QUANT_IQ3_XXS] = {"IQ3_XXS", 256, 98},
	[MX_QUANT_IQ3_S] = {"IQ3_S", 256, 110},    [MX_QUANT_TQ1_0] = {"TQ1_0", 256, 54},
	[MX_QUANT_TQ2_0] = {"TQ2_0", 256, 66},     [MX_QUANT_IQ4_XS] = {"IQ4_XS", 256, 136},
	[MX_QUANT_MXFP4] = {"MXFP4", 32, 17},      [MX_QUANT_INT8] = {"int8", 1, 0},
	[MX_QUANT_INT4] = {"int4", 1, 0},          [MX_QUANT_AWQ] = {"AWQ", 1, 0},
	[MX_QUANT_GPTQ] = {"GPTQ", 1, 0},          [MX_QUANT_GPTQ8] = {"GPTQ 8", 1, 0},
	[MX_QUANT_FP4] = {"MXFP4", 1, 0},          [MX_QUANT_FP8] = {"fp8", 1, 0},
};

uint32_t mx_quant_block_elements(enum mx_quant_format f)
{
	return formats[f].elements;
}

size_t mx_quant_row_bytes(enum mx_quant_format f, size_t cols)
{
	return cols / formats[f].elements * formats[f].bytes;
}

const char *mx_quant_format_name(enum mx_quant_format f)
{
	return formats[f].name;
}

static float half_at(const unsigned char *p)
{
	return mx_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 32 codes of 4 bits: the low halves of 16 bytes, then the high ones. */
static void halves16(const unsigned char *qs, uint8_t *code)
{
	for (int i = 0; i < 16; i++) {
		code[i] = qs[i] & 15;
		code[i + 16] = qs[i] >> 4;
	}
}

static void fifth_bits(const unsigned char *qh, uint8_t *code)
{
	for (int i = 0; i < 32; i++)
		code[i] |= (uint8_t)((qh[i / 8] >> (i % 8) & 1) << 4);
}

/* A block of 32: group g of the part. */
static void decode_32(enum mx_quant_format f, const unsigned char *b, int g,
                      struct mx_quant_part *out)
{
	uint8_t *code = out->code + 32 * g;
	if (f == MX_QUANT_MXFP4) { /* the table has twice the values of e2m1 */
		out->scale[g] = mx_quant_e2m1_scale(b[0]);
		halves16(b + 1, code);
		return;
	}
	out->scale[g] = half_at(b);
	switch (f) {
	case MX_QUANT_Q4_1:
		out->minimum[g] = -half_at(b + 2);
		halves16(b + 4, code);
		break;
	case MX_QUANT_Q5_0:
		halves16(b + 6, code);
		fifth_bits(b + 2, code);
		break;
	case MX_QUANT_Q5_1:
		out->minimum[g] = -half_at(b + 2);
		halves16(b + 8, code);
		fifth_bits(b + 4, code);
		break;
	case MX_QUANT_Q8_0:
		for (int i = 0; i < 32; i++)
			code[i] = b[2 + i] ^ 0x80;
		break;
	default: halves16(b + 2, code); break; /* Q4_0, IQ4_NL */
	}
}

/* The 6-bit scales and minima of Q4_K and Q5_K. */
static void scales_k(const unsigned char *sc, struct mx_quant_part *out)
{
	for (int j = 0; j < 8; j++) {
		out->second[j] = (int8_t)(j < 4 ? sc[j] & 63 : (sc[j + 4] & 15) | sc[j - 4] >> 6 << 4);
		out->second_minimum[j] =
			(int8_t)(j < 4 ? sc[j + 4] & 63 : sc[j + 4] >> 4 | sc[j] >> 6 << 4);
	}
}

static void decode_q45_k(const unsigned char *b, bool five, struct mx_quant_part *out)
{
	const unsigned char *qh = b + 16, *qs = b + (five ? 48 : 16);
	out->scale[0] = half_at(b);
	out->minimum[0] = half_at(b + 2);
	scales_k(b + 4, out);
	for (int i = 0; i < 256; i++) {
		int j = i / 32;
		uint8_t q = qs[32 * (i / 64) + i % 32] >> (j & 1 ? 4 : 0) & 15;
		out->code[i] = (uint8_t)(q | (five ? (qh[i % 32] >> j & 1) << 4 : 0));
	}
}

static void decode_q6_k(const unsigned char *b, struct mx_quant_part *out)
{
	const unsigned char *ql = b, *qh = b + 128;
	memcpy(out->second, b + 192, 16);
	out->scale[0] = half_at(b + 208);
	for (int i = 0; i < 256; i++) {
		int h = i / 128, k = i % 128 / 32, l = i % 32;
		int low = ql[64 * h + 32 * (k & 1) + l] >> (k >> 1 ? 4 : 0) & 15;
		out->code[i] = (uint8_t)(low | (qh[32 * h + l] >> 2 * k & 3) << 4);
	}
}

/* 256 codes of 2 bits: of each 32 bytes first the lowest of all. */
static void quarters(const unsigned char *qs, uint8_t *code)
{
	for (int i = 0; i < 256; i++)
		code[i] = qs[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

static void decode_q2_k(const unsigned char *b, struct mx_quant_part *out)
{
	out->scale[0] = half_at(b + 80);
	out->minimum[0] = half_at(b + 82);
	for (int g = 0; g < 16; g++) {
		out->second[g] = (int8_t)(b[g] & 15);
		out->second_minimum[g] = (int8_t)(b[g] >> 4);
	}
	quarters(b + 16, out->code);
}

static void decode_q3_k(const unsigned char *b, struct mx_quant_part *out)
{
	const unsigned char *high = b, *sc = b + 96;
	out->scale[0] = half_at(b + 108);
	for (int g = 0; g < 16; g++) {
		const int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
		out->second[g] = (int8_t)((low | (sc[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32);
	}
	quarters(b + 32, out->code);
	for (int i = 0; i < 256; i++)
		out->code[i] |= (uint8_t)((high[i % 32] >> (i / 32) & 1) << 2);
}

/* Digit `k` of a byte of five in base 3, of which it is that fraction of 256. */
static uint8_t trit(unsigned byte, int k)
{
	static const uint8_t power[5] = {1, 3, 9, 27, 81};
	return (uint8_t)((byte * power[k] & 255) * 3 >> 8);
}

static void decode_tq1(const unsigned char *b, struct mx_quant_part *out)
{
	out->scale[0] = half_at(b + 52);
	for (int i = 0; i < 160; i++)
		out->code[i] = trit(b[i % 32], i / 32);
	for (int i = 0; i < 80; i++)
		out->code[160 + i] = trit(b[32 + i % 16], i / 16);
	for (int i = 0; i < 16; i++)
		out->code[240 + i] = trit(b[48 + i % 4], i / 4);
}

static void decode_iq4_xs(const unsigned char *b, struct mx_quant_part *out)
{
	const unsigned sh = (unsigned)(b[2] | b[3] << 8);
	out->scale[0] = half_at(b);
	for (int j = 0; j < 8; j++) {
		int low = b[4 + j / 2] >> (j & 1 ? 4 : 0) & 15;
		out->second[j] = (int8_t)((low | (int)(sh >> 2 * j & 3) << 4) - 32);
		halves16(b + 8 + 16 * j, out->code + 32 * j);
	}
}

void mx_quant_decode_blocks(enum mx_quant_format f, const unsigned char *row, size_t col, size_t n,
                            struct mx_quant_part *out)
{
	const size_t elements = formats[f].elements, bytes = formats[f].bytes;
	const unsigned char *b = row + col / elements * bytes;
	switch (f) {
	case MX_QUANT_Q4_K: decode_q45_k(b, false, out); return;
	case MX_QUANT_Q5_K: decode_q45_k(b, true, out); return;
	case MX_QUANT_Q6_K: decode_q6_k(b, out); return;
	case MX_QUANT_IQ4_XS: decode_iq4_xs(b, out); return;
	case MX_QUANT_Q2_K: decode_q2_k(b, out); return;
	case MX_QUANT_Q3_K: decode_q3_k(b, out); return;
	case MX_QUANT_TQ1_0: decode_tq1(b, out); return;
	case MX_QUANT_TQ2_0:
		out->scale[0] = half_at(b + 64);
		quarters(b, out->code);
		return;
	case MX_QUANT_IQ1_S:
	case MX_QUANT_IQ1_M:
	case MX_QUANT_IQ2_XXS:
	case MX_QUANT_IQ2_XS:
	case MX_QUANT_IQ2_S:
	case MX_QUANT_IQ3_XXS:
	case MX_QUANT_IQ3_S: mx_quant_decode_iq(f, b, out); return;
	default: break;
	}
	for (size_t g = 0; g < MX_QUANT_SUPER / 32 && 32 * g < n; g++, b += bytes)
		decode_32(f, b, (int)g, out);
}
