/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the copy engine to shared memory, and the barriers that they complete on (compute
 * capability 9.0). */
#ifndef MX_DEVICE_CUDA_BULK_CUH
#define MX_DEVICE_CUDA_BULK_CUH

#include <stdint.h>

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes initialised barriers visible to the copy engine. */
static __device__ __forceinline__ void barriers_ready(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
	             : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{\n"
	             ".reg .pred p;\n"
	             "again:\n"
	             "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
	             "@p bra done;\n"
	             "bra again;\n"
	             "done:\n"
	             "}\n" ::"r"(bar),
	             "r"(parity)
	             : "memory");
}

static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1], %2, [%3];" ::"r"(to),
	             "l"(from), "r"(bytes), "r"(bar)
	             : "memory");
}

/* Copies the box of a matrix at column `col` of row `row`; what lies outside of the matrix becomes
 * zeros. `map`: a CUtensorMap, in parameter memory. */
static __device__ __forceinline__ void copy_box(uint32_t to, const void *map, uint32_t col,
                                                uint32_t row, uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
	             "l"(map), "r"(bar), "r"(col), "r"(row)
	             : "memory");
}

/* The same of a matrix that the map describes as [groups][parts][rows of a part][columns]: all
 * parts from group `group` on. */
static __device__ __forceinline__ void copy_groups(uint32_t to, const void *map, uint32_t col,
                                                   uint32_t group, uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1, {%3, %4, %4, %5}], [%2];" ::"r"(to),
	             "l"(map), "r"(bar), "r"(col), "r"(0), "r"(group)
	             : "memory");
}
#endif

#endif
