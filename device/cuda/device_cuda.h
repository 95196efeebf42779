/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device, as the module device-cuda.so exports it. device/open.h loads the module and is
 * what the engine uses; nothing else links against CUDA.
 */
#ifndef MX_DEVICE_CUDA_DEVICE_CUDA_H
#define MX_DEVICE_CUDA_DEVICE_CUDA_H

#include "base/log.h"
#include "device/device.h"

/* What a device will be asked for at most: it allocates when it is created, never later. */
struct mx_cuda_limits {
	enum mx_dtype act_dtype; /* MX_BF16 or MX_F32 */
	uint32_t max_samples;    /* rows of logits that are sampled at a time */
	uint32_t vocab;          /* most columns of logits */
	bool deterministic;      /* a row's bits depend on that row alone, at some cost in speed */
};

#define MX_CUDA_DEVICE_SYMBOL "mx_cuda_device_v1"

struct mx_cuda_device_ops {
	uint32_t struct_size;
	/* Creates device `ordinal`; destroy it through its ops. *err says what is missing: no driver,
	 * no such device, too old. */
	mx_status (*create)(int ordinal, const struct mx_cuda_limits *limits, struct mx_device **out,
	                    struct mx_err *err);
	/* Device memory that create takes with those limits, an upper bound. */
	size_t (*own_bytes)(const struct mx_cuda_limits *limits);
	/* Where the module's log lines go. Before create. */
	void (*log_to)(mx_log_to_f *to);
};

typedef const struct mx_cuda_device_ops *mx_cuda_device_f(void);

#endif
