/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention kernels for AMX with bf16 tiles.
 *
 * Scores S[16 rows, 16 tokens] = Q (A tiles, 32 dimensions each) x K (B tiles,
 * straight from the panel); probabilities P rounded to bf16; outputs
 * O[16 rows, 16 dimensions] += P (A tile, 32 tokens) x V (B tile, straight
 * from the panel). TDPBF16PS computes each row of its result from that row of
 * A alone, so other rows do not affect it. The unused rows of an incomplete tile
 * hold garbage and are never stored to the caller's memory.
 *
 * Softmax. With p = 2^f * 2^floor(t), f = t - floor(t), three terms of a
 * polynomial are enough for bf16 (error 9e-5). Probabilities are truncated, not
 * rounded, to bf16; the polynomial is scaled by 1 + 2^-9, the middle of a
 * step, so that truncation is unbiased, and the sum is scaled back.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax_kernels.h"

#define TILE_BYTES 1024
#define CUT        0x1.008p0f /* 1 + 2^-9 */

/* Orders memory accesses: the compiler does not know what memory tile instructions access. */
#define BARRIER() __asm__ volatile("" ::: "memory")

static _Thread_local unsigned saved_csr;

/* All eight tiles are 16 rows of 64 bytes. */
static void begin(void)
{
	static const struct {
		uint8_t palette, start, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = {.palette = 1,
	            .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
	            .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
	__asm__ volatile("ldtilecfg %0" ::"m"(config));
	saved_csr = _mm_getcsr();
	_mm_setcsr(saved_csr | 0x8040); /* denormals are zero: exp2 underflows all the time */
}

static void end(void)
{
	_tile_release();
	_mm_setcsr(saved_csr);
}

/* Panels c0 .. c1 - 1 of the block for the rows of one or two tiles. */
struct range {
	uint32_t c0, c1;
};

/* ---- scores of a tile: s[group of 16 tokens][row][16] ---- */

#define GROUP_FLOATS (16 * ATTN_TILE)
#define PANEL_FLOATS (2 * GROUP_FLOATS + 16)
#define TILE_FLOATS  (ATTN_BLOCK_PANELS * PANEL_FLOATS)

/* One tile; its keys are probably not in a cache. AHEAD bytes are prefetched, in the order in which
 * the keys and then the values are read. */
#define AHEAD 2048

static inline void fetch_ahead(const unsigned char *from, size_t at, size_t size,
                               const unsigned char *next)
{
	at += AHEAD;
	if (at < size)
		attn_fetch(from + at, TILE_BYTES);
	else if (next)
		attn_fetch(next + (at - size), TILE_BYTES);
}

static void scores_one(const struct attn_task *t, struct range g, const unsigned char *q, float *s)
{
	size_t group = (size_t)t->dim * 32; /* bytes of the keys of 16 tokens */

	for (uint32_t c = g.c0; c < g.c1; c++) {
		const unsigned char *k = t->keys[c];
		const unsigned char *next = c + 1 < g.c1 ? t->keys[c + 1] : t->values[g.c0];
		_tile_zero(0);
		_tile_zero(1);
		for (size_t i = 0; i < group; i += TILE_BYTES) {
			fetch_ahead(k, i, 2 * group, next);
			_tile_loadd(4, q + i, 64);
			_tile_loadd(5, k + i, 64);
			_tile_dpbf16ps(0, 4, 5);
		}
		for (size_t i = 0; i < group; i += TILE_BYTES) {
			fetch_ahead(k, group + i, 2 * group, next);
			_tile_loadd(4, q + i, 64);
			_tile_loadd(6, k + group + i, 64);
			_tile_dpbf16ps(1, 4, 6);
		}
		_tile_stored(0, s + c * PANEL_FLOATS, 64);
		_tile_stored(1, s + c * PANEL_FLOATS + GROUP_FLOATS, 64);
	}
}

/* One tile, keys from the cache. A tile is stored while the next ones are computed: a store waits
 * for the products before it, and tile registers are not renamed. */
static void scores_many(const struct attn_task *t, struct range g, const unsigned char *q, float *s)
{
	size_t group = (size_t)t->dim * 32;
	uint32_t c = g.c0;
#define PRODUCTS(a, b)                                                                             \
	do {                                                                                           \
		const unsigned char *k = t->keys[c];                                                       \
		_tile_zero(a);                                                                             \
		_tile_zero(b);                                                                             \
		for (size_t i = 0; i < group; i += TILE_BYTES) {                                           \
			_tile_loadd(4, q + i, 64);                                                             \
			_tile_loadd(5, k + i, 64);                                                             \
			_tile_dpbf16ps(a, 4, 5);                                                               \
			_tile_loadd(6, k + group + i, 64);                                                     \
			_tile_dpbf16ps(b, 4, 6);                                                               \
		}                                                                                          \
	} while (0)
#define STORE(a, b, panel)                                                                         \
	do {                                                                                           \
		_tile_stored(a, s + (panel)*PANEL_FLOATS, 64);                                             \
		_tile_stored(b, s + (panel)*PANEL_FLOATS + GROUP_FLOATS, 64);                              \
	} while (0)
	PRODUCTS(0, 1);
	for (;;) {
		if (++c == g.c1) {
			STORE(0, 1, c - 1);
			break;
		}
		PRODUCTS(2, 3);
		STORE(0, 1, c - 1);
		if (++c == g.c1) {
			STORE(2, 3, c - 1);
			break;
		}
		PRODUCTS(0, 1);
		STORE(2, 3, c - 1);
	}
#undef PRODUCTS
#undef STORE
}

/* ---- softmax ---- */

/* One number of each of 16 vectors: lane i of the result is the tree (j, j + 8), (j, j + 4),
 * (j, j + 2), (j, j + 1) over vector i. */
#define REDUCE_16(name, op)                                                                        \
	static inline __m512 name(const __m512 v[16])                                                  \
	{                                                                                              \
		__m512 a[8], b[4], c[2];                                                                   \
		for (int i = 0; i < 8; i++) /* rows i, i + 8 in the low and high half */                   \
			a[i] = op(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),                                  \
			          _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));                                 \
		for (int i = 0; i < 4; i++) /* rows i, i + 8 | i + 4, i + 12 by quarters */                \
			b[i] = op(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),                                  \
			          _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));                                 \
		for (int i = 0; i < 2; i++)                                                                \
			c[i] = op(_mm512_shuffle_ps(b[i], b[i + 2], 0x44),                                     \
			          _mm512_shuffle_ps(b[i], b[i + 2], 0xee));                                    \
		__m512 d = op(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));   \
		/* lane 4q + j holds row: q selects 0, 8, 4, 12 and j selects 0, 2, 1, 3 */                \
		return _mm512_permutexvar_ps(                                                              \
			_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), d);           \
	}
