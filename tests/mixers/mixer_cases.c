/* SPDX-License-Identifier: Apache-2.0 */
#include "mixer_cases.h"

const struct mixer_set *const mixer_sets[] = {
	&mixer_set_attention, &mixer_set_dci,
	&mixer_set_ema,       &mixer_set_gla,
	&mixer_set_hyena,     &mixer_set_hyena_modal,
	&mixer_set_mamba,     &mixer_set_mamba1,
	&mixer_set_mla,       &mixer_set_reaching,
	&mixer_set_rwkv,      &mixer_set_shortconv,
	&mixer_set_sliced,    NULL,
};

void mixer_product(uint32_t n, uint32_t rows, uint32_t cols, const float *w, const float *b,
                   const float *x, float *y)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t r = 0; r < rows; r++) {
			double sum = b ? b[r] : 0;
			for (uint32_t c = 0; c < cols; c++)
				sum += (double)w[(size_t)r * cols + c] * x[(size_t)i * cols + c];
			y[(size_t)i * rows + r] = (float)sum;
		}
}
