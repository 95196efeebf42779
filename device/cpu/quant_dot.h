/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the product with a packed matrix (device/quant.h), for the instruction set of the
 * including file. Lanes are rows of the weight, so there are no sums across them.
 *
 * Order of operations of every y[i][r], whatever else the call computes: the blocks of 32 columns
 * in ascending order; of each its groups (two of 16 columns, or one). A group's codes are summed as
 * integers, exactly. Then sum = fma(integers, scale * x's scale, sum), and, where there are minima
 * or zeros, sum = fma(-minimum, x's scaled sum, sum). In the end the bias, and the old y.
 *
 * A task is walked by panels, each multiplied with all rows of x that stay in the second-level
 * cache, QUANT_TILE at a time in registers.
 */
#include "device/cpu/quant_x.h"
#include "device/quant_pack.h"

#define QUANT_V     (MX_QUANT_ROWS / MX_W) /* vectors of a panel's rows */
#define QUANT_BYTES (4 * MX_W)             /* of codes in a vector */
/* Bytes of packed x that stay in the second-level cache beside a panel. */
#define QUANT_X_CACHE ((size_t)320 << 10)

typedef uint8_t vb __attribute__((vector_size(QUANT_BYTES)));
typedef uint16_t vh __attribute__((vector_size(QUANT_BYTES)));

MX_INLINE vb vb_load(const void *p)
{
	vb v;
	memcpy(&v, p, sizeof v);
	return v;
}

MX_INLINE vf quant_fma(vf a, vf b, vf c)
{
#if MX_W == 4
	for (int l = 0; l < MX_W; l++)
		c[l] = fmaf(a[l], b[l], c[l]);
	return c;
#else
	return vf_fma(a, b, c);
#endif
}

/* Returns n bits from bit `at` of every byte. */
MX_INLINE vb quant_bits(vb v, const int at, const int n)
{
	vh mask = (vh){0} + (uint16_t)(((1 << n) - 1) * 0x0101);
	return (vb)(((vh)v >> at) & mask);
}

MX_INLINE vb quant_lookup(vb table, vb index)
{
#if defined(__AVX512BW__)
	return (vb)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif defined(__AVX2__)
	return (vb)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#else
	for (int l = 0; l < QUANT_BYTES; l++)
		index[l] = table[index[l]];
	return index;
#endif
}

/* Codes of 8 bits and of tables are used as signed bytes where products take them, with 128 added
 * where they do not. */
#if defined(__AVX512VNNI__)
#define QUANT_SIGNED 0
#else
#define QUANT_SIGNED 1
#endif

/* Returns the codes of columns 4 k .. 4 k + 3 of a block, of the rows of vector v. */
MX_INLINE vb quant_code(const enum mx_quant_codes codes, const unsigned char *block, vb table,
                        const int v, const int k)
{
	const unsigned char *p = block + v * QUANT_BYTES;
	if (codes == MX_CODES_8) {
		vb w = vb_load(p + k * 64);
		return QUANT_SIGNED ? w ^ 0x80 : w;
	}
	vb w = quant_bits(vb_load(p + (k & 3) * 64), k < 4 ? 0 : 4, 4);
	if (codes == MX_CODES_5)
		w |= (vb)((vh)quant_bits(vb_load(p + 256), k, 1) << 4);
	if (codes == MX_CODES_6)
		w |= (vb)((vh)quant_bits(vb_load(p + 256 + (k >> 2) * 64), 2 * (k & 3), 2) << 4);
	return codes == MX_CODES_TABLE ? quant_lookup(table, w) : w;
}

/* acc[r] += the products of four codes with four of x. */
MX_INLINE vi quant_dot4(const enum mx_quant_codes codes, vi acc, vb w, const unsigned char *x)
{
	int32_t four;
	memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
	(void)codes;
	return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
	const __m256i xs = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
	__m256i pairs;
	if (codes == MX_CODES_8 || codes == MX_CODES_TABLE) /* at most 128 * 127 * 2: no saturation */
		pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8(xs, (__m256i)w));
	else
		pairs = _mm256_maddubs_epi16((__m256i)w, xs);
	acc += (vi)_mm256_madd_epi16(pairs, ones);
	__asm__("" : "+x"(acc)); /* else GCC adds in a tree, and spills it */
	return acc;
#else
	for (int l = 0; l < MX_W; l++)
		for (int c = 0; c < 4; c++) {
			uint8_t u = w[4 * l + c];
			bool is_signed = codes == MX_CODES_8 || codes == MX_CODES_TABLE;
			acc[l] += (is_signed ? (int8_t)u : u) * (int8_t)x[c];
		}
	return acc;
#endif
}

/* Scales and minima of a block of a panel, as f32: [group][row]. */
struct quant_scales {
	_Alignas(64) float scale[16][MX_QUANT_ROWS];
	_Alignas(64) float minimum[16][MX_QUANT_ROWS];
};

MX_INLINE vf quant_load_i8(const unsigned char *p)
{
#if defined(__AVX512F__)
	return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif defined(__AVX2__)
	return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
	vf f;
	for (int l = 0; l < MX_W; l++)
		f[l] = (float)(int8_t)p[l];
	return f;
#endif
}

/* Fills to[groups][16] from one or two levels. */
MX_INLINE void quant_expand_scales(const unsigned char *first, const unsigned char *second,
                                   enum mx_dtype dtype, size_t groups, float (*to)[MX_QUANT_ROWS])
{
	const size_t size = mx_dtype_size(dtype);
	for (int v = 0; v < QUANT_V; v++) {
		vf d = vf_load_as(first, dtype, (size_t)v * MX_W);
		for (size_t g = 0; g < groups; g++) {
			if (second)
				vf_store(&to[g][v * MX_W],
				         d * quant_load_i8(second + g * MX_QUANT_ROWS + v * MX_W));
			else
				vf_store(&to[g][v * MX_W],
				         vf_load_as(first + g * MX_QUANT_ROWS * size, dtype, (size_t)v * MX_W));
		}
	}
}

MX_INLINE void quant_read_scales(const struct mx_quant *q, const struct mx_quant_layout *l,
                                 const unsigned char *super, const bool minima,
                                 struct quant_scales *out)
{
	const bool two = q->scales == MX_SCALES_TWO;
	const enum mx_dtype dtype = q->scales == MX_SCALES_F32    ? MX_F32
	                            : q->scales == MX_SCALES_BF16 ? MX_BF16
	                                                          : MX_F16;
	quant_expand_scales(super, two ? super + l->second : NULL, dtype, l->groups, out->scale);
	if (!minima)
		return;
	if (q->offset == MX_OFFSET_MIN) {
		quant_expand_scales(super + l->minima, two ? super + l->second_minima : NULL, dtype,
		                    l->groups, out->minimum);
		return;
	}
	for (size_t g = 0; g < l->groups; g++)
		for (int v = 0; v < QUANT_V; v++) /* zeros are at most 127 here */
			vf_store(&out->minimum[g][v * MX_W],
			         vf_load(&out->scale[g][v * MX_W]) *
			             quant_load_i8(super + l->zeros + g * MX_QUANT_ROWS + v * MX_W));
}

struct quant_run {
	const struct mx_product *p;
	struct mx_quant_layout layout;
	size_t supers;
};

/* dot[c] += the products of columns 4 k .. 4 k + 3 of a block with those of x. */
MX_INLINE void quant_step(const int C, const enum mx_quant_codes codes, const int v, const int k,
                          const unsigned char *block, vb table, const unsigned char *x, vi *dot)
{
	const vb w = quant_code(codes, block, table, v, k);
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		dot[c] = quant_dot4(codes, dot[c], w, x + (k * C + c) * 4);
}

/* acc[c] += a block of a panel times that of x, of the rows of vector v; h = 0 or 1: that half of
 * the columns, else all. */
MX_INLINE void quant_group(const int C, const enum mx_quant_codes codes, const bool minima,
                           const int h, const int v, const unsigned char *block, vb table,
                           int32_t center, const float *scales, const float *minimum,
                           const unsigned char *x, vf (*acc)[QUANT_V])
{
	const float *x_scales = (const float *)(const void *)(x + C * MX_QUANT_BLOCK);
	const int32_t *sums = (const int32_t *)(const void *)(x_scales + 2 * C);
	int32_t less[QUANT_TILE];
	vi dot[QUANT_TILE];
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		less[c] = -center * (h < 2 ? sums[h * C + c] : sums[c] + sums[C + c]);
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		dot[c] = (vi){0} + less[c];
#define QUANT_STEP(k) quant_step(C, codes, v, k, block, table, x, dot)
	if (h < 2) {
		QUANT_STEP(4 * h);
		QUANT_STEP(4 * h + 1);
		QUANT_STEP(4 * h + 2);
		QUANT_STEP(4 * h + 3);
	} else { /* both halves of a byte one after the other */
		QUANT_STEP(0);
		QUANT_STEP(4);
		QUANT_STEP(1);
		QUANT_STEP(5);
		QUANT_STEP(2);
		QUANT_STEP(6);
		QUANT_STEP(3);
		QUANT_STEP(7);
	}
#undef QUANT_STEP
	const vf scale = vf_load(scales + v * MX_W);
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		acc[c][v] = quant_fma(__builtin_convertvector(dot[c], vf), scale * x_scales[c], acc[c][v]);
	if (!minima)
		return;
	const vf minus = -vf_load(minimum + v * MX_W);
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
		acc[c][v] =
			quant_fma(minus, vf_set(h < 2 ? x_scales[c] * (float)sums[h * C + c] : x_scales[C + c]),
		              acc[c][v]);
}

#if MX_W == 8
#include "device/cpu/quant_pairs.h"
#endif

/* sums[c] of one panel and C rows of x from `first` on. halves: groups of 16 columns. */
MX_INLINE void quant_tile(const int C, const enum mx_quant_codes codes, const bool minima,
                          const bool halves, const struct quant_run *r, const unsigned char *panel,
                          size_t first, vf (*sums)[QUANT_V])
{
	const struct mx_quant *q = r->p->w->quant;
	struct quant_scales s;
	vf acc[QUANT_TILE][QUANT_V];
	const bool has_sign = codes == MX_CODES_8 || codes == MX_CODES_TABLE;
	const int32_t center = !has_sign ? q->center : QUANT_SIGNED ? 0 : 128;
	const unsigned shift = q->group >= 128 ? (q->group == 128 ? 2 : 3) : q->group == 64 ? 1 : 0;
	vb table = {0};
	if (codes == MX_CODES_TABLE)
		for (int l = 0; l < QUANT_BYTES; l++)
			table[l] = (uint8_t)(q->table[l % 16] + (QUANT_SIGNED ? 0 : 128));
	const unsigned char *x =
		(const unsigned char *)r->p->packed + first * quant_x_bytes(r->p->w->cols);
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
#pragma GCC unroll 4
		for (int v = 0; v < QUANT_V; v++)
			acc[c][v] = (vf){0};
	for (size_t i = 0; i < r->supers; i++, panel += r->layout.bytes) {
		quant_read_scales(q, &r->layout, panel, minima, &s);
		const unsigned char *block = panel + r->layout.codes;
		for (unsigned b = 0; b < 8; b++, block += r->layout.block_bytes, x += C * QUANT_X_BYTES) {
			const unsigned g = halves ? 2 * b : b >> shift;
#if MX_W == 8
			if (C > 1 && !has_sign) {
				quant_pairs_group(C, codes, minima, halves ? 0 : 2, block, center, s.scale[g],
				                  s.minimum[g], x, acc);
				if (halves)
					quant_pairs_group(C, codes, minima, 1, block, center, s.scale[g + 1],
					                  s.minimum[g + 1], x, acc);
				continue;
			}
#endif
#pragma GCC unroll 4
			for (int v = 0; v < QUANT_V; v++) {
				quant_group(C, codes, minima, halves ? 0 : 2, v, block, table, center, s.scale[g],
				            s.minimum[g], x, acc);
				if (halves)
					quant_group(C, codes, minima, 1, v, block, table, center, s.scale[g + 1],
					            s.minimum[g + 1], x, acc);
			}
		}
	}
#pragma GCC unroll 8
	for (int c = 0; c < C; c++)
#pragma GCC unroll 4
		for (int v = 0; v < QUANT_V; v++)
			sums[c][v] = acc[c][v];
}

typedef void quant_tile_f(const struct quant_run *r, const unsigned char *panel, size_t first,
                          vf (*sums)[QUANT_V]);

#define QUANT_TILE_OF(C, name, codes, minima, halves)                                              \
	static void quant_##name##_##C(const struct quant_run *r, const unsigned char *panel,          \
	                               size_t first, vf(*sums)[QUANT_V])                               \
	{                                                                                              \
		quant_tile(C, codes, minima, halves, r, panel, first, sums);                               \
	}
