/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches kernels so that each may begin before the previous one has ended (programmatic dependent
 * launch, compute capability 9.0 and up; an ordinary launch where the code is for 8.x).
 *
 * The rules that make this safe, for our own kernels (the two exceptions are below):
 * - Before mx_pdl_wait() a kernel reads only weights and data from before the step (see below), and
 *   writes nothing to global memory.
 * - Every thread that reads other data or writes calls mx_pdl_wait(), and so does at least one
 *   thread of every block, even of a block that has nothing to do: a kernel that ends without it
 *   lets the next one begin before the previous one has ended.
 * - Every kernel calls mx_pdl_launch() once the next kernel may run beside it: usually first.
 *
 * So a chain of kernels is ordered (each waits until the previous one, which waited for the one
 * before it, has ended), while weights can be fetched before the wait. Kernels of libraries,
 * launched without the attribute, are full barriers: they begin after the previous kernel has
 * ended, and the next one waits for their end.
 *
 * Two places break a rule, and say there why they may:
 * - mixers/recurrence/cuda/stretch.cu beside stretch_prepare.cu: a pair ordered by flags in memory.
 * - device/cuda/linear_quant_ring.cuh: before the wait, a thread block takes its next tiles from a
 *   counter (atomicAdd), and the last one sets it to 0. Launches take COUNTERS counters by turns
 *   (mx_cuda_linear_counter), so that kernels that run side by side never share one.
 *
 * Data from before the step: its tables (struct mx_device_tables), and states that earlier steps
 * wrote. A kernel changes page lists (put.cu), then one copy in the stream brings the other tables.
 * A copy waits until all kernels before it have ended. The first kernel after a copy, or of a
 * recording, waits for the copy whatever its attributes, and the other kernels of the step begin
 * after that one has begun. So tables and states are complete before any kernel of the step begins.
 * No other kernel may write tables.
 *
 * Loads through the read-only path (__ldg, ld.global.nc, const __restrict__ pointers) are not
 * ordered by the wait: the assembler may move them across it. Never use them for data that a kernel
 * has written. To have a weight in a register before the wait, use an ordinary volatile load.
 */
#ifndef MX_DEVICE_CUDA_LAUNCH_CUH
#define MX_DEVICE_CUDA_LAUNCH_CUH

#include <atomic>

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

/* True if the code that the current device runs of `kernel`, and so of all kernels of this file,
 * has the two instructions above. Asked once a device. */
static inline bool mx_pdl_can(const void *kernel)
{
	static std::atomic<signed char> known[64]; /* 0: not asked yet */
	int device = 0;
	if (cudaGetDevice(&device) != cudaSuccess || device >= 64)
		return false;
	signed char can = known[device].load(std::memory_order_relaxed);
	if (!can) {
		cudaFuncAttributes a;
		if (cudaFuncGetAttributes(&a, kernel) != cudaSuccess)
			return false; /* the launch says why */
		can = a.ptxVersion >= 90 ? 1 : -1;
		known[device].store(can, std::memory_order_relaxed);
	}
	return can > 0;
}

/* Launches kernel<<<grid, block, smem, stream>>>(args ...) in clusters of so many blocks; `cluster`
 * NULL = without. cudaSuccess or the launch's error. */
template <typename... P, typename... A>
static inline cudaError_t mx_launch_as(const dim3 *cluster, void (*kernel)(P...), dim3 grid,
                                       dim3 block, size_t smem, cudaStream_t stream, A... args)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute attrs[3] = {};
	attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attrs[0].val.programmaticStreamSerializationAllowed = mx_pdl_can((const void *)kernel);
	/* the same for all kernels: a multiprocessor must be idle to change its shared memory carveout
	 */
	attrs[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
	attrs[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
	c.gridDim = grid;
	c.blockDim = block;
	c.dynamicSmemBytes = smem;
	c.stream = stream;
	c.attrs = attrs;
	c.numAttrs = 2;
	if (cluster) {
		attrs[2].id = cudaLaunchAttributeClusterDimension;
		attrs[2].val.clusterDim.x = cluster->x;
		attrs[2].val.clusterDim.y = cluster->y;
		attrs[2].val.clusterDim.z = cluster->z;
		c.numAttrs = 3;
	}
	return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

/* Launches kernel<<<grid, block, smem, stream>>>(args ...); cudaSuccess or the launch's error.
 * smem above 48 KiB must have been allowed with cudaFuncSetAttribute at creation. */
template <typename... P, typename... A>
static inline cudaError_t mx_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                    cudaStream_t stream, A... args)
{
	return mx_launch_as(NULL, kernel, grid, block, smem, stream, args...);
}

/* Likewise in clusters (compute capability 9.0 and up). */
template <typename... P, typename... A>
static inline cudaError_t mx_launch_clusters(dim3 cluster, void (*kernel)(P...), dim3 grid,
                                             dim3 block, size_t smem, cudaStream_t stream,
                                             A... args)
{
	return mx_launch_as(&cluster, kernel, grid, block, smem, stream, args...);
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
