/* SPDX-License-Identifier: Apache-2.0 */
/* See quant_source.h. */
#include "tests/device/quant_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const struct quant_case quant_cases[] = {
	{MX_QUANT_Q4_0, 0, MX_F16, false, 0, 0},     {MX_QUANT_Q4_1, 0, MX_F16, false, 0, 0},
	{MX_QUANT_Q5_0, 0, MX_F16, false, 0, 0},     {MX_QUANT_Q5_1, 0, MX_F16, false, 0, 0},
	{MX_QUANT_Q8_0, 0, MX_F16, false, 0, 0},     {MX_QUANT_Q4_K, 0, MX_F16, false, 0, 0},
	{MX_QUANT_Q5_K, 0, MX_F16, false, 0, 0},     {MX_QUANT_Q6_K, 0, MX_F16, false, 0, 0},
	{MX_QUANT_IQ4_NL, 0, MX_F16, false, 0, 0},   {MX_QUANT_IQ4_XS, 0, MX_F16, false, 0, 0},
	{MX_QUANT_MXFP4, 0, MX_F16, false, 0, 0},    {MX_QUANT_INT8, 512, MX_BF16, false, 0, 0},
	{MX_QUANT_INT8, 128, MX_F32, false, 0, 0},   {MX_QUANT_INT4, 128, MX_BF16, false, 0, 0},
	{MX_QUANT_INT4, 32, MX_F16, true, 0, 0},     {MX_QUANT_INT4, 64, MX_BF16, true, 0, 0},
	{MX_QUANT_AWQ, 128, MX_F16, true, 0, 0},     {MX_QUANT_GPTQ, 64, MX_F16, true, 0, 0},
	{MX_QUANT_GPTQ8, 128, MX_F16, false, 0, 0},  {MX_QUANT_PLAIN, 0, MX_F32, false, 8, 0},
	{MX_QUANT_PLAIN, 0, MX_F32, false, 4, 0},    {MX_QUANT_INT8, QUANT_WHOLE, MX_BF16, false, 0, 0},
	{MX_QUANT_FP4, 32, MX_F16, false, 0, 0},     {MX_QUANT_FP8, QUANT_WHOLE, MX_F32, false, 0, 1},
	{MX_QUANT_FP8, 128, MX_BF16, false, 0, 128}, {MX_QUANT_Q2_K, 0, MX_F16, false, 0, 0},
	{MX_QUANT_Q3_K, 0, MX_F16, false, 0, 0},     {MX_QUANT_IQ1_S, 0, MX_F16, false, 0, 0},
	{MX_QUANT_IQ1_M, 0, MX_F16, false, 0, 0},    {MX_QUANT_IQ2_XXS, 0, MX_F16, false, 0, 0},
	{MX_QUANT_IQ2_XS, 0, MX_F16, false, 0, 0},   {MX_QUANT_IQ2_S, 0, MX_F16, false, 0, 0},
	{MX_QUANT_IQ3_XXS, 0, MX_F16, false, 0, 0},  {MX_QUANT_IQ3_S, 0, MX_F16, false, 0, 0},
	{MX_QUANT_TQ1_0, 0, MX_F16, false, 0, 0},    {MX_QUANT_TQ2_0, 0, MX_F16, false, 0, 0},
};

const size_t n_quant_cases = sizeof quant_cases / sizeof *quant_cases;

static float uniform(struct rng *rng)
{
	return (float)((double)rng_next(rng) / 2147483648.0 - 1.0);
}

static uint16_t half(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	return (uint16_t)((u >> 16 & 0x8000) | ((u >> 13 & 0x3ffff) - (112u << 10)));
}

static unsigned char *memory(size_t n)
{
	unsigned char *p = aligned_alloc(64, mx_round_up(n ? n : 1, 64));
	if (!p)
		exit(1);
	return p;
}

static unsigned char *random_bytes(struct rng *rng, size_t n)
{
	unsigned char *p = memory(n);
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)rng_next(rng);
	return p;
}

static void put_half(unsigned char *p, float f)
{
	uint16_t h = half(f);
	memcpy(p, &h, 2);
}

