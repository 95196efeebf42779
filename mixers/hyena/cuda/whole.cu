/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole blocks of LCG_POINTS positions of prompts. Their window and their tiles of smaller sides
 * take inputs from the same block and from the one before, their tiles of this side from the two
 * before that: eight levels of tiles. Here a block is transformed once, multiplied with the spectra
 * of distances 0 to 3, and the sum of products transformed back: a transform forth and one back for
 * each block. Lags below 0, which belong to distance 0, are zero.
 *
 * Blocks have the distance 3 if their number is odd. So two blocks are parked for an even one; it
 * leaves the next one's sum of products in the place of one of them.
 */
#include "device/cuda/launch.cuh"
#include "mixers/hyena/cuda/unit.cuh"

namespace
{

using namespace lcg;

constexpr int BLOCKS = 2; /* thread blocks of a multiprocessor */
constexpr uint32_t PAIRS = LCG_POINTS / 2;
constexpr uint32_t LEVEL = LCG_LOG2_POINTS - LCG_LOG2_BLOCK;

/* Of a channel. parked[0]: the block before, or the sum of products that an odd block begins with;
 * parked[1]: the last even block. Cells and sums come and go through the room of transforms. */
struct whole_memory {
	float2 room[fft::room_of(LCG_THREADS)];
	float4 parked[2][PAIRS];
	float2 tables[2 * fft::TABLE];
};
constexpr size_t SHARED = sizeof(whole_memory);
static_assert(2 * LCG_POINTS * sizeof(float) <= sizeof(whole_memory::room), "cells and sums");
static_assert(SHARED <= LCG_WHOLE_BYTES - 1024, "1 KiB of static shared memory");

/* Spectra of a channel by distance, at the thread's first pair. */
struct spectra {
	const float4 *of[4];
};

__device__ __forceinline__ void multiply(float4 a, float4 b, float4 &sum)
{
	const float2 x =
		fft::fma(make_float2(a.x, a.y), make_float2(b.x, b.y), make_float2(sum.x, sum.y));
	const float2 y =
		fft::fma(make_float2(a.z, a.w), make_float2(b.z, b.w), make_float2(sum.z, sum.w));
	sum = make_float4(x.x, x.y, y.x, y.y);
}

/* The products of an even block: x becomes those of its own sum, parked[0] those of the next one's.
 * far, far_next: these have distances from 2 on. */
__device__ __forceinline__ void products_even(const spectra &s, bool far, bool far_next,
                                              float4 *parked, float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const int at = e * LCG_THREADS;
		const float4 now = make_float4(x[2 * e].x, x[2 * e].y, x[2 * e + 1].x, x[2 * e + 1].y);
		const float4 s0 = __ldg(s.of[0] + at), s1 = __ldg(s.of[1] + at);
		const float4 before = parked[at], last = parked[PAIRS + at];
		float4 sum = make_float4(0, 0, 0, 0), next = sum;
		multiply(now, s0, sum);
		multiply(before, s1, sum);
		multiply(now, s1, next);
		if (far || far_next) {
			const float4 s2 = __ldg(s.of[2] + at);
			if (far)
				multiply(last, s2, sum);
			if (far_next) {
				multiply(before, s2, next);
				multiply(last, __ldg(s.of[3] + at), next);
			}
		}
		parked[at] = next;
		parked[PAIRS + at] = now;
		x[2 * e] = make_float2(sum.x, sum.y);
		x[2 * e + 1] = make_float2(sum.z, sum.w);
	}
}

__device__ __forceinline__ void products_odd(const spectra &s, float4 *parked, float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const int at = e * LCG_THREADS;
		const float4 now = make_float4(x[2 * e].x, x[2 * e].y, x[2 * e + 1].x, x[2 * e + 1].y);
		float4 sum = parked[at];
		multiply(now, __ldg(s.of[0] + at), sum);
		parked[at] = now;
		x[2 * e] = make_float2(sum.x, sum.y);
		x[2 * e + 1] = make_float2(sum.z, sum.w);
	}
}

__device__ __forceinline__ void park(float4 *parked, const float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++)
		parked[e * LCG_THREADS] =
			make_float4(x[2 * e].x, x[2 * e].y, x[2 * e + 1].x, x[2 * e + 1].y);
}

/* ---- cells and sums of a block, side by side in shared memory ---- */

__device__ __forceinline__ void fetch(const place_in_range &u, uint32_t block, float *to)
{
#pragma unroll
	for (uint32_t i = threadIdx.x * 4; i < LCG_POINTS; i += LCG_THREADS * 4)
		copy_async((float4 *)(to + i),
		           (const float4 *)cell(u, u.in, u.group, (block << LCG_LOG2_POINTS) + i));
}

__device__ __forceinline__ float *sums_of(const place_in_range &u, uint32_t block)
{
	return u.sums + (u.group * u.sums_ld + ((block << LCG_LOG2_POINTS) - u.sums_begin));
}

/* Adds x, the conjugate of what came back, to a block's sums, or sets these; a thread has every
 * LCG_THREADS-th, and a warp's are side by side. */
__device__ __forceinline__ void add(float *sums, const float2 *x, const float *before, bool set)
{
#pragma unroll
	for (int q = 0; q < 16; q++) {
		const float now = __fmaf_rn(x[q].x, eighth(q).x, -__fmul_rn(x[q].y, eighth(q).y));
		sums[LCG_THREADS * q + threadIdx.x] = set ? now : __fadd_rn(before[q], now);
	}
}

