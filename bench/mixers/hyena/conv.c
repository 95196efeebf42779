/* SPDX-License-Identifier: Apache-2.0 */
/* Filters, inputs and memory of the convolutions that are compared. */
#include "bench/mixers/hyena/conv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

_Noreturn void conv_die(const char *what)
{
	fprintf(stderr, "bench/mixers/hyena: %s\n", what);
	exit(1);
}

/* Spreads the bits of a counter ("lowbias32", Wellons 2018), so that any element can be computed
 * alone. */
static inline uint32_t mix(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

/* Odd multiples of 2^-24. */
static inline float unit(uint32_t bits)
{
	return (float)((int32_t)(bits >> 7 | 1) - (1 << 24)) * 0x1p-24f;
}

void conv_noise(uint64_t seed, size_t n, float *out)
{
	uint32_t key = mix((uint32_t)seed ^ mix((uint32_t)(seed >> 32)));
	for (size_t i = 0; i < n; i++)
		out[i] = unit(mix((uint32_t)i + key));
}

void conv_filter(const struct conv_shape *s, uint32_t layer, uint32_t group, uint32_t first,
                 uint32_t n, float *out)
{
	uint32_t key = mix((uint32_t)s->seed ^ mix(layer << 16 | group));
	for (uint32_t i = 0; i < n; i++) {
		float size = 1 / sqrtf(1 + (float)(first + i));
		for (uint32_t k = 0; k < LC_LANES; k++)
			out[i * LC_LANES + k] = size * unit(mix((first + i) * LC_LANES + k + key));
	}
}

float *conv_floats(size_t n)
{
	float *p = mx_map(n * sizeof *p);
	if (!p)
		conv_die("out of memory");
	return p;
}

void conv_free(float *p, size_t n)
{
	if (p)
		mx_unmap(p, n * sizeof *p);
}

struct conv *conv_new(size_t size, const struct conv_ops *ops, const struct conv_shape *s,
                      struct mx_device *d)
{
	struct conv *c = mx_calloc(1, size);
	if (!c)
		conv_die("out of memory");
	*c = (struct conv){ops, *s, s->channels / LC_LANES, d};
	return c;
}