/* Gives the blocks scales and minima of the size that weights have. */
static void set_block_scales(struct rng *rng, enum mx_quant_format f, unsigned char *b)
{
	const float d = 0.001f + 0.01f * fabsf(uniform(rng));
	switch (f) {
	case MX_QUANT_MXFP4: b[0] = (unsigned char)(120 + (b[0] & 3)); break;
	case MX_QUANT_Q6_K: put_half(b + 208, d / 8); break;
	case MX_QUANT_IQ4_XS: put_half(b, d / 8); break;
	case MX_QUANT_Q4_K:
	case MX_QUANT_Q5_K:
		put_half(b, d / 8);
		put_half(b + 2, d / 8);
		break;
	case MX_QUANT_Q2_K:
		put_half(b + 80, d);
		put_half(b + 82, d);
		break;
	case MX_QUANT_Q3_K: put_half(b + 108, d / 8); break;
	case MX_QUANT_IQ1_M: { /* in the high bits of four words */
		const unsigned h = half(d / 8);
		for (int i = 0; i < 4; i++)
			b[49 + 2 * i] = (unsigned char)((b[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
		break;
	}
	case MX_QUANT_TQ1_0: put_half(b + 52, d); break;
	case MX_QUANT_TQ2_0: put_half(b + 64, d); break;
	case MX_QUANT_Q4_1:
	case MX_QUANT_Q5_1:
		put_half(b, d);
		put_half(b + 2, -8 * d);
		break;
	default: put_half(b, d); break;
	}
}

static void set_scales(struct rng *rng, struct quant_matrix *m, size_t n)
{
	const size_t size = mx_dtype_size(m->s.scale_dtype);
	m->s.scales = m->scales = memory(n * size);
	for (size_t i = 0; i < n; i++) {
		const float f = 0.001f + 0.01f * fabsf(uniform(rng));
		const uint16_t h = m->s.scale_dtype == MX_BF16 ? mx_f32_to_bf16(f) : half(f);
		memcpy(m->scales + i * size, size == 4 ? (const void *)&f : &h, size);
	}
}

void quant_matrix_make(struct quant_matrix *m, const struct quant_case *of, uint32_t rows,
                       uint32_t cols, struct rng *rng)
{
	const enum mx_quant_format f = of->format;
	const uint32_t group = of->group == QUANT_WHOLE ? cols : of->group;
	*m = (struct quant_matrix){
		.s = {f, MX_BF16, rows, cols, .scale_dtype = of->scale, .group = group}};
	const size_t n = (size_t)rows * cols, groups = group ? (cols + group - 1) / group : 0;
	if (f < MX_QUANT_INT8 && f != MX_QUANT_PLAIN) {
		const size_t row = mx_quant_row_bytes(f, cols),
					 block = row / (cols / mx_quant_block_elements(f));
		m->codes = random_bytes(rng, rows * row);
		for (size_t at = 0; at < rows * row; at += block)
			set_block_scales(rng, f, m->codes + at);
	} else {
		m->codes = random_bytes(rng, 2 * n);
		for (size_t i = 0; i < n && f == MX_QUANT_PLAIN; i++) {
			uint16_t h = mx_f32_to_bf16(uniform(rng));
			memcpy(m->codes + 2 * i, &h, 2);
		}
		for (size_t i = 0; i < n && f == MX_QUANT_FP8; i++)
			m->codes[i] &= 0xf7; /* no NaN */
		if (groups)
			set_scales(rng, m, rows * groups);
		for (size_t i = 0; i < rows * groups && f == MX_QUANT_FP4; i++)
			m->scales[i] = (unsigned char)(118 + rng_next(rng) % 4);
		if (of->zeros)
			m->s.zeros = m->zeros = random_bytes(rng, (rows + 7) / 8 * 4 * groups);
	}
	m->s.codes = m->codes;
	m->s.group_rows = of->group_rows ? of->group_rows : 1;
}

static mx_status pack(struct quant_matrix *m, int bits, bool fragments, bool experts)
{
	mx_status st = fragments ? mx_quant_choose_fragments(&m->s, bits, experts, &m->q)
	                         : mx_quant_choose(&m->s, bits, &m->q);
	if (st != MX_OK)
		return st;
	const size_t bytes = mx_quant_bytes(&m->q, m->s.rows);
	free(m->panels);
	m->panels = memory(bytes);
	memset(m->panels, 0xff, bytes);
	for (size_t r = 0; r < m->s.rows; r += MX_QUANT_ROWS) {
		size_t left = m->s.rows - r;
		mx_quant_pack(&m->q, &m->s, r, left < MX_QUANT_ROWS ? left : MX_QUANT_ROWS,
		              m->panels + r / MX_QUANT_ROWS * m->q.panel_bytes);
	}
	m->w = (struct mx_weight){MX_QUANT, m->s.rows, m->s.cols, m->panels, &m->q};
	return MX_OK;
}

mx_status quant_matrix_pack(struct quant_matrix *m, int bits, bool fragments)
{
	return pack(m, bits, fragments, false);
}

mx_status quant_matrix_pack_expert(struct quant_matrix *m, int bits)
{
	return pack(m, bits, true, true);
}

void quant_matrix_free(struct quant_matrix *m)
{
	free(m->codes);
	free(m->scales);
	free(m->zeros);
	free(m->panels);
}
