/* SPDX-License-Identifier: Apache-2.0 */
#include "device/open.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/module.h"
#include "device/cpu/comm.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

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

/* Loads the module. Under the lock. */
static mx_status load(struct mx_err *err)
{
	static const struct mx_module module = {
		.file = "device-cuda.so",
		.variable = "MIXD_DEVICE_PATH",
		.folders = MIXD_DEVICE_DIR,
		.symbol = MX_CUDA_DEVICE_SYMBOL,
		.what = "the module of CUDA devices",
		.needed = "CUDA devices need",
		.built = "where a CUDA toolkit is (configure --with-cuda)",
	};
	void *symbol = NULL;
	mx_status st = mx_module_load(&module, &symbol, err);
	if (st)
		return st;
	mx_cuda_device_f *function = NULL;
	memcpy(&function, &symbol, sizeof function); /* POSIX: dlsym may return a function */
	const struct mx_cuda_device_ops *ops = function();
	if (ops->struct_size < sizeof *ops)
		return mx_fail(err, MX_E_UNSUPPORTED, "device-cuda.so is not one of this version");
	ops->log_to(write_log);
	cuda = ops;
	return MX_OK;
}

static mx_status need_cuda(struct mx_err *err)
{
	pthread_mutex_lock(&lock);
	mx_status st = cuda ? MX_OK : load(err);
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
	if (st == MX_OK && kind == MX_DEVICE_CPU && o->beside)
		return mx_cpu_create_beside(o->beside, mx_cpu_isa(), o->max_rows, o->max_width, out, err);
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

mx_status mx_device_comm(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out,
                         struct mx_err *err)
{
	if (devices[0]->info.kind == MX_DEVICE_CUDA) {
		mx_status st = need_cuda(err);
		return st == MX_OK ? cuda->comm_create(devices, ranks, out, err) : st;
	}
	mx_status st = mx_cpu_comm_create(devices, ranks, out);
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}

mx_status mx_device_comm_part(enum mx_device_kind kind, struct mx_comm *const *comms,
                              uint32_t ranks, struct mx_comm **out, struct mx_err *err)
{
	if (kind == MX_DEVICE_CUDA) {
		mx_status st = need_cuda(err);
		return st == MX_OK ? cuda->comm_part(comms, ranks, out, err) : st;
	}
	mx_status st = mx_cpu_comm_part(comms, ranks, out);
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}
