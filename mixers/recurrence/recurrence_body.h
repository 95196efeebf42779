/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence over vectors of MX_W floats, at the instruction set of the
 * including file. Sums over k_dim of S go through its rows in order, each
 * column in a lane of its own. Sums of products of two rows of k_dim elements:
 * element i in lane i % MX_W, and then vf_sum4's tree.
 */
#include <string.h>

#include "device/cpu/denormals.h"
#include "device/cpu/vec.h"
#include "mixers/recurrence/recurrence_kernels.h"

/* Tiles that leave room in the registers for their operands: 6 rows of 2 vectors in 16 registers, 8
 * in 32. Tiles of few rows have more vectors: whole lines of S, and enough sums to hide the latency
 * of FMA. */
#define TILE_ROWS (MX_W == 16 ? 8 : 6)
#define TILE_VECS 2
#define PAIR_VECS (ROW_VECS < 4 ? ROW_VECS : 4) /* of tiles of two rows */
#define ROW_VECS  (RECUR_COLS / MX_W)           /* of tiles of one row */
#define DOT_ROWS  (MX_W == 16 ? 4 : 2)

#define Q MX_RECUR_CHUNK

/* Load and store a vector of which only the first n lanes may be in memory. */
MX_INLINE vf load_some(const float *p, size_t n, float fill)
{
	return n >= MX_W ? vf_load(p) : vf_load_part(p, n, fill);
}

MX_INLINE void store_some(float *p, vf v, size_t n)
{
	if (n >= MX_W)
		vf_store(p, v);
	else
		vf_store_part(p, v, n);
}

static void pack(uint32_t n, uint32_t len, const float *from, size_t ld_from, float *to,
                 size_t ld_to)
{
	for (; n > 0; n--, from += ld_from, to += ld_to)
		for (uint32_t i = 0; i < ld_to; i += MX_W)
			vf_store(to + i, i < len ? load_some(from + i, len - i, 0) : (vf){0});
}

/* ---- scores: rows of the chunk against its keys ---- */

/* out[r][0..3] = x_r . k_0..3 */
MX_INLINE void dot_tile(const unsigned rows, const float *x, size_t ldx, const float *const *k,
                        uint32_t n, float *out)
{
	vf acc[DOT_ROWS][4];
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (unsigned j = 0; j < 4; j++)
			acc[r][j] = (vf){0};
	for (uint32_t i = 0; i < n; i += MX_W) {
		vf key[4];
#pragma GCC unroll 16
		for (unsigned j = 0; j < 4; j++)
			key[j] = vf_load(k[j] + i);
#pragma GCC unroll 16
		for (unsigned r = 0; r < rows; r++) {
			vf v = vf_load(x + r * ldx + i);
#pragma GCC unroll 16
			for (unsigned j = 0; j < 4; j++)
				acc[r][j] = vf_fma(v, key[j], acc[r][j]);
		}
	}
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++) {
		v4f sums = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
		memcpy(out + r * Q, &sums, sizeof(sums));
	}
}

/* Returns the number of keys that a row sees: those up to its own, or only those before it. */
MX_INLINE uint32_t visible(uint32_t r, bool past)
{
	return past ? r : r + 1;
}

static void dots(const struct recur_chunk *c, const float *x, uint32_t r0, uint32_t r1, bool past,
                 float *raw)
{
	uint32_t r = r0, ld = c->ldk;
	for (; r + DOT_ROWS <= r1; r += DOT_ROWS)
		for (uint32_t j = 0; j < visible(r + DOT_ROWS - 1, past); j += 4)
			dot_tile(DOT_ROWS, x + (size_t)r * ld, ld, c->k + j, ld, raw + r * Q + j);
	for (; r < r1; r++)
		for (uint32_t j = 0; j < visible(r, past); j += 4)
			dot_tile(1, x + (size_t)r * ld, ld, c->k + j, ld, raw + r * Q + j);
}

/* With one factor a token: products with keys do not depend on the factors. */
MX_INLINE void scale_row(const struct recur_chunk *c, const float *x, const float *raw, uint32_t r,
                         bool past, float *s, float *w)
{
	float p = past ? *c->a[r] : 1;
	for (uint32_t j = visible(r, past); j-- > 0; p *= *c->a[j])
		s[j] = raw[j] * p * c->gain[j];
	for (uint32_t i = 0; i < c->ldk; i += MX_W)
		vf_store(w + i, vf_load(x + i) * vf_set(p));
}

