/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes memory resident before it is needed.
 *
 * What the first request will use (weights, scratch, some pages) is touched
 * while loading, with all threads. The rest, which may be many gigabytes and
 * take a virtual machine seconds, is touched by a thread of its own after the
 * engine is ready, at low priority: memory in use reaches what was planned soon
 * after the start, whether requests come or not. That thread uses
 * MADV_POPULATE_WRITE (Linux 5.14), which leaves contents alone; without it
 * memory becomes resident as it is used.
 */
#ifndef MX_ENGINE_TOUCH_H
#define MX_ENGINE_TOUCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"

struct mx_touch_progress {
	void (*f)(void *arg, double fraction); /* may be NULL */
	void *arg;
	size_t done, all; /* bytes */
};

/* So many bytes more are there. */
void mx_touch_count(struct mx_touch_progress *progress, size_t bytes);

/* Touches [base, base + bytes) with the device's threads. write: fresh private memory, of which
 * nothing has been written yet; else a file's mapping. */
void mx_touch(struct mx_device *d, const void *base, size_t bytes, bool write,
              struct mx_touch_progress *progress);

/* Of a file's mapping that will not be read again: it counts as memory of the process no longer. */
void mx_touch_forget(const void *base, size_t bytes);

struct mx_toucher {
	pthread_t thread;
	bool running;
	atomic_bool stop;
	unsigned char *base;
	size_t bytes;
};

/* Starts touching [base, base + bytes) in the background. Without a thread to spare nothing is
 * lost but time later. */
void mx_toucher_start(struct mx_toucher *t, unsigned char *base, size_t bytes);
/* Ends it; takes a zeroed toucher. The memory must still be there. */
void mx_toucher_stop(struct mx_toucher *t);

#endif
