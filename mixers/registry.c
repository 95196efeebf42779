/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads mixer modules: every "*.so" of a directory, in order of name.
 *
 * The registry owns the dlopen handles; a table is valid until the registry is
 * destroyed. Built once at start by one thread, then only read.
 */
#include "mixers/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct module {
	const struct mx_mixer_ops *ops;
	void *handle;
	char *path;
};

struct mx_registry {
	struct module *modules;
	size_t n;
};

mx_status mx_registry_create(struct mx_registry **out)
{
	struct mx_registry *r = calloc(1, sizeof(*r));
	if (!r)
		return MX_E_NOMEM;
	*out = r;
	return MX_OK;
}

static void module_close(struct module *m)
{
	free(m->path);
	if (m->handle)
		dlclose(m->handle);
}

void mx_registry_destroy(struct mx_registry *r)
{
	if (!r)
		return;
	for (size_t i = r->n; i > 0; i--)
		module_close(&r->modules[i - 1]);
	free(r->modules);
	free(r);
}

static const struct module *find(const struct mx_registry *r, const char *name)
{
	for (size_t i = 0; i < r->n; i++)
		if (!strcmp(r->modules[i].ops->name, name))
			return &r->modules[i];
	return NULL;
}

/* Is the table one that this program can call? */
static mx_status check_table(const struct mx_registry *r, const char *path,
                             const struct mx_mixer_ops *ops, struct mx_err *err)
{
	if (!ops)
		return mx_fail_at(err, MX_E_FORMAT, path, "the module returned no table");
	if (ops->abi != MX_MIXER_ABI)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "the module has mixer ABI %u, this program has %u", (unsigned)ops->abi,
		                  (unsigned)MX_MIXER_ABI);
	if (ops->struct_size < sizeof(struct mx_mixer_ops))
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "the module's table has %u bytes, this program needs %zu",
		                  (unsigned)ops->struct_size, sizeof(struct mx_mixer_ops));
	if (!ops->name || !*ops->name || !ops->summary)
		return mx_fail_at(err, MX_E_FORMAT, path, "the module has no name or no summary");
	if (!ops->probe || !ops->weights || !ops->state || !ops->create || !ops->destroy ||
	    !ops->forward || !ops->commit || !ops->settle || !ops->fork || !ops->save || !ops->load ||
	    !ops->describe)
		return mx_fail_at(err, MX_E_FORMAT, path, "mixer \"%s\" leaves a slot of its table empty",
		                  ops->name);
	const struct module *known = find(r, ops->name);
	if (known)
		return mx_fail_at(err, MX_E_INVALID, path, "mixer \"%s\" is already loaded from %s",
		                  ops->name, known->path);
	return MX_OK;
}

static mx_status load_file(struct mx_registry *r, const char *dir, const char *file,
                           struct mx_err *err)
{
	struct module m = {0};
	mx_status status = MX_E_NOMEM;
	size_t len = strlen(dir) + strlen(file) + 2;

	m.path = malloc(len);
	if (!m.path)
		goto fail;
	snprintf(m.path, len, "%s/%s", dir, file);
	m.handle = dlopen(m.path, RTLD_NOW | RTLD_LOCAL);
	if (!m.handle) {
		const char *why = dlerror();
		status = mx_fail_at(err, MX_E_FORMAT, m.path, "cannot load the module: %s",
		                    why ? why : "unknown error");
		goto fail;
	}
	void *symbol = dlsym(m.handle, MX_MIXER_MODULE_SYMBOL);
	if (!symbol) {
		status = mx_fail_at(err, MX_E_FORMAT, m.path, "not a mixer module: it has no symbol %s",
		                    MX_MIXER_MODULE_SYMBOL);
		goto fail;
	}
	mx_mixer_module_f *module;
	memcpy(&module, &symbol, sizeof(module)); /* POSIX: a dlsym result may be a function */
	m.ops = module();
	status = check_table(r, m.path, m.ops, err);
	if (status != MX_OK)
		goto fail;
	struct module *grown = mx_realloc(r->modules, r->n + 1, sizeof(*grown));
	if (!grown) {
		status = MX_E_NOMEM;
		goto fail;
	}
	r->modules = grown;
	r->modules[r->n++] = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_fail_at(err, status, dir, "out of memory");
	module_close(&m);
	return status;
}

static int is_module(const struct dirent *e)
{
	size_t n = strlen(e->d_name);
	return n > 3 && e->d_name[0] != '.' && !strcmp(e->d_name + n - 3, ".so");
}

mx_status mx_registry_load_dir(struct mx_registry *r, const char *dir, struct mx_err *err)
{
	struct dirent **files = NULL;
	mx_status status = MX_OK;

	int n = scandir(dir, &files, is_module, alphasort);
	if (n < 0)
		return mx_fail_at(err, errno == ENOMEM ? MX_E_NOMEM : MX_E_IO, dir,
		                  "cannot read the module directory: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		if (status == MX_OK)
			status = load_file(r, dir, files[i]->d_name, err);
		free(files[i]);
	}
	free(files);
	return status;
}

const struct mx_mixer_ops *mx_registry_find(const struct mx_registry *r, const char *name,
                                            struct mx_err *err)
{
	const struct module *m = find(r, name);
	if (m)
		return m->ops;
	struct mx_buf known = {.limit = 400};
	for (size_t i = 0; i < r->n; i++)
		mx_buf_printf(&known, "%s%s", i ? ", " : "", r->modules[i].ops->name);
	mx_fail(err, MX_E_NOTFOUND, "no mixer \"%s\"; known: %s", name,
	        r->n ? mx_buf_str(&known) : "none");
	mx_buf_free(&known);
	return NULL;
}

const struct mx_mixer_ops *mx_registry_at(const struct mx_registry *r, size_t i,
                                          const char **out_path)
{
	if (i >= r->n)
		return NULL;
	if (out_path)
		*out_path = r->modules[i].path;
	return r->modules[i].ops;
}
