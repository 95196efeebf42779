/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the safetensors files of a checkpoint folder and joins them into one
 * table of tensors, or takes them from a GGUF file. If a mapped file is truncated, the process dies
 * of SIGBUS, as any program that maps it would.
 */
#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/checkpoint_gguf.h"
#include "model/config_json.h"
#include "model/safetensors_file.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"
#define MAX_INDEX   (64u << 20) /* bytes; the largest models of today have under 20 MiB */
#define MAX_SHARDS  1024

/* One mapped file. */
struct shard {
	char *name; /* base name */
	void *data;
	size_t size;
	struct mx_st_entry *entries; /* [n], sorted by name */
	size_t n;
};

struct mx_checkpoint {
	char *dir;
	struct mx_arena arena;
	struct shard *shards;
	size_t n_shards;
	struct mx_gguf *gguf;      /* the file, if the checkpoint is one; then there are no shards */
	struct mx_tensor *tensors; /* [n], sorted by name; of supported dtypes */
	size_t n;
	struct mx_st_entry *others; /* [n_others], sorted by name; of other dtypes */
	size_t n_others;
	size_t bytes;
};

static mx_status no_memory(struct mx_err *err, const char *where)
{
	return mx_fail_at(err, MX_E_NOMEM, where, "no memory for the table of tensors");
}

/* Returns DIR/NAME, which the caller frees, or NULL. */
static char *join(const char *dir, const char *name)
{
	size_t n = strlen(dir) + strlen(name) + 2;
	char *p = mx_calloc(n, 1);
	if (p)
		snprintf(p, n, "%s/%s", dir, name);
	return p;
}

static mx_status map_fd(int fd, const char *name, struct shard *sh, struct mx_err *err)
{
	struct stat st;
	if (fstat(fd, &st))
		return mx_fail_at(err, MX_E_IO, name, "cannot be read: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return mx_fail_at(err, MX_E_IO, name, "is not a regular file");
	if (st.st_size < 8)
		return mx_fail_at(err, MX_E_FORMAT, name, "is %jd bytes long, too short for a header",
		                  (intmax_t)st.st_size);
	if ((uintmax_t)st.st_size > SIZE_MAX / 2)
		return mx_fail_at(err, MX_E_LIMIT, name, "is too large to be mapped");
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED)
		return mx_fail_at(err, MX_E_IO, name, "cannot be mapped: %s", strerror(errno));
	mx_map_hint_huge(p, (size_t)st.st_size);
	sh->data = p;
	sh->size = (size_t)st.st_size;
	return MX_OK;
}

/* Maps DIR/name and reads its header. c owns the shard from the start, so that close frees it. */
static mx_status add_shard(struct mx_checkpoint *c, const char *name, struct mx_err *err)
{
	struct shard *grown = mx_realloc(c->shards, c->n_shards + 1, sizeof *grown);
	if (!grown)
		return no_memory(err, name);
	c->shards = grown;
	struct shard *sh = &c->shards[c->n_shards];
	*sh = (struct shard){.name = strdup(name)};
	c->n_shards++;

	char *path = join(c->dir, name);
	if (!path || !sh->name) {
		free(path);
		return no_memory(err, name);
	}
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	free(path);
	if (fd < 0)
		return mx_fail_at(err, errno == ENOENT ? MX_E_NOTFOUND : MX_E_IO, name,
		                  "cannot be opened: %s", strerror(errno));
	mx_status s = map_fd(fd, name, sh, err);
	close(fd);
	if (s)
		return s;
	c->bytes += sh->size;
	return mx_st_read(sh->data, sh->size, name, &c->arena, &sh->entries, &sh->n, err);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct mx_tensor *)a)->name, ((const struct mx_tensor *)b)->name);
}

/* Looks a name up in a table whose elements begin with a struct mx_tensor. */
static const void *lookup(const void *table, size_t n, size_t size, const char *name)
{
	struct mx_tensor key = {.name = name};
	return n ? bsearch(&key, table, n, size, by_name) : NULL;
}

static void add_entry(struct mx_checkpoint *c, const struct mx_st_entry *e)
{
	if (e->other)
		c->others[c->n_others++] = *e;
	else
		c->tensors[c->n++] = e->tensor;
}

static bool make_room(struct mx_checkpoint *c, size_t n)
{
	c->tensors = mx_calloc(n + 1, sizeof *c->tensors);
	c->others = mx_calloc(n + 1, sizeof *c->others);
	return c->tensors && c->others;
}

static mx_status open_single(struct mx_checkpoint *c, struct mx_err *err)
{
	mx_status s = add_shard(c, SINGLE_FILE, err);
	if (s)
		return s;
	const struct shard *sh = &c->shards[0];
	if (!make_room(c, sh->n))
		return no_memory(err, SINGLE_FILE);
	for (size_t i = 0; i < sh->n; i++)
		add_entry(c, &sh->entries[i]);
	return MX_OK;
}

