/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the measured crossing of mixers/hyena/crossing.c and its cache file: where the file is,
 * that it is read back, and that no content of it does harm. A process measures only once, so each
 * check is a child process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "mixers/hyena/longconv.h"

struct fixture {
	char top[64], file[512]; /* file: of the last `find` */
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	if (!f)
		return -1;
	strcpy(f->top, "/tmp/mixd-crossing-XXXXXX");
	*state = f;
	return mkdtemp(f->top) ? 0 : -1;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", f->top);
	free(f);
	return system(command);
}

struct child {
	pid_t pid;
	int out;
};

/* A process that asks, in which only this variable says where files are kept. */
static struct child start(const char *variable, const char *value)
{
	int out[2];
	assert_int_equal(pipe(out), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		unsetenv("CACHE_DIRECTORY");
		unsetenv("XDG_CACHE_HOME");
		unsetenv("HOME");
		if (variable)
			setenv(variable, value, 1);
		bool kept;
		uint32_t side = lc_crossing(lc_kernels_find(mx_cpu_isa()), &kept), said[2] = {side, kept};
		_exit(write(out[1], said, sizeof(said)) != sizeof(said));
	}
	close(out[1]);
	return (struct child){pid, out[0]};
}

/* True if the last answer was in a file. */
static bool kept_it;

/* Its answer; 0 if it dies. */
static uint32_t answer(struct child c)
{
	uint32_t said[2] = {0};
	int status;
	ssize_t n = read(c.out, said, sizeof(said));
	close(c.out);
	assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
	kept_it = said[1];
	return n == sizeof(said) && status == 0 ? said[0] : 0;
}

static uint32_t look(const char *variable, const char *value)
{
	return answer(start(variable, value));
}

static void assert_side(uint32_t side)
{
	assert_in_range(side, 32, 1024);
	assert_int_equal(side & (side - 1), 0);
}

/* The only file in a folder. */
static const char *find(struct fixture *f, const char *dir)
{
	DIR *d = opendir(dir);
	unsigned n = 0;
	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		if (e->d_name[0] != '.') {
			assert_int_equal(strncmp(e->d_name, "hyena-crossing-", 15), 0);
			snprintf(f->file, sizeof(f->file), "%s/%s", dir, e->d_name);
			n++;
		}
	closedir(d);
	assert_int_equal(n, 1);
	return f->file;
}

static void put(const char *path, const char *text, size_t n)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static void get(const char *path, char text[64])
{
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	text[fread(text, 1, 63, file)] = 0;
	fclose(file);
}

/* The line for another side. */
static void line_of(const char *line, uint32_t side, char out[64])
{
	const char *space = strrchr(line, ' ');
	assert_non_null(space);
	snprintf(out, 64, "%.*s %u\n", (int)(space - line), line, side);
}

static void test_kept(void **state)
{
	struct fixture *f = *state;
	char line[64], other[64];
	uint32_t side = look("CACHE_DIRECTORY", f->top);
	assert_side(side);
	assert_true(kept_it);
	const char *path = find(f, f->top);
	get(path, line);
	line_of(line, side, other);
	assert_string_equal(line, other);

	/* what the file says is believed, whatever it is */
	for (uint32_t s = 32; s <= 1024; s *= 2) {
		line_of(line, s, other);
		put(path, other, strlen(other));
		assert_int_equal(look("CACHE_DIRECTORY", f->top), s);
	}
}

static void assert_survived(struct fixture *f, const char *path, const char *text, size_t n)
{
	char line[64], expected[64];
	put(path, text, n);
	uint32_t side = look("CACHE_DIRECTORY", f->top);
	assert_side(side);
	get(path, line); /* written anew */
	line_of(line, side, expected);
	assert_string_equal(line, expected);
	assert_string_equal(find(f, f->top), path);
}