/* s[j] = w . k_j and, if there is b, s[Q + j] = w . b_j; then w *= a_j, for n tokens downwards: j =
 * n - 1 .. 0. */
MX_INLINE void decayed_dots(const unsigned n, const float *const *k, const float *const *b,
                            const float *const *a, uint32_t len, float *w, float *s)
{
	vf acc[4] = {{0}, {0}, {0}, {0}}, acc_b[4] = {{0}, {0}, {0}, {0}};
	for (uint32_t i = 0; i < len; i += MX_W) {
		vf v = vf_load(w + i);
#pragma GCC unroll 16
		for (unsigned j = n; j-- > 0;) {
			acc[j] = vf_fma(v, vf_load(k[j] + i), acc[j]);
			if (b)
				acc_b[j] = vf_fma(v, vf_load(b[j] + i), acc_b[j]);
			v *= vf_load(a[j] + i);
		}
		vf_store(w + i, v);
	}
	v4f sums = vf_sum4(acc[0], acc[1], acc[2], acc[3]);
	memcpy(s, &sums, n * sizeof(*s));
	if (!b)
		return;
	sums = vf_sum4(acc_b[0], acc_b[1], acc_b[2], acc_b[3]);
	memcpy(s + Q, &sums, n * sizeof(*s));
}

/* With a factor for each element: products are computed while x decays. */
MX_INLINE void decay_row(const bool removal, const struct recur_chunk *c, const float *x,
                         uint32_t r, bool past, float *s, float *w)
{
	const float *const *b = removal ? c->b : NULL;
	uint32_t j = visible(r, past);
	for (uint32_t i = 0; i < c->ldk; i += MX_W) {
		vf v = vf_load(x + i);
		vf_store(w + i, past && !removal ? v * vf_load(c->a[r] + i) : v);
	}
	for (; j >= 4; j -= 4)
		decayed_dots(4, c->k + j - 4, b ? b + j - 4 : NULL, c->a + j - 4, c->ldk, w, s + j - 4);
	for (; j > 0; j--)
		decayed_dots(1, c->k + j - 1, b ? b + j - 1 : NULL, c->a + j - 1, c->ldk, w, s + j - 1);
}

static void scores(const struct recur_chunk *c, const float *x, const float *raw, uint32_t r0,
                   uint32_t r1, bool past, float *s, float *w, size_t step)
{
	const size_t lds = recur_scores(c->removal);
	for (uint32_t r = r0; r < r1; r++, s += step * lds, w += step * c->ldk) {
		const float *row = x + (size_t)r * c->ldk;
		if (c->removal)
			decay_row(true, c, row, r, past, s, w);
		else if (c->vector)
			decay_row(false, c, row, r, past, s, w);
		else
			scale_row(c, row, raw + r * Q, r, past, s, w);
	}
}

/* ---- the decayed keys of a whole chunk, for fold ---- */

static void keys(const struct recur_chunk *c, float *k, float *d)
{
	float p = 1, factor[Q];
	for (unsigned j = Q; !c->vector && j-- > 0; p *= *c->a[j])
		factor[j] = p * c->gain[j];
	for (uint32_t i = 0; i < c->ldk; i += MX_W) {
		vf v = vf_set(1);
		for (unsigned j = Q; j-- > 0;) {
			vf_store(k + (size_t)j * c->ldk + i,
			         vf_load(c->k[j] + i) * (c->vector ? v : vf_set(factor[j])));
			if (c->removal)
				vf_store(k + (size_t)(Q + j) * c->ldk + i, vf_load(c->b[j] + i) * v);
			if (c->vector)
				v *= vf_load(c->a[j] + i);
		}
		vf_store(d + i, c->vector ? v : vf_set(p));
	}
}

/* ---- tiles: some rows times some vectors of columns, in registers ---- */

/* acc[r][v] += x[r * ldx] * row[v] */
MX_INLINE void tile_add(const unsigned rows, const unsigned vecs, vf (*acc)[ROW_VECS],
                        const float *x, size_t ldx, const float *row)
{
	vf b[ROW_VECS];
#pragma GCC unroll 16
	for (unsigned v = 0; v < vecs; v++)
		b[v] = vf_load(row + v * MX_W);
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++) {
		vf a = vf_set(x[r * ldx]);
#pragma GCC unroll 16
		for (unsigned v = 0; v < vecs; v++)
			acc[r][v] = vf_fma(a, b[v], acc[r][v]);
	}
}

