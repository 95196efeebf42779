/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a CUDA device that CUDA modules (the device itself, a mixer's CUDA side) may use
 * beyond device.h. Included by C and CUDA C++; it needs no CUDA header.
 *
 * All work of a device goes to one stream, in order. While the device records, launches on the
 * stream are captured: a launcher must not wait, allocate or copy from pageable memory.
 */
#ifndef MX_DEVICE_CUDA_CUDA_H
#define MX_DEVICE_CUDA_CUDA_H

#include "device/device.h"

#define MX_CUDA_MAX_DEVICES 64

/* First member of every CUDA device. */
struct mx_cuda_base {
	struct mx_device device;
	int ordinal;  /* number of the GPU, from 0 */
	int sms;      /* multiprocessors */
	int sm;       /* compute capability, 90 = 9.0 */
	size_t smem;  /* most shared memory of a thread block after opting in, in bytes */
	void *stream; /* cudaStream_t */
	/* Returns the status of `error`, the cudaError_t that a CUDA call or launch returned. If it is
	 * not cudaSuccess, logs it with `what` and marks the device lost if nothing can be done on it
	 * any more. */
	mx_status (*check)(struct mx_device *d, int error, const char *what);
	/* Makes this device the calling thread's current one. Call it before the CUDA runtime and
	 * before kernel launches, in every function that the engine calls; never call cudaSetDevice.
	 * Costs nothing if the device is current already. */
	mx_status (*bind)(struct mx_device *d);
};

static inline struct mx_cuda_base *mx_cuda_base(struct mx_device *d)
{
	return (struct mx_cuda_base *)d;
}

/* Copies `bytes` of host memory into new device memory, *out, which is freed with ops->release;
 * NULL if that fails. At load only: it waits. */
static inline mx_status mx_upload_array(struct mx_device *d, const void *from, size_t bytes,
                                        void **out)
{
	const enum mx_dtype byte = MX_F8E4M3; /* elements of one byte, which load leaves as they are */
	void *to = NULL;
	*out = NULL;
	mx_status status = d->ops->alloc(d, bytes, &to);
	if (status != MX_OK)
		return status;
	status = d->ops->load(d, to, byte, from, byte, bytes);
	if (status == MX_OK)
		status = d->ops->wait(d);
	if (status == MX_OK)
		*out = to;
	else
		d->ops->release(d, to);
	return status;
}

#endif
