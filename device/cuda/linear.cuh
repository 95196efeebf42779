/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of `linear`: the layout of blocks of W in shared memory, the products of
 * one block, and the store of a sum. */
#ifndef MX_DEVICE_CUDA_LINEAR_CUH
#define MX_DEVICE_CUDA_LINEAR_CUH

#include "device/cuda/acts.cuh"
#include "device/cuda/launch.cuh"
#include "device/cuda/linear.h"

/* A row of a block is 128 bytes, eight units of 16. */
#define MX_LINEAR_UNITS (MX_LINEAR_BLOCK / 8)

/* Returns the byte offset of unit `unit` of row `row`. The halves of odd rows are swapped, so that
 * the eight threads that read together (four units of two rows) have no bank conflicts. */
static __device__ __forceinline__ uint32_t mx_linear_at(uint32_t row, uint32_t unit)
{
	return row * 128 + ((unit ^ (row & 1) << 2) << 4);
}

/* Copies 16 bytes to shared memory asynchronously; zeros if not `valid`. */
static __device__ __forceinline__ void mx_copy16(uint32_t to, const void *from, bool valid)
{
	const int bytes = valid ? 16 : 0;
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
	             : "memory");
}

/* Returns the policy of the second level of the cache for what is read once: it is replaced first,
 * so that kernels' code, tables and keys stay there while weights stream through. */
static __device__ __forceinline__ uint64_t mx_read_once(void)
{
	uint64_t policy;
	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

/* mx_copy16 with such a policy. */
static __device__ __forceinline__ void mx_copy16_as(uint32_t to, const void *from, bool valid,
                                                    uint64_t policy)
{
	const int bytes = valid ? 16 : 0;
	asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
	             "l"(from), "r"(bytes), "l"(policy)
	             : "memory");
}

static __device__ __forceinline__ void mx_copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `left` of the groups that this thread committed are under way. */
template <int left> static __device__ __forceinline__ void mx_copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

static __device__ __forceinline__ uint4 mx_shared16(uint32_t at)
{
	uint4 v;
	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "r"(at)
	             : "memory");
	return v;
}

static __device__ __forceinline__ void mx_mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Multiplies 16 rows of W with 8 rows of x over 32 columns. With g = lane / 4 and t = lane % 4,
 * this thread has columns 8t .. 8t+7 of rows g (lo) and g + 8 (hi) of W and of row g of x. Both
 * operands use the same permutation of columns, so that each thread reads 16 bytes at a time. */
static __device__ __forceinline__ void mx_mma32(float c[4], const uint4 &lo, const uint4 &hi,
                                                const uint4 &x)
{
	mx_mma(c, lo.x, hi.x, lo.y, hi.y, x.x, x.y);
	mx_mma(c, lo.z, hi.z, lo.w, hi.w, x.z, x.w);
}

/* Stores y[token][row], given its product `v`. */
template <typename O>
static __device__ __forceinline__ void mx_linear_store(const mx_cuda_product &p, uint32_t token,
                                                       uint32_t row, float v)
{
	O *y = (O *)p.y + (size_t)token * p.ldy + row;
	if (p.bias)
		v += p.bias[row];
	if (p.accumulate)
		v += mx_to_float<O>(*y);
	*y = mx_from_float<O>(v);
}

/* Returns silu(gate) * up of two products that are rounded to bf16 first, as silu_mul has them. */
static __device__ __forceinline__ float mx_linear_gated(float gate, float up)
{
	return mx_silu_mul_fast(__bfloat162float(__float2bfloat16_rn(gate)),
	                        __bfloat162float(__float2bfloat16_rn(up)));
}

#endif
