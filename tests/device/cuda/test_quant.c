/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised weights of the CUDA device: products and rows of tables of every form of
 * tests/device/quant_source.c, on random data and poisoned outputs, against double precision and
 * the numbers that the panels stand for; several outputs in one call against one call each; the
 * fused operators linear_normed and linear_gated against the bits of their parts; and on a
 * deterministic device bit for bit: a row alone and with others.
 *
 *   tests/device/cuda/test_quant [number of a form]     MIXD_TEST_SEED repeats a run
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "device/open.h"
#include "tests/device/quant_source.h"

static const struct shape {
	uint32_t rows, cols;
} shapes[] = {{17, 256},   {64, 72},     {100, 768},  {50, 1096},
              {144, 2304}, {4112, 1024}, {256, 4096}, {17008, 128}};

static const uint32_t numbers[] = {1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 90, 100, 300};

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define MAX_N    300
#define MAX_ROWS 17008              /* of W: 132 tiles of 128 and a part of one */
#define MAX_W    ((size_t)24 << 20) /* bytes */
#define MAX_X    ((size_t)MAX_N * 4096)
#define MAX_Y    ((size_t)(MAX_N + 1) * MAX_ROWS)
#define SAMPLE   200000 /* multiplications per product in double precision */

struct bench {
	struct mx_device *d;
	bool bf16;
	struct rng rng;
	const struct quant_case *of;
	struct quant_matrix m;
	unsigned char *host; /* pinned */
	void *w, *x, *y;     /* device */
	void *room;          /* device, rows after their norm */
	float *bias, *norm;  /* device */
	float *host_w;       /* [rows, cols] what the panels stand for */
	float *host_x;       /* [MAX_N, cols] exactly as on the device */
	float host_bias[MAX_ROWS];
	float *y0; /* what accumulate adds to */
	unsigned char *got, *kept;
	int faults, fused; /* fused: calls of linear_gated that had a kernel */
};

static void must(mx_status s, const char *what)
{
	if (s != MX_OK) {
		fprintf(stderr, "%s: status %d\n", what, (int)s);
		exit(1);
	}
}

static void fault(struct bench *b, uint32_t n, const char *what, uint32_t token, uint32_t row,
                  double got, double want)
{
	if (b->faults++ < 20)
		fprintf(stderr,
		        "form %zu %s group %u, %ux%u, %s%s, n %u: %s at token %u, row %u: %g, not "
		        "%g\n",
		        (size_t)(b->of - quant_cases), mx_quant_format_name(b->of->format), b->m.q.group,
		        b->m.s.rows, b->m.s.cols, b->bf16 ? "bf16" : "f32",
		        b->d->info.deterministic ? " deterministic" : "", n, what, token, row, got, want);
}

static void put(struct bench *b, void *to, const void *from, size_t bytes)
{
	memcpy(b->host, from, bytes);
	must(b->d->ops->upload(b->d, to, b->host, bytes), "upload");
	must(b->d->ops->wait(b->d), "wait");
}

