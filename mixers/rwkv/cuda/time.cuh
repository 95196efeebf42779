/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time mixing of a token of a head, for the kernels of short and of long spans. They share these
 * functions, and so give equal bits:
 *
 *     p = -S^T z        S <- diag(w) S + b p^T + k v^T        y = S^T r
 *
 * S is in registers: a thread has COLUMNS columns of it and every LANES-th group of four rows. What
 * comes before and after the recurrence is computed by a warp for a token.
 */
#ifndef MX_MIXERS_RWKV_CUDA_TIME_CUH
#define MX_MIXERS_RWKV_CUDA_TIME_CUH

#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/math.cuh"
#include "mixers/rwkv/cuda/rwkv_kernels.h"

#define LANES   8 /* threads of a column */
#define COLUMNS 2 /* of a thread */
#define GROUP   4 /* tokens whose outputs are summed together: LANES / COLUMNS */

namespace
{

template <int D> struct shape {
	static constexpr int threads = D / COLUMNS * LANES; /* of all columns */
	static constexpr int rows = D / LANES;              /* of a thread */
	static constexpr int own = D / 32; /* elements of a vector that a lane of a warp has */
};

/* Element j of those that a lane of a warp has of a vector. */
__device__ __forceinline__ uint32_t element(int j)
{
	return threadIdx.x % 32 + 32 * j;
}

/* ---- before and after the recurrence ---- */

/* What a warp brings of a token. Not converted: that would wait for it. */
template <typename T, int D> struct raw {
	T r[shape<D>::own], k[shape<D>::own], v[shape<D>::own], g[shape<D>::own];
	T first[shape<D>::own], share[shape<D>::own];
	float w[shape<D>::own], a[shape<D>::own];
};

/* What the recurrence takes of a token. */
template <int D> struct inputs {
	float w[shape<D>::own], b[shape<D>::own], k[shape<D>::own], v[shape<D>::own];
	float z[shape<D>::own], r[shape<D>::own];
	float bonus;
};

/* at: of the head's first element in the row. */
template <typename T, int D>
__device__ __forceinline__ void bring(const rwkv_time_args &a, size_t at, raw<T, D> *to)
{
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		const bool real = element(j) < a.dim;
		const size_t i = at + element(j);
		const T zero = T(0.0f);
		to->r[j] = real ? ((const T *)a.r)[i] : zero;
		to->k[j] = real ? ((const T *)a.k)[i] : zero;
		to->v[j] = real ? ((const T *)a.v)[i] : zero;
		to->g[j] = real ? ((const T *)a.g)[i] : zero;
		to->first[j] = real && a.v_share ? ((const T *)a.v_first)[i] : zero;
		to->share[j] = real && a.v_share ? ((const T *)a.v_share)[i] : zero;
		to->w[j] = real ? a.w[i] : 0;
		to->a[j] = real ? a.a[i] : 0;
	}
}

template <typename T, int D>
__device__ __forceinline__ void prepare(const rwkv_time_args &a, uint32_t head, const raw<T, D> &in,
                                        inputs<D> *to)
{
	float rate[shape<D>::own], square = 0, sum = 0;
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		const bool real = element(j) < a.dim;
		const uint32_t c = head * a.dim + element(j);
		const float k = mx_to_float(in.k[j]);
		to->r[j] = mx_to_float(in.r[j]);
		rate[j] = sigmoid(in.a[j]);
		to->z[j] = real ? __fmul_rn(k, a.k_k[c]) : 0;
		to->k[j] = real ? __fmaf_rn(__fmul_rn(k, __fadd_rn(rate[j], -1)), a.k_a[c], k) : 0;
		square = __fmaf_rn(to->z[j], to->z[j], square);
		sum = real ? __fmaf_rn(__fmul_rn(to->r[j], to->k[j]), a.r_k[c], sum) : sum;
	}
	const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(warp_sum(square), a.l2_eps)));
	to->bonus = warp_sum(sum);
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		to->z[j] = __fmul_rn(to->z[j], factor);
		to->b[j] = __fmul_rn(rate[j], to->z[j]);
		to->v[j] = mx_to_float(in.v[j]);
		if (a.v_share)
			to->v[j] = __fmaf_rn(__fadd_rn(mx_to_float(in.first[j]), -to->v[j]),
			                     sigmoid(mx_to_float(in.share[j])), to->v[j]);
		to->w[j] = expf(__fmul_rn(-0.6065306597126334f, sigmoid(in.w[j])));
	}
}

