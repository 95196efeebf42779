/* SPDX-License-Identifier: Apache-2.0 */
/* Part of amx.c: products with many rows of x, Y = X W^T, and columns that are no multiple of 32.
 */

/* Rows of x and of the weight that are multiplied with one another block by block. */
#define MANY_X 512
#define MANY_W 256

/* Packs x into tiles [16 rows][32 columns]; the tiles of the same 16 rows are contiguous. */
static void many_pack(const float *x, size_t ldx, size_t cols, size_t first, size_t count,
                      void *packed)
{
	unsigned char *out = (unsigned char *)packed + first * tiles_of(cols) * TILE_COLS * 2;
	x += first * ldx;
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0, at = i * 64; k < cols; k += TILE_COLS, at += TILE_BYTES)
			_mm512_store_si512(out + at, load_bf16(x + i * ldx, k, cols));
}

/* Work overlapped with a multiplication: packing the next panel, prefetching the one after it, and
 * prefetching the part of y that will be written. */
struct many_work {
	const unsigned char *w, *ahead; /* first row and column of the two panels; NULL: none */
	size_t stride, rows, cols;
	unsigned char *out;
	size_t tile, tiles;  /* of the panel being packed */
	size_t every, count; /* steps from tile to tile, and steps since the last */
	float *y;
	size_t ldy, y_left;
};

/* Packs tile `t`, 16 rows (t % 2) by 32 columns (t / 2), in pairs [k / 2][16 rows][2]. */
static void many_pack_tile(const struct many_work *m, size_t t)
{
	size_t r0 = t % 2 * TILE_ROWS, k = t / 2 * TILE_COLS, left = m->cols - k;
	const unsigned char *w = m->w + r0 * m->stride + k * 2;
	__mmask32 mask = left >= TILE_COLS ? 0xffffffffu : (1u << left) - 1;
	__m512i v[16];
	if (m->ahead)
		for (size_t r = 0; r < TILE_ROWS; r++)
			_mm_prefetch((const char *)m->ahead + (r0 + r) * m->stride + k * 2, _MM_HINT_T1);
	if (r0 + TILE_ROWS <= m->rows && left >= TILE_COLS) {
#pragma GCC unroll 16
		for (size_t r = 0; r < TILE_ROWS; r++)
			v[r] = _mm512_loadu_si512(w + r * m->stride);
	} else {
		for (size_t r = 0; r < TILE_ROWS; r++)
			v[r] = r0 + r < m->rows ? _mm512_maskz_loadu_epi16(mask, w + r * m->stride)
			                        : _mm512_setzero_si512();
	}
	transpose(v);
#pragma GCC unroll 16
	for (int j = 0; j < 16; j++)
		_mm512_store_si512(m->out + t * TILE_BYTES + j * 64, v[j]);
}

static inline __attribute__((always_inline)) void many_step(struct many_work *m)
{
	if (m->y_left) {
		__builtin_prefetch(m->y, 1);
		__builtin_prefetch(m->y + 16, 1);
		m->y += m->ldy;
		m->y_left--;
	}
	if (++m->count >= m->every && m->tile < m->tiles) {
		m->count = 0;
		many_pack_tile(m, m->tile++);
	}
}

/* c[32 rows of x][32 rows of w] = from + x w^T over `steps` tiles; from NULL: 0. `next`: bytes from
 * one row of tiles of x to the next. */
