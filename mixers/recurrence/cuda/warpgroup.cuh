/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a warpgroup with bf16 operands and f32 sums (wgmma, compute capability 9.0a only):
 * A [64][16] in registers, placed in each warp as in tile.cuh; B [16][n] in shared memory, in rows
 * of 128 bytes with the 128-byte swizzle; sums [64][n], warp w has rows 16 w .. as C of tile.cuh.
 * So sums are the next product's A without a shuffle.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_WARPGROUP_CUH
#define MX_MIXERS_RECURRENCE_CUDA_WARPGROUP_CUH

#include <stdint.h>

/* Returns where 16 bytes are: part c of row r, in a matrix of rows of 128 bytes. */
static __host__ __device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t c)
{
	return r * 128 + ((c ^ (r & 7)) << 4);
}

/* Returns the descriptor of a matrix at shared address `at` (PTX ISA, matrix descriptor): 8 rows of
 * 128 bytes are 1024 bytes. `panel`: bytes to the next 64 columns, of a matrix stored along n. */
static __device__ __forceinline__ uint64_t matrix_at(uint32_t at, uint32_t panel)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* Before products: orders earlier accesses to their registers and to shared memory before them. */
static __device__ __forceinline__ void products_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all products are done. */
static __device__ __forceinline__ void products_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Keeps the compiler from moving accesses to the sums of products under way across this point. */
template <int n> static __device__ __forceinline__ void hold(float (&d)[n])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/* Keeps the compiler from computing operands between products. */
template <int n> static __device__ __forceinline__ void hold(uint32_t (&a)[n][4])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

#define SUMS_8(d, i)                                                                               \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
		"+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(d) SUMS_8(d, 0), SUMS_8(d, 8), SUMS_8(d, 16), SUMS_8(d, 24)

/* d[64 x 64] = a[64 x 16] b[16 x 64], or += if `add`; ALONG_N: b is stored along n, else along k.
 */
template <int ALONG_N>
static __device__ __forceinline__ void product_16(float (&d)[32], const uint32_t *a, uint64_t b,
                                                  bool add)
{
	asm volatile(
		"{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
		"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
		"%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
		"%26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
		: SUMS_32(d)
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(ALONG_N));
}

/* d[64 x 128] += a[64 x 16] b[16 x 128] */
template <int ALONG_N>
static __device__ __forceinline__ void product_16(float (&d)[64], const uint32_t *a, uint64_t b,
                                                  bool add)
{
	asm volatile(
		"{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
		"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
		"%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
		"%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "
		"%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
		"%60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
		: SUMS_32(d), SUMS_8(d, 32), SUMS_8(d, 40), SUMS_8(d, 48), SUMS_8(d, 56)
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(ALONG_N));
}

/* ---- barriers in shared memory, and copies that complete them ---- */

static __device__ __forceinline__ void barrier_init(uint32_t bar)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}

/* After all barrier_init: makes them visible to copies. */
static __device__ __forceinline__ void barriers_ready(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and lets the barrier wait for `bytes` of copies. */
static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
	             : "memory");
}

/* Waits for the end of the phase of this parity, 0 first. */
static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{\n.reg .pred p;\n"
	             "again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
	             "@!p bra again%=;\n}\n" ::"r"(bar),
	             "r"(parity)
	             : "memory");
}

/* Copies bytes as they are: multiples of 16. */
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1], %2, [%3];" ::"r"(to),
	             "l"(from), "r"(bytes), "r"(bar)
	             : "memory");
}

/* Copies a box of a matrix: `map` says of which and how. x: its first column, y: its first row. */
static __device__ __forceinline__ void copy_box(uint32_t to, const void *map, uint32_t x,
                                                uint32_t y, uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
	             "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
	             "l"(map), "r"(x), "r"(y), "r"(bar)
	             : "memory");
}

/* Copies a box from shared memory; boxes_read waits until shared memory may be written again. */
static __device__ __forceinline__ void copy_box_out(const void *map, uint32_t x, uint32_t y,
                                                    uint32_t from)
{
	asm volatile(
		"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
		"r"(x), "r"(y), "r"(from)
		: "memory");
}
static __device__ __forceinline__ void boxes_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void boxes_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* d[64 x 64] = a[64 x 16] b[16 x 64], or += if `add`: both in shared memory, along k. */
static __device__ __forceinline__ void product_shared(float (&d)[32], uint64_t a, uint64_t b,
                                                      bool add)
{
	asm volatile(
		"{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
		"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
		"%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
		"%26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
		: SUMS_32(d)
		: "l"(a), "l"(b), "r"((int)add));
}

#undef SUMS_8
#undef SUMS_32

/* After stores to shared memory, before a barrier that precedes products of them. */
static __device__ __forceinline__ void stores_done(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
