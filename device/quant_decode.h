/* SPDX-License-Identifier: Apache-2.0 */
/* Codes and scales of quantised matrices, whatever their format. Private to device/. */
#ifndef MX_DEVICE_QUANT_DECODE_H
#define MX_DEVICE_QUANT_DECODE_H

#include <string.h>

#include "device/quant.h"

/* MX_QUANT_SUPER columns of a row, in the terms of struct mx_quant. Columns behind the last have
 * the code that stands for 0. */
struct mx_quant_part {
	uint8_t code[MX_QUANT_SUPER]; /* as packed: signed ones plus 128 */
	float scale[16];              /* of each group; MX_SCALES_TWO: [0] */
	float minimum[16];            /* likewise */
	int8_t second[16], second_minimum[16];
	uint8_t zero[16];
};

/* Fills *out with columns col .. of a row; q is what mx_quant_choose returned for s. */
void mx_quant_decode(const struct mx_quant_source *s, const struct mx_quant *q, size_t row,
                     size_t col, struct mx_quant_part *out);
/* The same of one of GGUF's formats (quant_blocks.c). n columns are left. */
void mx_quant_decode_blocks(enum mx_quant_format f, const unsigned char *row, size_t col, size_t n,
                            struct mx_quant_part *out);

/* The same of 1 to 3 bits with a grid: the block b (quant_iq.c). */
void mx_quant_decode_iq(enum mx_quant_format f, const unsigned char *b, struct mx_quant_part *out);
/* Returns the numbers [16] of the codes of these formats; NULL for others. */
const int8_t *mx_quant_iq_table(enum mx_quant_format f);

/* Returns half of an e8m0 scale, 2^(e - 127): the tables have twice the numbers of e2m1. */
static inline float mx_quant_e2m1_scale(uint8_t e)
{
	const uint32_t u = e == 255 ? 0x7fc00000 : e >= 2 ? (e - 1u) << 23 : 0x200000u << e;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

/* Returns the value of column i of a part. */
float mx_quant_value(const struct mx_quant *q, const struct mx_quant_part *p, size_t i);

#endif
