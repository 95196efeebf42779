/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/device/ops: matrix products of the CPU device at the shapes of ops_cases.def,
 * beside the roofs measured in the same run.
 *
 *     ops [-t threads] [-d f32|f16|bf16] [-n rows,rows,...] [-m name part]
 *
 * The level of the kernels is that of mx_cpu_isa: MIXD_ISA lowers it. Every
 * product goes round a set of weights larger than the caches, so that the weights
 * come from memory as they do in a model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/kernels.h"

enum { TEST = 1, BENCH = 2 };

static const struct product {
	const char *name;
	uint32_t rows, cols;
	int uses;
} products[] = {
#define PRODUCT(name, rows, cols, uses) {name, rows, cols, uses},
#include "device/cpu/ops_cases.def"
#undef PRODUCT
};

#define MAX_N     512
#define SET_BYTES ((size_t)219000000)

struct bench {
	struct mx_device *d;
	struct mx_pool *pool;
	enum mx_dtype dtype;
	unsigned char *weights; /* SET_BYTES */
	float *x, *y;           /* [MAX_N, 32000] */
	double read_roof, arith_roof;
};

/* Returns the seconds of one product, the median of passes of about 30 ms each. */
static double time_product(struct bench *b, const struct product *p, size_t n)
{
	size_t bytes = (size_t)p->rows * p->cols * mx_dtype_size(b->dtype);
	size_t copies = SET_BYTES / bytes, at = 0, calls = 1;
	double times[9];
	copies = copies ? copies : 1;
	for (int pass = -1; pass < 9; pass++) {
		uint64_t start = mx_now_ns();
		for (size_t i = 0; i < calls; i++) {
			struct mx_weight w = {b->dtype, p->rows, p->cols, b->weights + at * bytes, NULL};
			struct mx_linear_out o = {.w = &w, .y = b->y, .ldy = p->rows};
			b->d->ops->linear(b->d, b->x, p->cols, n, &o, 1);
			at = (at + 1) % copies;
		}
		double t = (double)(mx_now_ns() - start) * 1e-9 / (double)calls;
		if (pass < 0) /* the first pass warms up and determines the number of calls of a pass */
			calls = t < 0.03 ? (size_t)(0.03 / t) + 1 : 1;
		else
			times[pass] = t;
	}
	for (int i = 1; i < 9; i++) {
		double t = times[i];
		int j = i;
		for (; j > 0 && times[j - 1] > t; j--)
			times[j] = times[j - 1];
		times[j] = t;
	}
	return times[4];
}

static void report(struct bench *b, const struct product *p, size_t n)
{
	double bytes = (double)p->rows * p->cols * (double)mx_dtype_size(b->dtype);
	double flops = 2.0 * p->rows * p->cols * (double)n, t = time_product(b, p, n);
	printf("%-18s %5u x %-5u n %3zu  %9.1f us %8.1f GFLOP/s (%3.0f%%) %6.1f GB/s (%3.0f%%)\n",
	       p->name, p->rows, p->cols, n, t * 1e6, flops / t * 1e-9,
	       100 * flops / t * 1e-9 / b->arith_roof, bytes / t * 1e-9,
	       100 * bytes / t * 1e-9 / b->read_roof);
	fflush(stdout);
}

/* Returns the kind of arithmetic that the level uses for this dtype. */
static enum roof_kind arithmetic_of(enum mx_isa isa, enum mx_dtype dtype)
{
	struct mx_kernels k;
	mx_kernels_of(&k, isa);
	if (!k.gemm[dtype].rounds_x)
		return ROOF_F32_FMA;
	return isa >= MX_ISA_AMX_BF16 ? ROOF_BF16_TILE : ROOF_BF16_DOT;
}

static int run(struct bench *b, unsigned threads, const char *counts, const char *match)
{
	enum mx_isa isa = mx_cpu_isa();
	struct mx_err err = {0};
	if (mx_pool_create(threads, &b->pool) != MX_OK ||
	    mx_cpu_create(threads, isa, MAX_N, 8192, &b->d, &err) != MX_OK) {
		fprintf(stderr, "ops: %s\n", err.text);
		return 1;
	}
	b->weights = roof_data(b->pool, SET_BYTES);
	b->x = mx_map((size_t)MAX_N * 8192 * sizeof(float));
	b->y = mx_map((size_t)MAX_N * 32000 * sizeof(float));
	if (!b->weights || !b->x || !b->y) {
		fprintf(stderr, "ops: no memory\n");
		return 1;
	}
	if (b->dtype == MX_F32) /* the pattern is of bf16; any normal f32 will do */
		for (size_t i = 0; i < SET_BYTES / 4; i++)
			((uint32_t *)(void *)b->weights)[i] &= ~0x40000000u;
	for (size_t i = 0; i < (size_t)MAX_N * 8192; i++)
		b->x[i] = (float)(i * 2654435761u % 1000) / 500.0f - 0.999f;
	enum roof_kind kind = arithmetic_of(isa, b->dtype);
	b->read_roof = roof_read(b->pool, b->weights, SET_BYTES);
	b->arith_roof = roof_arithmetic(b->pool, kind);
	printf("%s, %u threads, %s weights; roofs: read %.1f GB/s, %s %.0f GFLOP/s\n", b->d->info.isa,
	       b->d->info.threads, mx_dtype_name(b->dtype), b->read_roof, roof_name(kind),
	       b->arith_roof);
	for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
		if (!(products[i].uses & BENCH) || (match && !strstr(products[i].name, match)))
			continue;
		for (const char *c = counts; c; c = strchr(c, ',')) {
			long n = strtol(c + (*c == ','), NULL, 10);
			if (n > 0 && n <= MAX_N)
				report(b, &products[i], (size_t)n);
			c += *c == ',';
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct bench b = {.dtype = MX_BF16};
	unsigned threads = mx_pool_default_size();
	const char *counts = "1,4,8,16,64,512", *match = NULL;
	for (int c; (c = getopt(argc, argv, "t:d:n:m:")) != -1;) {
		switch (c) {
		case 't': threads = (unsigned)atoi(optarg); break;
		case 'd':
			b.dtype = !strcmp(optarg, "f32") ? MX_F32 : !strcmp(optarg, "f16") ? MX_F16 : MX_BF16;
			break;
		case 'n': counts = optarg; break;
		case 'm': match = optarg; break;
		default:
			fprintf(stderr, "usage: %s [-t threads] [-d dtype] [-n rows,...] [-m name]\n", argv[0]);
			return 2;
		}
	}
	int rc = run(&b, threads ? threads : 1, counts, match);
	mx_cpu_destroy(b.d);
	mx_pool_destroy(b.pool);
	if (b.weights)
		mx_unmap(b.weights, mx_round_up(SET_BYTES, (size_t)1 << 20));
	if (b.x)
		mx_unmap(b.x, (size_t)MAX_N * 8192 * sizeof(float));
	if (b.y)
		mx_unmap(b.y, (size_t)MAX_N * 32000 * sizeof(float));
	return rc;
}
