/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"

/* stderr as a pipe, whose other end is read_end. */
struct pipe_log {
	int saved, read_end;
};

static struct pipe_log begin(void)
{
	int fds[2];
	struct pipe_log p = {.saved = dup(STDERR_FILENO)};
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_true(dup2(fds[1], STDERR_FILENO) >= 0);
	close(fds[1]);
	p.read_end = fds[0];
	return p;
}

/* Reads what is there now. */
static void drain(const struct pipe_log *p, char *text, size_t cap)
{
	struct pollfd f = {.fd = p->read_end, .events = POLLIN};
	size_t n = 0;
	while (n < cap - 1 && poll(&f, 1, 0) > 0) {
		ssize_t k = read(p->read_end, text + n, cap - 1 - n);
		if (k <= 0)
			break;
		n += (size_t)k;
	}
	text[n] = 0;
}

static void end(struct pipe_log *p)
{
	dup2(p->saved, STDERR_FILENO);
	close(p->saved);
	close(p->read_end);
}

static const struct mx_log_field fields[] = {
	{"id", MX_LOG_STRING, "a\"b\\c\n\xff\xc3\xa9", 0},
	{"status", MX_LOG_COUNT, NULL, 200},
	{"total_ms", MX_LOG_MS, NULL, 1234567},
	{"route", MX_LOG_STRING, "/v1/completions", 0},
};

static void fields_are_text_or_members(void **state)
{
	(void)state;
	char line[8192];
	struct pipe_log p = begin();
	mx_log_fields(MX_LOG_INFO, "http", "request", fields, 4);
	drain(&p, line, sizeof line);
	assert_non_null(strstr(line, " http: request id=\"a\\\"b\\\\c\\u000a?\xc3\xa9\" status=200 "
	                             "total_ms=1.235 route=/v1/completions\n"));
	mx_log_set_format(MX_LOG_JSON);
	mx_log_fields(MX_LOG_INFO, "http", "request", fields, 4);
	drain(&p, line, sizeof line);
	mx_log_set_format(MX_LOG_TEXT);
	end(&p);
	assert_non_null(
		strstr(line, "\"msg\":\"request\",\"id\":\"a\\\"b\\\\c\\u000a?\xc3\xa9\",\"status\":200,"
	                 "\"total_ms\":1.235,\"route\":\"/v1/completions\"}\n"));
}

static void a_line_is_whole_however_long_its_fields(void **state)
{
	(void)state;
	static char line[8192], longest[3000];
	memset(longest, 'x', sizeof longest - 1);
	struct mx_log_field many[40];
	for (size_t i = 0; i < 40; i++)
		many[i] = (struct mx_log_field){"name", MX_LOG_STRING, longest, 0};
	struct pipe_log p = begin();
	mx_log_set_format(MX_LOG_JSON);
	mx_log_fields(MX_LOG_INFO, "http", longest, many, 40);
	drain(&p, line, sizeof line);
	mx_log_set_format(MX_LOG_TEXT);
	end(&p);
	size_t n = strlen(line);
	assert_true(n > 3000 && n <= 4096);
	assert_string_equal(line + n - 3, "\"}\n");
}

/* A log that nobody reads stops nobody: its lines are lost, counted, and spoken of later. */
static void a_full_pipe_does_not_block(void **state)
{
	(void)state;
	static char text[1 << 20];
	struct pipe_log p = begin();
	unsigned long before = mx_log_lost();
	alarm(60); /* ends a test that blocks */
	for (int i = 0; i < 10000; i++)
		mx_log_fields(MX_LOG_INFO, "http", "request", fields, 4);
	alarm(0);
	unsigned long lost = mx_log_lost() - before;
	drain(&p, text, sizeof text);
	size_t n = strlen(text), lines = 0;
	for (size_t i = 0; i < n; i++)
		lines += text[i] == '\n';
	mx_info("test", "again");
	char later[512];
	drain(&p, later, sizeof later);
	end(&p);
	assert_true(lost > 5000 && lines + lost == 10000 && text[n - 1] == '\n');
	char note[100];
	snprintf(note, sizeof note, "warning log: %lu lines were lost: stderr was not read\n", lost);
	assert_non_null(strstr(later, "test: again\n"));
	assert_non_null(strstr(later, note));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_are_text_or_members),
		cmocka_unit_test(a_line_is_whole_however_long_its_fields),
		cmocka_unit_test(a_full_pipe_does_not_block),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
