/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on rows of the CUDA device, in bf16 and f32, on random data with poisoned outputs and
 * guards behind them: against double precision, and a row alone against the row among others, bit
 * for bit.
 *
 * MIXD_TEST_SEED repeats a run.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/open.h"
#include "tests/rng.h"

enum { TEST = 1, BENCH = 2 };

static const struct rows_case {
	uint32_t n, width, uses;
} cases[] = {
#define ROWS(n, width, uses) {n, width, uses},
#include "device/cuda/rows_cases.def"
#undef ROWS
};

#define COUNT(a)  (sizeof(a) / sizeof(*(a)))
#define MAX_ELEMS ((size_t)4 << 20) /* of a matrix */
#define GUARD     1024              /* bytes behind an output */
#define MATRICES  4

struct test {
	struct mx_device *d;
	bool bf16;
	struct rng rng;
	unsigned char *pinned;
	unsigned char *dev[MATRICES];
	float *host[MATRICES]; /* what lies on the device, exactly */
	float *got;
	double *want, *size; /* size: the magnitude that roundings are relative to */
	char name[128];
	int faults;
};

static void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "%s: status %d\n", what, (int)st);
	exit(1);
}

static size_t element(const struct test *t)
{
	return t->bf16 ? 2 : 4;
}

static void push(struct test *t, void *to, size_t bytes)
{
	must(t->d->ops->upload(t->d, to, t->pinned, bytes), "upload");
	must(t->d->ops->wait(t->d), "wait");
}

static void pull(struct test *t, const void *from, size_t bytes)
{
	must(t->d->ops->download(t->d, t->pinned, from, bytes), "download");
	must(t->d->ops->wait(t->d), "wait");
}

/* Matrix m of n elements: host[m] rounded to the activation dtype, on the device. */
static void put(struct test *t, int m, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (t->bf16) {
			uint16_t h = mx_f32_to_bf16(t->host[m][i]);
			memcpy(t->pinned + 2 * i, &h, 2);
			t->host[m][i] = mx_bf16_to_f32(h);
		} else {
			memcpy(t->pinned + 4 * i, &t->host[m][i], 4);
		}
	}
	memset(t->pinned + n * element(t), 0xa5, GUARD);
	push(t, t->dev[m], n * element(t) + GUARD);
}

static void put_random(struct test *t, int m, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		t->host[m][i] = rng_normal(&t->rng) * scale;
	put(t, m, n);
}

/* f32 whatever the activations are. */
static void put_f32(struct test *t, int m, size_t n)
{
	memcpy(t->pinned, t->host[m], n * 4);
	push(t, t->dev[m], n * 4);
}

/* NaN and a guard: an output before it is written. */
static void poison(struct test *t, int m, size_t n)
{
	memset(t->pinned, 0xff, n * element(t));
	memset(t->pinned + n * element(t), 0xa5, GUARD);
	push(t, t->dev[m], n * element(t) + GUARD);
}

static void fault(struct test *t, const char *what, size_t i, double got, double want)
{
	if (t->faults++ < 20)
		fprintf(stderr, "%s %s: %s at [%zu]: %.9g, not %.9g\n", t->bf16 ? "bf16" : "f32", t->name,
		        what, i, got, want);
}

/* The matrix to got[]; the guard behind it must be whole. */
static void get(struct test *t, int m, size_t n)
{
	pull(t, t->dev[m], n * element(t) + GUARD);
	for (size_t i = 0; i < n; i++) {
		uint16_t h;
		memcpy(&h, t->pinned + 2 * i, 2);
		if (t->bf16)
			t->got[i] = mx_bf16_to_f32(h);
		else
			memcpy(&t->got[i], t->pinned + 4 * i, 4);
	}
	for (size_t i = 0; i < GUARD; i++)
		if (t->pinned[n * element(t) + i] != 0xa5) {
			fault(t, "written behind the end", i, t->pinned[n * element(t) + i], 0xa5);
			return;
		}
}

