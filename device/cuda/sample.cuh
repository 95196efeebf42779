/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the kernels of sample.cu and logprobs.cu. A cluster of BLOCKS thread
 * blocks processes a row of logits. Each block holds a slice of the row in shared
 * memory, so that the row is read once for any number of passes. Without clusters
 * (before compute capability 9.0), or if the slices do not fit, one block processes
 * the row in global memory: slower, otherwise with the same code.
 *
 * In a slice each warp has a range of consecutive tokens, and each thread always
 * the same elements of it, so that no barrier is needed between passes. Sums are
 * sums of integers or have a fixed order: results are repeatable.
 */
#ifndef MX_DEVICE_CUDA_SAMPLE_CUH
#define MX_DEVICE_CUDA_SAMPLE_CUH

#include <stdint.h>

#include "device/cuda/launch.cuh"
#include "device/cuda/sample.h"

#define MX_SAMPLE_BLOCKS  8
#define MX_SAMPLE_THREADS 512
#define MX_SAMPLE_WARPS   (MX_SAMPLE_THREADS / 32)
/* Most shared memory beside the slice. */
#define MX_SAMPLE_OTHER (20 * 1024)

/* ---- clusters ---- */

/* With 1 block there is only the block's own barrier. Kernels with clusters are never launched
 * before 9.0. */
template <int BLOCKS> static __device__ __forceinline__ void cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
	if (BLOCKS > 1)
		asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

template <int BLOCKS> static __device__ __forceinline__ void cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
	if (BLOCKS > 1)
		asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

template <int BLOCKS> static __device__ __forceinline__ void cluster_sync(void)
{
	if (BLOCKS > 1) {
		cluster_arrive<BLOCKS>();
		cluster_wait<BLOCKS>();
	} else {
		__syncthreads();
	}
}

/* Returns the address of the same variable in the shared memory of block `to` of the cluster. */
template <int BLOCKS, typename T> static __device__ __forceinline__ T *cluster_at(T *p, unsigned to)
{
#if __CUDA_ARCH__ >= 900
	if (BLOCKS > 1) {
		uint64_t at;
		asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((uint64_t)p), "r"(to));
		return (T *)at;
	}
#endif
	(void)to;
	return p;
}

/* ---- slices ---- */

/* Returns the elements of a slice, a multiple of 4. */
static inline __host__ __device__ uint32_t slice_size(uint32_t vocab, uint32_t blocks)
{
	return ((vocab + blocks - 1) / blocks + 3) / 4 * 4;
}

/* Returns the bytes of a slice of a vocabulary; 0 if the slices do not fit into shared memory. */
static inline size_t slice_bytes(struct mx_device *d, uint32_t vocab)
{
	const struct mx_cuda_base *b = mx_cuda_base(d);
	size_t bytes = sizeof(float) * slice_size(vocab, MX_SAMPLE_BLOCKS);
	return b->sm >= 90 && bytes + MX_SAMPLE_OTHER <= b->smem ? bytes : 0;
}

/* This block's part of a row: values v[i] of tokens first + i. With several blocks it is in shared
 * memory, padded with -infinity to a multiple of 4; with one block it is the row itself. */
struct slice {
	float *v;
	uint32_t first, n;   /* tokens; n may be 0 */
	uint32_t begin, end; /* this thread's warp has v[begin .. end - 1] */
};

template <int BLOCKS>
static __device__ __forceinline__ slice slice_of(float *v, uint32_t vocab, unsigned rank)
{
	const uint32_t size = BLOCKS > 1 ? slice_size(vocab, BLOCKS) : vocab;
	const uint32_t stretch = (size + MX_SAMPLE_WARPS * 128 - 1) / (MX_SAMPLE_WARPS * 128) * 128;
	slice s;
	s.v = v;
	s.first = rank * size;
	s.n = s.first >= vocab ? 0 : vocab - s.first < size ? vocab - s.first : size;
	s.begin = min(threadIdx.x / 32 * stretch, size);
	s.end = min(s.begin + stretch, size);
	return s;
}

/* Calls f(value, index in the slice) for this thread's elements, in ascending order. */
template <int BLOCKS, typename F>
static __device__ __forceinline__ void slice_each(const slice &s, F f)
{
	if (BLOCKS > 1) {
#pragma unroll 4
		for (uint32_t i = s.begin + threadIdx.x % 32 * 4; i < s.end; i += 128) {
			float4 q = *reinterpret_cast<const float4 *>(s.v + i);
			f(q.x, i);
			f(q.y, i + 1);
			f(q.z, i + 2);
			f(q.w, i + 3);
		}
	} else {
#pragma unroll 4
		for (uint32_t i = s.begin + threadIdx.x % 32; i < s.end; i += 32)
			f(s.v[i], i);
	}
}