static float element(const void *p, bool bf16, size_t i)
{
	return bf16 ? mx_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void set_element(void *p, bool bf16, size_t i, float v)
{
	if (bf16)
		((uint16_t *)p)[i] = mx_f32_to_bf16(v);
	else
		((float *)p)[i] = v;
}

static float random_value(struct bench *b)
{
	const float v = rng_unit(&b->rng) * 2 - 1;
	return b->bf16 ? mx_bf16_to_f32(mx_f32_to_bf16(v)) : v;
}

static void fill(struct bench *b)
{
	const uint32_t rows = b->m.s.rows, cols = b->m.s.cols;
	put(b, b->w, b->m.panels, mx_quant_bytes(&b->m.q, rows));
	for (size_t r = 0; r < rows; r++)
		mx_quant_row(&b->m.w, r, b->host_w + r * cols);
	for (size_t i = 0; i < (size_t)MAX_N * cols; i++) {
		b->host_x[i] = random_value(b);
		set_element(b->got, b->bf16, i, b->host_x[i]);
	}
	put(b, b->x, b->got, (size_t)MAX_N * cols * (b->bf16 ? 2 : 4));
	for (size_t r = 0; r < rows; r++)
		b->host_bias[r] = rng_unit(&b->rng) * 2 - 1;
	put(b, b->bias, b->host_bias, rows * sizeof(float));
	for (size_t i = 0; i < (size_t)MAX_N * rows; i++)
		b->y0[i] = random_value(b);
	float norm[4096];
	for (size_t i = 0; i < cols; i++)
		norm[i] = rng_unit(&b->rng) * 2 - 1;
	put(b, b->norm, norm, cols * sizeof(float));
}

/* Rows first .. of x into got, by one output or by three that are adjacent. */
static void run(struct bench *b, uint32_t first, uint32_t n, bool add, bool f32, bool cut)
{
	const uint32_t rows = b->m.s.rows, cols = b->m.s.cols;
	const size_t in = b->bf16 ? 2 : 4, out = b->bf16 && !f32 ? 2 : 4;
	const uint32_t third = rows / 48 * 16;
	const uint32_t from[4] = {0, third, 2 * third, rows};
	struct mx_weight w[3];
	struct mx_linear_out o[3];
	size_t n_out = 0;
	memset(b->got, 0xff, (size_t)(n + 1) * rows * out);
	for (size_t i = 0; i < (size_t)n * rows && add; i++)
		set_element(b->got, out == 2, i, b->y0[(size_t)first * rows + i]);
	put(b, b->y, b->got, (size_t)(n + 1) * rows * out);
	for (int i = 0; i < 3; i++) {
		const uint32_t begin = cut ? from[i] : 0, end = cut ? from[i + 1] : rows;
		if (begin == end || (n_out && !cut))
			continue;
		w[n_out] =
			(struct mx_weight){MX_QUANT, end - begin, cols,
		                       (char *)b->w + begin / MX_QUANT_ROWS * b->m.q.panel_bytes, &b->m.q};
		o[n_out] = (struct mx_linear_out){.w = &w[n_out],
		                                  .bias = b->bias + begin,
		                                  .y = (char *)b->y + begin * out,
		                                  .ldy = rows,
		                                  .accumulate = add,
		                                  .y_f32 = f32};
		n_out++;
	}
	must(b->d->ops->linear(b->d, (char *)b->x + (size_t)first * cols * in, cols, n, o, n_out),
	     "linear");
	must(b->d->ops->download(b->d, b->host, b->y, (size_t)(n + 1) * rows * out), "download");
	must(b->d->ops->wait(b->d), "wait");
	memcpy(b->got, b->host, (size_t)(n + 1) * rows * out);
}

/*
 * What is allowed: in fp8 2^-4 of the sum of the magnitudes (the rounding of x); where W is
 * expanded to bf16, 2^-8 of the sum of the magnitudes (half of it, for each product's rounding);
 * else 1e-4 of it, for sums in f32 and minima, whose terms are larger than the products; and what y
 * is rounded by.
 */
static void check_values(struct bench *b, uint32_t first, uint32_t n, bool add, bool f32)
{
	const uint32_t rows = b->m.s.rows, cols = b->m.s.cols;
	const bool out16 = b->bf16 && !f32;
	const bool rounds = b->bf16 && n > 32 && !b->d->info.deterministic;
	const bool fp8 = rounds && n > 256 && b->m.q.codes == MX_CODES_E4M3 && b->m.q.whole;
	const uint64_t all = (uint64_t)n * rows, most = SAMPLE / cols + 64;
	for (uint32_t r = 0; r < rows; r++)
		if (!isnan(element(b->got, out16, (size_t)n * rows + r)))
			fault(b, n, "written outside", n, r, 0, 0);
	for (uint64_t k = 0; k < (all < most ? all : most); k++) {
		const uint64_t at = all < most ? k : rng_next(&b->rng) % all;
		const uint32_t token = (uint32_t)(at / rows), row = (uint32_t)(at % rows);
		const float *x = b->host_x + (size_t)(first + token) * cols;
		double sum = 0, magnitude = 0, added = fabs((double)b->host_bias[row]);
		for (size_t c = 0; c < cols; c++) {
			const double p = (double)b->host_w[(size_t)row * cols + c] * x[c];
			sum += p;
			magnitude += fabs(p);
		}
		sum += b->host_bias[row];
		if (add) {
			sum += b->y0[(size_t)first * rows + at];
			added += fabs((double)b->y0[(size_t)first * rows + at]);
		}
		const double got = element(b->got, out16, at);
		const double allowed = (fp8      ? 0x1p-4
		                        : rounds ? 0x1p-8
		                                 : 1e-4) *
		                           magnitude +
		                       1e-6 + (out16 ? 0x1p-7 * (fabs(sum) + added) : 0);
		if (!(fabs(got - sum) <= allowed))
			fault(b, n, "wrong", token, row, got, sum);
	}
}

/* Brings `bytes` of y to `to`. */
static void get_y(struct bench *b, unsigned char *to, size_t bytes)
{
	must(b->d->ops->download(b->d, b->host, b->y, bytes), "download");
	must(b->d->ops->wait(b->d), "wait");
	memcpy(to, b->host, bytes);
}

static void poison_y(struct bench *b, size_t bytes)
{
	memset(b->got, 0xff, bytes);
	put(b, b->y, b->got, bytes);
}

/* n rows by linear_normed, then by linear_gated with the norm and without, with the first half of
 * W's rows as gate and the second as up: the bits of their parts. */
static void try_fused(struct bench *b, uint32_t n)
{
	const struct mx_ops *ops = b->d->ops;
	const uint32_t rows = b->m.s.rows, cols = b->m.s.cols, half = rows / 2;
	const size_t size = b->bf16 ? 2 : 4, bytes = (size_t)n * rows * size, out = bytes / 2;
	const struct mx_linear_in normed = {
		.x = b->x, .ldx = cols, .norm = b->norm, .norm_eps = 1e-5f, .room = b->room};
	const struct mx_linear_in bare = {.x = b->x, .ldx = cols};
	const struct mx_weight w = {MX_QUANT, rows, cols, b->w, &b->m.q};
	const struct mx_linear_out all = {.w = &w, .bias = b->bias, .y = b->y, .ldy = rows};
	must(ops->rmsnorm(b->d, b->x, b->norm, 1e-5f, n, cols, b->room), "rmsnorm");
	must(ops->linear(b->d, b->room, cols, n, &all, 1), "linear");
	get_y(b, b->kept, bytes);
	poison_y(b, bytes);
	must(ops->linear_normed(b->d, &normed, n, &all, 1), "linear_normed");
	get_y(b, b->got, bytes);
	if (memcmp(b->got, b->kept, bytes) != 0)
		fault(b, n, "with a norm, other bits", 0, 0, 0, 0);
	if (rows % 32)
		return;
	const struct mx_weight parts[2] = {
		{MX_QUANT, half, cols, b->w, &b->m.q},
		{MX_QUANT, half, cols, (char *)b->w + half / MX_QUANT_ROWS * b->m.q.panel_bytes, &b->m.q}};
	unsigned char *const y = b->y, *const up = y + out;
	const struct mx_linear_out two[2] = {{.w = &parts[0], .y = y, .ldy = half},
	                                     {.w = &parts[1], .y = up, .ldy = half}};
	for (int i = 0; i < 2; i++) {
		must(ops->linear(b->d, i ? b->room : b->x, cols, n, two, 2), "linear");
		must(ops->act_mul(b->d, MX_ACT_SILU, y, half, up, half, n, half, y, half), "act_mul");
		get_y(b, b->kept, out);
		poison_y(b, bytes);
		mx_status st =
			ops->linear_gated(b->d, i ? &normed : &bare, n, &parts[0], &parts[1], y, half);
		if (st == MX_E_UNSUPPORTED)
			continue;
		must(st, "linear_gated");
		get_y(b, b->got, bytes);
		if (memcmp(b->got, b->kept, out) != 0)
			fault(b, n, i ? "gated with a norm, other bits" : "gated, other bits", 0, 0, 0, 0);
		for (size_t k = out; k < bytes; k++)
			if (b->got[k] != 0xff) {
				fault(b, n, "gated, written outside", (uint32_t)k, 0, 0, 0);
				break;
			}
		b->fused++;
	}
}

static void try_products(struct bench *b)
{
	const uint32_t rows = b->m.s.rows;
	for (size_t k = 0; k < COUNT(numbers); k++) {
		const uint32_t n = numbers[k], first = rng_below(&b->rng, MAX_N - n + 1);
		const bool add = rng_below(&b->rng, 2), f32 = rng_below(&b->rng, 2);
		const size_t bytes = (size_t)n * rows * (b->bf16 && !f32 ? 2 : 4);
		run(b, first, n, add, f32, false);
		check_values(b, first, n, add, f32);
		memcpy(b->kept, b->got, bytes);
		run(b, first, n, add, f32, true);
		if (memcmp(b->got, b->kept, bytes) != 0)
			fault(b, n, "three outputs in one call", 0, 0, 0, 0);
		try_fused(b, n);
	}
	if (!b->d->info.deterministic)
		return;
	run(b, 0, MAX_N, false, true, false);
	memcpy(b->kept, b->got, (size_t)MAX_N * rows * 4);
	for (uint32_t i = 0; i < MAX_N; i += 7) {
		run(b, i, 1 + i % 20 > MAX_N - i ? 1 : 1 + i % 20, false, true, false);
		if (memcmp(b->got, b->kept + (size_t)i * rows * 4, (size_t)rows * 4) != 0)
			fault(b, 1, "other bits", i, 0, 0, 0);
	}
}

/* Rows of a table: the numbers themselves, rounded to the activations' type. */
static void try_rows(struct bench *b)
{
	enum { N = 5 };
	const uint32_t rows = b->m.s.rows, cols = b->m.s.cols;
	int32_t ids[N];
	for (int i = 0; i < N; i++)
		ids[i] = (int32_t)(i ? rng_below(&b->rng, rows) : rows - 1);
	const struct mx_weight w = {MX_QUANT, rows, cols, b->w, &b->m.q};
	put(b, b->x, ids, sizeof ids);
	must(b->d->ops->embed(b->d, &w, b->x, N, b->y), "embed");
	must(b->d->ops->download(b->d, b->host, b->y, (size_t)N * cols * 4), "download");
	must(b->d->ops->wait(b->d), "wait");
	for (size_t i = 0; i < N; i++)
		for (uint32_t c = 0; c < cols; c++) {
			float want = b->host_w[(size_t)ids[i] * cols + c];
			if (b->bf16)
				want = mx_bf16_to_f32(mx_f32_to_bf16(want));
			const float got = element(b->host, b->bf16, i * cols + c);
			if (got != want)
				fault(b, N, "row of a table", (uint32_t)i, c, got, want);
		}
}

static bool fits(const struct quant_case *of, uint32_t cols)
{
	const uint32_t block = mx_quant_block_elements(of->format);
	const uint32_t whole = of->group == QUANT_WHOLE || of->format == MX_QUANT_PLAIN ? 8
	                       : of->group                                              ? of->group
	                                                                                : block;
	return cols % whole == 0;
}

static void try_form(struct bench *b, const struct quant_case *of)
{
	const int before = b->faults;
	b->of = of;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		if (!fits(of, shapes[i].cols))
			continue;
		quant_matrix_make(&b->m, of, shapes[i].rows, shapes[i].cols, &b->rng);
		must(quant_matrix_pack(&b->m, of->bits, true), "packing");
		fill(b);
		try_products(b);
		try_rows(b);
		quant_matrix_free(&b->m);
	}
	if (b->faults > before)
		printf("form %zu (%s): %d faults\n", (size_t)(of - quant_cases),
		       mx_quant_format_name(of->format), b->faults - before);
}