/* got against want: one rounding to the dtype, half a unit of 8 bits, and 2e-6 of the
 * magnitude for f32 arithmetic; what is too small for f32 may be 0. */
static void compare(struct test *t, const char *what, size_t n)
{
	const double unit = t->bf16 ? 0x1p-8 * 1.001 : 0;
	for (size_t i = 0; i < n; i++)
		if (!(fabs((double)t->got[i] - t->want[i]) <=
		      unit * fabs(t->want[i]) + 2e-6 * t->size[i] + 1e-30))
			fault(t, what, i, (double)t->got[i], t->want[i]);
}

/* Row `row` of what compare saw is what the matrix holds now. */
static void same_row(struct test *t, const char *what, int m, size_t row, size_t width)
{
	float *before = malloc(width * sizeof *before);
	memcpy(before, t->got + row * width, width * sizeof *before);
	get(t, m, width);
	if (memcmp(before, t->got, width * sizeof *before))
		fault(t, what, row, (double)t->got[0], (double)before[0]);
	free(before);
}

/* ---- norms ---- */

static void test_norm(struct test *t, const struct rows_case *c, bool add)
{
	const struct mx_ops *ops = t->d->ops;
	const size_t n = c->n, w = c->width;
	const float eps = 1e-5f;
	snprintf(t->name, sizeof t->name, "%srmsnorm %zux%zu", add ? "add_" : "", n, w);
	put_random(t, 0, n * w, 2);
	put_random(t, 1, n * w, 1);
	for (size_t i = 0; i < w; i++)
		t->host[2][i] = rng_normal(&t->rng);
	put_f32(t, 2, w);
	poison(t, 3, n * w);
	const float *weight = (const float *)(void *)t->dev[2];
	for (size_t i = 0; i < n; i++) {
		double sum = 0;
		for (size_t k = 0; k < w; k++) {
			float *x = &t->host[0][i * w + k];
			if (add)
				*x += t->host[1][i * w + k];
			if (t->bf16)
				*x = mx_bf16_to_f32(mx_f32_to_bf16(*x));
			sum += (double)*x * (double)*x;
		}
		for (size_t k = 0; k < w; k++) {
			double y = (double)t->host[0][i * w + k] / sqrt(sum / (double)w + (double)eps) *
			           (double)t->host[2][k];
			t->want[i * w + k] = y;
			t->size[i * w + k] = fabs(y);
		}
	}
	if (add)
		must(ops->add_rmsnorm(t->d, t->dev[0], t->dev[1], weight, eps, n, w, t->dev[3]), "norm");
	else
		must(ops->rmsnorm(t->d, t->dev[0], weight, eps, n, w, t->dev[3]), "norm");
	if (add) { /* the sum is stored, and exact */
		get(t, 0, n * w);
		if (memcmp(t->got, t->host[0], n * w * sizeof(float)))
			fault(t, "the residual", 0, (double)t->got[0], (double)t->host[0][0]);
	}
	get(t, 3, n * w);
	compare(t, "y", n * w);
	/* alone and in place, without the sum: the same bits */
	const size_t row = rng_below(&t->rng, c->n);
	memmove(t->host[0], t->host[0] + row * w, w * sizeof(float));
	put(t, 0, w);
	must(ops->rmsnorm(t->d, t->dev[0], weight, eps, 1, w, t->dev[0]), "norm");
	same_row(t, "a row alone", 0, row, w);
}

/* ---- silu_mul ---- */

