/* SPDX-License-Identifier: Apache-2.0 */
/* Part of amx.c: products with few rows of x, Y^T = W X^T, and shapes that are not multiples of the
 * tile. */

/* Packs x. Columns of missing rows keep their old contents: the results of those are not read. */
static void few_pack(const float *x, size_t ldx, size_t cols, size_t first, size_t count,
                     void *packed)
{
	size_t padded = mx_round_up(cols, TILE_COLS);
	uint32_t *out = (uint32_t *)packed + first * padded / 2;
	x += first * ldx;
	for (size_t k = 0; k < padded; k += TILE_COLS, out += TILE_BYTES / 4) {
		if (count <= 4) {
			uint32_t pairs[16] __attribute__((aligned(64)));
			for (size_t i = 0; i < count; i++) {
				_mm512_store_si512(pairs, load_bf16(x + i * ldx, k, cols));
				for (size_t j = 0; j < 16; j++)
					out[j * 16 + i] = pairs[j];
			}
			continue;
		}
		__m512i r[16];
#pragma GCC unroll 16
		for (size_t i = 0; i < 16; i++)
			r[i] = i < count ? load_bf16(x + i * ldx, k, cols) : _mm512_setzero_si512();
		transpose(r);
#pragma GCC unroll 16
		for (size_t i = 0; i < 16; i++)
			_mm512_store_si512(out + i * 16, r[i]);
	}
}

/* Two tiles of weights, adjacent along the rows, and the strides to the next ones along the
 * columns. */
struct few_panel {
	const unsigned char *a0, *a1;
	size_t stride, step; /* bytes between rows of a tile, and between tiles */
	/* Prefetches of every step. If there is one pass over a panel: the lines of its tiles FEW_AHEAD
	 * steps ahead and, at the end of the rows, the first ones of the next panel; NULL: none. */
	const unsigned char *near;
	ptrdiff_t near_next; /* from past the end of the first row to the next panel */
	/* If there are several passes: lines of the next panel, in order of addresses. */
	const unsigned char *ahead;
	size_t ahead_lines;
};

/* Steps between prefetching the lines of a row and using them; measured, 4 to 8 are equally fast.
 * With it, rows that do not begin on a cache line, as in mapped checkpoints, are as fast as others.
 */
#define FEW_AHEAD 4

static inline __attribute__((always_inline)) void few_step(struct few_panel *a)
{
	for (size_t i = 0; i < a->ahead_lines; i++)
		_mm_prefetch((const char *)a->ahead + i * 64, _MM_HINT_T1);
	a->ahead += a->ahead_lines * 64;
	if (a->near) {
#pragma GCC unroll 32
		for (size_t i = 0; i < PANEL; i++)
			_mm_prefetch((const char *)a->near + i * a->stride, _MM_HINT_T0);
		a->near += 64;
	}
	a->a0 += a->step;
	a->a1 += a->step;
}

/* c += two tiles of weights times one of x, over `steps` tiles; c: 2 tiles. `zero`: c starts at 0
 */
static void few_multiply_1(struct few_panel a, const unsigned char *b, size_t steps, bool zero,
                           float *c)
{
	_tile_zero(0);
	_tile_zero(1);
	if (!zero) {
		_tile_loadd(0, c, 64);
		_tile_loadd(1, c + TILE_F32, 64);
	}
	for (size_t s = 0; s < steps; s++) {
		if (a.near && s + FEW_AHEAD == steps)
			a.near += a.near_next;
		load_tile(6, b, 64);
		load_tile(4, a.a0, a.stride);
		load_tile(5, a.a1, a.stride);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 5, 6);
		few_step(&a);
		b += TILE_BYTES;
	}
	_tile_stored(0, c, 64);
	_tile_stored(1, c + TILE_F32, 64);
}

