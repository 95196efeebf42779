/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel that attends does for a decoding sequence's newest token, so that a step needs no
 * kernel before it or behind it: norm and rotation of the queries where they lie as operands; the
 * key and the value, into their page and into the block of keys in shared memory; and the fold of a
 * row's partials by the thread block that is the last to finish one.
 *
 * For rotations of half-split pairs over whole heads of 64 or 128. Bit-equal to append.cu but for
 * the order in which a query's squares are summed, and to `merge`.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_NEWEST_CUH
#define MX_MIXERS_ATTENTION_CUDA_NEWEST_CUH

#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/attention/cuda/partial.cuh"
#include "mixers/attention/cuda/units.cuh"

namespace
{

/* Fills turn [D / 2] with the cosines and sines of a position; all threads of the block call it. */
template <int D>
__device__ __forceinline__ void find_turns(const attn_args &a, uint32_t pos, float2 *turn)
{
	if (!a.inv_freq)
		return;
	for (uint32_t i = threadIdx.x; i < D / 2; i += THREADS) {
		float s, c;
		sincosf((float)pos * a.inv_freq[i], &s, &c);
		turn[i] = make_float2(c * a.rope_scale, s * a.rope_scale);
	}
}

/* Rotates the pair (x, y). */
__device__ __forceinline__ void turn_pair(float &x, float &y, float2 turn)
{
	const float to = __fmaf_rn(x, turn.x, __fmul_rn(y, -turn.y));
	y = __fmaf_rn(y, turn.x, __fmul_rn(x, turn.y));
	x = to;
}

/* Normalises and rotates a row of queries, which lanes 4 g .. 4 g + 3 hold as the operand of
 * mma.m16n8k16: lane t has elements 16 s + 2 t, + 1, + 8, + 9. */
template <int D>
__device__ __forceinline__ void turn_queries(const attn_args &a, const float2 *turn,
                                             uint32_t (&q)[D / 16][2])
{
	const uint32_t t = threadIdx.x % 4;
	auto element = [&](int s, int k) { return 16 * s + 2 * t + (k & 1) + k / 2 * 8; };
	float v[D / 16][4], sum = 0;
#pragma unroll
	for (int s = 0; s < D / 16; s++)
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const uint32_t pair = q[s][k / 2];
			v[s][k] = __uint_as_float(k & 1 ? pair & 0xffff0000 : pair << 16);
			sum = __fmaf_rn(v[s][k], v[s][k], sum);
		}
	if (a.q_norm) {
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		const float r = rsqrtf(sum / (float)D + a.norm_eps);
#pragma unroll
		for (int s = 0; s < D / 16; s++)
#pragma unroll
			for (int k = 0; k < 4; k++)
				v[s][k] = v[s][k] * r * a.q_norm[element(s, k)];
	}
	if (a.inv_freq)
#pragma unroll
		for (int s = 0; s < D / 32; s++)
#pragma unroll
			for (int k = 0; k < 4; k++)
				turn_pair(v[s][k], v[s + D / 32][k], turn[element(s, k)]);
#pragma unroll
	for (int s = 0; s < D / 16; s++)
#pragma unroll
		for (int k = 0; k < 2; k++)
			q[s][k] = pack<false>(v[s][2 * k], v[s][2 * k + 1]);
}

/* The newest key and value of a unit, in the warp whose block of keys they belong to: elements
 * lane, lane + 32 ... */
