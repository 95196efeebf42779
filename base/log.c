/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static _Atomic int log_level = MX_LOG_INFO;
static _Atomic int log_format = MX_LOG_TEXT;
static atomic_bool log_journal;
static _Atomic(mx_log_to_f *) log_to;
static atomic_ulong log_counts[MX_LOG_DEBUG + 1];
static atomic_ulong log_lost, log_told; /* lines that were lost; those that the log speaks of */

/* Most bytes of a field of a line, name included. */
#define FIELD_ROOM 768

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int journal_priority[] = {3, 4, 6, 7};

void mx_log_set_level(enum mx_log_level level)
{
	atomic_store(&log_level, (int)level);
}

void mx_log_set_format(enum mx_log_format format)
{
	atomic_store(&log_format, (int)format);
}

void mx_log_set_journal(bool on)
{
	atomic_store(&log_journal, on);
}

void mx_log_forward(mx_log_to_f *to)
{
	atomic_store(&log_to, to);
}

bool mx_log_enabled(enum mx_log_level level)
{
	if (atomic_load_explicit(&log_to, memory_order_relaxed))
		return true;
	return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

unsigned long mx_log_count(enum mx_log_level level)
{
	return atomic_load(&log_counts[level]);
}

unsigned long mx_log_lost(void)
{
	return atomic_load(&log_lost);
}

/* Returns the length of the UTF-8 character at s, 0 if it is damaged. */
static size_t character(const char *s)
{
	const unsigned char *c = (const unsigned char *)s;
	size_t n = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
	if (c[0] > 0xf4)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

/* Appends s as it stands in a JSON string, or, if !json, with control characters as spaces. */
static size_t put_escaped(char *out, size_t cap, const char *s, bool json)
{
	size_t n = 0;
	while (*s && n + 7 < cap) {
		unsigned char c = (unsigned char)*s;
		size_t k = character(s);
		if (!k) {
			out[n++] = '?';
			k = 1;
		} else if (json && (c == '"' || c == '\\')) {
			out[n++] = '\\';
			out[n++] = (char)c;
		} else if (c < 0x20 && json) {
			n += (size_t)snprintf(out + n, cap - n, "\\u%04x", c);
		} else if (c < 0x20) {
			out[n++] = ' ';
		} else {
			memcpy(out + n, s, k);
			n += k;
		}
		s += k;
	}
	out[n] = 0;
	return n;
}

/* True if a value of a text line needs quotes. */
static bool needs_quotes(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || *s == '"' || *s == '=' || *s == '\\')
			return true;
	return false;
}

/* Appends NAME=VALUE or, for JSON, the member "NAME":VALUE. `cap` has room for more than that. */
static size_t put_field(char *out, size_t cap, const struct mx_log_field *f, bool json)
{
	bool quotes = f->kind == MX_LOG_STRING && (json || needs_quotes(f->string));
	size_t n =
		(size_t)snprintf(out, cap, json ? ",\"%s\":%s" : " %s=%s", f->name, quotes ? "\"" : "");
	switch (f->kind) {
	case MX_LOG_STRING: n += put_escaped(out + n, cap - n - 1, f->string, quotes); break;
	case MX_LOG_COUNT:
		n += (size_t)snprintf(out + n, cap - n, "%llu", (unsigned long long)f->count);
		break;
	case MX_LOG_MS: n += (size_t)snprintf(out + n, cap - n, "%.3f", (double)f->count * 1e-6); break;
	}
	if (quotes)
		out[n++] = '"';
	return n;
}

static pthread_mutex_t stderr_lock = PTHREAD_MUTEX_INITIALIZER;
static bool status_shown; /* under the lock */

#define CLEAR_LINE "\r\x1b[K"

/* Writes, unless stderr would make the thread wait: then it returns false. Under the lock. */
static bool put(const char *text, size_t len)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	bool room = poll(&p, 1, 0) != 0;
	if (room && write(STDERR_FILENO, text, len) < 0) {
		/* Nobody is left to tell. */
	}
	return room;
}

