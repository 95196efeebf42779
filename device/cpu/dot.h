/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the matrix product in f32, for the instruction set of the
 * including file. Weights of any dtype are widened to f32, which is exact.
 *
 * Order of operations of every y[i][r], whatever else the call computes:
 *   start from b[r] (or 0), plus the old y[i][r] if accumulating;
 *   for each block of columns (dot_block), in ascending order:
 *     lane j of one vector adds up the columns k with k % MX_W == j, ascending;
 *     the lanes are summed as vf_sum4 does; the sum is added to y[i][r].
 *
 * A tile is DOT_R rows of the weight. A pass multiplies it with up to DOT_C rows
 * of x in registers. The first of several passes stores 16-bit weights in scratch
 * as f32, where they remain in the first-level cache while the other rows of x come
 * from the second level, and the next tile's weights from memory.
 */
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"

#define DOT_R     4
#define DOT_BLOCK 1024
/* 32 accumulators of 512 bits, 16 registers elsewhere */
#define DOT_C (MX_W == 16 ? 6 : MX_W == 8 ? 3 : 2)
/* DOT_X rows of x of DOT_BLOCK columns fit the second-level cache. With more rows, DOT_PANEL rows
 * of the weight are stored there as f32 and multiplied with DOT_X rows of x at a time. */
#define DOT_X     48
#define DOT_PANEL 32

/* A tile's weights. */
struct dot_weights {
	const void *row[DOT_R];
	float *wide;  /* 16-bit rows as f32: MX_W columns of each in turn, zeros after the last */
	size_t ahead; /* bytes to the next tile's rows; 0: do not prefetch them */
};

enum dot_pass {
	DOT_ONLY,  /* the only pass over a tile */
	DOT_FIRST, /* the first of several, fills `wide` */
	DOT_AGAIN, /* the others, read `wide` */
};

/* Prefetches the same columns of the next tile's rows, so that they arrive in the order of memory:
 * the hardware prefetcher does not follow rows shorter than a page. Called once for MX_W columns,
 * it prefetches each line of the DOT_R rows once. */
MX_INLINE void dot_prefetch(enum mx_dtype dtype, const struct dot_weights *w, size_t k)
{
	const size_t size = mx_dtype_size(dtype), lines = DOT_R * MX_W * size / 64;
#pragma GCC unroll 4
	for (size_t j = 0; j < lines; j++)
		__builtin_prefetch((const char *)w->row[(k / MX_W * lines + j) % DOT_R] + w->ahead +
		                   k * size);
}

/* sums[c][r] = w[r] . x[c] over n columns (at most DOT_BLOCK) of DOT_R rows of w, C rows of x. */
MX_INLINE void dot_tile(const int C, enum mx_dtype dtype, const enum dot_pass pass,
                        const struct dot_weights *w, const float *x, size_t ldx, size_t n,
                        v4f *sums)
{
	const bool widens = pass == DOT_FIRST && dtype != MX_F32;
	const bool widened = pass == DOT_AGAIN && dtype != MX_F32;
	vf acc[DOT_R][8];
	const void *row[DOT_R];
	float *wide = w->wide;
	const size_t ahead = w->ahead;
#pragma GCC unroll 8
	for (int r = 0; r < DOT_R; r++) {
		row[r] = w->row[r];
#pragma GCC unroll 8
		for (int c = 0; c < C; c++)
			acc[r][c] = (vf){0};
	}
	size_t k = 0;
	for (; k + MX_W <= n; k += MX_W, wide += DOT_R * MX_W) {
		vf b[8];
		if (pass == DOT_ONLY || (pass == DOT_FIRST && ahead))
			dot_prefetch(dtype, w, k);
#pragma GCC unroll 8
		for (int c = 0; c < C; c++)
			b[c] = vf_load(x + (size_t)c * ldx + k);
#pragma GCC unroll 8
		for (int r = 0; r < DOT_R; r++) {
			vf a = widened ? vf_load(wide + r * MX_W) : vf_load_as(row[r], dtype, k);
			if (widens)
				vf_store(wide + r * MX_W, a);
#pragma GCC unroll 8
			for (int c = 0; c < C; c++)
				acc[r][c] = vf_fma(a, b[c], acc[r][c]);
		}
	}
	if (k < n) {
#pragma GCC unroll 8
		for (int r = 0; r < DOT_R; r++) {
			vf a = widened ? vf_load(wide + r * MX_W) : vf_load_as_part(row[r], dtype, k, n - k);
			if (widens)
				vf_store(wide + r * MX_W, a);
#pragma GCC unroll 8
			for (int c = 0; c < C; c++) {
				vf b = vf_load_part(x + (size_t)c * ldx + k, n - k, 0);
				acc[r][c] = vf_fma(a, b, acc[r][c]);
			}
		}
	}
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		sums[c] = vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
}

