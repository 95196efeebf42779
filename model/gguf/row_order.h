/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tensors that a file has in another order than the checkpoint that it was made from. */
#ifndef MX_MODEL_GGUF_ROW_ORDER_H
#define MX_MODEL_GGUF_ROW_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* An order of rows (elements, if a tensor has one dimension): of each n * m * run rows from row
 * `first` on, row (i * m + j) * run + k is stored as row (j * n + i) * run + k, for i < n, j < m, k
 * < run. n = 0: all are in order. */
struct mx_row_order {
	uint32_t first, n, m, run;
};

/* Returns the row that row `stored` of the file is. */
static inline size_t mx_row_of(const struct mx_row_order *o, size_t stored)
{
	if (!o->n || stored < o->first)
		return stored;
	const size_t block = (size_t)o->n * o->m * o->run, at = (stored - o->first) % block;
	const size_t turned = at / o->run, i = turned % o->n, j = turned / o->n;
	return stored - at + (i * o->m + j) * o->run + at % o->run;
}

#endif
