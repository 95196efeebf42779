/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A unit of a long convolution: the tiles of one block of outputs, for as many channels as fill a
 * thread block, or a part of one channel's. With transforms the arithmetic is that of ../kernels.h,
 * the right-angle convolution: inputs with weights exp(-i pi k / 2n), a cyclic product of n
 * numbers.
 *
 * Part p of P has the frequencies P q + p: a transform of m = n / P numbers, of inputs with weights
 * exp(-i pi k (1 + 4 p) / 2n) that are added modulo m. With k = t + m/16 q + m j a weight has a
 * factor for each of t, q and j: that of t goes into the factors of the transform's first pass.
 */
#ifndef MX_MIXERS_HYENA_CUDA_UNIT_CUH
#define MX_MIXERS_HYENA_CUDA_UNIT_CUH

#include "mixers/hyena/cuda/fft.cuh"
#include "mixers/hyena/cuda/lc_cuda.h"

namespace lcg
{

/* A unit's place. */
struct place {
	const lcg_shape *shape;
	const lcg_layer *layer;
	const uint32_t *pages;
	uint32_t end; /* no outputs from this position on */
	uint32_t block, group, first_part, end_part;
};

/* The same where not all outputs go to cells: those before `from` go nowhere, and those of
 * positions sums_begin .. sums_end - 1 to sums[channel * sums_ld + position - sums_begin]. */
struct place_in_range : place {
	uint32_t from;
	float *sums;
	size_t sums_ld;
	uint32_t sums_begin, sums_end;
};

/* First position past a sequence's cells. */
__device__ __forceinline__ uint32_t cells_end(const lcg_shape &s, const mx_device_span &span)
{
	const uint32_t len = span.max_len < s.max_len ? span.max_len : s.max_len;
	const uint64_t paged = (uint64_t)span.n_pages * s.page_tokens;
	return len < paged ? len : (uint32_t)paged;
}

__device__ __forceinline__ float *cell(const lcg_shape &s, const lcg_layer &l,
                                       const uint32_t *pages, uint32_t channel, uint32_t pos)
{
	const uint32_t page = __umulhi(pos, s.page_magic), at = pos - page * s.page_tokens;
	return (float *)(l.page_base + pages[page] * s.page_stride) +
	       ((size_t)channel * s.page_tokens + at);
}

__device__ __forceinline__ float *output(const place &u, uint32_t channel, uint32_t pos)
{
	return pos < u.end ? cell(*u.shape, *u.layer, u.pages, channel, pos) : nullptr;
}

__device__ __forceinline__ float *output(const place_in_range &u, uint32_t channel, uint32_t pos)
{
	if (pos < u.from || pos >= u.end)
		return nullptr;
	if (pos >= u.sums_begin && pos < u.sums_end)
		return u.sums + (channel * u.sums_ld + (pos - u.sums_begin));
	return cell(*u.shape, *u.layer, u.pages, channel, pos);
}

__device__ __forceinline__ uint32_t distance_of(uint32_t block)
{
	return block % 2 ? 3 : 2;
}

/* True if no larger side has written the block's cells: at the levels above, they belong to blocks
 * 0 and 1. */
__device__ __forceinline__ bool is_first(uint32_t block)
{
	return block < 4;
}

/* ---- by transforms ---- */

/* exp(-i pi q / 32) */
__device__ __forceinline__ float2 eighth(int q)
{
	constexpr float C[17] = {1.0f,
	                         0.99518472667f,
	                         0.98078528040f,
	                         0.95694033573f,
	                         0.92387953251f,
	                         0.88192126435f,
	                         0.83146961230f,
	                         0.77301045336f,
	                         0.70710678119f,
	                         0.63439328416f,
	                         0.55557023302f,
	                         0.47139673683f,
	                         0.38268343236f,
	                         0.29028467725f,
	                         0.19509032202f,
	                         0.09801714033f,
	                         0.0f};
	return make_float2(C[q], -C[16 - q]);
}

/* Weights of a part: v for each thread, a^q, and one for each j. */
template <bool PARTS> struct weights {
	float2 v, a;
	float step; /* of the angle of j, in units of pi */

	template <typename PLAN>
	__device__ __forceinline__ weights(const PLAN &p, uint32_t log2_n, uint32_t part)
	{
		const float n2 = (float)(2u << log2_n);
		v = PARTS ? fft::root((float)(p.t * (1 + 4 * part)) / n2) : p.weight();
		if (PARTS) {
			a = fft::root((float)((PLAN::N / 16) * (1 + 4 * part)) / n2);
			step = (float)(PLAN::N * (1 + 4 * part)) / n2;
		}
	}
	__device__ __forceinline__ float2 of_j(uint32_t j) const
	{
		return fft::root(step * (float)j);
	}
};

/* Inputs of a block, weighted but for v. */
template <int LOG2M, bool PARTS>
__device__ __forceinline__ void fold(const place &u, const weights<PARTS> &w, uint32_t channel,
                                     uint32_t block, uint32_t parts, int t, float2 *x)
{
	constexpr uint32_t M = 1u << LOG2M, T = M / 16;
	const uint32_t at = block * M * parts + (uint32_t)t;
	if constexpr (PARTS) {
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = make_float2(0, 0);
		for (uint32_t j = 0; j < parts; j++) {
			const float2 b = w.of_j(j);
			float z[16];
#pragma unroll
			for (int q = 0; q < 16; q++)
				z[q] = *cell(*u.shape, *u.layer, u.pages, channel, at + M * j + T * q);
#pragma unroll
			for (int q = 0; q < 16; q++)
				x[q] = make_float2(__fmaf_rn(z[q], b.x, x[q].x), __fmaf_rn(z[q], b.y, x[q].y));
		}
		fft::turn_powers<false>(x, w.a);
	} else {
		float z[16];
#pragma unroll
		for (int q = 0; q < 16; q++)
			z[q] = *cell(*u.shape, *u.layer, u.pages, channel, at + T * q);
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = make_float2(__fmul_rn(z[q], eighth(q).x), __fmul_rn(z[q], eighth(q).y));
	}
}

/* Adds what comes back, times conj(v) already, to the outputs. */
template <int LOG2M, bool PARTS, typename U>
__device__ __forceinline__ void unfold(const U &u, const weights<PARTS> &w, uint32_t channel,
                                       uint32_t parts, bool set, int t, float2 *x)
{
	constexpr uint32_t M = 1u << LOG2M, T = M / 16;
	const uint32_t at = u.block * M * parts + (uint32_t)t;
	if (PARTS)
		fft::turn_powers<true>(x, w.a);
	for (uint32_t j = 0; j < (PARTS ? parts : 1); j++) {
		const float2 b = PARTS ? w.of_j(j) : make_float2(1, 0);
#pragma unroll
		for (int half = 0; half < 16; half += 8) {
			float *to[8], y[8];
#pragma unroll
			for (int q = 0; q < 8; q++) {
				to[q] = output(u, channel, at + M * j + T * (half + q));
				y[q] = !set && to[q] ? *to[q] : 0;
			}
#pragma unroll
			for (int q = 0; q < 8; q++) {
				const float2 c = PARTS ? b : eighth(half + q), v = x[half + q];
				const float now = __fmaf_rn(v.x, c.x, __fmul_rn(v.y, c.y));
				if (to[q])
					*to[q] = set ? now : __fadd_rn(y[q], now);
			}
		}
	}
}

/* Shared memory of a thread block that runs units: a transform, as much parked, tables. */
struct shared_memory {
	float2 room[fft::room_of(LCG_THREADS)], parked[LCG_POINTS], tables[2 * fft::TABLE];
};

/* x times a spectrum; if `more`, plus what is parked. */
template <int T>
__device__ __forceinline__ void multiply(const float4 *spectrum, int t, bool more,
                                         const float2 *parked, float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const float4 s = __ldg(spectrum + e * T + t);
		const float2 a = make_float2(s.x, s.y), b = make_float2(s.z, s.w);
		const float2 zero = make_float2(0, 0);
		x[2 * e] = fft::fma(x[2 * e], a, more ? parked[2 * e * LCG_THREADS] : zero);
		x[2 * e + 1] = fft::fma(x[2 * e + 1], b, more ? parked[(2 * e + 1) * LCG_THREADS] : zero);
	}
}

