/* SPDX-License-Identifier: Apache-2.0 */
/* The implicit filter. Weights are transposed first, so that inner loops run over outputs. A task
 * is TASK_ROWS positions. */
#include "mixers/hyena/implicit.h"

#include <math.h>
#include <stdlib.h>

#define TASK_ROWS 32

struct implicit_run {
	const struct implicit_filter *f;
	double *hidden[IMPLICIT_LINEARS - 1]; /* [in, order] */
	float *last;                          /* [order, width] */
	uint32_t n;
	float *h;
};

static void free_run(struct implicit_run *r)
{
	for (uint32_t i = 0; i <= r->f->inner; i++)
		free(r->hidden[i]);
	free(r->last);
}

static mx_status transpose(struct implicit_run *r)
{
	const struct implicit_filter *f = r->f;
	const float *last = f->weight[f->inner + 1];
	for (uint32_t l = 0; l <= f->inner; l++) {
		uint32_t in = l ? f->order : f->emb_dim;
		r->hidden[l] = calloc((size_t)in * f->order, sizeof(double));
		if (!r->hidden[l])
			return MX_E_NOMEM;
		for (uint32_t o = 0; o < f->order; o++)
			for (uint32_t i = 0; i < in; i++)
				r->hidden[l][(size_t)i * f->order + o] = f->weight[l][(size_t)o * in + i];
	}
	r->last = calloc((size_t)f->order * f->width, sizeof(float));
	if (!r->last)
		return MX_E_NOMEM;
	for (uint32_t o = 0; o < f->width; o++)
		for (uint32_t i = 0; i < f->order; i++)
			r->last[(size_t)i * f->width + o] = last[(size_t)o * f->order + i];
	return MX_OK;
}

/* y[order] = sin(freq * (W x + b)) */
static void hidden_layer(const struct implicit_filter *f, uint32_t in, const double *restrict w,
                         const float *bias, const double *restrict x, double *restrict y)
{
	for (uint32_t o = 0; o < f->order; o++)
		y[o] = bias[o];
	for (uint32_t i = 0; i < in; i++)
		for (uint32_t o = 0; o < f->order; o++)
			y[o] += x[i] * w[(size_t)i * f->order + o];
	for (uint32_t o = 0; o < f->order; o++)
		y[o] = sin(f->freq[o] * y[o]);
}

/* h[width] = W x */
static void last_layer(const struct implicit_filter *f, const float *restrict w, const double *x,
                       float *restrict h)
{
	for (uint32_t c = 0; c < f->width; c++)
		h[c] = 0;
	for (uint32_t i = 0; i < f->order; i++) {
		const float xi = (float)x[i];
		for (uint32_t c = 0; c < f->width; c++)
			h[c] += xi * w[(size_t)i * f->width + c];
	}
}

static void modulate(const struct implicit_filter *f, uint32_t row, float *h)
{
	float t = f->t ? f->t[row] : f->len > 1 ? (float)((double)row / (f->len - 1)) : 0;
	for (uint32_t c = 0; c < f->width; c++)
		h[c] *= expf(-t * fabsf(f->deltas[c])) + f->shift;
}

static void rows_task(void *arg, size_t task, unsigned worker)
{
	const struct implicit_run *r = arg;
	const struct implicit_filter *f = r->f;
	double a[IMPLICIT_MAX_ORDER], b[IMPLICIT_MAX_ORDER];
	const uint32_t begin = (uint32_t)task * TASK_ROWS;
	(void)worker;
	for (uint32_t row = begin; row < r->n && row < begin + TASK_ROWS; row++) {
		double *x = a, *y = b;
		float *h = r->h + (size_t)row * f->width;
		for (uint32_t i = 0; i < f->emb_dim; i++)
			x[i] = f->z[(size_t)row * f->emb_dim + i];
		for (uint32_t l = 0; l <= f->inner; l++) {
			hidden_layer(f, l ? f->order : f->emb_dim, r->hidden[l], f->bias[l], x, y);
			double *done = y;
			y = x;
			x = done;
		}
		last_layer(f, r->last, x, h);
		if (f->deltas)
			modulate(f, row, h);
	}
}

mx_status implicit_filter(const struct implicit_filter *f, struct mx_device *d, uint32_t n,
                          float *h)
{
	struct implicit_run r = {.f = f, .n = n, .h = h};
	mx_status status = transpose(&r);
	if (status == MX_OK)
		d->ops->parallel(d, (n + TASK_ROWS - 1) / TASK_ROWS, rows_task, &r);
	free_run(&r);
	return status;
}
