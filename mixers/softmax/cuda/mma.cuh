/* SPDX-License-Identifier: Apache-2.0 */
/* PTX instructions without a C++ intrinsic: matrix products of a warp, copies to shared memory. */
#ifndef MX_MIXERS_SOFTMAX_CUDA_MMA_CUH
#define MX_MIXERS_SOFTMAX_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "device/cuda/bulk.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- fragments (PTX ISA, mma.m16n8k16: lane = 4 g + t) ---- */

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(at)
	             : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(at)
	             : "memory");
}

/* Transposes an 8 x 8 matrix that the warp holds. */
static __device__ __forceinline__ uint32_t transpose(uint32_t v)
{
	uint32_t r;
	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
	return r;
}

/* c[16 x 8] += a[16 x 16] b[16 x 8], f32 sums. HALF: f16 operands, otherwise bf16. */
template <bool HALF>
static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
	if constexpr (HALF)
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	else
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Packs two numbers as an operand of multiply; `low` in the low half. */
template <bool HALF> static __device__ __forceinline__ uint32_t pack(float low, float high)
{
	if constexpr (HALF) {
		__half2 h = __floats2half2_rn(low, high);
		return *(uint32_t *)&h;
	} else {
		__nv_bfloat162 h = __floats2bfloat162_rn(low, high);
		return *(uint32_t *)&h;
	}
}

/* Converts the two fp8 numbers (e4m3) in the low half of v to two f16: exact. */
static __device__ __forceinline__ uint32_t widen_fp8(uint32_t v)
{
	__half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(v & 0xffff), __NV_E4M3);
	return (uint32_t)h.x | (uint32_t)h.y << 16;
}

static __device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* ---- copies ---- */

static __device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void copies_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Orders this thread's writes to shared memory before later bulk copies to the same place. */
static __device__ __forceinline__ void copies_after_writes(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Waits until at most n groups of copies are under way. */
template <int n> static __device__ __forceinline__ void copies_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

#endif
