/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What systemd is told, and the sockets it hands over. Without libsystemd, or
 * when not started by a service manager, all of this does nothing.
 */
#ifndef MX_DAEMON_NOTIFY_H
#define MX_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* READY=1: every model is loaded. */
void mx_notify_ready(void);
/* STATUS=... for people; %-format. */
void mx_notify_status(const char *fmt, ...) MX_PRINTF(1, 2);
/* Asks for more time to start or to stop. */
void mx_notify_extend(uint64_t usec);
/* RELOADING=1 with the time stamp that Type=notify-reload wants; end it with mx_notify_ready. */
void mx_notify_reloading(void);
void mx_notify_stopping(void);
/* Interval in which WATCHDOG=1 is expected, 0 = not watched. */
uint64_t mx_notify_watchdog_ns(void);
void mx_notify_alive(void);

#define MX_NOTIFY_MAX_FDS 16

/* Listening stream sockets passed by socket activation. MX_E_INVALID, with the reason, if something
 * else was passed. */
mx_status mx_notify_listen_fds(int fds[MX_NOTIFY_MAX_FDS], size_t *out_n, struct mx_err *err);

/* True if stderr goes to the journal. */
bool mx_notify_stderr_is_journal(void);

#endif