static void test_silu(struct test *t, const struct rows_case *c)
{
	const struct mx_ops *ops = t->d->ops;
	const size_t n = c->n, w = c->width, ld = 2 * w; /* gate | up */
	if (n * ld > MAX_ELEMS)
		return;
	snprintf(t->name, sizeof t->name, "silu_mul %zux%zu", n, w);
	for (size_t i = 0; i < n * ld; i++)
		t->host[0][i] = rng_normal(&t->rng) * (rng_below(&t->rng, 4) ? 4.0f : 60.0f);
	put(t, 0, n * ld);
	poison(t, 3, n * w);
	for (size_t i = 0; i < n * w; i++) {
		double g = (double)t->host[0][i / w * ld + i % w];
		t->want[i] = g / (1 + exp(-g)) * (double)t->host[0][i / w * ld + w + i % w];
		/* exp(-g) has the roundings of its argument too */
		t->size[i] = fabs(t->want[i]) * (1 + fabs(g));
	}
	const unsigned char *up = t->dev[0] + w * element(t);
	must(ops->silu_mul(t->d, t->dev[0], ld, up, ld, n, w, t->dev[3], w), "silu_mul");
	get(t, 3, n * w);
	if (t->bf16) /* the fast functions */
		for (size_t i = 0; i < n * w; i++)
			t->size[i] *= 4;
	compare(t, "y", n * w);
	/* y may be gate, and the columns beside it stay */
	must(ops->silu_mul(t->d, t->dev[0], ld, up, ld, n, w, t->dev[0], ld), "silu_mul");
	float *y = malloc(n * w * sizeof *y);
	memcpy(y, t->got, n * w * sizeof *y);
	get(t, 0, n * ld);
	for (size_t i = 0; i < n * w; i++) {
		const size_t at = i / w * ld + i % w;
		if (memcmp(&t->got[at], &y[i], 4) || memcmp(&t->got[at + w], &t->host[0][at + w], 4))
			fault(t, "in place", i, (double)t->got[at], (double)y[i]);
	}
	free(y);
}

/* ---- layernorm, activations, softcap ---- */

static void test_layernorm(struct test *t, const struct rows_case *c, bool biased)
{
	const struct mx_ops *ops = t->d->ops;
	const size_t n = c->n, w = c->width;
	const float eps = 1e-5f;
	snprintf(t->name, sizeof t->name, "layernorm %zux%zu%s", n, w, biased ? ", bias" : "");
	if (2 * w > MAX_ELEMS)
		return;
	put_random(t, 0, n * w, 2);
	put_random(t, 1, n * w, 1);
	for (size_t i = 0; i < 2 * w; i++)
		t->host[2][i] = rng_normal(&t->rng);
	put_f32(t, 2, 2 * w);
	poison(t, 3, n * w);
	const float *weight = (const float *)(void *)t->dev[2], *bias = biased ? weight + w : NULL;
	for (size_t i = 0; i < n; i++) {
		double mean = 0, var = 0;
		for (size_t k = 0; k < w; k++) {
			float *x = &t->host[0][i * w + k];
			*x += t->host[1][i * w + k];
			if (t->bf16)
				*x = mx_bf16_to_f32(mx_f32_to_bf16(*x));
			mean += (double)*x / (double)w;
		}
		for (size_t k = 0; k < w; k++)
			var += pow((double)t->host[0][i * w + k] - mean, 2) / (double)w;
		for (size_t k = 0; k < w; k++) {
			double v = (double)t->host[2][k] / sqrt(var + (double)eps);
			double b = biased ? (double)t->host[2][w + k] : 0;
			t->want[i * w + k] = ((double)t->host[0][i * w + k] - mean) * v + b;
			/* a few roundings of the values in the mean */
			t->size[i * w + k] = fabs(t->want[i * w + k]) + fabs(b) + 10 * fabs(v);
		}
	}
	must(ops->layernorm(t->d, t->dev[0], t->dev[1], weight, bias, eps, n, w, t->dev[3]), "norm");
	get(t, 3, n * w);
	compare(t, "y", n * w);
	const size_t row = rng_below(&t->rng, c->n);
	memmove(t->host[0], t->host[0] + row * w, w * sizeof(float));
	put(t, 0, w);
	must(ops->layernorm(t->d, t->dev[0], NULL, weight, bias, eps, 1, w, t->dev[0]), "norm");
	same_row(t, "a row alone", 0, row, w);
}

