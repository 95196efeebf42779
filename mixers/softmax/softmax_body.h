/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over vectors of 16 floats. Each level's file defines v16 and its
 * operations and then includes this file, so the levels share one order of
 * operations and differ in instructions only.
 *
 * The includer defines: v16, v_zero, v_set1, v_load, v_store, v_add, v_mul,
 * v_div, v_max, v_fma(a, b, c) = a * b + c, v_bf16_pairs(p, &even, &odd) (32 bf16 to
 * their even and odd elements), v_exp2 (for x <= 0 or slightly above; 1 at 0; 0
 * below -126 and at -inf), v_keep(v, a, b) (lanes a <= i < b, -inf elsewhere), v_hmax,
 * v_hsum (a fixed tree), transpose_32 (rows of 16 elements of 32 bits), transpose_64
 * (8 of 64 bits), and ROWS, the query rows that a pass keeps in registers.
 */
#define v_store_p(s, i, p) v_store((s) + (i), p)
#define PART_ROWS          4

#include "mixers/softmax/softmax_rows.h"

#include "mixers/softmax/softmax_parts.h"

/* ---- scores: s[row][token] = q . k of one panel for `rows` rows ---- */

ALWAYS_INLINE void scores_rows_f32(const float *q, const unsigned char *keys, uint32_t dim,
                                   const unsigned rows, const unsigned char *next, float *s)
{
	const float *k = (const float *)keys;
	v16 acc0[ROWS], acc1[ROWS];
	for (unsigned r = 0; r < rows; r++)
		acc0[r] = acc1[r] = v_zero();
	for (uint32_t i = 0; i < dim; i++) {
		v16 k0 = v_load(k + (size_t)i * 16), k1 = v_load(k + (size_t)(dim + i) * 16);
		if (next)
			attn_fetch_pair(next + (size_t)i * 128);
		for (unsigned r = 0; r < rows; r++) {
			v16 qi = v_set1(q[r * dim + i]);
			acc0[r] = v_fma(qi, k0, acc0[r]);
			acc1[r] = v_fma(qi, k1, acc1[r]);
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		v_store(s + r * ATTN_BLOCK, acc0[r]);
		v_store(s + r * ATTN_BLOCK + 16, acc1[r]);
	}
}

ALWAYS_INLINE void scores_rows_bf16(const float *q, const unsigned char *keys, uint32_t dim,
                                    const unsigned rows, const unsigned char *next, float *s)
{
	const uint16_t *k = (const uint16_t *)keys;
	v16 acc0[ROWS], acc1[ROWS];
	for (unsigned r = 0; r < rows; r++)
		acc0[r] = acc1[r] = v_zero();
	for (uint32_t i = 0; i < dim; i += 2) {
		v16 even0, odd0, even1, odd1;
		if (next)
			attn_fetch_pair(next + (size_t)i * 64);
		v_bf16_pairs(k + (size_t)i * 16, &even0, &odd0);
		v_bf16_pairs(k + (size_t)(dim + i) * 16, &even1, &odd1);
		for (unsigned r = 0; r < rows; r++) {
			v16 qe = v_set1(q[r * dim + i]), qo = v_set1(q[r * dim + i + 1]);
			acc0[r] = v_fma(qe, even0, acc0[r]);
			acc1[r] = v_fma(qe, even1, acc1[r]);
			acc0[r] = v_fma(qo, odd0, acc0[r]);
			acc1[r] = v_fma(qo, odd1, acc1[r]);
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		v_store(s + r * ATTN_BLOCK, acc0[r]);
		v_store(s + r * ATTN_BLOCK + 16, acc1[r]);
	}
}

/* ---- o[row][dim] = p . v, 32 dimensions at a time ---- */

ALWAYS_INLINE void values_rows(const struct attn_task *t, struct range g, const float *p,
                               const unsigned rows, uint32_t i, const int is_bf16, const int fetch,
                               float *o)
{
	size_t size = is_bf16 ? 2 : 4;
	size_t at = (size_t)i * ATTN_PANEL * size, next = (size_t)16 * ATTN_PANEL * size;
	v16 acc0[ROWS], acc1[ROWS];
	for (unsigned r = 0; r < rows; r++)
		acc0[r] = acc1[r] = v_zero();
	for (uint32_t c = g.c0; c < g.c1; c++) {
		const unsigned char *v0 = t->values[c] + at, *v1 = v0 + next;
		const float *pc = p + c * ATTN_PANEL;
		const unsigned char *ahead =
			fetch ? attn_values_ahead(t, g.c0, g.c1, c, i, 32, (uint32_t)size) : NULL;
		for (uint32_t j = 0; j < ATTN_PANEL; j += 2) {
			v16 even0, odd0, even1, odd1;
			if (ahead)
				attn_fetch_pair(ahead + (size_t)j * 32 * size);
			if (ahead && !is_bf16)
				attn_fetch_pair(ahead + (size_t)j * 128 + 128);
			if (is_bf16) {
				v_bf16_pairs((const uint16_t *)v0 + j * 16, &even0, &odd0);
				v_bf16_pairs((const uint16_t *)v1 + j * 16, &even1, &odd1);
			} else {
				even0 = v_load((const float *)v0 + j * 16);
				odd0 = v_load((const float *)v0 + j * 16 + 16);
				even1 = v_load((const float *)v1 + j * 16);
				odd1 = v_load((const float *)v1 + j * 16 + 16);
			}
			for (unsigned r = 0; r < rows; r++) {
				v16 pe = v_set1(pc[r * ATTN_BLOCK + j]), po = v_set1(pc[r * ATTN_BLOCK + j + 1]);
				acc0[r] = v_fma(pe, even0, acc0[r]);
				acc1[r] = v_fma(pe, even1, acc1[r]);
				acc0[r] = v_fma(po, odd0, acc0[r]);
				acc1[r] = v_fma(po, odd1, acc1[r]);
			}
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		v_store(o + (size_t)r * t->value_dim + i, acc0[r]);
		v_store(o + (size_t)r * t->value_dim + i + 16, acc1[r]);
	}
}

/* ---- the running state ---- */

static void fold(uint32_t rows, uint32_t dim, float *m, float *l, float *o, const float *mb,
                 const float *lb, const float *ob)
{
	float keep[ATTN_TILE] = {0}, add[ATTN_TILE] = {0};
	for (uint32_t r = 0; r < rows; r++) {
		float top = mb[r] > m[r] ? mb[r] : m[r], base = top == -INFINITY ? 0 : top;
		keep[r] = m[r] - base;
		add[r] = mb[r] - base;
		m[r] = top;
	}
	v_store(keep, v_exp2(v_load(keep)));
	v_store(add, v_exp2(v_load(add)));
	for (uint32_t r = 0; r < rows; r++) {
		v16 a = v_set1(keep[r]), b = v_set1(add[r]);
		l[r] = l[r] * keep[r] + lb[r] * add[r];
		float *to = o + (size_t)r * dim;
		const float *from = ob + (size_t)r * dim;
		for (uint32_t i = 0; i < dim; i += 16)
			v_store(to + i, v_fma(v_load(from + i), b, v_mul(v_load(to + i), a)));
	}
}

static void finish(uint32_t head_dim, float l, const float *o, float *y)
{
	float inverse = 1 / l;
	for (uint32_t i = 0; i < head_dim; i++)
		y[i] = o[i] * inverse;
}

/* ---- a block ---- */

/* Rows r0 .. r0 + rows - 1, all in one range of panels: scores, softmax, outputs, fold. */
ALWAYS_INLINE void block_rows(const struct attn_task *t, struct range g, uint32_t r0,
                              const unsigned rows, const int is_bf16, const int fetch, float *m,
                              float *l, float *o)
{
	const float *q = (const float *)t->q + (size_t)r0 * t->dim;
	float *s = (float *)t->work, *ob = s + ATTN_TILE * ATTN_BLOCK, mb[ROWS], lb[ROWS];

	for (uint32_t c = g.c0; c < g.c1; c++) {
		const unsigned char *next = fetch ? attn_keys_ahead(t, g.c0, g.c1, c) : NULL;
		if (is_bf16)
			scores_rows_bf16(q, t->keys[c], t->dim, rows, next, s + c * ATTN_PANEL);
		else
			scores_rows_f32(q, t->keys[c], t->dim, rows, next, s + c * ATTN_PANEL);
	}
	for (uint32_t r = 0; r < rows; r++)
		softmax_row(t, g, r0 + r, s + (size_t)r * ATTN_BLOCK, &mb[r], &lb[r]);
	for (uint32_t i = 0; i < t->value_dim; i += 32)
		values_rows(t, g, s, rows, i, is_bf16, fetch, ob);
	fold(rows, t->value_dim, m + r0, l + r0, o + (size_t)r0 * t->value_dim, mb, lb, ob);
}

ALWAYS_INLINE void block_any(const struct attn_task *t, const int is_bf16, float *m, float *l,
                             float *o)
{
	struct range g;
	uint32_t r = 0;
	for (; r + ROWS <= t->rows; r += ROWS)
		if (attn_visible(t, r, ROWS, &g.c0, &g.c1))
			block_rows(t, g, r, ROWS, is_bf16, !r && attn_is_few(t), m, l, o);
	for (; r < t->rows; r++)
		if (attn_visible(t, r, 1, &g.c0, &g.c1))
			block_rows(t, g, r, 1, is_bf16, !r && attn_is_few(t), m, l, o);
}

static void block_f32(const struct attn_task *t, float *m, float *l, float *o)
{
	block_any(t, 0, m, l, o);
}

static void block_bf16(const struct attn_task *t, float *m, float *l, float *o)
{
	block_any(t, 1, m, l, o);
}

/* ---- a block in parts, whose keys and values are read in the order of memory ---- */

/* Loads two vectors that lie one behind the other, or in bf16 side by side. */
ALWAYS_INLINE void load_two(const unsigned char *p, const int is_bf16, v16 *a, v16 *b)
{
	if (is_bf16) {
		v_bf16_pairs((const uint16_t *)p, a, b);
	} else {
		*a = v_load((const float *)p);
		*b = v_load((const float *)p + 16);
	}
}

/* As scores_rows_f32 and scores_rows_bf16, one half of the panel after the other. */
ALWAYS_INLINE void panel_scores(const float *q, const unsigned char *keys, uint32_t dim,
                                const unsigned rows, const int is_bf16, float *s)
{
	for (uint32_t half = 0; half < 2; half++) {
		v16 acc[PART_ROWS], a, b;
		for (unsigned r = 0; r < rows; r++)
			acc[r] = v_zero();
		for (uint32_t i = 0; i < dim; i += 2, keys += is_bf16 ? 64 : 128) {
			load_two(keys, is_bf16, &a, &b);
			for (unsigned r = 0; r < rows; r++) {
				acc[r] = v_fma(v_set1(q[r * dim + i]), a, acc[r]);
				acc[r] = v_fma(v_set1(q[r * dim + i + 1]), b, acc[r]);
			}
		}
		for (unsigned r = 0; r < rows; r++)
			v_store(s + r * ATTN_BLOCK + half * 16, acc[r]);
	}
}

/* o[row][dim] += p . v of one panel, 16 dimensions after the other. */
ALWAYS_INLINE void panel_values(const unsigned char *v, uint32_t dim, const float *p,
                                const unsigned rows, const int is_bf16, float *o)
{
	for (uint32_t i = 0; i < dim; i += 16) {
		v16 acc[PART_ROWS], a, b;
		for (unsigned r = 0; r < rows; r++)
			acc[r] = v_load(o + (size_t)r * dim + i);
		for (uint32_t j = 0; j < ATTN_PANEL; j += 2, v += is_bf16 ? 64 : 128) {
			load_two(v, is_bf16, &a, &b);
			for (unsigned r = 0; r < rows; r++) {
				acc[r] = v_fma(v_set1(p[r * ATTN_BLOCK + j]), a, acc[r]);
				acc[r] = v_fma(v_set1(p[r * ATTN_BLOCK + j + 1]), b, acc[r]);
			}
		}
		for (unsigned r = 0; r < rows; r++)
			v_store(o + (size_t)r * dim + i, acc[r]);
	}
}

ALWAYS_INLINE void part_scores(const struct attn_task *t, uint32_t c0, uint32_t c1,
                               const int is_bf16, float *s)
{
	const float *q = t->q;
	for (uint32_t c = c0; c < c1; c++) {
#define PASS(r, n)                                                                                 \
	panel_scores(q + (size_t)(r)*t->dim, t->keys[c], t->dim, n, is_bf16,                           \
	             s + (size_t)(r)*ATTN_BLOCK + c * ATTN_PANEL)
		ATTN_PASSES(t->rows, PASS);
#undef PASS
	}
}

ALWAYS_INLINE void part_values(const struct attn_task *t, uint32_t c0, uint32_t c1,
                               const int is_bf16, const float *s, float *o)
{
	for (uint32_t c = c0; c < c1; c++) {
#define PASS(r, n)                                                                                 \
	panel_values(t->values[c], t->value_dim, s + (size_t)(r)*ATTN_BLOCK + c * ATTN_PANEL, n,       \
	             is_bf16, o + (size_t)(r)*t->value_dim)
		ATTN_PASSES(t->rows, PASS);
#undef PASS
	}
}

static void part_scores_f32(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s)
{
	part_scores(t, c0, c1, 0, s);
}

static void part_scores_bf16(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s)
{
	part_scores(t, c0, c1, 1, s);
}

static void part_values_f32(const struct attn_task *t, uint32_t c0, uint32_t c1, const float *s,
                            float *o)
{
	part_values(t, c0, c1, 0, s, o);
}

static void part_values_bf16(const struct attn_task *t, uint32_t c0, uint32_t c1, const float *s,
                             float *o)
{
	part_values(t, c0, c1, 1, s, o);
}

/* ---- packing ---- */

static void nothing(void)
{
}

static void pack_q_f32(void *tiles, uint32_t row, uint32_t head_dim, uint32_t dim, const float *q)
{
	float *to = (float *)tiles + (size_t)row * dim;
	memcpy(to, q, head_dim * sizeof(*to));
	memset(to + head_dim, 0, (dim - head_dim) * sizeof(*to));
}

static void append_f32(unsigned char *keys, unsigned char *values, uint32_t first, uint32_t n,
                       uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld)
{
	for (uint32_t t = first; t < first + n; t++, k += ld) {
		float *to = (float *)keys + (size_t)(t / 16) * dim * 16 + t % 16;
		for (uint32_t i = 0; i < dim; i++)
			to[(size_t)i * 16] = i < head_dim ? k[i] : 0;
	}
	for (uint32_t t = first; v && t < first + n; t++, v += ld)
		for (uint32_t i = 0; i < dim; i++)
			((float *)values)[((size_t)(i / 16) * ATTN_PANEL + t) * 16 + i % 16] =
				i < head_dim ? v[i] : 0;
}

/* mx_f32_to_bf16 without branches, so that loops over it become vectors. */
ALWAYS_INLINE uint32_t bf16_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	uint32_t nan = u >> 16 | 0x40, round = (u + 0x7fff + (u >> 16 & 1)) >> 16;
	return (u & 0x7fffffffu) > 0x7f800000u ? nan : round;
}

/* Writes the values [dim] of tokens t (even, lo) and t + 1 (hi) to a panel; NULL = not written. */
static void append_values(uint16_t *values, uint32_t t, uint32_t dim, const float *lo,
                          const float *hi)
{
	for (uint32_t i = 0; i < dim; i += 16) {
		uint16_t *to = values + ((size_t)i * ATTN_PANEL) + (size_t)(t / 2) * 32;
		if (lo && hi) {
			uint32_t pairs[16];
			for (uint32_t j = 0; j < 16; j++)
				pairs[j] = bf16_bits(lo[i + j]) | bf16_bits(hi[i + j]) << 16;
			memcpy(to, pairs, sizeof(pairs));
		} else {
			for (uint32_t j = 0; j < 16; j++)
				to[2 * j + (lo ? 0 : 1)] = (uint16_t)bf16_bits(lo ? lo[i + j] : hi[i + j]);
		}
	}
}

static void append_bf16(unsigned char *keys, unsigned char *values, uint32_t first, uint32_t n,
                        uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld)
{
	float pad[2][ATTN_MAX_KEY_DIM];
	for (uint32_t t = first; t < first + n; t++, k += ld) {
		unsigned char *to = keys + (size_t)(t / 16) * dim * 32 + t % 16 * 4;
		uint32_t pairs[ATTN_MAX_KEY_DIM / 2];
		memcpy(pad[0], k, head_dim * sizeof(float));
		memset(pad[0] + head_dim, 0, (dim - head_dim) * sizeof(float));
		for (uint32_t i = 0; i < dim / 2; i++)
			pairs[i] = bf16_bits(pad[0][2 * i]) | bf16_bits(pad[0][2 * i + 1]) << 16;
		for (uint32_t i = 0; i < dim / 2; i++)
			memcpy(to + (size_t)i * 64, &pairs[i], 4);
	}
	if (!v)
		return;
	memset(pad, 0, sizeof(pad));
	for (uint32_t t = first, step; t < first + n; t += step, v += step * ld) {
		bool two = t % 2 == 0 && t + 1 < first + n;
		step = two ? 2 : 1;
		memcpy(pad[0], v, head_dim * sizeof(float));
		if (two)
			memcpy(pad[1], v + ld, head_dim * sizeof(float));
		append_values((uint16_t *)values, t, dim, t % 2 ? NULL : pad[0],
		              t % 2 ? pad[0]
		              : two ? pad[1]
		                    : NULL);
	}
}

/* ---- values that are parts of keys ---- */

static void values_of_keys_f32(const unsigned char *keys, uint32_t dim, uint32_t value_dim,
                               unsigned char *values)
{
	const float *k = (const float *)keys;
	float *v = (float *)values;
	for (uint32_t half = 0; half < 2; half++)
		for (uint32_t i = 0; i < value_dim; i += 16)
			transpose_32(k + ((size_t)half * dim + i) * 16,
			             v + ((size_t)i * ATTN_PANEL + half * 256));
}

static void values_of_keys_bf16(const unsigned char *keys, uint32_t dim, uint32_t value_dim,
                                unsigned char *values)
{
	const uint16_t *k = (const uint16_t *)keys;
	uint16_t *v = (uint16_t *)values;
	for (uint32_t half = 0; half < 2; half++)
		for (uint32_t i = 0; i < value_dim; i += 16)
			transpose_64(k + ((size_t)half * dim + i) * 16,
			             v + ((size_t)i * ATTN_PANEL + half * 256));
}

/* clang-format off */
#define ATTN_TABLES(level)                                                                         \
	const struct attn_kernels attn_##level##_f32 = {                                               \
		.name = #level,                                                                            \
		.q_size = 4,                                                                               \
		.begin = nothing,                                                                          \
		.end = nothing,                                                                            \
		.append = append_f32,                                                                      \
		.values_of_keys = values_of_keys_f32,                                                      \
		.pack_q = pack_q_f32,                                                                      \
		.block = block_f32,                                                                        \
		.scores = part_scores_f32,                                                                 \
		.weights = part_weights,                                                                   \
		.values = part_values_f32,                                                                 \
		.fold = fold,                                                                              \
		.finish = finish,                                                                          \
	};                                                                                             \
	const struct attn_kernels attn_##level##_bf16 = {                                              \
		.name = #level,                                                                            \
		.q_size = 4,                                                                               \
		.begin = nothing,                                                                          \
		.end = nothing,                                                                            \
		.append = append_bf16,                                                                     \
		.values_of_keys = values_of_keys_bf16,                                                     \
		.pack_q = pack_q_f32,                                                                      \
		.block = block_bf16,                                                                       \
		.scores = part_scores_bf16,                                                                \
		.weights = part_weights,                                                                   \
		.values = part_values_bf16,                                                                \
		.fold = fold,                                                                              \
		.finish = finish,                                                                          \
	};                                                                                             \
	const struct attn_kernels attn_##level##_int8 = {                                              \
		.name = #level,                                                                            \
		.q_size = 4,                                                                               \
		.begin = nothing,                                                                          \
		.end = nothing,                                                                            \
		.append = append_int8,                                                                     \
		.pack_q = pack_q_int8,                                                                     \
		.block = block_int8,                                                                       \
		.fold = fold,                                                                              \
		.finish = finish,                                                                          \
	};
/* clang-format on */
