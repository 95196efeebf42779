/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixers of attention share, as far as the mixers' own tests do not show it: values that
 * are made from keys, blocks in parts, and the size of a token's cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
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

enum { ROWS = ATTN_TILE, DIM = 96, T0 = 3 * ATTN_BLOCK };

/* A block of random keys and values, and rows with what each may see. */
struct block {
	struct attn_task task;
	_Alignas(64) unsigned char keys[ATTN_BLOCK * DIM * 4], values[ATTN_BLOCK * DIM * 4];
	_Alignas(64) unsigned char q[ROWS * DIM * 4], work[ATTN_WORK_BYTES];
	uint32_t lo[ROWS], hi[ROWS];
};

/* rows in one range of positions, as those of a chain of drafts in a window of `window` tokens,
 * whose last one is token `last` of the block. */
static void make_block(struct block *b, const struct attn_kernels *kernels, enum mx_dtype dtype,
                       uint32_t rows, uint32_t dim, uint32_t last, uint32_t window, float cap,
                       struct rng *g)
{
	float one[2][DIM];
	const size_t panel = attn_panel_bytes(dim, dtype);
	b->task = (struct attn_task){.dim = dim,
	                             .value_dim = dim,
	                             .rows = rows,
	                             .scale = 0.3f,
	                             .cap = cap,
	                             .q = b->q,
	                             .lo = b->lo,
	                             .hi = b->hi,
	                             .t0 = T0,
	                             .work = b->work};
	for (uint32_t t = 0; t < ATTN_BLOCK; t++) {
		for (uint32_t i = 0; i < 2 * DIM; i++)
			one[i / DIM][i % DIM] = rng_normal(g);
		kernels->append(b->keys + t / ATTN_PANEL * panel, b->values + t / ATTN_PANEL * panel,
		                t % ATTN_PANEL, 1, dim, dim, one[0], one[1], DIM);
	}
	for (uint32_t c = 0; c < ATTN_BLOCK_PANELS; c++) {
		b->task.keys[c] = b->keys + c * panel;
		b->task.values[c] = b->values + c * panel;
	}
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t i = 0; i < dim; i++)
			one[0][i] = rng_normal(g);
		kernels->pack_q(b->q, r, dim, dim, one[0]);
		b->hi[r] = T0 + last + 1 - (rows - 1 - r) / 2;
		b->lo[r] = b->hi[r] > window ? b->hi[r] - window : 0;
	}
}

/* A block that is computed in parts, page by page, has the bits of a whole one. */
static void parts_are_a_block(void **state)
{
	static struct block b;
	static float m[2][ROWS], l[2][ROWS], o[2][ROWS * DIM], s[ROWS * ATTN_BLOCK];
	static float mb[ROWS], lb[ROWS], ob[ROWS * DIM];
	struct rng g = {7};
	uint32_t c0 = 0, c1 = 0, tried = 0;
	(void)state;
	for (int isa = 0; isa <= (int)mx_cpu_isa(); isa++)
		for (uint32_t n = 0; n < 96; n++) {
			enum mx_dtype dtype = n % 2 ? MX_BF16 : MX_F32;
			const struct attn_kernels *kernels = attn_kernels_find((enum mx_isa)isa, dtype);
			const uint32_t rows = 1 + n % ROWS, dim = 32 * (1 + n % 3), cut = 1 + n % 5;
			const uint32_t last = (uint32_t)(n * 37 % ATTN_BLOCK) | 8, window = n % 4 ? 5000 : 70;
			if (!kernels->scores)
				continue;
			make_block(&b, kernels, dtype, rows, dim, last, window, n % 7 ? 0 : 5, &g);
			for (int i = 0; i < 2; i++) {
				memset(o[i], 0, sizeof o[i]);
				for (uint32_t r = 0; r < ROWS; r++)
					m[i][r] = -INFINITY, l[i][r] = 0;
			}
			kernels->begin();
			kernels->block(&b.task, m[0], l[0], o[0]);
			assert_true(attn_visible(&b.task, 0, rows, &c0, &c1));
			memset(ob, 0, sizeof ob);
			memset(s, 0xff, sizeof s);
			for (uint32_t c = c0; c < c1; c += cut)
				kernels->scores(&b.task, c, c + cut < c1 ? c + cut : c1, s);
			kernels->weights(&b.task, c0, c1, s, mb, lb);
			for (uint32_t c = c0; c < c1; c += cut)
				kernels->values(&b.task, c, c + cut < c1 ? c + cut : c1, s, ob);
			kernels->fold(rows, dim, m[1], l[1], o[1], mb, lb, ob);
			kernels->end();
			assert_memory_equal(m[0], m[1], sizeof m[0]);
			assert_memory_equal(l[0], l[1], sizeof l[0]);
			assert_memory_equal(o[0], o[1], sizeof o[0]);
			tried++;
		}
	assert_true(tried >= 96); /* the portable level at least */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_the_first_elements_of_keys),
		cmocka_unit_test(a_token_of_latents_is_one_key),
		cmocka_unit_test(parts_are_a_block),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
