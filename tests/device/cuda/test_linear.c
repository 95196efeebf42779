/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear of the CUDA device, on random data and poisoned outputs: against double precision (all
 * elements of small products, a sample of large ones), against the kernel that takes anything (all
 * elements), recorded against not, outputs of different types in one call against one call each,
 * and on a deterministic device bit for bit: a row alone, with other rows, at another place, in one
 * product with its neighbours or in a product of its own. linear_gated has the bits of linear and
 * act_mul, linear_normed those of rmsnorm and linear, and the norm changes no bit of linear_gated.
 *
 *   tests/device/cuda/test_linear [part of a shape's name]     MIXD_TEST_SEED repeats a run
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/open.h"
#include "tests/rng.h"

enum { TEST = 1, BENCH = 2, LOGITS = 4 }; /* of linear_cases.def */

static const struct shape {
	const char *name;
	uint32_t rows, cols, uses;
} shapes[] = {
#define PRODUCT(name, rows, cols, uses) {name, rows, cols, uses},
#include "device/cuda/linear_cases.def"
#undef PRODUCT
};

static const uint32_t numbers[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 100, 512};

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define MAX_N    512
#define GUARD    2                  /* rows of y behind the last */
#define SAMPLE   300000             /* multiplications per product in double precision */
#define MAX_W    ((size_t)60 << 20) /* elements */
#define MAX_X    ((size_t)8 << 20)
#define MAX_Y    ((size_t)7 << 20)
#define MAX_HOST (MAX_W * 2) /* bytes */

enum { BIAS = 1, ACCUMULATE = 2, STRIDED = 4, MERGED = 8, FLAGS = 16 };

struct bench {
	struct mx_device *d;
	bool bf16;
	struct rng rng;
	const struct shape *s;
	void *host;           /* pinned, MAX_HOST bytes */
	void *w, *x[2], *odd; /* device; x at stride cols and cols + 8, odd at cols + 1 */
	void *y;              /* device */
	void *room;           /* device, rows after their norm */
	float *bias, *norm;   /* device */
	void *host_w;         /* as on the device */
	float *host_x;        /* [MAX_N, cols], exactly as on the device */
	float *host_bias;     /* [rows] */
	float *host_norm;     /* [cols] weights of a norm */
	float *host_y0;       /* [MAX_N, rows] what accumulate adds to, exactly */
	unsigned char *got;   /* y as it came back */
	unsigned char *kept;  /* another y to compare with */
	int faults, gated;    /* gated: products by linear_gated */
	int normed;           /* products by linear_normed */
};

static void must(mx_status s, const char *what)
{
	if (s != MX_OK) {
		fprintf(stderr, "%s: status %d\n", what, (int)s);
		exit(1);
	}
}

static void fault(struct bench *b, uint32_t n, uint32_t flags, const char *what, uint32_t token,
                  uint32_t row, double got, double want)
{
	if (b->faults++ < 20)
		fprintf(stderr, "%s %ux%u %s%s, n %u, flags %u: %s at token %u, row %u: %g, not %g\n",
		        b->s->name, b->s->rows, b->s->cols, b->bf16 ? "bf16" : "f32",
		        b->d->info.deterministic ? " deterministic" : "", n, flags, what, token, row, got,
		        want);
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
	float v = rng_unit(&b->rng) * 2 - 1;
	return b->bf16 ? mx_bf16_to_f32(mx_f32_to_bf16(v)) : v;
}

/* x at stride ld, what is between the rows poisoned. */
static void place_x(struct bench *b, void *to, size_t ld)
{
	const size_t size = b->bf16 ? 2 : 4;
	unsigned char *x = malloc(MAX_N * ld * size);
	if (!x)
		exit(1);
	memset(x, 0xff, MAX_N * ld * size);
	for (size_t i = 0; i < MAX_N; i++)
		for (size_t c = 0; c < b->s->cols; c++)
			set_element(x, b->bf16, i * ld + c, b->host_x[i * b->s->cols + c]);
	put(b, to, x, MAX_N * ld * size);
	free(x);
}

/* The shape's weights, inputs and biases, here and on the device. */
static void fill(struct bench *b)
{
	const struct shape *s = b->s;
	const size_t size = b->bf16 ? 2 : 4, n_w = (size_t)s->rows * s->cols;
	for (size_t i = 0; i < n_w; i++)
		set_element(b->host_w, b->bf16, i, random_value(b));
	put(b, b->w, b->host_w, n_w * size);
	for (size_t i = 0; i < (size_t)MAX_N * s->cols; i++)
		b->host_x[i] = random_value(b);
	for (size_t i = 0; i < (size_t)MAX_N * s->rows; i++)
		b->host_y0[i] = random_value(b);
	for (size_t i = 0; i < s->rows; i++)
		b->host_bias[i] = rng_unit(&b->rng) * 2 - 1;
	put(b, b->bias, b->host_bias, s->rows * sizeof(float));
	for (size_t i = 0; i < s->cols; i++)
		b->host_norm[i] = rng_unit(&b->rng) * 2 - 1;
	put(b, b->norm, b->host_norm, s->cols * sizeof(float));
	place_x(b, b->x[0], s->cols);
	place_x(b, b->x[1], s->cols + 8);
	place_x(b, b->odd, s->cols + 1);
}

/* Tokens first .. first + n - 1 into got, from x at stride ldx. */
static void run(struct bench *b, const void *x, size_t ldx, uint32_t first, uint32_t n,
                uint32_t flags, bool f32, bool recorded)
{
	const struct shape *s = b->s;
	const struct mx_ops *ops = b->d->ops;
	const size_t in = b->bf16 ? 2 : 4, out = b->bf16 && !f32 ? 2 : 4;
	const size_t ldy = s->rows + (flags & STRIDED ? 24 : 0), bytes = (n + GUARD) * ldy * out;
	if (bytes > MAX_Y * 4 || bytes > MAX_HOST)
		exit(1);
	memset(b->got, 0xff, bytes);
	if (flags & ACCUMULATE)
		for (size_t i = 0; i < n; i++)
			for (size_t r = 0; r < s->rows; r++)
				set_element(b->got, out == 2, i * ldy + r, b->host_y0[(first + i) * s->rows + r]);
	put(b, b->y, b->got, bytes);

	const char *from = (const char *)x + first * ldx * in;
	const uint32_t cut[4] = {0, s->rows / 3, s->rows / 2, s->rows};
	struct mx_weight w[3];
	struct mx_linear_out outs[3];
	size_t n_out = 0;
	for (int i = 0; i < 3; i++) {
		uint32_t begin = flags & MERGED ? cut[i] : 0, end = flags & MERGED ? cut[i + 1] : s->rows;
		if (begin == end || (n_out && !(flags & MERGED)))
			continue;
		w[n_out] = (struct mx_weight){.dtype = b->bf16 ? MX_BF16 : MX_F32,
		                              .rows = end - begin,
		                              .cols = s->cols,
		                              .data = (char *)b->w + (size_t)begin * s->cols * in};
		outs[n_out] = (struct mx_linear_out){.w = &w[n_out],
		                                     .bias = flags & BIAS ? b->bias + begin : NULL,
		                                     .y = (char *)b->y + begin * out,
		                                     .ldy = ldy,
		                                     .accumulate = flags & ACCUMULATE,
		                                     .y_f32 = f32};
		n_out++;
	}
	struct mx_recording *r = NULL;
	if (recorded)
		must(ops->record(b->d), "record");
	must(ops->linear(b->d, from, ldx, n, outs, n_out), "linear");
	if (recorded) {
		must(ops->recorded(b->d, &r), "recorded");
		must(ops->replay(b->d, r), "replay");
	}
	must(ops->download(b->d, b->host, b->y, bytes), "download");
	must(ops->wait(b->d), "wait");
	memcpy(b->got, b->host, bytes);
	ops->forget(b->d, r);
}

/* Everything of y written, nothing around it. */
static void check_edges(struct bench *b, uint32_t n, uint32_t flags, bool f32)
{
	const bool out16 = b->bf16 && !f32;
	const size_t ldy = b->s->rows + (flags & STRIDED ? 24 : 0), size = out16 ? 2 : 4;
	static const unsigned char poison[4] = {0xff, 0xff, 0xff, 0xff};
	for (uint32_t i = 0; i < n + GUARD; i++)
		for (uint32_t r = 0; r < ldy; r++) {
			const bool inside = i < n && r < b->s->rows;
			const float v = element(b->got, out16, i * ldy + r);
			if (inside ? !isfinite(v) : memcmp(b->got + (i * ldy + r) * size, poison, size) != 0)
				fault(b, n, flags, inside ? "not written" : "written outside", i, r, v, 0);
		}
}

/*
 * Against double precision. What is allowed: the rounding of the result (2^-8 of it, in bf16) and,
 * since cuBLAS gets the bias through y, of what is added; and 2e-5 of the sum of the magnitudes for
 * sums in f32, whose tensor cores cut off rather than round.
 */
static void check_values(struct bench *b, uint32_t n, uint32_t flags, bool f32)
{
	const struct shape *s = b->s;
	const bool out16 = b->bf16 && !f32;
	const size_t ldy = s->rows + (flags & STRIDED ? 24 : 0);
	const uint64_t all = (uint64_t)n * s->rows, most = SAMPLE / s->cols + 64;
	for (uint64_t k = 0; k < (all < most ? all : most); k++) {
		const uint64_t o = all < most ? k : rng_next(&b->rng) % all;
		const uint32_t token = (uint32_t)(o / s->rows), row = (uint32_t)(o % s->rows);
		double sum = 0, magnitude = 0, added = 0;
		for (size_t c = 0; c < s->cols; c++) {
			const double p = (double)element(b->host_w, b->bf16, (size_t)row * s->cols + c) *
			                 b->host_x[token * s->cols + c];
			sum += p;
			magnitude += fabs(p);
		}
		if (flags & BIAS)
			sum += b->host_bias[row], added += fabs(b->host_bias[row]);
		if (flags & ACCUMULATE) {
			sum += b->host_y0[token * s->rows + row];
			added += fabs(b->host_y0[token * s->rows + row]);
		}
		const double got = element(b->got, out16, token * ldy + row);
		double allowed = 2e-5 * magnitude + 1e-6;
		if (out16) /* of the sum, of what is added, and by cuBLAS also of the product before */
			allowed +=
				0x1p-8 * (fabs(sum) + added) * (added > 0 && !b->d->info.deterministic ? 2 : 1);
		if (!(fabs(got - sum) <= allowed))
			fault(b, n, flags, "wrong", token, row, got, sum);
	}
}

/* All of got against all of kept: equal bits, or near by (out rounded twice). */
static void check_same(struct bench *b, uint32_t n, uint32_t flags, bool f32, size_t from,
                       bool bits)
{
	const struct shape *s = b->s;
	const bool out16 = b->bf16 && !f32;
	const size_t ldy = s->rows + (flags & STRIDED ? 24 : 0), size = out16 ? 2 : 4;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t r = 0; r < s->rows; r++) {
			const size_t at = i * ldy + r, other = (from + i) * ldy + r;
			const float got = element(b->got, out16, at), want = element(b->kept, out16, other);
			const double near = (out16 ? 0x1p-6 : 1e-4) * fabs((double)want) +
			                    (out16 ? 0.02 : 1e-3) * sqrt((double)s->cols / 1000 + 1);
			if (bits ? memcmp(b->got + at * size, b->kept + other * size, size) != 0
			         : !(fabs((double)got - want) <= near))
				fault(b, n, flags, bits ? "other bits" : "unlike the simple kernel", i, r, got,
				      want);
		}
}

