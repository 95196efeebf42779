/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over keys and values in 8 bits, for every level: included by its file behind the
 * vectors and operations that softmax_body.h lists.
 *
 * A head of a token's keys, and of its values, has codes and a scale, the largest magnitude / 127.
 * A query row is rounded to 8 bits likewise; probabilities, times the scales of their values, to 16
 * bits of the largest in the block, in two bytes. Products are sums of integers, so exact: they
 * have the same bits at every level and for any number of rows.
 *
 * The includer defines vi, a vector of 16 integers of 32 bits: vi_zero, vi_load, vi_float(v,
 * subtracted) (to v16), vi_store_bytes(x, high, low) (x in 0 .. 65535.5 without its fraction), and,
 * for a quad of bytes that goes to all lanes, vi_dot_keys(sum, keys, quad), whose quad is signed
 * and whose keys are not, and vi_dot_values(sum, values, quad), the reverse.
 */
#define INT8_ROWS 4 /* query rows of a pass: 16 sums of values in two bytes */

/* A packed query row, in the place of f32 [dim]: codes [dim], then this. */
struct int8_row {
	float scale;
	int32_t offset; /* 128 times the sum of the codes: what unsigned keys add */
};

/* Returns the scale of a head's elements; infinite unless all are finite, so that outputs are not
 * either. */
static float int8_scale(const float *x, uint32_t n)
{
	float most = 0;
	bool finite = true;
	for (uint32_t i = 0; i < n; i++) {
		float a = fabsf(x[i]);
		finite &= a <= FLT_MAX;
		most = a > most ? a : most;
	}
	return finite ? most / 127 : INFINITY;
}

/* Rounds x / scale to codes [dim]; the padding is zero. */
static void int8_codes(const float *x, uint32_t n, uint32_t dim, float scale, int8_t *to)
{
	/* the reciprocals of the smallest scales are infinite */
	const float inverse = scale > 1e-37f && scale <= FLT_MAX ? 1 / scale : 0;
	for (uint32_t i = 0; i < n; i++)
		to[i] = (int8_t)lrintf(inverse > 0 ? x[i] * inverse : 0);
	memset(to + n, 0, dim - n);
}

static void append_int8(unsigned char *keys, unsigned char *values, uint32_t first, uint32_t n,
                        uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld)
{
	int8_t codes[ATTN_MAX_KEY_DIM];
	for (uint32_t t = first; t < first + n; t++, k += ld, v += ld) {
		float scale = int8_scale(k, head_dim);
		int8_codes(k, head_dim, dim, scale, codes);
		for (uint32_t i = 0; i < dim; i++)
			keys[(size_t)(t / 16) * dim * 16 + (size_t)(i / 4) * 64 + t % 16 * 4 + i % 4] =
				(unsigned char)(codes[i] + 128);
		memcpy(keys + (size_t)dim * ATTN_PANEL + (size_t)t * 4, &scale, 4);
		scale = int8_scale(v, head_dim);
		int8_codes(v, head_dim, dim, scale, codes);
		for (uint32_t i = 0; i < dim; i++)
			values[(size_t)(i / 16) * 16 * ATTN_PANEL + (size_t)(t / 4) * 64 + i % 16 * 4 + t % 4] =
				(unsigned char)codes[i];
		memcpy(values + (size_t)dim * ATTN_PANEL + (size_t)t * 4, &scale, 4);
	}
}

static void pack_q_int8(void *tiles, uint32_t row, uint32_t head_dim, uint32_t dim, const float *q)
{
	unsigned char *to = (unsigned char *)tiles + (size_t)row * dim * 4;
	struct int8_row r = {.scale = int8_scale(q, head_dim)};
	int8_codes(q, head_dim, dim, r.scale, (int8_t *)to);
	for (uint32_t i = 0; i < dim; i++)
		r.offset += 128 * ((const int8_t *)to)[i];
	memcpy(to + dim, &r, sizeof r);
}

ALWAYS_INLINE int32_t int8_quad(const unsigned char *p)
{
	int32_t quad;
	memcpy(&quad, p, 4);
	return quad;
}

