/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The largest side at which a tile is faster directly than by transforms. It is
 * measured once in a process and stored in a file, so that the next process gives
 * the same bits. The file is
 *
 *     DIR/hyena-crossing-KERNELS-CPU
 *
 * with DIR = $CACHE_DIRECTORY (systemd's CacheDirectory=), else
 * $XDG_CACHE_HOME/mixd, else $HOME/.cache/mixd, else there is no file. It holds one
 * line with mixd's version and the side. A file with other contents is replaced. If
 * several processes measure at the same time, all use the result of the first one
 * that finishes.
 */
#include "config.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "mixers/hyena/longconv.h"

#ifdef MX_X86_64
#include <cpuid.h>
#endif

#define MIN_SIDE  32
#define MAX_SIDE  1024
#define ROUNDS    9        /* measurements at least; the best counts */
#define ROUNDS_NS 4000000u /* they take at least this long */
#define MARGIN    0.95 /* a direct tile wins if it takes at most this part of the other's time */

/* ---- the file ---- */

/* Writes the processor's model name, reduced to letters, digits and '-'. */
static void cpu_model(char out[64])
{
#ifdef MX_X86_64
	uint32_t brand[12] = {0};
	for (unsigned i = 0; i < 3; i++) {
		uint32_t *r = brand + 4 * i;
		__get_cpuid(0x80000002 + i, &r[0], &r[1], &r[2], &r[3]);
	}
	snprintf(out, 64, "%.*s", (int)sizeof(brand), (const char *)brand);
#else
	struct utsname u;
	snprintf(out, 64, "%.63s", uname(&u) == 0 ? u.machine : "unknown");
#endif
	for (char *c = out; *c; c++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", *c))
			*c = '-';
}

static bool absolute(const char *dir)
{
	return dir && *dir == '/';
}

/* Writes the file's path; false if there is none or it is too long. Makes the folders of a user's
 * cache. */
static bool cache_file(const struct lc_kernels *k, char *out, size_t size)
{
	const char *service = getenv("CACHE_DIRECTORY"), *user = getenv("XDG_CACHE_HOME");
	const char *home = getenv("HOME");
	char cpu[64];
	int n;
	if (absolute(service)) { /* a list of folders */
		n = snprintf(out, size, "%.*s", (int)strcspn(service, ":"), service);
	} else if (absolute(user)) {
		n = snprintf(out, size, "%s/mixd", user);
	} else if (absolute(home)) {
		n = snprintf(out, size, "%s/.cache", home);
		if (n > 0 && (size_t)n < size)
			mkdir(out, 0700);
		n = snprintf(out, size, "%s/.cache/mixd", home);
	} else {
		return false;
	}
	if (n < 0 || (size_t)n >= size)
		return false;
	mkdir(out, 0700);
	cpu_model(cpu);
	int more = snprintf(out + n, size - (size_t)n, "/hyena-crossing-%s-%s", k->name, cpu);
	return more > 0 && (size_t)more < size - (size_t)n;
}

static void write_line(uint32_t side, char out[64])
{
	snprintf(out, 64, "%s %u\n", PACKAGE_VERSION, side);
}

/* Returns the side in the file; 0 if there is no regular file or it has other contents. */
static uint32_t read_side(const char *path)
{
	char text[64] = "", line[64];
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would block */
	if (fd < 0)
		return 0;
	ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof(text) - 1) : -1;
	close(fd);
	if (n < 0)
		return 0;
	text[n] = 0;
	for (uint32_t side = MIN_SIDE; side <= MAX_SIDE; side *= 2) {
		write_line(side, line);
		if (!strcmp(text, line))
			return side;
	}
	return 0;
}

/* Stores the side, atomically, unless another process was first. Returns the side that the file has
 * afterwards. Overwrites only a file without a valid side, or on a file system without links. */
static uint32_t store_side(const char *path, uint32_t side)
{
	char line[64], temporary[1024 + 8];
	uint32_t theirs = 0;
	snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
	int fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return side;
	write_line(side, line);
	bool written = write(fd, line, strlen(line)) == (ssize_t)strlen(line);
	written &= close(fd) == 0;
	if (written && link(temporary, path) != 0) {
		theirs = read_side(path);
		if (!theirs && rename(temporary, path) == 0)
			return side;
	}
	unlink(temporary);
	return theirs ? theirs : side;
}

/* ---- the measurement ---- */

struct trial {
	const struct lc_kernels *k;
	const struct lc_plan *plan;
	uint32_t n;
	const float *lags, *z, *spectrum;
	float *x, *y;
};

static void direct(const struct trial *t)
{
	t->k->tile(t->n, t->lags, t->z, false, t->y);
}

static void transform(const struct trial *t)
{
	lc_twist(t->k, t->plan, t->z, t->x);
	t->k->fft(t->plan, t->x);
	t->k->multiply(t->n, t->x, t->spectrum, false, t->x);
	t->k->ifft(t->plan, t->x);
	lc_untwist(t->k, t->plan, t->x, false, t->y);
}

/* Times as many tiles as give MAX_SIDE outputs. */
static uint64_t time_of(void (*tile)(const struct trial *t), const struct trial *t)
{
	uint64_t start = mx_now_ns();
	for (uint32_t i = 0; i < MAX_SIDE / t->n; i++)
		tile(t);
	return mx_now_ns() - start;
}

static bool direct_wins(const struct trial *t)
{
	uint64_t best[2] = {UINT64_MAX, UINT64_MAX}, end = mx_now_ns() + ROUNDS_NS;
	for (unsigned i = 0; i < ROUNDS || mx_now_ns() < end; i++) {
		uint64_t d = time_of(direct, t), f = time_of(transform, t);
		best[0] = d < best[0] ? d : best[0];
		best[1] = f < best[1] ? f : best[1];
	}
	return (double)best[0] <= MARGIN * (double)best[1];
}

static uint32_t measure(const struct lc_kernels *k)
{
	const size_t row = LC_LANES * sizeof(float), floats = (size_t)8 * MAX_SIDE * LC_LANES;
	float *memory = aligned_alloc(64, 8 * MAX_SIDE * row);
	uint32_t side = MIN_SIDE;
	if (!memory)
		return side;
	for (size_t i = 0; i < floats; i++)
		memory[i] = 1 / (float)(1 + i % 61);
	unsigned state = k->begin();
	for (uint32_t n = 2 * MIN_SIDE; n <= MAX_SIDE; n *= 2) {
		struct trial t = {.k = k, .n = n, .lags = memory};
		struct lc_plan *plan;
		if (lc_plan_create(n, &plan) != MX_OK)
			break;
		t.plan = plan;
		t.z = t.lags + (size_t)2 * n * LC_LANES;
		t.spectrum = t.z + (size_t)n * LC_LANES;
		t.x = memory + (size_t)5 * n * LC_LANES;
		t.y = memory + (size_t)7 * n * LC_LANES;
		bool wins = direct_wins(&t);
		lc_plan_destroy(plan);
		if (!wins)
			break;
		side = n;
	}
	k->end(state);
	free(memory);
	return side;
}

/* ---- once in a process ---- */

uint32_t lc_crossing(const struct lc_kernels *k, bool *out_cached)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		const struct lc_kernels *k;
		uint32_t side;
		bool cached;
	} known[3]; /* as many as there are tables */
	unsigned i = 0;
	pthread_mutex_lock(&mutex);
	while (known[i].k && known[i].k != k)
		i++;
	if (!known[i].k) {
		char path[1024];
		bool place = cache_file(k, path, sizeof(path));
		uint32_t side = place ? read_side(path) : 0;
		known[i].cached = side != 0;
		if (side == 0) {
			side = measure(k);
			if (place) {
				side = store_side(path, side);
				known[i].cached = read_side(path) == side;
			}
		}
		known[i].k = k;
		known[i].side = side;
	}
	uint32_t side = known[i].side;
	if (out_cached)
		*out_cached = known[i].cached;
	pthread_mutex_unlock(&mutex);
	return side;
}
