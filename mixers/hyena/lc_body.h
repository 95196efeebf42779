/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of long convolutions over vectors of MX_W floats, at the
 * instruction set of the including file.
 *
 * The transform is radix-4, with decimation in frequency forwards and in time
 * backwards, so neither reorders rows. Each quarter is transformed completely
 * before the next is started: once a quarter fits a cache, the rest of its work
 * happens there.
 */
#include <string.h>

#include "device/cpu/denormals.h"
#include "device/cpu/vec.h"
#include "mixers/hyena/kernels.h"

#define VECS (LC_LANES / MX_W)
#define ROW  ((size_t)2 * LC_LANES) /* floats of a complex row */

#define AHEAD_ROWS 16 /* rows of a spectrum that are prefetched */

/* ---- complex vectors: one of the VECS of a row ---- */

struct cf {
	vf re, im;
};

/* Keeps v in a register: GCC would load it again for its next use, and these kernels are bound by
 * loads. */
MX_INLINE vf vf_keep(vf v)
{
#if defined(__SSE__)
	__asm__("" : "+v"(v));
#endif
	return v;
}

MX_INLINE struct cf cf_load(const float *row)
{
	return (struct cf){vf_keep(vf_load(row)), vf_keep(vf_load(row + LC_LANES))};
}

MX_INLINE void cf_store(float *row, struct cf a)
{
	vf_store(row, a.re);
	vf_store(row + LC_LANES, a.im);
}

MX_INLINE struct cf cf_add(struct cf a, struct cf b)
{
	return (struct cf){a.re + b.re, a.im + b.im};
}

MX_INLINE struct cf cf_sub(struct cf a, struct cf b)
{
	return (struct cf){a.re - b.re, a.im - b.im};
}

/* a - i b, a + i b */
MX_INLINE struct cf cf_sub_i(struct cf a, struct cf b)
{
	return (struct cf){a.re + b.im, a.im - b.re};
}

MX_INLINE struct cf cf_add_i(struct cf a, struct cf b)
{
	return (struct cf){a.re - b.im, a.im + b.re};
}

/* Real and imaginary part of w in all lanes. */
MX_INLINE struct cf cf_set(const float *w)
{
	return (struct cf){vf_keep(vf_set(w[0])), vf_keep(vf_set(w[1]))};
}

/* a w, a conj(w) */
MX_INLINE struct cf cf_mul(struct cf a, struct cf w)
{
	return (struct cf){vf_fma(a.re, w.re, -(a.im * w.im)), vf_fma(a.re, w.im, a.im * w.re)};
}

MX_INLINE struct cf cf_mul_conj(struct cf a, struct cf w)
{
	return (struct cf){vf_fma(a.re, w.re, a.im * w.im), vf_fma(a.im, w.re, -(a.re * w.im))};
}

/* ---- butterflies ---- */

/* The transform of four, in place; its inverse times four. */
MX_INLINE void four(struct cf *a)
{
	struct cf s02 = cf_add(a[0], a[2]), d02 = cf_sub(a[0], a[2]);
	struct cf s13 = cf_add(a[1], a[3]), d13 = cf_sub(a[1], a[3]);
	a[0] = cf_add(s02, s13);
	a[1] = cf_sub_i(d02, d13);
	a[2] = cf_sub(s02, s13);
	a[3] = cf_add_i(d02, d13);
}

MX_INLINE void four_back(struct cf *a)
{
	struct cf s02 = cf_add(a[0], a[2]), d02 = cf_sub(a[0], a[2]);
	struct cf s13 = cf_add(a[1], a[3]), d13 = cf_sub(a[1], a[3]);
	a[0] = cf_add(s02, s13);
	a[1] = cf_add_i(d02, d13);
	a[2] = cf_sub(s02, s13);
	a[3] = cf_sub_i(d02, d13);
}

/* a + h b, a - h b */
MX_INLINE struct cf cf_fma(struct cf a, vf h, struct cf b)
{
	return (struct cf){vf_fma(h, b.re, a.re), vf_fma(h, b.im, a.im)};
}

/*
 * The transform of eight: sums of rows four apart give the even outputs, and
 * their differences, turned by eighths of a circle, the odd ones. A turn by an
 * eighth is one of (1 - i), without multiplications, and a factor that waits for
 * the last sums.
 */