/* The same for two tiles of x, `next` bytes apart; c: 4 tiles */
static void few_multiply_2(struct few_panel a, const unsigned char *b, size_t next, size_t steps,
                           bool zero, float *c)
{
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	if (!zero) {
		_tile_loadd(0, c, 64);
		_tile_loadd(1, c + TILE_F32, 64);
		_tile_loadd(2, c + 2 * TILE_F32, 64);
		_tile_loadd(3, c + 3 * TILE_F32, 64);
	}
	for (size_t s = 0; s < steps; s++) {
		if (a.near && s + FEW_AHEAD == steps)
			a.near += a.near_next;
		load_tile(6, b, 64);
		load_tile(4, a.a0, a.stride);
		load_tile(5, a.a1, a.stride);
		load_tile(7, b + next, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 5, 6);
		_tile_dpbf16ps(2, 4, 7);
		_tile_dpbf16ps(3, 5, 7);
		few_step(&a);
		b += TILE_BYTES;
	}
	_tile_stored(0, c, 64);
	_tile_stored(1, c + TILE_F32, 64);
	_tile_stored(2, c + 2 * TILE_F32, 64);
	_tile_stored(3, c + 3 * TILE_F32, 64);
}

/* Sets a tile of C, [16 rows of w][16 rows of x], to its initial value: the bias and the old y. */
static void few_start_tile(const struct mx_product *p, size_t r, size_t rows, size_t i, size_t n,
                           float *c)
{
	__m512i t[16];
	__mmask16 mask = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
	__m512 bias = p->bias ? _mm512_maskz_loadu_ps(mask, p->bias + r) : _mm512_setzero_ps();
#pragma GCC unroll 16
	for (size_t j = 0; j < 16; j++) {
		__m512 v = bias;
		if (p->accumulate && j < n) {
			v = _mm512_maskz_loadu_ps(mask, (float *)p->y + (i + j) * p->ldy + r);
			v = p->bias ? _mm512_add_ps(v, bias) : v;
		}
		t[j] = (__m512i)v;
	}
	transpose(t);
#pragma GCC unroll 16
	for (int j = 0; j < 16; j++)
		_mm512_store_si512(c + j * 16, t[j]);
}

/* Stores a tile of C to y. */
static void few_finish_tile(const struct mx_product *p, size_t r, size_t rows, size_t i, size_t n,
                            float *c)
{
	__m512i t[16];
#pragma GCC unroll 16
	for (int j = 0; j < 16; j++)
		t[j] = _mm512_load_si512(c + j * 16);
	transpose(t);
	__mmask16 mask = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
	float *y = p->y + i * p->ldy + r;
#pragma GCC unroll 16
	for (size_t j = 0; j < 16; j++) {
		if (j >= n)
			break;
		_mm512_mask_storeu_ps(y, mask, (__m512)t[j]);
		y += p->ldy;
	}
}

typedef void few_tile_f(const struct mx_product *p, size_t r, size_t rows, size_t i, size_t n,
                        float *c);

/* Calls f for each tile of C of `rows` weight rows and n rows of x (at most PANEL). */
static void few_tiles(few_tile_f *f, const struct mx_product *p, size_t r, size_t rows, size_t i,
                      size_t n, float *c)
{
	for (size_t half = 0; half < n; half += TILE_ROWS, c += 2 * TILE_F32) {
		f(p, r, min(rows, TILE_ROWS), i + half, min(n - half, TILE_ROWS), c);
		if (rows > TILE_ROWS)
			f(p, r + TILE_ROWS, rows - TILE_ROWS, i + half, min(n - half, TILE_ROWS), c + TILE_F32);
	}
}

/* Multiplies rows r .. r + rows - 1 and columns k .. k + cols - 1 with all rows of x. c: 4 tiles
 * for each two tiles of x; if the panel has all columns, only the first 8 are used. A pair of tiles
 * is finished after the next one has been multiplied, so that both overlap. */
