/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of bf16.c: products with few rows of x, which are bound by memory. The
 * weight is read where it lies. How it is read decides the speed (bench/NOTES.md):
 *
 * - `apart`: rows that lie far apart together, so that memory is read in some long
 *   runs, which the hardware's prefetchers follow, also from page to page. For one
 *   or two rows of x, and for more if they are short.
 * - `tiles`: while a tile is multiplied, the next one is asked for in the order of
 *   addresses, spread evenly, into the second-level cache.
 */

/* ---- rows of the weight that lie apart ---- */

#define BF16_APART      6 /* most rows of x */
#define BF16_APART_LONG 2 /* the same with more than BF16_APART_COLS columns */
#define BF16_APART_COLS 1024
#define BF16_APART_R    6 /* most rows of the weight at a time */

/* Takes R rows of the weight at a time, which lie an R-th of all rows apart. */
MX_INLINE void bf16_apart(const int C, const int R, const struct mx_product *p, size_t r0,
                          size_t r1)
{
	const size_t cols = p->w->cols, ldx = bf16_padded(cols), block = bf16_block(cols);
	const size_t n = (size_t)R, apart = (r1 - r0 + n - 1) / n;
	const uint16_t *x = p->packed;
	for (size_t r = r0; r < r0 + apart; r++) {
		const size_t rest = (r1 - r + apart - 1) / apart, n_r = rest < n ? rest : n;
		const uint16_t *row[BF16_APART_R];
		for (size_t j = 0; j < n; j++) /* past the end: the last row again, unused */
			row[j] = (const uint16_t *)p->w->data + (r + (j < n_r ? j : n_r - 1) * apart) * cols;
		for (size_t k = 0; k < cols;) {
			const size_t end = cols - k < block ? cols : k + block;
			vf acc[BF16_APART_R][BF16_C] = {{{0}}};
			for (; k + BF16_STEP <= end; k += BF16_STEP)
				bf16_step(R, C, row, BF16_STEP, x, ldx, k, acc);
			if (k < end)
				bf16_step(R, C, row, end - k, x, ldx, k, acc);
			const bool first = end <= block;
			k = end;
#pragma GCC unroll 4
			for (int c = 0; c < C; c++) {
				float *y = p->y + (size_t)c * p->ldy + r;
				const v4f sums[2] = {vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]),
				                     R > 4 ? vf_sum4(acc[4][c], acc[5][c], acc[4][c], acc[5][c])
				                           : (v4f){0}};
				for (size_t j = 0; j < n_r; j++) {
					float *to = &y[j * apart];
					*to = (first ? bf16_begin(p, r + j * apart, to) : *to) + sums[j / 4][j % 4];
				}
			}
		}
	}
}

typedef void bf16_apart_f(const struct mx_product *p, size_t r0, size_t r1);

/* One function for each number of rows of x, so that the sums stay in registers. */
#define BF16_APART_OF(C, R)                                                                        \
	static void bf16_apart_##C(const struct mx_product *p, size_t r0, size_t r1)                   \
	{                                                                                              \
		bf16_apart(C, R, p, r0, r1);                                                               \
	}
BF16_APART_OF(1, 6)
BF16_APART_OF(2, 4)
BF16_APART_OF(3, 4)
BF16_APART_OF(4, 4)
BF16_APART_OF(5, 4)
BF16_APART_OF(6, 4)

static bf16_apart_f *const bf16_apart_of[BF16_APART] = {bf16_apart_1, bf16_apart_2, bf16_apart_3,
                                                        bf16_apart_4, bf16_apart_5, bf16_apart_6};

/* ---- tiles ---- */

/* n columns of a tile, from k on: n_r weight rows from r on, rows of x from i on. */
struct bf16_few_tile {
	const struct mx_product *p;
	size_t r, n_r, i, k, n;
};

