/* SPDX-License-Identifier: Apache-2.0 */
/* How far loading is, how fast it goes and how long it will take, as text for people. Pure. */
#ifndef MX_DAEMON_PROGRESS_H
#define MX_DAEMON_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
struct mx_progress {
	uint64_t begin_ns, last_ns; /* of the first and the last call of mx_progress_at */
	uint64_t done, all;         /* bytes */
	double rate;                /* bytes a second, of the last seconds more than of earlier ones */
};

/* Takes the state at a time (by mx_now_ns). `all` may grow: models are opened one after another. */
void mx_progress_at(struct mx_progress *p, uint64_t now_ns, uint64_t done, uint64_t all);

/* Writes "37 %, 12.3 of 33.1 GB, 2.10 GB/s, 9 s left"; the speed and the rest once they are known.
 */
void mx_progress_text(const struct mx_progress *p, char *out, size_t cap);

/* Writes a bar of `width` characters in brackets: "[####......]". cap > width + 2. */
void mx_progress_bar(const struct mx_progress *p, unsigned width, char *out, size_t cap);

#endif