static void *device_memory(struct mx_device *d, size_t bytes)
{
	void *p = NULL;
	must(d->ops->alloc(d, bytes, &p), "alloc");
	return p;
}

static void *host_memory(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p)
		exit(1);
	return p;
}

/* All forms on one device; false if there is none. */
static bool try_device(bool bf16, bool deterministic, uint64_t seed, long only, int *faults)
{
	const struct mx_device_options options = {.threads = 1,
	                                          .max_rows = 1,
	                                          .max_width = 1,
	                                          .cuda = {.act_dtype = bf16 ? MX_BF16 : MX_F32,
	                                                   .max_samples = 64,
	                                                   .vocab = 32000,
	                                                   .deterministic = deterministic,
	                                                   .quantised = true}};
	static struct bench b;
	struct mx_err err = {0};
	void *host = NULL;
	b = (struct bench){.bf16 = bf16, .rng = {seed}};
	if (mx_device_open("cuda:0", &options, &b.d, &err) != MX_OK) {
		printf("%s\n", err.text);
		return false;
	}
	must(b.d->ops->host_alloc(b.d, MAX_W, &host), "host_alloc");
	b.host = host;
	b.w = device_memory(b.d, MAX_W);
	b.x = device_memory(b.d, MAX_X * 4);
	b.y = device_memory(b.d, MAX_Y * 4);
	b.room = device_memory(b.d, MAX_X * 4);
	b.bias = device_memory(b.d, 1 << 20);
	b.norm = device_memory(b.d, 1 << 20);
	b.host_w = host_memory(MAX_W * 4);
	b.host_x = host_memory(MAX_X * 4);
	b.y0 = host_memory(MAX_Y * 4);
	b.got = host_memory(MAX_Y * 4);
	b.kept = host_memory(MAX_Y * 4);
	for (size_t i = 0; i < n_quant_cases; i++)
		if (only < 0 || only == (long)i)
			try_form(&b, &quant_cases[i]);
	printf("%s%s: %d faults, %d gated products\n", bf16 ? "bf16" : "f32",
	       deterministic ? ", deterministic" : "", b.faults, b.fused);
	fflush(stdout);
	*faults += b.faults;
	b.d->ops->host_release(b.d, b.host);
	void *const device[] = {b.w, b.x, b.y, b.room, b.bias, b.norm};
	for (size_t i = 0; i < COUNT(device); i++)
		b.d->ops->release(b.d, device[i]);
	void *const all[] = {b.host_w, b.host_x, b.y0, b.got, b.kept};
	for (size_t i = 0; i < COUNT(all); i++)
		free(all[i]);
	b.d->ops->destroy(b.d);
	return true;
}

int main(int argc, char **argv)
{
	const char *given = getenv("MIXD_TEST_SEED");
	const uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) | 1;
	int faults = 0;
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < 3; i++)
		if (!try_device(i<2, i == 1, seed + (uint64_t)i, argc> 1 ? atol(argv[1]) : -1, &faults))
			return 77;
	return faults ? 1 : 0;
}