MX_INLINE void eight(struct cf *a)
{
	const vf h = vf_set(0.70710678118654752f);
	struct cf d[4];
#pragma GCC unroll 4
	for (unsigned i = 0; i < 4; i++) {
		d[i] = cf_sub(a[i], a[i + 4]);
		a[i] = cf_add(a[i], a[i + 4]);
	}
	four(a);
	struct cf s02 = cf_sub_i(d[0], d[2]), d02 = cf_add_i(d[0], d[2]);
	struct cf t1 = cf_sub_i(d[1], d[1]), t3 = cf_sub_i(d[3], d[3]);
	struct cf s13 = cf_sub_i(t1, t3), d13 = cf_add_i(t1, t3);
	a[4] = cf_fma(s02, h, s13);
	a[6] = cf_fma(s02, -h, s13);
	d13 = (struct cf){d13.im, -d13.re};
	a[5] = cf_fma(d02, h, d13);
	a[7] = cf_fma(d02, -h, d13);
}

MX_INLINE void eight_back(struct cf *a)
{
	const vf h = vf_set(0.70710678118654752f);
	struct cf s46 = cf_add(a[4], a[6]), d46 = cf_sub(a[4], a[6]);
	struct cf s57 = cf_add(a[5], a[7]), d57 = cf_sub(a[5], a[7]);
	struct cf d[4] = {cf_add(s46, s57), cf_add_i(d46, d57), cf_sub(s46, s57), cf_sub_i(d46, d57)};
	d[1] = cf_add_i(d[1], d[1]); /* turned, without the factor */
	d[3] = cf_add_i(d[3], d[3]);
	four_back(a);
	a[4] = cf_sub(a[0], d[0]);
	a[0] = cf_add(a[0], d[0]);
	a[5] = cf_fma(a[1], -h, d[1]);
	a[1] = cf_fma(a[1], h, d[1]);
	a[6] = cf_sub_i(a[2], d[2]);
	a[2] = cf_add_i(a[2], d[2]);
	d[3] = (struct cf){-d[3].im, d[3].re};
	a[7] = cf_fma(a[3], -h, d[3]);
	a[3] = cf_fma(a[3], h, d[3]);
}

/* ---- transforms ---- */

/* A transform of `rows` (4 or 8) rows: the last stage forwards, the first one backwards. */
MX_INLINE void leaf(const unsigned rows, const bool back, float *x)
{
#pragma GCC unroll 4
	for (unsigned v = 0; v < VECS; v++, x += MX_W) {
		struct cf a[8];
#pragma GCC unroll 8
		for (unsigned i = 0; i < rows; i++)
			a[i] = cf_load(x + i * ROW);
		if (rows == 4 && !back)
			four(a);
		else if (rows == 4)
			four_back(a);
		else if (!back)
			eight(a);
		else
			eight_back(a);
#pragma GCC unroll 8
		for (unsigned i = 0; i < rows; i++)
			cf_store(x + i * ROW, a[i]);
	}
}

/* The butterflies that split a transform of n rows into four of n / 4. */
static void divide(uint32_t n, const float *w, float *x)
{
	const size_t part = n / 4 * ROW;
	for (uint32_t k = 0; k < n / 4; k++, x += ROW, w += 6) {
		/* 16 registers have no room for a third */
		const struct cf w1 = cf_set(w), w2 = cf_set(w + 2);
#pragma GCC unroll 4
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a[4];
#pragma GCC unroll 4
			for (unsigned i = 0; i < 4; i++)
				a[i] = cf_load(x + i * part + v);
			four(a);
			cf_store(x + v, a[0]);
			cf_store(x + part + v, cf_mul(a[1], w1));
			cf_store(x + 2 * part + v, cf_mul(a[2], w2));
			cf_store(x + 3 * part + v, cf_mul(a[3], cf_set(w + 4)));
		}
	}
}

/* The reverse. */
static void unite(uint32_t n, const float *w, float *x)
{
	const size_t part = n / 4 * ROW;
	for (uint32_t k = 0; k < n / 4; k++, x += ROW, w += 6) {
		const struct cf w1 = cf_set(w), w2 = cf_set(w + 2), w3 = cf_set(w + 4);
#pragma GCC unroll 4
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a[4];
			a[1] = cf_mul_conj(cf_load(x + part + v), w1);
			a[3] = cf_mul_conj(cf_load(x + 3 * part + v), w3);
			a[2] = cf_mul_conj(cf_load(x + 2 * part + v), w2);
			a[0] = cf_load(x + v);
			four_back(a);
#pragma GCC unroll 4
			for (unsigned i = 0; i < 4; i++)
				cf_store(x + i * part + v, a[i]);
		}
	}
}

