/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests parts of the hyena mixer that test_mixer does not reach: the implicit filter against its
 * formula in double precision, lag by lag, at greater lengths, with HyenaDNA's z, weights as large
 * as trained ones and sines of large arguments; the tensors of networks of any depth; limits that
 * are not parameters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "mixers/hyena/hyena_params.h"
#include "mixers/hyena/implicit.h"
#include "mixers/hyena/longconv.h"
#include "tests/rng.h"

#define PI 3.14159265358979323846

struct made {
	struct implicit_filter f;
	float *data;
};

static float *draw(float **at, struct rng *g, size_t n, float mean, float spread)
{
	float *p = *at;
	for (size_t i = 0; i < n; i++)
		p[i] = mean + spread * rng_normal(g);
	*at += n;
	return p;
}

/* t / (len - 1), then cos and -sin of (emb_dim - 1) / 2 frequencies. */
static void positions(const struct implicit_filter *f, float *z)
{
	uint32_t bands = (f->emb_dim - 1) / 2;
	for (uint32_t t = 0; t < f->len; t++, z += f->emb_dim) {
		z[0] = (float)t / (float)(f->len - 1);
		for (uint32_t b = 0; b < bands; b++) {
			double band = bands > 1 ? 1e-4 + b * (bands - 1 - 1e-4) / (bands - 1) : 1e-4;
			z[1 + b] = (float)cos(band * 2 * PI * t / f->len);
			z[1 + bands + b] = (float)-sin(band * 2 * PI * t / f->len);
		}
	}
}

static struct made make(uint32_t len, uint32_t emb, uint32_t order, uint32_t inner, uint32_t width)
{
	struct rng g = {len + emb + order + inner + width};
	const size_t n = (size_t)len * (emb + 1) + order + (size_t)order * (emb + 1) +
	                 (size_t)inner * order * (order + 1) + (size_t)width * (order + 1);
	struct made m = {.f = {.len = len,
	                       .emb_dim = emb,
	                       .order = order,
	                       .inner = inner,
	                       .width = width,
	                       .shift = 0.05f}};
	assert_non_null(m.data = calloc(n, sizeof(float)));
	float *at = m.data;
	m.f.z = at;
	positions(&m.f, at);
	at += (size_t)len * emb;
	m.f.t = draw(&at, &g, len, 0.5f, 0.1f);
	m.f.freq = draw(&at, &g, order, 14, 2);
	for (uint32_t l = 0; l <= inner; l++) {
		uint32_t in = l ? order : emb;
		m.f.weight[l] = draw(&at, &g, (size_t)order * in, 0, 2 / sqrtf((float)in));
		m.f.bias[l] = draw(&at, &g, order, 0, 1);
	}
	m.f.weight[inner + 1] = draw(&at, &g, (size_t)width * order, 0, 1 / sqrtf((float)order));
	m.f.deltas = draw(&at, &g, width, 0, 8);
	return m;
}

/* y[rows] = W x + b */
static void affine(uint32_t rows, uint32_t cols, const float *w, const float *b, const double *x,
                   double *y)
{
	for (uint32_t r = 0; r < rows; r++) {
		y[r] = b ? b[r] : 0;
		for (uint32_t c = 0; c < cols; c++)
			y[r] += (double)w[(size_t)r * cols + c] * x[c];
	}
}

/* One row; the largest argument of a sine goes to *top. */
static void reference(const struct implicit_filter *f, uint32_t row, double *h, double *top)
{
	double a[64], b[64], t = f->t ? (double)f->t[row] : (double)row / (f->len - 1);
	for (uint32_t i = 0; i < f->emb_dim; i++)
		a[i] = f->z[(size_t)row * f->emb_dim + i];
	for (uint32_t l = 0; l <= f->inner; l++) {
		affine(f->order, l ? f->order : f->emb_dim, f->weight[l], f->bias[l], a, b);
		for (uint32_t i = 0; i < f->order; i++) {
			*top = fmax(*top, fabs(f->freq[i] * b[i]));
			a[i] = sin(f->freq[i] * b[i]);
		}
	}
	affine(f->width, f->order, f->weight[f->inner + 1], NULL, a, h);
	for (uint32_t c = 0; f->deltas && c < f->width; c++)
		h[c] *= exp(-t * fabs((double)f->deltas[c])) + f->shift;
}

