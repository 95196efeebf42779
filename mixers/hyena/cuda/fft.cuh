/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transforms of 32 .. 4096 complex numbers by a group of threads with 16 of them each, in registers
 * and, between passes, in shared memory.
 *
 * Forwards the passes are of radix 16 (decimation in frequency), the last one of what is left;
 * backwards the same in reverse. So neither reorders: the output of fft is in the order in which
 * the threads hold it, and ifft takes that. A thread writes to shared memory where it has read
 * last, so threads meet once between two passes.
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

/* a b, or a conj(b) */
template <bool BACK> __device__ __forceinline__ float2 turn(float2 a, float2 b)
{
	return mul(a, BACK ? make_float2(b.x, -b.y) : b);
}

/* a times -i, or i */
template <bool BACK> __device__ __forceinline__ float2 quarter(float2 a)
{
	return BACK ? make_float2(-a.y, a.x) : make_float2(a.y, -a.x);
}

/* exp(-i pi x) */
__device__ __forceinline__ float2 root(float x)
{
	float s, c;
	sincospif(x, &s, &c);
	return make_float2(c, -s);
}

/* ---- butterflies, in and out in natural order ---- */

template <bool BACK> __device__ __forceinline__ void dft2(float2 &a, float2 &b)
{
	const float2 d = sub(a, b);
	a = add(a, b);
	b = d;
}

template <bool BACK>
__device__ __forceinline__ void dft4(float2 &a, float2 &b, float2 &c, float2 &d)
{
	const float2 s = add(a, c), t = sub(a, c), u = add(b, d), v = quarter<BACK>(sub(b, d));
	a = add(s, u);
	b = add(t, v);
	c = sub(s, u);
	d = sub(t, v);
}

template <bool BACK> __device__ __forceinline__ void dft8(float2 *x)
{
	const float h = 0.70710678118654752440f;
	dft4<BACK>(x[0], x[2], x[4], x[6]);
	dft4<BACK>(x[1], x[3], x[5], x[7]);
	const float2 o1 = turn<BACK>(x[3], make_float2(h, -h)), o2 = quarter<BACK>(x[5]),
				 o3 = turn<BACK>(x[7], make_float2(-h, -h)), e1 = x[2], e2 = x[4], e3 = x[6];
	const float2 e0 = x[0], o0 = x[1];
	x[0] = add(e0, o0), x[4] = sub(e0, o0);
	x[1] = add(e1, o1), x[5] = sub(e1, o1);
	x[2] = add(e2, o2), x[6] = sub(e2, o2);
	x[3] = add(e3, o3), x[7] = sub(e3, o3);
}

template <bool BACK> __device__ __forceinline__ void dft16(float2 *x)
{
	const float h = 0.70710678118654752440f, c = 0.92387953251128675613f,
				s = 0.38268343236508977173f;
#pragma unroll
	for (int b = 0; b < 4; b++)
		dft4<BACK>(x[b], x[b + 4], x[b + 8], x[b + 12]);
	/* x[b + 4 k] times the root of 16 to the power b k */
	x[5] = turn<BACK>(x[5], make_float2(c, -s));
	x[6] = turn<BACK>(x[6], make_float2(h, -h));
	x[7] = turn<BACK>(x[7], make_float2(s, -c));
	x[9] = turn<BACK>(x[9], make_float2(h, -h));
	x[10] = quarter<BACK>(x[10]);
	x[11] = turn<BACK>(x[11], make_float2(-h, -h));
	x[13] = turn<BACK>(x[13], make_float2(s, -c));
	x[14] = turn<BACK>(x[14], make_float2(-h, -h));
	x[15] = turn<BACK>(x[15], make_float2(-c, s));
#pragma unroll
	for (int k = 0; k < 4; k++)
		dft4<BACK>(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
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

template <int R, bool BACK> __device__ __forceinline__ void dft(float2 *x)
{
	if (R == 2)
		dft2<BACK>(x[0], x[1]);
	else if (R == 4)
		dft4<BACK>(x[0], x[1], x[2], x[3]);
	else if (R == 8)
		dft8<BACK>(x);
	else if (R == 16)
		dft16<BACK>(x);
}

/* x[r] times v w^r, or times its conjugate. */
template <bool BACK> __device__ __forceinline__ void turn_all(float2 *x, float2 v, float2 w)
{
	const float2 w2 = mul(w, w), w4 = mul(w2, w2);
	float2 t[4] = {v, mul(v, w), mul(v, w2)};
	t[3] = mul(t[1], w2);
#pragma unroll
	for (int r = 0; r < 16; r += 4) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[r + i] = turn<BACK>(x[r + i], t[i]);
			if (r < 12)
				t[i] = mul(t[i], w4);
		}
	}
}