static void keep(struct bench *b, uint32_t n)
{
	memcpy(b->kept, b->got, (size_t)(n + GUARD) * (b->s->rows + 24) * 4);
}

static void try_one(struct bench *b, uint32_t n, uint32_t flags, bool f32)
{
	const size_t ldx = b->s->cols + (flags & STRIDED ? 8 : 0);
	const void *x = b->x[flags & STRIDED ? 1 : 0];
	run(b, b->odd, b->s->cols + 1, 0, n, flags, f32, false);
	check_values(b, n, flags, f32);
	keep(b, n);
	run(b, x, ldx, 0, n, flags, f32, false);
	check_edges(b, n, flags, f32);
	check_values(b, n, flags, f32);
	check_same(b, n, flags, f32, 0, false);
	keep(b, n);
	run(b, x, ldx, 0, n, flags, f32, true);
	check_same(b, n, flags, f32, 0, true);
}

/*
 * Two outputs of different types that are adjacent in W and in memory give the same bytes in one
 * call as in two, with a norm of x in that call or without. The second output starts where the
 * first row of the first output ends, with the same stride in elements. The stride is more than
 * twice the rows of W, so the rows of an f32 output lie between those of a bf16 output and no row
 * overlaps another.
 */
static void try_mixed(struct bench *b, uint32_t n, uint32_t flags, bool norm)
{
	const struct shape *s = b->s;
	const size_t in = b->bf16 ? 2 : 4, ldy = (2 * (size_t)s->rows + 15) / 8 * 8;
	const size_t bytes = (n + GUARD) * ldy * 4;
	const uint32_t rows[2] = {s->rows / 16 * 8, s->rows - s->rows / 16 * 8};
	if (!rows[0] || bytes > MAX_Y * 4)
		return;
	struct mx_weight w[2];
	struct mx_linear_out outs[2];
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t begin = i ? rows[0] : 0;
		w[i] = (struct mx_weight){.dtype = b->bf16 ? MX_BF16 : MX_F32,
		                          .rows = rows[i],
		                          .cols = s->cols,
		                          .data = (char *)b->w + begin * s->cols * in};
		outs[i] = (struct mx_linear_out){.w = &w[i],
		                                 .bias = flags & BIAS ? b->bias + begin : NULL,
		                                 .y = (char *)b->y + begin * in,
		                                 .ldy = ldy,
		                                 .accumulate = flags & ACCUMULATE,
		                                 .y_f32 = i};
	}
	const struct mx_linear_in from = {
		.x = b->x[0], .ldx = s->cols, .norm = b->norm, .norm_eps = 1e-5f, .room = b->room};
	if (norm)
		must(b->d->ops->rmsnorm(b->d, b->x[0], b->norm, 1e-5f, n, s->cols, b->room), "rmsnorm");
	for (int together = 0; together < 2; together++) {
		memset(b->got, 0xff, bytes);
		for (uint32_t i = 0; i < 2 && flags & ACCUMULATE; i++)
			for (size_t k = 0; k < n; k++)
				for (size_t r = 0; r < rows[i]; r++)
					set_element(b->got + (i ? rows[0] * in : 0), b->bf16 && !i, k * ldy + r,
					            b->host_y0[k * s->rows + (i ? rows[0] : 0) + r]);
		put(b, b->y, b->got, bytes);
		if (together)
			must(norm ? b->d->ops->linear_normed(b->d, &from, n, outs, 2)
			          : b->d->ops->linear(b->d, b->x[0], s->cols, n, outs, 2),
			     "linear");
		for (int i = 0; i < 2 && !together; i++)
			must(b->d->ops->linear(b->d, norm ? b->room : b->x[0], s->cols, n, &outs[i], 1),
			     "linear");
		must(b->d->ops->download(b->d, b->host, b->y, bytes), "download");
		must(b->d->ops->wait(b->d), "wait");
		memcpy(together ? b->got : b->kept, b->host, bytes);
	}
	if (memcmp(b->got, b->kept, bytes) != 0)
		fault(b, n, flags, "outputs of two types in one call", 0, 0, 0, 0);
}

