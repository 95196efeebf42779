/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mixers/hyena/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define TAPS  3
#define NOISE ((size_t)1 << 16) /* floats; from where depends on layer and position */

/* Rows and columns of the products of a block, in units of the width. */
enum { IN, OUT, UP, DOWN, PRODUCTS };
static const uint32_t shapes[PRODUCTS][2] = {{3, 1}, {1, 1}, {2, 1}, {1, 2}};
#define WEIGHTS 8 /* sum of their products */

struct model {
	struct conv_shape shape;
	struct mx_device *device;
	enum mx_dtype dtype;
	unsigned char *weights;       /* [layers][WEIGHTS * width * width] */
	float *taps;                  /* [layers][TAPS][3 width] */
	float *ones, *zeros;          /* [width] of the norms */
	float *recent;                /* [layers][batch][TAPS][3 width] projections, by t % TAPS */
	float *noise;                 /* [NOISE + batch * width] */
	float *x, *u, *p, *z, *y, *f; /* [batch][width, but p 3, f 2 width] */
};

static size_t dtype_bytes(enum mx_dtype t)
{
	return t == MX_BF16 ? 2 : 4;
}

size_t model_bytes(const struct conv_shape *s, enum mx_dtype weights)
{
	return (size_t)s->layers * WEIGHTS * s->channels * s->channels * dtype_bytes(weights);
}

/* ---- a block ---- */

static void product(struct model *m, uint32_t layer, int which, uint32_t n, const float *x,
                    float *y)
{
	size_t before = 0, width = m->shape.channels;
	for (int i = 0; i < which; i++)
		before += shapes[i][0] * shapes[i][1];
	const struct mx_weight w = {
		.dtype = m->dtype,
		.rows = shapes[which][0] * m->shape.channels,
		.cols = shapes[which][1] * m->shape.channels,
		.data = m->weights + (layer * WEIGHTS + before) * width * width * dtype_bytes(m->dtype),
	};
	const struct mx_linear_out out = {.w = &w, .y = y, .ldy = w.rows};
	if (m->device->ops->linear(m->device, x, w.cols, n, &out, 1) != MX_OK)
		conv_die("linear");
}

/* p = the short filter over the last TAPS projections, p among them; z = x1 v. */
static void short_filter(struct model *m, uint32_t layer, uint32_t n, uint32_t t)
{
	size_t wide = 3 * (size_t)m->shape.channels, width = m->shape.channels;
	const float *h = m->taps + layer * TAPS * wide;
	for (uint32_t b = 0; b < n; b++) {
		float *p = m->p + b * wide, *z = m->z + b * width;
		float *recent = m->recent + ((size_t)layer * m->shape.batch + b) * TAPS * wide;
		memcpy(recent + t % TAPS * wide, p, wide * sizeof *p);
		const float *one = recent + (t + TAPS - 1) % TAPS * wide;
		const float *two = recent + (t + TAPS - 2) % TAPS * wide;
		for (size_t i = 0; i < wide; i++)
			p[i] = h[i] * p[i] + h[wide + i] * one[i] + h[2 * wide + i] * two[i];
		for (size_t i = 0; i < width; i++)
			z[i] = p[width + i] * p[2 * width + i];
	}
}

static void gate(struct model *m, uint32_t n)
{
	size_t width = m->shape.channels;
	for (uint32_t b = 0; b < n; b++)
		for (size_t i = 0; i < width; i++)
			m->y[b * width + i] *= m->p[b * 3 * width + i];
}

static void norm(struct model *m, uint32_t n, float *add)
{
	if (m->device->ops->layernorm(m->device, m->x, add, m->ones, m->zeros, 1e-5f, n,
	                              m->shape.channels, m->u) != MX_OK)
		conv_die("layernorm");
}

const float *model_noise(const struct model *m, uint32_t layer, uint32_t t)
{
	return m->noise + (t * 2654435761u + layer * 40503u) % (NOISE / LC_LANES) * LC_LANES;
}

static void block(struct model *m, struct conv *c, uint32_t layer, uint32_t n, uint32_t t,
                  uint64_t *conv_ns)
{
	norm(m, n, layer ? m->y : NULL);
	product(m, layer, IN, n, m->u, m->p);
	short_filter(m, layer, n, t);
	uint64_t begin = mx_now_ns();
	c->ops->layer(c, layer, t, m->z, m->y);
	*conv_ns += mx_now_ns() - begin;
	gate(m, n);
	product(m, layer, OUT, n, m->y, m->z);
	norm(m, n, m->z);
	product(m, layer, UP, n, m->u, m->f);
	if (m->device->ops->gelu_tanh(m->device, m->f, 2 * (size_t)n * m->shape.channels) != MX_OK)
		conv_die("gelu");
	product(m, layer, DOWN, n, m->f, m->y);
}