/* w: twiddles of n rows, followed by those of n / 4, ... */
static void forward(uint32_t n, const float *w, float *x)
{
	if (n == 4) {
		leaf(4, false, x);
	} else if (n == 8) {
		leaf(8, false, x);
	} else {
		divide(n, w, x);
		for (unsigned i = 0; i < 4; i++)
			forward(n / 4, w + n / 4 * 6, x + i * (n / 4) * ROW);
	}
}

static void backward(uint32_t n, const float *w, float *x)
{
	if (n == 4) {
		leaf(4, true, x);
	} else if (n == 8) {
		leaf(8, true, x);
	} else {
		for (unsigned i = 0; i < 4; i++)
			backward(n / 4, w + n / 4 * 6, x + i * (n / 4) * ROW);
		unite(n, w, x);
	}
}

static void fft(const struct lc_plan *p, float *x)
{
	forward(p->n, p->twiddles, x);
}

static void ifft(const struct lc_plan *p, float *x)
{
	backward(p->n, p->twiddles, x);
}

/* ---- to and from transforms ---- */

MX_INLINE void folds(const float *w, uint32_t rows, const float *z, const bool add, float *x)
{
	for (; rows > 0; rows--, w += 2, z += LC_LANES, x += ROW) {
		const struct cf turn = cf_set(w);
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf a = vf_load(z + v);
			if (add) {
				struct cf sum = cf_load(x + v);
				cf_store(x + v,
				         (struct cf){vf_fma(a, turn.re, sum.re), vf_fma(a, turn.im, sum.im)});
			} else {
				cf_store(x + v, (struct cf){a * turn.re, a * turn.im});
			}
		}
	}
}

static void fold(const float *w, uint32_t rows, const float *z, bool add, float *x)
{
	if (add)
		folds(w, rows, z, true, x);
	else
		folds(w, rows, z, false, x);
}

static void unfold(const float *w, float scale, uint32_t rows, const float *x, bool add, float *y)
{
	for (; rows > 0; rows--, w += 2, y += LC_LANES, x += ROW) {
		const vf re = vf_set(w[0] * scale), im = vf_set(w[1] * scale); /* a power of two */
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf sum = vf_load(x + LC_LANES + v) * im;
			if (add)
				sum += vf_load(y + v);
			vf_store(y + v, vf_fma(vf_load(x + v), re, sum));
		}
	}
}

/* h comes from memory, x and acc from a cache. */
MX_INLINE void products(uint32_t n, const float *x, const float *h, const bool add, float *acc)
{
	for (; n > 0; n--, x += ROW, h += ROW, acc += ROW) {
		for (unsigned line = 0; line < ROW; line += LC_LANES)
			__builtin_prefetch(h + AHEAD_ROWS * ROW + line);
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a = cf_load(x + v), b = cf_load(h + v), sum = {{0}, {0}};
			if (add)
				sum = cf_load(acc + v);
			sum.re = vf_fma(a.re, b.re, vf_fma(-a.im, b.im, sum.re));
			sum.im = vf_fma(a.re, b.im, vf_fma(a.im, b.re, sum.im));
			cf_store(acc + v, sum);
		}
	}
}

static void multiply(uint32_t n, const float *x, const float *h, bool add, float *acc)
{
	if (add)
		products(n, x, h, true, acc);
	else
		products(n, x, h, false, acc);
}

/*
 * ---- direct sums ----
 *
 * Each row has two sums, one of even and one of odd inputs: that hides the
 * latency of FMA even for a single row. sum_rows and sum_row give the same bits.
 */

#define SUM_ROWS 4 /* rows at once: each lag that is loaded serves as many inputs */

/* sums[r] += h[r - s] z[s], s < SUM_ROWS. With `last`, row r sees only the inputs s <= r. */
MX_INLINE void sum_step(const bool last, const float *h, const float *z, vf (*sums)[2])
{
	vf in[SUM_ROWS];
#pragma GCC unroll 8
	for (int s = 0; s < SUM_ROWS; s++)
		in[s] = vf_load(z + s * LC_LANES);
#pragma GCC unroll 16
	for (int lag = SUM_ROWS - 1; lag > -SUM_ROWS; lag--) {
		if (last && lag < 0)
			continue;
		vf a = vf_load(h + lag * LC_LANES);
#pragma GCC unroll 8
		for (int s = 0; s < SUM_ROWS; s++)
			if (lag + s >= 0 && lag + s < SUM_ROWS)
				sums[lag + s][s % 2] = vf_fma(a, in[s], sums[lag + s][s % 2]);
	}
}

