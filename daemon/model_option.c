/* SPDX-License-Identifier: Apache-2.0 */
/* See model_option.h. */
#include "daemon/model_option.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Appends a YAML string in double quotes. */
static void put_quoted(struct mx_buf *b, const char *s, size_t len)
{
	mx_buf_putc(b, '"');
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c < 0x20 || c == 0x7f)
			mx_buf_printf(b, "\\x%02x", c);
		else if (c == '"' || c == '\\')
			mx_buf_printf(b, "\\%c", c);
		else
			mx_buf_putc(b, (char)c);
	}
	mx_buf_putc(b, '"');
}

static void put_key(struct mx_buf *b, const char *key, const char *value)
{
	mx_buf_puts(b, key);
	put_quoted(b, value, strlen(value));
	mx_buf_putc(b, '\n');
}

/* Returns the absolute path of a folder, which the caller frees. It need not exist: who opens it
 * says so. */
static char *absolute(const char *path)
{
	char *real = realpath(path, NULL);
	if (real)
		return real;
	char cwd[PATH_MAX];
	struct mx_buf b = {.limit = 2 * PATH_MAX};
	if (*path != '/' && getcwd(cwd, sizeof cwd))
		mx_buf_printf(&b, "%s/", cwd);
	mx_buf_puts(&b, path);
	return b.failed ? NULL : b.data;
}

static bool is_port(const char *s)
{
	size_t n = strlen(s);
	return n >= 1 && n <= 5 && strspn(s, "0123456789") == n && atoi(s) <= 65535;
}

mx_status mx_model_option_yaml(const struct mx_model_option *o, struct mx_buf *out,
                               struct mx_err *err)
{
	if (!o->model)
		return mx_fail_at(err, MX_E_INVALID,
		                  o->name   ? "--name"
		                  : o->port ? "--port"
		                            : "--device",
		                  "goes with --model; in a configuration file it is a key");
	if (!*o->model)
		return mx_fail_at(err, MX_E_INVALID, "--model", "must not be empty");
	if (o->port && !is_port(o->port))
		return mx_fail_at(err, MX_E_INVALID, "--port", "\"%.40s\" is not a port: 0 to 65535",
		                  o->port);
	char *path = absolute(o->model);
	if (!path)
		return mx_fail_at(err, MX_E_NOMEM, "--model", "no memory for the path");
	const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : "model";
	size_t n = strlen(base);
	char stem[256];
	if (n > 5 && n < sizeof stem && !strcmp(base + n - 5, ".gguf"))
		base = memcpy(stem, base, n - 4), stem[n - 5] = 0;
	mx_buf_printf(out, "http: { listen: \"127.0.0.1:%s\" }\nmodels:\n", o->port ? o->port : "8080");
	put_key(out, "  - name: ", o->name ? o->name : base);
	put_key(out, "    path: ", path);
	if (o->device)
		put_key(out, "    device: ", o->device);
	free(path);
	return out->failed ? mx_fail(err, MX_E_NOMEM, "out of memory") : MX_OK;
}
