/* SPDX-License-Identifier: Apache-2.0 */
/* Which of several hosts this process is: by the command line, or by what its launcher has put into
 * the environment (docs/hosts.md has the table). */
#ifndef MX_DAEMON_LAUNCH_H
#define MX_DAEMON_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct mx_launch {
	bool worker;     /* it is not host 0 */
	uint32_t number; /* of a worker; 0 = host 0 gives it one */
	char join[320];  /* of a worker: host 0's "host:port" */
};

/* What the command line says; NULL = nothing. */
struct mx_launch_options {
	bool worker, launched;
	const char *join, *host;
};

/* Finds out. listen: the setting cluster.listen, whose port counts for launchers; hosts: the
 * setting cluster.hosts. */
mx_status mx_launch_find(const struct mx_launch_options *o, const char *listen, uint64_t hosts,
                         struct mx_launch *out, struct mx_err *err);

/* Writes the first name of a list as Slurm has it: "node03" of "node[03-05,9],x1". False if it does
 * not fit, or is none. */
bool mx_launch_first_node(const char *list, char *out, size_t cap);

#endif
