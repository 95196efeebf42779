/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "base/paths.h"

static mx_status load(const char *path, const struct mx_module *m, void **out, struct mx_err *err)
{
	/* never unloaded: libraries behind it may have threads until the process ends */
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle) {
		const char *why = dlerror();
		return mx_fail_at(err, MX_E_NOTFOUND, path, "cannot load %s: %s", m->what,
		                  why ? why : "unknown error");
	}
	void *symbol = dlsym(handle, m->symbol);
	if (!symbol)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "the module is not one of this version");
	*out = symbol;
	return MX_OK;
}

mx_status mx_module_load(const struct mx_module *m, void **out, struct mx_err *err)
{
	const char *path = mx_paths_of(m->variable, m->folders), *folders = path;
	char folder[4096], file[4224];
	while (mx_paths_next(&folders, folder, sizeof folder)) {
		snprintf(file, sizeof file, "%s/%.100s", folder, m->file);
		if (!access(file, F_OK))
			return load(file, m, out, err);
	}
	return mx_fail(err, MX_E_NOTFOUND, "%s %s, which is not in %s: it is built %s", m->needed,
	               m->file, path, m->built);
}