static void many_multiply(const unsigned char *x, size_t next, const unsigned char *w, size_t steps,
                          const float *from, size_t ld_from, float *c, size_t ldc,
                          struct many_work *m)
{
	size_t bytes = ldc * sizeof(float), from_bytes = ld_from * sizeof(float);
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	if (from) {
		_tile_loadd(0, from, from_bytes);
		_tile_loadd(1, from + TILE_ROWS, from_bytes);
		_tile_loadd(2, from + TILE_ROWS * ld_from, from_bytes);
		_tile_loadd(3, from + TILE_ROWS * ld_from + TILE_ROWS, from_bytes);
	}
	for (size_t s = 0; s < steps; s++) {
		load_tile(4, x, 64);
		load_tile(6, w, 64);
		load_tile(7, w + TILE_BYTES, 64);
		load_tile(5, x + next, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		x += TILE_BYTES;
		w += 2 * TILE_BYTES;
		many_step(m);
	}
	_tile_stored(0, c, bytes);
	_tile_stored(1, c + TILE_ROWS, bytes);
	_tile_stored(2, c + TILE_ROWS * ldc, bytes);
	_tile_stored(3, c + TILE_ROWS * ldc + TILE_ROWS, bytes);
}

/* Copies part of y to or from a 32 x 32 buffer, at the edges where less than that is left. */
static void many_edge(float *buffer, float *y, size_t ldy, size_t n, size_t rows, bool to_y)
{
	for (size_t i = 0; i < n; i++) {
		if (to_y)
			memcpy(y + i * ldy, buffer + i * PANEL, rows * sizeof(float));
		else
			memcpy(buffer + i * PANEL, y + i * ldy, rows * sizeof(float));
	}
}

/* Multiplies the packed panel of rows r .. r + rows - 1 and columns k .. k + cols - 1 with rows
 * i0 .. i1 - 1 of x. */
static void many_by_x(const struct mx_product *p, const unsigned char *panel, size_t k, size_t cols,
                      size_t i0, size_t i1, size_t r, size_t rows, float *edge, struct many_work *m)
{
	size_t steps = tiles_of(cols), next = tiles_of(p->w->cols) * TILE_BYTES;
	bool from_y = k > 0 || p->accumulate || p->bias;
	for (size_t i = i0; i < i1; i += PANEL) {
		size_t n = min(i1 - i, PANEL);
		const unsigned char *x =
			(const unsigned char *)p->packed + i / TILE_ROWS * next + k * TILE_ROWS * 2;
		float *y = p->y + i * p->ldy + r;
		m->y = i + PANEL + PANEL <= i1 ? y + PANEL * p->ldy : y;
		m->y_left = i + PANEL + PANEL <= i1 && k == 0 ? PANEL : 0;
		m->ldy = p->ldy;
		if (n == PANEL && rows == PANEL) {
			many_multiply(x, next, panel, steps, from_y ? y : NULL, p->ldy, y, p->ldy, m);
			continue;
		}
		if (from_y)
			many_edge(edge, y, p->ldy, n, rows, false);
		/* if the number of rows of tiles is odd, the last one is used twice */
		many_multiply(x, n > TILE_ROWS ? next : 0, panel, steps, from_y ? edge : NULL, PANEL, edge,
		              PANEL, m);
		many_edge(edge, y, p->ldy, n, rows, true);
	}
}

/* Writes the bias to y, or adds it where y accumulates: the sums start from there. */
static void many_start(const struct mx_product *p, size_t r0, size_t r1)
{
	if (!p->bias)
		return;
	for (size_t i = 0; i < p->n; i++) {
		float *y = p->y + i * p->ldy;
		for (size_t r = r0; r < r1; r++)
			y[r] = p->accumulate ? y[r] + p->bias[r] : p->bias[r];
	}
}

/* Weight rows r0 .. r1 - 1 by rows i0 .. i1 - 1 of x: panel by panel, block by block. */
static void many_block(const struct mx_product *p, size_t r0, size_t r1, size_t i0, size_t i1,
                       unsigned char *panels, float *edge)
{
	size_t stride = (size_t)p->w->cols * 2, block = block_of(p->w->cols);
	size_t per_block = (r1 - r0 + PANEL - 1) / PANEL;
	size_t n = (p->w->cols + block - 1) / block * per_block;
	const unsigned char *w = p->w->data;
	struct many_work m = {.stride = stride};
	/* panel q is packed while panel q - 1 is multiplied; panel -1 is none */
	for (size_t q = 0; q <= n; q++) {
		size_t k = q / per_block * block, r = r0 + q % per_block * PANEL;
		m.tiles = m.tile = m.count = 0;
		if (q < n) {
			m.rows = min(r1 - r, PANEL);
			m.cols = min(p->w->cols - k, block);
			m.w = w + r * stride + k * 2;
			m.ahead = r + 2 * PANEL <= r1 ? m.w + PANEL * stride : NULL;
			m.out = panels + q % 2 * PANEL_BYTES;
			m.tiles = 2 * tiles_of(m.cols);
		}
		if (q > 0) {
			size_t pk = (q - 1) / per_block * block, pr = r0 + (q - 1) % per_block * PANEL;
			size_t cols = min(p->w->cols - pk, block);
			size_t steps = (i1 - i0 + PANEL - 1) / PANEL * tiles_of(cols);
			m.every = m.tiles ? steps / m.tiles : 1;
			many_by_x(p, panels + (q - 1) % 2 * PANEL_BYTES, pk, cols, i0, i1, pr,
			          min(r1 - pr, PANEL), edge, &m);
		}
		while (m.tile < m.tiles)
			many_pack_tile(&m, m.tile++);
	}
}

static void many_run(const struct mx_product *p, size_t r0, size_t r1, unsigned char *panels,
                     float *edge)
{
	many_start(p, r0, r1);
	for (size_t r = r0; r < r1; r += MANY_W)
		for (size_t i = 0; i < p->n; i += MANY_X)
			many_block(p, r, min(r1, r + MANY_W), i, min(p->n, i + MANY_X), panels, edge);
}
