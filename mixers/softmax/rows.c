/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixers of attention do to heads before they attend. */
#include "mixers/softmax/softmax.h"

#include <string.h>

void mx_softmax_split_pairs(float *x, uint32_t heads, size_t ld, uint32_t dim)
{
	float odd[ATTN_MAX_DIM / 2];
	for (uint32_t h = 0; h < heads; h++, x += ld) {
		for (uint32_t i = 0; i < dim / 2; i++) {
			odd[i] = x[2 * i + 1];
			x[i] = x[2 * i];
		}
		memcpy(x + dim / 2, odd, dim / 2 * sizeof *x);
	}
}
