/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a CUDA module (the device itself, a mixer's CUDA side) may know of a CUDA device beyond
 * device.h. Included by C and CUDA C++; no CUDA header is needed to include it.
 *
 * All work of a device goes to one stream, in order. While the device records, launches on the
 * stream are captured: so a launcher may not wait, allocate or copy from pageable memory.
 */
#ifndef MX_DEVICE_CUDA_CUDA_H
#define MX_DEVICE_CUDA_CUDA_H

#include "device/device.h"

#define MX_CUDA_MAX_DEVICES 64

/* First member of every CUDA device. */
struct mx_cuda_base {
	struct mx_device device;
	int ordinal;  /* of cudaSetDevice */
	int sms;      /* multiprocessors */
	int sm;       /* compute capability, 90 = 9.0 */
	size_t smem;  /* most shared memory of a block, after opting in */
	void *stream; /* cudaStream_t */
	/* The status of what a CUDA call or launch returned (`error`, a cudaError_t): if that is not
	 * cudaSuccess it is logged with `what`, and the device is lost if nothing can be done on it any
	 * more. */
	mx_status (*check)(struct mx_device *d, int error, const char *what);
};

static inline struct mx_cuda_base *mx_cuda_base(struct mx_device *d)
{
	return (struct mx_cuda_base *)d;
}

#endif