/* True for a plain file name: the index must not lead out of the folder. */
static bool plain_name(const char *name)
{
	size_t n = strlen(name);
	return n > 0 && n < 256 && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

static const struct shard *find_shard(const struct mx_checkpoint *c, const char *name)
{
	for (size_t i = 0; i < c->n_shards; i++)
		if (!strcmp(c->shards[i].name, name))
			return &c->shards[i];
	return NULL;
}

/* Fills the table with the tensors that the index lists. Others in a shard are not part of the
 * model. */
static mx_status read_weight_map(struct mx_checkpoint *c, json_t *map, struct mx_err *err)
{
	const char *name;
	json_t *v;

	if (!json_is_object(map))
		return mx_fail_at(err, MX_E_FORMAT, INDEX_FILE, "'weight_map' is missing or not an object");
	if (!make_room(c, json_object_size(map)))
		return no_memory(err, INDEX_FILE);
	json_object_foreach(map, name, v)
	{
		const char *file = json_string_value(v);
		mx_status s;
		if (!file || !plain_name(file))
			return mx_fail_at(err, MX_E_FORMAT, INDEX_FILE,
			                  "tensor '%.160s': its shard is not the plain name of a file", name);
		const struct shard *sh = find_shard(c, file);
		if (!sh && c->n_shards == MAX_SHARDS)
			return mx_fail_at(err, MX_E_LIMIT, INDEX_FILE, "names more than %d shards", MAX_SHARDS);
		if (!sh) {
			s = add_shard(c, file, err);
			if (s == MX_E_NOTFOUND)
				return mx_fail_at(err, MX_E_NOTFOUND, INDEX_FILE,
				                  "tensor '%.160s': its shard '%.160s' is missing", name, file);
			if (s)
				return s;
			sh = &c->shards[c->n_shards - 1];
		}
		const struct mx_st_entry *e = lookup(sh->entries, sh->n, sizeof *e, name);
		if (!e)
			return mx_fail_at(err, MX_E_FORMAT, INDEX_FILE,
			                  "tensor '%.160s': is not in its shard '%.160s'", name, file);
		add_entry(c, e);
	}
	if (c->n)
		qsort(c->tensors, c->n, sizeof *c->tensors, by_name);
	if (c->n_others)
		qsort(c->others, c->n_others, sizeof *c->others, by_name);
	return MX_OK;
}

static mx_status open_sharded(struct mx_checkpoint *c, struct mx_err *err)
{
	char *path = join(c->dir, INDEX_FILE), *text = NULL;
	size_t len;
	json_t *index = NULL;
	mx_status s =
		path ? mx_json_slurp(path, MAX_INDEX, &text, &len, err) : no_memory(err, INDEX_FILE);
	if (s == MX_E_NOTFOUND)
		s = mx_fail_at(err, MX_E_NOTFOUND, c->dir, "holds neither " SINGLE_FILE " nor " INDEX_FILE);
	if (!s)
		s = mx_json_parse(text, len, INDEX_FILE, &index, err);
	if (!s)
		s = read_weight_map(c, json_object_get(index, "weight_map"), err);
	json_decref(index);
	free(text);
	free(path);
	return s;
}

static mx_status open_gguf(struct mx_checkpoint *c, struct mx_err *err)
{
	mx_status s = mx_gguf_open(c->dir, &c->gguf, err);
	if (s)
		return s;
	c->bytes = mx_gguf_bytes(c->gguf);
	return mx_checkpoint_gguf(c->gguf, &c->arena, &c->tensors, &c->n, err);
}

mx_status mx_checkpoint_open(const char *dir, struct mx_checkpoint **out, struct mx_err *err)
{
	struct mx_checkpoint *c = mx_calloc(1, sizeof *c);
	char *single = join(dir, SINGLE_FILE);
	mx_status s;
	if (!c || !single || !(c->dir = strdup(dir)))
		s = no_memory(err, dir);
	else if (mx_gguf_is(dir))
		s = open_gguf(c, err);
	else if (!access(single, F_OK))
		s = open_single(c, err);
	else
		s = open_sharded(c, err);
	free(single);
	if (s) {
		mx_checkpoint_close(c);
		return s;
	}
	for (size_t i = 0; i < c->n_shards; i++) {
		free(c->shards[i].entries);
		c->shards[i].entries = NULL;
	}
	*out = c;
	return MX_OK;
}

void mx_checkpoint_close(struct mx_checkpoint *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->n_shards; i++) {
		free(c->shards[i].entries);
		free(c->shards[i].name);
		if (c->shards[i].data)
			munmap(c->shards[i].data, c->shards[i].size);
	}
	mx_gguf_close(c->gguf);
	free(c->shards);
	free(c->tensors);
	free(c->others);
	free(c->dir);
	mx_arena_free(&c->arena);
	free(c);
}

mx_status mx_checkpoint_find(const struct mx_checkpoint *c, const char *name,
                             const struct mx_tensor **out, struct mx_err *err)
{
	const struct mx_tensor *t = lookup(c->tensors, c->n, sizeof *t, name);
	if (t) {
		*out = t;
		return MX_OK;
	}
	const struct mx_st_entry *other = lookup(c->others, c->n_others, sizeof *other, name);
	if (other)
		return mx_fail_at(err, MX_E_UNSUPPORTED, other->tensor.file,
		                  "tensor '%.160s': dtype %s is not F32, F16 or BF16", name, other->other);
	return mx_fail_at(err, MX_E_NOTFOUND, c->dir, "tensor '%.160s' is missing", name);
}

mx_status mx_checkpoint_find_raw(const struct mx_checkpoint *c, const char *name, const char *dtype,
                                 const struct mx_tensor **out, struct mx_err *err)
{
	const struct mx_st_entry *e = lookup(c->others, c->n_others, sizeof *e, name);
	if (!e || strcmp(e->other, dtype) != 0)
		return mx_fail_at(err, MX_E_NOTFOUND, c->dir, "tensor '%.160s' of %s is missing", name,
		                  dtype);
	*out = &e->tensor;
	return MX_OK;
}

size_t mx_checkpoint_count(const struct mx_checkpoint *c)
{
	return c->n;
}

const struct mx_tensor *mx_checkpoint_at(const struct mx_checkpoint *c, size_t i)
{
	return i < c->n ? &c->tensors[i] : NULL;
}

size_t mx_checkpoint_bytes(const struct mx_checkpoint *c)
{
	return c->bytes;
}
