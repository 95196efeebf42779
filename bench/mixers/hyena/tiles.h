/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the operations of tiles on a channel of `len` positions, for shares of the roof. A tile
 * of side n up to `direct` takes 2 n^2, a larger one 5 n log2 n for each transform and 6 n for
 * the product of spectra. */
#ifndef MX_BENCH_HYENA_TILES_H
#define MX_BENCH_HYENA_TILES_H

#include <math.h>
#include <stdint.h>

#include "mixers/hyena/kernels.h"

static inline double tiles_operations(uint32_t n, uint32_t direct, double tiles, double transforms)
{
	return n <= direct ? tiles * 2.0 * n * n
	                   : transforms * 5.0 * n * log2((double)n) + tiles * 6.0 * n;
}

/* Operations of Flash Inference's tiling: len / 2n tiles of each side, one after the other. */
static inline double tiles_fractal(uint32_t len, uint32_t direct)
{
	double sum = 2.0 * len;
	for (uint32_t n = 1; n <= len / 2; n *= 2)
		sum += tiles_operations(n, direct, len / n / 2.0, len / n);
	return sum;
}

/* Operations of mixers/hyena/longconv.h: of blocks 2, 3, ... len / n - 1 each has one tile and
 * every second one more, and one transform back; a position sums directly over 1.5 blocks of
 * inputs. */
static inline double tiles_slack(uint32_t len, uint32_t direct)
{
	double sum = 2.0 * 1.5 * LC_BLOCK * len;
	for (uint32_t n = LC_BLOCK; n <= len / 4; n *= 2) {
		double blocks = len / n - 2.0;
		sum += tiles_operations(n, direct, 1.5 * blocks, 2.5 * blocks);
	}
	return sum;
}

#endif