/* One part of a unit. All threads of the block take part. The product of the first of two blocks of
 * inputs is parked in shared memory, since two transforms do not fit in registers. */
template <int LOG2M, bool PARTS, typename U>
__device__ __forceinline__ void transform_part(const U &u, uint32_t level, uint32_t part,
                                               shared_memory *shared)
{
	constexpr int T = (1 << LOG2M) / 16;
	const fft::plan<LOG2M> p(threadIdx.x, shared->tables, shared->room);
	float2 *parked = shared->parked + threadIdx.x;
	const uint32_t channels = u.shape->channels, log2_n = level + LCG_LOG2_BLOCK;
	const uint32_t parts = PARTS ? 1u << (log2_n - LOG2M) : 1;
	const uint32_t channel = u.group * (LCG_POINTS >> LOG2M) + threadIdx.x / T;
	const bool active = channel < channels;
	const weights<PARTS> w(p, log2_n, part);
	const float4 *spectrum = (const float4 *)u.layer->spectra[level] +
	                         ((size_t)channel * parts + part) * ((1 << LOG2M) / 2);
	const size_t next = (size_t)channels * parts * ((1 << LOG2M) / 2);
	float2 x[16];
#pragma unroll
	for (int q = 0; q < 16; q++)
		x[q] = make_float2(0, 0);
	for (uint32_t d = 2; d <= distance_of(u.block); d++, spectrum += next) {
		if (d == 3) {
#pragma unroll
			for (int q = 0; q < 16; q++)
				parked[q * LCG_THREADS] = x[q];
			p.meet();
		}
		if (active)
			fold<LOG2M, PARTS>(u, w, channel, u.block - d, parts, p.t, x);
		p.forward(x, w.v);
		if (active)
			multiply<T>(spectrum, p.t, d == 3, parked, x);
	}
	p.backward(x, w.v);
	if (active)
		unfold<LOG2M, PARTS>(u, w, channel, parts, part == 0 && is_first(u.block), p.t, x);
}

/* ---- a unit of any side ---- */

/* Runs a unit of a level. All threads of the block take part; they meet at the end. */
template <typename U>
__device__ __forceinline__ void run_unit(const U &u, uint32_t level, shared_memory *shared)
{
	switch (level) {
	case 0: transform_part<5, false>(u, level, 0, shared); break;
	case 1: transform_part<6, false>(u, level, 0, shared); break;
	case 2: transform_part<7, false>(u, level, 0, shared); break;
	case 3: transform_part<8, false>(u, level, 0, shared); break;
	case 4: transform_part<9, false>(u, level, 0, shared); break;
	case 5: transform_part<10, false>(u, level, 0, shared); break;
	case 6: transform_part<11, false>(u, level, 0, shared); break;
	case 7: transform_part<12, false>(u, level, 0, shared); break;
	default:
		for (uint32_t part = u.first_part; part < u.end_part; part++)
			transform_part<12, true>(u, level, part, shared);
		break;
	}
	__syncthreads();
}

} // namespace lcg

#endif
