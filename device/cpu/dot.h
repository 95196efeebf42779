/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the matrix product in f32, for the instruction set of the
 * including file. Weights of any dtype are widened to f32, which is exact.
 *
 * Order of operations of every y[i][r], whatever else is computed beside it:
 *   start from b[r] (or 0), plus the old y[i][r] if accumulating;
 *   for each block of DOT_BLOCK columns, in ascending order:
 *     lane j of one vector gathers the columns k with k % MX_W == j, ascending;
 *     the lanes are summed as vf_sum4 does; the sum is added to y[i][r].
 *
 * DOT_R rows of the weight meet up to DOT_C rows of x at a time in registers.
 * With more than DOT_C rows of x the weights are widened once, into scratch.
 */
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"

#define DOT_R     4
#define DOT_BLOCK 1024
/* 32 accumulators of 512 bits, 16 registers elsewhere */
#define DOT_C (MX_W == 16 ? 6 : MX_W == 8 ? 3 : 2)
/* Weight rows of a panel: 32 * 1024 floats stay in the second-level cache. */
#define DOT_PANEL 32
/* Elements from one row of a panel to the next: not a multiple of the page, whose lines at the same
 * offset compete for the same places in the cache. */
#define DOT_STRIDE (DOT_BLOCK + 16)

/* Asks for the rows of the next tile where this one stands, so that they arrive in the order of
 * memory: rows shorter than a page leave the hardware's prefetcher behind. Called once for MX_W
 * columns, each line of the DOT_R rows is asked for once. */
MX_INLINE void dot_prefetch(enum mx_dtype dtype, const void *const w[DOT_R], size_t ahead, size_t k)
{
	const size_t size = mx_dtype_size(dtype), lines = DOT_R * MX_W * size / 64;
#pragma GCC unroll 4
	for (size_t j = 0; j < lines; j++)
		__builtin_prefetch((const char *)w[(k / MX_W * lines + j) % DOT_R] + ahead + k * size);
}

/* sums[c][r] = w[r] . x[c] over n columns (at most DOT_BLOCK) of DOT_R rows of w, C rows of x. The
 * next tile's weights are `ahead` bytes from these. */
