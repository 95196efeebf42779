/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of long convolutions over vectors of MX_W floats, at the
 * instruction set of the including file.
 *
 * The transform divides by four, with decimation in frequency on the way there
 * and in time on the way back, so neither moves rows to another order. Each part
 * is transformed to its end before the next is begun: once a part fits a cache,
 * the rest of its work happens there.
 */
#include <string.h>

#include "device/cpu/vec.h"
#include "mixers/hyena/kernels.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define VECS (LC_LANES / MX_W)
#define ROW  ((size_t)2 * LC_LANES) /* floats of a complex row */

static unsigned lc_begin(void)
{
#if defined(__SSE__)
	unsigned state = _mm_getcsr();
	_mm_setcsr(state | 0x8040); /* flush to zero, denormals are zero */
	return state;
#else
	return 0;
#endif
}

static void lc_end(unsigned state)
{
#if defined(__SSE__)
	_mm_setcsr(state);
#else
	(void)state;
#endif
}

/* ---- complex vectors: one of the VECS of a row ---- */

struct cf {
	vf re, im;
};

MX_INLINE struct cf cf_load(const float *row)
{
	return (struct cf){vf_load(row), vf_load(row + LC_LANES)};
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

/* a w, a conj(w) */
MX_INLINE struct cf cf_mul(struct cf a, const float *w)
{
	vf cos = vf_set(w[0]), sin = vf_set(w[1]);
	return (struct cf){vf_fma(a.re, cos, -(a.im * sin)), vf_fma(a.re, sin, a.im * cos)};
}

MX_INLINE struct cf cf_mul_conj(struct cf a, const float *w)
{
	vf cos = vf_set(w[0]), sin = vf_set(w[1]);
	return (struct cf){vf_fma(a.re, cos, a.im * sin), vf_fma(a.im, cos, -(a.re * sin))};
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

/* a e^(-+ i pi / 4): times (1 -+ i) / sqrt 2 */
MX_INLINE struct cf cf_eighth(struct cf a)
{
	const float h = 0.70710678118654752f;
	return (struct cf){(a.re + a.im) * h, (a.im - a.re) * h};
}

MX_INLINE struct cf cf_eighth_back(struct cf a)
{
	const float h = 0.70710678118654752f;
	return (struct cf){(a.re - a.im) * h, (a.im + a.re) * h};
}

/* Of eight: sums of rows four apart, and their differences turned, give two transforms of four. */
MX_INLINE void eight(struct cf *a)
{
	const struct cf zero = {{0}, {0}};
	struct cf d[4];
#pragma GCC unroll 4
	for (unsigned i = 0; i < 4; i++) {
		d[i] = cf_sub(a[i], a[i + 4]);
		a[i] = cf_add(a[i], a[i + 4]);
	}
	a[4] = d[0];
	a[5] = cf_eighth(d[1]);
	a[6] = cf_sub_i(zero, d[2]);
	a[7] = cf_sub_i(zero, cf_eighth(d[3]));
	four(a);
	four(a + 4);
}

MX_INLINE void eight_back(struct cf *a)
{
	const struct cf zero = {{0}, {0}};
	struct cf d[4];
	four_back(a);
	four_back(a + 4);
	d[0] = a[4];
	d[1] = cf_eighth_back(a[5]);
	d[2] = cf_add_i(zero, a[6]);
	d[3] = cf_add_i(zero, cf_eighth_back(a[7]));
#pragma GCC unroll 4
	for (unsigned i = 0; i < 4; i++) {
		a[i + 4] = cf_sub(a[i], d[i]);
		a[i] = cf_add(a[i], d[i]);
	}
}

/* ---- transforms ---- */

/* The last `rows` (4 or 8) of a part; back: the first. */
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

/* n rows into four parts of n / 4. */
static void divide(uint32_t n, const float *w, float *x)
{
	const size_t part = n / 4 * ROW;
	for (uint32_t k = 0; k < n / 4; k++, x += ROW, w += 6)
#pragma GCC unroll 4
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a[4];
#pragma GCC unroll 4
			for (unsigned i = 0; i < 4; i++)
				a[i] = cf_load(x + i * part + v);
			four(a);
			cf_store(x + v, a[0]);
#pragma GCC unroll 4
			for (unsigned i = 1; i < 4; i++)
				cf_store(x + i * part + v, cf_mul(a[i], w + 2 * (i - 1)));
		}
}

static void unite(uint32_t n, const float *w, float *x)
{
	const size_t part = n / 4 * ROW;
	for (uint32_t k = 0; k < n / 4; k++, x += ROW, w += 6)
#pragma GCC unroll 4
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a[4];
			a[0] = cf_load(x + v);
#pragma GCC unroll 4
			for (unsigned i = 1; i < 4; i++)
				a[i] = cf_mul_conj(cf_load(x + i * part + v), w + 2 * (i - 1));
			four_back(a);
#pragma GCC unroll 4
			for (unsigned i = 0; i < 4; i++)
				cf_store(x + i * part + v, a[i]);
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

static void twist(const struct lc_plan *p, uint32_t k, uint32_t rows, const float *z, float *x)
{
	const float *w = p->twist + 2 * (size_t)k;
	for (x += k * ROW; rows > 0; rows--, w += 2, z += LC_LANES, x += ROW)
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf a = vf_load(z + v);
			cf_store(x + v, (struct cf){a * w[0], a * w[1]});
		}
}

static void untwist(const struct lc_plan *p, uint32_t k, uint32_t rows, const float *x, bool add,
                    float *y)
{
	const float *w = p->twist + 2 * (size_t)k, scale = 1 / (float)p->n;
	for (x += k * ROW; rows > 0; rows--, w += 2, y += LC_LANES, x += ROW)
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf a = cf_mul_conj(cf_load(x + v), w).re;
			vf_store(y + v, add ? vf_fma(a, vf_set(scale), vf_load(y + v)) : a * scale);
		}
}

