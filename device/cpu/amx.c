/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of bf16 weights with the tile multiplier (AMX).
 *
 * Order of operations of every y[i][r]: start from b[r] (or 0), plus the old
 * y[i][r] if accumulating; then TDPBF16PS over the columns in ascending order, 32
 * at a time, the last ones padded with zeros. The instruction treats the elements
 * of a result alike and its two operands too, so neither the number of rows of x
 * nor which operand x is changes a bit. Results are stored in memory between blocks
 * of columns, which is exact. There are two algorithms with the same bits:
 *
 * Few rows of x (amx_few.h): Y^T = W X^T. A tile is 16 rows of the weight by 32
 * columns straight from the checkpoint's row-major memory: nothing is repacked
 * and the page cache holds the only copy. Each call packs x in pairs.
 *
 * Many rows of x (amx_many.h): Y = X W^T. The weight is packed in pairs, one panel
 * of 32 rows ahead of the multiplication and overlapped with it. Results go
 * straight to y.
 *
 * All operands of a step are loaded before its first multiplication, each into a
 * tile that was just set to zero (load_tile). While the other hardware thread of
 * the core is busy, processors seem to run loads and multiplications one after the
 * other, and then this order takes a fifth less time (bench/NOTES.md).
 */
#include <immintrin.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/kernels.h"

#define TILE_ROWS  16
#define TILE_COLS  32 /* bf16 */
#define TILE_BYTES 1024
#define TILE_F32   (TILE_BYTES / 4)
#define PANEL      (2 * TILE_ROWS) /* weight rows at a time */
/* Most tiles of a block along the columns: two such panels and the columns of MANY_X rows of x fit
 * the second-level cache. */
#define BLOCK       24
#define PANEL_BYTES (2 * BLOCK * TILE_BYTES)

_Static_assert(MX_PACK_ROWS == TILE_ROWS && MX_TASK_ROWS == PANEL, "tasks fit tiles");

/* The operand of LDTILECFG: eight tiles of 16 rows of 64 bytes. Static, since GCC 12 takes the
 * instruction to read 8 bytes only and drops the stores to the rest. */
static const struct {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
} tile_config = {.palette = 1,
                 .colsb = {64, 64, 64, 64, 64, 64, 64, 64},
                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Loads a tile after setting it to zero, so that the load does not depend on the tile's old
 * contents. A macro, since the tile's number is part of the instruction. */
#define load_tile(tile, p, stride)                                                                 \
	do {                                                                                           \
		_tile_zero(tile);                                                                          \
		_tile_loadd(tile, p, stride);                                                              \
	} while (0)

static size_t tiles_of(size_t cols)
{
	return (cols + TILE_COLS - 1) / TILE_COLS;
}

/* Returns the columns of a block, such that all blocks have about the same size. */
static size_t block_of(size_t cols)
{
	size_t tiles = tiles_of(cols), blocks = (tiles + BLOCK - 1) / BLOCK;
	return (tiles + blocks - 1) / blocks * TILE_COLS;
}

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Transposes 16 x 16 elements of 32 bits. */
static inline __attribute__((always_inline)) void transpose(__m512i r[16])
{
	__m512i t[16];
#pragma GCC unroll 16
	for (int i = 0; i < 16; i += 2) {
		t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
	}
#pragma GCC unroll 16
	for (int i = 0; i < 16; i += 4) {
		r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
		r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
		r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
		r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
	}
	/* r[4 q + j] holds, in 128-bit lane l, column 4 l + j of rows 4 q .. 4 q + 3 */
#pragma GCC unroll 16
	for (int j = 0; j < 4; j++) {
		t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
		t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
		t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
		t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
	}
#pragma GCC unroll 16
	for (int j = 0; j < 4; j++) {
		r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
		r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
		r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
		r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
	}
}

/* Loads 32 elements of a row from column k, rounded to bf16; zeros past the end. */
static inline __m512i load_bf16(const float *x, size_t k, size_t cols)
{
	if (k + TILE_COLS <= cols)
		return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + k + 16), _mm512_loadu_ps(x + k));
	size_t left = cols - k;
	__mmask16 lo = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
	__mmask16 hi = left <= 16 ? 0 : (__mmask16)((1u << (left - 16)) - 1);
	return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(hi, x + k + 16),
	                                    _mm512_maskz_loadu_ps(lo, x + k));
}

#include "device/cpu/amx_few.h"
#include "device/cpu/amx_many.h"

static size_t packed_bytes(size_t n, size_t cols)
{
	return mx_round_up(n, TILE_ROWS) * tiles_of(cols) * TILE_COLS * 2;
}

static void pack(const float *x, size_t ldx, size_t n, size_t cols, size_t first, size_t count,
                 void *packed)
{
	if (is_few(n, cols))
		few_pack(x, ldx, cols, first, count, packed);
	else
		many_pack(x, ldx, cols, first, count, packed);
}

static size_t scratch_bytes(size_t n, size_t cols)
{
	(void)n;
	(void)cols;
	return FEW_C + 2 * PANEL_BYTES;
}

static void run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	float *c = scratch;
	unsigned char *panels = (unsigned char *)scratch + FEW_C;
	_tile_loadconfig(&tile_config);
	if (is_few(p->n, p->w->cols))
		few_run(p, r0, r1, c, panels);
	else
		many_run(p, r0, r1, panels, c);
	_tile_release();
}

void mx_kernels_amx_bf16(struct mx_kernels *k)
{
	k->gemm[MX_BF16] = (struct mx_gemm){.rounds_x = true,
	                                    .packed_bytes = packed_bytes,
	                                    .pack = pack,
	                                    .scratch_bytes = scratch_bytes,
	                                    .run = run};
}
