/* SPDX-License-Identifier: Apache-2.0 */
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
	const struct mx_mixer_ops *ops; /* the module's own table */
	void *handle;
	char *path;
};

struct mx_registry {
	struct module *modules;
	size_t n;
	char **cuda; /* files of modules for CUDA that are not loaded */
	size_t n_cuda;
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
	for (size_t i = 0; i < r->n_cuda; i++)
		free(r->cuda[i]);
	free(r->modules);
	free(r->cuda);
	free(r);
}

/* Returns the module of that name that runs on one of the kinds of device in `caps`, or NULL. */
static const struct module *find_module(const struct mx_registry *r, const char *name,
                                        uint32_t caps)
{
	for (size_t i = 0; i < r->n; i++)
		if (!strcmp(r->modules[i].ops->name, name) && r->modules[i].ops->caps & caps)
			return &r->modules[i];
	return NULL;
}

/* Checks that this program can call the table. */
static mx_status check_table(const struct mx_registry *r, const char *path,
                             const struct mx_mixer_ops *ops, struct mx_err *err)
{
	if (!ops)
		return mx_fail_at(err, MX_E_FORMAT, path, "the module returned no table");
	if (ops->abi != MX_MIXER_ABI)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "the module has mixer ABI %u, this program has %u", (unsigned)ops->abi,
		                  (unsigned)MX_MIXER_ABI);
	if (ops->struct_size < sizeof(*ops))
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "the module's table has %u bytes, this program needs %zu",
		                  (unsigned)ops->struct_size, sizeof(*ops));
	if (!ops->name || !*ops->name || !ops->summary)
		return mx_fail_at(err, MX_E_FORMAT, path, "the module has no name or no summary");
	if (!ops->probe || !ops->weights || !ops->state || !ops->extent || !ops->create ||
	    !ops->prepare || !ops->destroy || !ops->forward || !ops->commit || !ops->settle ||
	    !ops->fork || !ops->save || !ops->load || !ops->resume || !ops->describe)
		return mx_fail_at(err, MX_E_FORMAT, path, "mixer \"%s\" leaves an entry of its table empty",
		                  ops->name);
	const uint32_t kinds = ops->caps & (MX_MIXER_CPU | MX_MIXER_CUDA);
	if (!kinds)
		return mx_fail_at(err, MX_E_FORMAT, path, "mixer \"%s\" runs on no kind of device",
		                  ops->name);
	const struct module *known = find_module(r, ops->name, kinds);
	if (known)
		return mx_fail_at(err, MX_E_INVALID, path, "mixer \"%s\" is already loaded from %s",
		                  ops->name, known->path);
	return MX_OK;
}

/* The symbol by which modules of version 1 exported their tables. */
#define SYMBOL_V1 "mx_mixer_module_v1"

/* Finds the function that returns the module's table. */
static mx_status find_symbol(const struct module *m, mx_mixer_module_f **out, struct mx_err *err)
{
	void *symbol = dlsym(m->handle, MX_MIXER_MODULE_SYMBOL);
	if (symbol) {
		memcpy(out, &symbol, sizeof(*out)); /* POSIX: a dlsym result may be a function */
		return MX_OK;
	}
	if (dlsym(m->handle, SYMBOL_V1))
		return mx_fail_at(
			err, MX_E_UNSUPPORTED, m->path,
			"the module was built for version 1 of the mixer contract, and this program "
			"has version %d: build it again with this program's mixers/mixer.h",
			MX_MIXER_ABI);
	return mx_fail_at(err, MX_E_FORMAT, m->path, "not a mixer module: it has no symbol %s",
	                  MX_MIXER_MODULE_SYMBOL);
}

