/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the module device-cuda.so exports: the CUDA device. The engine uses device/open.h, which
 * loads the module; nothing else links against CUDA.
 */
#ifndef MX_DEVICE_CUDA_DEVICE_CUDA_H
#define MX_DEVICE_CUDA_DEVICE_CUDA_H

#include "base/log.h"
#include "device/comm.h"
#include "device/device.h"

/* Limits of a device: it allocates memory for them when it is created, never later. */
struct mx_cuda_limits {
	enum mx_dtype act_dtype; /* MX_BF16 or MX_F32 */
	uint32_t max_samples;    /* rows of logits that are sampled at a time */
	uint32_t vocab;          /* most columns of logits */
	bool deterministic;      /* a row's bits depend on that row alone, at some cost in speed */
	bool quantised;          /* weights may be MX_QUANT: products need scratch for them */
};

#define MX_CUDA_DEVICE_SYMBOL "mx_cuda_device_v4"

struct mx_cuda_device_ops {
	uint32_t struct_size;
	/* Creates device `ordinal`; destroy it through its ops. On failure *err says what is missing:
	 * the driver, the device, or that it is too old. */
	mx_status (*create)(int ordinal, const struct mx_cuda_limits *limits, struct mx_device **out,
	                    struct mx_err *err);
	/* Returns an upper bound for the bytes of device memory that create allocates. */
	size_t (*own_bytes)(const struct mx_cuda_limits *limits);
	/* Sets the function that gets the module's log lines. Called before create. */
	void (*log_to)(mx_log_to_f *to);
	/* Makes the communicators out[ranks] of ranks on these devices, which are all of this module
	 * (device/comm.h). Several ranks may share a GPU, as a test of ranks, if the process was
	 * started with CUDA_MODULE_LOADING=EAGER. MX_E_UNSUPPORTED if two GPUs do not reach each
	 * other's memory. */
	mx_status (*comm_create)(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out,
	                         struct mx_err *err);
	/* Makes the communicators out[ranks] of some of the ranks of such a communicator beside it:
	 * they end together. MX_E_NOMEM, with a text. */
	mx_status (*comm_part)(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out,
	                       struct mx_err *err);
};

typedef const struct mx_cuda_device_ops *mx_cuda_device_f(void);

#endif