REDUCE_16(max_16, _mm512_max_ps)
REDUCE_16(sum_16, _mm512_add_ps)

static inline __mmask16 lanes(uint32_t from, uint32_t to, uint32_t i)
{
	uint32_t a = from > i ? from - i : 0, b = to > i ? to - i : 0;
	b = b < 16 ? b : 16;
	return b > a ? (__mmask16)(((1u << b) - 1) & ~((1u << a) - 1)) : 0;
}

/* Writes -inf over the scores of keys that rows r0 .. r0 + rows - 1 must not see. */
static void mask(const struct attn_task *t, struct range g, uint32_t r0, uint32_t rows, float *s)
{
	const __m512 never = _mm512_set1_ps(-INFINITY);
	uint32_t begin = g.c0 * ATTN_PANEL, end = g.c1 * ATTN_PANEL;

	if (t->lo[r0 + rows - 1] <= t->t0 + begin && t->hi[r0] >= t->t0 + end)
		return;
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t lo = t->lo[r0 + r] > t->t0 ? t->lo[r0 + r] - t->t0 : 0;
		uint32_t hi = t->hi[r0 + r] > t->t0 ? t->hi[r0 + r] - t->t0 : 0;
		for (uint32_t i = begin; i < end; i += 16) {
			if (i >= lo && i + 16 <= hi)
				continue;
			float *p = s + i / ATTN_PANEL * PANEL_FLOATS + i / 16 % 2 * GROUP_FLOATS + r * 16;
			_mm512_store_ps(p, _mm512_mask_mov_ps(never, lanes(lo, hi, i), _mm512_load_ps(p)));
		}
	}
}

