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
/* Most elements of x that stay in the second-level cache: 384 KiB. */
#define DOT_CELLS 98304
/* Most passes that prefetch, and least bytes from a tile to what they prefetch. */
#define DOT_ASKING 6
#define DOT_AHEAD  8192

/* A tile's weights. */
struct dot_weights {
	const void *row[DOT_R];
	float *wide;     /* 16-bit rows as f32: MX_W columns of each in turn, zeros after the last */
	const char *ask; /* what the next step of MX_W columns prefetches */
	size_t far;      /* bytes from one step's prefetch to the next one's */
};

enum dot_pass {
	DOT_ONLY,  /* the only pass over a tile */
	DOT_FIRST, /* the first of several, fills `wide` */
	DOT_AGAIN, /* one of the others, reads `wide` */
	DOT_PLAIN, /* the same, prefetches nothing */
};

/* Prefetches the next tile in the order of memory, a line or a part of one with each step, so that
 * memory is busy all the time. Into the second-level cache: the miss buffers of the first level are
 * few, and x needs them (bench/NOTES.md). Inline: GCC drops calls of a function that only
 * prefetches at -O2, as without effect. */
MX_INLINE const char *dot_ask(enum mx_dtype dtype, const enum dot_pass pass, const char *at,
                              size_t far)
{
	const size_t all = DOT_R * MX_W * mx_dtype_size(dtype) / 64;
	const size_t lines = pass == DOT_ONLY ? all : all / 2; /* at least two passes share it */
	__builtin_prefetch(at, 0, 2);
#pragma GCC unroll 4
	for (size_t i = 1; i < lines; i++)
		__builtin_prefetch(at + i * 64, 0, 2);
	return at + far;
}

/* sums[c][r] = w[r] . x[c] over n columns (at most DOT_BLOCK) of DOT_R rows of w, C rows of x. */
MX_INLINE void dot_tile(const int C, enum mx_dtype dtype, const enum dot_pass pass,
                        struct dot_weights *w, const float *x, size_t ldx, size_t n, v4f *sums)
{
	const bool widens = pass == DOT_FIRST && dtype != MX_F32;
	const bool widened = (pass == DOT_AGAIN || pass == DOT_PLAIN) && dtype != MX_F32;
	vf acc[DOT_R][8];
	const void *row[DOT_R];
	float *wide = w->wide;
	const char *ask = w->ask;
	const size_t far = w->far;
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
		if (pass != DOT_PLAIN)
			ask = dot_ask(dtype, pass, ask, far);
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
	w->ask = ask;
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

typedef void dot_f(struct dot_weights *w, const float *x, size_t ldx, size_t n, v4f *sums);

/* One function for each number of rows of x, so that the accumulators stay in registers. */
#define DOT_TILE(C, name, dtype, pass)                                                             \
	static void dot_##C##_##name(struct dot_weights *w, const float *x, size_t ldx, size_t n,      \
	                             v4f *sums)                                                        \
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
	DOT_TILE(C, again_16, MX_BF16, DOT_AGAIN)                                                      \
	DOT_TILE(C, plain_f32, MX_F32, DOT_PLAIN)                                                      \
	DOT_TILE(C, plain_16, MX_BF16, DOT_PLAIN)
