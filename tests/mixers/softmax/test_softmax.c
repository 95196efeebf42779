/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixers of attention share, as far as the mixers' own tests do not show it: values that
 * are made from keys, and the size of a token's cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "device/cpu/cpu.h"
#include "mixers/softmax/softmax.h"
#include "tests/rng.h"

enum { KEY = 576, VALUE = 512 };

static float k[ATTN_PANEL * KEY];
static _Alignas(64) unsigned char keys[ATTN_PANEL * KEY * 4], own_keys[ATTN_PANEL * VALUE * 4];
static _Alignas(64) unsigned char values[ATTN_PANEL * VALUE * 4], made[ATTN_PANEL * VALUE * 4];

/* Values that are made from a panel of keys have the bits of values that were appended. */
static void values_are_the_first_elements_of_keys(void **state)
{
	struct rng g = {3};
	(void)state;
	for (int isa = 0; isa <= (int)mx_cpu_isa(); isa++)
		for (int type = 0; type < 2; type++) {
			enum mx_dtype dtype = type ? MX_BF16 : MX_F32;
			const struct attn_kernels *kernels = attn_kernels_find((enum mx_isa)isa, dtype);
			for (size_t i = 0; i < sizeof k / sizeof *k; i++)
				k[i] = rng_normal(&g);
			memset(made, 0xff, sizeof made);
			for (uint32_t t = 0; t < ATTN_PANEL; t += 5) { /* in pieces, as steps append them */
				uint32_t n = ATTN_PANEL - t < 5 ? ATTN_PANEL - t : 5;
				const float *from = k + (size_t)t * KEY;
				kernels->append(keys, NULL, t, n, KEY, KEY, from, NULL, KEY);
				kernels->append(own_keys, values, t, n, VALUE, VALUE, from, from, KEY);
			}
			kernels->values_of_keys(keys, KEY, VALUE, made);
			assert_memory_equal(made, values, attn_panel_bytes(VALUE, dtype));
		}
}

/* Latent attention keeps a latent and the rope elements, whatever the number of heads. */
static void a_token_of_latents_is_one_key(void **state)
{
	(void)state;
	for (uint32_t heads = 1; heads <= 128; heads *= 2) {
		struct mx_softmax_shape s = {.heads = heads,
		                             .kv_heads = 1,
		                             .key_dim = KEY,
		                             .value_dim = VALUE,
		                             .values_in_keys = true,
		                             .dtype = MX_BF16};
		assert_int_equal(mx_softmax_state(&s, 0).bytes_per_token, KEY * 2);
		s.dtype = MX_F32;
		assert_int_equal(mx_softmax_state(&s, 0).bytes_per_token, KEY * 4);
	}
	const struct mx_softmax_shape grouped = {
		.heads = 32, .kv_heads = 8, .key_dim = 100, .value_dim = 100, .dtype = MX_BF16};
	assert_int_equal(mx_softmax_state(&grouped, 0).bytes_per_token, 2 * 8 * 128 * 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_the_first_elements_of_keys),
		cmocka_unit_test(a_token_of_latents_is_one_key),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