static inline __m512 exp2_cut(__m512 t)
{
	__m512 f = _mm512_reduce_ps(t, 0x09); /* t - floor(t); 0 for -inf */
	__m512 p = _mm512_set1_ps(0.0770670622587204f * CUT);
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.22764495015144348f * CUT));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6951168179512024f * CUT));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(CUT));
	return _mm512_scalef_ps(p, t);
}

static inline __m512 row_max(struct range g, const float *s, uint32_t r)
{
	__m512 top = _mm512_set1_ps(-INFINITY);
	for (uint32_t c = g.c0; c < g.c1; c++) {
		const float *p = s + c * PANEL_FLOATS + r * 16;
		top =
			_mm512_max_ps(top, _mm512_max_ps(_mm512_load_ps(p), _mm512_load_ps(p + GROUP_FLOATS)));
	}
	return top;
}

/* Replaces row r's scores by probabilities: [row][32] in bf16 for each panel, in the place of its
 * first group. Returns their sums lane by lane. */
static inline __m512 row_exp(struct range g, float *s, uint32_t r, __m512 scale, float minus)
{
	const __m512i high =
		_mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
	                     25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
	__m512 sum = _mm512_setzero_ps(), less = _mm512_set1_ps(minus);
	for (uint32_t c = g.c0; c < g.c1; c++) {
		float *p = s + c * PANEL_FLOATS + r * 16;
		__m512 a = exp2_cut(_mm512_fmadd_ps(_mm512_load_ps(p), scale, less));
		__m512 b = exp2_cut(_mm512_fmadd_ps(_mm512_load_ps(p + GROUP_FLOATS), scale, less));
		sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
		_mm512_store_si512(
			p, _mm512_permutex2var_epi16(_mm512_castps_si512(a), high, _mm512_castps_si512(b)));
	}
	return sum;
}

/* Writes the maxima of 16 rows of scores to m, as exponents of two, and what to add to a scaled
 * score to minus. */
static inline void finish_max(const __m512 v[16], __m512 scale, float *m, float *minus)
{
	__m512 top = _mm512_mul_ps(max_16(v), scale);
	__mmask16 some = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
	_mm512_store_ps(m, top);
	_mm512_store_ps(minus, _mm512_maskz_sub_ps(some, _mm512_setzero_ps(), top));
}

static inline void finish_sum(const __m512 v[16], float *l)
{
	_mm512_store_ps(l, _mm512_mul_ps(sum_16(v), _mm512_set1_ps(1 / CUT)));
}

/* ---- outputs: o[16, dim] of each tile ---- */

static void outputs_one(const struct attn_task *t, struct range g, const float *p, float *o)
{
	size_t stride = (size_t)t->value_dim * 4, panel = (size_t)t->value_dim * 64;

	for (size_t i = 0; i < t->value_dim / 16; i += 2) {
		_tile_zero(0);
		_tile_zero(1);
		for (uint32_t c = g.c0; c < g.c1; c++) {
			const unsigned char *v = t->values[c] + i * TILE_BYTES;
			const unsigned char *next = c + 1 < g.c1 ? t->values[c + 1] : t->next;
			_tile_loadd(4, p + c * PANEL_FLOATS, 64);
			fetch_ahead(t->values[c], i * TILE_BYTES, panel, next);
			_tile_loadd(5, v, 64);
			_tile_dpbf16ps(0, 4, 5);
			fetch_ahead(t->values[c], (i + 1) * TILE_BYTES, panel, next);
			_tile_loadd(6, v + TILE_BYTES, 64);
			_tile_dpbf16ps(1, 4, 6);
		}
		_tile_stored(0, o + i * 16, stride);
		_tile_stored(1, o + i * 16 + 16, stride);
	}
}

