/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes memory resident before it is used.
 *
 * The memory that the first requests use (weights, scratch, some pages) is touched while loading,
 * by all threads. The rest, which may be many gigabytes and take a virtual machine seconds, is
 * touched by a background thread at low priority after the engine is ready: resident memory reaches
 * the planned size soon after the start, with or without requests. While the engine computes, that
 * thread takes a fiftieth of a CPU, so that the first requests are as fast as later ones. It uses
 * MADV_POPULATE_WRITE (Linux 5.14), which does not change contents; without it memory becomes
 * resident as it is used.
 */
#ifndef MX_ENGINE_TOUCH_H
#define MX_ENGINE_TOUCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"

struct mx_touch_progress {
	void (*f)(void *arg, size_t done, size_t all); /* may be NULL */
	void *arg;
	size_t done, all; /* bytes */
};

/* Counts `bytes` more as loaded, and reports the progress. */
void mx_touch_count(struct mx_touch_progress *progress, size_t bytes);

/* Touches [base, base + bytes) with the device's threads. write = true: private memory, to which
 * nothing has been written yet; false: a file's mapping. */
void mx_touch(struct mx_device *d, const void *base, size_t bytes, bool write,
              struct mx_touch_progress *progress);

/* Drops the resident pages of a file's mapping that will not be read again. */
void mx_touch_forget(const void *base, size_t bytes);

struct mx_toucher {
	pthread_t thread;
	bool running;
	atomic_bool stop;
	atomic_uint work; /* changes when the engine begins or ends to compute; odd while it does */
	unsigned char *base;
	size_t bytes;
};

/* Starts touching [base, base + bytes) in the background. If no thread can be created, the memory
 * becomes resident as it is used. */
void mx_toucher_start(struct mx_toucher *t, unsigned char *base, size_t bytes);
/* Tells that the engine begins or ends to compute. By one thread at a time; takes a zeroed toucher,
 * and one that has ended. */
void mx_toucher_work(struct mx_toucher *t, bool works);
/* Waits until all is touched; takes a zeroed toucher. Where mx_toucher_stop is called. */
void mx_toucher_wait(struct mx_toucher *t);
/* Ends the thread; takes a zeroed toucher. The memory must still be mapped. */
void mx_toucher_stop(struct mx_toucher *t);

#endif