static double activation(enum mx_act act, double x)
{
	switch (act) {
	case MX_ACT_SILU: return x / (1 + exp(-x));
	case MX_ACT_GELU_TANH:
		return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
	case MX_ACT_GELU: return x / 2 * erfc(-x / sqrt(2));
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : 0;
}

static void test_act(struct test *t, const struct rows_case *c, enum mx_act act, bool gated)
{
	const size_t n = c->n, w = c->width, ld = 2 * w; /* gate | up */
	if (n * ld > MAX_ELEMS)
		return;
	snprintf(t->name, sizeof t->name, "act_mul %d%s %zux%zu", act, gated ? "" : " alone", n, w);
	for (size_t i = 0; i < n * ld; i++)
		t->host[0][i] = rng_normal(&t->rng) * 3;
	put(t, 0, n * ld);
	poison(t, 3, n * w);
	for (size_t i = 0; i < n * w; i++) {
		double g = (double)t->host[0][i / w * ld + i % w];
		double up = gated ? (double)t->host[0][i / w * ld + w + i % w] : 1;
		t->want[i] = activation(act, g) * up;
		/* the roundings of arguments, and of 1 + erf where it is small */
		t->size[i] = fabs(t->want[i]) * (2 + 4 * fabs(g)) + 0.1 * fabs(g * up);
	}
	const unsigned char *up = t->dev[0] + w * element(t);
	must(t->d->ops->act_mul(t->d, act, t->dev[0], ld, gated ? up : NULL, ld, n, w, t->dev[3], w),
	     "act_mul");
	get(t, 3, n * w);
	compare(t, "y", n * w);
}

static void test_softcap(struct test *t, const struct rows_case *c)
{
	struct test f = *t; /* logits are f32 whatever the activations are */
	const size_t w = c->width, ld = w + 3;
	f.bf16 = false;
	if (c->n * ld > MAX_ELEMS)
		return;
	snprintf(f.name, sizeof f.name, "softcap_logits %ux%zu", c->n, w);
	put_random(&f, 0, c->n * ld, 40);
	must(f.d->ops->softcap_logits(f.d, (float *)(void *)f.dev[0], ld, c->n, (uint32_t)w, 30),
	     "softcap_logits");
	get(&f, 0, c->n * ld);
	for (size_t i = 0; i < c->n * ld; i++) {
		double x = (double)f.host[0][i], want = i % ld < w ? 30 * tanh(x / 30) : x;
		if (!(fabs((double)f.got[i] - want) <= 1e-5))
			fault(&f, "y", i, (double)f.got[i], want);
	}
	t->faults = f.faults;
	t->rng = f.rng;
}

/* ---- rope ---- */

static void test_rope(struct test *t, uint32_t n, uint32_t heads, uint32_t head_dim, uint32_t dim,
                      uint32_t gap, bool norm)
{
	const size_t ld = (size_t)heads * head_dim + gap, half = dim / 2;
	const float eps = 1e-6f;
	struct mx_rope rope = {.dim = dim, .scale = rng_below(&t->rng, 2) ? 1.0f : 1.25f};
	snprintf(t->name, sizeof t->name, "rope %ux%ux%u dim %u gap %u norm %d", n, heads, head_dim,
	         dim, gap, norm);
	put_random(t, 0, n * ld, 1);
	/* frequencies, positions and norm share a matrix */
	float *f = t->host[1];
	for (size_t i = 0; i < half; i++)
		f[i] = (float)pow(500000, -(double)i / (double)half);
	for (size_t i = 0; i < head_dim; i++)
		f[512 + i] = rng_normal(&t->rng);
	for (size_t i = 0; i < n; i++) {
		uint32_t pos = rng_below(&t->rng, i % 2 ? 300000 : 3000);
		memcpy(&f[1024 + i], &pos, 4);
	}
	put_f32(t, 1, 1024 + n);
	const float *base = (const float *)(void *)t->dev[1];
	rope.inv_freq = base;
	memcpy(t->host[2], t->host[0], n * ld * sizeof(float));
	for (size_t i = 0; i < n * ld; i++) {
		t->want[i] = (double)t->host[0][i];
		t->size[i] = 0;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t pos;
		memcpy(&pos, &f[1024 + i], 4);
		for (size_t h = 0; h < heads; h++) {
			double *x = t->want + i * ld + h * head_dim, *size = t->size + i * ld + h * head_dim;
			double sum = 0;
			for (size_t k = 0; k < head_dim; k++)
				sum += x[k] * x[k];
			for (size_t k = 0; k < head_dim && norm; k++)
				x[k] *= (double)f[512 + k] / sqrt(sum / head_dim + (double)eps);
			for (size_t k = 0; k < head_dim && norm; k++)
				size[k] = fabs(x[k]);
			for (size_t k = 0; k < half; k++) {
				double angle = (double)((float)pos * f[k]), a = x[k], b = x[half + k];
				double c = cos(angle) * (double)rope.scale, s = sin(angle) * (double)rope.scale;
				x[k] = a * c - b * s;
				x[half + k] = b * c + a * s;
				size[k] = size[half + k] = fabs(a) + fabs(b);
			}
		}
	}
	must(t->d->ops->rope(t->d, t->dev[0], ld, n, heads, head_dim, &rope,
	                     (const uint32_t *)(const void *)(base + 1024), norm ? base + 512 : NULL,
	                     eps),
	     "rope");
	get(t, 0, n * ld);
	compare(t, "x", n * ld);
	/* the last row alone */
	memcpy(t->host[0], t->host[2] + (n - 1) * ld, ld * sizeof(float));
	put(t, 0, ld);
	must(t->d->ops->rope(t->d, t->dev[0], ld, 1, heads, head_dim, &rope,
	                     (const uint32_t *)(const void *)(base + 1024 + n - 1),
	                     norm ? base + 512 : NULL, eps),
	     "rope");
	float *all = malloc(n * ld * sizeof *all);
	memcpy(all, t->got, n * ld * sizeof *all);
	get(t, 0, ld);
	if (memcmp(all + (n - 1) * ld, t->got, ld * sizeof *all))
		fault(t, "a row alone", n - 1, (double)t->got[0], (double)all[(n - 1) * ld]);
	free(all);
}

static void test_ropes(struct test *t)
{
	static const uint32_t shapes[][4] = {/* heads, head_dim, dim, gap */
	                                     {32, 128, 128, 0}, {8, 128, 128, 2048}, {3, 64, 64, 0},
	                                     {9, 96, 32, 8},    {2, 80, 80, 1},      {5, 256, 256, 0},
	                                     {1, 6, 2, 3},      {17, 20, 18, 0},     {1, 512, 512, 0}};
	static const uint32_t numbers[] = {1, 3, 65};
	for (size_t i = 0; i < COUNT(shapes); i++)
		for (size_t j = 0; j < COUNT(numbers); j++)
			for (int norm = 0; norm < 2; norm++)
				test_rope(t, numbers[j], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3],
				          norm);
}