/* On a deterministic device: the rows of MAX_N at once, and by any other number. */
static void try_bits(struct bench *b, uint32_t flags, bool f32)
{
	const size_t ldx = b->s->cols;
	run(b, b->x[0], ldx, 0, MAX_N, flags, f32, false);
	keep(b, MAX_N);
	for (size_t k = 0; k < COUNT(numbers); k++) {
		const uint32_t n = numbers[k], first = rng_below(&b->rng, MAX_N - n + 1);
		run(b, b->x[0], ldx, first, n, flags ^ MERGED, f32, false);
		check_same(b, n, flags, f32, first, true);
	}
}

/* Brings y, which was poisoned, and compares it with what `kept` has of it: `written` bytes of
 * `bytes` are equal, the others untouched. */
static void check_fused(struct bench *b, uint32_t n, uint32_t rows, size_t written, size_t bytes,
                        const char *what)
{
	const size_t in = b->bf16 ? 2 : 4;
	must(b->d->ops->download(b->d, b->host, b->y, bytes), "download");
	must(b->d->ops->wait(b->d), "wait");
	memcpy(b->got, b->host, bytes);
	for (size_t i = 0; i < bytes; i++)
		if (i < written ? b->got[i] != b->kept[i] : b->got[i] != 0xff) {
			fault(b, n, 0, what, (uint32_t)(i / in / rows), (uint32_t)(i / in % rows),
			      element(b->got, b->bf16, i / in), element(b->kept, b->bf16, i / in));
			return;
		}
}

