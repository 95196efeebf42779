/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of packed panels. Private to device/.
 *
 * A panel has MX_QUANT_ROWS = 16 rows. A block of it, MX_QUANT_SUPER = 256 columns of these, is
 *
 *     scales | second scales | minima | second minima | zeros | padding to 64 | codes
 *
 * with G = 256 / group:
 *     scales          [G][16] f32, f16 or bf16; MX_SCALES_TWO: f16 [16]
 *     second scales   MX_SCALES_TWO: i8 [G][16]
 *     minima          MX_OFFSET_MIN: as the scales
 *     second minima   likewise
 *     zeros           MX_OFFSET_ZERO: u8 [G][16]
 *     codes           [8] of 32 columns each: a column is 4 k + c with k < 8, c < 4
 *
 * Codes of 8 bits: [8 k][16 rows][4 c], plus 128. Of 4 bits: [4 k][16][4], the low half of a byte
 * for k, the high half for k + 4. Of 5 and 6 bits: that, then the other bits: 5: [16][4], bit k of
 * the byte; 6: [2][16][4], k = 0 .. 3 in the first, bits 2 k.
 *
 * With mx_quant.fragments a warp reads codes as the operand A of mma.m16n8k16: lane 4 g + t has the
 * columns 8 t .. 8 t + 7 of every 32, of rows g and g + 8, in words of 32 bits.
 *     8 bits  [8][32 lanes][2 rows][2] words: columns 0, 2, 1, 3 and 4, 6, 5, 7 of the lane's 8,
 * from the low byte on; signed, or e4m3 4 bits, or e2m1  [4][32 lanes][2 times 32 columns][2 rows]
 * words: columns 0, 2, 4, 6, 1, 3, 5, 7, from the low bits on
 */
#ifndef MX_DEVICE_QUANT_PACK_H
#define MX_DEVICE_QUANT_PACK_H

#include "base/mem.h"
#include "device/quant.h"

struct mx_quant_layout {
	size_t groups;
	size_t scales, second, minima, second_minima, zeros, codes; /* offsets */
	size_t scale_size;                                          /* bytes of an entry of scales */
	size_t block_bytes;                                         /* codes of 32 columns */
	size_t bytes;
};

/* Returns the columns of a block. */
static inline size_t mx_quant_block_cols(const struct mx_quant *q)
{
	return q->fragments ? MX_QUANT_FRAGMENT : MX_QUANT_SUPER;
}

static inline struct mx_quant_layout mx_quant_layout_of(const struct mx_quant *q)
{
	const size_t cols = mx_quant_block_cols(q);
	struct mx_quant_layout l = {.groups = cols / q->group};
	const bool two = q->scales == MX_SCALES_TWO, minima = q->offset == MX_OFFSET_MIN;
	l.scale_size = q->scales == MX_SCALES_F32 ? 4 : 2;
	const size_t one = (two ? 1 : l.groups) * MX_QUANT_ROWS * l.scale_size;
	const size_t second = two ? l.groups * MX_QUANT_ROWS : 0;
	size_t at = one;
	l.second = at;
	l.minima = at += second;
	l.second_minima = at += minima ? one : 0;
	l.zeros = at += minima ? second : 0;
	at += q->offset == MX_OFFSET_ZERO ? l.groups * MX_QUANT_ROWS : 0;
	l.codes = mx_round_up(at, 64);
	l.block_bytes = q->codes == MX_CODES_8 || q->codes == MX_CODES_E4M3 ? 512
	                : q->codes == MX_CODES_5                            ? 320
	                : q->codes == MX_CODES_6                            ? 384
	                                                                    : 256;
	l.bytes = l.codes + cols / MX_QUANT_BLOCK * l.block_bytes;
	return l;
}

/* Returns the word of fragments, of 32 bits, that has column i of row r of a block;
 * *out_shift: the bit in it where the code begins. */
static inline size_t mx_quant_fragment(bool four, size_t r, size_t i, unsigned *out_shift)
{
	const size_t lane = 4 * (r % 8) + i % 32 / 8;
	if (four) {
		*out_shift = (unsigned)(4 * (i % 8 / 2) + 16 * (i & 1));
		return i / 64 * 128 + 4 * lane + i % 64 / 32 * 2 + r / 8;
	}
	*out_shift = (unsigned)(16 * (i & 1) + 8 * (i % 4 / 2));
	return i / 32 * 128 + 4 * lane + r / 8 * 2 + i % 8 / 4;
}

#endif