template <int D> struct newest {
	float k[D / 32], v[D / 32];
	uint32_t place; /* of the key */
	bool here;      /* this warp has them */

	/* Starts their loads, once the products are there. */
	__device__ __forceinline__ void load(const attn_args &a, const unit &w)
	{
		place = mx_place_of(&a.places, w.pos);
		here = place >> w.shift == w.split &&
		       place / ATTN_CUDA_WARP_KEYS % WARPS == threadIdx.x / 32 &&
		       mx_has_place(&a.places, w.pos);
		if (!here)
			return;
		const __nv_bfloat16 *from = (const __nv_bfloat16 *)a.qkv + (size_t)w.row * a.ld +
		                            (a.heads + w.head) * D + threadIdx.x % 32;
#pragma unroll
		for (int i = 0; i < D / 32; i++) {
			k[i] = __bfloat162float(from[32 * i]);
			v[i] = __bfloat162float(from[a.kv_heads * D + 32 * i]);
		}
	}

	/* Writes them to their page and to the block of 16 keys and values at `keys`, in shared memory,
	 * that was copied from there. */
	__device__ void put(const attn_args &a, const unit &w, const float2 *turn, unsigned char *keys)
	{
		constexpr uint32_t line = D * 2, block = ATTN_CUDA_WARP_KEYS * line;
		const uint32_t lane = threadIdx.x % 32, at = place % a.page_tokens;
		if (a.k_norm) {
			float sum = 0;
#pragma unroll
			for (int i = 0; i < D / 32; i++)
				sum = __fmaf_rn(k[i], k[i], sum);
			for (int d = 16; d; d /= 2)
				sum += __shfl_xor_sync(~0u, sum, d);
			const float r = rsqrtf(sum / (float)D + a.norm_eps);
#pragma unroll
			for (int i = 0; i < D / 32; i++)
				k[i] = k[i] * r * a.k_norm[lane + 32 * i];
		}
		if (a.inv_freq)
#pragma unroll
			for (int i = 0; i < D / 64; i++)
				turn_pair(k[i], k[i + D / 64], turn[lane + 32 * i]);
		const uint32_t page = a.pages[w.page_begin + place / a.page_tokens];
		unsigned char *to =
			a.page_base + page * a.page_stride + (size_t)2 * w.head * a.page_tokens * line;
#pragma unroll
		for (int i = 0; i < D / 32; i++) {
			const uint32_t e = (lane + 32 * i) * 2;
			const uint32_t far = attn_place(line, at, e);
			const uint32_t near = attn_place(line, at % ATTN_CUDA_WARP_KEYS, e);
			const __nv_bfloat16 key = __float2bfloat16_rn(k[i]), value = __float2bfloat16_rn(v[i]);
			*(__nv_bfloat16 *)(to + far) = key;
			*(__nv_bfloat16 *)(to + a.page_tokens * line + far) = value;
			*(__nv_bfloat16 *)(keys + near) = key;
			*(__nv_bfloat16 *)(keys + block + near) = value;
		}
		copies_after_writes(); /* a later copy to this place comes after these writes */
		__syncwarp();
	}
};

/* Counts a finished partial of the unit's rows; true in the thread block that wrote the last one.
 * All threads of the block call it, after they have written theirs. */
__device__ __forceinline__ bool is_last(const attn_args &a, const unit &w)
{
	__shared__ bool last;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		uint32_t *n = a.arrived + w.row * a.kv_heads + w.head;
		last = atomicAdd(n, 1) == w.splits - 1;
		if (last)
			*n = 0; /* for the next step */
		__threadfence();
	}
	__syncthreads();
	return last;
}

/* Folds the partials of the unit's rows in order and writes their outputs, or what ranks exchange.
 */
template <int D> __device__ void fold_rows(const attn_args &a, const unit &w)
{
	constexpr uint32_t quads = D / 4, run = 8;
	const uint32_t first = w.at - (w.split - (w.lo >> w.shift));
	for (uint32_t e = threadIdx.x; e < w.rows * quads; e += THREADS) {
		const uint32_t r = e / quads, d = e % quads * 4, p = first + r * w.splits;
		const float2 *sums = (const float2 *)a.sums + p;
		const float4 *values = (const float4 *)(a.values + (size_t)p * D + d);
		float m = -INFINITY, l = 0, o[4] = {};
		for (uint32_t c = 0; c < w.splits; c += run) {
			float2 s[run];
			float4 v[run];
			/* from the second level of the cache, where other multiprocessors' writes are */
#pragma unroll
			for (uint32_t k = 0; k < run; k++) {
				const uint32_t i = c + k < w.splits ? c + k : w.splits - 1;
				s[k] = __ldcg(sums + i);
				v[k] = __ldcg(values + i * quads);
			}
#pragma unroll
			for (uint32_t k = 0; k < run; k++)
				if (c + k < w.splits) {
					const fold_factors f = factors(m, s[k].x);
					const float add[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
					m = fmaxf(m, s[k].x);
					l = fold_number(l, f.old, s[k].y, f.add);
#pragma unroll
					for (int i = 0; i < 4; i++)
						o[i] = fold_number(o[i], f.old, add[i], f.add);
				}
		}
		const uint32_t head = w.head * a.group + w.v0 + r;
		if (sends(a)) {
			float *to = sent_partial(a, w.row, head);
			*(float4 *)(to + d) = make_float4(o[0], o[1], o[2], o[3]);
			if (d == 0)
				*(float2 *)(to + D) = make_float2(m, l);
			continue;
		}
		__nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)w.row * a.ldo + head * D + d;
#pragma unroll
		for (int i = 0; i < 4; i++)
			out[i] = __float2bfloat16_rn(finish(a, head, {m, l, o[i]}));
	}
}

} // namespace

#endif