static void poison_y(struct bench *b, size_t bytes)
{
	memset(b->got, 0xff, bytes);
	put(b, b->y, b->got, bytes);
}

static void keep_y(struct bench *b, size_t bytes)
{
	must(b->d->ops->download(b->d, b->host, b->y, bytes), "download");
	must(b->d->ops->wait(b->d), "wait");
	memcpy(b->kept, b->host, bytes);
}

/* The first half of W's rows as gate, the second as up; with a norm of x or without. */
static void try_gated(struct bench *b, uint32_t n, bool norm)
{
	const struct shape *s = b->s;
	const struct mx_ops *ops = b->d->ops;
	const uint32_t half = s->rows / 2;
	const size_t in = b->bf16 ? 2 : 4, bytes = (n + GUARD) * (size_t)half * in;
	const struct mx_weight w[2] = {
		{.dtype = b->bf16 ? MX_BF16 : MX_F32, .rows = half, .cols = s->cols, .data = b->w},
		{.dtype = b->bf16 ? MX_BF16 : MX_F32,
	     .rows = half,
	     .cols = s->cols,
	     .data = (char *)b->w + (size_t)half * s->cols * in}};
	const struct mx_linear_in from = {.x = b->x[0],
	                                  .ldx = s->cols,
	                                  .norm = norm ? b->norm : NULL,
	                                  .norm_eps = 1e-5f,
	                                  .room = b->room};
	if (s->rows % 2 || 3 * bytes > MAX_Y * 4)
		return;
	unsigned char *const products = b->y, *const up = products + bytes;
	const struct mx_linear_out outs[2] = {{.w = &w[0], .y = products, .ldy = half},
	                                      {.w = &w[1], .y = up, .ldy = half}};
	if (norm)
		must(ops->rmsnorm(b->d, b->x[0], b->norm, 1e-5f, n, s->cols, b->room), "rmsnorm");
	must(ops->linear(b->d, norm ? b->room : b->x[0], s->cols, n, outs, 2), "linear");
	must(ops->act_mul(b->d, MX_ACT_SILU, products, half, up, half, n, half, products, half),
	     "act_mul");
	keep_y(b, bytes);
	poison_y(b, bytes);
	mx_status st = ops->linear_gated(b->d, &from, n, &w[0], &w[1], b->y, half);
	if (st == MX_E_UNSUPPORTED)
		return;
	must(st, "linear_gated");
	check_fused(b, n, half, n * (size_t)half * in, bytes, norm ? "gated with a norm" : "gated");
	b->gated++;
}