static void fold_amx(uint32_t rows, uint32_t dim, float *m, float *l, float *o, const float *mb,
                     const float *lb, const float *ob)
{
	attn_avx512_bf16.fold(rows, dim, m, l, o, mb, lb, ob);
}

static void outputs_many(const struct attn_task *t, struct range g, const float *p, float *o)
{
	size_t stride = (size_t)t->value_dim * 4;
	uint32_t tiles = t->value_dim / 16, i = 0;

	for (; i + 4 <= tiles; i += 4) {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
		for (uint32_t c = g.c0; c < g.c1; c++) {
			const unsigned char *v = t->values[c] + (size_t)i * TILE_BYTES;
			_tile_loadd(4, p + c * PANEL_FLOATS, 64);
			_tile_loadd(5, v, 64);
			_tile_dpbf16ps(0, 4, 5);
			_tile_loadd(6, v + TILE_BYTES, 64);
			_tile_dpbf16ps(1, 4, 6);
			_tile_loadd(5, v + 2 * TILE_BYTES, 64);
			_tile_dpbf16ps(2, 4, 5);
			_tile_loadd(6, v + 3 * TILE_BYTES, 64);
			_tile_dpbf16ps(3, 4, 6);
		}
		_tile_stored(0, o + i * 16, stride);
		_tile_stored(1, o + i * 16 + 16, stride);
		_tile_stored(2, o + i * 16 + 32, stride);
		_tile_stored(3, o + i * 16 + 48, stride);
	}
	for (; i < tiles; i += 2) {
		_tile_zero(0);
		_tile_zero(1);
		for (uint32_t c = g.c0; c < g.c1; c++) {
			const unsigned char *v = t->values[c] + (size_t)i * TILE_BYTES;
			_tile_loadd(4, p + c * PANEL_FLOATS, 64);
			_tile_loadd(5, v, 64);
			_tile_dpbf16ps(0, 4, 5);
			_tile_loadd(6, v + TILE_BYTES, 64);
			_tile_dpbf16ps(1, 4, 6);
		}
		_tile_stored(0, o + i * 16, stride);
		_tile_stored(1, o + i * 16 + 16, stride);
	}
}

/* ---- a block ---- */

/* Scales and caps a row of scores: cap - 2 cap / (1 + 2^x), x = 2 log2(e) score / cap; degree 6 as
 * in softmax_portable.c. */
static void cap_row(const struct attn_task *t, struct range g, float *s, uint32_t r)
{
	const __m512 scale = _mm512_set1_ps(t->scale * (2.885390081777927f / t->cap));
	const __m512 cap = _mm512_set1_ps(t->cap), one = _mm512_set1_ps(1);
	for (uint32_t c = g.c0; c < g.c1; c++)
		for (uint32_t i = 0; i < 2; i++) {
			float *at = s + c * PANEL_FLOATS + i * GROUP_FLOATS + r * 16;
			__m512 x = _mm512_mul_ps(_mm512_load_ps(at), scale);
			x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-60)), _mm512_set1_ps(60));
			__m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
			__m512 f = _mm512_sub_ps(x, n), p = _mm512_set1_ps(0.00015353360504377633f);
			p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0013398875016719103f));
			p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00961843691766262f));
			p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055503323674201965f));
			p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022647738456726f));
			p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931471824645996f));
			p = _mm512_scalef_ps(_mm512_fmadd_ps(p, f, one), n);
			p = _mm512_div_ps(_mm512_add_ps(cap, cap), _mm512_add_ps(one, p));
			_mm512_store_ps(at, _mm512_sub_ps(cap, p));
		}
}