/* ---- a channel ---- */

/* Returns how many blocks before an even one are parked first. Those that nothing needs are not
 * read: their pages may be gone. */
__device__ __forceinline__ uint32_t parked_first(uint32_t even, uint32_t first, uint32_t all)
{
	if (even < 2 || even < first)
		return 0;
	return even == first && first + 1 == all ? 1 : 2;
}

/* Computes blocks begin .. end - 1 of a channel, u.group. first: the first whole block of the
 * span, which has its tiles of side LCG_POINTS; all threads of the block take part. */
__device__ __forceinline__ void run_channel(const lcg_shape &shape, const lcg_layer &l,
                                            const place_in_range &u, uint32_t first, uint32_t begin,
                                            uint32_t end, uint32_t all, whole_memory *shared)
{
	const fft::plan p(LCG_LOG2_POINTS, shared->tables, shared->room);
	const float2 v = p.weight();
	const size_t channel = (size_t)shape.channels * PAIRS;
	const float4 *near = (const float4 *)l.near + (size_t)u.group * PAIRS + threadIdx.x;
	const float4 *tiles = (const float4 *)l.spectra[LEVEL] + (size_t)u.group * PAIRS + threadIdx.x;
	const spectra s = {{near, near + channel, tiles, tiles + channel}};
	float4 *parked = shared->parked[0] + threadIdx.x;
	float *cells = (float *)shared->room;
	const uint32_t even = begin & ~1u;
#pragma unroll 1
	for (uint32_t block = even - parked_first(even, first, all); block < end; block++) {
		float2 x[16];
		__syncthreads();
		fetch(u, block, cells);
		copies_end();
		if (block == 0) {
			const float4 zero = make_float4(0, 0, 0, 0);
#pragma unroll
			for (int e = 0; e < 16; e++)
				parked[e * LCG_THREADS] = zero;
		}
		wait_copies<0>();
		__syncthreads();
#pragma unroll
		for (int q = 0; q < 16; q++) {
			const float z = cells[LCG_THREADS * q + threadIdx.x];
			x[q] = make_float2(__fmul_rn(z, eighth(q).x), __fmul_rn(z, eighth(q).y));
		}
		__syncthreads();
		p.forward(x, v);
		if (block < even) {
			park(parked + (block % 2 ? 0 : PAIRS), x);
			continue;
		}
		if (block % 2)
			products_odd(s, parked, x);
		else
			products_even(s, block >= 2 && block != first,
			              block >= 2 && block + 1 < all && block + 1 != first, parked, x);
		if (block < begin)
			continue;
		__syncthreads();
		fft::conjugate(x);
		/* no tile of a larger side adds to the first four blocks */
		const bool set = block < 2 || (block < 4 && block != first);
		float *sums = sums_of(u, block), before[16];
#pragma unroll
		for (int q = 0; q < 16; q++)
			before[q] = set ? 0 : sums[LCG_THREADS * q + threadIdx.x];
		p.backward(x, v);
		add(sums, x, before, set);
	}
}

/* Block y: a span. The blocks of all its channels are shared out evenly, those of a channel one
 * after the other. */
__global__ void __launch_bounds__(LCG_THREADS, BLOCKS)
	run_whole(const lcg_shape shape, const lcg_layer *layer, const lcg_step step,
              const lcg_spans which, const lcg_sums sums)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ place_in_range u;
	whole_memory *shared = (whole_memory *)memory;
	mx_pdl_launch();
	fft::make_tables(shared->tables);
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.y]];
	const lcg_stretch whole = lcg_whole(span.pos, span.n);
	const uint32_t first = whole.from >> LCG_LOG2_POINTS, all = whole.to >> LCG_LOG2_POINTS;
	const uint32_t n = all - first, total = n * shape.channels;
	const uint32_t each = (total + gridDim.x - 1) / gridDim.x;
	const uint32_t stop = (blockIdx.x + 1) * each < total ? (blockIdx.x + 1) * each : total;
	if (threadIdx.x == 0) {
		u.page_base = layer->page_base;
		u.page_stride = shape.page_stride;
		u.page_tokens = shape.page_tokens;
		u.page_magic = shape.page_magic;
		u.in = {step.pages + span.page_begin, 0};
		u.sums = sums.sums + span.row;
		u.sums_ld = sums.ld;
		u.sums_begin = span.pos;
	}
	for (uint32_t i = blockIdx.x * each; i < stop;) {
		const uint32_t channel = i / n, begin = i - channel * n;
		const uint32_t end = stop - channel * n < n ? stop - channel * n : n;
		__syncthreads();
		if (threadIdx.x == 0)
			u.group = channel;
		__syncthreads();
		run_channel(shape, *layer, u, first, first + begin, first + end, all, shared);
		i += end - begin;
	}
}

} // namespace

cudaError_t lcg_run_whole(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layer, const struct lcg_step *step,
                          const struct lcg_spans *which, const struct lcg_sums *sums,
                          uint32_t blocks)
{
	const dim3 grid((blocks + which->n - 1) / which->n, which->n);
	cudaError_t e =
		cudaFuncSetAttribute(run_whole, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	return e != cudaSuccess ? e
	                        : mx_launch(run_whole, grid, dim3(LCG_THREADS), SHARED, stream, *shape,
	                                    layer, *step, *which, *sums);
}
