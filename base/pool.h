/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed set of worker threads that run the same function over numbered tasks.
 *
 * The thread that calls mx_pool_run is worker 0 and runs tasks too. Tasks are
 * assigned dynamically, so results must not depend on which worker runs a task.
 * Workers spin briefly between runs (a model step is a chain of short runs) and
 * then sleep. A run ends when all tasks are done. It does not wait for a worker
 * that got no CPU before all tasks were taken. The caller, too, spins briefly and
 * then sleeps while it waits for the last tasks.
 */
#ifndef MX_BASE_POOL_H
#define MX_BASE_POOL_H

#include <stddef.h>

#include "base/status.h"

struct mx_pool;

/* task: 0 .. n_tasks - 1; worker: 0 .. mx_pool_size - 1, the same during one call of the task. */
typedef void mx_task_f(void *arg, size_t task, unsigned worker);

/* Returns the number of CPUs that this process may use. */
unsigned mx_pool_default_size(void);

/* Starts n_threads - 1 threads: n_threads counts the caller of mx_pool_run. 0 =
 * mx_pool_default_size(). */
mx_status mx_pool_create(unsigned n_threads, struct mx_pool **out);
/* Makes p one owner's more, who destroys it too; returns p. Owners run it in turns, and create,
 * share and destroy it one after the other. */
struct mx_pool *mx_pool_share(struct mx_pool *p);
/* Ends the threads when the last owner calls it. Takes NULL. */
void mx_pool_destroy(struct mx_pool *p);
unsigned mx_pool_size(const struct mx_pool *p);

/* Runs fn for every task (fewer than 2^31) and returns when all are done. One caller at a time. */
void mx_pool_run(struct mx_pool *p, size_t n_tasks, mx_task_f *fn, void *arg);

#endif
