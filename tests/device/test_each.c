/* SPDX-License-Identifier: Apache-2.0 */
/* linear_each: the bits of linear product by product, at every instruction set of this machine, for
 * any number of rows and threads; nothing else is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "tests/rng.h"

enum { HEADS = 7, ROWS = 70, COLS = 96, MAX_ROWS = 40, LDX = 130, LDY = 75 };

static float x[HEADS * LDX * MAX_ROWS], y[HEADS * LDY * MAX_ROWS], z[HEADS * LDY * MAX_ROWS];
static unsigned char data[HEADS][ROWS * COLS * 4];

static void fill(struct rng *g, enum mx_dtype dtype, struct mx_weight *w)
{
	for (size_t i = 0; i < sizeof x / sizeof *x; i++)
		x[i] = rng_normal(g);
	for (int h = 0; h < HEADS; h++) {
		w[h] = (struct mx_weight){dtype, ROWS, COLS, data[h], NULL};
		for (size_t i = 0; i < ROWS * COLS; i++) {
			float v = rng_normal(g);
			uint16_t half = (uint16_t)(dtype == MX_F16 ? 0x3000 + i * 7 % 0x800 : 0);
			if (dtype == MX_BF16)
				half = mx_f32_to_bf16(v);
			if (dtype == MX_F32)
				memcpy(data[h] + i * 4, &v, 4);
			else
				memcpy(data[h] + i * 2, &half, 2);
		}
	}
}

/* The same products, by one call of linear for each, into z, and by linear_each into y. `apart`:
 * elements from one input to the next; 0 = all have the same one. */
static void compare(struct mx_device *d, const struct mx_weight *w, size_t n, size_t apart)
{
	struct mx_linear_each each[HEADS];
	memset(y, 0xff, sizeof y);
	memset(z, 0xff, sizeof z);
	for (int h = 0; h < HEADS; h++) {
		const struct mx_linear_out out = {.w = &w[h], .y = z + h * LDY, .ldy = HEADS * LDY};
		assert_int_equal(d->ops->linear(d, x + h * apart, HEADS * LDX, n, &out, 1), MX_OK);
		each[h] = (struct mx_linear_each){.w = &w[h],
		                                  .x = x + h * apart,
		                                  .ldx = HEADS * LDX,
		                                  .y = y + h * LDY,
		                                  .ldy = HEADS * LDY};
	}
	assert_int_equal(d->ops->linear_each(d, n, each, HEADS), MX_OK);
	assert_memory_equal(y, z, sizeof y);
}

static void is_linear_product_by_product(void **state)
{
	static const size_t counts[] = {1, 2, 15, 16, 17, MAX_ROWS};
	struct rng g = {5};
	struct mx_weight w[HEADS];
	(void)state;
	for (int isa = 0; isa <= (int)mx_cpu_isa(); isa++)
		for (unsigned threads = 1; threads <= 3; threads += 2) {
			struct mx_device *d = NULL;
			struct mx_err err = {0};
			/* no room to pack all inputs at once: linear needs that of one only */
			assert_int_equal(mx_cpu_create(threads, (enum mx_isa)isa, MAX_ROWS, COLS, &d, &err),
			                 MX_OK);
			for (int t = MX_F32; t <= MX_BF16; t++) {
				fill(&g, (enum mx_dtype)t, w);
				for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
					compare(d, w, counts[i], LDX);
					compare(d, w, counts[i], 0);
				}
			}
			mx_cpu_destroy(d);
		}
}

static void wrong_shapes_are_refused(void **state)
{
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	struct mx_weight w[2] = {{MX_F32, ROWS, COLS, data[0], NULL},
	                         {MX_F32, ROWS, COLS, data[1], NULL}};
	struct mx_linear_each e[2] = {{&w[0], x, LDX, y, LDY}, {&w[1], x, LDX, z, LDY}};
	(void)state;
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), MAX_ROWS, COLS, &d, &err), MX_OK);
	assert_int_equal(d->ops->linear_each(d, 0, e, 2), MX_OK);
	assert_int_equal(d->ops->linear_each(d, 1, e, 2), MX_OK);
	assert_int_equal(d->ops->linear_each(d, MAX_ROWS + 1, e, 2), MX_E_RANGE);
	w[1].rows--;
	assert_int_equal(d->ops->linear_each(d, 1, e, 2), MX_E_INVALID);
	w[1].rows++;
	w[1].dtype = MX_BF16;
	assert_int_equal(d->ops->linear_each(d, 1, e, 2), MX_E_INVALID);
	w[1].dtype = MX_F32;
	e[1].ldy = ROWS - 1;
	assert_int_equal(d->ops->linear_each(d, 1, e, 2), MX_E_INVALID);
	e[1].ldy = LDY;
	e[1].ldx = COLS - 1;
	assert_int_equal(d->ops->linear_each(d, 1, e, 2), MX_E_INVALID);
	mx_cpu_destroy(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_linear_product_by_product),
		cmocka_unit_test(wrong_shapes_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
