/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launching kernels so that each may begin before the one in front of it has ended (programmatic
 * dependent launch, compute capability 9.0 and up; before, an ordinary launch).
 *
 * The rule that makes it safe, without exception:
 *   - every kernel calls mx_pdl_wait() before it reads anything but weights and what was there
 *     before the step (see below) and before it writes anything to global memory; all threads that
 *     do either call it, and some thread of every block, even of one that has nothing to do: a
 *     kernel that ends without it lets the next one begin before the one in front has ended;
 *   - every kernel calls mx_pdl_launch() once it no longer minds company, usually first thing.
 * So a chain of kernels is ordered (each waits for the whole of the one before, which waited for
 * the one before it), while weights can be fetched ahead of the wait.
 *
 * What was there before the step: its tables (struct mx_device_tables) and states as earlier steps
 * left them. Tables come with one copy in the stream; a copy waits for all kernels before it to
 * end, and the first kernel after a copy, or of a recording, waits for the copy, whatever its
 * attributes; the others of the step begin after that one began. So both are as they will be before
 * any kernel of the step begins, and no kernel of a step may write tables.
 *
 * Loads through the read-only path (__ldg, ld.global.nc, const __restrict__ pointers) are not held
 * by the wait: the assembler may move them across it. Never use them for what a kernel has written;
 * and a weight that is to be in a register before the wait takes an ordinary volatile load.
 */
#ifndef MX_DEVICE_CUDA_LAUNCH_CUH
#define MX_DEVICE_CUDA_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

static __device__ __forceinline__ void mx_pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void mx_pdl_launch(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

/* Launches kernel<<<grid, block, smem, stream>>>(args ...); cudaSuccess or the launch's error.
 * smem above 48 KiB must have been allowed with cudaFuncSetAttribute at creation. */
template <typename... P, typename... A>
static inline cudaError_t mx_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                    cudaStream_t stream, A... args)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute attrs[2] = {};
	attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attrs[0].val.programmaticStreamSerializationAllowed = 1;
	/* the same for all kernels: a multiprocessor must be empty before it can change the split */
	attrs[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
	attrs[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
	c.gridDim = grid;
	c.blockDim = block;
	c.dynamicSmemBytes = smem;
	c.stream = stream;
	c.attrs = attrs;
	c.numAttrs = 2;
	return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

/* ---- elements ---- */

template <typename T> static __device__ __forceinline__ float mx_to_float(T v);
template <> __device__ __forceinline__ float mx_to_float<float>(float v)
{
	return v;
}
template <> __device__ __forceinline__ float mx_to_float<__nv_bfloat16>(__nv_bfloat16 v)
{
	return __bfloat162float(v);
}

template <typename T> static __device__ __forceinline__ T mx_from_float(float v);
template <> __device__ __forceinline__ float mx_from_float<float>(float v)
{
	return v;
}
template <> __device__ __forceinline__ __nv_bfloat16 mx_from_float<__nv_bfloat16>(float v)
{
	return __float2bfloat16_rn(v);
}

#endif