void mx_log_status(const char *text)
{
	struct winsize size;
	if (atomic_load(&log_format) == MX_LOG_JSON || !isatty(STDERR_FILENO))
		return;
	size_t width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
	char line[256];
	int n =
		snprintf(line, sizeof line, CLEAR_LINE "%.*s", width < 200 ? (int)width - 1 : 200, text);
	pthread_mutex_lock(&stderr_lock);
	if (*text || status_shown)
		status_shown = put(line, (size_t)n) ? *text != 0 : status_shown;
	pthread_mutex_unlock(&stderr_lock);
}

/* Writes a line in place of the status, or returns false if stderr would make the thread wait. A
 * pipe with room takes a line of at most PIPE_BUF bytes whole. */
static bool write_line(const char *line, size_t len)
{
	pthread_mutex_lock(&stderr_lock); /* so that no other thread fills the pipe meanwhile */
	if (status_shown && put(CLEAR_LINE, sizeof CLEAR_LINE - 1))
		status_shown = false;
	bool written = put(line, len);
	pthread_mutex_unlock(&stderr_lock);
	return written;
}

/* Builds a line in `line` and returns its length. */
static size_t format_line(char *line, size_t cap, enum mx_log_level level, const char *module,
                          const char *text, const struct mx_log_field *fields, size_t n_fields)
{
	char stamp[40];
	uint64_t ns = mx_wall_ns();
	time_t s = (time_t)(ns / MX_NS_PER_S);
	struct tm tm;
	gmtime_r(&s, &tm);
	size_t k = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(stamp + k, sizeof stamp - k, ".%03uZ", (unsigned)(ns / 1000000 % 1000));

	bool json = atomic_load(&log_format) == MX_LOG_JSON;
	int n;
	if (json)
		n = snprintf(line, cap, "{\"time\":\"%s\",\"level\":\"%s\",\"module\":\"%s\",\"msg\":\"",
		             stamp, level_names[level], module);
	else if (atomic_load(&log_journal))
		n = snprintf(line, cap, "<%d>%s: ", journal_priority[level], module);
	else
		n = snprintf(line, cap, "%s %-7s %s: ", stamp, level_names[level], module);
	size_t len = (size_t)n;
	len += put_escaped(line + len, cap - len - 4, text, json);
	if (json)
		line[len++] = '"';
	for (size_t i = 0; i < n_fields && len + FIELD_ROOM < cap; i++)
		len += put_field(line + len, FIELD_ROOM, &fields[i], json);
	if (json)
		line[len++] = '}';
	line[len++] = '\n';
	return len;
}

static void log_line(enum mx_log_level level, const char *module, const char *text,
                     const struct mx_log_field *fields, size_t n_fields)
{
	atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);
	mx_log_to_f *to = atomic_load(&log_to);
	if (to) {
		to(level, module, text);
		return;
	}
	char line[PIPE_BUF];
	size_t len = format_line(line, sizeof line, level, module, text, fields, n_fields);
	if (!write_line(line, len)) {
		atomic_fetch_add(&log_lost, 1);
		return;
	}
	unsigned long lost = atomic_load(&log_lost), told = atomic_exchange(&log_told, lost);
	if (lost > told) {
		char note[100];
		snprintf(note, sizeof note, "%lu lines were lost: stderr was not read", lost - told);
		write_line(line, format_line(line, sizeof line, MX_LOG_WARNING, "log", note, NULL, 0));
	}
}

void mx_log(enum mx_log_level level, const char *module, const char *fmt, ...)
{
	if (!mx_log_enabled(level))
		return;
	char text[2048];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	log_line(level, module, text, NULL, 0);
}

void mx_log_fields(enum mx_log_level level, const char *module, const char *text,
                   const struct mx_log_field *fields, size_t n_fields)
{
	if (mx_log_enabled(level))
		log_line(level, module, text, fields, n_fields);
}