/* y += the products of a tile with C rows of x. Each step prefetches ASK lines from `next` on. */
MX_INLINE void bf16_tile(const int C, const int ASK, const struct bf16_few_tile *t,
                         const char *next)
{
	const struct mx_product *p = t->p;
	const size_t cols = p->w->cols, ldx = bf16_padded(cols), n = t->n, n_r = t->n_r;
	const uint16_t *w = (const uint16_t *)p->w->data + t->r * cols + t->k;
	const uint16_t *x = (const uint16_t *)p->packed + t->i * ldx + t->k;
	/* past the end: the last row again, unused */
	const uint16_t *row[BF16_R] = {w, w + (n_r > 1 ? 1 : n_r - 1) * cols,
	                               w + (n_r > 2 ? 2 : n_r - 1) * cols,
	                               w + (n_r > 3 ? 3 : n_r - 1) * cols};
	vf acc[BF16_R][BF16_C];
	size_t k = 0;
#pragma GCC unroll 8
	for (int r = 0; r < BF16_R; r++)
#pragma GCC unroll 8
		for (int c = 0; c < C; c++)
			acc[r][c] = (vf){0};
	for (; k + BF16_STEP <= n; k += BF16_STEP) {
#pragma GCC unroll 4
		for (int i = 0; i < ASK; i++, next += 64)
			_mm_prefetch(next, _MM_HINT_T1);
		bf16_step(BF16_R, C, row, BF16_STEP, x, ldx, k, acc);
	}
	if (k < n)
		bf16_step(BF16_R, C, row, n - k, x, ldx, k, acc);
	float *y = p->y + t->i * p->ldy + t->r;
#pragma GCC unroll 8
	for (int c = 0; c < C; c++, y += p->ldy) {
		const v4f sums = vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
		bf16_add(p, t->k == 0, t->r, n_r, sums, y);
	}
}

typedef void bf16_tile_f(const struct bf16_few_tile *t, const char *next);

#define BF16_TILE(C, ASK)                                                                          \
	static void bf16_tile_##C##_##ASK(const struct bf16_few_tile *t, const char *next)             \
	{                                                                                              \
		bf16_tile(C, ASK, t, next);                                                                \
	}
#define BF16_TILES(C) BF16_TILE(C, 0) BF16_TILE(C, 2) BF16_TILE(C, 4)
#define BF16_NAMES(C)                                                                              \
	{                                                                                              \
		bf16_tile_##C##_0, bf16_tile_##C##_2, bf16_tile_##C##_4,                                   \
	}
BF16_TILES(3)
BF16_TILES(4)
BF16_TILES(5)
BF16_TILES(6)

/* Indices: rows of x less 3; half the lines that a step asks for. */
static bf16_tile_f *const bf16_tile_of[BF16_C - 2][3] = {
	BF16_NAMES(3),
	BF16_NAMES(4),
	BF16_NAMES(5),
	BF16_NAMES(6),
};

/* Rows of the weight that pass by some rows of x before the next rows of x do. With two passes over
 * short rows, two tiles and the rows of x of a pass fit in the first-level cache. From four passes
 * on, x comes from the second level: once for four tiles. */
static size_t bf16_group(size_t passes, size_t cols)
{
	if (passes >= 4)
		return (size_t)4 * BF16_R;
	return passes == 2 && cols <= BF16_APART_COLS ? (size_t)2 * BF16_R : BF16_R;
}

/* Multiplies at least 3 rows of x: all passes have 3 to 6 of them. */
static void bf16_few(const struct mx_product *p, size_t r0, size_t r1)
{
	const size_t cols = p->w->cols, block = bf16_block(cols);
	const size_t passes = (p->n + BF16_C - 1) / BF16_C, group = bf16_group(passes, cols);
	struct bf16_few_tile t = {.p = p};
	for (size_t r = r0, end; r < r1; r = end) {
		end = r1 - r < group ? r1 : r + group;
		const char *next = (const char *)((const uint16_t *)p->w->data + end * cols);
		for (t.k = 0; t.k < cols; t.k += t.n) {
			t.n = cols - t.k < block ? cols - t.k : block;
			size_t c, pass = 0;
			for (t.i = 0; t.i < p->n; t.i += c, pass++) {
				c = (p->n - t.i + passes - pass - 1) / (passes - pass);
				/* four lines a step in all */
				const size_t ask = pass > 1 ? 0 : passes == 1 ? 2 : 1;
				for (t.r = r; t.r < end; t.r += BF16_R) {
					t.n_r = end - t.r < BF16_R ? end - t.r : BF16_R;
					bf16_tile_of[c - 3][ask](&t, next);
					next += ask * 2 * (t.n / BF16_STEP) * 64;
				}
			}
		}
	}
}