#define DOT_NAMES(C)                                                                               \
	{                                                                                              \
		{dot_##C##_only_f32, dot_##C##_only_f16, dot_##C##_only_bf16},                             \
			{dot_##C##_first_f32, dot_##C##_first_f16, dot_##C##_first_bf16},                      \
			{dot_##C##_first_f32, dot_##C##_again_16, dot_##C##_again_16},                         \
			{dot_##C##_plain_f32, dot_##C##_plain_16, dot_##C##_plain_16},                         \
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
static dot_f *const dot_tiles[DOT_C][4][3] = {
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

/* Prefetches share i of n of the lines of DOT_R rows of `bytes`. */
MX_INLINE void dot_share(const char *rows, size_t stride, size_t bytes, size_t i, size_t n)
{
	size_t lines = DOT_R * ((bytes + 63) / 64), end = lines * (i + 1) / n;
	for (size_t l = lines * i / n; l < end; l++)
		__builtin_prefetch(rows + l % DOT_R * stride + l / DOT_R * 64, 0, 2);
}

/* Sets the pointers to DOT_R rows of the weight from row r, column k on; past row r1 - 1 it again,
 * unused. Returns the number of rows. */
static size_t dot_at(const struct mx_weight *m, size_t r, size_t r1, size_t k,
                     struct dot_weights *w)
{
	const size_t size = mx_dtype_size(m->dtype), n_r = r1 - r < DOT_R ? r1 - r : DOT_R;
	for (size_t j = 0; j < DOT_R; j++)
		w->row[j] = (const char *)m->data + ((r + (j < n_r ? j : n_r - 1)) * m->cols + k) * size;
	return n_r;
}

/* Sets what the passes over the tile from row r on prefetch: as many bytes as the tile has, a tile
 * or two further on. With so many passes that the first few are enough, the others prefetch
 * nothing. Returns the number of passes that prefetch. */
static size_t dot_next(const struct mx_weight *m, size_t r, size_t passes, struct dot_weights *w)
{
	const size_t size = mx_dtype_size(m->dtype), asking = passes < DOT_ASKING ? passes : DOT_ASKING;
	const size_t tile = DOT_R * m->cols * size;
	w->ask = (const char *)m->data + r * m->cols * size + (tile < DOT_AHEAD ? 2 : 1) * tile;
	w->far = (DOT_R * MX_W * size + asking - 1) / asking;
	return asking;
}

/* Multiplies n columns from column k on of a tile, weight rows r .. r + n_r - 1, with rows i .. i1
 * - 1 of x. The first of several passes stores 16-bit weights in w->wide for the others. */
static void dot_rows(const struct mx_product *p, struct dot_weights *w, size_t r, size_t n_r,
                     size_t k, size_t n, size_t i, size_t i1, size_t asking, enum dot_pass pass)
{
	for (size_t c, done = 0; i < i1; i += c) {
		v4f sums[8];
		size_t left = i1 - i;
		c = left <= DOT_C ? left : left < 2 * DOT_C ? (left + 1) / 2 : DOT_C;
		dot_tiles[c - 1][pass][p->w->dtype](w, p->x + i * p->ldx + k, p->ldx, n, sums);
		if (n_r == DOT_R)
			dot_add(p, i, c, r, DOT_R, sums);
		else
			dot_add(p, i, c, r, n_r, sums);
		pass = ++done < asking ? DOT_AGAIN : DOT_PLAIN;
	}
}

/* Multiplies with few rows of x: a tile with all of them, then the next tile. */
static void dot_few(const struct mx_product *p, size_t r0, size_t r1, size_t block, float *wide)
{
	const size_t cols = p->w->cols, passes = (p->n + DOT_C - 1) / DOT_C;
	struct dot_weights w = {.wide = wide};
	for (size_t r = r0; r < r1; r += DOT_R) {
		const size_t asking = dot_next(p->w, r, passes, &w);
		for (size_t k = 0, n; k < cols; k += n) {
			const size_t n_r = dot_at(p->w, r, r1, k, &w);
			n = cols - k < block ? cols - k : block;
			dot_rows(p, &w, r, n_r, k, n, 0, p->n, asking, passes == 1 ? DOT_ONLY : DOT_FIRST);
		}
	}
}

/* Multiplies n columns from column k on of a tile with rows i .. i1 - 1 of x. If `next` is not
 * NULL, the first use of the tile: prefetches the same columns of the rows from there on, a share
 * of them before every second pass. */
static void dot_group(const struct mx_product *p, struct dot_weights *w, size_t r, size_t n_r,
                      size_t k, size_t n, size_t i, size_t i1, const char *next)
{
	const size_t size = mx_dtype_size(p->w->dtype), shares = (i1 - i + 2 * DOT_C - 1) / (2 * DOT_C);
	enum dot_pass pass = next ? DOT_FIRST : DOT_PLAIN;
	w->ask = w->row[0]; /* is there already */
	for (size_t share = 0, end; i < i1; i = end, share++) {
		end = i + 2 * DOT_C < i1 ? i + 2 * DOT_C : i1;
		if (next)
			dot_share(next, p->w->cols * size, n * size, share, shares);
		dot_rows(p, w, r, n_r, k, n, i, end, 0, pass);
		pass = DOT_PLAIN;
	}
}

/* Multiplies with many rows of x: DOT_X of them with a panel of tiles, as long as those are in the
 * second-level cache, then the next DOT_X. */
static void dot_many(const struct mx_product *p, size_t r0, size_t r1, size_t block, float *panel)
{
	const size_t cols = p->w->cols;
	for (size_t r = r0, end; r < r1; r = end) {
		end = r + DOT_PANEL < r1 ? r + DOT_PANEL : r1;
		for (size_t k = 0, n; k < cols; k += n) {
			n = cols - k < block ? cols - k : block;
			for (size_t i = 0; i < p->n; i += DOT_X) {
				struct dot_weights w = {.wide = panel};
				const size_t i1 = i + DOT_X < p->n ? i + DOT_X : p->n;
				for (size_t t = r; t < end; t += DOT_R, w.wide += DOT_R * DOT_BLOCK) {
					const size_t n_r = dot_at(p->w, t, end, k, &w);
					const char *next =
						(const char *)w.row[0] + DOT_R * p->w->cols * mx_dtype_size(p->w->dtype);
					dot_group(p, &w, t, n_r, k, n, i, i1, i ? NULL : next);
				}
			}
		}
	}
}

/* Returns the columns of a block. Blocks have about the same size, since a tile prefetches as much
 * of the next one as it has itself. */
static size_t dot_block(size_t cols)
{
	size_t blocks = (cols + DOT_BLOCK - 1) / DOT_BLOCK;
	return ((cols + blocks - 1) / blocks + 31) / 32 * 32;
}

/* Rows of the weight that one row of x takes at a time: 4, since runs a multiple of 4 KiB apart
 * fall into the same sets of the first-level cache; 6 with so many columns that x comes from the
 * second.
 */
#define DOT_APART 6 /* at most */

/* One row of x. Takes R rows of the weight at a time, which lie an R-th of all rows apart: so
 * memory is read in R long runs, which the hardware's prefetchers follow, also from page to page,
 * and a row's additions, each of which waits for the one before, have those of the other rows
 * between them (bench/NOTES.md). */
MX_INLINE void dot_alone(const int R, const enum mx_dtype dtype, const struct mx_product *p,
                         size_t r0, size_t r1, size_t block)
{
	const size_t cols = p->w->cols, stride = cols * mx_dtype_size(dtype), n = (size_t)R;
	const size_t apart = (r1 - r0 + n - 1) / n;
	for (size_t r = r0; r < r0 + apart; r++) {
		const size_t rest = (r1 - r + apart - 1) / apart, n_r = rest < n ? rest : n;
		const char *row[DOT_APART];
		for (size_t j = 0; j < n; j++) /* past the end: the last row again, unused */
			row[j] = (const char *)p->w->data + (r + (j < n_r ? j : n_r - 1) * apart) * stride;
		for (size_t k = 0; k < cols;) {
			const size_t end = cols - k < block ? cols : k + block;
			vf acc[DOT_APART] = {{0}};
			for (; k + MX_W <= end; k += MX_W) {
				const vf b = vf_load(p->x + k);
#pragma GCC unroll 8
				for (int j = 0; j < R; j++)
					acc[j] = vf_fma(vf_load_as(row[j], dtype, k), b, acc[j]);
			}
			if (k < end) {
				const vf b = vf_load_part(p->x + k, end - k, 0);
#pragma GCC unroll 8
				for (int j = 0; j < R; j++)
					acc[j] = vf_fma(vf_load_as_part(row[j], dtype, k, end - k), b, acc[j]);
			}
			k = end;
			const v4f sums[2] = {vf_sum4(acc[0], acc[1], acc[2], acc[3]),
			                     R > 4 ? vf_sum4(acc[4], acc[5], acc[4], acc[5]) : (v4f){0}};
			for (size_t j = 0; j < n_r; j++)
				p->y[r + j * apart] += sums[j / 4][j % 4];
		}
	}
}

#define DOT_ALONE(R, name, dtype)                                                                  \
	static void dot_alone_##R##_##name(const struct mx_product *p, size_t r0, size_t r1,           \
	                                   size_t block)                                               \
	{                                                                                              \
		dot_alone(R, dtype, p, r0, r1, block);                                                     \
	}
DOT_ALONE(4, f32, MX_F32)
DOT_ALONE(4, f16, MX_F16)
DOT_ALONE(4, bf16, MX_BF16)
DOT_ALONE(6, f32, MX_F32)
DOT_ALONE(6, f16, MX_F16)
DOT_ALONE(6, bf16, MX_BF16)

typedef void dot_alone_f(const struct mx_product *p, size_t r0, size_t r1, size_t block);

/* Indices: more than 4096 columns; dtype. */
static dot_alone_f *const dot_alone_of[2][3] = {
	{dot_alone_4_f32, dot_alone_4_f16, dot_alone_4_bf16},
	{dot_alone_6_f32, dot_alone_6_f16, dot_alone_6_bf16},
};

static void dot_run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	const size_t cols = p->w->cols, block = dot_block(cols);
	dot_start(p, r0, r1);
	if (p->n == 1)
		dot_alone_of[cols > 4096][p->w->dtype](p, r0, r1, block);
	else if (p->n <= DOT_C || p->n * cols <= DOT_CELLS)
		dot_few(p, r0, r1, block, scratch);
	else
		dot_many(p, r0, r1, block, scratch);
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
