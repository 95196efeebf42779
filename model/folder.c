/* SPDX-License-Identifier: Apache-2.0 */
/* See folder.h. */
#include "model/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LFS_POINTER "version https://git-lfs.github.com/spec/v1"
#define FORM        "config.json, model.safetensors, tokenizer.json"

/* What a folder holds. */
struct content {
	bool config, safetensors;
	char gguf[160], pickle[160], pointer[160]; /* a file of that kind, or empty */
};

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n >= k && !strcmp(s + n - k, end);
}

/* Reads the first bytes of a regular file; all zero if there are none. */
static void peek(int folder, const char *name, char head[64])
{
	struct stat st;
	memset(head, 0, 64);
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read(fd, head, 63) < 0)
		memset(head, 0, 64);
	close(fd);
}

static bool is_pointer(const char *head)
{
	return !strncmp(head, LFS_POINTER, sizeof LFS_POINTER - 1);
}

static mx_status not_fetched(const char *where, struct mx_err *err)
{
	return mx_fail_at(err, MX_E_FORMAT, where,
	                  "is a git-lfs pointer, not the file itself: run \"git lfs install && git lfs "
	                  "pull\" in its folder");
}

static mx_status is_gguf(const char *where, const char *what, struct mx_err *err)
{
	return mx_fail_at(
		err, MX_E_INVALID, where,
		"%s GGUF and no checkpoint in Hugging Face form: give the path of the file, the "
		"first one if there are several",
		what);
}

static mx_status explain_file(const char *path, struct mx_err *err)
{
	char head[64];
	peek(AT_FDCWD, path, head);
	if (is_pointer(head))
		return not_fetched(path, err);
	return mx_fail_at(err, MX_E_INVALID, path,
	                  "is a file: give the folder that holds the checkpoint (" FORM ")");
}

/* Returns the last two parts of a path if they look like the name of a model on the Hugging Face
 * Hub, "org/name": the folder "org" does not exist, or the path has no more parts. Else NULL. */
static const char *hub_name(const char *path)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_/";
	const char *name = strrchr(path, '/'), *org = path;
	if (!name || name == path || !name[1])
		return NULL;
	for (const char *p = name - 1; p >= path; p--)
		if (*p == '/') {
			org = p + 1;
			break;
		}
	char parent[4096];
	struct stat st;
	size_t n = (size_t)(name - path);
	if (org == name || *org == '.' || strspn(org, plain) != strlen(org) || n >= sizeof parent)
		return NULL;
	memcpy(parent, path, n);
	parent[n] = 0;
	return stat(parent, &st) ? org : NULL;
}

static mx_status explain_absent(const char *dir, struct mx_err *err)
{
	const char *org = hub_name(dir);
	if (!org)
		return mx_fail_at(err, MX_E_NOTFOUND, dir, "there is no such folder");
	return mx_fail_at(err, MX_E_NOTFOUND, dir,
	                  "there is no such folder. If %.100s is a model on the Hugging Face Hub, "
	                  "download it (hf download %.100s --local-dir DIR) and give DIR as its path",
	                  org, org);
}

static void look_at(struct content *c, int folder, const char *name)
{
	char head[64];
	if (ends_with(name, ".safetensors") || ends_with(name, ".json")) {
		peek(folder, name, head);
		if (is_pointer(head))
			snprintf(c->pointer, sizeof c->pointer, "%.159s", name);
	}
	if (!strcmp(name, "config.json"))
		c->config = true;
	if (ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json"))
		c->safetensors = true;
	else if (ends_with(name, ".gguf"))
		snprintf(c->gguf, sizeof c->gguf, "%.159s", name);
	else if ((!strncmp(name, "pytorch_model", 13) && ends_with(name, ".bin")) ||
	         ends_with(name, ".pth") || ends_with(name, ".pt"))
		snprintf(c->pickle, sizeof c->pickle, "%.159s", name);
}

mx_status mx_folder_check(const char *dir, struct mx_err *err)
{
	struct stat st;
	struct content c = {0};
	if (stat(dir, &st))
		return errno == ENOENT
		           ? explain_absent(dir, err)
		           : mx_fail_at(err, MX_E_IO, dir, "cannot be opened: %s", strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return explain_file(dir, err);
	DIR *d = opendir(dir);
	if (!d)
		return mx_fail_at(err, MX_E_IO, dir, "cannot be opened: %s", strerror(errno));
	for (const struct dirent *e; (e = readdir(d));)
		look_at(&c, dirfd(d), e->d_name);
	closedir(d);

	char where[sizeof err->where];
	if (c.pointer[0]) {
		snprintf(where, sizeof where, "%.*s/%s", 190 - (int)strlen(c.pointer), dir, c.pointer);
		return not_fetched(where, err);
	}
	if (!c.safetensors && c.gguf[0]) {
		char what[200];
		snprintf(what, sizeof what, "holds %s in", c.gguf);
		return is_gguf(dir, what, err);
	}
	if (!c.safetensors && c.pickle[0])
		return mx_fail_at(err, MX_E_UNSUPPORTED, dir,
		                  "holds %s, a pickle, which may run code when it is read, and no "
		                  "safetensors: convert it: python3 -c 'from transformers import "
		                  "AutoModelForCausalLM as M, AutoTokenizer as T; d, o = \"%.60s\", "
		                  "\"NEW\"; M.from_pretrained(d).save_pretrained(o); "
		                  "T.from_pretrained(d).save_pretrained(o)', and give NEW as its path",
		                  c.pickle, dir);
	if (!c.config)
		return mx_fail_at(
			err, MX_E_NOTFOUND, dir,
			"is not a model folder: it has no config.json; give the folder that holds "
			"the checkpoint (" FORM ")");
	return MX_OK;
}
