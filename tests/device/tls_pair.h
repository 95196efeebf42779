/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of a connection of TLS, in one process. */
#ifndef MX_TESTS_DEVICE_TLS_PAIR_H
#define MX_TESTS_DEVICE_TLS_PAIR_H

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "device/hosts/tls.h"

/* One end that shakes hands, on a thread. */
struct tls_end {
	struct mx_channel channel;
	bool serves;
	const char *secret;
	uint64_t deadline;
	mx_status status;
	struct mx_err err;
	pthread_t thread;
};

static void *tls_end_main(void *arg)
{
	struct tls_end *e = arg;
	e->status = mx_hosts_tls(&e->channel, e->serves, (const uint8_t *)e->secret, strlen(e->secret),
	                         e->deadline, &e->err);
	return NULL;
}

/* Begins to shake hands on a socket. */
static inline void tls_end_start(struct tls_end *e, int fd, bool serves, const char *secret,
                                 uint64_t patience_ns)
{
	*e = (struct tls_end){.channel = mx_channel_of(fd),
	                      .serves = serves,
	                      .secret = secret,
	                      .deadline = mx_now_ns() + patience_ns};
	if (pthread_create(&e->thread, NULL, tls_end_main, e))
		e->status = MX_E_NOMEM;
}

/* Makes channels of TLS of the two ends of a connection, both of this process. */
static inline mx_status tls_pair(const int fds[2], struct mx_channel out[2])
{
	struct tls_end ends[2];
	for (int i = 0; i < 2; i++)
		tls_end_start(&ends[i], fds[i], !i, "a secret of the tests", 20 * MX_NS_PER_S);
	for (int i = 0; i < 2; i++) {
		pthread_join(ends[i].thread, NULL);
		out[i] = ends[i].channel;
	}
	return ends[0].status == MX_OK ? ends[1].status : ends[0].status;
}

#endif
