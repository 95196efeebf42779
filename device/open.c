/* SPDX-License-Identifier: Apache-2.0 */
#include "device/open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/paths.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

#define MODULE "device-cuda.so"

bool mx_device_parse(const char *name, enum mx_device_kind *out_kind, int *out_ordinal)
{
	int ordinal = 0;
	enum mx_device_kind kind = MX_DEVICE_CUDA;
	if (!strcmp(name, "cpu")) {
		kind = MX_DEVICE_CPU;
	} else if (!strncmp(name, "cuda:", 5)) {
		const char *digits = name + 5;
		size_t n = strspn(digits, "0123456789");
		if (n < 1 || n > 2 || digits[n])
			return false;
		ordinal = atoi(digits);
		if (ordinal >= MX_CUDA_MAX_DEVICES)
			return false;
	} else if (strcmp(name, "cuda")) {
		return false;
	}
	if (out_kind)
		*out_kind = kind;
	if (out_ordinal)
		*out_ordinal = ordinal;
	return true;
}

/* ---- the CUDA module ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct mx_cuda_device_ops *cuda; /* NULL until the module is loaded */

static void write_log(enum mx_log_level level, const char *module, const char *text)
{
	mx_log(level, module, "%s", text);
}

static mx_status load(const char *path, struct mx_err *err)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		const char *why = dlerror();
		return mx_fail_at(err, MX_E_NOTFOUND, path, "cannot load the module of CUDA devices: %s",
		                  why ? why : "unknown error");
	}
	void *symbol = dlsym(handle, MX_CUDA_DEVICE_SYMBOL);
	mx_cuda_device_f *module = NULL;
	memcpy(&module, &symbol, sizeof module); /* POSIX: dlsym may return a function */
	const struct mx_cuda_device_ops *ops = module ? module() : NULL;
	if (!ops || ops->struct_size < sizeof *ops) {
		dlclose(handle);
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "the module is not one of this version");
	}
	ops->log_to(write_log);
	cuda = ops;
	return MX_OK;
}

/* Loads the module from the first folder that has it. */
static mx_status find(struct mx_err *err)
{
	const char *path = mx_paths_of("MIXD_DEVICE_PATH", MIXD_DEVICE_DIR), *folders = path;
	char folder[4096], file[sizeof folder + sizeof "/" MODULE];
	while (mx_paths_next(&folders, folder, sizeof folder)) {
		snprintf(file, sizeof file, "%s/" MODULE, folder);
		if (!access(file, F_OK))
			return load(file, err);
	}
	return mx_fail(err, MX_E_NOTFOUND,
	               "CUDA devices need %s, which is not in %s: it is built where a CUDA toolkit is "
	               "(configure --with-cuda)",
	               MODULE, path);
}

static mx_status need_cuda(struct mx_err *err)
{
	pthread_mutex_lock(&lock);
	mx_status st = cuda ? MX_OK : find(err);
	pthread_mutex_unlock(&lock);
	return st;
}

/* ---- devices ---- */

static mx_status parse(const char *name, enum mx_device_kind *kind, int *ordinal,
                       struct mx_err *err)
{
	if (mx_device_parse(name, kind, ordinal))
		return MX_OK;
	return mx_fail(err, MX_E_INVALID, "no device \"%.60s\": there are cpu, cuda, cuda:0 .. cuda:%d",
	               name, MX_CUDA_MAX_DEVICES - 1);
}

mx_status mx_device_open(const char *name, const struct mx_device_options *o,
                         struct mx_device **out, struct mx_err *err)
{
	enum mx_device_kind kind;
	int ordinal;
	mx_status st = parse(name, &kind, &ordinal, err);
	if (st == MX_OK && kind == MX_DEVICE_CPU)
		return mx_cpu_create(o->threads, mx_cpu_isa(), o->max_rows, o->max_width, out, err);
	if (st == MX_OK)
		st = need_cuda(err);
	return st == MX_OK ? cuda->create(ordinal, &o->cuda, out, err) : st;
}

mx_status mx_device_own_bytes(const char *name, const struct mx_device_options *o, size_t *out,
                              struct mx_err *err)
{
	enum mx_device_kind kind;
	mx_status st = parse(name, &kind, NULL, err);
	if (st == MX_OK && kind == MX_DEVICE_CPU)
		*out = mx_cpu_scratch_bytes(o->threads, mx_cpu_isa(), o->max_rows, o->max_width);
	else if (st == MX_OK && (st = need_cuda(err)) == MX_OK)
		*out = cuda->own_bytes(&o->cuda);
	return st;
}
