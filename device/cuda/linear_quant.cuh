/* SPDX-License-Identifier: Apache-2.0 */
/* Codes and scales of quantised panels in registers. Private to linear_quant_*.cu. */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_CUH
#define MX_DEVICE_CUDA_LINEAR_QUANT_CUH

#include <cuda_fp16.h>

#include "device/cuda/linear.cuh"
#include "device/cuda/linear_quant.h"

/* ---- codes, exactly, as bf16 pairs: columns 8t .. 8t+7 of a lane ---- */

static __device__ __forceinline__ uint32_t mx_bf16_sub2(uint32_t a, uint32_t b)
{
	const __nv_bfloat162 d =
		__hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
	return *reinterpret_cast<const uint32_t *>(&d);
}

/* Returns (a & mask) | bits in one instruction; the compiler makes two of it if both are constants.
 */
static __device__ __forceinline__ uint32_t mx_and_or(uint32_t a, uint32_t mask, uint32_t bits)
{
	uint32_t d;
	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
	return d;
}

/* 128 + c is 0x4300 | c as bf16. Returns that of the codes in bits 0..3 and 16..19, less `zero`,
 * which is 128 + the zero in both halves. */
static __device__ __forceinline__ uint32_t mx_codes_4(uint32_t w, uint32_t zero)
{
	return mx_bf16_sub2(mx_and_or(w, 0x000f000f, 0x43004300), zero);
}

/* Of two's complement in the low byte of each half: 128 + the low 7 bits, less 128 or, of a
 * negative number, 256. */
static __device__ __forceinline__ uint32_t mx_codes_8(uint32_t w)
{
	return mx_bf16_sub2(mx_and_or(w, 0x007f007f, 0x43004300), mx_and_or(w, 0x00800080, 0x43004300));
}

/* Of e4m3 in the high byte of each half: with its bits in the places of bf16's, 2^-120 of it. */
static __device__ __forceinline__ uint32_t mx_codes_e4m3(uint32_t w)
{
	uint32_t a = mx_and_or(w, 0x80008000, w >> 4 & 0x07f007f0), scale = 0x7b807b80; /* 2^120 */
	const __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a),
	                                 *reinterpret_cast<__nv_bfloat162 *>(&scale));
	return *reinterpret_cast<const uint32_t *>(&v);
}

/* Twice the numbers of fp4 in bits 4k .. 4k + 3 of each half: with their bits in the places of
 * bf16's they are 2^-126 of them. */
template <int k> static __device__ __forceinline__ uint32_t mx_codes_e2m1(uint32_t w)
{
	const uint32_t at = k == 3 ? w >> 6 : k == 2 ? w >> 2 : k == 1 ? w << 2 : w << 6;
	uint32_t a = mx_and_or(w << (12 - 4 * k), 0x80008000, at & 0x01c001c0);
	uint32_t scale = 0x7f007f00; /* 2^127 */
	const __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a),
	                                 *reinterpret_cast<__nv_bfloat162 *>(&scale));
	return *reinterpret_cast<const uint32_t *>(&v);
}

/* Eight codes of a row: of 4 bits in w0, else in w0 and w1. */
template <int CODES>
static __device__ __forceinline__ uint4 mx_codes(uint32_t w0, uint32_t w1, uint32_t zero)
{
	if (CODES == MX_CODES_4)
		return make_uint4(mx_codes_4(w0, zero), mx_codes_4(w0 >> 4, zero),
		                  mx_codes_4(w0 >> 8, zero), mx_codes_4(w0 >> 12, zero));
	if (CODES == MX_CODES_E2M1)
		return make_uint4(mx_codes_e2m1<0>(w0), mx_codes_e2m1<1>(w0), mx_codes_e2m1<2>(w0),
		                  mx_codes_e2m1<3>(w0));
	if (CODES == MX_CODES_8)
		return make_uint4(mx_codes_8(w0), mx_codes_8(w0 >> 8), mx_codes_8(w1), mx_codes_8(w1 >> 8));
	return make_uint4(mx_codes_e4m3(w0 << 8), mx_codes_e4m3(w0), mx_codes_e4m3(w1 << 8),
	                  mx_codes_e4m3(w1));
}

/* ---- scales: `at` = 16 group + place of the row, 2 (row % 8) + row / 8, in the block ---- */

static __device__ __forceinline__ float mx_scale_number(enum mx_quant_scales as,
                                                        const unsigned char *p, uint32_t at)
{
	if (as == MX_SCALES_F32)
		return ((const float *)p)[at];
	const uint32_t u = ((const uint16_t *)p)[at];
	return as == MX_SCALES_BF16 ? __uint_as_float(u << 16)
	                            : __half2float(__ushort_as_half((unsigned short)u));
}

static __device__ __forceinline__ float mx_scale(const struct mx_cuda_quant &q,
                                                 const unsigned char *block, uint32_t at)
{
	if (q.scales != MX_SCALES_TWO)
		return mx_scale_number(q.scales, block, at);
	return mx_scale_number(MX_SCALES_F16, block, at % 16) *
	       (float)((const int8_t *)block)[q.second + at];
}

static __device__ __forceinline__ float mx_minimum(const struct mx_cuda_quant &q,
                                                   const unsigned char *block, uint32_t at)
{
	const unsigned char *p = block + q.minima;
	if (q.scales != MX_SCALES_TWO)
		return mx_scale_number(q.scales, p, at);
	return mx_scale_number(MX_SCALES_F16, p, at % 16) *
	       (float)((const int8_t *)block)[q.second_minima + at];
}

/* Returns 128 + the zero of codes of 4 bits, as bf16. */
static __device__ __forceinline__ uint32_t mx_zero_4(const struct mx_cuda_quant &q,
                                                     const unsigned char *block, uint32_t at)
{
	return 0x4300 | (q.offset == MX_OFFSET_ZERO ? block[q.zeros + at] : q.center);
}

#endif
