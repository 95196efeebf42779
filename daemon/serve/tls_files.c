/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/tls_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAX_FILE ((size_t)1 << 20)

/* Reads what is left of a file of at most MAX_FILE bytes. */
static mx_status read_all(FILE *f, const char *path, char **out, struct mx_err *err)
{
	char *text = mx_calloc(MAX_FILE + 2, 1);
	if (!text)
		return mx_fail_at(err, MX_E_NOMEM, path, "out of memory");
	size_t n = fread(text, 1, MAX_FILE + 1, f);
	mx_status st = MX_OK;
	if (ferror(f))
		st = mx_fail_at(err, MX_E_IO, path, "cannot be read: %s", strerror(errno));
	else if (n > MAX_FILE)
		st = mx_fail_at(err, MX_E_LIMIT, path, "is larger than 1 MiB");
	else if (!strstr(text, "-----BEGIN "))
		st = mx_fail_at(err, MX_E_FORMAT, path, "has no \"-----BEGIN\" line: it must be PEM");
	*out = st == MX_OK ? strdup(text) : NULL;
	explicit_bzero(text, n);
	free(text);
	if (st == MX_OK && !*out)
		st = mx_fail_at(err, MX_E_NOMEM, path, "out of memory");
	return st;
}

static mx_status read_file(const char *path, char **out, struct mx_err *err)
{
	if (!path)
		return MX_OK;
	FILE *f = fopen(path, "re");
	if (!f)
		return mx_fail_at(err, MX_E_IO, path, "cannot be opened: %s", strerror(errno));
	mx_status st = read_all(f, path, out, err);
	fclose(f);
	return st;
}

mx_status mx_tls_files_read(const struct mx_tls_paths *paths, struct mx_tls_files *out,
                            struct mx_err *err)
{
	struct mx_tls_files f = {0};
	mx_status st = read_file(paths->cert, &f.cert, err);
	if (st == MX_OK)
		st = read_file(paths->key, &f.key, err);
	if (st == MX_OK)
		st = read_file(paths->client_ca, &f.client_ca, err);
	if (st == MX_OK)
		*out = f;
	else
		mx_tls_files_free(&f);
	return st;
}

void mx_tls_files_free(struct mx_tls_files *f)
{
	if (f->key)
		explicit_bzero(f->key, strlen(f->key));
	free(f->cert);
	free(f->key);
	free(f->client_ca);
	*f = (struct mx_tls_files){0};
}