static struct mx_device *device_open(unsigned threads)
{
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	if (mx_cpu_create(threads, MX_ISA_PORTABLE, 1, 1, &d, &err) != MX_OK)
		fail_msg("%s", err.text);
	return d;
}

/* The first n rows near to the reference, relative to the largest lag. */
static void check(struct implicit_filter *f, uint32_t n)
{
	struct mx_device *d = device_open(2);
	float *h = calloc((size_t)n * f->width, sizeof(*h));
	double *want = calloc(f->width, sizeof(*want)), top = 0, worst = 0, argument = 0;
	assert_true(h && want);
	assert_int_equal(implicit_filter(f, d, n, h), MX_OK);
	for (uint32_t row = 0; row < n; row++) {
		reference(f, row, want, &argument);
		for (uint32_t c = 0; c < f->width; c++) {
			top = fmax(top, fabs(want[c]));
			worst = fmax(worst, fabs(want[c] - h[(size_t)row * f->width + c]));
		}
	}
	print_message("%u lags of %u channels: error %.1e of %.1f, arguments to %.0f\n", n, f->width,
	              worst, top, argument);
	assert_true(argument > 50);
	assert_true(worst <= 1e-6 * top); /* a sum of 64 products in f32 */
	d->ops->destroy(d);
	free(h);
	free(want);
}

static void test_formula(void **state)
{
	(void)state;
	struct made m = make(2048, 33, 64, 2, 48);
	check(&m.f, 2048);
	check(&m.f, 100); /* a part of the filter, and not whole tasks */
	m.f.t = NULL;
	check(&m.f, 2048);
	free(m.data);
	m = make(1000, 5, 64, 0, 7);
	m.f.deltas = NULL;
	check(&m.f, 1000);
	free(m.data);
	m = make(4096, 3, 17, 8, 20);
	check(&m.f, 4096);
	free(m.data);
}

/* A row depends on its position alone: not on threads, nor on how many rows there are. */
static void test_rows(void **state)
{
	(void)state;
	struct made m = make(500, 5, 64, 2, 30);
	struct mx_device *one = device_open(1), *three = device_open(3);
	float *a = calloc(500 * 30, sizeof(*a)), *b = calloc(500 * 30, sizeof(*b));
	assert_true(a && b);
	assert_int_equal(implicit_filter(&m.f, one, 500, a), MX_OK);
	assert_int_equal(implicit_filter(&m.f, three, 333, b), MX_OK);
	assert_memory_equal(a, b, 333 * 30 * sizeof(*a));
	one->ops->destroy(one);
	three->ops->destroy(three);
	free(a);
	free(b);
	free(m.data);
}

/* ---- parameters ---- */

static struct mx_param whole(const char *name, int64_t i)
{
	return (struct mx_param){.name = name, .type = MX_PARAM_INT, .i = i, .f = (double)i};
}

/* A layer of a filter of 100 lags with so many inner products. */
static struct mx_layer_desc layer_of(struct mx_param params[4], int64_t inner)
{
	params[0] = whole("filter_len", 100);
	params[1] = whole("emb_dim", 5);
	params[2] = whole("filter_order", 16);
	params[3] = whole("inner_mlps", inner);
	return (struct mx_layer_desc){.width = 48, .max_context = 100, .params = {params, 4}};
}

static const struct mx_weight_spec *named(const struct mx_weight_spec *specs, size_t n,
                                          const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(specs[i].name, name))
			return &specs[i];
	fail_msg("no tensor %s", name);
	return NULL;
}