/* Norm, bonus and gate of a token's outputs y, and v: the lane's elements. */
template <typename T, int D>
__device__ __forceinline__ void finish(const rwkv_time_args &a, uint32_t head, size_t at,
                                       float (&y)[shape<D>::own], const float (&v)[shape<D>::own],
                                       const T (&g)[shape<D>::own], float bonus)
{
	const float n = __frcp_rn((float)a.dim);
	float mean = 0, square = 0;
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++)
		mean = __fadd_rn(mean, y[j]); /* zero beyond the head */
	mean = __fmul_rn(warp_sum(mean), n);
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		y[j] = element(j) < a.dim ? __fadd_rn(y[j], -mean) : 0;
		square = __fmaf_rn(y[j], y[j], square);
	}
	const float factor = __frcp_rn(__fsqrt_rn(__fmaf_rn(warp_sum(square), n, a.norm_eps)));
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		if (element(j) >= a.dim)
			continue;
		const uint32_t c = head * a.dim + element(j);
		const float o = __fmaf_rn(__fmul_rn(y[j], factor), a.norm[c], a.norm_bias[c]);
		((T *)a.r)[at + element(j)] =
			mx_from_float<T>(__fmul_rn(__fmaf_rn(bonus, v[j], o), mx_to_float(g[j])));
	}
}

/* ---- the recurrence ---- */

/* A thread's rows of a vector [D]. */
template <int D> struct part {
	float e[shape<D>::rows];
};

template <int D> __device__ __forceinline__ float4 four(const float *x, int i)
{
	return *(const float4 *)(x + i * LANES + 4 * (threadIdx.x % LANES));
}
template <int D> __device__ __forceinline__ float4 four(const part<D> &x, int i)
{
	return *(const float4 *)&x.e[i];
}

/* Calls f(row of the thread, four elements) for the thread's rows of a vector [D]. */
template <int D, typename X, typename F> __device__ __forceinline__ void each_four(const X &x, F f)
{
#pragma unroll
	for (int i = 0; i < shape<D>::rows; i += 4)
		f(i, four<D>(x, i));
}

template <int D> __device__ __forceinline__ void read_part(const float *from, part<D> *to)
{
#pragma unroll
	for (int i = 0; i < shape<D>::rows; i += 4)
		*(float4 *)&to->e[i] = four<D>(from, i);
}

/* Sums of x S over the thread's rows. */
template <int D>
__device__ __forceinline__ void dots(const float *x, const float (&S)[COLUMNS][shape<D>::rows],
                                     float (&sum)[COLUMNS])
{
	float part[COLUMNS][4] = {};
	each_four<D>(x, [&](int i, float4 v) {
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) {
			part[c][0] = __fmaf_rn(v.x, S[c][i], part[c][0]);
			part[c][1] = __fmaf_rn(v.y, S[c][i + 1], part[c][1]);
			part[c][2] = __fmaf_rn(v.z, S[c][i + 2], part[c][2]);
			part[c][3] = __fmaf_rn(v.w, S[c][i + 3], part[c][3]);
		}
	});
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
		sum[c] = __fadd_rn(__fadd_rn(part[c][0], part[c][1]), __fadd_rn(part[c][2], part[c][3]));
}

/* S <- w S + k v + b p; vectors in memory, or parts of them. */
template <int D, typename X>
__device__ __forceinline__ void advance(float (&S)[COLUMNS][shape<D>::rows], const X &w, const X &b,
                                        const X &k, const float (&v)[COLUMNS],
                                        const float (&p)[COLUMNS])
{
	float s[COLUMNS][shape<D>::rows];
	each_four<D>(k, [&](int i, float4 x) {
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) {
			s[c][i] = __fmul_rn(x.x, v[c]);
			s[c][i + 1] = __fmul_rn(x.y, v[c]);
			s[c][i + 2] = __fmul_rn(x.z, v[c]);
			s[c][i + 3] = __fmul_rn(x.w, v[c]);
		}
	});
	each_four<D>(w, [&](int i, float4 x) {
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) {
			s[c][i] = __fmaf_rn(x.x, S[c][i], s[c][i]);
			s[c][i + 1] = __fmaf_rn(x.y, S[c][i + 1], s[c][i + 1]);
			s[c][i + 2] = __fmaf_rn(x.z, S[c][i + 2], s[c][i + 2]);
			s[c][i + 3] = __fmaf_rn(x.w, S[c][i + 3], s[c][i + 3]);
		}
	});
	each_four<D>(b, [&](int i, float4 x) {
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) {
			S[c][i] = __fmaf_rn(x.x, p[c], s[c][i]);
			S[c][i + 1] = __fmaf_rn(x.y, p[c], s[c][i + 1]);
			S[c][i + 2] = __fmaf_rn(x.z, p[c], s[c][i + 2]);
			S[c][i + 3] = __fmaf_rn(x.w, p[c], s[c][i + 3]);
		}
	});
}

