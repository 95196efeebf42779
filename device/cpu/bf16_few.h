/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of bf16.c: products with few rows of x, which are bound by memory. The
 * weight is read where it lies. How it is read decides the speed (bench/NOTES.md):
 *
 * - `lines`: row after row, as long as x stays in the first-level cache. The loads
 *   in flight are so many that memory is the roof.
 * - `touched`: a tile of rows is loaded once in the order of addresses, which the
 *   hardware's prefetcher follows, and then multiplied. For short rows.
 * - `tiles`: while a tile is multiplied, the next one is asked for in the order of
 *   addresses, spread evenly, into the second-level cache.
 */

/* ---- rows of the weight one after the other ---- */

#define BF16_LINES        2    /* most rows of x */
#define BF16_LINES_COLS   4608 /* most columns of all rows of x together, unless it is one */
#define BF16_LINES_BLOCKS 8    /* most blocks of columns */

MX_INLINE void bf16_lines(const int C, const struct mx_product *p, size_t r0, size_t r1)
{
	const size_t cols = p->w->cols, ldx = bf16_padded(cols), block = bf16_block(cols);
	const uint16_t *base = (const uint16_t *)p->w->data + r0 * cols, *x = p->packed;
	for (size_t r = r0; r < r1; r += BF16_R, base += BF16_R * cols) {
		vf sums[BF16_LINES_BLOCKS][BF16_LINES][BF16_R];
		const size_t n_r = r1 - r < BF16_R ? r1 - r : BF16_R;
		size_t n = 0;
		for (size_t j = 0; j < BF16_R; j++) {
			/* past the end: the last row again, unused */
			const uint16_t *row = base + (j < n_r ? j : n_r - 1) * cols;
			size_t k = 0;
			for (n = 0; k < cols; n++) {
				const size_t end = cols - k < block ? cols : k + block;
				vf acc[BF16_R][BF16_C] = {{{0}}};
				for (; k + BF16_STEP <= end; k += BF16_STEP)
					bf16_step(1, C, &row, BF16_STEP, x, ldx, k, acc);
				if (k < end)
					bf16_step(1, C, &row, end - k, x, ldx, k, acc);
				k = end;
#pragma GCC unroll 4
				for (int c = 0; c < C; c++)
					sums[n][c][j] = acc[0][c];
			}
		}
		for (size_t i = 0; i < n; i++)
			for (size_t c = 0; c < (size_t)C; c++) {
				const vf *s = sums[i][c];
				bf16_add(p->y + c * p->ldy + r, n_r, vf_sum4(s[0], s[1], s[2], s[3]));
			}
	}
}

typedef void bf16_lines_f(const struct mx_product *p, size_t r0, size_t r1);

/* One function for each number of rows of x, so that the sums stay in registers. */
#define BF16_LINES_OF(C)                                                                           \
	static void bf16_lines_##C(const struct mx_product *p, size_t r0, size_t r1)                   \
	{                                                                                              \
		bf16_lines(C, p, r0, r1);                                                                  \
	}
BF16_LINES_OF(1)
BF16_LINES_OF(2)

static bf16_lines_f *const bf16_lines_of[BF16_LINES] = {bf16_lines_1, bf16_lines_2};

/* ---- tiles ---- */

/* sums[c] = the products of n columns of BF16_R rows of the weight with row c of x. Each step
 * prefetches ASK lines from `next` on. */
MX_INLINE void bf16_tile(const int C, const int ASK, const uint16_t *const *rows, const uint16_t *x,
                         size_t ldx, size_t n, const char *next, v4f *sums)
{
	const uint16_t *row[BF16_R] = {rows[0], rows[1], rows[2], rows[3]};
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
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		sums[c] = vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
}

typedef void bf16_tile_f(const uint16_t *const *rows, const uint16_t *x, size_t ldx, size_t n,
                         const char *next, v4f *sums);

