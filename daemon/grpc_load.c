/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the module of the gRPC front end. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "base/paths.h"
#include "daemon/grpc/front.h"

#define MODULE "front-grpc.so"

static mx_status load(const char *path, const struct mx_grpc_table **out, struct mx_err *err)
{
	/* never closed: gRPC's library has threads until the process ends */
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle) {
		const char *why = dlerror();
		return mx_fail_at(err, MX_E_NOTFOUND, path, "cannot load the gRPC front end: %s",
		                  why ? why : "unknown error");
	}
	const struct mx_grpc_table *t = dlsym(handle, MX_GRPC_SYMBOL);
	if (!t || t->struct_size < sizeof(*t))
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "the module is not one of this version");
	*out = t;
	return MX_OK;
}

mx_status mx_grpc_load(const struct mx_grpc_table **out, struct mx_err *err)
{
	const char *path = mx_paths_of("MIXD_FRONT_PATH", MIXD_FRONT_DIR), *folders = path;
	char folder[4096], file[sizeof(folder) + sizeof("/" MODULE)];
	while (mx_paths_next(&folders, folder, sizeof(folder))) {
		snprintf(file, sizeof(file), "%s/" MODULE, folder);
		if (!access(file, F_OK))
			return load(file, out, err);
	}
	return mx_fail(err, MX_E_NOTFOUND,
	               "the section grpc needs %s, which is not in %s: it is built where gRPC's and "
	               "protobuf-c's development files are",
	               MODULE, path);
}
