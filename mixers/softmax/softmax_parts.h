/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block in parts (attn_kernels.scores, weights, values), whose keys and values are read in the
 * order of memory: what the levels share. Included behind softmax_rows.h; the includer defines
 * PART_ROWS, 4 or more, the most rows of a pass.
 */
#ifndef MX_MIXERS_SOFTMAX_PARTS_H
#define MX_MIXERS_SOFTMAX_PARTS_H

#include "mixers/softmax/softmax_kernels.h"

/* attn_kernels.weights */
static void part_weights(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s, float *m,
                         float *l)
{
	for (uint32_t r = 0; r < t->rows; r++)
		softmax_row(t, (struct range){c0, c1}, r, s + (size_t)r * ATTN_BLOCK, &m[r], &l[r]);
}

/* Calls f(r, n) for all rows, in passes of n, a constant, from row r on. */
#define ATTN_PASSES(rows, f)                                                                       \
	do {                                                                                           \
		uint32_t pass = 0;                                                                         \
		for (; pass + PART_ROWS <= (rows); pass += PART_ROWS)                                      \
			f(pass, PART_ROWS);                                                                    \
		for (; pass + 4 <= (rows); pass += 4)                                                      \
			f(pass, 4);                                                                            \
		for (; pass + 2 <= (rows); pass += 2)                                                      \
			f(pass, 2);                                                                            \
		if (pass < (rows))                                                                         \
			f(pass, 1);                                                                            \
	} while (0)

#endif
