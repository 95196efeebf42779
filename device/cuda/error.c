/* SPDX-License-Identifier: Apache-2.0 */
/* Turns CUDA errors into a log line and a status, and decides whether the device is lost. */
#include "device/cuda/impl.h"

#include "base/log.h"

/* True if the device still works after this error. Errors of one call leave it as it was; all
 * others, of a kernel or the hardware, come back with every later call of the process. */
static bool survives(cudaError_t e)
{
	switch (e) {
	case cudaErrorInvalidValue:
	case cudaErrorMemoryAllocation:
	case cudaErrorInvalidConfiguration:
	case cudaErrorInvalidMemcpyDirection:
	case cudaErrorInvalidDeviceFunction:
	case cudaErrorLaunchOutOfResources:
	case cudaErrorNotSupported:
	case cudaErrorNotPermitted:
	case cudaErrorStreamCaptureUnsupported:
	case cudaErrorStreamCaptureInvalidated:
	case cudaErrorStreamCaptureMerge:
	case cudaErrorStreamCaptureUnmatched:
	case cudaErrorStreamCaptureUnjoined:
	case cudaErrorStreamCaptureIsolation:
	case cudaErrorStreamCaptureImplicit:
	case cudaErrorStreamCaptureWrongThread: return true;
	default: return false;
	}
}

mx_status mx_cuda_check(struct mx_device *d, cudaError_t e, const char *what)
{
	struct mx_cuda *c = mx_cuda(d);
	if (c->lost)
		return MX_E_DEVICE;
	if (e == cudaSuccess)
		return MX_OK;
	cudaGetLastError(); /* clears it, or the next launch would report it again */
	c->lost = !survives(e);
	mx_error("cuda", "%s: %s: %s (%s)%s", d->info.name, what, cudaGetErrorString(e),
	         cudaGetErrorName(e), c->lost ? "; the device is lost" : "");
	if (c->lost)
		return MX_E_DEVICE;
	return e == cudaErrorMemoryAllocation ? MX_E_NOMEM : MX_E_INVALID;
}
