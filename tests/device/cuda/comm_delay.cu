/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel for test_comm.c that makes a rank late. */
#include <stdint.h>

#include "device/cuda/launch.cuh"

__global__ static void delay(uint32_t us)
{
	uint64_t begin, now;
	mx_pdl_wait();
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do {
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	} while (now - begin < us * 1000ull);
	mx_pdl_launch();
}

extern "C" int launch_delay(void *stream, uint32_t us)
{
	return (int)mx_launch(delay, dim3(1), dim3(1), 0, (cudaStream_t)stream, us);
}