/* Loads the module. Takes `path`, on failure too. */
static mx_status load_path(struct mx_registry *r, char *path, struct mx_err *err)
{
	struct module m = {.path = path};
	mx_status status;

	m.handle = dlopen(m.path, RTLD_NOW | RTLD_LOCAL);
	if (!m.handle) {
		const char *why = dlerror();
		status = mx_fail_at(err, MX_E_FORMAT, m.path, "cannot load the module: %s",
		                    why ? why : "unknown error");
		goto fail;
	}
	mx_mixer_module_f *module = NULL;
	status = find_symbol(&m, &module, err);
	if (status != MX_OK)
		goto fail;
	m.ops = module();
	status = check_table(r, m.path, m.ops, err);
	if (status != MX_OK)
		goto fail;
	struct module *grown = mx_realloc(r->modules, r->n + 1, sizeof(*grown));
	if (!grown) {
		status = mx_fail_at(err, MX_E_NOMEM, m.path, "out of memory");
		goto fail;
	}
	r->modules = grown;
	r->modules[r->n++] = m;
	return MX_OK;
fail:
	module_close(&m);
	return status;
}

/* Keeps the file for mx_registry_load_cuda. Takes `path`, on failure too. */
static mx_status remember(struct mx_registry *r, char *path, struct mx_err *err)
{
	char **grown = mx_realloc(r->cuda, r->n_cuda + 1, sizeof(*grown));
	if (!grown) {
		free(path);
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	r->cuda = grown;
	r->cuda[r->n_cuda++] = path;
	return MX_OK;
}

mx_status mx_registry_load_file(struct mx_registry *r, const char *file, struct mx_err *err)
{
	size_t len = strlen(file) + 3;
	char *path = malloc(len);
	if (!path)
		return mx_fail_at(err, MX_E_NOMEM, file, "out of memory");
	/* dlopen looks for a name without a slash in the system's folders */
	snprintf(path, len, "%s%s", strchr(file, '/') ? "" : "./", file);
	return load_path(r, path, err);
}

static bool ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n > k && !strcmp(s + n - k, end);
}

static mx_status see_file(struct mx_registry *r, const char *dir, const char *file,
                          struct mx_err *err)
{
	size_t len = strlen(dir) + strlen(file) + 2;
	char *path = malloc(len);
	if (!path)
		return mx_fail_at(err, MX_E_NOMEM, dir, "out of memory");
	snprintf(path, len, "%s/%s", dir, file);
	return ends_in(file, "-cuda.so") ? remember(r, path, err) : load_path(r, path, err);
}

static int is_module(const struct dirent *e)
{
	return e->d_name[0] != '.' && ends_in(e->d_name, ".so");
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
			status = see_file(r, dir, files[i]->d_name, err);
		free(files[i]);
	}
	free(files);
	return status;
}

mx_status mx_registry_load_cuda(struct mx_registry *r, struct mx_err *err)
{
	mx_status status = MX_OK;

	for (size_t i = 0; i < r->n_cuda; i++) {
		if (status == MX_OK)
			status = load_path(r, r->cuda[i], err);
		else
			free(r->cuda[i]);
	}
	r->n_cuda = 0;
	return status;
}

const struct mx_mixer_ops *mx_registry_find(const struct mx_registry *r, const char *name,
                                            enum mx_device_kind kind, struct mx_err *err)
{
	const uint32_t cap = kind == MX_DEVICE_CUDA ? MX_MIXER_CUDA : MX_MIXER_CPU;
	const struct module *m = find_module(r, name, cap);
	if (m)
		return m->ops;
	struct mx_buf known = {.limit = 400};
	for (size_t i = 0; i < r->n; i++)
		if (r->modules[i].ops->caps & cap)
			mx_buf_printf(&known, "%s%s", known.len ? ", " : "", r->modules[i].ops->name);
	mx_fail(err, MX_E_NOTFOUND, "no mixer \"%s\" for %s; known: %s", name,
	        kind == MX_DEVICE_CUDA ? "CUDA devices" : "CPUs",
	        known.len ? mx_buf_str(&known) : "none");
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