/* Returns elements i .. i + 3 of a slice of the row in global memory, -infinity beyond its end. */
static __device__ __forceinline__ float4 slice_fetch(const float *row, const slice &s, uint32_t i,
                                                     bool vectors)
{
	const float none = -INFINITY;
	const float *p = row + s.first + i;
	if (vectors && i + 4 <= s.n)
		return *reinterpret_cast<const float4 *>(p);
	return make_float4(i < s.n ? p[0] : none, i + 1 < s.n ? p[1] : none, i + 2 < s.n ? p[2] : none,
	                   i + 3 < s.n ? p[3] : none);
}

/* Loads the slice. Needs no barrier: a thread loads its own elements. */
static __device__ __forceinline__ void slice_load(const float *row, const slice &s, bool vectors)
{
#pragma unroll 8
	for (uint32_t i = s.begin + threadIdx.x % 32 * 4; i < s.end; i += 128)
		*reinterpret_cast<float4 *>(s.v + i) = slice_fetch(row, s, i, vectors);
}

/* ---- the order of logits ---- */

/* Returns a key of a logit: larger for larger logits and, among equals, for lower ids; NaN has the
 * largest key. */
static __device__ __forceinline__ uint64_t key_of(float v, uint32_t id)
{
	uint32_t u = __float_as_uint(__fadd_rn(v, 0.0f)); /* -0 becomes 0 */
	u = v != v ? 0xffffffffu : u >> 31 ? ~u : u | 0x80000000u;
	return (uint64_t)u << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ float key_value(uint64_t key)
{
	uint32_t u = (uint32_t)(key >> 32);
	return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

static __device__ __forceinline__ int32_t key_id(uint64_t key)
{
	return (int32_t) ~(uint32_t)key;
}

static __device__ __forceinline__ uint64_t warp_max(uint64_t key)
{
#pragma unroll
	for (int i = 16; i; i /= 2) {
		uint64_t other = __shfl_xor_sync(0xffffffffu, key, i);
		key = other > key ? other : key;
	}
	return key;
}

/* The largest of a thread's elements, given in ascending order of ids. */
struct largest {
	float v = -INFINITY;
	uint32_t id = 0xffffffffu;
	bool nan = false;

	__device__ __forceinline__ void take(float x, uint32_t i)
	{
		if (x > v) {
			v = x;
			id = i;
		}
		nan |= x != x;
	}
	__device__ __forceinline__ uint64_t key(void) const
	{
		return nan ? ~(uint64_t)0 : key_of(v, id);
	}
};

struct max_space {
	uint64_t warps[MX_SAMPLE_WARPS], blocks[MX_SAMPLE_BLOCKS];
};

/* Returns the largest key of the cluster to every thread. Waits for the cluster's first barrier, at
 * which the caller has arrived: no block accesses the memory of another that has not begun. */
template <int BLOCKS>
static __device__ __forceinline__ uint64_t cluster_max(uint64_t key, unsigned rank, max_space &s)
{
	const unsigned lane = threadIdx.x % 32;
	key = warp_max(key);
	if (lane == 0)
		s.warps[threadIdx.x / 32] = key;
	cluster_wait<BLOCKS>();
	__syncthreads();
	if (threadIdx.x < 32) {
		key = warp_max(lane < MX_SAMPLE_WARPS ? s.warps[lane] : 0);
		if (lane < BLOCKS)
			*cluster_at<BLOCKS>(&s.blocks[rank], lane) = key;
	}
	cluster_sync<BLOCKS>();
	key = s.blocks[0];
#pragma unroll
	for (int i = 1; i < BLOCKS; i++)
		key = s.blocks[i] > key ? s.blocks[i] : key;
	return key;
}

/* Returns exp(x) as the CPU device's vectors compute it (vf_exp in device/cpu/vec.h): bit-equal if
 * those have a fused multiply-add. */
static __device__ __forceinline__ float weight_exp(float x)
{
	const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no fraction bits */
	const float v = x < -87.3f ? -87.3f : x > 88.3f ? 88.3f : x;
	const float t = __fmaf_rn(v, 1.44269504088896341f, round);
	const float n = __fsub_rn(t, round);
	const float r = __fmaf_rn(n, 2.12194440e-4f, __fmaf_rn(n, -0.693359375f, v));
	float p = 1.9875691500e-4f;
	p = __fmaf_rn(p, r, 1.3981999507e-3f);
	p = __fmaf_rn(p, r, 8.3334519073e-3f);
	p = __fmaf_rn(p, r, 4.1665795894e-2f);
	p = __fmaf_rn(p, r, 1.6666665459e-1f);
	p = __fmaf_rn(p, r, 5.0000001201e-1f);
	p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
	const int scale = (__float_as_int(t) - __float_as_int(round) + 127) << 23;
	return x < -87.3f ? 0.0f : __fmul_rn(p, __int_as_float(scale));
}

#endif
