/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices: how a checkpoint stores them (struct mx_quant_source), and how a device
 * multiplies with them (struct mx_quant, beside packed panels).
 *
 * A source is never multiplied with as it lies. When a model is loaded, the engine packs each
 * matrix once into panels of MX_QUANT_ROWS rows, in which one vector register takes the same
 * columns of all the rows of a panel; so a product needs no sums across lanes, and any source of
 * small integers is read at the speed of memory. Only the panels stay resident.
 *
 * On a CPU a product rounds x to 8 bits, by blocks of MX_QUANT_BLOCK columns of a row: scale = the
 * largest magnitude of the block / 127. Codes are multiplied and summed as integers, exactly; the
 * blocks' sums are added in f32 by a fused multiply-add each, in the order of the columns. So all
 * instruction sets give the same bits, and a row's bits depend on that row alone.
 *
 * On a GPU x stays bf16: codes become bf16, exactly, and the sums of a group are f32, multiplied by
 * its scale. Panels there have the codes in the order in which the threads of a warp multiply
 * (mx_quant.fragments).
 */
#ifndef MX_DEVICE_QUANT_H
#define MX_DEVICE_QUANT_H

#include "device/device.h"

/* A matrix [rows, cols] as a checkpoint stores it. Everything points into the checkpoint's mapping.
 */
struct mx_quant_source {
	enum mx_quant_format format;
	enum mx_dtype dtype; /* MX_QUANT_PLAIN: of the elements */
	uint32_t rows, cols;
	const void *codes; /* or blocks, or plain elements */
	/* MX_QUANT_INT8 and those after it: */
	const void *scales;
	enum mx_dtype scale_dtype;
	uint32_t group;      /* columns that share a scale; cols = one group. MX_QUANT_FP4: 32 */
	uint32_t group_rows; /* MX_QUANT_FP8: rows that share a scale */
	const void *zeros;   /* as the format packs them; NULL = symmetric */
	bool zeros_less_one; /* GPTQ v1: the stored zero is one less */
	bool codes_unsigned; /* MX_QUANT_INT8: codes have 128 added */
	/* MX_QUANT_FP4: if not 0, the matrix has runs of so many rows, of each of which rows 0, 2, 4
	 * ... of the checkpoint come first and rows 1, 3, 5 ... after them. */
	uint32_t pairs;
};

/* Returns the elements of a block of one of GGUF's formats, 1 for others. */
uint32_t mx_quant_block_elements(enum mx_quant_format f);
/* Returns the bytes of one row of a matrix in one of GGUF's formats; cols is a multiple of the
 * block. */
size_t mx_quant_row_bytes(enum mx_quant_format f, size_t cols);
/* Returns the format's name as messages have it, e.g. "Q4_K". */
const char *mx_quant_format_name(enum mx_quant_format f);

/* Expands row `row` of a source of any format to f32 [cols]: the reference of the formats. */
void mx_quant_expand(const struct mx_quant_source *s, size_t row, float *y);

/* The same, as f32 or bf16 (rounded to nearest even). */
void mx_quant_expand_as(const struct mx_quant_source *s, size_t row, enum mx_dtype dtype, void *to);

/* ---- packed ---- */

#define MX_QUANT_ROWS     16  /* rows of a panel */
#define MX_QUANT_BLOCK    32  /* columns of x that share a scale */
#define MX_QUANT_SUPER    256 /* columns of a block of a panel */
#define MX_QUANT_FRAGMENT 128 /* likewise, if its codes are in fragments */

/* Codes of a packed matrix. */
enum mx_quant_codes {
	MX_CODES_8, /* signed, 8 bits */
	MX_CODES_4, /* unsigned, 4 bits */
	MX_CODES_5,
	MX_CODES_6,
	MX_CODES_TABLE, /* 4 bits that choose one of 16 signed numbers */
	MX_CODES_E4M3,  /* fragments only: 8 bits, a number of fp8 */
	MX_CODES_E2M1,  /* fragments only: 4 bits, twice a number of fp4; products of experts read it */
};

/* Scales of a packed matrix. */
enum mx_quant_scales {
	MX_SCALES_F32, /* one number for each row and group */
	MX_SCALES_F16,
	MX_SCALES_BF16,
	MX_SCALES_TWO, /* an f16 for each row and MX_QUANT_SUPER columns, times 8 bits for each group */
};

/* What a product subtracts from the codes. */
enum mx_quant_offset {
	MX_OFFSET_NONE, /* codes are signed, or all of one constant offset */
	MX_OFFSET_ZERO, /* a number of 8 bits for each row and group: scale (code - zero) */
	MX_OFFSET_MIN,  /* MX_SCALES_TWO: scale code - minimum, which has two levels like the scale */
};

/* How a matrix is packed. mx_weight.data points to its panels: [ceil(rows / MX_QUANT_ROWS)] of
 * panel_bytes, each [ceil(cols / MX_QUANT_SUPER)] of super_bytes. The last rows and columns are
 * padded with zeros. quant_pack.h has the layout of a block. */
struct mx_quant {
	enum mx_quant_codes codes;
	enum mx_quant_scales scales;
	enum mx_quant_offset offset;
	uint32_t group;      /* columns that share a scale: 16, 32, 64, 128 or 256 */
	int32_t center;      /* MX_OFFSET_NONE: the code that stands for 0 */
	const int8_t *table; /* [16] MX_CODES_TABLE; static */
	bool whole;          /* MX_CODES_E4M3: each row has one scale */
	bool fragments;      /* codes of 4 or 8 bits in the order of a GPU's threads: quant_pack.h */
	size_t super_bytes, panel_bytes;
};

/* Returns how a source is packed. MX_E_UNSUPPORTED for sources that are not (MX_QUANT_FP8, groups
 * that are not a multiple of 16): these are expanded instead. With MX_QUANT_PLAIN, `bits` is 8 or 4
 * and the elements are rounded to nearest; else `bits` is ignored. */
mx_status mx_quant_choose(const struct mx_quant_source *s, int bits, struct mx_quant *out);
/* The same for GPUs. Codes of 5 and 6 bits and those of a table get 8 bits, with the same numbers,
 * but for MXFP4 of matrices of `experts`; MX_QUANT_FP8 is packed if each row's scale is
 * that of all columns or of groups as above. */
mx_status mx_quant_choose_fragments(const struct mx_quant_source *s, int bits, bool experts,
                                    struct mx_quant *out);
/* Returns the bytes of all panels of `rows` rows. */
size_t mx_quant_bytes(const struct mx_quant *q, uint32_t rows);
/* Packs rows first .. first + n - 1 of the source as one panel; n <= MX_QUANT_ROWS. `to` has
 * q->panel_bytes. Threads may pack different panels at a time. */
void mx_quant_pack(const struct mx_quant *q, const struct mx_quant_source *s, size_t first,
                   size_t n, void *to);
/* Expands row `row` of a packed weight to f32 [cols]: the reference of the products, and what embed
 * does. */
void mx_quant_row(const struct mx_weight *w, size_t row, float *y);

#endif
