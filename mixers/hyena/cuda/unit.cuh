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

/* Weights of part `part` of a side: v for each thread, a^q, and one for each j. If there is one
 * part, a^q is `eighth`. */
struct weights {
	float2 v, a;
	float step; /* of the angle of j, in units of pi */

	__device__ __forceinline__ weights(const fft::plan &p, uint32_t log2_n, uint32_t part)
	{
		const float n2 = (float)(2u << log2_n);
		v = (int)log2_n == p.log2 ? p.weight() : fft::root((float)(p.t * (1 + 4 * part)) / n2);
		a = fft::root((float)(p.threads * (1 + 4 * part)) / n2);
		step = (float)((1 + 4 * part) << p.log2) / n2;
	}
	__device__ __forceinline__ float2 of_j(uint32_t j) const
	{
		return fft::root(step * (float)j);
	}
};

/* Inputs of a block, weighted but for v. */
__device__ __forceinline__ void fold(const place &u, const fft::plan &p, const weights &w,
                                     uint32_t channel, uint32_t block, uint32_t parts, float2 *x)
{
	uint32_t at = (block * parts << p.log2) + (uint32_t)p.t;
	float z[16];
	if (parts == 1) {
#pragma unroll
		for (int q = 0; q < 16; q++)
			z[q] = *cell(*u.shape, *u.layer, u.pages, channel, at + p.threads * q);
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = make_float2(__fmul_rn(z[q], eighth(q).x), __fmul_rn(z[q], eighth(q).y));
		return;
	}
#pragma unroll
	for (int q = 0; q < 16; q++)
		x[q] = make_float2(0, 0);
#pragma unroll 1
	for (uint32_t j = 0; j < parts; j++, at += 1u << p.log2) {
		const float2 b = w.of_j(j);
#pragma unroll
		for (int q = 0; q < 16; q++)
			z[q] = *cell(*u.shape, *u.layer, u.pages, channel, at + p.threads * q);
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = make_float2(__fmaf_rn(z[q], b.x, x[q].x), __fmaf_rn(z[q], b.y, x[q].y));
	}
	fft::turn_all(x, make_float2(1, 0), w.a);
}

/* Adds the real parts of x[q] weight(q) to the outputs from `at` on, or sets these. */
template <typename U, typename F>
__device__ __forceinline__ void put_outputs(const U &u, uint32_t channel, uint32_t at,
                                            uint32_t threads, bool set, const float2 *x, F weight)
{
#pragma unroll
	for (int half = 0; half < 16; half += 8) {
		float *to[8], y[8];
#pragma unroll
		for (int q = 0; q < 8; q++) {
			to[q] = output(u, channel, at + threads * (half + q));
			y[q] = !set && to[q] ? *to[q] : 0;
		}
#pragma unroll
		for (int q = 0; q < 8; q++) {
			const float2 c = weight(half + q), v = x[half + q];
			const float now = __fmaf_rn(v.x, c.x, -__fmul_rn(v.y, c.y));
			if (to[q])
				*to[q] = set ? now : __fadd_rn(y[q], now);
		}
	}
}

/* Adds x, the conjugate of what came back, to the outputs. */
template <typename U>
__device__ __forceinline__ void unfold(const U &u, const fft::plan &p, const weights &w,
                                       uint32_t channel, uint32_t parts, bool set, float2 *x)
{
	uint32_t at = (u.block * parts << p.log2) + (uint32_t)p.t;
	if (parts == 1) {
		put_outputs(u, channel, at, p.threads, set, x, [](int q) { return eighth(q); });
		return;
	}
	fft::turn_all(x, make_float2(1, 0), w.a);
#pragma unroll 1
	for (uint32_t j = 0; j < parts; j++, at += 1u << p.log2) {
		const float2 b = w.of_j(j);
		put_outputs(u, channel, at, p.threads, set, x, [=](int) { return b; });
	}
}

/* Shared memory of a thread block that runs units: transforms, as much parked, tables. */
struct shared_memory {
	float2 room[fft::room_of(LCG_THREADS)], parked[LCG_POINTS], tables[2 * fft::TABLE];
};

/* x times a spectrum; if `more`, plus what is parked. */
__device__ __forceinline__ void multiply(const float4 *spectrum, const fft::plan &p, bool more,
                                         const float2 *parked, float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const float4 s = __ldg(spectrum + e * p.threads + p.t);
		const float2 a = make_float2(s.x, s.y), b = make_float2(s.z, s.w);
		const float2 zero = make_float2(0, 0);
		x[2 * e] = fft::fma(x[2 * e], a, more ? parked[2 * e * LCG_THREADS] : zero);
		x[2 * e + 1] = fft::fma(x[2 * e + 1], b, more ? parked[(2 * e + 1) * LCG_THREADS] : zero);
	}
}

/* One part of a unit. All threads of the block take part. The product of the first of two blocks of
 * inputs is parked in shared memory, since two transforms do not fit in registers. */
template <typename U>
__device__ __forceinline__ void run_part(const U &u, uint32_t level, uint32_t part,
                                         shared_memory *shared)
{
	const uint32_t channels = u.shape->channels, log2_n = level + LCG_LOG2_BLOCK;
	const uint32_t parts = lcg_parts(log2_n);
	const fft::plan p(log2_n < LCG_LOG2_POINTS ? (int)log2_n : LCG_LOG2_POINTS, shared->tables,
	                  shared->room);
	const uint32_t channel = u.group * (LCG_POINTS >> p.log2) + (threadIdx.x >> (p.log2 - 4));
	const bool active = channel < channels;
	float2 *parked = shared->parked + threadIdx.x;
	const weights w(p, log2_n, part);
	const size_t pairs = (size_t)1 << (p.log2 - 1);
	const float4 *spectrum =
		(const float4 *)u.layer->spectra[level] + ((size_t)channel * parts + part) * pairs;
	float2 x[16];
#pragma unroll
	for (int q = 0; q < 16; q++)
		x[q] = make_float2(0, 0);
#pragma unroll 1
	for (uint32_t d = 2; d <= distance_of(u.block); d++, spectrum += channels * parts * pairs) {
		if (d == 3) {
#pragma unroll
			for (int q = 0; q < 16; q++)
				parked[q * LCG_THREADS] = x[q];
			__syncthreads();
		}
		if (active)
			fold(u, p, w, channel, u.block - d, parts, x);
		p.forward(x, w.v);
		if (active)
			multiply(spectrum, p, d == 3, parked, x);
	}
	fft::conjugate(x);
	p.backward(x, w.v);
	if (active)
		unfold(u, p, w, channel, parts, part == 0 && is_first(u.block), x);
}

/* Runs a unit of a level. All threads of the block take part; they meet at the end. */
template <typename U>
__device__ __forceinline__ void run_unit(const U &u, uint32_t level, shared_memory *shared)
{
#pragma unroll 1
	for (uint32_t part = u.first_part; part < u.end_part; part++) {
		run_part(u, level, part, shared);
		__syncthreads();
	}
}

} // namespace lcg

#endif