/* Maxima, probabilities and sums of `rows` rows from r0. */
static inline __attribute__((always_inline)) void softmax(const struct attn_task *t, struct range g,
                                                          uint32_t r0, const uint32_t rows,
                                                          float *s, float *m, float *l)
{
	const __m512 scale = _mm512_set1_ps(t->cap > 0 ? 1 : t->scale);
	_Alignas(64) float minus[16];
	__m512 v[16];

	for (uint32_t r = 0; t->cap > 0 && r < rows; r++)
		cap_row(t, g, s, r);
	mask(t, g, r0, rows, s);
	for (uint32_t r = rows; r < 16; r++)
		v[r] = _mm512_setzero_ps();
	for (uint32_t r = 0; r < rows; r++)
		v[r] = row_max(g, s, r);
	finish_max(v, scale, m, minus);
	for (uint32_t r = 0; r < rows; r++)
		v[r] = row_exp(g, s, r, scale, minus[r]);
	finish_sum(v, l);
}

/* Tiles of 16 rows, which are bound by arithmetic, or one tile of fewer, bound by memory. */
static void block_amx(const struct attn_task *t, float *m, float *l, float *o)
{
	float *s = t->work, *ob = s + TILE_FLOATS;
	_Alignas(64) float mb[16], lb[16];
	const unsigned char *q = t->q;
	struct range g;

	for (uint32_t r = 0; r < t->rows; r += ATTN_TILE, q += (size_t)ATTN_TILE * t->dim * 2) {
		uint32_t n = t->rows - r < ATTN_TILE ? t->rows - r : ATTN_TILE;
		bool few = t->rows < ATTN_TILE;
		if (!attn_visible(t, r, n, &g.c0, &g.c1))
			continue;
		BARRIER();
		if (few)
			scores_one(t, g, q, s);
		else
			scores_many(t, g, q, s);
		BARRIER();
		if (n == ATTN_TILE)
			softmax(t, g, r, ATTN_TILE, s, mb, lb);
		else
			softmax(t, g, r, n, s, mb, lb);
		BARRIER();
		if (few)
			outputs_one(t, g, s, ob);
		else
			outputs_many(t, g, s, ob);
		BARRIER();
		fold_amx(n, t->value_dim, m + r, l + r, o + (size_t)r * t->value_dim, mb, lb, ob);
	}
}

static void pack_q_amx(void *tiles, uint32_t row, uint32_t head_dim, uint32_t dim, const float *q)
{
	uint16_t *to = (uint16_t *)tiles + (size_t)(row / 16) * 16 * dim + row % 16 * 32;
	for (uint32_t i = 0; i < dim; i += 32) {
		__mmask16 lo = lanes(0, head_dim, i), hi = lanes(0, head_dim, i + 16);
		__m512 a = _mm512_maskz_loadu_ps(lo, q + i), b = _mm512_maskz_loadu_ps(hi, q + i + 16);
		_mm512_storeu_si512(to + i * 16, (__m512i)_mm512_cvtne2ps_pbh(b, a));
	}
}

/* All levels share the layout of panels. */
static void append_amx(unsigned char *keys, unsigned char *values, uint32_t first, uint32_t n,
                       uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld)
{
	attn_avx512_bf16.append(keys, values, first, n, head_dim, dim, k, v, ld);
}

static void values_of_keys_amx(const unsigned char *keys, uint32_t dim, uint32_t value_dim,
                               unsigned char *values)
{
	attn_avx512_bf16.values_of_keys(keys, dim, value_dim, values);
}

static void finish_amx(uint32_t head_dim, float l, const float *o, float *y)
{
	attn_avx512_bf16.finish(head_dim, l, o, y);
}

const struct attn_kernels attn_amx_bf16 = {
	.name = "amx-bf16",
	.q_size = 2,
	.begin = begin,
	.end = end,
	.append = append_amx,
	.values_of_keys = values_of_keys_amx,
	.pack_q = pack_q_amx,
	.block = block_amx,
	.fold = fold_amx,
	.finish = finish_amx,
};
