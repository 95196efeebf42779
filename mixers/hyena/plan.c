/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of transforms, spectra of lags, and the choice of the kernel table. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "mixers/hyena/kernels.h"

static void *table(size_t n_floats)
{
	return aligned_alloc(64, mx_round_up(n_floats * sizeof(float), 64));
}

/* exp(-i pi num / den), 0 <= num < 2 den */
static void root(uint64_t num, uint64_t den, float *out)
{
	double angle = 3.14159265358979323846 * (double)num / (double)den;
	out[0] = (float)cos(angle);
	out[1] = (float)-sin(angle);
}

mx_status lc_plan_create(uint32_t n, struct lc_plan **out)
{
	struct lc_plan *p = calloc(1, sizeof(*p));
	if (!p)
		return MX_E_NOMEM;
	*p = (struct lc_plan){n, table(2 * (size_t)n), table(2 * (size_t)n)};
	if (!p->twist || !p->twiddles) {
		lc_plan_destroy(p);
		return MX_E_NOMEM;
	}
	for (uint32_t k = 0; k < n; k++)
		root(k, 2 * (uint64_t)n, p->twist + 2 * (size_t)k);
	/* Twiddles of the butterflies of n rows, then of n / 4, and so on: row k has powers 1, 2 and 3
	 * of the k-th root. */
	float *t = p->twiddles;
	for (uint64_t m = n; m >= 16; m /= 4)
		for (uint64_t k = 0; k < m / 4; k++)
			for (uint64_t power = 1; power <= 3; power++, t += 2)
				root(2 * k * power, m, t);
	*out = p;
	return MX_OK;
}

void lc_plan_destroy(struct lc_plan *p)
{
	if (!p)
		return;
	free(p->twist);
	free(p->twiddles);
	free(p);
}

/* Lags before 0 wrap around, and modulo x^n = -i come back with a factor i. */
void lc_spectrum(const struct lc_kernels *k, const struct lc_plan *p, const float *lags,
                 float *spectrum)
{
	const float *after = lags + ((size_t)p->n - 1) * LC_LANES, *before = lags - LC_LANES;
	for (size_t i = 0; i < p->n; i++) {
		float *row = spectrum + i * 2 * LC_LANES, cos = p->twist[2 * i], sin = p->twist[2 * i + 1];
		for (size_t c = 0; c < LC_LANES; c++) {
			float re = after[i * LC_LANES + c], im = i ? before[i * LC_LANES + c] : 0;
			row[c] = re * cos - im * sin;
			row[LC_LANES + c] = re * sin + im * cos;
		}
	}
	k->fft(p, spectrum);
}

void lc_part_weights(uint32_t n, float *weights)
{
	for (uint64_t part = 0; part < LC_PARTS; part++)
		for (uint64_t k = 0; k < n; k++, weights += 2)
			root(k * (1 + LC_PARTS * part) % (4 * (uint64_t)n), 2 * (uint64_t)n, weights);
}

struct lc_plan lc_part_plan(const struct lc_plan *p)
{
	uint32_t rows = p->n / LC_PARTS;
	return (struct lc_plan){rows, NULL, p->twiddles + 6 * (size_t)rows};
}

const struct lc_kernels *lc_kernels_find(enum mx_isa isa)
{
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX512)
		return &lc_avx512;
	if (isa == MX_ISA_AVX2)
		return &lc_avx2;
#else
	(void)isa;
#endif
	return &lc_portable;
}