/* acc = S^T w */
MX_INLINE void tile_read(const unsigned rows, const unsigned vecs, vf (*acc)[ROW_VECS],
                         uint32_t k_dim, const float *w, size_t ldw, const float *S, uint32_t width)
{
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (unsigned v = 0; v < vecs; v++)
			acc[r][v] = (vf){0};
	for (uint32_t k = 0; k < k_dim; k++)
		tile_add(rows, vecs, acc, w + k, ldw, S + (size_t)k * width);
}

/* ---- rows of a chunk: outputs, and u of the delta rule ---- */

/* The operands of merge at some columns. */
struct merge_at {
	const struct recur_chunk *c;
	uint32_t col, width;
	const float *S, *v;
	size_t ldv;
	const float *beta;
	size_t ldy;
	uint32_t used;
};

/* u_r = beta_r (v_r - acc) */
MX_INLINE void delta_row(const unsigned vecs, const struct merge_at *m, uint32_t r, const vf *acc)
{
	float *u = m->c->u[r] + m->col;
	const float *v = m->v + r * m->ldv + m->col;
#pragma GCC unroll 16
	for (unsigned i = 0; i < vecs; i++)
		vf_store(u + i * MX_W, vf_set(m->beta[r]) * (vf_load(v + i * MX_W) - acc[i]));
}

/* p_r = -acc */
MX_INLINE void removal_row(const unsigned vecs, const struct merge_at *m, uint32_t r, const vf *acc)
{
	float *p = m->c->p[r] + m->col;
#pragma GCC unroll 16
	for (unsigned i = 0; i < vecs; i++)
		vf_store(p + i * MX_W, -acc[i]);
}

/* What sums a row of merge has. */
enum rule { ADD, DELTA, REMOVAL };

/* Rows r .. r + rows - 1: 2 sums for each row with the delta rule and with removal, else 1. */
MX_INLINE void merge_tile(const unsigned rows, const enum rule rule, const unsigned vecs,
                          const struct merge_at *m, uint32_t r, const float *w, const float *s,
                          float *y)
{
	const unsigned each = rule == ADD ? 1 : 2, lds = rule == REMOVAL ? 2 * Q : Q;
	const struct recur_chunk *c = m->c;
	vf acc[TILE_ROWS][ROW_VECS];
	tile_read(rows * each, vecs, acc, c->k_dim, w, c->ldk, m->S, m->width);
	for (uint32_t j = 0; j < r; j++) {
		tile_add(rows * each, vecs, acc, s + j, lds, c->u[j] + m->col);
		if (rule == REMOVAL)
			tile_add(rows * each, vecs, acc, s + Q + j, lds, c->p[j] + m->col);
	}
#pragma GCC unroll 16
	for (unsigned i = 0; i < rows; i++) { /* token r + i is seen by its own row and those after */
		const unsigned seen = each * i + each - 1;
		const float *scores = s + seen * lds + r + i;
		if (rule == DELTA)
			delta_row(vecs, m, r + i, acc[each * i]);
		if (rule == REMOVAL)
			removal_row(vecs, m, r + i, acc[each * i]);
		tile_add(rows * each - seen, vecs, acc + seen, scores, lds, c->u[r + i] + m->col);
		if (rule == REMOVAL)
			tile_add(rows * each - seen, vecs, acc + seen, scores + Q, lds, c->p[r + i] + m->col);
	}
	if (m->used >= vecs * MX_W) {
#pragma GCC unroll 16
		for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 16
			for (unsigned n = 0; n < vecs; n++)
				vf_store(y + i * m->ldy + n * MX_W, acc[each * i + each - 1][n]);
	} else { /* the last columns of a head */
		float row[ROW_VECS * MX_W];
		for (unsigned i = 0; i < rows; i++) {
			for (unsigned n = 0; n < vecs; n++)
				vf_store(row + n * MX_W, acc[each * i + each - 1][n]);
			memcpy(y + i * m->ldy, row, m->used * sizeof(*row));
		}
	}
}

