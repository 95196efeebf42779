/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static _Atomic int log_level = MX_LOG_INFO;
static _Atomic int log_format = MX_LOG_TEXT;
static atomic_bool log_journal;
static _Atomic(mx_log_to_f *) log_to;
static atomic_ulong log_counts[MX_LOG_DEBUG + 1];

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

/* Escapes for a JSON string; control characters of a text line become spaces. */
static size_t put_escaped(char *out, size_t cap, const char *s, bool json)
{
	size_t n = 0;
	for (; *s && n + 7 < cap; s++) {
		unsigned char c = (unsigned char)*s;
		if (json && (c == '"' || c == '\\')) {
			out[n++] = '\\';
			out[n++] = (char)c;
		} else if (c < 0x20 && json) {
			n += (size_t)snprintf(out + n, cap - n, "\\u%04x", c);
		} else {
			out[n++] = c < 0x20 ? ' ' : (char)c;
		}
	}
	out[n] = 0;
	return n;
}

void mx_log(enum mx_log_level level, const char *module, const char *fmt, ...)
{
	if (!mx_log_enabled(level))
		return;
	atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);

	char text[2048];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);

	mx_log_to_f *to = atomic_load(&log_to);
	if (to) {
		to(level, module, text);
		return;
	}
	char stamp[40];
	uint64_t ns = mx_wall_ns();
	time_t s = (time_t)(ns / MX_NS_PER_S);
	struct tm tm;
	gmtime_r(&s, &tm);
	size_t k = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(stamp + k, sizeof stamp - k, ".%03uZ", (unsigned)(ns / 1000000 % 1000));

	char line[4096 + 256];
	bool json = atomic_load(&log_format) == MX_LOG_JSON;
	int n;
	if (json)
		n = snprintf(line, sizeof line,
		             "{\"time\":\"%s\",\"level\":\"%s\",\"module\":\"%s\",\"msg\":\"", stamp,
		             level_names[level], module);
	else if (atomic_load(&log_journal))
		n = snprintf(line, sizeof line, "<%d>%s: ", journal_priority[level], module);
	else
		n = snprintf(line, sizeof line, "%s %-7s %s: ", stamp, level_names[level], module);
	size_t len = (size_t)n;
	len += put_escaped(line + len, sizeof line - len - 4, text, json);
	if (json) {
		line[len++] = '"';
		line[len++] = '}';
	}
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0) {
		/* Nobody is left to tell. */
	}
}
