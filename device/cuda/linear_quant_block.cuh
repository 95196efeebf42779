/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product of a block of quantised panels, 16 rows and 128 columns, with few rows of x, by a
 * warp: codes become bf16 in registers, the sums of a group are multiplied by its scale. Private to
 * linear_quant_few.cu and experts_quant_few.cu.
 */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_BLOCK_CUH
#define MX_DEVICE_CUDA_LINEAR_QUANT_BLOCK_CUH

#include "device/cuda/linear_quant.cuh"

/* Read once: the compiler would read the thread's number again wherever it is used. */
static __device__ __forceinline__ uint32_t lane_id(void)
{
	uint32_t lane;
	asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
	return lane;
}

/* ---- scales ---- */

/* How a kernel has the scales of a block. */
enum scaling {
	BY_F16,   /* as they lie: of groups of 32, two bytes each */
	BY_F32,   /* likewise of groups of 64 or 128, four bytes */
	BY_KEPT,  /* others: made f32 when the block has come, in memory of the warp */
	BY_SMALL, /* likewise of groups of 16 */
	BY_BF16,  /* as they lie: of groups of 32, two bytes each */
};

/* Returns how many `kept` a block takes. */
static constexpr __host__ __device__ uint32_t keeps(int scaling, int offset)
{
	return scaling == BY_SMALL ? 1 + (offset == MX_OFFSET_MIN) : scaling == BY_KEPT;
}

/* Pairs of f32, of rows g and g + 8, for each 32 columns (BY_SMALL: 16, the minima in a `kept` of
 * their own behind) of a block and each g. */
union kept {
	struct {
		float2 scales[4][8];
		union {
			float2 minima[4][8];
			uint8_t zeros[4][8][2];
		};
	};
	float2 small[8][8];
};

/* Fills *to from a block that has come. */
template <int CODES, int OFFSET, int SCALING>
static __device__ __forceinline__ void keep(kept *to, const mx_cuda_quant &q,
                                            const unsigned char *block, uint32_t lane)
{
	constexpr bool SMALL = SCALING == BY_SMALL;
	constexpr uint32_t N = SMALL ? 128 : 64;
	float *const minima = SMALL ? (float *)(to + 1) : (float *)to->minima;
#pragma unroll 1
	for (uint32_t i = lane; i < N; i += 32) {
		const uint32_t k = i / 16, at = (SMALL ? k : k * 32 >> q.group_shift) * 16 + i % 16;
		((float *)to)[i] = mx_scale(q, block, at);
		if (OFFSET == MX_OFFSET_MIN)
			minima[i] = mx_minimum(q, block, at);
		else if (CODES == MX_CODES_4 && !SMALL)
			((uint8_t *)to->zeros)[i] = (uint8_t)mx_zero_4(q, block, at);
	}
}

/* What this lane reads of a block beside its codes, for rows g and g + 8. */
struct beside {
	const unsigned char *scales, *zeros; /* scales: 4 g bytes, BY_F32 8 g, from the block's first */
	const kept *k;
	uint32_t
		second; /* BY_F32: bytes from the scales of the first 64 columns to those of the others */
};

template <int SCALING>
static __device__ __forceinline__ float2 scales_of(const beside &b, uint32_t g, int j)
{
	if (SCALING == BY_F16)
		return __half22float2(((const __half2 *)b.scales)[j * 8]);
	if (SCALING == BY_F32)
		return *(const float2 *)(b.scales + (j < 2 ? 0 : b.second));
	if (SCALING == BY_BF16) {
		const uint32_t two = ((const uint32_t *)b.scales)[j * 8];
		return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000));
	}
	return b.k->scales[j][g];
}

/* The zeros of codes of 4 bits, a byte each. */
template <int SCALING>
static __device__ __forceinline__ uint32_t zeros_of(const beside &b, uint32_t g, int j)
{
	if (SCALING == BY_KEPT)
		return *(const uint16_t *)b.k->zeros[j][g];
	if (SCALING == BY_F16)
		return ((const uint16_t *)b.zeros)[j * 8];
	return *(const uint16_t *)(b.zeros + (j < 2 ? 0 : b.second / 4));
}

/* ---- products ---- */