MX_INLINE void products(uint32_t n, const float *x, const float *h, const bool add, float *acc)
{
	for (; n > 0; n--, x += ROW, h += ROW, acc += ROW)
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			struct cf a = cf_load(x + v), b = cf_load(h + v), sum = {{0}, {0}};
			if (add)
				sum = cf_load(acc + v);
			sum.re = vf_fma(a.re, b.re, vf_fma(-a.im, b.im, sum.re));
			sum.im = vf_fma(a.re, b.im, vf_fma(a.im, b.re, sum.im));
			cf_store(acc + v, sum);
		}
}

static void multiply(uint32_t n, const float *x, const float *h, bool add, float *acc)
{
	if (add)
		products(n, x, h, true, acc);
	else
		products(n, x, h, false, acc);
}

/* ---- sums as they stand ---- */

#define TILE_ROWS 8 /* outputs at once: sums enough to hide the latency of FMA */
#define TILE_STEP 4 /* inputs at once: a lag that is loaded serves so many of them */

/* sums[t] += sum over s = 0 .. TILE_STEP - 1 of h[t - s] z[s], t < TILE_ROWS */
MX_INLINE void tile_step(const float *h, const float *z, vf *sums)
{
	vf in[TILE_STEP];
#pragma GCC unroll 8
	for (int s = 0; s < TILE_STEP; s++)
		in[s] = vf_load(z + s * LC_LANES);
#pragma GCC unroll 16
	for (int lag = TILE_ROWS - 1; lag > -TILE_STEP; lag--) {
		vf a = vf_load(h + lag * LC_LANES);
#pragma GCC unroll 8
		for (int s = 0; s < TILE_STEP; s++)
			if (lag + s >= 0 && lag + s < TILE_ROWS)
				sums[lag + s] = vf_fma(a, in[s], sums[lag + s]);
	}
}

static void tile(uint32_t n, const float *lags, const float *z, bool add, float *y)
{
	for (unsigned v = 0; v < LC_LANES; v += MX_W)
		for (uint32_t t = 0; t < n; t += TILE_ROWS) {
			const float *h = lags + ((size_t)n - 1 + t) * LC_LANES + v;
			float *out = y + (size_t)t * LC_LANES + v;
			vf sums[TILE_ROWS];
#pragma GCC unroll 8
			for (unsigned r = 0; r < TILE_ROWS; r++)
				sums[r] = add ? vf_load(out + r * LC_LANES) : (vf){0};
			for (size_t s = 0; s < n; s += TILE_STEP)
				tile_step(h - s * LC_LANES, z + s * LC_LANES + v, sums);
#pragma GCC unroll 8
			for (unsigned r = 0; r < TILE_ROWS; r++)
				vf_store(out + r * LC_LANES, sums[r]);
		}
}

static void window(const float *h, const float *z, uint32_t past, uint32_t first, uint32_t rows,
                   const float *far, float *y)
{
	for (uint32_t t = first; t < first + rows; t++, y += LC_LANES)
		for (unsigned v = 0; v < LC_LANES; v += MX_W) {
			vf sum = far ? vf_load(far + t * LC_LANES + v) : (vf){0};
			const float *in = z - (size_t)past * LC_LANES + v;
			const float *lag = h + (size_t)(past + t) * LC_LANES + v;
			for (uint32_t s = 0; s <= past + t; s++, in += LC_LANES, lag -= LC_LANES)
				sum = vf_fma(vf_load(lag), vf_load(in), sum);
			vf_store(y + v, sum);
		}
}

#define LC_TABLE(level)                                                                            \
	const struct lc_kernels lc_##level = {                                                         \
		.name = #level,                                                                            \
		.begin = lc_begin,                                                                         \
		.end = lc_end,                                                                             \
		.fft = fft,                                                                                \
		.ifft = ifft,                                                                              \
		.twist = twist,                                                                            \
		.untwist = untwist,                                                                        \
		.multiply = multiply,                                                                      \
		.tile = tile,                                                                              \
		.window = window,                                                                          \
	};
