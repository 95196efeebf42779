/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel tables of dci, complete at every level: of the search, one per instruction set; of
 * rows, one per instruction set and type of keys.
 *
 * A row is a key or a value: `dim` elements (a multiple of 32) of f32 or bf16. Queries and outputs
 * are packed, in a form that the level chooses.
 *
 * An index run has one code for each of its DCI_RUN keys, one bit a direction. Byte b of the codes
 * of all keys lies together, [bytes][DCI_RUN], the low nibble being directions 8b .. 8b + 3. Key j
 * has place 2j, key j + 32 place 2j + 1: so that sums of 16 bits come out in order.
 */
#ifndef MX_MIXERS_DCI_KERNELS_H
#define MX_MIXERS_DCI_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device/device.h"

#define DCI_RUN  64 /* keys of a run: a vector of bytes at the widest level */
#define DCI_SCAN 4  /* most queries of a call, which share what they load */

/* A query as scan reads it. The sum over directions of projection times sign of a key is
 * step * (sum of the table's entries that its code chooses) - offset. */
struct dci_query {
	const uint8_t *table; /* [directions / 4][16], entries up to 127 */
	float step, offset;
	float least; /* a key is found if its estimate is above */
};

/* Keys in order of position, with numbers in the order of floats (dci_ordered). */
struct dci_found {
	uint32_t *value, *pos; /* room for DCI_RUN more, whatever n is */
	uint32_t n;
};

/* Returns a number that compares as f does. */
static inline uint32_t dci_ordered(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	return u >> 31 ? ~u : u | 0x80000000u;
}

struct dci_search {
	/* Multiplies x [n], n a power of two and at least 16, by a random rotation, in place: three
	 * times signs [3][n], then a Hadamard transform that keeps lengths. */
	void (*rotate)(uint32_t n, const float *signs, float *x);

	/* Fills the table [n / 4][16] of the projections x [n]. */
	void (*tabulate)(uint32_t n, const float *x, uint8_t *table, float *step, float *offset);

	/* Estimates the products of n <= DCI_SCAN queries with the keys of a run, base[i] + factors[j]
	 * * sum, and adds those above q[i].least to found[i]; pos is the position of the first key. */
	void (*scan)(uint32_t bytes, const unsigned char *codes, const float *factors, uint32_t n,
	             const struct dci_query *q, const float *base, uint32_t pos,
	             struct dci_found *found);

	/* Keeps the largest of the keys found, at least k and at most `most` (1 <= k <= n, k <= most),
	 * in their order; of equal ones the first. Returns a value that at least k of them are not
	 * below, and no others above. */
	uint32_t (*keep)(struct dci_found *f, uint32_t k, uint32_t most);
};

/* Arrays of several queries: packed ones and outputs lie `dim` floats apart, scores `ld`. */
struct dci_rows {
	const char *name;

	/* Packs a query. */
	void (*pack)(uint32_t dim, const float *q, float *out);
	/* The reverse, for outputs, times `factor`. */
	void (*unpack)(uint32_t n, const float *o, float factor, float *out);

	/* out[h][i] = q[h] . rows[i] for n_q <= DCI_SCAN queries; a number depends on its row and its
	 * query alone. */
	void (*score)(uint32_t n, const unsigned char *const *rows, uint32_t dim, uint32_t n_q,
	              const float *q, float *out, size_t ld);

	/* Turns scores s [n], with room up to a multiple of 16, into 2^(scale s - m), after the cap if
	 * it is not 0. Returns their sum and *m, the largest exponent. */
	float (*softmax)(uint32_t n, float *s, float scale, float cap, float *m);

	/* o[h] += sum of p[h][i] times the row `offset` bytes behind rows[i], for n_q <= DCI_SCAN
	 * queries. */
	void (*mix)(uint32_t n, const unsigned char *const *rows, size_t offset, uint32_t dim,
	            uint32_t n_q, const float *p, size_t ld, float *o);
};

/* Return the tables of a level, for keys and values of type f32 or bf16 (dci_choose.c). */
const struct dci_search *dci_search_find(enum mx_isa isa);
const struct dci_rows *dci_rows_find(enum mx_isa isa, enum mx_dtype dtype);

extern const struct dci_search dci_search_portable, dci_search_avx2, dci_search_avx512;
extern const struct dci_rows dci_rows_portable_f32, dci_rows_portable_bf16;
extern const struct dci_rows dci_rows_avx2_f32, dci_rows_avx2_bf16;
extern const struct dci_rows dci_rows_avx512_f32, dci_rows_avx512_bf16, dci_rows_dot_bf16;

#endif
