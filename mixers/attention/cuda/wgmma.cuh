/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of a warpgroup (wgmma, compute capability 9.0a only). */
#ifndef MX_MIXERS_ATTENTION_CUDA_WGMMA_CUH
#define MX_MIXERS_ATTENTION_CUDA_WGMMA_CUH

#include <stdint.h>

/* Returns the descriptor of a matrix in shared memory with the 128-byte swizzle (PTX ISA, matrix
 * descriptor). `group`: bytes from 8 rows of 128 bytes to the next 8 rows. `panel`: bytes to the
 * next 64 columns, if the matrix is stored along n and has more than 64. */
static __device__ __forceinline__ uint64_t matrix_at(uint32_t at, uint32_t panel, uint32_t group)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 |
	       (uint64_t)(group >> 4) << 32 | 1ull << 62;
}

/* Before products: orders earlier accesses to registers and shared memory before them. */
static __device__ __forceinline__ void products_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most n groups of products are under way. */
template <int n> static __device__ __forceinline__ void products_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

/* Keeps the compiler from moving accesses to the results of products under way across this point.
 */
template <int n> static __device__ __forceinline__ void hold(float (&d)[n])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/* The registers of a product's results: their names and their asm operands. */
#define NAMES_32                                                                                   \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                   \
	NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
			 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RESULTS_8(d, i)                                                                            \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
		"+f"(d[i + 6]), "+f"(d[i + 7])
#define RESULTS_32(d) RESULTS_8(d, 0), RESULTS_8(d, 8), RESULTS_8(d, 16), RESULTS_8(d, 24)
#define RESULTS_64(d)                                                                              \
	RESULTS_32(d), RESULTS_8(d, 32), RESULTS_8(d, 40), RESULTS_8(d, 48), RESULTS_8(d, 56)

/* d[64 x 128] = a[64 x 16] b[16 x 128], or += if `add`; a and b in shared memory, both along k. */
static __device__ __forceinline__ void wide_shared(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
	             "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
	             : RESULTS_64(d)
	             : "l"(a), "l"(b), "r"((int)add));
}

/* d[64 x 128] += a[64 x 16] b[16 x 128]: a in registers, b in shared memory along n. */
static __device__ __forceinline__ void wide_registers(float (&d)[64], const uint32_t *a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
	             "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
	             : RESULTS_64(d)
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d[64 x 64] += a[64 x 16] b[16 x 64]: a in registers, b in shared memory along n. */
static __device__ __forceinline__ void wide_registers(float (&d)[32], const uint32_t *a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
	             "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
	             : RESULTS_32(d)
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
