/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of a warpgroup (wgmma, compute capability 9.0a only). */
#ifndef MX_DEVICE_CUDA_WGMMA_CUH
#define MX_DEVICE_CUDA_WGMMA_CUH

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
#define NAMES_4  "%0, %1, %2, %3"
#define NAMES_8  NAMES_4 ", %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32                                                                                   \
	NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                   \
	NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
			 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128                                                                                  \
	NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "  \
			 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "    \
			 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "    \
			 "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "      \
			 "%123, %124, %125, %126, %127"
#define RESULTS_4(d, i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RESULTS_8(d, i)   RESULTS_4(d, i), RESULTS_4(d, i + 4)
#define RESULTS_16(d, i)  RESULTS_8(d, i), RESULTS_8(d, i + 8)
#define RESULTS_32(d, i)  RESULTS_16(d, i), RESULTS_16(d, i + 16)
#define RESULTS_64(d, i)  RESULTS_32(d, i), RESULTS_32(d, i + 32)
#define RESULTS_128(d, i) RESULTS_64(d, i), RESULTS_64(d, i + 64)

/* Products of a chain of attention. HALF: f16 operands, otherwise bf16.
 * d[64 x 128] = a[64 x 16] b[16 x 128], or += if `add`; a and b in shared memory, both along k. */
template <bool HALF>
static __device__ __forceinline__ void wide_shared(float (&d)[64], uint64_t a, uint64_t b,
                                                   bool add);

/* d[64 x 128] += a[64 x 16] b[16 x 128]: a in registers, b in shared memory along n. */
template <bool HALF>
static __device__ __forceinline__ void wide_registers(float (&d)[64], const uint32_t *a,
                                                      uint64_t b);

/* d[64 x 64] += a[64 x 16] b[16 x 64]: a in registers, b in shared memory along n. */
template <bool HALF>
static __device__ __forceinline__ void wide_registers(float (&d)[32], const uint32_t *a,
                                                      uint64_t b);

#define WIDE_CHAIN(half, type)                                                                     \
	template <>                                                                                    \
	__device__ __forceinline__ void wide_shared<half>(float(&d)[64], uint64_t a, uint64_t b,       \
	                                                  bool add)                                    \
	{                                                                                              \
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                  \
		             "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NAMES_64    \
		             "}, %64, %65, p, 1, 1, 0, 0;\n}\n"                                            \
		             : RESULTS_64(d, 0)                                                            \
		             : "l"(a), "l"(b), "r"((int)add));                                             \
	}                                                                                              \
	template <>                                                                                    \
	__device__ __forceinline__ void wide_registers<half>(float(&d)[64], const uint32_t *a,         \
	                                                     uint64_t b)                               \
	{                                                                                              \
		asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NAMES_64    \
		             "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"                                 \
		             : RESULTS_64(d, 0)                                                            \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
	}                                                                                              \
	template <>                                                                                    \
	__device__ __forceinline__ void wide_registers<half>(float(&d)[32], const uint32_t *a,         \
	                                                     uint64_t b)                               \
	{                                                                                              \
		asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NAMES_32     \
		             "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                                 \
		             : RESULTS_32(d, 0)                                                            \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
	}

WIDE_CHAIN(false, "bf16")
WIDE_CHAIN(true, "f16")

/* d[64 x N] += a[64 x 16] b[16 x N]; a and b in shared memory, both along k. */
template <int N>
static __device__ __forceinline__ void wide_product(float (&d)[N / 2], uint64_t a, uint64_t b);

/* n: columns of b; half: results of a thread; first and second: the numbers of the operands behind
 * them. */
#define WIDE_PRODUCT(n, half, first, second)                                                       \
	template <>                                                                                    \
	__device__ __forceinline__ void wide_product<n>(float(&d)[half], uint64_t a, uint64_t b)       \
	{                                                                                              \
		asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES_##half     \
		             "}, %" #first ", %" #second ", 1, 1, 1, 0, 0;\n"                              \
		             : RESULTS_##half(d, 0)                                                        \
		             : "l"(a), "l"(b));                                                            \
	}

WIDE_PRODUCT(8, 4, 4, 5)
WIDE_PRODUCT(16, 8, 8, 9)
WIDE_PRODUCT(32, 16, 16, 17)
WIDE_PRODUCT(64, 32, 32, 33)
WIDE_PRODUCT(128, 64, 64, 65)
WIDE_PRODUCT(256, 128, 128, 129)

#endif
