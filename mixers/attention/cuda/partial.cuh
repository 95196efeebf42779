/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The partial result of attention over some keys, and how two of them are folded
 * into one. In powers of two, with s the scaled scores:
 *     m = max s    l = sum 2^(s - m)    o = sum 2^(s - m) v
 * Folding is associative except for rounding (Milakov and Gimelshein 2018,
 * arXiv:1805.02867), so keys may be spread over thread blocks, kernels or GPUs.
 * For the same bits, fold in the same order. In memory: sums f32 [.., 2], values
 * f32 [.., dim].
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_PARTIAL_CUH
#define MX_MIXERS_ATTENTION_CUDA_PARTIAL_CUH

#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/fold.cuh"

struct partial {
	float m, l, o; /* o: one dimension; without keys: -inf, 0, 0 */
};

/* Returns the sum with that of the head's sink, a key of value 0. */
static __device__ __forceinline__ float with_sink(const attn_args &a, uint32_t head, float m,
                                                  float l)
{
	if (!a.sinks)
		return l;
	return __fadd_rn(l, exp2_fast(__fmaf_rn(a.sinks[head], 1.4426950408889634f, -m)));
}

static __device__ __forceinline__ float finish(const attn_args &a, uint32_t head, partial p)
{
	return __fdiv_rn(p.o, with_sink(a, head, p.m, p.l));
}

/* True if outputs are not written, but what ranks exchange. */
static __device__ __forceinline__ bool sends(const attn_args &a)
{
	return MX_SHARES(&a.places) && a.sent;
}

/* Returns where the partial of a row and a head goes that ranks exchange: o [dim], m, l. */
static __device__ __forceinline__ float *sent_partial(const attn_args &a, uint32_t row,
                                                      uint32_t head)
{
	return a.sent + mx_partial_at(&a.places, a.n_rows, a.heads, a.dim, row, head);
}

/* Returns a score, scaled and capped: cap - 2 cap / (1 + 2^(2 log2(e) x / cap)). */
static __device__ __forceinline__ float capped(const attn_args &a, float score)
{
	float e = exp2_fast(score * (a.scale * (2.885390081777927f / a.cap)));
	return a.cap - __fdividef(2 * a.cap, 1 + fminf(e, 1e30f));
}

#endif