/* ---- embed, gather ---- */

static void test_tables(struct test *t, const struct rows_case *c)
{
	const size_t n = c->n, w = c->width, rows = 37 < MAX_ELEMS / w ? 37 : MAX_ELEMS / w;
	snprintf(t->name, sizeof t->name, "embed %zux%zu", n, w);
	if (n * w > MAX_ELEMS)
		return;
	uint32_t *ids = (uint32_t *)(void *)t->host[2];
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct test as = *t;
		as.bf16 = bf16;
		put_random(&as, 0, rows * w, 1);
		for (size_t i = 0; i < n; i++)
			ids[i] = rng_below(&t->rng, (uint32_t)rows);
		ids[n / 2] = n > 1 ? (uint32_t)-1 : ids[n / 2]; /* not in the table: NaN */
		put_f32(t, 2, n);
		for (size_t i = 0; i < n * w; i++) {
			uint32_t id = ids[i / w];
			t->want[i] = id < rows ? (double)t->host[0][id * w + i % w] : (double)NAN;
			t->size[i] = 0;
		}
		const struct mx_weight table = {bf16 ? MX_BF16 : MX_F32, (uint32_t)rows, (uint32_t)w,
		                                t->dev[0], NULL};
		poison(t, 3, n * w);
		must(t->d->ops->embed(t->d, &table, (const int32_t *)(void *)t->dev[2], n, t->dev[3]),
		     "embed");
		get(t, 3, n * w);
		for (size_t i = 0; i < n * w; i++) {
			if (!isnan(t->want[i]) != !isnan(t->got[i]))
				fault(t, "NaN", i, (double)t->got[i], t->want[i]);
			if (isnan(t->want[i]))
				t->want[i] = t->got[i] = 0;
		}
		compare(t, "y", n * w);
	}
	snprintf(t->name, sizeof t->name, "gather %zux%zu", n, w);
	put_random(t, 0, rows * w, 1);
	for (size_t i = 0; i < n; i++)
		ids[i] = rng_below(&t->rng, (uint32_t)rows);
	put_f32(t, 2, n);
	poison(t, 3, n * w);
	must(t->d->ops->gather(t->d, t->dev[0], (const uint32_t *)(void *)t->dev[2], n, w, t->dev[3]),
	     "gather");
	get(t, 3, n * w);
	for (size_t i = 0; i < n * w; i++)
		if (memcmp(&t->got[i], &t->host[0][ids[i / w] * w + i % w], 4))
			fault(t, "y", i, (double)t->got[i], (double)t->host[0][ids[i / w] * w + i % w]);
}