static void test_tensors(void **state)
{
	(void)state;
	for (uint32_t inner = 0; inner <= IMPLICIT_MAX_INNER; inner++) {
		struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS];
		struct mx_param params[4];
		struct mx_layer_desc layer = layer_of(params, inner);
		size_t n;
		assert_int_equal(hyena_weights(&layer, specs, &n), MX_OK);
		assert_int_equal(n, 11 + 2 * (inner + 1) + 1);
		for (uint32_t l = 0; l < inner + 2; l++) {
			char name[64];
			snprintf(name, sizeof(name), "filter_fn.implicit_filter.%u.weight", 2 * l);
			const struct mx_weight_spec *s = named(specs, n, name);
			assert_int_equal(s->ndim, 2);
			assert_int_equal(s->shape[0], l == inner + 1 ? 48 : 16);
			assert_int_equal(s->shape[1], l ? 16 : 5);
			assert_false(s->optional);
			if (l == inner + 1)
				break;
			snprintf(name, sizeof(name), "filter_fn.implicit_filter.%u.bias", 2 * l);
			assert_int_equal(named(specs, n, name)->shape[0], 16);
		}
	}
}

static void test_limits(void **state)
{
	(void)state;
	struct mx_param params[4];
	struct mx_layer_desc layer = layer_of(params, 2);
	struct hyena_params p;
	struct mx_err err = {0};
	layer.max_draft = LC_MAX_DRAFT;
	assert_int_equal(hyena_read_params(&layer, &p, &err), MX_OK);
	layer.max_draft++;
	assert_int_equal(hyena_read_params(&layer, &p, &err), MX_E_RANGE);
	assert_string_equal(err.text, "hyena: drafts of 17 tokens, but it takes at most 16");
	layer.max_draft = 0;
	layer.max_context++;
	assert_int_equal(hyena_read_params(&layer, &p, &err), MX_E_RANGE);
	assert_string_equal(err.text, "hyena: a context of 101 tokens, but a filter of 100");
	layer = layer_of(params, 2);
	layer.params.n = 2;
	assert_int_equal(hyena_read_params(&layer, &p, &err), MX_E_INVALID);
	assert_string_equal(err.text, "hyena: filter_order must be given");
}

/* A bias in the file that the config denies would be left out of the layer silently. */
static void test_denied_bias(void **state)
{
	(void)state;
	static const char *const filters[] = {"implicit", "modal"};
	static const char *const said[][2] = {
		{"hyena: layer 3: in_proj.bias is there, but bias is false",
	     "hyena: layer 3: out_proj.bias is there, but bias is false"},
		{"hyena: layer 3: projections.bias is there, but bias is false",
	     "hyena: layer 3: out_filter_dense.bias is there, but bias is false"}};
	for (size_t f = 0; f < 2; f++) {
		struct mx_param params[6];
		struct mx_layer_desc layer = layer_of(params, 2);
		if (f)
			params[0] = whole("state_size", 2);
		layer.params.n = f ? 1 : 4;
		params[layer.params.n++] =
			(struct mx_param){.name = "filter", .type = MX_PARAM_STRING, .s = filters[f]};
		params[layer.params.n++] = (struct mx_param){.name = "bias", .type = MX_PARAM_BOOL};
		struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS];
		struct hyena_params p;
		struct mx_err err = {0};
		size_t n, biases = 0;
		assert_int_equal(hyena_read_params(&layer, &p, &err), MX_OK);
		assert_int_equal(hyena_weights(&layer, specs, &n), MX_OK);
		const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
		for (size_t i = 0; i < n; i++)
			weights[i] = specs[i].optional ? NULL : "there";
		assert_int_equal(hyena_check_weights(&p, 3, weights, &err), MX_OK);
		for (size_t i = 0; i < n; i++) {
			if (!specs[i].optional || !strcmp(specs[i].name, "filter_fn.pos_emb.t"))
				continue;
			weights[i] = "there";
			assert_int_equal(hyena_check_weights(&p, 3, weights, &err), MX_E_INVALID);
			assert_string_equal(err.text, said[f][biases++]);
			weights[i] = NULL;
		}
		assert_int_equal(biases, 2);
		p.bias = true;
		for (size_t i = 0; i < n; i++)
			weights[i] = "there";
		assert_int_equal(hyena_check_weights(&p, 3, weights, &err), MX_OK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formula),     cmocka_unit_test(test_rows),
		cmocka_unit_test(test_tensors),     cmocka_unit_test(test_limits),
		cmocka_unit_test(test_denied_bias),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
