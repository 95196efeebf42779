/* SPDX-License-Identifier: Apache-2.0 */
/* Time mixing's functions of rows, divided among the threads. All that a row needs between products
 * is done while it is in the cache. */
#include <string.h>

#include "mixers/recurrence/recurrence_kernels.h"
#include "mixers/rwkv/rwkv.h"

#define TASK_ELEMENTS 8192 /* less work is not worth waking a thread */
#define LANES         16

struct rows_run {
	const struct mx_mixer *m;
	const struct rwkv_buffers *b;
	size_t n_rows, rows, width; /* rows: of a task */
	const float *x, *delta, *mu;
	float *y;
};

static void run_rows(struct mx_device *d, struct rows_run *run, size_t width, mx_parallel_f *fn)
{
	run->rows = width < TASK_ELEMENTS ? TASK_ELEMENTS / width : 1;
	size_t tasks = (run->n_rows + run->rows - 1) / run->rows;
	if (tasks == 1)
		fn(run, 0, 0);
	else
		d->ops->parallel(d, tasks, fn, run);
}

static size_t end_row(const struct rows_run *run, size_t task)
{
	size_t end = (task + 1) * run->rows;
	return end < run->n_rows ? end : run->n_rows;
}

static void mix_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	(void)worker;
	for (size_t row = task * run->rows; row < end_row(run, task); row++) {
		const float *x = run->x + row * run->width, *delta = run->delta + row * run->width;
		float *y = run->y + row * run->width;
		for (size_t i = 0; i < run->width; i++)
			y[i] = x[i] + delta[i] * run->mu[i];
	}
}

void rwkv_mix(struct mx_device *d, size_t n_rows, size_t width, const float *x, const float *delta,
              const float *mu, float *y)
{
	struct rows_run run = {
		.n_rows = n_rows, .width = width, .x = x, .delta = delta, .mu = mu, .y = y};
	run_rows(d, &run, width, mix_task);
}

/* Returns the sum of a b c over n elements; element i is summed in lane i % LANES. */
static float sum3(const float *a, const float *b, const float *c, uint32_t n)
{
	float lanes[LANES] = {0}, sum = 0;
	uint32_t i = 0;
	for (; i + LANES <= n; i += LANES)
		for (uint32_t j = 0; j < LANES; j++)
			lanes[j] += a[i + j] * b[i + j] * c[i + j];
	for (uint32_t j = 0; i < n; i++, j++)
		lanes[j] += a[i] * b[i] * c[i];
	for (uint32_t j = 0; j < LANES; j++)
		sum += lanes[j];
	return sum;
}

/* w: exp(-e^(-1/2) sigmoid(w)) */
static void decay_of(const struct mx_recur_kernels *k, size_t n, float *w)
{
	k->map(MX_RECUR_SIGMOID, n, w);
	for (size_t i = 0; i < n; i++)
		w[i] *= -0.6065306597126334f;
	k->map(MX_RECUR_EXP, n, w);
}

static void mix_values(const struct mx_mixer *m, size_t row, const struct rwkv_buffers *b)
{
	const size_t n = m->params.inner;
	float *v = b->v + row * n, *first = m->v_first + row * n, *share = b->v_mix + row * n;
	if (m->is_first) {
		memcpy(first, v, n * sizeof *v);
	} else if (m->params.value_residual) {
		m->kernels->map(MX_RECUR_SIGMOID, n, share);
		for (size_t i = 0; i < n; i++)
			v[i] += (first[i] - v[i]) * share[i];
	}
}

static void inputs_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	const struct mx_mixer *m = run->m;
	const struct rwkv_weights *w = &m->w;
	const uint32_t heads = m->params.heads, dim = m->params.dim;
	const size_t n = m->params.inner;
	(void)worker;
	for (size_t row = task * run->rows; row < end_row(run, task); row++) {
		const float *r = run->b->r + row * n;
		float *k = run->b->k + row * n, *a = run->b->a + row * n, *z = run->b->delta + row * n;
		decay_of(m->kernels, n, run->b->w + row * n);
		mix_values(m, row, run->b);
		m->kernels->map(MX_RECUR_SIGMOID, n, a);
		for (size_t i = 0; i < n; i++) {
			z[i] = k[i] * w->k_k[i];
			k[i] += k[i] * (a[i] - 1) * w->k_a[i];
		}
		m->kernels->l2norm(heads, dim, m->params.l2_eps, 1, z);
		for (size_t i = 0; i < n; i++)
			a[i] *= z[i];
		for (uint32_t h = 0; h < heads; h++)
			run->b->bonus[row * heads + h] = sum3(r + h * dim, k + h * dim, w->r_k + h * dim, dim);
	}
}

void rwkv_inputs(const struct mx_mixer *m, size_t n_rows, const struct rwkv_buffers *b)
{
	struct rows_run run = {.m = m, .b = b, .n_rows = n_rows};
	run_rows(m->device, &run, m->params.inner, inputs_task);
}

static void outputs_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	const struct mx_mixer *m = run->m;
	const uint32_t heads = m->params.heads, dim = m->params.dim;
	const size_t n = m->params.inner;
	const struct mx_recur_norm norm = {.groups = heads,
	                                   .dim = dim,
	                                   .weight = m->w.norm,
	                                   .bias = m->w.norm_bias,
	                                   .weight_per_group = true,
	                                   .center = true,
	                                   .eps = m->params.norm_eps};
	(void)worker;
	for (size_t row = task * run->rows; row < end_row(run, task); row++) {
		const float *v = run->b->v + row * n, *g = run->b->g + row * n;
		float *y = run->b->mix + row * n;
		m->kernels->norm(&norm, NULL, y);
		for (uint32_t h = 0; h < heads; h++) {
			const float bonus = run->b->bonus[row * heads + h];
			for (size_t i = (size_t)h * dim; i < (size_t)(h + 1) * dim; i++)
				y[i] = (y[i] + bonus * v[i]) * g[i];
		}
	}
}

void rwkv_outputs(const struct mx_mixer *m, size_t n_rows, const struct rwkv_buffers *b)
{
	struct rows_run run = {.m = m, .b = b, .n_rows = n_rows};
	run_rows(m->device, &run, m->params.inner, outputs_task);
}
