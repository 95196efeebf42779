/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for test_device.c: one that counts, one that dies. */
#include "device/cuda/launch.cuh"

__global__ static void add_one(float *x, size_t n)
{
	mx_pdl_launch();
	mx_pdl_wait();
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		x[i] += 1;
}

__global__ static void die(void)
{
	asm volatile("trap;");
}

extern "C" int launch_add_one(void *stream, float *x, size_t n)
{
	return (int)mx_launch(add_one, dim3((unsigned)((n + 255) / 256)), dim3(256), 0,
	                      (cudaStream_t)stream, x, n);
}

extern "C" int launch_die(void *stream)
{
	return (int)mx_launch(die, dim3(1), dim3(1), 0, (cudaStream_t)stream);
}
