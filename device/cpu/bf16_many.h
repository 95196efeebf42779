/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of bf16.c: products with many rows of x, which are bound by arithmetic.
 *
 * A panel of the weight, MANY_PANEL rows of a block of columns, is copied to the second-level cache
 * in the order of its use: aligned, and one stream. A few rows of x stay in the first level while
 * the panel passes by. A step of 32 columns loads 4 + 6 vectors for 24 VDPBF16PS.
 */
#define MANY_PANEL 64 /* weight rows of a panel: 128 KiB, a multiple of BF16_R */
#define MANY_STEP  (BF16_R * BF16_STEP)

/* Copies rows r .. r1 - 1, columns k .. k + n - 1 to [row / BF16_R][column / 32][BF16_R][32], with
 * zeros behind the last row and column. */
static void many_panel(const struct mx_weight *w, size_t r, size_t r1, size_t k, size_t n,
                       uint16_t *panel)
{
	const size_t tile = (n + BF16_STEP - 1) / BF16_STEP * MANY_STEP;
	const uint16_t *row = (const uint16_t *)w->data + r * w->cols + k;
	for (size_t q = 0; q < mx_round_up(r1 - r, BF16_R); q++, row += w->cols) {
		uint16_t *to = panel + q / BF16_R * tile + q % BF16_R * BF16_STEP;
		for (size_t i = 0; i < n; i += BF16_STEP, to += MANY_STEP)
			_mm512_store_si512(to, r + q < r1 ? bf16_load(row + i, n - i) : _mm512_setzero_si512());
	}
}

/* sums[c] = the dot products of a tile of the panel with row c of x, over `steps` times 32 columns.
 */
MX_INLINE void many_tile(const int C, const uint16_t *w, const uint16_t *x, size_t ldx,
                         size_t steps, v4f *sums)
{
	vf acc[BF16_R][BF16_C];
#pragma GCC unroll 4
	for (int r = 0; r < BF16_R; r++)
#pragma GCC unroll 6
		for (int c = 0; c < C; c++)
			acc[r][c] = (vf){0};
	/* two pointers, so that every row has an address of one instruction */
	const uint16_t *x0 = x, *x3 = x + 3 * ldx;
	for (size_t s = 0; s < steps; s++, w += MANY_STEP, x0 += BF16_STEP, x3 += BF16_STEP) {
		__m512i b[BF16_C];
#pragma GCC unroll 6
		for (int c = 0; c < C; c++)
			b[c] = _mm512_load_si512(c < 3 ? x0 + (size_t)c * ldx : x3 + (size_t)(c - 3) * ldx);
#pragma GCC unroll 4
		for (int r = 0; r < BF16_R; r++) {
			__m512i a = _mm512_load_si512(w + r * BF16_STEP);
#pragma GCC unroll 6
			for (int c = 0; c < C; c++)
				acc[r][c] = bf16_dot(acc[r][c], a, b[c]);
		}
	}
#pragma GCC unroll 6
	for (int c = 0; c < C; c++)
		sums[c] = vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
}

/* Multiplies C rows of x, the first at p->packed row i, column k, with a panel of rows r .. r1 - 1
 * and `steps` times 32 columns. */
MX_INLINE void many_rows(const int C, const struct mx_product *p, const uint16_t *panel, size_t i,
                         size_t k, size_t steps, size_t r, size_t r1)
{
	const size_t ldx = bf16_padded(p->w->cols);
	const uint16_t *x = (const uint16_t *)p->packed + i * ldx + k;
	for (; r < r1; r += BF16_R, panel += steps * MANY_STEP) {
		v4f sums[BF16_C];
		float *y = p->y + i * p->ldy + r;
		many_tile(C, panel, x, ldx, steps, sums);
		const size_t n_r = r1 - r < BF16_R ? r1 - r : BF16_R;
#pragma GCC unroll 6
		for (int c = 0; c < C; c++, y += p->ldy)
			bf16_add(p, k == 0, r, n_r, sums[c], y);
	}
}

/* One function for each number of rows of x, so that the sums stay in registers. */
static void many_rows_5(const struct mx_product *p, const uint16_t *panel, size_t i, size_t k,
                        size_t steps, size_t r, size_t r1)
{
	many_rows(5, p, panel, i, k, steps, r, r1);
}

static void many_rows_6(const struct mx_product *p, const uint16_t *panel, size_t i, size_t k,
                        size_t steps, size_t r, size_t r1)
{
	many_rows(6, p, panel, i, k, steps, r, r1);
}

/* Fewer rows of x take less time with bf16_few. From 30 rows on, all tiles have 5 or 6. */
#define BF16_MANY 65

static size_t bf16_many_scratch(size_t n, size_t cols)
{
	(void)n;
	(void)cols;
	return (size_t)MANY_PANEL * BF16_BLOCK * sizeof(uint16_t);
}

/* Multiplies rows r0 .. r1 - 1 of the weight with all rows of x, at least BF16_MANY. `panel` has
 * the bytes of bf16_many_scratch. */
static void bf16_many(const struct mx_product *p, size_t r0, size_t r1, uint16_t *panel)
{
	const size_t cols = p->w->cols, block = bf16_block(cols);
	const size_t passes = (p->n + BF16_C - 1) / BF16_C;
	for (size_t r = r0, end; r < r1; r = end) {
		end = r + MANY_PANEL < r1 ? r + MANY_PANEL : r1;
		for (size_t k = 0, n; k < cols; k += n) {
			n = cols - k < block ? cols - k : block;
			many_panel(p->w, r, end, k, n, panel);
			const size_t steps = (n + BF16_STEP - 1) / BF16_STEP;
			for (size_t i = 0, c, left = passes; i < p->n; i += c, left--) {
				c = (p->n - i + left - 1) / left;
				(c == 5 ? many_rows_5 : many_rows_6)(p, panel, i, k, steps, r, end);
			}
		}
	}
}