/* The same with v = 1. */
template <bool BACK> __device__ __forceinline__ void turn_powers(float2 *x, float2 w)
{
	turn_all<BACK>(x, make_float2(1, 0), w);
}

/* ---- transforms of 2^LOG2 numbers ---- */

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

template <int LOG2> struct plan {
	static constexpr int N = 1 << LOG2, THREADS = N / 16;
	static constexpr bool TWO = LOG2 > 8;               /* two passes of radix 16, else one */
	static constexpr int LAST = TWO ? N / 256 : N / 16; /* radix of the last pass */

	int t, at, base; /* t: thread of the transform; base: of its elements in shared memory */
	const float2 *tables;
	float2 *room;

	/* thread: of the block; its transform is number thread / THREADS. shared: [room_of(threads)] */
	__device__ __forceinline__ plan(int thread, const float2 *tables, float2 *shared)
		: t(thread % THREADS), base(thread / THREADS * N), tables(tables), room(shared)
	{
		at = TWO ? t / LAST * (N / 16) + t % LAST : 0;
	}

	/* exp(-2 pi i t / N), exp(-2 pi i 16 (t % LAST) / N), exp(-pi i t / 2N) */
	__device__ __forceinline__ float2 first() const
	{
		return tables[t << (12 - LOG2)];
	}
	__device__ __forceinline__ float2 second() const
	{
		return tables[t % LAST << (16 - LOG2)];
	}
	__device__ __forceinline__ float2 weight() const
	{
		return tables[TABLE + (t << (12 - LOG2))];
	}

	/* Element first + i lies behind a gap for every 16 before it, so that half a warp's accesses
	 * touch all banks. i is known to the compiler, and is a multiple of 16 or makes no carry. */
	__device__ __forceinline__ float2 &place(int first, int i) const
	{
		return room[base + (base >> 4) + first + (first >> 4) + i + (i >> 4)];
	}

	/* The threads of a transform meet; those of another one in the thread block may, too. */
	static __device__ __forceinline__ void meet()
	{
		if (THREADS <= 32)
			__syncwarp();
		else
			__syncthreads();
	}

	__device__ __forceinline__ void put(const float2 *x, int first, int step) const
	{
#pragma unroll
		for (int q = 0; q < 16; q++)
			place(first, step * q) = x[q];
	}

	__device__ __forceinline__ void get(float2 *x, int first, int step) const
	{
#pragma unroll
		for (int q = 0; q < 16; q++)
			x[q] = place(first, step * q);
	}

	/* From elements t + THREADS q, times v. A second forward needs a meeting before it. */
	__device__ __forceinline__ void forward(float2 *x, float2 v) const
	{
		dft16<false>(x);
		turn_all<false>(x, v, first());
		put(x, t, N / 16);
		meet();
		if (TWO) {
			get(x, at, LAST);
			dft16<false>(x);
			turn_powers<false>(x, second());
			put(x, at, LAST);
			meet();
		}
		get(x, 16 * t, 1);
#pragma unroll
		for (int g = 0; g < 16; g += LAST)
			dft<LAST, false>(x + g);
	}

	/* Back to elements t + THREADS q, times N and times conj(v). */
	__device__ __forceinline__ void backward(float2 *x, float2 v) const
	{
#pragma unroll
		for (int g = 0; g < 16; g += LAST)
			dft<LAST, true>(x + g);
		put(x, 16 * t, 1);
		meet();
		if (TWO) {
			get(x, at, LAST);
			turn_powers<true>(x, second());
			dft16<true>(x);
			put(x, at, LAST);
			meet();
		}
		get(x, t, N / 16);
		turn_all<true>(x, v, first());
		dft16<true>(x);
	}
};

} // namespace fft

#endif
