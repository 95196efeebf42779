/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h> /* not ours: the build's */

#include "daemon/notify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/clock.h"

static void notify(const char *text)
{
#ifdef HAVE_SYSTEMD
	(void)sd_notify(0, text); /* if it fails, nobody can be told */
#else
	(void)text;
#endif
}

void mx_notify_ready(void)
{
	notify("READY=1");
}

void mx_notify_status(const char *fmt, ...)
{
	char text[400] = "STATUS=";
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text + 7, sizeof text - 7, fmt, ap);
	va_end(ap);
	notify(text);
}

void mx_notify_extend(uint64_t usec)
{
	char text[64];
	snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)usec);
	notify(text);
}

void mx_notify_reloading(void)
{
	char text[80];
	snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu",
	         (unsigned long long)(mx_now_ns() / 1000));
	notify(text);
}

void mx_notify_stopping(void)
{
	notify("STOPPING=1\nSTATUS=draining");
}

uint64_t mx_notify_watchdog_ns(void)
{
#ifdef HAVE_SYSTEMD
	uint64_t usec = 0;
	if (sd_watchdog_enabled(0, &usec) > 0)
		return usec * 1000;
#endif
	return 0;
}

void mx_notify_alive(void)
{
	notify("WATCHDOG=1");
}

mx_status mx_notify_listen_fds(int fds[MX_NOTIFY_MAX_FDS], size_t *out_n, struct mx_err *err)
{
	*out_n = 0;
#ifdef HAVE_SYSTEMD
	int n = sd_listen_fds(1);
	if (n < 0)
		return mx_fail_at(err, MX_E_INVALID, "LISTEN_FDS", "not understood");
	if (n > MX_NOTIFY_MAX_FDS)
		return mx_fail_at(err, MX_E_LIMIT, "LISTEN_FDS", "%d sockets passed, at most %d are taken",
		                  n, MX_NOTIFY_MAX_FDS);
	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;
		if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
			return mx_fail_at(err, MX_E_INVALID, "LISTEN_FDS",
			                  "descriptor %d is not a listening stream socket", fd);
		fds[i] = fd;
	}
	*out_n = (size_t)n;
#else
	(void)fds;
	(void)err;
#endif
	return MX_OK;
}

bool mx_notify_stderr_is_journal(void)
{
	/* systemd sets JOURNAL_STREAM to DEVICE:INODE of the stream that it connected to stderr. */
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;
	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}
