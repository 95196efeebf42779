/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dci's kernels of rows over vectors of 16 floats, as dci_search_body.h. Rows of bf16 are widened:
 * queries and outputs are packed as f32, where rows are bf16 with the even elements of each 32
 * before the odd ones.
 *
 * The includer defines v16, v_zero, v_set1, v_load, v_store, v_add, v_mul, v_div, v_max, v_fma,
 * v_bf16_pairs(p, &even, &odd) (32 bf16 to their even and odd elements), v_exp2 (for x <= 0 or
 * slightly above; 1 at 0; 0 below -126 and at -inf), v_hmax, v_hsum, v_sum4(a, b, c, d, out) (the
 * sum of each to out[4]); and how much its registers hold: ROWS_SCORED (rows that some queries
 * are multiplied with at a time), MIX_QUERIES, MIX_VECTORS (outputs of some queries, of one
 * MIX_ALONE vectors).
 */
#include "mixers/dci/dci_rows.h"

/* ---- rows ---- */

ALWAYS_INLINE void row_load(const unsigned char *row, uint32_t i, const int is_bf16, v16 *a, v16 *b)
{
	if (is_bf16) {
		v_bf16_pairs((const uint16_t *)row + i, a, b);
	} else {
		*a = v_load((const float *)row + i);
		*b = v_load((const float *)row + i + 16);
	}
}

ALWAYS_INLINE void score_one(uint32_t n, const unsigned char *const *rows, uint32_t dim,
                             const float *q, const int is_bf16, float *out)
{
	size_t bytes = (size_t)dim * (is_bf16 ? 2 : 4);
	for (uint32_t i = 0; i < n; i += 4) {
		const unsigned char *r[4];
		float four[4];
		v16 acc[4];
		fetch(rows, i + 12, 4, n, 0, bytes);
		for (uint32_t k = 0; k < 4; k++) {
			r[k] = rows[i + k < n ? i + k : n - 1];
			acc[k] = v_zero();
		}
		for (uint32_t d = 0; d < dim; d += 32) {
			v16 qa = v_load(q + d), qb = v_load(q + d + 16);
			for (uint32_t k = 0; k < 4; k++) {
				v16 a, b;
				row_load(r[k], d, is_bf16, &a, &b);
				acc[k] = v_fma(a, qa, acc[k]);
				acc[k] = v_fma(b, qb, acc[k]);
			}
		}
		v_sum4(acc[0], acc[1], acc[2], acc[3], four);
		for (uint32_t k = 0; k < 4 && i + k < n; k++)
			out[i + k] = four[k];
	}
}

/* `count` rows from rows[i] on with four queries, of which the last may be the same. */
ALWAYS_INLINE void score_part(uint32_t i, const uint32_t count, const unsigned char *const *rows,
                              uint32_t dim, const float *const *q, const int is_bf16,
                              float (*four)[4])
{
	v16 acc[ROWS_SCORED][4];
	for (uint32_t k = 0; k < count; k++)
		for (uint32_t h = 0; h < 4; h++)
			acc[k][h] = v_zero();
	for (uint32_t d = 0; d < dim; d += 32)
		for (uint32_t k = 0; k < count; k++) {
			v16 a, b;
			row_load(rows[i + k], d, is_bf16, &a, &b);
			for (uint32_t h = 0; h < 4; h++) {
				acc[k][h] = v_fma(a, v_load(q[h] + d), acc[k][h]);
				acc[k][h] = v_fma(b, v_load(q[h] + d + 16), acc[k][h]);
			}
		}
	for (uint32_t k = 0; k < count; k++)
		v_sum4(acc[k][0], acc[k][1], acc[k][2], acc[k][3], four[k]);
}

ALWAYS_INLINE void score_rows(uint32_t n, const unsigned char *const *rows, uint32_t dim,
                              uint32_t n_q, const float *q, const int is_bf16, float *out,
                              size_t ld)
{
	const float *each[4];
	float four[ROWS_SCORED][4];
	if (n_q == 1) {
		score_one(n, rows, dim, q, is_bf16, out);
		return;
	}
	for (uint32_t h = 0; h < 4; h++)
		each[h] = q + (size_t)(h < n_q ? h : n_q - 1) * dim;
	for (uint32_t i = 0, count; i < n; i += count) {
		count = n - i < ROWS_SCORED ? 1 : ROWS_SCORED;
		fetch(rows, i + 12, count, n, 0, (size_t)dim * (is_bf16 ? 2 : 4));
		if (count == 1)
			score_part(i, 1, rows, dim, each, is_bf16, four);
		else
			score_part(i, ROWS_SCORED, rows, dim, each, is_bf16, four);
		for (uint32_t h = 0; h < n_q; h++)
			for (uint32_t k = 0; k < count; k++)
				out[h * ld + i + k] = four[k][h];
	}
}

