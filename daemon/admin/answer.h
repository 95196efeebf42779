/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of the admin socket, as JSON without a line feed. None of them waits for a step. */
#ifndef MX_DAEMON_ADMIN_ANSWER_H
#define MX_DAEMON_ADMIN_ANSWER_H

#include "daemon/admin/admin.h"

/* Write an answer: of `status` (start_ns: of the daemon), of `requests`, of a reload that has
 * ended, and one that says why a command was refused. */
void mx_admin_write_status(const struct mx_admin_setup *s, uint64_t start_ns, struct mx_buf *out);
void mx_admin_write_requests(const struct mx_admin_setup *s, struct mx_buf *out);
void mx_admin_write_reload(const struct mx_reload_result *r, struct mx_buf *out);
void mx_admin_write_error(const char *text, struct mx_buf *out);

#endif
