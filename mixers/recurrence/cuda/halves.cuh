/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S in a slot of a bf16 model, in halves: the bf16 numbers nearest to its elements, which is all
 * that products with k and q see, and what the elements have beyond those. A step that only asks S
 * reads the former half; both have the 32 bits of each element.
 *
 * An element as an integer is its high half shifted up, plus its low half with a sign. Only a
 * number in the middle between two of bf16 could have a low half of either sign: `no_tie` keeps S
 * off those, by an f32 ulp, wherever tokens are added to it, so that S has the same bits whether it
 * was in a slot or in registers. (stretch.cu, never deterministic, stores such a copy only.)
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_HALVES_CUH
#define MX_MIXERS_RECURRENCE_CUDA_HALVES_CUH

#include "mixers/recurrence/cuda/recur_cuda.h"
#include "mixers/recurrence/cuda/tile.cuh"

/* x, or its neighbour away from zero where x is between two bf16 numbers. */
static __device__ __forceinline__ float no_tie(float x)
{
	const uint32_t u = __float_as_uint(x);
	return __uint_as_float(u + ((u & 0xffff) == 0x8000));
}

/* The halves of 16 x 16 elements, a lane's two C side by side; the high one is an A (tile.cuh). */
struct halves {
	uint4 high, low;
};

static __device__ __forceinline__ halves halves_of(const float (&s)[2][4])
{
	const operand_a<1> a = sums_a<1>(s);
	const auto low = [&](const float *two) {
		return __byte_perm(__float_as_uint(two[0]), __float_as_uint(two[1]), 0x5410);
	};
	return {make_uint4(a.r[0][0], a.r[0][1], a.r[0][2], a.r[0][3]),
	        make_uint4(low(s[0]), low(s[0] + 2), low(s[1]), low(s[1] + 2))};
}

static __device__ __forceinline__ void join(uint32_t high, uint32_t low, float *two)
{
	two[0] = __uint_as_float((high << 16) + (uint32_t)(int32_t)(int16_t)low);
	two[1] = __uint_as_float((high & 0xffff0000) + (uint32_t)((int32_t)low >> 16));
}

static __device__ __forceinline__ void whole_of(const halves &h, float (&s)[2][4])
{
	join(h.high.x, h.low.x, s[0]), join(h.high.y, h.low.y, s[0] + 2);
	join(h.high.z, h.low.z, s[1]), join(h.high.w, h.low.w, s[1] + 2);
}

/* Where a lane has 16 columns and 16 keys of a unit's S, tile `n` of [columns / 16][keys / 16]. */
static __device__ __forceinline__ uint4 *high_at(const recur_unit &u, unsigned char *unit, size_t n)
{
	return (uint4 *)(unit + u.S) + n * 32 + (threadIdx.x & 31);
}
static __device__ __forceinline__ uint4 *low_at(const recur_unit &u, unsigned char *unit, size_t n)
{
	return (uint4 *)(unit + u.low) + n * 32 + (threadIdx.x & 31);
}

/* A load that the compiler leaves in its place. */
static __device__ __forceinline__ uint4 load_now(const uint4 *from)
{
	uint4 v;
	asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(from)
	             : "memory");
	return v;
}

#endif