static void try_normed(struct bench *b, uint32_t n, uint32_t flags)
{
	const struct shape *s = b->s;
	const struct mx_ops *ops = b->d->ops;
	const size_t in = b->bf16 ? 2 : 4, bytes = (n + GUARD) * (size_t)s->rows * in;
	const uint32_t cut = flags & MERGED ? s->rows / 2 : 0;
	struct mx_weight w[2];
	struct mx_linear_out outs[2];
	size_t n_out = 0;
	for (int i = 0; i < 2; i++) {
		const uint32_t begin = i ? cut : 0, end = i ? s->rows : cut;
		if (begin == end)
			continue;
		w[n_out] = (struct mx_weight){.dtype = b->bf16 ? MX_BF16 : MX_F32,
		                              .rows = end - begin,
		                              .cols = s->cols,
		                              .data = (char *)b->w + (size_t)begin * s->cols * in};
		outs[n_out] = (struct mx_linear_out){.w = &w[n_out],
		                                     .bias = flags & BIAS ? b->bias + begin : NULL,
		                                     .y = (char *)b->y + begin * in,
		                                     .ldy = s->rows};
		n_out++;
	}
	const struct mx_linear_in from = {
		.x = b->x[0], .ldx = s->cols, .norm = b->norm, .norm_eps = 1e-5f, .room = b->room};
	must(ops->rmsnorm(b->d, b->x[0], b->norm, 1e-5f, n, s->cols, b->room), "rmsnorm");
	must(ops->linear(b->d, b->room, s->cols, n, outs, n_out), "linear");
	keep_y(b, bytes);
	poison_y(b, bytes);
	must(ops->linear_normed(b->d, &from, n, outs, n_out), "linear_normed");
	check_fused(b, n, s->rows, n * (size_t)s->rows * in, bytes, "normed");
	b->normed++;
}