static void few_by_x(const struct mx_product *p, struct few_panel a, size_t k, size_t cols,
                     size_t r, size_t rows, float *c)
{
	size_t steps = tiles_of(cols), next = tiles_of(p->w->cols) * TILE_BYTES;
	const unsigned char *b = (const unsigned char *)p->packed + k * TILE_ROWS * 2;
	bool first = k == 0, last = k + cols == p->w->cols, zero = !p->bias && !p->accumulate;
	float *done = NULL;
	size_t i = 0;
	for (size_t at = 0; i < p->n; i += PANEL, at++, b += 2 * next) {
		float *ci = c + (first && last ? at % 2 : at) * 4 * TILE_F32;
		if (first && !zero)
			few_tiles(few_start_tile, p, r, rows, i, min(p->n - i, PANEL), ci);
		if (p->n - i > TILE_ROWS)
			few_multiply_2(a, b, next, steps, first && zero, ci);
		else
			few_multiply_1(a, b, steps, first && zero, ci);
		a.ahead += steps * a.ahead_lines * 64;
		if (last && done)
			few_tiles(few_finish_tile, p, r, rows, i - PANEL, PANEL, done);
		done = ci;
	}
	if (last)
		few_tiles(few_finish_tile, p, r, rows, i - PANEL, p->n - (i - PANEL), done);
}

/* Copies `rows` (at most PANEL) rows of `cols` columns into tiles, padded with zero rows. */
static void few_copy(const unsigned char *w, size_t stride, size_t rows, size_t cols,
                     unsigned char *out)
{
	for (size_t k = 0; k < cols; k += TILE_COLS, out += 2 * TILE_BYTES)
		for (size_t r = 0; r < PANEL; r++)
			_mm512_store_si512(out + r * 64, r < rows ? _mm512_loadu_si512(w + r * stride + k * 2)
			                                          : _mm512_setzero_si512());
}

/* Multiplies fewer rows than a panel has: through a copy, block by block. */
static void few_rest(const struct mx_product *p, size_t r, size_t rows, float *c,
                     unsigned char *copy)
{
	size_t stride = (size_t)p->w->cols * 2, block = block_of(p->w->cols);
	const unsigned char *w = (const unsigned char *)p->w->data + r * stride;
	struct few_panel a = {
		.a0 = copy, .a1 = copy + TILE_BYTES, .stride = 64, .step = 2 * TILE_BYTES};
	for (size_t k = 0; k < p->w->cols; k += block) {
		size_t cols = min(p->w->cols - k, block);
		few_copy(w + k * 2, stride, rows, cols, copy);
		a.ahead = copy;
		few_by_x(p, a, k, cols, r, rows, c);
	}
}

/* Most rows of x for this algorithm: as many as can be multiplied while the weights come from
 * memory. */
#define FEW_ROWS 128
#define FEW_C    (FEW_ROWS / TILE_ROWS * 2 * TILE_BYTES)

static bool is_few(size_t n, size_t cols)
{
	return n <= FEW_ROWS && cols % TILE_COLS == 0;
}

static void few_run(const struct mx_product *p, size_t r0, size_t r1, float *c, unsigned char *copy)
{
	size_t stride = (size_t)p->w->cols * 2, pairs = (p->n + PANEL - 1) / PANEL, r = r0;
	const unsigned char *w = p->w->data;
	for (; r + PANEL <= r1; r += PANEL) {
		struct few_panel a = {.a0 = w + r * stride, .stride = stride, .step = 64};
		a.a1 = a.a0 + TILE_ROWS * stride;
		a.ahead = a.a0 + PANEL * stride;
		if (pairs == 1) {
			/* after the very last panel, back to its start */
			bool more = r + 2 * PANEL <= p->w->rows;
			a.near = a.a0 + FEW_AHEAD * 64;
			a.near_next = (ptrdiff_t)(more ? PANEL * stride : 0) - (ptrdiff_t)stride;
		} else if (r + PANEL < p->w->rows) {
			/* the rows after r1 are likely this thread's next task */
			a.ahead_lines = (PANEL + pairs - 1) / pairs;
		}
		few_by_x(p, a, 0, p->w->cols, r, PANEL, c);
	}
	if (r < r1)
		few_rest(p, r, r1 - r, c, copy);
}