template <int NT>
static __device__ __forceinline__ void add_scaled(float (&acc)[NT][4], const float (&part)[NT][4],
                                                  const float2 s)
{
#pragma unroll
	for (int i = 0; i < NT; i++) {
		acc[i][0] = fmaf(s.x, part[i][0], acc[i][0]);
		acc[i][1] = fmaf(s.x, part[i][1], acc[i][1]);
		acc[i][2] = fmaf(s.y, part[i][2], acc[i][2]);
		acc[i][3] = fmaf(s.y, part[i][3], acc[i][3]);
	}
}

/* part (+)= product of 16 rows and 32 columns with x */
template <int NT>
static __device__ __forceinline__ void product(float (&part)[NT][4], bool add, const uint4 &lo,
                                               const uint4 &hi, const uint4 (&x)[NT][4], int j)
{
#pragma unroll
	for (int i = 0; i < NT; i++) {
		if (!add)
			part[i][0] = part[i][1] = part[i][2] = part[i][3] = 0;
		mx_mma32(part[i], lo, hi, x[i][j]);
	}
}

static __device__ __forceinline__ uint4 only_if(bool keep, const uint4 &v)
{
	return keep ? v : make_uint4(0, 0, 0, 0);
}

/* Adds the product of a block with x. `codes`: this lane's. */
template <int CODES, int OFFSET, int SCALING, int NT>
static __device__ __forceinline__ void multiply(float (&acc)[NT][4], const uint4 (&x)[NT][4],
                                                const uint4 *codes, const beside &b, uint32_t g,
                                                uint32_t t, uint32_t center)
{
	const uint4 one = make_uint4(0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80);
	float part[NT][4];
	uint4 v;
#pragma unroll
	for (int j = 0; j < 4; j++) {
		uint4 lo, hi;
		if (CODES == MX_CODES_4 || CODES == MX_CODES_E2M1) {
			uint32_t zero_lo = center, zero_hi = center;
			if (j % 2 == 0)
				v = codes[j / 2 * 32];
			if (OFFSET == MX_OFFSET_ZERO) {
				const uint32_t z = zeros_of<SCALING>(b, g, j);
				zero_lo = __byte_perm(z, 0x43, 0x4040);
				zero_hi = __byte_perm(z, 0x43, 0x4141);
			}
			lo = mx_codes<CODES>(j % 2 ? v.z : v.x, 0, zero_lo);
			hi = mx_codes<CODES>(j % 2 ? v.w : v.y, 0, zero_hi);
		} else {
			v = codes[j * 32];
			lo = mx_codes<CODES>(v.x, v.y, 0);
			hi = mx_codes<CODES>(v.z, v.w, 0);
		}
		if (SCALING == BY_SMALL) { /* columns 0 .. 15 are those of t < 2 */
			product<NT>(part, false, only_if(t < 2, lo), only_if(t < 2, hi), x, j);
			add_scaled<NT>(acc, part, b.k->small[2 * j][g]);
			product<NT>(part, false, only_if(t >= 2, lo), only_if(t >= 2, hi), x, j);
			add_scaled<NT>(acc, part, b.k->small[2 * j + 1][g]);
		} else {
			product<NT>(part, SCALING == BY_F32 && j % 2, lo, hi, x, j);
			if (SCALING != BY_F32 || j % 2)
				add_scaled<NT>(acc, part, scales_of<SCALING>(b, g, j));
		}
		if (OFFSET == MX_OFFSET_MIN && SCALING == BY_SMALL) {
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float2 m = b.k[1].small[2 * j + half][g];
				const uint4 ones = only_if(t / 2 == half, one);
				product<NT>(part, false, ones, ones, x, j);
				add_scaled<NT>(acc, part, make_float2(-m.x, -m.y));
			}
		} else if (OFFSET == MX_OFFSET_MIN) {
			const float2 m = b.k->minima[j][g];
			product<NT>(part, false, one, one, x, j);
			add_scaled<NT>(acc, part, make_float2(-m.x, -m.y));
		}
	}
}

/* How kernels have the scales of a form. */
static scaling scaling_of(const mx_cuda_quant &q)
{
	if (q.group_shift == 4)
		return BY_SMALL;
	if (q.codes_as == MX_CODES_E2M1)
		return BY_BF16;
	if (q.offset == MX_OFFSET_MIN)
		return BY_KEPT;
	if (q.scales == MX_SCALES_F16 && q.group_shift == 5)
		return BY_F16;
	return q.scales == MX_SCALES_F32 && q.group_shift >= 6 ? BY_F32 : BY_KEPT;
}

#endif