#if MX_W == 16
#define QUANT_TILES(name, codes, minima, halves)                                                   \
	QUANT_TILE_OF(1, name, codes, minima, halves)                                                  \
	QUANT_TILE_OF(2, name, codes, minima, halves)                                                  \
	QUANT_TILE_OF(4, name, codes, minima, halves)                                                  \
	QUANT_TILE_OF(8, name, codes, minima, halves)                                                  \
	static quant_tile_f *const quant_##name[] = {quant_##name##_1, quant_##name##_2,               \
	                                             quant_##name##_4, quant_##name##_8};
#elif MX_W == 8
#define QUANT_TILES(name, codes, minima, halves)                                                   \
	QUANT_TILE_OF(1, name, codes, minima, halves)                                                  \
	QUANT_TILE_OF(2, name, codes, minima, halves)                                                  \
	QUANT_TILE_OF(4, name, codes, minima, halves)                                                  \
	static quant_tile_f *const quant_##name[] = {quant_##name##_1, quant_##name##_2,               \
	                                             quant_##name##_4};
#else
#define QUANT_TILES(name, codes, minima, halves)                                                   \
	QUANT_TILE_OF(1, name, codes, minima, halves)                                                  \
	static quant_tile_f *const quant_##name[] = {quant_##name##_1};