/* Another process's file appears while this one measures: both go on with the same side. */
static void test_two_processes(void **state)
{
	struct fixture *f = *state;
	char line[64], other[64], kept[64], said[64], path[512], theirs[520];
	uint32_t side = look("CACHE_DIRECTORY", f->top);
	assert_side(side);
	strcpy(path, find(f, f->top));
	get(path, line);
	line_of(line, side == 1024 ? 32 : 1024, other);
	snprintf(theirs, sizeof(theirs), "%s/.theirs", f->top);
	put(theirs, other, strlen(other));
	for (unsigned i = 0; i < 24; i++) {
		assert_int_equal(unlink(path), 0);
		struct child c = start("CACHE_DIRECTORY", f->top);
		usleep(i * 400);
		bool first = link(theirs, path) == 0;
		side = answer(c);
		get(path, kept);
		line_of(line, side, said);
		assert_string_equal(kept, said);
		assert_true(!first || !strcmp(kept, other));
		find(f, f->top);
	}
}

static void test_garbage(void **state)
{
	static const uint32_t wrong[] = {0, 1, 16, 33, 100, 2048, UINT32_MAX};
	struct fixture *f = *state;
	char line[64], text[64], path[512];
	struct stat st;
	assert_side(look("CACHE_DIRECTORY", f->top));
	strcpy(path, find(f, f->top));
	get(path, line);
	assert_survived(f, path, "", 0);
	assert_survived(f, path, "\0\0\0", 3);
	assert_survived(f, path, line, strlen(line) - 1); /* cut off */
	assert_survived(f, path, "0.0.0 64\n", 9);        /* of another version */
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		line_of(line, wrong[i], text);
		assert_survived(f, path, text, strlen(text));
	}
	size_t n = 1 << 20;
	char *much = malloc(n);
	assert_non_null(much);
	memset(much, '6', n);
	assert_survived(f, path, much, n);
	free(much);

	/* a FIFO: nobody waits for its other end */
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	uint32_t side = look("CACHE_DIRECTORY", f->top);
	assert_side(side);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(look("CACHE_DIRECTORY", f->top), side);

	/* a folder in its place: it can be neither read nor replaced, and nothing is left behind */
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_side(look("CACHE_DIRECTORY", f->top));
	assert_false(kept_it);
	assert_string_equal(find(f, f->top), path);
}

static void test_places(void **state)
{
	struct fixture *f = *state;
	char dir[128], list[256];
	snprintf(dir, sizeof(dir), "%s/mixd", f->top);
	assert_side(look("XDG_CACHE_HOME", f->top));
	find(f, dir);
	snprintf(dir, sizeof(dir), "%s/home", f->top);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_side(look("HOME", dir));
	snprintf(dir, sizeof(dir), "%s/home/.cache/mixd", f->top);
	find(f, dir);
	snprintf(dir, sizeof(dir), "%s/first", f->top);
	snprintf(list, sizeof(list), "%s:%s/second", dir, f->top);
	assert_side(look("CACHE_DIRECTORY", list));
	find(f, dir);

	/* nowhere */
	assert_true(kept_it);
	assert_side(look(NULL, NULL));
	assert_false(kept_it);
	assert_side(look("HOME", ""));
	assert_side(look("CACHE_DIRECTORY", "relative"));
	assert_int_not_equal(access("relative", F_OK), 0);
	assert_side(look("XDG_CACHE_HOME", "/dev/null"));
	assert_false(kept_it);
	char *deep = malloc(8192);
	assert_non_null(deep);
	memset(deep, '/', 8191);
	deep[8191] = 0;
	assert_side(look("CACHE_DIRECTORY", deep));
	free(deep);
}

static void *ask(void *arg)
{
	*(uint32_t *)arg = lc_crossing(lc_kernels_find(MX_ISA_PORTABLE), NULL);
	return NULL;
}

/* Many threads at once, and again: one answer. */
static void test_threads(void **state)
{
	struct fixture *f = *state;
	pthread_t threads[8];
	uint32_t sides[8];
	setenv("CACHE_DIRECTORY", f->top, 1);
	for (int i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, ask, &sides[i]), 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	put(find(f, f->top), "", 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(sides[i], lc_crossing(lc_kernels_find(MX_ISA_PORTABLE), NULL));
	assert_side(sides[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
		cmocka_unit_test_setup_teardown(test_places, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
