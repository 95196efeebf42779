/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed set of worker threads that run the same function over numbered tasks.
 *
 * The thread that calls mx_pool_run is worker 0 and works too. Tasks are handed
 * out dynamically, so which worker runs a task is not fixed: results must not
 * depend on it. Workers spin briefly between runs (a model step is a chain of
 * short runs) and then sleep. A run waits for tasks, not for workers: one that
 * gets no CPU before all tasks are taken is not missed.
 */
#ifndef MX_BASE_POOL_H
#define MX_BASE_POOL_H

#include <stddef.h>

#include "base/status.h"

struct mx_pool;

/* task: 0 .. n_tasks-1; worker: 0 .. mx_pool_size-1, stable inside one call. */
typedef void mx_task_f(void *arg, size_t task, unsigned worker);

/* CPUs that this process may use. */
unsigned mx_pool_default_size(void);

/* n_threads counts the caller; 0 = mx_pool_default_size(). */
mx_status mx_pool_create(unsigned n_threads, struct mx_pool **out);
void mx_pool_destroy(struct mx_pool *p);
unsigned mx_pool_size(const struct mx_pool *p);

/* Runs fn for every task (fewer than 2^31) and returns when all are done. One caller at a time. */
void mx_pool_run(struct mx_pool *p, size_t n_tasks, mx_task_f *fn, void *arg);

#endif