#endif
QUANT_TILES(8, MX_CODES_8, false, false)
QUANT_TILES(4, MX_CODES_4, false, false)
QUANT_TILES(4m, MX_CODES_4, true, false)
QUANT_TILES(5, MX_CODES_5, false, false)
QUANT_TILES(5m, MX_CODES_5, true, false)
QUANT_TILES(6h, MX_CODES_6, false, true)
QUANT_TILES(t, MX_CODES_TABLE, false, false)
QUANT_TILES(4h, MX_CODES_4, false, true)
QUANT_TILES(4mh, MX_CODES_4, true, true)
QUANT_TILES(th, MX_CODES_TABLE, false, true)

/* Returns the functions of a form, by the logarithm of the rows of x; NULL if there are none. */
static quant_tile_f *const *quant_tiles(const struct mx_quant *q)
{
	const bool minima = q->offset != MX_OFFSET_NONE, halves = q->group == 16;
	if (halves)
		return q->codes == MX_CODES_4       ? (minima ? quant_4mh : quant_4h)
		       : minima                     ? NULL
		       : q->codes == MX_CODES_6     ? quant_6h
		       : q->codes == MX_CODES_TABLE ? quant_th
		                                    : NULL;
	switch (q->codes) {
	case MX_CODES_8: return minima ? NULL : quant_8;
	case MX_CODES_4: return minima ? quant_4m : quant_4;
	case MX_CODES_5: return minima ? quant_5m : quant_5;
	case MX_CODES_TABLE: return minima ? NULL : quant_t;
	case MX_CODES_6:
	case MX_CODES_E4M3:
	case MX_CODES_E2M1: break;
	}
	return NULL;
}