/* Goes on by a token; y: sums over the thread's rows. */
template <int D>
__device__ __forceinline__ void pass(float (&S)[COLUMNS][shape<D>::rows], const float *w,
                                     const float *b, const float *k, const float *z, const float *r,
                                     const float (&v)[COLUMNS], float (&p)[COLUMNS],
                                     float (&y)[COLUMNS])
{
	dots<D>(z, S, p);
#pragma unroll
	for (int d = LANES / 2; d; d /= 2)
#pragma unroll
		for (int c = 0; c < COLUMNS; c++)
			p[c] = __fadd_rn(p[c], __shfl_xor_sync(~0u, p[c], d));
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
		p[c] = -p[c];
	advance<D, const float *>(S, w, b, k, v, p);
	dots<D>(r, S, y);
}

/* Sums the outputs of GROUP tokens over the lanes of a column: lane l gets that of token l /
 * COLUMNS, column l % COLUMNS of the thread's. */
__device__ __forceinline__ float sum_outputs(const float (&y)[GROUP][COLUMNS])
{
	const bool b4 = threadIdx.x & 4, b2 = threadIdx.x & 2, b1 = threadIdx.x & 1;
	float h[4], q[2];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float low = y[i / 2][i % 2], high = y[2 + i / 2][i % 2];
		h[i] = __fadd_rn(b4 ? high : low, __shfl_xor_sync(~0u, b4 ? low : high, 4));
	}
#pragma unroll
	for (int i = 0; i < 2; i++)
		q[i] = __fadd_rn(b2 ? h[2 + i] : h[i], __shfl_xor_sync(~0u, b2 ? h[i] : h[2 + i], 2));
	return __fadd_rn(b1 ? q[1] : q[0], __shfl_xor_sync(~0u, b1 ? q[0] : q[1], 1));
}

/* ---- slots ---- */

/* Streams of a ring's token. */
enum { W, B, K, V, P, RING };

template <int D>
__device__ __forceinline__ float *ring_of(const rwkv_time_args &a, unsigned char *unit,
                                          uint32_t pos)
{
	return (float *)(unit + a.unit.ring) + (size_t)(pos % a.unit.cap) * RING * D;
}

__device__ __forceinline__ unsigned char *unit_of(const rwkv_time_args &a,
                                                  const mx_device_span &span, uint32_t head)
{
	return a.step.slot_base + span.slot * a.step.slot_stride + a.units_at +
	       (size_t)head * a.unit.bytes;
}

/* True if a span is left to the kernels of long ones. */
__device__ __forceinline__ bool is_long(const rwkv_time_args &a, const mx_device_span &span)
{
	return span.n >= RWKV_LONG && span.kind != MX_SPAN_DRAFT && a.dim == a.unit.padded;
}

/* Tokens that S of the slot includes after a span: all but the last; of a draft none, except those
 * before the last token before it. */
__device__ __forceinline__ uint32_t base_after(const mx_device_span &span, uint32_t base)
{
	const uint32_t end = span.kind == MX_SPAN_DRAFT ? span.pos : span.pos + span.n;
	return end > base + 1 ? end - 1 : base;
}

/* `thread`: of those of all columns. */
template <int D>
__device__ __forceinline__ void load_state(const unsigned char *unit, uint32_t thread,
                                           float (&S)[COLUMNS][shape<D>::rows])
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
#pragma unroll
		for (int i = 0; i < shape<D>::rows / 4; i++)
			*(float4 *)&S[c][4 * i] =
				((const float4 *)(unit +
			                      64))[(c * (shape<D>::rows / 4) + i) * shape<D>::threads + thread];
}

template <int D>
__device__ __forceinline__ void store_state(unsigned char *unit, uint32_t thread,
                                            const float (&S)[COLUMNS][shape<D>::rows])
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
#pragma unroll
		for (int i = 0; i < shape<D>::rows / 4; i++)
			((float4 *)(unit + 64))[(c * (shape<D>::rows / 4) + i) * shape<D>::threads + thread] =
				*(const float4 *)&S[c][4 * i];
}

/* Goes through tokens from .. to - 1, before the span, from the ring; `column`: the thread's first.
 */
template <int D>
__device__ __forceinline__ void replay(const rwkv_time_args &a, unsigned char *unit, uint32_t from,
                                       uint32_t to, uint32_t column,
                                       float (&S)[COLUMNS][shape<D>::rows])
{
	for (; from < to; from++) {
		const float *x = ring_of<D>(a, unit, from);
		const float v[COLUMNS] = {x[V * D + column], x[V * D + column + 1]};
		const float p[COLUMNS] = {x[P * D + column], x[P * D + column + 1]};
		advance<D, const float *>(S, x + W * D, x + B * D, x + K * D, v, p);
	}
}

} // namespace

#endif
