/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines on stderr, as text or as one JSON object a line.
 *
 * Any thread may log; a line is written with one write() and never waits: while
 * nobody reads the pipe or socket that stderr is, lines are lost and counted. Only
 * device/ and the layers above it log. Parsers fill struct mx_err instead.
 */
#ifndef MX_BASE_LOG_H
#define MX_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum mx_log_level { MX_LOG_ERROR, MX_LOG_WARNING, MX_LOG_INFO, MX_LOG_DEBUG };
enum mx_log_format { MX_LOG_TEXT, MX_LOG_JSON };

void mx_log_set_level(enum mx_log_level level);
void mx_log_set_format(enum mx_log_format format);
/* If `on`, text lines begin with the systemd journal's priority prefix ("<6>") instead of time and
 * level. */
void mx_log_set_journal(bool on);
bool mx_log_enabled(enum mx_log_level level);
/* Hands every line of any level to `to` instead of stderr. A module that links its own copy of this
 * file uses it to write to the log of the program that loaded it. */
typedef void mx_log_to_f(enum mx_log_level level, const char *module, const char *text);
void mx_log_forward(mx_log_to_f *to);
/* Returns the number of lines logged at `level`. Tests fail on an unexpected error line. */
unsigned long mx_log_count(enum mx_log_level level);

/* `module` is a short lower-case noun ("sched", "http"). The message is one line. */
void mx_log(enum mx_log_level level, const char *module, const char *fmt, ...) MX_PRINTF(3, 4);

/* Returns the number of lines that were lost because stderr was not read. */
unsigned long mx_log_lost(void);

/* Shows a line of text at the end of the log on a terminal, to be shown again and again with newer
 * text; "" removes it. The next line of the log takes its place. Elsewhere it does nothing. */
void mx_log_status(const char *text);

/* A named value of a line: NAME=VALUE behind the text, or a member of the JSON object. */
struct mx_log_field {
	const char *name;
	enum { MX_LOG_STRING, MX_LOG_COUNT, MX_LOG_MS } kind;
	const char *string; /* MX_LOG_STRING; cut at some 700 bytes */
	uint64_t count;     /* MX_LOG_COUNT; MX_LOG_MS: nanoseconds, written as milliseconds */
};
/* Logs a text with fields. Fields that do not fit into a line of 4096 bytes are left out. */
void mx_log_fields(enum mx_log_level level, const char *module, const char *text,
                   const struct mx_log_field *fields, size_t n_fields);

#define mx_error(module, ...)   mx_log(MX_LOG_ERROR, module, __VA_ARGS__)
#define mx_warning(module, ...) mx_log(MX_LOG_WARNING, module, __VA_ARGS__)
#define mx_info(module, ...)    mx_log(MX_LOG_INFO, module, __VA_ARGS__)
#define mx_debug(module, ...)                                                                      \
	do {                                                                                           \
		if (mx_log_enabled(MX_LOG_DEBUG))                                                          \
			mx_log(MX_LOG_DEBUG, module, __VA_ARGS__);                                             \
	} while (0)

#endif
