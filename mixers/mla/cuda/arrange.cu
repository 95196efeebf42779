/* SPDX-License-Identifier: Apache-2.0 */
/* What is between the products and the softmax: norms of latents, rotations, keys to pages. */
#include "device/cuda/launch.cuh"
#include "mixers/mla/cuda/mla_cuda.h"

#define THREADS 128

namespace
{

/* Puts the rotated elements of `in` [rope] to put(i, value): pairs become halves. */
template <typename T, typename Put>
__device__ __forceinline__ void rotate(const mla_args &a, uint32_t pos, float factor, const T *in,
                                       Put put)
{
	const uint32_t half = a.rope / 2;
	if (!a.inv_freq) {
		for (uint32_t i = threadIdx.x; i < a.rope; i += THREADS)
			put(i, mx_to_float(in[i]) * factor);
		return;
	}
	for (uint32_t i = threadIdx.x; i < half; i += THREADS) {
		const float x = mx_to_float(in[a.pairs ? 2 * i : i]);
		const float y = mx_to_float(in[a.pairs ? 2 * i + 1 : i + half]);
		float s, c;
		sincosf((float)pos * a.inv_freq[i], &s, &c);
		s *= a.rope_factor * factor;
		c *= a.rope_factor * factor;
		put(i, __fmaf_rn(x, c, -__fmul_rn(y, s)));
		put(i + half, __fmaf_rn(y, c, __fmul_rn(x, s)));
	}
}

/* Returns the sum of x over the block, in a fixed order. */
__device__ __forceinline__ float block_sum(float x)
{
	__shared__ float part[THREADS / 32];
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
	float sum = 0;
	for (int i = 0; i < THREADS / 32; i++)
		sum += part[i];
	return sum;
}

template <typename A, typename KV>
__device__ void key(const mla_args &a, const mx_device_span &span, uint32_t row, uint32_t pos)
{
	const A *in = (const A *)a.latent + (size_t)row * (a.rank + a.rope);
	if (!mx_has_place(&a.places, pos))
		return; /* the key of another rank */
	const uint32_t place = mx_place_of(&a.places, pos);
	const uint32_t bytes = a.dim * (uint32_t)sizeof(KV), t = place % a.page_tokens;
	unsigned char *page =
		a.page_base + a.pages[span.page_begin + place / a.page_tokens] * a.page_stride;
	auto put = [&](uint32_t i, float x) {
		*(KV *)(page + mla_place(bytes, t, i * (uint32_t)sizeof(KV))) = mx_from_float<KV>(x);
	};
	float sum = 0;
	for (uint32_t i = threadIdx.x; i < a.rank; i += THREADS) {
		const float x = mx_to_float(in[i]);
		sum = __fmaf_rn(x, x, sum);
	}
	const float factor = rsqrtf(block_sum(sum) / (float)a.rank + a.norm_eps);
	for (uint32_t i = threadIdx.x; i < a.rank; i += THREADS)
		put(i, mx_to_float(in[i]) * factor * a.kv_norm[i]);
	rotate(a, pos, 1, in + a.rank, [&](uint32_t i, float x) { put(a.rank + i, x); });
	for (uint32_t i = a.rank + a.rope + threadIdx.x; i < a.dim; i += THREADS)
		put(i, 0);
}

template <typename A> __device__ void query(const mla_args &a, uint32_t row, uint32_t pos)
{
	const size_t at = (size_t)row * a.heads + blockIdx.y;
	A *q = (A *)a.q + at * (a.nope + a.rope), *to = (A *)a.absorbed + at * a.dim + a.rank;
	float factor = 1;
	if (a.q_beta != 0)
		factor = __fmaf_rn(a.q_beta, logf(1 + (float)(pos / a.q_length)), 1);
	if (factor != 1)
		for (uint32_t i = threadIdx.x; i < a.nope; i += THREADS)
			q[i] = mx_from_float<A>(mx_to_float(q[i]) * factor);
	rotate(a, pos, factor, q + a.nope, [&](uint32_t i, float x) { to[i] = mx_from_float<A>(x); });
	for (uint32_t i = a.rope + threadIdx.x; i < a.dim - a.rank; i += THREADS)
		to[i] = mx_from_float<A>(0);
}

/* A block for each row, and of that for each head and one for the key. */
template <typename A, typename KV> __global__ void __launch_bounds__(THREADS) arrange(mla_args a)
{
	const uint32_t row = blockIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = a.spans[a.row_span[row]];
	if (row < span.row || row - span.row >= span.n)
		return;
	const uint32_t pos = span.pos + (row - span.row);
	if (blockIdx.y == a.heads)
		key<A, KV>(a, span, row, pos);
	else
		query<A>(a, row, pos);
}

} // namespace

cudaError_t mla_arrange(const struct mla_launch *l, const struct mla_args *a)
{
	const dim3 grid(a->n_rows, a->heads + 1), block(THREADS);
	if (l->act == MX_BF16)
		return l->kv == MX_BF16
		           ? mx_launch(arrange<__nv_bfloat16, __nv_bfloat16>, grid, block, 0, l->stream, *a)
		           : mx_launch(arrange<__nv_bfloat16, float>, grid, block, 0, l->stream, *a);
	return l->kv == MX_BF16
	           ? mx_launch(arrange<float, __nv_bfloat16>, grid, block, 0, l->stream, *a)
	           : mx_launch(arrange<float, float>, grid, block, 0, l->stream, *a);
}
