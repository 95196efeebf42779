/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rmsnorm (Zhang and Sennrich, 2019): how a row is divided among threads, which sets the order of
 * its sum, and the norm of a product's rows of x in shared memory, with the bits of the operator
 * rmsnorm (rows.cu).
 */
#ifndef MX_DEVICE_CUDA_NORM_CUH
#define MX_DEVICE_CUDA_NORM_CUH

#include "device/cuda/launch.cuh"
#include "device/cuda/linear.h"

/* 16 bytes of elements. */
template <typename T> struct alignas(16) mx_pack {
	static const int N = 16 / sizeof(T);
	T v[N];
};

/* A row of so many vectors of 16 bytes has `each` vectors a thread: thread i has i, i + threads,
 * i + 2 threads ... `threads` is a multiple of 32. */
struct mx_norm_shape {
	uint32_t each, threads;
};

static __host__ __device__ __forceinline__ mx_norm_shape mx_norm_shape_of(uint32_t vectors)
{
	const uint32_t each = vectors <= 256 ? 1 : vectors <= 512 ? 2 : 4;
	return {each, ((vectors + each - 1) / each + 31) / 32 * 32};
}

/* Loads weights before mx_pdl_wait: an ordinary load, since the assembler may move one through the
 * read-only path (__ldg, ld.global.nc) behind the wait. */
static __device__ __forceinline__ float4 mx_load_weights(const float *p)
{
	float4 v;
	asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
	             : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
	             : "l"(p)
	             : "memory");
	return v;
}

/* Returns the sum over the first `threads` threads of those that meet at `barrier` to each of them;
 * the others pass 0. No thread may still read part[]. */
template <typename B>
static __device__ __forceinline__ float mx_block_sum(float v, float *part, uint32_t threads,
                                                     B barrier)
{
#pragma unroll
	for (int i = 16; i; i /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, i);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	barrier();
	v = 0;
	for (unsigned i = 0; i < threads / 32; i++)
		v += part[i];
	return v;
}

/* ---- rows of x of a product, by the first MX_NORM_THREADS threads of a thread block ---- */

#define MX_NORM_THREADS 256
#define MX_NORM_COLS    8192 /* most columns: 4 vectors a thread */

/* A barrier of these threads. */
static __device__ __forceinline__ void mx_norm_barrier(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(MX_NORM_THREADS) : "memory");
}

/* This thread's weights. */
struct mx_norm_weights {
	float w[4][8];

	/* Before mx_pdl_wait. */
	__device__ __forceinline__ void load(const mx_cuda_product &p)
	{
		const uint32_t vectors = p.cols / 8;
		const mx_norm_shape s = mx_norm_shape_of(vectors);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t i = threadIdx.x + j * s.threads;
			const bool mine = j < s.each && threadIdx.x < s.threads && i < vectors;
#pragma unroll
			for (uint32_t k = 0; k < 8; k += 4) {
				const float4 q =
					mine ? mx_load_weights(p.norm + i * 8 + k) : make_float4(0, 0, 0, 0);
				w[j][k] = q.x;
				w[j][k + 1] = q.y;
				w[j][k + 2] = q.z;
				w[j][k + 3] = q.w;
			}
		}
	}
};

/* Writes the norm of the product's rows of x to shared memory [p.n, p.cols]; `part` is shared
 * memory of 2 * 8 floats. Ends with a barrier. */
static __device__ __forceinline__ void mx_norm_rows(const mx_cuda_product &p,
                                                    const mx_norm_weights &weights,
                                                    __nv_bfloat16 *to, float *part)
{
	typedef mx_pack<__nv_bfloat16> pack;
	const uint32_t vectors = p.cols / 8;
	const mx_norm_shape s = mx_norm_shape_of(vectors);
	for (uint32_t row = 0; row < p.n; row++) {
		const __nv_bfloat16 *from = (const __nv_bfloat16 *)p.x + row * p.ldx;
		pack v[4];
		float sum = 0;
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t i = threadIdx.x + j * s.threads;
			if (j < s.each && threadIdx.x < s.threads && i < vectors)
				v[j] = *(const pack *)(from + i * 8);
		}
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t i = threadIdx.x + j * s.threads;
			if (j < s.each && threadIdx.x < s.threads && i < vectors) {
#pragma unroll
				for (int k = 0; k < 8; k++) {
					const float f = __bfloat162float(v[j].v[k]);
					sum = fmaf(f, f, sum);
				}
			}
		}
		const float scale =
			1.0f / sqrtf(mx_block_sum(sum, part + row % 2 * 8, s.threads, mx_norm_barrier) /
		                     (float)p.cols +
		                 p.norm_eps);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t i = threadIdx.x + j * s.threads;
			if (j < s.each && threadIdx.x < s.threads && i < vectors) {
#pragma unroll
				for (int k = 0; k < 8; k++)
					v[j].v[k] =
						__float2bfloat16_rn(__bfloat162float(v[j].v[k]) * scale * weights.w[j][k]);
				*(pack *)(to + (size_t)row * p.cols + i * 8) = v[j];
			}
		}
	}
	mx_norm_barrier();
}

/* True if a kernel can compute the norm of the rows in `bytes` bytes of shared memory. */
static inline bool mx_norm_fits(const mx_cuda_product &p, size_t bytes)
{
	return p.cols % 8 == 0 && p.cols <= MX_NORM_COLS && (size_t)p.n * p.cols * 2 <= bytes &&
	       (uintptr_t)p.norm % 16 == 0;
}

#endif