MX_INLINE void merge_rows(const unsigned rows, const enum rule rule, const unsigned vecs,
                          struct merge_at m, uint32_t r, const float *w, const float *s, float *y)
{
	uint32_t end = m.col + m.width, used = m.used;
	for (uint32_t i = 0, n; i < m.width; i += n, m.col += n, m.S += n) {
		m.used = used > i ? used - i : 0;
		n = m.col + vecs * MX_W <= end ? vecs * MX_W : MX_W;
		if (n == vecs * MX_W)
			merge_tile(rows, rule, vecs, &m, r, w, s, y + i);
		else
			merge_tile(rows, rule, 1, &m, r, w, s, y + i);
	}
}

/* Returns the rows of the next tile. Tiles have constant sizes: their sums remain in registers. */
static uint32_t tile_rows(uint32_t left, uint32_t most)
{
	return left >= most ? most : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* n rows of two sums each. */
MX_INLINE void merge_pairs(const enum rule rule, uint32_t n, const struct merge_at m, uint32_t r,
                           const float *w, const float *s, float *y)
{
	switch (n) {
	case TILE_ROWS / 2: merge_rows(TILE_ROWS / 2, rule, TILE_VECS, m, r, w, s, y); break;
	case 2: merge_rows(2, rule, TILE_VECS, m, r, w, s, y); break;
	default: merge_rows(1, rule, PAIR_VECS, m, r, w, s, y); break;
	}
}

static void merge(const struct recur_chunk *c, uint32_t r0, uint32_t r1, uint32_t col,
                  uint32_t width, const float *w, const float *S, const float *s, const float *v,
                  size_t ldv, const float *beta, float *y, size_t ldy, uint32_t used)
{
	const struct merge_at m = {c, col, width, S, v, ldv, beta, ldy, used};
	const uint32_t each = beta || c->removal ? 2 : 1, lds = recur_scores(c->removal);
	for (uint32_t r = r0, n; r < r1;
	     r += n, w += each * n * c->ldk, s += each * n * lds, y += n * ldy) {
		n = tile_rows(r1 - r, TILE_ROWS / each);
		if (c->removal)
			merge_pairs(REMOVAL, n, m, r, w, s, y);
		else if (beta)
			merge_pairs(DELTA, n, m, r, w, s, y);
		else
			switch (n) {
			case TILE_ROWS: merge_rows(TILE_ROWS, ADD, TILE_VECS, m, r, w, s, y); break;
			case 4: merge_rows(4, ADD, TILE_VECS, m, r, w, s, y); break;
			case 2: merge_rows(2, ADD, PAIR_VECS, m, r, w, s, y); break;
			default: merge_rows(1, ADD, ROW_VECS, m, r, w, s, y); break;
			}
	}
}

/* ---- a chunk is folded into S ---- */

/* Fetches one more of the rows that are needed next. */
MX_INLINE void fetch_row(struct recur_ahead *a)
{
	if (a->next == a->n)
		return;
	const float *row = a->rows[a->next];
	uint32_t len = a->len[a->next++];
	for (uint32_t i = 0; i < len; i += RECUR_LINE)
		__builtin_prefetch(row + i);
}

/* `width` and `removal` are constants of a whole block: then all offsets are. */
MX_INLINE void fold_tile(const unsigned rows, const unsigned vecs, const bool removal,
                         const uint32_t width, const struct recur_chunk *c, const float *k,
                         const float *d, uint32_t col, const float *S, float *to)
{
	vf acc[TILE_ROWS][ROW_VECS];
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (unsigned v = 0; v < vecs; v++)
			acc[r][v] = vf_set(d[r]) * vf_load(S + r * width + v * MX_W);
	for (unsigned j = 0; j < Q; j++) {
		tile_add(rows, vecs, acc, k + (size_t)j * c->ldk, 1, c->u[j] + col);
		if (removal)
			tile_add(rows, vecs, acc, k + (size_t)(Q + j) * c->ldk, 1, c->p[j] + col);
	}
#pragma GCC unroll 16
	for (unsigned r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (unsigned v = 0; v < vecs; v++)
			vf_store(to + r * width + v * MX_W, acc[r][v]);
}

MX_INLINE void fold_rows(const unsigned rows, const unsigned vecs, const bool removal,
                         const uint32_t width, const struct recur_chunk *c, const float *k,
                         const float *d, uint32_t col, const float *S, float *to)
{
	uint32_t i = 0;
	for (; i + vecs * MX_W <= width; i += vecs * MX_W)
		fold_tile(rows, vecs, removal, width, c, k, d, col + i, S + i, to + i);
	for (; i < width; i += MX_W)
		fold_tile(rows, 1, removal, width, c, k, d, col + i, S + i, to + i);
}

MX_INLINE void fold_block(const bool removal, const uint32_t width, const struct recur_chunk *c,
                          const float *k, const float *d, uint32_t col, const float *S, float *to,
                          struct recur_ahead *ahead)
{
	for (uint32_t i = 0, n; i < c->k_dim; i += n) {
		size_t at = (size_t)i * width;
		fetch_row(ahead);
		n = tile_rows(c->k_dim - i, TILE_ROWS);
		switch (n) {
		case TILE_ROWS:
			fold_rows(TILE_ROWS, TILE_VECS, removal, width, c, k + i, d + i, col, S + at, to + at);
			break;
		case 4:
			fold_rows(4, TILE_VECS, removal, width, c, k + i, d + i, col, S + at, to + at);
			break;
		case 2:
			fold_rows(2, PAIR_VECS, removal, width, c, k + i, d + i, col, S + at, to + at);
			break;
		default:
			fold_rows(1, ROW_VECS, removal, width, c, k + i, d + i, col, S + at, to + at);
			break;
		}
	}
}

static void fold(const struct recur_chunk *c, const float *k, const float *d, uint32_t col,
                 uint32_t width, const float *S, float *to, struct recur_ahead *ahead)
{
	if (c->removal && width == RECUR_COLS)
		fold_block(true, RECUR_COLS, c, k, d, col, S, to, ahead);
	else if (c->removal)
		fold_block(true, width, c, k, d, col, S, to, ahead);
	else if (width == RECUR_COLS)
		fold_block(false, RECUR_COLS, c, k, d, col, S, to, ahead);
	else
		fold_block(false, width, c, k, d, col, S, to, ahead);
}

/* ---- MX_RECUR_CHANNEL: each channel on its own ---- */

#define SCAN_VECS (64 / MX_W < 8 ? 64 / MX_W : 8)

/* Whole vectors, several cache lines of a row at once. */
MX_INLINE void scan_tile(const unsigned vecs, uint32_t n, const float *a, size_t lda,
                         const float *v, size_t ldv, float *h, float *y, size_t ldy)
{
	vf state[SCAN_VECS];
#pragma GCC unroll 16
	for (unsigned i = 0; i < vecs; i++)
		state[i] = vf_load(h + i * MX_W);
	for (uint32_t t = 0; t < n; t++, a += lda, v += ldv) {
#pragma GCC unroll 16
		for (unsigned i = 0; i < vecs; i++)
			state[i] = vf_fma(vf_load(a + i * MX_W), state[i], vf_load(v + i * MX_W));
		if (!y)
			continue;
#pragma GCC unroll 16
		for (unsigned i = 0; i < vecs; i++)
			vf_store(y + t * ldy + i * MX_W, state[i]);
	}
#pragma GCC unroll 16
	for (unsigned i = 0; i < vecs; i++)
		vf_store(h + i * MX_W, state[i]);
}

static void scan_last(uint32_t n, size_t lanes, const float *a, size_t lda, const float *v,
                      size_t ldv, float *h, float *y, size_t ldy)
{
	vf state = vf_load(h); /* padded */
	for (uint32_t t = 0; t < n; t++) {
		state =
			vf_fma(vf_load_part(a + t * lda, lanes, 0), state, vf_load_part(v + t * ldv, lanes, 0));
		if (y)
			vf_store_part(y + t * ldy, state, lanes);
	}
	vf_store(h, state);
}

static void scan(uint32_t n, uint32_t width, const float *a, size_t lda, const float *v, size_t ldv,
                 float *h, float *y, size_t ldy)
{
	uint32_t i = 0;
	for (; i + SCAN_VECS * MX_W <= width; i += SCAN_VECS * MX_W)
		scan_tile(SCAN_VECS, n, a + i, lda, v + i, ldv, h + i, y ? y + i : y, ldy);
	for (; i + MX_W <= width; i += MX_W)
		scan_tile(1, n, a + i, lda, v + i, ldv, h + i, y ? y + i : y, ldy);
	if (i < width)
		scan_last(n, width - i, a + i, lda, v + i, ldv, h + i, y ? y + i : y, ldy);
}

#undef Q
