/* SPDX-License-Identifier: Apache-2.0 */
/* Norms and elementwise functions, rows divided among the threads. */
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