/* y[r] = start[r] (NULL = 0) + the sum over s < n of h[r - s] z[s], and with `last` over those up
 * to n + r. n a multiple of SUM_ROWS. */
MX_INLINE void sum_rows(uint32_t n, const bool last, const float *h, const float *z,
                        const float *start, float *y)
{
#pragma GCC unroll 4
	for (unsigned v = 0; v < LC_LANES; v += MX_W) {
		vf sums[SUM_ROWS][2];
#pragma GCC unroll 8
		for (unsigned r = 0; r < SUM_ROWS; r++) {
			sums[r][0] = start ? vf_load(start + r * LC_LANES + v) : (vf){0};
			sums[r][1] = (vf){0};
		}
		for (size_t s = 0; s < n; s += SUM_ROWS)
			sum_step(false, h - s * LC_LANES + v, z + s * LC_LANES + v, sums);
		if (last)
			sum_step(true, h - n * LC_LANES + v, z + n * LC_LANES + v, sums);
#pragma GCC unroll 8
		for (unsigned r = 0; r < SUM_ROWS; r++)
			vf_store(y + r * LC_LANES + v, sums[r][0] + sums[r][1]);
	}
}

/* One row, s <= n. */
MX_INLINE void sum_row(uint32_t n, const float *h, const float *z, const float *start, float *y)
{
	vf sums[VECS][2];
#pragma GCC unroll 4
	for (unsigned v = 0; v < VECS; v++) {
		sums[v][0] = start ? vf_load(start + v * MX_W) : (vf){0};
		sums[v][1] = (vf){0};
	}
	uint32_t s = 0;
	for (; s < n; s += 2, h -= 2 * LC_LANES, z += 2 * LC_LANES)
#pragma GCC unroll 4
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf *sum = sums[v / MX_W];
			sum[0] = vf_fma(vf_load(h + v), vf_load(z + v), sum[0]);
			sum[1] = vf_fma(vf_load(h - LC_LANES + v), vf_load(z + LC_LANES + v), sum[1]);
		}
#pragma GCC unroll 4
	for (unsigned v = 0; v < LC_LANES; v += MX_W) {
		vf *sum = sums[v / MX_W];
		if (s == n)
			sum[0] = vf_fma(vf_load(h + v), vf_load(z + v), sum[0]);
		vf_store(y + v, sum[0] + sum[1]);
	}
}

static void tile(uint32_t n, const float *lags, const float *z, bool add, float *y)
{
	lags += ((size_t)n - 1) * LC_LANES;
	for (size_t t = 0; t < n; t += SUM_ROWS, y += SUM_ROWS * LC_LANES)
		sum_rows(n, false, lags + t * LC_LANES, z, add ? y : NULL, y);
}

static void window(const float *h, const float *z, uint32_t past, uint32_t first, uint32_t rows,
                   const float *sums, float *y)
{
	const uint32_t end = first + rows;
	h += (size_t)past * LC_LANES;
	z -= (size_t)past * LC_LANES;
	for (uint32_t t = first, n; t < end; t += n, y += n * LC_LANES) {
		const float *lag = h + (size_t)t * LC_LANES, *start = sums ? sums + t * LC_LANES : NULL;
		n = t % SUM_ROWS == 0 && t + SUM_ROWS <= end ? SUM_ROWS : 1;
		if (n == SUM_ROWS)
			sum_rows(past + t, true, lag, z, start, y);
		else
			sum_row(past + t, lag, z, start, y);
	}
}

#define LC_TABLE(level)                                                                            \
	const struct lc_kernels lc_##level = {                                                         \
		.name = #level,                                                                            \
		.begin = denormals_off,                                                                    \
		.end = denormals_restore,                                                                  \
		.fft = fft,                                                                                \
		.ifft = ifft,                                                                              \
		.fold = fold,                                                                              \
		.unfold = unfold,                                                                          \
		.multiply = multiply,                                                                      \
		.tile = tile,                                                                              \
		.window = window,                                                                          \
	};
