/* SPDX-License-Identifier: Apache-2.0 */
/* Norms and elementwise functions, rows divided among the threads. */
#include <math.h>

#include "mixers/recurrence/recurrence_kernels.h"

#define TASK_ELEMENTS 4096 /* some microseconds of work, more than a task costs */

struct rows_run {
	const struct mx_recur_kernels *kernels;
	size_t n_rows, rows; /* rows of a task */
	float *x;
	size_t ldx;
	const float *gate;
	size_t ld_gate;
	const struct mx_recur_norm *norm;
	const struct mx_recur_norm_share *share;
	float *sums;
	uint32_t heads, dim;
	float eps, scale;
	enum mx_recur_map f;
	size_t n;
};

static void run_rows(struct mx_device *d, struct rows_run *run, size_t width, mx_parallel_f *fn)
{
	run->rows = width < TASK_ELEMENTS ? TASK_ELEMENTS / width : 1;
	d->ops->parallel(d, (run->n_rows + run->rows - 1) / run->rows, fn, run);
}

static size_t end_row(const struct rows_run *run, size_t task)
{
	size_t end = (task + 1) * run->rows;
	return end < run->n_rows ? end : run->n_rows;
}

static void norm_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	(void)worker;
	for (size_t i = task * run->rows; i < end_row(run, task); i++)
		run->kernels->norm(run->norm, run->gate ? run->gate + i * run->ld_gate : NULL,
		                   run->x + i * run->ldx);
}

void mx_recur_norm(const struct mx_recur_kernels *k, struct mx_device *d,
                   const struct mx_recur_norm *n, size_t n_rows, const float *gate, size_t ld_gate,
                   float *y, size_t ldy)
{
	struct rows_run run = {.kernels = k,
	                       .n_rows = n_rows,
	                       .x = y,
	                       .ldx = ldy,
	                       .gate = gate,
	                       .ld_gate = ld_gate,
	                       .norm = n};
	run_rows(d, &run, (size_t)n->groups * n->dim, norm_task);
}

static void norm_begin_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	const uint32_t groups = run->share->groups;
	(void)worker;
	for (size_t i = task * run->rows; i < end_row(run, task); i++) {
		for (uint32_t g = 0; g < groups; g++)
			run->sums[i * groups + g] = 0;
		run->sums[i * groups + run->share->group] = run->kernels->norm_begin(
			run->norm, run->gate ? run->gate + i * run->ld_gate : NULL, run->x + i * run->ldx);
	}
}

static void norm_end_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	const struct mx_recur_norm_share *s = run->share;
	(void)worker;
	for (size_t i = task * run->rows; i < end_row(run, task); i++) {
		const float mean = run->sums[i * s->groups + s->group] / (float)s->dim;
		run->kernels->norm_end(run->norm, run->gate ? run->gate + i * run->ld_gate : NULL,
		                       1.0f / sqrtf(mean + run->norm->eps), run->x + i * run->ldx);
	}
}

mx_status mx_recur_norm_shared(const struct mx_recur_kernels *k, struct mx_device *d,
                               const struct mx_recur_norm *n,
                               const struct mx_recur_norm_share *share, size_t n_rows,
                               const float *gate, size_t ld_gate, float *y, size_t ldy, float *sums)
{
	struct rows_run run = {.kernels = k,
	                       .n_rows = n_rows,
	                       .x = y,
	                       .ldx = ldy,
	                       .gate = gate,
	                       .ld_gate = ld_gate,
	                       .norm = n,
	                       .share = share,
	                       .sums = sums};
	run_rows(d, &run, n->dim, norm_begin_task);
	mx_status status = share->comm->ops->all_reduce(share->comm, sums, n_rows * share->groups);
	if (status == MX_OK)
		run_rows(d, &run, n->dim, norm_end_task);
	return status;
}

static void l2norm_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	(void)worker;
	for (size_t i = task * run->rows; i < end_row(run, task); i++)
		run->kernels->l2norm(run->heads, run->dim, run->eps, run->scale, run->x + i * run->ldx);
}

void mx_recur_l2norm(const struct mx_recur_kernels *k, struct mx_device *d, size_t n_rows,
                     uint32_t heads, uint32_t dim, float eps, float scale, float *x, size_t ldx)
{
	struct rows_run run = {.kernels = k,
	                       .n_rows = n_rows,
	                       .x = x,
	                       .ldx = ldx,
	                       .heads = heads,
	                       .dim = dim,
	                       .eps = eps,
	                       .scale = scale};
	run_rows(d, &run, (size_t)heads * dim, l2norm_task);
}

static void map_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *run = arg;
	(void)worker;
	for (size_t i = task * run->rows; i < end_row(run, task); i++)
		run->kernels->map(run->f, run->n, run->x + i * run->ldx);
}

void mx_recur_map(const struct mx_recur_kernels *k, struct mx_device *d, enum mx_recur_map f,
                  size_t n_rows, size_t n, float *x, size_t ldx)
{
	struct rows_run run = {.kernels = k, .n_rows = n_rows, .x = x, .ldx = ldx, .f = f, .n = n};
	run_rows(d, &run, n, map_task);
}
