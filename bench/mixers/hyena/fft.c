/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures tiles of long convolutions on one thread: the transforms beside FFTW's (if configure
 * found it) and beside the machine's arithmetic from registers, whole tiles beside FFTW's real
 * transforms of twice the length, and tiles computed directly.
 *
 *   bench/mixers/hyena/fft [-n rows] [-r rounds]
 *
 * All are of one group of channels and always in the same memory, as in a task of mixd. A complex
 * transform counts as 5 n log2 n operations, which is the usual count, not the true one. FFTW's
 * complex transforms have the channels as the fastest dimension, too; its real transforms have
 * them so or one after the other: the faster counts, without any products. Shares are of the
 * larger of the roofs measured at the start and before each length.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/mixers/hyena/options.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"
#include "mixers/hyena/kernels.h"

#ifdef HAVE_FFTW
#include <fftw3.h>
#endif

#define MIN_N      32
#define MAX_N      32768
#define MAX_DIRECT 1024
#define MAX_ROUNDS 1000000
#define ROUND_NS   2e5 /* about; of each thing that is measured */

struct bench {
	uint32_t n;
	const struct lc_kernels *k;
	struct lc_plan *plan;
	float *lags, *z, *spectrum, *x, *y;
#ifdef HAVE_FFTW
	fftwf_plan forward, backward, real_forward[2], real_backward[2]; /* [channels apart] */
	float *real;
	fftwf_complex *complex;
#endif
};

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/hyena/fft: %s\n", what);
	exit(1);
}

/* `rows` of LC_LANES zeros. */
static float *table(size_t rows)
{
	float *p = mx_map(rows * LC_LANES * sizeof(float));
	if (!p)
		die("out of memory");
	memset(p, 0, rows * LC_LANES * sizeof(float));
	return p;
}

static void table_free(float *p, size_t rows)
{
	mx_unmap(p, rows * LC_LANES * sizeof(float));
}

/* ---- what is measured ---- */

/* x is zeros: other numbers would soon overflow, and take as long. */
static void transforms(const struct bench *b)
{
	b->k->fft(b->plan, b->x);
	b->k->ifft(b->plan, b->x);
}

static void tile(const struct bench *b)
{
	lc_twist(b->k, b->plan, b->z, b->x);
	b->k->fft(b->plan, b->x);
	b->k->multiply(b->n, b->x, b->spectrum, false, b->x);
	b->k->ifft(b->plan, b->x);
	lc_untwist(b->k, b->plan, b->x, false, b->y);
}

static void direct(const struct bench *b)
{
	b->k->tile(b->n, b->lags, b->z, false, b->y);
}

#ifdef HAVE_FFTW
static void fftw_transforms(const struct bench *b)
{
	fftwf_execute(b->forward);
	fftwf_execute(b->backward);
}

static void fftw_tile(const struct bench *b)
{
	fftwf_execute(b->real_forward[0]);
	fftwf_execute(b->real_backward[0]);
}

static void fftw_tile_apart(const struct bench *b)
{
	fftwf_execute(b->real_forward[1]);
	fftwf_execute(b->real_backward[1]);
}

static void fftw_open(struct bench *b)
{
	const int n = (int)b->n, twice = 2 * n, c = LC_LANES;
	b->real = table(2 * (size_t)n);
	b->complex = (fftwf_complex *)(void *)table(2 * (size_t)(n + 1));
	b->forward = fftwf_plan_many_dft(1, &n, c, b->complex, NULL, c, 1, b->complex, NULL, c, 1,
	                                 FFTW_FORWARD, FFTW_MEASURE);
	b->backward = fftwf_plan_many_dft(1, &n, c, b->complex, NULL, c, 1, b->complex, NULL, c, 1,
	                                  FFTW_BACKWARD, FFTW_MEASURE);
	for (int apart = 0; apart < 2; apart++) {
		const int step = apart ? 1 : c;
		b->real_forward[apart] =
			fftwf_plan_many_dft_r2c(1, &twice, c, b->real, NULL, step, apart ? twice : 1,
		                            b->complex, NULL, step, apart ? n + 1 : 1, FFTW_MEASURE);
		b->real_backward[apart] =
			fftwf_plan_many_dft_c2r(1, &twice, c, b->complex, NULL, step, apart ? n + 1 : 1,
		                            b->real, NULL, step, apart ? twice : 1, FFTW_MEASURE);
		if (!b->real_forward[apart] || !b->real_backward[apart])
			die("no plan");
	}
	if (!b->forward || !b->backward)
		die("no plan");
	/* planning leaves anything in them */
	memset(b->real, 0, (size_t)twice * c * sizeof(float));
	memset(b->complex, 0, (size_t)(n + 1) * c * sizeof(*b->complex));
}

static void fftw_close(struct bench *b)
{
	fftwf_destroy_plan(b->forward);
	fftwf_destroy_plan(b->backward);
	for (int apart = 0; apart < 2; apart++) {
		fftwf_destroy_plan(b->real_forward[apart]);
		fftwf_destroy_plan(b->real_backward[apart]);
	}
	table_free(b->real, 2 * (size_t)b->n);
	table_free((float *)(void *)b->complex, 2 * (size_t)(b->n + 1));
}
#endif

/* ---- measuring ---- */

struct thing {
	void (*run)(const struct bench *b);
	unsigned times; /* a round */
	double ns;      /* the best round's, once */
};

static double ns_of(const struct thing *t, const struct bench *b)
{
	uint64_t start = mx_now_ns();
	for (unsigned i = 0; i < t->times; i++)
		t->run(b);
	return (double)(mx_now_ns() - start) / t->times;
}

