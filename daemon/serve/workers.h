/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for work that takes long, behind a bounded queue, so that the
 * threads of front ends never do it themselves. A job is a function and its argument: the
 * workers know nothing of requests.
 */
#ifndef MX_DAEMON_SERVE_WORKERS_H
#define MX_DAEMON_SERVE_WORKERS_H

#include <pthread.h>
#include <stdbool.h>

#include "base/status.h"

#define MX_WORKERS_QUEUE 256 /* jobs; a full queue means seconds of tokenising ahead */

struct mx_job {
	void (*fn)(void *arg);
	void *arg;
};

struct mx_workers {
	pthread_mutex_t lock;
	pthread_cond_t more;
	pthread_t *threads; /* [n_threads] */
	unsigned n_threads;
	struct mx_job jobs[MX_WORKERS_QUEUE]; /* a ring: n_jobs of them from `first` */
	unsigned first, n_jobs;
	bool stop;
	bool patient; /* constant once threads run */
};

void mx_workers_init(struct mx_workers *w); /* of a zeroed struct */
void mx_workers_destroy(struct mx_workers *w);
/* Starts n threads. `patient`: they leave the processors to other threads, where the system can do
 * that. After a failure mx_workers_stop ends those that were started. */
mx_status mx_workers_start(struct mx_workers *w, unsigned n, bool patient, struct mx_err *err);
/* Runs what is queued, then ends the threads. */
void mx_workers_stop(struct mx_workers *w);
/* Queues a job. Any thread. False if the queue is full or the workers are being stopped. */
bool mx_workers_push(struct mx_workers *w, void (*fn)(void *arg), void *arg);

#endif
