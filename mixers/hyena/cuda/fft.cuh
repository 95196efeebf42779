/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transforms of 32 .. 4096 complex numbers by a group of threads with 16 of them each, in registers
 * and, between passes, in shared memory.
 *
 * The passes are of radix 16 (decimation in frequency), the last one of what is left; back the same
 * in reverse, on conjugates, so that both need the same butterflies. Neither reorders: the output
 * of forward is in the order in which the threads hold it, and backward takes that. A thread writes
 * to shared memory where it has read last, so threads meet once between two passes. The length is
 * not known to the compiler: one code serves all.
 *
 * All products are written as intrinsics: the compiler may not fuse them with sums in one kernel
 * and leave them apart in another, since a prompt's bits must be those of decoding.
 */
#ifndef MX_MIXERS_HYENA_CUDA_FFT_CUH
#define MX_MIXERS_HYENA_CUDA_FFT_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace fft
{

__device__ __forceinline__ float2 add(float2 a, float2 b)
{
	return make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
}

__device__ __forceinline__ float2 sub(float2 a, float2 b)
{
	return make_float2(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y));
}

/* a + b c */
__device__ __forceinline__ float2 fma(float2 b, float2 c, float2 a)
{
	return make_float2(__fmaf_rn(-b.y, c.y, __fmaf_rn(b.x, c.x, a.x)),
	                   __fmaf_rn(b.y, c.x, __fmaf_rn(b.x, c.y, a.y)));
}

__device__ __forceinline__ float2 mul(float2 a, float2 b)
{
	return make_float2(__fmaf_rn(a.x, b.x, -__fmul_rn(a.y, b.y)),
	                   __fmaf_rn(a.x, b.y, __fmul_rn(a.y, b.x)));
}

/* -i a */
__device__ __forceinline__ float2 quarter(float2 a)
{
	return make_float2(a.y, -a.x);
}

/* exp(-i pi x) */
__device__ __forceinline__ float2 root(float x)
{
	float s, c;
	sincospif(x, &s, &c);
	return make_float2(c, -s);
}

/* ---- butterflies, in and out in natural order ---- */

__device__ __forceinline__ void dft2(float2 &a, float2 &b)
{
	const float2 d = sub(a, b);
	a = add(a, b);
	b = d;
}

__device__ __forceinline__ void dft4(float2 &a, float2 &b, float2 &c, float2 &d)
{
	const float2 s = add(a, c), t = sub(a, c), u = add(b, d), v = quarter(sub(b, d));
	a = add(s, u);
	b = add(t, v);
	c = sub(s, u);
	d = sub(t, v);
}

__device__ __forceinline__ void dft8(float2 *x)
{
	const float h = 0.70710678118654752440f;
	dft4(x[0], x[2], x[4], x[6]);
	dft4(x[1], x[3], x[5], x[7]);
	const float2 o1 = mul(x[3], make_float2(h, -h)), o2 = quarter(x[5]),
				 o3 = mul(x[7], make_float2(-h, -h)), e1 = x[2], e2 = x[4], e3 = x[6];
	const float2 e0 = x[0], o0 = x[1];
	x[0] = add(e0, o0), x[4] = sub(e0, o0);
	x[1] = add(e1, o1), x[5] = sub(e1, o1);
	x[2] = add(e2, o2), x[6] = sub(e2, o2);
	x[3] = add(e3, o3), x[7] = sub(e3, o3);
}

__device__ __forceinline__ void dft16(float2 *x)
{
	const float h = 0.70710678118654752440f, c = 0.92387953251128675613f,
				s = 0.38268343236508977173f;
#pragma unroll
	for (int b = 0; b < 4; b++)
		dft4(x[b], x[b + 4], x[b + 8], x[b + 12]);
	/* x[b + 4 k] times the root of 16 to the power b k */
	x[5] = mul(x[5], make_float2(c, -s));
	x[6] = mul(x[6], make_float2(h, -h));
	x[7] = mul(x[7], make_float2(s, -c));
	x[9] = mul(x[9], make_float2(h, -h));
	x[10] = quarter(x[10]);
	x[11] = mul(x[11], make_float2(-h, -h));
	x[13] = mul(x[13], make_float2(s, -c));
	x[14] = mul(x[14], make_float2(-h, -h));
	x[15] = mul(x[15], make_float2(-c, s));
#pragma unroll
	for (int k = 0; k < 4; k++)
		dft4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
		/* x[4 k + j] is output k + 4 j */
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int j = k + 1; j < 4; j++) {
			const float2 swap = x[4 * k + j];
			x[4 * k + j] = x[4 * j + k];
			x[4 * j + k] = swap;
		}
}

/* Butterflies of 2, 4, 8 or 16 neighbours. */
__device__ __forceinline__ void dft_last(float2 *x, int log2)
{
	if (log2 == 4) {
		dft16(x);
	} else if (log2 == 3) {
		dft8(x);
		dft8(x + 8);
	} else if (log2 == 2) {
#pragma unroll
		for (int g = 0; g < 16; g += 4)
			dft4(x[g], x[g + 1], x[g + 2], x[g + 3]);
	} else {
#pragma unroll
		for (int g = 0; g < 16; g += 2)
			dft2(x[g], x[g + 1]);
	}
}

