/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of CPU operators share; ops_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/device/ops_rig.h"

/* ---- random numbers and guarded memory ---- */

static uint64_t rng_state;

uint32_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return (uint32_t)(rng_state >> 32);
}

float uniform(void)
{
	float f = (float)((double)rng() / 2147483648.0 - 1.0);
	return fabsf(f) < 1e-6f ? 1e-6f : f;
}

struct guarded guard(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), body = mx_round_up(bytes, page);
	struct guarded g = {.map_bytes = body + page};
	g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(g.map != MAP_FAILED);
	assert_int_equal(mprotect((char *)g.map + body, page, PROT_NONE), 0);
	memset(g.map, 0xff, body);
	g.data = (char *)g.map + body - bytes;
	return g;
}

void unguard(struct guarded *g)
{
	munmap(g->map, g->map_bytes);
}

struct guarded guard_floats(size_t n)
{
	return guard(mx_round_up(n * sizeof(float), 64));
}

void fill_floats(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = uniform();
}

static uint16_t to_f16(float f)
{
	/* normal halves only, rounded towards zero: a weight like any other */
	uint32_t u;
	memcpy(&u, &f, 4);
	int32_t e = (int32_t)(u >> 23 & 0xff) - 112;
	return e <= 0 ? (uint16_t)(rng() & 0x83ff) /* a subnormal half, normal as f32 */
	              : (uint16_t)((u >> 16 & 0x8000) | (uint32_t)e << 10 | (u >> 13 & 0x3ff));
}

struct guarded random_weight(enum mx_dtype dtype, uint32_t rows, uint32_t cols, struct mx_weight *w)
{
	size_t n = (size_t)rows * cols;
	struct guarded g = guard(n * mx_dtype_size(dtype));
	for (size_t i = 0; i < n; i++) {
		float f = uniform();
		if (dtype == MX_F32)
			((float *)g.data)[i] = f;
		else
			((uint16_t *)g.data)[i] = dtype == MX_BF16 ? mx_f32_to_bf16(f) : to_f16(f);
	}
	*w = (struct mx_weight){.dtype = dtype, .rows = rows, .cols = cols, .data = g.data};
	return g;
}

/* ---- devices ---- */

struct mx_device *devices[OPS_LEVELS], *with_threads[4];
struct mx_kernels tables[OPS_LEVELS];

int ops_setup(void **state)
{
	(void)state;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	print_message("MIXD_TEST_SEED=%llu, machine has %s\n", (unsigned long long)rng_state,
	              mx_isa_name(mx_cpu_isa_max()));
	rng_state = rng_state * 2 + 1;
	mx_kernels_ref(&tables[0]);
	assert_int_equal(mx_cpu_create_kernels(2, &tables[0], MX_ISA_PORTABLE, MAX_ROWS, MAX_WIDTH,
	                                       &devices[0], NULL),
	                 MX_OK);
	for (int i = 0; i <= (int)mx_cpu_isa_max(); i++) {
		mx_kernels_of(&tables[i + 1], (enum mx_isa)i);
		assert_int_equal(
			mx_cpu_create(2, (enum mx_isa)i, MAX_ROWS, MAX_WIDTH, &devices[i + 1], NULL), MX_OK);
	}
	for (unsigned t = 1; t <= 3; t++)
		assert_int_equal(
			mx_cpu_create(t, mx_cpu_isa_max(), MAX_ROWS, MAX_WIDTH, &with_threads[t], NULL), MX_OK);
	return 0;
}

int ops_teardown(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		mx_cpu_destroy(devices[i]);
	for (unsigned t = 1; t <= 3; t++)
		mx_cpu_destroy(with_threads[t]);
	return 0;
}

float weight_at(const struct mx_weight *w, size_t i)
{
	if (w->dtype == MX_F32)
		return ((const float *)w->data)[i];
	uint16_t h = ((const uint16_t *)w->data)[i];
	return w->dtype == MX_BF16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
}