/* s[row][token] = q . k of one panel. */
ALWAYS_INLINE void int8_scores(const unsigned char *q, const unsigned char *keys, uint32_t dim,
                               const unsigned rows, const unsigned char *next, float *s)
{
	const unsigned char *other = keys + (size_t)dim * 16;
	const float *scales = (const float *)(const void *)(keys + (size_t)dim * ATTN_PANEL);
	vi acc0[INT8_ROWS], acc1[INT8_ROWS];
	for (unsigned r = 0; r < rows; r++)
		acc0[r] = acc1[r] = vi_zero();
	for (uint32_t i = 0; i < dim; i += 4) {
		vi k0 = vi_load(keys + (size_t)i * 16), k1 = vi_load(other + (size_t)i * 16);
		if (next)
			attn_fetch_pair(next + (size_t)i * 32);
		for (unsigned r = 0; r < rows; r++) {
			int32_t quad = int8_quad(q + (size_t)r * dim * 4 + i);
			acc0[r] = vi_dot_keys(acc0[r], k0, quad);
			acc1[r] = vi_dot_keys(acc1[r], k1, quad);
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		struct int8_row own;
		memcpy(&own, q + (size_t)r * dim * 4 + dim, sizeof own);
		v16 scale = v_set1(own.scale);
		v_store(s + r * ATTN_BLOCK,
		        v_mul(v_mul(vi_float(acc0[r], own.offset), scale), v_load(scales)));
		v_store(s + r * ATTN_BLOCK + 16,
		        v_mul(v_mul(vi_float(acc1[r], own.offset), scale), v_load(scales + 16)));
	}
}

/* Rounds a row of probabilities, times the scales of their values, to two bytes. Returns the factor
 * of their products. */
static float int8_weights(const struct attn_task *t, struct range g, float *p, unsigned char *high,
                          unsigned char *low)
{
	v16 most = v_zero();
	for (uint32_t c = g.c0; c < g.c1; c++) {
		const float *scales =
			(const float *)(const void *)(t->values[c] + (size_t)t->value_dim * ATTN_PANEL);
		for (uint32_t j = 0; j < ATTN_PANEL; j += 16) {
			float *at = p + c * ATTN_PANEL + j;
			/* NaN becomes 0: 0 times a scale that was never written, or is infinite */
			v16 x = v_max(v_mul(v_load(at), v_load(scales + j)), v_zero());
			most = v_max(most, x);
			v_store(at, x);
		}
	}
	const float top = v_hmax(most);
	const bool finite = top <= FLT_MAX;
	const float inverse = finite && top > 1e-30f ? 65535 / top : 0;
	if (!(inverse > 0))
		memset(p, 0, g.c1 * ATTN_PANEL * sizeof *p); /* of infinity there are no codes */
	for (uint32_t i = g.c0 * ATTN_PANEL; i < g.c1 * ATTN_PANEL; i += 16)
		vi_store_bytes(v_fma(v_load(p + i), v_set1(inverse), v_set1(0.5f)), high + i, low + i);
	return finite ? top / 65535 : NAN;
}

/* o[row][dim] = p . v, dimensions i .. i + 31. */
ALWAYS_INLINE void int8_values(const struct attn_task *t, struct range g, const unsigned char *p,
                               const float *factors, const unsigned rows, uint32_t i,
                               const int fetch, float *o)
{
	vi high0[INT8_ROWS], high1[INT8_ROWS], low0[INT8_ROWS], low1[INT8_ROWS];
	for (unsigned r = 0; r < rows; r++)
		high0[r] = high1[r] = low0[r] = low1[r] = vi_zero();
	for (uint32_t c = g.c0; c < g.c1; c++) {
		const unsigned char *v = t->values[c] + (size_t)i * ATTN_PANEL;
		const unsigned char *ahead = fetch ? attn_values_ahead(t, g.c0, g.c1, c, i, 32, 1) : NULL;
		for (uint32_t j = 0; j < ATTN_PANEL; j += 4) {
			vi v0 = vi_load(v + (size_t)j * 16), v1 = vi_load(v + (size_t)(ATTN_PANEL + j) * 16);
			if (ahead)
				attn_fetch_pair(ahead + (size_t)j * 32);
			for (unsigned r = 0; r < rows; r++) {
				const unsigned char *at = p + (size_t)r * 2 * ATTN_BLOCK + c * ATTN_PANEL + j;
				int32_t high = int8_quad(at), low = int8_quad(at + ATTN_BLOCK);
				high0[r] = vi_dot_values(high0[r], v0, high);
				high1[r] = vi_dot_values(high1[r], v1, high);
				low0[r] = vi_dot_values(low0[r], v0, low);
				low1[r] = vi_dot_values(low1[r], v1, low);
			}
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		float *to = o + (size_t)r * t->value_dim + i;
		v16 byte = v_set1(256), factor = v_set1(factors[r]);
		v_store(to, v_mul(v_fma(vi_float(high0[r], 0), byte, vi_float(low0[r], 0)), factor));
		v_store(to + 16, v_mul(v_fma(vi_float(high1[r], 0), byte, vi_float(low1[r], 0)), factor));
	}
}

/* Rows r0 .. r0 + rows - 1, all in one range of panels: scores, softmax, outputs, fold. */
ALWAYS_INLINE void int8_block_rows(const struct attn_task *t, struct range g, uint32_t r0,
                                   const unsigned rows, const int fetch, float *m, float *l,
                                   float *o)
{
	const unsigned char *q = (const unsigned char *)t->q + (size_t)r0 * t->dim * 4;
	float *s = (float *)t->work, *ob = s + ATTN_TILE * ATTN_BLOCK;
	unsigned char *p = (unsigned char *)(ob + (size_t)INT8_ROWS * ATTN_MAX_DIM);
	float mb[INT8_ROWS], lb[INT8_ROWS], factors[INT8_ROWS];

	for (uint32_t c = g.c0; c < g.c1; c++)
		int8_scores(q, t->keys[c], t->dim, rows, fetch ? attn_keys_ahead(t, g.c0, g.c1, c) : NULL,
		            s + c * ATTN_PANEL);
	for (uint32_t r = 0; r < rows; r++) {
		unsigned char *high = p + (size_t)r * 2 * ATTN_BLOCK;
		float *own = s + (size_t)r * ATTN_BLOCK;
		softmax_row(t, g, r0 + r, own, &mb[r], &lb[r]);
		factors[r] = int8_weights(t, g, own, high, high + ATTN_BLOCK);
	}
	for (uint32_t i = 0; i < t->value_dim; i += 32)
		int8_values(t, g, p, factors, rows, i, fetch, ob);
	INT8_FOLD(rows, t->value_dim, m + r0, l + r0, o + (size_t)r0 * t->value_dim, mb, lb, ob);
}

static void block_int8(const struct attn_task *t, float *m, float *l, float *o)
{
	struct range g;
	uint32_t r = 0;
	for (; r + INT8_ROWS <= t->rows; r += INT8_ROWS)
		if (attn_visible(t, r, INT8_ROWS, &g.c0, &g.c1))
			int8_block_rows(t, g, r, INT8_ROWS, !r && attn_is_few(t), m, l, o);
	for (; r < t->rows; r++)
		if (attn_visible(t, r, 1, &g.c0, &g.c1))
			int8_block_rows(t, g, r, 1, !r && attn_is_few(t), m, l, o);
}
