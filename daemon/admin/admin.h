/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin socket: a Unix socket on which operators ask for figures and give
 * commands; mixctl(1) is its client. README.md has the protocol.
 *
 * One thread serves all clients, and no request of the front ends waits for it.
 */
#ifndef MX_DAEMON_ADMIN_ADMIN_H
#define MX_DAEMON_ADMIN_ADMIN_H

#include "daemon/host.h"
#include "daemon/reload.h"
#include "daemon/serve/service.h"

struct mx_admin;

struct mx_admin_setup {
	const char *path; /* of the socket; copied */
	struct mx_service *service;
	struct mx_host *host;
	struct mx_reload *reload;
	/* Returns the number of requests that the front ends serve. */
	unsigned (*active)(void *arg);
	void *arg;
};

/* Opens the socket, which only the process's own user, its group and root may use, and starts the
 * thread. A socket that a dead process left is replaced. MX_E_IO with the path in err->where. */
mx_status mx_admin_start(const struct mx_admin_setup *setup, struct mx_admin **out,
                         struct mx_err *err);
/* Closes all connections and removes the socket. Takes NULL. */
void mx_admin_stop(struct mx_admin *a);

#endif