/* ---- steps ---- */

static struct model_time convolutions(struct model *m, struct conv *c, uint32_t n, uint32_t t,
                                      float *out)
{
	size_t floats = (size_t)n * m->shape.channels;
	uint64_t begin = mx_now_ns();
	c->ops->begin(c, t);
	for (uint32_t l = 0; l < m->shape.layers; l++)
		c->ops->layer(c, l, t, model_noise(m, l, t), out ? out + l * floats : m->y);
	c->ops->end(c, t);
	uint64_t ns = mx_now_ns() - begin;
	return (struct model_time){ns, ns};
}

struct model_time model_step(struct model *m, struct conv *c, uint32_t n, uint32_t t, bool whole,
                             float *out)
{
	if (!whole)
		return convolutions(m, c, n, t, out);
	uint64_t conv_ns = 0, begin = mx_now_ns();
	memcpy(m->x, model_noise(m, 0, t), (size_t)n * m->shape.channels * sizeof(float));
	c->ops->begin(c, t);
	conv_ns += mx_now_ns() - begin;
	for (uint32_t l = 0; l < m->shape.layers; l++)
		block(m, c, l, n, t, &conv_ns);
	norm(m, n, m->y);
	uint64_t settle = mx_now_ns();
	c->ops->end(c, t);
	uint64_t end = mx_now_ns();
	return (struct model_time){conv_ns + (end - settle), end - begin};
}

/* ---- memory ---- */

static float *row_floats(const struct conv_shape *s, uint32_t factor)
{
	return conv_floats((size_t)s->batch * s->channels * factor);
}

struct fill_call {
	struct model *m;
	size_t part;
};

static void fill_task(void *arg, size_t task, unsigned worker)
{
	struct fill_call *f = arg;
	struct model *m = f->m;
	size_t n = f->part, width = m->shape.channels;
	float *row = mx_calloc(n, sizeof *row), scale = 1 / sqrtf((float)width);
	(void)worker;
	if (!row)
		conv_die("out of memory");
	conv_noise(m->shape.seed + 1 + task, n, row);
	for (size_t i = 0; i < n; i++) {
		float v = row[i] * scale;
		if (m->dtype == MX_F32) {
			((float *)(void *)m->weights)[task * n + i] = v;
		} else {
			uint32_t bits;
			memcpy(&bits, &v, sizeof bits);
			((uint16_t *)(void *)m->weights)[task * n + i] = (uint16_t)(bits >> 16);
		}
	}
	free(row);
}

struct model *model_open(const struct conv_shape *s, enum mx_dtype weights, struct mx_device *d)
{
	struct model *m = mx_calloc(1, sizeof *m);
	size_t wide = 3 * (size_t)s->channels;
	if (!m)
		conv_die("out of memory");
	*m = (struct model){
		.shape = *s,
		.device = d,
		.dtype = weights,
		.weights = (unsigned char *)conv_floats(model_bytes(s, weights) / sizeof(float)),
		.taps = conv_floats(s->layers * TAPS * wide),
		.ones = conv_floats(s->channels),
		.zeros = conv_floats(s->channels),
		.recent = conv_floats((size_t)s->layers * s->batch * TAPS * wide),
		.noise = conv_floats(NOISE + (size_t)s->batch * s->channels),
		.x = row_floats(s, 1),
		.u = row_floats(s, 1),
		.p = row_floats(s, 3),
		.z = row_floats(s, 1),
		.y = row_floats(s, 1),
		.f = row_floats(s, 2),
	};
	struct fill_call f = {m, WEIGHTS * (size_t)s->channels * s->channels};
	d->ops->parallel(d, s->layers, fill_task, &f);
	conv_noise(s->seed, s->layers * TAPS * wide, m->taps);
	conv_noise(s->seed, NOISE + (size_t)s->batch * s->channels, m->noise);
	for (uint32_t i = 0; i < s->channels; i++)
		m->ones[i] = 1;
	return m;
}

void model_close(struct model *m)
{
	const struct conv_shape *s = &m->shape;
	size_t rows = (size_t)s->batch * s->channels, wide = 3 * (size_t)s->channels;
	conv_free((float *)(void *)m->weights, model_bytes(s, m->dtype) / sizeof(float));
	conv_free(m->taps, s->layers * TAPS * wide);
	conv_free(m->ones, s->channels);
	conv_free(m->zeros, s->channels);
	conv_free(m->recent, (size_t)s->layers * s->batch * TAPS * wide);
	conv_free(m->noise, NOISE + rows);
	conv_free(m->x, rows);
	conv_free(m->u, rows);
	conv_free(m->p, 3 * rows);
	conv_free(m->z, rows);
	conv_free(m->y, rows);
	conv_free(m->f, 2 * rows);
	free(m);
}
