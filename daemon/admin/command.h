/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the admin socket: a JSON object a line. README.md lists them. */
#ifndef MX_DAEMON_ADMIN_COMMAND_H
#define MX_DAEMON_ADMIN_COMMAND_H

#include "base/log.h"
#include "base/status.h"

/* Bytes of the longest line, without its line feed. */
#define MX_ADMIN_LINE 4096

enum mx_admin_kind {
	MX_ADMIN_STATUS,
	MX_ADMIN_REQUESTS,
	MX_ADMIN_RELOAD,
	MX_ADMIN_DRAIN,
	MX_ADMIN_UNDRAIN,
	MX_ADMIN_CANCEL,
	MX_ADMIN_LOG,
};

struct mx_admin_command {
	enum mx_admin_kind kind;
	char model[128]; /* drain, undrain: "" = all */
	char id[129];    /* cancel */
	enum mx_log_level level;
};

/* Parses a line of n bytes. An unknown command or member, a missing one, or a value of a wrong type
 * or length is an error. */
mx_status mx_admin_parse(const char *line, size_t n, struct mx_admin_command *out,
                         struct mx_err *err);

#endif
