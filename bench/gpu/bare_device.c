/* SPDX-License-Identifier: Apache-2.0 */
/* The device of bare_device.h. */
#include "bench/gpu/bare_device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "device/cuda/pin.h"

#define MAX_THREADS 15 /* of dev_parallel, besides the one that calls it */

static struct mx_cuda_base base;
static struct mx_ops ops;

static mx_status no_product(struct mx_device *d, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	(void)d, (void)x, (void)ldx, (void)n, (void)out, (void)n_out;
	return MX_OK;
}

static mx_status dev_alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	CUDA(cudaMalloc(out, bytes ? bytes : 1));
	return MX_OK;
}

static void dev_release(struct mx_device *d, void *p)
{
	(void)d;
	cudaFree(p);
}

static mx_status dev_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                          enum mx_dtype dtype, size_t n)
{
	(void)d, (void)to_dtype;
	CUDA(cudaMemcpy(to, from, n * mx_dtype_size(dtype), cudaMemcpyHostToDevice));
	return MX_OK;
}

static mx_status dev_wait(struct mx_device *d)
{
	(void)d;
	CUDA(cudaDeviceSynchronize());
	return MX_OK;
}

static mx_status dev_bind(struct mx_device *d)
{
	(void)d;
	return MX_OK;
}

static mx_status dev_check(struct mx_device *d, int error, const char *what)
{
	(void)d;
	if (error == cudaSuccess)
		return MX_OK;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
	exit(1);
}

struct tasks {
	mx_parallel_f *f;
	void *arg;
	size_t n;
	atomic_size_t next;
};

static void *run_tasks(void *arg)
{
	struct tasks *t = arg;
	for (size_t i; (i = atomic_fetch_add(&t->next, 1)) < t->n;)
		t->f(t->arg, i, 0);
	return NULL;
}

/* For filters, whose tasks need no number of a thread. */
static void dev_parallel(struct mx_device *d, size_t n, mx_parallel_f *f, void *arg)
{
	pthread_t threads[MAX_THREADS];
	struct tasks t = {.f = f, .arg = arg, .n = n};
	size_t n_threads = 0;
	(void)d;
	while (n_threads < MAX_THREADS && n_threads + 1 < n &&
	       pthread_create(&threads[n_threads], NULL, run_tasks, &t) == 0)
		n_threads++;
	run_tasks(&t);
	while (n_threads > 0)
		pthread_join(threads[--n_threads], NULL);
}

struct mx_cuda_base *bare_device_open(void)
{
	struct cudaDeviceProp prop;
	cudaStream_t s;
	CUDA(cudaGetDeviceProperties(&prop, 0));
	CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	ops = (struct mx_ops){
		.struct_size = sizeof(ops),
		.linear = no_product,
		.alloc = dev_alloc,
		.release = dev_release,
		.wait = dev_wait,
		.load = dev_load,
		.parallel = dev_parallel,
	};
	base = (struct mx_cuda_base){
		.device = {.ops = &ops,
	               .info = {.kind = MX_DEVICE_CUDA,
	                        .name = "cuda:0",
	                        .act_dtype = MX_BF16,
	                        .align = 256}},
		.sms = prop.multiProcessorCount,
		.sm = prop.major * 10 + prop.minor,
		.smem = prop.sharedMemPerBlockOptin,
		.stream = s,
		.check = dev_check,
		.bind = dev_bind,
	};
	if (!mx_cuda_pin(&base.sm, &base.smem)) {
		fprintf(stderr, "MIXD_CUDA_CAPABILITY is not known\n");
		exit(2);
	}
	printf("%s, %d multiprocessors\n", prop.name, prop.multiProcessorCount);
	return &base;
}

const struct mx_mixer_ops *bare_device_module(const char *folder, const char *mixer)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s-cuda.so", folder, mixer);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *symbol = lib ? dlsym(lib, MX_MIXER_MODULE_SYMBOL) : NULL;
	if (!symbol) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	mx_mixer_module_f *module;
	memcpy(&module, &symbol, sizeof module);
	return module();
}
