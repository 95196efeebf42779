/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The softmax in f32, for what the tensor cores do not support. A warp for each row and head goes
 * through the keys 32 at a time, from multiples of 32. For scores a lane has a key, for values
 * every 32nd element.
 */
#include "device/cuda/launch.cuh"
#include "mixers/mla/cuda/mla_cuda.h"

#define WARPS   4
#define PARTS   16 /* elements of a value that a lane has */
#define MAX_KEY 1024

namespace
{

template <typename KV>
__device__ __forceinline__ const unsigned char *page_of(const mla_args &a, const mx_device_span &s,
                                                        uint32_t key)
{
	return a.page_base + a.pages[s.page_begin + key / a.page_tokens] * a.page_stride;
}

template <typename A, typename KV>
__global__ void __launch_bounds__(WARPS * 32) attend_plain(const mla_args a)
{
	__shared__ float queries[WARPS][MAX_KEY];
	const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
	const uint64_t at = (uint64_t)blockIdx.x * WARPS + warp;
	const uint32_t row = (uint32_t)(at / a.heads), head = (uint32_t)(at % a.heads);
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows)
		return;
	const mx_device_span &span = a.spans[a.row_span[row]];
	if (row < span.row || row - span.row >= span.n)
		return;
	const uint32_t pos = span.pos + (row - span.row), width = a.rank + a.rope;
	const uint32_t first = mx_place_of(&a.places, mla_first_key(&a, pos));
	const uint32_t end = mx_place_of(&a.places, pos + 1);
	const uint32_t bytes = a.dim * (uint32_t)sizeof(KV);
	const A *in = (const A *)a.absorbed + ((size_t)row * a.heads + head) * a.dim;
	float *q = queries[warp], o[PARTS] = {}, m = -INFINITY, l = 0;
	for (uint32_t e = lane; e < width; e += 32)
		q[e] = mx_to_float(in[e]);
	__syncwarp();
	for (uint32_t k0 = 0; k0 < end; k0 += 32) {
		const uint32_t key = k0 + lane;
		float s = -INFINITY;
		if (key >= first && key < end) {
			const unsigned char *page = page_of<KV>(a, span, key);
			float sum = 0;
			for (uint32_t e = 0; e < width; e++)
				sum =
					__fmaf_rn(q[e],
				              mx_to_float(*(const KV *)(page + mla_place(bytes, key % a.page_tokens,
				                                                         e * sizeof(KV)))),
				              sum);
			s = sum * a.scale;
		}
		float top = s;
		for (int d = 16; d; d /= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
		top = fmaxf(top, m);
		const float p = exp2f(s - top), alpha = exp2f(m - top);
		float sum = p;
		for (int d = 16; d; d /= 2)
			sum += __shfl_xor_sync(~0u, sum, d);
		l = __fmaf_rn(l, alpha, sum);
		m = top;
#pragma unroll
		for (int i = 0; i < PARTS; i++)
			o[i] *= alpha;
		for (uint32_t k = max(k0, first); k < k0 + 32 && k < end; k++) {
			const float pk = __shfl_sync(~0u, p, k - k0);
			const unsigned char *page = page_of<KV>(a, span, k);
#pragma unroll
			for (uint32_t i = 0; i < PARTS; i++)
				if (lane + 32 * i < a.rank)
					o[i] = __fmaf_rn(
						pk,
						mx_to_float(*(const KV *)(page + mla_place(bytes, k % a.page_tokens,
					                                               (lane + 32 * i) * sizeof(KV)))),
						o[i]);
		}
	}
	if (a.sent) {
		float *to = a.sent + mx_partial_at(&a.places, a.n_rows, a.heads, a.rank, row, head);
#pragma unroll
		for (uint32_t i = 0; i < PARTS; i++)
			if (lane + 32 * i < a.rank)
				to[lane + 32 * i] = o[i];
		if (lane == 0)
			*(float2 *)(to + a.rank) = make_float2(m, l);
		return;
	}
	A *out = (A *)a.sums + ((size_t)row * a.heads + head) * a.rank;
#pragma unroll
	for (uint32_t i = 0; i < PARTS; i++)
		if (lane + 32 * i < a.rank)
			out[lane + 32 * i] = mx_from_float<A>(__fdiv_rn(o[i], l));
}

} // namespace

cudaError_t mla_plain(const struct mla_launch *l, const struct mla_args *a)
{
	const uint64_t warps = (uint64_t)a->n_rows * a->heads;
	const dim3 grid((unsigned)((warps + WARPS - 1) / WARPS)), block(WARPS * 32);
	if (l->act == MX_BF16)
		return l->kv == MX_BF16
		           ? mx_launch(attend_plain<__nv_bfloat16, __nv_bfloat16>, grid, block, 0,
		                       l->stream, *a)
		           : mx_launch(attend_plain<__nv_bfloat16, float>, grid, block, 0, l->stream, *a);
	return l->kv == MX_BF16
	           ? mx_launch(attend_plain<float, __nv_bfloat16>, grid, block, 0, l->stream, *a)
	           : mx_launch(attend_plain<float, float>, grid, block, 0, l->stream, *a);
}
