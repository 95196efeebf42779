/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on its way: copies of contiguous memory to shared memory that a barrier counts, by the
 * copy engine from compute capability 9.0 on, else by asynchronous copies; loads without branches.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_ASYNC_CUH
#define MX_MIXERS_RECURRENCE_CUDA_ASYNC_CUH

#include "mixers/recurrence/cuda/tile.cuh"

/* Prepares a barrier for the copies of one lane or warp. */
static __device__ __forceinline__ void copies_init(uint64_t *bar)
{
#if __CUDA_ARCH__ >= 900
	asm volatile(
		"mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(bar))
		: "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* The copies that follow have `bytes` together. By one lane, once for each use of the barrier. */
static __device__ __forceinline__ void copies_expect(uint64_t *bar, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
					 (uint32_t)__cvta_generic_to_shared(bar)),
	             "r"(bytes)
	             : "memory");
#endif
}

/* Begins a copy: bytes and addresses are multiples of 16. By one lane. */
static __device__ __forceinline__ void copy_begin(void *to, const void *from, uint32_t bytes,
                                                  uint64_t *bar)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1], %2, [%3];" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
	             "l"(from), "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(bar))
	             : "memory");
#else
	for (uint32_t i = 0; i < bytes; i += 16)
		copy16((unsigned char *)to + i, (const unsigned char *)from + i);
#endif
}

/* The warp waits for the copies of the barrier's use number 0, 1, 0, .. May be called again. */
static __device__ __forceinline__ void copies_wait(uint64_t *bar, uint32_t use)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("{\n"
	             ".reg .pred p;\n"
	             "again:\n"
	             "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
	             "@p bra done;\n"
	             "bra again;\n"
	             "done:\n"
	             "}\n" ::"r"((uint32_t)__cvta_generic_to_shared(bar)),
	             "r"(use)
	             : "memory");
#else
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncwarp();
#endif
}

/* Begins to copy 4, 8 or 16 bytes to shared memory, or zeros unless p. */
template <int N> static __device__ __forceinline__ void copy_if(bool p, void *to, const void *from)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(
					 (uint32_t)__cvta_generic_to_shared(to)),
	             "l"(p ? from : to), "r"(p ? N : 0), "n"(N)
	             : "memory");
}

/* Brings the line that has an address to the second level cache. */
static __device__ __forceinline__ void line_near(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

/* Brings `bytes` to it, a multiple of 16. By one lane. */
static __device__ __forceinline__ void bytes_near(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
	for (uint32_t i = 0; i < bytes; i += 128)
		line_near((const unsigned char *)p + i);
#endif
}

/* Orders what the thread wrote to shared memory before copies that begin later. */
static __device__ __forceinline__ void copies_after_writes(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Begins to copy shared memory to global memory; addresses and bytes are multiples of 512. By a
 * warp, whose lanes wrote what is copied and called copies_after_writes, and whose lane 0 calls
 * copies_out_read before it is written again and copies_out_end before the block ends. */
static __device__ __forceinline__ void copy_out(void *to, const void *from, uint32_t bytes)
{
	__syncwarp();
#if __CUDA_ARCH__ >= 900
	if (threadIdx.x % 32 == 0)
		asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
		             "cp.async.bulk.commit_group;" ::"l"(to),
		             "r"((uint32_t)__cvta_generic_to_shared(from)), "r"(bytes)
		             : "memory");
#else
	for (uint32_t i = threadIdx.x % 32; i < bytes / 16; i += 32)
		((float4 *)to)[i] = ((const float4 *)from)[i];
#endif
}
static __device__ __forceinline__ void copies_out_read(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
static __device__ __forceinline__ void copies_out_end(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/* Loads that depend on a condition without a branch, so that several are on their way at once;
 * else zero, or `other`. */
static __device__ __forceinline__ float load_if(bool p, const float *from, float other)
{
	asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
	             : "+f"(other)
	             : "l"(from), "r"((uint32_t)p)
	             : "memory");
	return other;
}
static __device__ __forceinline__ uint2 load_if(bool p, const uint2 *from)
{
	uint2 v = make_uint2(0, 0);
	asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.u32 {%0, %1}, [%2]; }"
	             : "+r"(v.x), "+r"(v.y)
	             : "l"(from), "r"((uint32_t)p)
	             : "memory");
	return v;
}
static __device__ __forceinline__ float4 load_if(bool p, const float4 *from)
{
	float4 v = make_float4(0, 0, 0, 0);
	asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0;"
	             " @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
	             : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
	             : "l"(from), "r"((uint32_t)p)
	             : "memory");
	return v;
}

#endif