/* ---- rows from and to anywhere ---- */

/* Rows of some bytes go from x to y in another order; some are zeros, some go nowhere. */
static void test_moves_of(struct test *t, size_t n, size_t bytes)
{
	struct mx_row_move *moves = (struct mx_row_move *)(void *)t->host[2];
	unsigned char *want = (unsigned char *)t->want;
	snprintf(t->name, sizeof t->name, "move_rows %zu of %zu bytes", n, bytes);
	for (size_t i = 0; i < n * bytes / 4 + 1; i++)
		t->host[0][i] = rng_normal(&t->rng);
	put_f32(t, 0, n * bytes / 4 + 1);
	memset(t->pinned, 0x5a, n * bytes + GUARD);
	push(t, t->dev[3], n * bytes + GUARD);
	memset(want, 0x5a, n * bytes + GUARD);
	for (size_t i = 0; i < n; i++) {
		const size_t from = rng_below(&t->rng, (uint32_t)n) * bytes, to = (n - 1 - i) * bytes;
		const uint32_t kind = rng_below(&t->rng, 5);
		moves[i].from = kind ? t->dev[0] + from : NULL;
		moves[i].to = kind == 1 ? NULL : t->dev[3] + to;
		if (kind == 0)
			memset(want + to, 0, bytes);
		else if (kind > 1)
			memcpy(want + to, (const unsigned char *)t->host[0] + from, bytes);
	}
	put_f32(t, 2, n * sizeof *moves / sizeof(float));
	must(t->d->ops->move_rows(t->d, (const struct mx_row_move *)(void *)t->dev[2], n, bytes),
	     "move_rows");
	pull(t, t->dev[3], n * bytes + GUARD);
	for (size_t i = 0; i < n * bytes + GUARD; i++)
		if (t->pinned[i] != want[i])
			fault(t, "y", i, t->pinned[i], want[i]);
}

static void test_moves(struct test *t, const struct rows_case *c)
{
	const size_t n = c->n, bytes = c->width * element(t);
	if (n * bytes > MAX_ELEMS * sizeof(float) || n > MAX_ELEMS / 4)
		return;
	test_moves_of(t, n, bytes);
	if (bytes > 1)
		test_moves_of(t, n, bytes - 1);
}

/* ---- scaling ---- */

