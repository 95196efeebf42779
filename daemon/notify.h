/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to systemd, and the sockets that it hands over. Without libsystemd, or
 * if no service manager started the process, these functions do nothing.
 */
#ifndef MX_DAEMON_NOTIFY_H
#define MX_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Sends READY=1: every model is loaded. */
void mx_notify_ready(void);
/* Sends STATUS=..., a line for people; `fmt` as for printf. */
void mx_notify_status(const char *fmt, ...) MX_PRINTF(1, 2);
/* Asks for more time to start or to stop. */
void mx_notify_extend(uint64_t usec);
/* Sends RELOADING=1 with the time stamp that Type=notify-reload wants. mx_notify_ready ends it. */
void mx_notify_reloading(void);
/* Sends STOPPING=1. */
void mx_notify_stopping(void);
/* Returns the interval at which WATCHDOG=1 is expected, 0 = there is no watchdog. */
uint64_t mx_notify_watchdog_ns(void);
/* Sends WATCHDOG=1. */
void mx_notify_alive(void);

#define MX_NOTIFY_MAX_FDS 16

/* Returns the listening stream sockets passed by socket activation. MX_E_INVALID, with the reason,
 * if something else was passed. */
mx_status mx_notify_listen_fds(int fds[MX_NOTIFY_MAX_FDS], size_t *out_n, struct mx_err *err);

/* True if stderr goes to the journal. */
bool mx_notify_stderr_is_journal(void);

#endif