static void try_shape(struct bench *b)
{
	const bool big = (size_t)b->s->rows * b->s->cols > 1 << 20;
	fill(b);
	for (size_t k = 0; k < COUNT(numbers); k++) {
		for (int i = 0; i < (big ? 1 : 4); i++)
			try_one(b, numbers[k], rng_below(&b->rng, FLAGS), false);
		try_one(b, numbers[k], rng_below(&b->rng, FLAGS), true);
		try_mixed(b, numbers[k], rng_below(&b->rng, FLAGS), false);
		try_mixed(b, numbers[k], rng_below(&b->rng, FLAGS), true);
		try_gated(b, numbers[k], false);
		try_gated(b, numbers[k], true);
		try_normed(b, numbers[k], rng_below(&b->rng, FLAGS));
	}
	if (b->d->info.deterministic) {
		try_bits(b, rng_below(&b->rng, FLAGS) & ~STRIDED, false);
		try_bits(b, rng_below(&b->rng, FLAGS) & ~STRIDED, true);
	}
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

/* All shapes on one device; false if there is none. */
static const char *only; /* part of the names of the shapes to try; NULL = all */

static bool try_device(bool bf16, bool deterministic, uint64_t seed, int *faults)
{
	const struct mx_device_options options = {.threads = 1,
	                                          .max_rows = 1,
	                                          .max_width = 1,
	                                          .cuda = {.act_dtype = bf16 ? MX_BF16 : MX_F32,
	                                                   .max_samples = 64,
	                                                   .vocab = 32000,
	                                                   .deterministic = deterministic}};
	struct bench b = {.bf16 = bf16, .rng = {seed}};
	struct mx_err err = {0};
	if (mx_device_open("cuda:0", &options, &b.d, &err) != MX_OK) {
		printf("%s\n", err.text);
		return false;
	}
	must(b.d->ops->host_alloc(b.d, MAX_HOST, &b.host), "host_alloc");
	b.w = device_memory(b.d, MAX_W * 2);
	b.x[0] = device_memory(b.d, MAX_X * 4);
	b.x[1] = device_memory(b.d, MAX_X * 4);
	b.odd = device_memory(b.d, MAX_X * 4);
	b.y = device_memory(b.d, MAX_Y * 4);
	b.room = device_memory(b.d, MAX_X * 4);
	b.bias = device_memory(b.d, 1 << 20);
	b.norm = device_memory(b.d, 1 << 20);
	b.host_w = host_memory(MAX_W * 2);
	b.host_x = host_memory(MAX_X * 4);
	b.host_bias = host_memory(1 << 20);
	b.host_norm = host_memory(1 << 20);
	b.host_y0 = host_memory(MAX_Y * 4);
	b.got = host_memory(MAX_Y * 4);
	b.kept = host_memory(MAX_Y * 4);
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct shape *s = &shapes[i];
		if (!(s->uses & TEST) || (only && !strstr(s->name, only)) ||
		    (!bf16 && (size_t)s->rows * s->cols > 8 << 20))
			continue;
		b.s = s;
		try_shape(&b);
	}
	printf("%s%s: %d faults, %d gated products, %d with a norm\n", bf16 ? "bf16" : "f32",
	       deterministic ? ", deterministic" : "", b.faults, b.gated, b.normed);
	*faults += b.faults;
	b.d->ops->host_release(b.d, b.host);
	void *const device[] = {b.w, b.x[0], b.x[1], b.odd, b.y, b.room, b.bias, b.norm};
	for (size_t i = 0; i < COUNT(device); i++)
		b.d->ops->release(b.d, device[i]);
	void *const host[] = {b.host_w, b.host_x, b.host_bias, b.host_norm, b.host_y0, b.got, b.kept};
	for (size_t i = 0; i < COUNT(host); i++)
		free(host[i]);
	b.d->ops->destroy(b.d);
	return true;
}

int main(int argc, char **argv)
{
	const char *given = getenv("MIXD_TEST_SEED");
	const uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) | 1;
	int faults = 0;
	only = argc > 1 ? argv[1] : NULL;
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < 4; i++)
		if (!try_device(i % 2 == 0, i / 2, seed + (uint64_t)i, &faults))
			return 77;
	return faults ? 1 : 0;
}
