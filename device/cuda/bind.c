/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's current GPU. CUDA keeps one a thread; any thread may call any device, also
 * several devices by turns, so every entry of a device makes its own GPU current first. Nothing
 * else in the process may call cudaSetDevice: the thread's current GPU is remembered here.
 */
#include "device/cuda/impl.h"

static _Thread_local int current = -1;

cudaError_t mx_cuda_set_current(int ordinal)
{
	if (current == ordinal)
		return cudaSuccess;
	cudaError_t e = cudaSetDevice(ordinal);
	current = e == cudaSuccess ? ordinal : -1;
	return e;
}

mx_status mx_cuda_bind(struct mx_device *d)
{
	int ordinal = mx_cuda(d)->base.ordinal;
	if (current == ordinal)
		return MX_OK;
	return mx_cuda_check(d, mx_cuda_set_current(ordinal), "choosing the device");
}