typedef void dot_f(const struct dot_weights *w, const float *x, size_t ldx, size_t n, v4f *sums);

/* One function for each number of rows of x, so that the accumulators stay in registers. */
#define DOT_TILE(C, name, dtype, pass)                                                             \
	static void dot_##C##_##name(const struct dot_weights *w, const float *x, size_t ldx,          \
	                             size_t n, v4f *sums)                                              \
	{                                                                                              \
		dot_tile(C, dtype, pass, w, x, ldx, n, sums);                                              \
	}
#define DOT_TILES(C)                                                                               \
	DOT_TILE(C, only_f32, MX_F32, DOT_ONLY)                                                        \
	DOT_TILE(C, only_f16, MX_F16, DOT_ONLY)                                                        \
	DOT_TILE(C, only_bf16, MX_BF16, DOT_ONLY)                                                      \
	DOT_TILE(C, first_f32, MX_F32, DOT_FIRST)                                                      \
	DOT_TILE(C, first_f16, MX_F16, DOT_FIRST)                                                      \
	DOT_TILE(C, first_bf16, MX_BF16, DOT_FIRST)                                                    \
	DOT_TILE(C, again_16, MX_BF16, DOT_AGAIN)
#define DOT_NAMES(C)                                                                               \
	{                                                                                              \
		{dot_##C##_only_f32, dot_##C##_only_f16, dot_##C##_only_bf16},                             \
			{dot_##C##_first_f32, dot_##C##_first_f16, dot_##C##_first_bf16},                      \
			{dot_##C##_first_f32, dot_##C##_again_16, dot_##C##_again_16},                         \
	}
DOT_TILES(1)
DOT_TILES(2)
#if MX_W >= 8
DOT_TILES(3)
#endif
#if MX_W == 16
DOT_TILES(4)
DOT_TILES(5)
DOT_TILES(6)
#endif

/* Indices: rows of x less 1; pass; dtype. */
static dot_f *const dot_tiles[DOT_C][3][3] = {
	DOT_NAMES(1), DOT_NAMES(2),
#if MX_W >= 8
	DOT_NAMES(3),
#endif
#if MX_W == 16
	DOT_NAMES(4), DOT_NAMES(5), DOT_NAMES(6),
#endif
};

/* Adds the sums of rows r .. r + n_r - 1 to y. */
MX_INLINE void dot_add(const struct mx_product *p, size_t row, size_t c, size_t r, size_t n_r,
                       const v4f *sums)
{
	float *y = p->y + row * p->ldy + r;
	for (size_t i = 0; i < c; i++, y += p->ldy) {
		v4f v = {0};
		memcpy(&v, y, n_r * sizeof *y);
		v += sums[i];
		memcpy(y, &v, n_r * sizeof *y);
	}
}

static void dot_start(const struct mx_product *p, size_t r0, size_t r1)
{
	for (size_t i = 0; i < p->n; i++) {
		float *y = p->y + i * p->ldy;
		for (size_t r = r0; r < r1; r++) {
			float b = p->bias ? p->bias[r] : 0.0f;
			y[r] = p->accumulate ? y[r] + b : b;
		}
	}
}

/* Part of a weight: rows r .. r1 - 1, columns k .. k + n - 1 (at most DOT_BLOCK). */
struct dot_part {
	size_t r, r1, k, n;
};

/* Prefetches share i of n of the lines of DOT_R rows of `bytes`. Inline: GCC drops calls of a
 * function that only prefetches at -O2, as without effect. */
MX_INLINE void dot_ask(const char *rows, size_t stride, size_t bytes, size_t i, size_t n)
{
	size_t lines = DOT_R * ((bytes + 63) / 64), end = lines * (i + 1) / n;
	for (size_t l = lines * i / n; l < end; l++)
		__builtin_prefetch(rows + l % DOT_R * stride + l / DOT_R * 64);
}

/* Multiplies the first tile of part t with rows i .. i1 - 1 of x; the first pass stores the tile in
 * `wide` for the following ones. Prefetches the tile at `next`: with two passes in the first, with
 * more in equal shares, so that memory is always busy. */
static void dot_rows(const struct mx_product *p, const struct dot_part *t, size_t i, size_t i1,
                     const char *next, float *wide)
{
	const enum mx_dtype dtype = p->w->dtype;
	size_t size = mx_dtype_size(dtype), stride = p->w->cols * size;
	size_t n_r = t->r1 - t->r < DOT_R ? t->r1 - t->r : DOT_R;
	const char *base = (const char *)p->w->data + t->r * stride + t->k * size;
	enum dot_pass pass = i ? DOT_AGAIN : DOT_FIRST;
	size_t passes = (i1 - i + DOT_C - 1) / DOT_C, shares = i || passes <= 2 ? 0 : passes;
	struct dot_weights w = {.wide = wide, .ahead = i || shares ? 0 : (size_t)(next - base)};
	for (size_t j = 0; j < DOT_R; j++) /* past the end: the last row again, unused */
		w.row[j] = base + (j < n_r ? j : n_r - 1) * stride;
	for (size_t c, share = 0; i < i1; i += c, share++) {
		v4f sums[8];
		size_t left = i1 - i;
		c = left <= DOT_C ? left : left < 2 * DOT_C ? (left + 1) / 2 : DOT_C;
		if (shares)
			dot_ask(next, stride, t->n * size, share, shares);
		dot_tiles[c - 1][pass][dtype](&w, p->x + i * p->ldx + t->k, p->ldx, t->n, sums);
		if (n_r == DOT_R)
			dot_add(p, i, c, t->r, DOT_R, sums);
		else
			dot_add(p, i, c, t->r, n_r, sums);
		pass = DOT_AGAIN;
		w.ahead = 0;
	}
}

/* Multiplies a part with so few rows of x that one pass is enough. */
static void dot_once(const struct mx_product *p, const struct dot_part *t)
{
	size_t size = mx_dtype_size(p->w->dtype), stride = p->w->cols * size;
	const char *base = (const char *)p->w->data + t->r * stride + t->k * size;
	const float *x = p->x + t->k;
	dot_f *f = dot_tiles[p->n - 1][DOT_ONLY][p->w->dtype];
	struct dot_weights w = {.ahead = DOT_R * stride};
	for (size_t r = t->r; r < t->r1; r += DOT_R, base += DOT_R * stride) {
		v4f sums[8];
		size_t n_r = t->r1 - r < DOT_R ? t->r1 - r : DOT_R;
		for (size_t j = 0; j < DOT_R; j++) /* past the end: the last row again, unused */
			w.row[j] = base + (j < n_r ? j : n_r - 1) * stride;
		f(&w, x, p->ldx, t->n, sums);
		if (n_r == DOT_R)
			dot_add(p, 0, p->n, r, DOT_R, sums);
		else
			dot_add(p, 0, p->n, r, n_r, sums);
	}
}

/* Returns the columns of a block. Blocks have about the same size, since a tile prefetches as much
 * of the next one as it has itself. */
static size_t dot_block(size_t cols)
{
	size_t blocks = (cols + DOT_BLOCK - 1) / DOT_BLOCK;
	return ((cols + blocks - 1) / blocks + 31) / 32 * 32;
}

#if MX_W == 16
/* Blocks of x that stay in the first-level cache beside the weight. */
#define DOT_ALONE 4

/* One row of x of at most DOT_ALONE blocks. Goes through the rows of the weight one after the
 * other: the hardware's prefetcher follows one stream better than those of four rows. Not with
 * shorter vectors, where a row's additions, each of which waits for the one before, would take
 * longer. */
MX_INLINE void dot_alone(const enum mx_dtype dtype, const struct mx_product *p, size_t r0,
                         size_t r1, size_t block)
{
	const size_t cols = p->w->cols, stride = cols * mx_dtype_size(dtype);
	const char *base = (const char *)p->w->data + r0 * stride;
	for (size_t r = r0; r < r1; r += DOT_R, base += DOT_R * stride) {
		vf acc[DOT_ALONE][DOT_R];
		size_t n_r = r1 - r < DOT_R ? r1 - r : DOT_R, n = 0;
		for (size_t j = 0; j < DOT_R; j++) {
			/* past the end: the last row again, unused */
			const char *row = base + (j < n_r ? j : n_r - 1) * stride;
			size_t k = 0;
			for (n = 0; k < cols; n++) {
				size_t end = cols - k < block ? cols : k + block;
				vf sum = {0};
				for (; k + MX_W <= end; k += MX_W)
					sum = vf_fma(vf_load_as(row, dtype, k), vf_load(p->x + k), sum);
				if (k < end)
					sum = vf_fma(vf_load_as_part(row, dtype, k, end - k),
					             vf_load_part(p->x + k, end - k, 0), sum);
				k = end;
				acc[n][j] = sum;
			}
		}
		for (size_t i = 0; i < n; i++) {
			v4f sums = vf_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
			dot_add(p, 0, 1, r, n_r, &sums);
		}
	}
}
#endif

static void dot_run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	const struct mx_weight *w = p->w;
	const char *data = w->data;
	size_t size = mx_dtype_size(w->dtype), cols = w->cols;
	bool many = p->n * cols > DOT_X * DOT_BLOCK;
	size_t panel = many || p->n <= DOT_C ? DOT_PANEL : DOT_R, rows = many ? DOT_X : p->n;
	const size_t block = dot_block(cols);
	struct dot_part t;
	dot_start(p, r0, r1);
#if MX_W == 16
	if (p->n == 1 && cols <= DOT_ALONE * block) {
		switch (w->dtype) {
		case MX_F32: dot_alone(MX_F32, p, r0, r1, block); break;
		case MX_F16: dot_alone(MX_F16, p, r0, r1, block); break;
		default: dot_alone(MX_BF16, p, r0, r1, block); break;
		}
		return;
	}
#endif
	for (size_t r = r0; r < r1; r = t.r1) {
		t.r1 = r + panel < r1 ? r + panel : r1;
		for (t.k = 0; t.k < cols; t.k += t.n) {
			t.n = cols - t.k < block ? cols - t.k : block;
			if (p->n <= DOT_C) {
				t.r = r;
				dot_once(p, &t);
				continue;
			}
			for (size_t i = 0; i < p->n; i += rows) {
				float *wide = scratch;
				for (t.r = r; t.r < t.r1; t.r += DOT_R, wide += DOT_R * DOT_BLOCK) {
					size_t i1 = i + rows < p->n ? i + rows : p->n, next = t.r + DOT_R, k = t.k;
					if (next >= t.r1) { /* the next block, or else the next panel */
						k = t.k + t.n < cols ? t.k + t.n : 0;
						next = k ? r : t.r1;
					}
					dot_rows(p, &t, i, i1, data + (next * cols + k) * size, wide);
				}
			}
		}
	}
}

static size_t dot_scratch_bytes(size_t n, size_t cols)
{
	(void)n;
	(void)cols;
	return DOT_PANEL * DOT_BLOCK * sizeof(float);
}

static void dot_fill(struct mx_kernels *k)
{
	for (int t = MX_F32; t <= MX_BF16; t++)
		k->gemm[t] = (struct mx_gemm){.scratch_bytes = dot_scratch_bytes, .run = dot_run};
}
