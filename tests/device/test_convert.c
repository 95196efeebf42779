/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the expansion of MXFP4: every code with every scale, against the specification's formula in
 * double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "device/quant.h"

/* Returns the value of e2m1: sign, two bits of exponent with a bias of 1, one of mantissa. */
static double e2m1(unsigned code)
{
	int exponent = code >> 1 & 3, mantissa = code & 1;
	double v = exponent ? ldexp(1 + mantissa / 2.0, exponent - 1) : mantissa / 2.0;
	return code & 8 ? -v : v;
}

static void every_code_with_every_scale(void **state)
{
	enum { N = 64 };
	unsigned char codes[N / 2], scales[2];
	float f[N];
	uint16_t h[N];
	const struct mx_quant_source s = {.format = MX_QUANT_FP4,
	                                  .rows = 1,
	                                  .cols = N,
	                                  .codes = codes,
	                                  .scales = scales,
	                                  .group = 32};
	(void)state;
	for (unsigned i = 0; i < N / 2; i++) /* element 2i has code i mod 16, 2i + 1 the complement */
		codes[i] = (unsigned char)((i & 15) | (~i & 15) << 4);
	for (unsigned e = 0; e < 255; e++) {
		scales[0] = (unsigned char)e;
		scales[1] = (unsigned char)(254 - e);
		mx_quant_expand(&s, 0, f);
		mx_quant_expand_as(&s, 0, MX_BF16, h);
		for (unsigned i = 0; i < N; i++) {
			unsigned code = i & 1 ? ~(i / 2) & 15 : i / 2 & 15;
			double want = ldexp(e2m1(code), scales[i / 32] - 127);
			float largest = (float)want; /* 4 and 6 times 2^127 are infinite */
			assert_true(f[i] == largest);
			assert_true(mx_bf16_to_f32(h[i]) == f[i]);
		}
	}
	scales[0] = 255;
	mx_quant_expand_as(&s, 0, MX_BF16, h);
	assert_true(isnan(mx_bf16_to_f32(h[0])) && isnan(mx_bf16_to_f32(h[31])));
	assert_false(isnan(mx_bf16_to_f32(h[32])));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_code_with_every_scale)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