/* In turns, since the machine is not always equally fast. */
static void measure(struct thing *things, size_t n, const struct bench *b, int rounds)
{
	for (size_t i = 0; i < n; i++) {
		things[i].times = 1;
		double ns = fmin(ns_of(&things[i], b), ns_of(&things[i], b));
		things[i].times = 1 + (unsigned)(ROUND_NS / ns);
		things[i].ns = INFINITY;
	}
	for (int r = 0; r < rounds; r++)
		for (size_t i = 0; i < n; i++)
			things[i].ns = fmin(things[i].ns, ns_of(&things[i], b));
}

static void open_bench(struct bench *b)
{
	const size_t n = b->n;
	b->lags = table(2 * n);
	b->z = table(n);
	b->spectrum = table(2 * n);
	b->x = table(2 * n);
	b->y = table(n);
	for (size_t i = 0; i < 2 * n * LC_LANES; i++)
		b->lags[i] = 1 / (float)(1 + i % 61);
	for (size_t i = 0; i < n * LC_LANES; i++)
		b->z[i] = 1 / (float)(1 + i % 53);
	if (lc_plan_create(b->n, &b->plan) != MX_OK)
		die("out of memory");
	lc_spectrum(b->k, b->plan, b->lags, b->spectrum);
#ifdef HAVE_FFTW
	fftw_open(b);
#endif
}

static void close_bench(struct bench *b)
{
	const size_t n = b->n;
#ifdef HAVE_FFTW
	fftw_close(b);
#endif
	lc_plan_destroy(b->plan);
	table_free(b->lags, 2 * n);
	table_free(b->z, n);
	table_free(b->spectrum, 2 * n);
	table_free(b->x, 2 * n);
	table_free(b->y, n);
}

static void run(struct bench *b, int rounds, double roof)
{
	enum { TRANSFORMS, TILE, DIRECT, FFTW, FFTW_TILE, FFTW_TILE_APART, THINGS };
	struct thing t[THINGS] = {
		{.run = transforms},
		{.run = tile},
		{.run = b->n <= MAX_DIRECT ? direct : tile}, /* slow, and never used */
#ifdef HAVE_FFTW
		{.run = fftw_transforms},
		{.run = fftw_tile},
		{.run = fftw_tile_apart},
#endif
	};
	const bool peer = t[FFTW].run != NULL;
	const double n = b->n, flop = LC_LANES * 2 * 5 * n * log2(n);
	open_bench(b);
	measure(t, peer ? THINGS : FFTW, b, rounds);
	close_bench(b);
	double rate = flop / t[TRANSFORMS].ns, real = fmin(t[FFTW_TILE].ns, t[FFTW_TILE_APART].ns);
	printf("%6u %8.1f %4.0f %%", b->n, rate, rate / roof * 100);
	if (peer)
		printf(" %8.1f %6.2f", flop / t[FFTW].ns, t[FFTW].ns / t[TRANSFORMS].ns);
	printf("  %10.2f", t[TILE].ns * 1e-3);
	if (peer)
		printf(" %10.2f %6.2f", real * 1e-3, real / t[TILE].ns);
	if (b->n <= MAX_DIRECT) {
		rate = LC_LANES * 2 * n * n / t[DIRECT].ns;
		printf("  %10.2f %8.1f %4.0f %%", t[DIRECT].ns * 1e-3, rate, rate / roof * 100);
	}
	printf("\n");
	fflush(stdout);
}

/* -n */
static uint32_t rows(int o)
{
	uint32_t n = options_number(o, MIN_N, MAX_N);
	if (n & (n - 1))
		options_bad(o, "a power of two");
	return n;
}

int main(int argc, char **argv)
{
	static const char usage[] = "bench/mixers/hyena/fft [-n rows] [-r rounds]";
	uint32_t only = 0;
	int rounds = 100;
	struct mx_pool *pool;
	struct bench b = {.k = lc_kernels_find(mx_cpu_isa())};
	for (int o; (o = getopt(argc, argv, "n:r:")) != -1;) {
		switch (o) {
		case 'n': only = rows(o); break;
		case 'r': rounds = (int)options_number(o, 1, MAX_ROUNDS); break;
		default: options_usage(usage);
		}
	}
	if (optind < argc)
		options_usage(usage);
	if (mx_pool_create(1, &pool) != MX_OK)
		die("no thread");
	double roof = roof_arithmetic(pool, ROOF_F32_FMA);
	printf("%s, %u channels, one thread; f32 FMA from registers: %.1f GFLOP/s\n", b.k->name,
	       LC_LANES, roof);
#ifdef HAVE_FFTW
	printf("%s, FFTW_MEASURE; its column, then how many times as long it takes\n", fftwf_version);
	printf("%6s %8s %6s %8s %6s  %10s %10s %6s  %10s %8s\n", "rows", "GFLOP/s", "roof", "FFTW", "",
	       "tile us", "FFTW us", "", "direct us", "GFLOP/s");
#else
	printf("%6s %8s %6s  %10s  %10s %8s\n", "rows", "GFLOP/s", "roof", "tile us", "direct us",
	       "GFLOP/s");
#endif
	unsigned state = b.k->begin();
	for (b.n = MIN_N; b.n <= MAX_N; b.n *= 2)
		if (!only || only == b.n)
			run(&b, rounds, fmax(roof, roof_arithmetic(pool, ROOF_F32_FMA)));
	b.k->end(state);
	mx_pool_destroy(pool);
	return 0;
}