/* 16 * vectors dimensions from d on. */
ALWAYS_INLINE void mix_part(uint32_t n, const unsigned char *const *rows, size_t offset,
                            uint32_t dim, uint32_t d, const uint32_t vectors, const uint32_t n_q,
                            const float *p, size_t ld, const int is_bf16, float *o)
{
	v16 acc[MIX_QUERIES][MIX_ALONE];
	size_t size = is_bf16 ? 2 : 4;
	for (uint32_t h = 0; h < n_q; h++)
		for (uint32_t k = 0; k < vectors; k++)
			acc[h][k] = v_load(o + (size_t)h * dim + d + 16 * k);
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *row = rows[i] + offset;
		v16 pi[MIX_QUERIES];
		fetch(rows, i + 12, 1, n, offset + d * size, vectors * 16 * size);
		for (uint32_t h = 0; h < n_q; h++)
			pi[h] = v_set1(p[h * ld + i]);
		for (uint32_t k = 0; k < vectors; k += 2) {
			v16 a, b;
			row_load(row, d + 16 * k, is_bf16, &a, &b);
			for (uint32_t h = 0; h < n_q; h++) {
				acc[h][k] = v_fma(pi[h], a, acc[h][k]);
				acc[h][k + 1] = v_fma(pi[h], b, acc[h][k + 1]);
			}
		}
	}
	for (uint32_t h = 0; h < n_q; h++)
		for (uint32_t k = 0; k < vectors; k++)
			v_store(o + (size_t)h * dim + d + 16 * k, acc[h][k]);
}

ALWAYS_INLINE void mix_some(uint32_t n, const unsigned char *const *rows, size_t offset,
                            uint32_t dim, const uint32_t n_q, const float *p, size_t ld,
                            const int is_bf16, float *o)
{
	const uint32_t vectors = n_q == 1 ? MIX_ALONE : MIX_VECTORS;
	uint32_t d = 0;
	for (; d + 16 * vectors <= dim; d += 16 * vectors)
		mix_part(n, rows, offset, dim, d, vectors, n_q, p, ld, is_bf16, o);
	for (; d < dim; d += 32)
		mix_part(n, rows, offset, dim, d, 2, n_q, p, ld, is_bf16, o);
}

ALWAYS_INLINE void mix_rows(uint32_t n, const unsigned char *const *rows, size_t offset,
                            uint32_t dim, uint32_t n_q, const float *p, size_t ld,
                            const int is_bf16, float *o)
{
	for (; n_q >= MIX_QUERIES; n_q -= MIX_QUERIES, p += MIX_QUERIES * ld, o += MIX_QUERIES * dim)
		mix_some(n, rows, offset, dim, MIX_QUERIES, p, ld, is_bf16, o);
	for (; n_q; n_q--, p += ld, o += dim)
		mix_some(n, rows, offset, dim, 1, p, ld, is_bf16, o);
}

#define DCI_TYPE(type, is_bf16)                                                                    \
	static void score_##type(uint32_t n, const unsigned char *const *rows, uint32_t dim,           \
	                         uint32_t n_q, const float *q, float *out, size_t ld)                  \
	{                                                                                              \
		score_rows(n, rows, dim, n_q, q, is_bf16, out, ld);                                        \
	}                                                                                              \
	static void mix_##type(uint32_t n, const unsigned char *const *rows, size_t offset,            \
	                       uint32_t dim, uint32_t n_q, const float *p, size_t ld, float *o)        \
	{                                                                                              \
		mix_rows(n, rows, offset, dim, n_q, p, ld, is_bf16, o);                                    \
	}
DCI_TYPE(f32, 0)
DCI_TYPE(bf16, 1)

/* ---- packing ---- */

static void pack_f32(uint32_t dim, const float *q, float *out)
{
	memcpy(out, q, dim * sizeof *out);
}

static void pack_bf16(uint32_t dim, const float *q, float *out)
{
	for (uint32_t d = 0; d < dim; d += 32)
		for (uint32_t i = 0; i < 16; i++) {
			out[d + i] = q[d + 2 * i];
			out[d + 16 + i] = q[d + 2 * i + 1];
		}
}

static void unpack_f32(uint32_t n, const float *o, float factor, float *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = o[i] * factor;
}

static void unpack_bf16(uint32_t n, const float *o, float factor, float *out)
{
	uint32_t d = 0;
	for (; d + 32 <= n; d += 32)
		for (uint32_t i = 0; i < 16; i++) {
			out[d + 2 * i] = o[d + i] * factor;
			out[d + 2 * i + 1] = o[d + 16 + i] * factor;
		}
	for (uint32_t i = d; i < n; i++)
		out[i] = o[d + i % 2 * 16 + (i - d) / 2] * factor;
}

/* clang-format off */
#define DCI_ROWS(level, type)                                                                      \
	const struct dci_rows dci_rows_##level##_##type = {                                            \
		.name = #level,                                                                            \
		.pack = pack_##type,                                                                       \
		.unpack = unpack_##type,                                                                   \
		.score = score_##type,                                                                     \
		.softmax = softmax,                                                                        \
		.mix = mix_##type,                                                                         \
	};
/* clang-format on */