MX_INLINE void dot_tile(const int C, enum mx_dtype dtype, const void *const w[DOT_R],
                        const float *x, size_t ldx, size_t n, size_t ahead, v4f *sums)
{
	vf acc[DOT_R][8];
#pragma GCC unroll 8
	for (int r = 0; r < DOT_R; r++)
#pragma GCC unroll 8
		for (int c = 0; c < C; c++)
			acc[r][c] = (vf){0};
	size_t k = 0;
	for (; k + MX_W <= n; k += MX_W) {
		vf b[8];
		if (C == 1 || dtype != MX_F32) /* not where weights are passed over again */
			dot_prefetch(dtype, w, ahead, k);
#pragma GCC unroll 8
		for (int c = 0; c < C; c++)
			b[c] = vf_load(x + (size_t)c * ldx + k);
#pragma GCC unroll 8
		for (int r = 0; r < DOT_R; r++) {
			vf a = vf_load_as(w[r], dtype, k);
#pragma GCC unroll 8
			for (int c = 0; c < C; c++)
				acc[r][c] = vf_fma(a, b[c], acc[r][c]);
		}
	}
	if (k < n) {
#pragma GCC unroll 8
		for (int r = 0; r < DOT_R; r++) {
			vf a = vf_load_as_part(w[r], dtype, k, n - k);
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

/* One function for each number of rows of x, so that the accumulators stay in registers. */
#define DOT_TILE(C, dtype)                                                                         \
	static void dot_##C##_##dtype(const void *const w[DOT_R], const float *x, size_t ldx,          \
	                              size_t n, size_t ahead, v4f *sums)                               \
	{                                                                                              \
		dot_tile(C, dtype, w, x, ldx, n, ahead, sums);                                             \
	}
#define DOT_TILES(C) DOT_TILE(C, MX_F32) DOT_TILE(C, MX_F16) DOT_TILE(C, MX_BF16)
DOT_TILES(1)
DOT_TILES(2)
#if MX_W == 8
DOT_TILES(3)
#elif MX_W == 16
DOT_TILES(4)
DOT_TILES(6)
#endif

typedef void dot_f(const void *const w[DOT_R], const float *x, size_t ldx, size_t n, size_t ahead,
                   v4f *sums);

/* Tile for as many of `left` rows of x as it takes. */
static dot_f *dot_pick(size_t left, enum mx_dtype dtype, size_t *c)
{
	static dot_f *const f[][3] = {
		{dot_1_MX_F32, dot_1_MX_F16, dot_1_MX_BF16},
		{dot_2_MX_F32, dot_2_MX_F16, dot_2_MX_BF16},
#if MX_W == 8
		{dot_3_MX_F32, dot_3_MX_F16, dot_3_MX_BF16},
#elif MX_W == 16
		{dot_4_MX_F32, dot_4_MX_F16, dot_4_MX_BF16},
		{dot_6_MX_F32, dot_6_MX_F16, dot_6_MX_BF16},
#endif
	};
	static const size_t counts[] = {1, 2, MX_W == 16 ? 4 : 3, 6};
	size_t i = sizeof f / sizeof *f - 1;
	while (counts[i] > left)
		i--;
	*c = counts[i];
	return f[i][dtype];
}

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

/* Rows r0 .. r1 - 1 (at most DOT_PANEL) and columns k .. k + n - 1. */
static void dot_panel(const struct mx_product *p, size_t r0, size_t r1, size_t k, size_t n,
                      float *scratch)
{
	const struct mx_weight *w = p->w;
	size_t size = mx_dtype_size(w->dtype), stride = w->cols * size;
	const unsigned char *base = (const unsigned char *)w->data + r0 * stride + k * size;
	enum mx_dtype dtype = w->dtype;
	if (p->n > DOT_C && dtype != MX_F32) {
		for (size_t r = r0; r < r1; r++)
			rows_convert(base + (r - r0) * stride, dtype, n, scratch + (r - r0) * DOT_STRIDE);
		base = (const unsigned char *)scratch;
		stride = DOT_STRIDE * sizeof(float);
		dtype = MX_F32;
	}
	for (size_t i = 0, c; i < p->n; i += c) {
		dot_f *f = dot_pick(p->n - i, dtype, &c);
		for (size_t r = r0; r < r1; r += DOT_R) {
			const void *rows[DOT_R];
			v4f sums[8];
			/* past the end the last row stands in; its sums are not used */
			for (size_t j = 0; j < DOT_R; j++)
				rows[j] = base + ((r + j < r1 ? r + j : r1 - 1) - r0) * stride;
			f(rows, p->x + i * p->ldx + k, p->ldx, n, DOT_R * stride, sums);
			if (r + DOT_R <= r1)
				dot_add(p, i, c, r, DOT_R, sums);
			else
				dot_add(p, i, c, r, r1 - r, sums);
		}
	}
}

static void dot_run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	dot_start(p, r0, r1);
	for (size_t r = r0; r < r1; r += DOT_PANEL) {
		size_t end = r + DOT_PANEL < r1 ? r + DOT_PANEL : r1;
		for (size_t k = 0; k < p->w->cols; k += DOT_BLOCK) {
			size_t n = p->w->cols - k < DOT_BLOCK ? p->w->cols - k : DOT_BLOCK;
			dot_panel(p, r, end, k, n, scratch);
		}
	}
}

static size_t dot_scratch_bytes(size_t n, size_t cols)
{
	(void)n;
	(void)cols;
	return DOT_PANEL * DOT_STRIDE * sizeof(float);
}

static void dot_fill(struct mx_kernels *k)
{
	for (int t = MX_F32; t <= MX_BF16; t++)
		k->gemm[t] = (struct mx_gemm){.scratch_bytes = dot_scratch_bytes, .run = dot_run};
}
