/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device of a test or benchmark, from the build's module. */
#ifndef MX_TESTS_GPU_CUDA_DEVICE_H
#define MX_TESTS_GPU_CUDA_DEVICE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/device_cuda.h"

/* cuda:0, or NULL where there is none. Exits 1 if the module cannot be loaded. */
static inline struct mx_device *cuda_device(const struct mx_cuda_limits *limits)
{
	char path[4096];
	const char *folder = getenv("MIXD_DEVICE_PATH");
	snprintf(path, sizeof(path), "%s/device-cuda.so", folder ? folder : "device/.libs");
	void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays for good */
	mx_cuda_device_f *entry =
		module ? (mx_cuda_device_f *)dlsym(module, MX_CUDA_DEVICE_SYMBOL) : NULL;
	if (!entry) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	struct mx_device *d = NULL;
	struct mx_err err = {};
	if (entry()->create(0, limits, &d, &err) != MX_OK) {
		printf("no device: %s\n", err.text);
		return NULL;
	}
	return d;
}

#endif