static void test_scaling(struct test *t, const struct rows_case *c)
{
	const size_t n = (size_t)c->n * c->width;
	const float scale = rng_normal(&t->rng);
	for (int add = 0; add < 2; add++) {
		snprintf(t->name, sizeof t->name, "%s %zu", add ? "add_scaled" : "scale", n);
		put_random(t, 0, n, 1);
		put_random(t, 1, n, 1);
		for (size_t i = 0; i < n; i++) {
			double y = (double)t->host[0][i], a = (double)t->host[1][i] * (double)scale;
			t->want[i] = add ? y + a : y * (double)scale;
			t->size[i] = add ? fabs(y) + fabs(a) : fabs(t->want[i]);
		}
		must(add ? t->d->ops->add_scaled(t->d, t->dev[0], t->dev[1], n, scale)
		         : t->d->ops->scale(t->d, t->dev[0], n, scale),
		     "scale");
		get(t, 0, n);
		compare(t, "y", n);
	}
	/* logits are f32 whatever the activations are */
	struct test f = *t;
	f.bf16 = false;
	for (size_t gap = 0; gap < 5; gap++) {
		const size_t w = c->width, ld = w + gap;
		if (c->n * ld > MAX_ELEMS)
			continue;
		snprintf(f.name, sizeof f.name, "scale_logits %ux%zu ld %zu", c->n, w, ld);
		put_random(&f, 0, c->n * ld, 1);
		must(f.d->ops->scale_logits(f.d, (float *)(void *)f.dev[0], ld, c->n, (uint32_t)w, scale),
		     "scale_logits");
		get(&f, 0, c->n * ld);
		for (size_t i = 0; i < c->n * ld; i++) {
			float want = f.host[0][i] * (i % ld < w ? scale : 1);
			if (memcmp(&f.got[i], &want, 4))
				fault(&f, "y", i, (double)f.got[i], (double)want);
		}
	}
	t->faults = f.faults;
	t->rng = f.rng;
}

/* ---- all ---- */

static int run(bool bf16, uint64_t seed)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = bf16 ? MX_BF16 : MX_F32, .max_samples = 4, .vocab = 1000}};
	struct test t = {.bf16 = bf16, .rng = {seed}};
	struct mx_err err = {0};
	mx_status st = mx_device_open("cuda:0", &options, &t.d, &err);
	if (st == MX_E_DEVICE || st == MX_E_NOTFOUND) {
		printf("%s\n", err.text);
		return -1;
	}
	must(st, err.text);
	const size_t bytes = MAX_ELEMS * 4 + GUARD;
	void *p;
	must(t.d->ops->host_alloc(t.d, bytes, &p), "memory");
	t.pinned = p;
	for (int m = 0; m < MATRICES; m++) {
		must(t.d->ops->alloc(t.d, bytes, &p), "memory");
		t.dev[m] = p;
		t.host[m] = malloc(MAX_ELEMS * sizeof(float));
	}
	t.got = malloc(MAX_ELEMS * sizeof *t.got);
	t.want = malloc(MAX_ELEMS * sizeof *t.want);
	t.size = malloc(MAX_ELEMS * sizeof *t.size);
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct rows_case *c = &cases[i];
		if (!(c->uses & TEST))
			continue;
		test_norm(&t, c, false);
		test_norm(&t, c, true);
		test_silu(&t, c);
		test_layernorm(&t, c, false);
		test_layernorm(&t, c, true);
		for (int act = MX_ACT_SILU; act <= MX_ACT_RELU2; act++) {
			test_act(&t, c, (enum mx_act)act, true);
			test_act(&t, c, (enum mx_act)act, false);
		}
		test_softcap(&t, c);
		test_tables(&t, c);
		test_moves(&t, c);
		test_scaling(&t, c);
	}
	test_ropes(&t);
	for (int m = 0; m < MATRICES; m++) {
		t.d->ops->release(t.d, t.dev[m]);
		free(t.host[m]);
	}
	free(t.got);
	free(t.want);
	free(t.size);
	t.d->ops->host_release(t.d, t.pinned);
	t.d->ops->destroy(t.d);
	return t.faults;
}

int main(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	int bf16 = run(true, seed * 2 + 1);
	if (bf16 < 0)
		return 77;
	int f32 = run(false, seed * 2 + 1);
	printf("rows: %d faults in bf16, %d in f32\n", bf16, f32);
	return bf16 || f32;
}
