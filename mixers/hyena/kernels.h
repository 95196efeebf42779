/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel table of long convolutions: one per instruction set, complete at
 * every level.
 *
 * Vector lanes are channels: LC_LANES channels are a group, and everything below
 * works on one group. A row is [LC_LANES] floats, the group's values at one
 * position; a complex row is [2][LC_LANES], real parts first. So a transform needs
 * no shuffles, and each channel's result depends on that channel alone.
 *
 * A tile of side n at distance d adds what n inputs contribute to the n outputs
 * that begin d * n positions after them:
 *
 *     y[t] += sum over s of h[d n + t - s] z[s],     0 <= s, t < n
 *
 * This is a Toeplitz product with the 2 n - 1 lags around d n. Small tiles are
 * computed directly (tile). Large ones use a transform of length n, not 2 n: with
 * the inputs weighted by w[k] = exp(-i pi k / 2n), a cyclic product of length n is
 * a product modulo x^n = -i, and the lags that wrap around appear in the imaginary
 * part: the right-angle convolution (Krot and Minervina 1992; Crandall and Fagin
 * 1994, "Discrete weighted transforms"). The cyclic transform of length 2 n of
 * Flash Inference (Oncescu et al. 2024, arXiv 2410.12982) gives the same numbers;
 * this one has half the rows and no padding.
 */
#ifndef MX_MIXERS_HYENA_KERNELS_H
#define MX_MIXERS_HYENA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#define LC_LANES 16
#define LC_BLOCK                                                                                   \
	32 /* positions of a block; an output sees its own block and the one before directly */

/* Tables for transforms of n rows, n a power of two, LC_BLOCK .. 2^24. */
struct lc_plan {
	uint32_t n;
	float *twist;    /* [n][2] w[k]: its real and imaginary part */
	float *twiddles; /* in the order in which the transform reads them; alignment 64 */
};

mx_status lc_plan_create(uint32_t n, struct lc_plan **out); /* MX_E_NOMEM */
void lc_plan_destroy(struct lc_plan *p);                    /* takes NULL */

struct lc_kernels {
	const char *name;

	/* Called before and after the other calls of a task: in between, denormal numbers are flushed
	 * to 0. Filters fade, and arithmetic on denormals is slow. */
	unsigned (*begin)(void);
	void (*end)(unsigned state);

	/* The transform of x[n] complex rows, in place; its output is permuted. ifft takes that order
	 * and leaves out the factor 1 / n. */
	void (*fft)(const struct lc_plan *p, float *x);
	void (*ifft)(const struct lc_plan *p, float *x);

	/* fold makes complex rows of inputs with weights w[rows][2]: x[i] = or += w[i] z[i]. unfold
	 * makes outputs of complex rows: y[i] = or += scale Re(conj(w[i]) x[i]), scale a power of two.
	 */
	void (*fold)(const float *w, uint32_t rows, const float *z, bool add, float *x);
	void (*unfold)(const float *w, float scale, uint32_t rows, const float *x, bool add, float *y);

	/* acc[n] = or += x * h, complex rows in the transform's order. acc may be x if not `add`. */
	void (*multiply)(uint32_t n, const float *x, const float *h, bool add, float *acc);

	/* A tile without transforms: y[t] = or += sum over s = 0 .. n - 1 of lags[n - 1 + t - s] z[s],
	 * even and odd s in separate sums. lags [2 n - 1] rows: those of d n - (n - 1) .. d n + (n -
	 * 1). n is a multiple of 8. */
	void (*tile)(uint32_t n, const float *lags, const float *z, bool add, float *y);

	/* Outputs t = first .. first + rows - 1 of a block: y[t] = sums[t] + sum over s = -past .. t of
	 * h[t - s] z[s], even and odd s in separate sums. h [2 LC_BLOCK] rows by lag. z points to the
	 * block's first input; the `past` (0 or LC_BLOCK) inputs before it lie in front of it. sums
	 * [LC_BLOCK] rows: what all tiles contribute to the block; NULL = 0. y [rows] begins with row
	 * `first`. A row's result does not depend on `first` or `rows`. */
	void (*window)(const float *h, const float *z, uint32_t past, uint32_t first, uint32_t rows,
	               const float *sums, float *y);
};

const struct lc_kernels *lc_kernels_find(enum mx_isa isa);

/* lc_twist makes all rows of a transform of inputs z[n]; lc_untwist makes outputs of them, with the
 * factor 1 / n. */
static inline void lc_twist(const struct lc_kernels *k, const struct lc_plan *p, const float *z,
                            float *x)
{
	k->fold(p->twist, p->n, z, false, x);
}

static inline void lc_untwist(const struct lc_kernels *k, const struct lc_plan *p, const float *x,
                              bool add, float *y)
{
	k->unfold(p->twist, 1 / (float)p->n, p->n, x, add, y);
}

/* Computes the transform of a tile's lags, for multiply: spectrum[n] complex rows from lags[2 n -
 * 1] rows as `tile` takes them. */
void lc_spectrum(const struct lc_kernels *k, const struct lc_plan *p, const float *lags,
                 float *spectrum);

/*
 * A transform in four parts: the frequencies 4 q + part are those of a transform of
 * n / 4 rows. Input k is added with weight exp(-i pi k (1 + 4 part) / 2n) to row
 * k % (n / 4); outputs are read from there likewise. lc_part_weights writes weights
 * [LC_PARTS][n][2], for fold and unfold.
 */
#define LC_PARTS 4
void lc_part_weights(uint32_t n, float *weights);
/* Returns the plan of a part's n / 4 rows, for fft and ifft only; valid as long as p. */
struct lc_plan lc_part_plan(const struct lc_plan *p);

extern const struct lc_kernels lc_portable, lc_avx2, lc_avx512;

#endif