/* x[r] times v w^r */
__device__ __forceinline__ void turn_all(float2 *x, float2 v, float2 w)
{
	const float2 w2 = mul(w, w), w4 = mul(w2, w2);
	float2 t[4] = {v, mul(v, w), mul(v, w2)};
	t[3] = mul(t[1], w2);
#pragma unroll
	for (int r = 0; r < 16; r += 4) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[r + i] = mul(x[r + i], t[i]);
			if (r < 12)
				t[i] = mul(t[i], w4);
		}
	}
}

__device__ __forceinline__ void conjugate(float2 *x)
{
#pragma unroll
	for (int q = 0; q < 16; q++)
		x[q].y = -x[q].y;
}

/* ---- transforms ---- */

/* Numbers in shared memory of transforms by `threads` threads. */
__host__ __device__ constexpr int room_of(int threads)
{
	return threads * 17;
}

/* Factors of all transforms, in shared memory: entry i is exp(-2 pi i / 4096), and exp(-2 pi i /
 * 16384). Every thread of a block of TABLE calls make_tables, and then the block meets. */
constexpr int TABLE = 256;

__device__ __forceinline__ void make_tables(float2 *tables)
{
	tables[threadIdx.x] = root((float)threadIdx.x / 2048.0f);
	tables[TABLE + threadIdx.x] = root((float)threadIdx.x / 8192.0f);
}

/* Transforms of n = 2^log2 numbers, as many as fill a thread block. */
struct plan {
	int log2;
	int threads;   /* of a transform: n / 16 */
	int t;         /* thread of the transform */
	bool two;      /* two passes of radix 16 before the last, else one */
	int log2_last; /* of the radix of the last pass */
	const float2 *tables;
	/* The transform's numbers: element i is at i + i / 16, so that half a warp's accesses touch all
	 * banks. */
	float2 *room;

	/* shared: [room_of(threads of the block)] */
	__device__ __forceinline__ plan(int log2, const float2 *tables, float2 *shared)
		: log2(log2), threads(1 << (log2 - 4)), t(threadIdx.x & (threads - 1)), two(log2 > 8),
		  log2_last(two ? log2 - 8 : log2 - 4), tables(tables),
		  room(shared + (threadIdx.x >> (log2 - 4)) * (17 * threads))
	{
	}

	/* exp(-pi i t / 2n) */
	__device__ __forceinline__ float2 weight() const
	{
		return tables[TABLE + (t << (12 - log2))];
	}

	/* Elements first + 2^log2_step q. */
	__device__ __forceinline__ void put(const float2 *x, int first, int log2_step) const
	{
		float2 *to = room + first + (first >> 4);
#pragma unroll
		for (int q = 0; q < 16; q++)
			to[(q << log2_step) + (q << log2_step >> 4)] = x[q];
	}

	__device__ __forceinline__ void get(float2 *x, int first, int log2_step) const
	{
		const float2 *from = room + first + (first >> 4);
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = from[(q << log2_step) + (q << log2_step >> 4)];
	}

	/* Pass k = 0, 1: where its elements are, and its factors exp(-2 pi i t / n), exp(-2 pi i 16 (t
	 * % last) / n). */
	__device__ __forceinline__ int first_of(int k) const
	{
		const int low = (1 << log2_last) - 1;
		return k ? ((t & ~low) << 4) + (t & low) : t;
	}
	__device__ __forceinline__ int log2_step_of(int k) const
	{
		return k ? log2_last : log2 - 4;
	}
	__device__ __forceinline__ float2 factor_of(int k) const
	{
		return tables[k ? (t & ((1 << log2_last) - 1)) << (16 - log2) : t << (12 - log2)];
	}

	/* From elements t + threads q, times v. A second forward needs a meeting before it. */
	__device__ __forceinline__ void forward(float2 *x, float2 v) const
	{
#pragma unroll 1
		for (int k = 0; k <= two; k++) {
			if (k)
				get(x, first_of(k), log2_step_of(k));
			dft16(x);
			turn_all(x, k ? make_float2(1, 0) : v, factor_of(k));
			put(x, first_of(k), log2_step_of(k));
			__syncthreads();
		}
		get(x, 16 * t, 0);
		dft_last(x, log2_last);
	}

	/* The conjugate of what forward takes, times n conj(v) / v, from the conjugate of what it
	 * returns: elements t + threads q. */
	__device__ __forceinline__ void backward(float2 *x, float2 v) const
	{
		dft_last(x, log2_last);
		put(x, 16 * t, 0);
		__syncthreads();
#pragma unroll 1
		for (int k = two; k >= 0; k--) {
			get(x, first_of(k), log2_step_of(k));
			turn_all(x, k ? make_float2(1, 0) : v, factor_of(k));
			dft16(x);
			if (k) {
				put(x, first_of(k), log2_step_of(k));
				__syncthreads();
			}
		}
	}
};

} // namespace fft

#endif
