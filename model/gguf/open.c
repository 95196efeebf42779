/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps a GGUF file and its shards. If a mapped file is truncated, the process dies of SIGBUS, as
 * any program that maps it would.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/gguf/file.h"

bool mx_gguf_is(const char *path)
{
	struct stat st;
	char head[4];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	bool is = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read(fd, head, 4) == 4 &&
	          !memcmp(head, "GGUF", 4);
	close(fd);
	return is;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static mx_status map_fd(int fd, const char *name, struct mx_gguf_mapping *out, struct mx_err *err)
{
	struct stat st;
	if (fstat(fd, &st))
		return mx_fail_at(err, MX_E_IO, name, "cannot be read: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return mx_fail_at(err, MX_E_IO, name, "is not a regular file");
	if (st.st_size < 24)
		return mx_fail_at(err, MX_E_FORMAT, name, "is %jd bytes long, too short for GGUF",
		                  (intmax_t)st.st_size);
	if ((uintmax_t)st.st_size > SIZE_MAX / 2)
		return mx_fail_at(err, MX_E_LIMIT, name, "is too large to be mapped");
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED)
		return mx_fail_at(err, MX_E_IO, name, "cannot be mapped: %s", strerror(errno));
	mx_map_hint_huge(p, (size_t)st.st_size);
	*out = (struct mx_gguf_mapping){p, (size_t)st.st_size};
	return MX_OK;
}

/* Maps a file and reads what is in front of its data. */
static mx_status add_file(struct mx_gguf *g, const char *path, struct mx_err *err)
{
	const char *name = base_name(path);
	struct mx_gguf_mapping *grown = mx_realloc(g->files, g->n_files + 1, sizeof *grown);
	if (!grown)
		return mx_fail_at(err, MX_E_NOMEM, name, "no memory for the table of files");
	g->files = grown;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return mx_fail_at(err, errno == ENOENT ? MX_E_NOTFOUND : MX_E_IO, path,
		                  "cannot be opened: %s", strerror(errno));
	mx_status s = map_fd(fd, name, &g->files[g->n_files], err);
	close(fd);
	if (s)
		return s;
	const struct mx_gguf_mapping *m = &g->files[g->n_files++];
	return mx_gguf_read(g, m->data, m->size, name, err);
}

/* Adds the other shards, if the first file says that there are any. Their names differ in the
 * number: NAME-00001-of-00003.gguf. */
static mx_status add_shards(struct mx_gguf *g, const char *path, struct mx_err *err)
{
	int64_t no = 0, count = 1;
	mx_status s = mx_gguf_int(g, "split.no", &no, NULL, err);
	if (!s)
		s = mx_gguf_int(g, "split.count", &count, NULL, err);
	if (s || count <= 1)
		return s;
	char tail[32], other[4096];
	size_t n = strlen(path), k;
	snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", 1, (int)(count & 0xffff));
	k = strlen(tail);
	if (no || count > MX_GGUF_MAX_SHARDS || n < k || strcmp(path + n - k, tail) != 0)
		return mx_fail_at(err, MX_E_INVALID, g->name,
		                  "is shard %" PRId64 " of %" PRId64
		                  ": give the first one, NAME%s, with the others beside it",
		                  no + 1, count, tail);
	if (n >= sizeof other)
		return mx_fail_at(err, MX_E_INVALID, g->name, "path is too long");
	for (int64_t i = 2; !s && i <= count; i++) {
		snprintf(other, sizeof other, "%.*s-%05d-of-%05d.gguf", (int)(n - k), path, (int)i,
		         (int)count);
		s = add_file(g, other, err);
	}
	return s;
}

mx_status mx_gguf_open(const char *path, struct mx_gguf **out, struct mx_err *err)
{
	struct mx_gguf *g = mx_calloc(1, sizeof *g);
	mx_status s = g ? add_file(g, path, err) : mx_fail_at(err, MX_E_NOMEM, path, "out of memory");
	if (!s)
		s = add_shards(g, path, err);
	if (!s)
		s = mx_gguf_index(g, err);
	if (s) {
		mx_gguf_close(g);
		return s;
	}
	*out = g;
	return MX_OK;
}

mx_status mx_gguf_parse(const void *data, size_t size, const char *name, struct mx_gguf **out,
                        struct mx_err *err)
{
	struct mx_gguf *g = mx_calloc(1, sizeof *g);
	mx_status s = g ? mx_gguf_read(g, data, size, name, err)
	                : mx_fail_at(err, MX_E_NOMEM, name, "out of memory");
	if (!s)
		s = mx_gguf_index(g, err);
	if (s) {
		mx_gguf_close(g);
		return s;
	}
	*out = g;
	return MX_OK;
}

void mx_gguf_close(struct mx_gguf *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->n_files; i++)
		munmap(g->files[i].data, g->files[i].size);
	free(g->files);
	free(g->values);
	free(g->tensors);
	mx_arena_free(&g->arena);
	free(g);
}

const char *mx_gguf_name(const struct mx_gguf *g)
{
	return g->name;
}

size_t mx_gguf_bytes(const struct mx_gguf *g)
{
	size_t n = 0;
	for (size_t i = 0; i < g->n_files; i++)
		n += g->files[i].size;
	return n;
}

size_t mx_gguf_count(const struct mx_gguf *g)
{
	return g->n_tensors;
}

const struct mx_gguf_tensor *mx_gguf_at(const struct mx_gguf *g, size_t i)
{
	return i < g->n_tensors ? &g->tensors[i] : NULL;
}
