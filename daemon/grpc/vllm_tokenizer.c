/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service vllm.grpc.engine.VllmEngine: GetTokenizer, a zip archive of the files from
 * which a gateway makes the model's tokenizer and chat template, in chunks; the last one
 * has the archive's SHA-256. Files are read as the client takes them.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "daemon/grpc/front_impl.h"
#include "daemon/grpc/zip.h"
#include "proto/pb/vllm/common.pb-c.h"

/* The gateway takes archives of at most 200 MiB and 50 files, in messages of at most 64 KiB. */
#define MAX_BYTES   ((off_t)200 << 20)
#define MAX_FILES   50
#define CHUNK_BYTES ((size_t)63 << 10)

struct bundle {
	int folder; /* file descriptor */
	char names[MAX_FILES][64];
	size_t n_names, at;
	int file; /* that is being read, or -1 */
	off_t n_bytes;
	bool complete;
	struct mx_zip zip;
	struct mx_sha256 sha;
};

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);
	return n >= m && !strcmp(s + n - m, end);
}

static bool is_wanted(const char *name)
{
	static const char *const names[] = {
		"tokenizer.json", "tokenizer_config.json",   "config.json", "generation_config.json",
		"vocab.json",     "special_tokens_map.json", "merges.txt",  "chat_template.json",
		"tekken.json",    "added_tokens.json"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(names[i], name))
			return true;
	return ends_with(name, ".jinja") || ends_with(name, ".model") || ends_with(name, ".tiktoken");
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Lists the files by name, so that the archive is the same every time. */
static void list_files(struct bundle *b, const char *folder)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d)) && b->n_names < MAX_FILES;) {
		size_t n = strlen(e->d_name);
		if (n < sizeof(b->names[0]) && is_wanted(e->d_name))
			memcpy(b->names[b->n_names++], e->d_name, n + 1);
	}
	if (d)
		closedir(d);
	qsort(b->names, b->n_names, sizeof(b->names[0]), compare);
}

static void free_bundle(struct bundle *b)
{
	if (!b)
		return;
	if (b->folder >= 0)
		close(b->folder);
	if (b->file >= 0)
		close(b->file);
	mx_zip_free(&b->zip);
	free(b);
}

static struct bundle *new_bundle(const char *folder)
{
	struct bundle *b = mx_calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->file = -1;
	b->folder = folder[0] ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	mx_zip_init(&b->zip);
	mx_sha256_begin(&b->sha);
	if (b->folder >= 0)
		list_files(b, folder);
	return b;
}

static void take(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_served *m = mx_grpc_first_model(c);
	(void)message;
	(void)n;
	if (!m)
		return;
	struct bundle *b = new_bundle(m->folder);
	mx_served_release(m);
	if (b && b->n_names) {
		mx_rpc_set_state(c, b);
		return;
	}
	if (b)
		mx_rpc_fail(c, MX_RPC_FAILED_PRECONDITION, "the model's folder has no tokenizer's files",
		            NULL, 0);
	else
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	free_bundle(b);
}

/* Appends some of the archive. Fails if a file cannot be read or all are too large. */
static bool advance(struct bundle *b, struct mx_buf *out)
{
	uint8_t piece[8 << 10];
	if (b->file >= 0) {
		ssize_t n = read(b->file, piece, sizeof(piece));
		if (n < 0 || (b->n_bytes += n) > MAX_BYTES)
			return false;
		if (n > 0) {
			mx_zip_data(&b->zip, piece, (size_t)n, out);
			return true;
		}
		close(b->file);
		b->file = -1;
		mx_zip_end(&b->zip, out);
		return true;
	}
	if (b->at == b->n_names) {
		mx_zip_finish(&b->zip, out);
		b->complete = true;
		return true;
	}
	const char *name = b->names[b->at++];
	struct stat st;
	b->file = openat(b->folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (b->file < 0 || fstat(b->file, &st) || !S_ISREG(st.st_mode))
		return false;
	mx_zip_begin(&b->zip, name, out);
	return true;
}

static enum mx_rpc_next next(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct bundle *b = mx_rpc_state(c);
	struct mx_buf data = {0};
	char hex[2 * MX_SHA256_BYTES + 1];
	Smg__Grpc__Common__GetTokenizerChunk m = SMG__GRPC__COMMON__GET_TOKENIZER_CHUNK__INIT;
	while (data.len < CHUNK_BYTES - (8 << 10) && !b->complete) {
		if (advance(b, &data) && !data.failed)
			continue;
		mx_buf_free(&data);
		mx_rpc_fail(c, MX_RPC_INTERNAL, "a file of the tokenizer cannot be read, or is too large",
		            NULL, 0);
		return MX_RPC_DONE;
	}
	mx_sha256_add(&b->sha, mx_buf_str(&data), data.len);
	m.data = mx_pb_bytes(mx_buf_str(&data), data.len);
	if (b->complete) {
		uint8_t digest[MX_SHA256_BYTES];
		mx_sha256_end(&b->sha, digest);
		for (size_t i = 0; i < sizeof(digest); i++) {
			hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
			hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
		}
		m.sha256 = mx_pb_bytes(hex, sizeof(hex) - 1);
	}
	mx_pb_pack(&m.base, out);
	mx_buf_free(&data);
	return b->complete ? MX_RPC_MESSAGE | MX_RPC_DONE : MX_RPC_MESSAGE;
}

static void end(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	(void)code;
	free_bundle(mx_rpc_state(c));
}

const struct mx_rpc_method mx_vllm_tokenizer = {.path = "/vllm.grpc.engine.VllmEngine/GetTokenizer",
                                                .server_streams = true,
                                                .take = take,
                                                .next = next,
                                                .end = end};