#define BF16_TILE(C, ASK)                                                                          \
	static void bf16_tile_##C##_##ASK(const uint16_t *const *rows, const uint16_t *x, size_t ldx,  \
	                                  size_t n, const char *next, v4f *sums)                       \
	{                                                                                              \
		bf16_tile(C, ASK, rows, x, ldx, n, next, sums);                                            \
	}
#define BF16_TILES(C) BF16_TILE(C, 0) BF16_TILE(C, 2) BF16_TILE(C, 4)
#define BF16_NAMES(C)                                                                              \
	{                                                                                              \
		bf16_tile_##C##_0, bf16_tile_##C##_2, bf16_tile_##C##_4,                                   \
	}
BF16_TILES(1)
BF16_TILES(2)
BF16_TILES(3)
BF16_TILES(4)
BF16_TILES(5)
BF16_TILES(6)

/* Indices: rows of x less 1; half the lines that a step asks for. */
static bf16_tile_f *const bf16_tile_of[BF16_C][3] = {
	BF16_NAMES(1), BF16_NAMES(2), BF16_NAMES(3), BF16_NAMES(4), BF16_NAMES(5), BF16_NAMES(6),
};

/* Most columns of a tile that is loaded before it is multiplied; rows of x that leave enough time
 * to ask for the next one instead. */
#define BF16_TOUCHED_COLS 1024
#define BF16_TOUCHED_ROWS 6

/* Loads `bytes` from p on in the order of addresses. */
static inline void bf16_touch(const char *p, size_t bytes)
{
	__m512i all = _mm512_setzero_si512();
	size_t i = 0;
	for (; i + 64 <= bytes; i += 64)
		all = _mm512_or_si512(all, _mm512_loadu_si512(p + i));
	__asm__ volatile("" ::"v"(all)); /* keeps the compiler from dropping the loads */
}

static void bf16_few(const struct mx_product *p, size_t r0, size_t r1)
{
	const size_t cols = p->w->cols, ldx = bf16_padded(cols), block = bf16_block(cols);
	const size_t passes = (p->n + BF16_C - 1) / BF16_C;
	const bool touch = p->n <= BF16_TOUCHED_ROWS && cols <= BF16_TOUCHED_COLS;
	if (cols <= BF16_LINES_BLOCKS * block && p->n <= BF16_LINES &&
	    (p->n == 1 || p->n * cols <= BF16_LINES_COLS)) {
		bf16_lines_of[p->n - 1](p, r0, r1);
		return;
	}
	for (size_t r = r0; r < r1; r += BF16_R) {
		const uint16_t *base = (const uint16_t *)p->w->data + r * cols, *x = p->packed;
		const size_t n_r = r1 - r < BF16_R ? r1 - r : BF16_R;
		const char *next = (const char *)(base + n_r * cols);
		if (touch)
			bf16_touch((const char *)base, n_r * cols * sizeof *base);
		for (size_t k = 0, n; k < cols; k += n) {
			const uint16_t *row[BF16_R];
			for (size_t j = 0; j < BF16_R; j++) /* past the end: the last row again, unused */
				row[j] = base + (j < n_r ? j : n_r - 1) * cols + k;
			n = cols - k < block ? cols - k : block;
			for (size_t i = 0, pass = 0, c; i < p->n; i += c, pass++) {
				const size_t left = p->n - i, rest = passes - pass;
				/* four lines a step in all */
				const size_t ask = touch || pass > 1 ? 0 : passes == 1 ? 2 : 1;
				v4f sums[BF16_C];
				c = (left + rest - 1) / rest;
				bf16_tile_of[c - 1][ask](row, x + i * ldx + k, ldx, n, next, sums);
				next += ask * 2 * (n / BF16_STEP) * 64;
				for (size_t j = 0; j < c; j++)
					bf16_add(p->y + (i + j) * p->ldy + r, n_r, sums[j]);
			}
		}
	}
}