/* Stores the sums of n rows of the weight from r on, to row `row` of y. */
static void quant_store(const struct mx_product *p, size_t row, size_t r, size_t n, const vf *sums)
{
	float sum[MX_QUANT_ROWS], *y = p->y + row * p->ldy + r;
	if (n == MX_QUANT_ROWS) {
#pragma GCC unroll 4
		for (int i = 0; i < QUANT_V; i++) {
			const size_t at = (size_t)i * MX_W;
			vf v = sums[i] + (p->bias ? vf_load(p->bias + r + at) : (vf){0});
			vf_store(y + at, p->accumulate ? vf_load(y + at) + v : v);
		}
		return;
	}
	memcpy(sum, sums, sizeof sum);
	for (size_t j = 0; j < n; j++) {
		float v = sum[j] + (p->bias ? p->bias[r + j] : 0.0f);
		y[j] = p->accumulate ? y[j] + v : v;
	}
}

static void quant_panel(const struct quant_run *r, quant_tile_f *const *tiles, size_t row,
                        size_t rows_end, size_t first, size_t end)
{
	const struct mx_weight *w = r->p->w;
	const unsigned char *panel =
		(const unsigned char *)w->data + row / MX_QUANT_ROWS * w->quant->panel_bytes;
	size_t n_r = rows_end - row < MX_QUANT_ROWS ? rows_end - row : MX_QUANT_ROWS;
	for (size_t i = first; i < end;) {
		vf sums[QUANT_TILE][QUANT_V];
		const unsigned log = quant_x_width(i, r->p->n);
		tiles[log](r, panel, i, sums);
		for (size_t c = 0; c < (size_t)1 << log; c++)
			quant_store(r->p, i + c, row, n_r, sums[c]);
		i += (size_t)1 << log;
	}
}

static void quant_run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	const struct quant_run r = {p, mx_quant_layout_of(p->w->quant),
	                            mx_round_up(p->w->cols, MX_QUANT_SUPER) / MX_QUANT_SUPER};
	quant_tile_f *const *tiles = quant_tiles(p->w->quant);
	size_t rows = QUANT_X_CACHE / quant_x_bytes(p->w->cols) / QUANT_TILE * QUANT_TILE;
	rows = rows < QUANT_TILE ? QUANT_TILE : rows;
	(void)scratch;
	for (size_t i = 0; i < p->n; i += rows)
		for (size_t row = r0; row < r1; row += MX_QUANT_ROWS)
			quant_panel(&r, tiles, row, r1, i, i + rows < p->n ? i + rows : p->n);
}

static void quant_fill(struct mx_gemm *g)
{
	*g = (struct mx_gemm){
		.packed_bytes = quant_x_packed_bytes,
		.pack = quant_x_pack,
		.run = quant_run,
	};
}
