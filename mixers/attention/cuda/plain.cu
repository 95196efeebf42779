/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in f32 for what the tensor-core kernels do not support: f32
 * activations, keys in f32, or heads of more than ATTN_MMA_DIM. One warp for each row and head goes
 * through the keys 32 at a time, starting at a multiple of 32. For scores a lane has one key, for
 * values every 32nd dimension.
 */
#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"
#include "mixers/attention/cuda/partial.cuh"

#define WARPS 4

namespace
{

template <typename KV> __device__ __forceinline__ float from_state(KV v)
{
	return mx_to_float(v);
}
template <> __device__ __forceinline__ float from_state<__nv_fp8_e4m3>(__nv_fp8_e4m3 v)
{
	return __half2float(__ushort_as_half((unsigned short)widen_fp8(v.__x)));
}

/* Returns the sum of q[d] k[d] in order of d. */
template <typename KV>
__device__ __forceinline__ float dot(const float *q, const unsigned char *keys, uint32_t t,
                                     uint32_t line, uint32_t dim)
{
	constexpr uint32_t each = 16 / sizeof(KV);
	float sum = 0;
	for (uint32_t e = 0; e < dim; e += each) {
		KV k[each];
		const uint4 v = *(const uint4 *)(keys + attn_place(line, t, e * (uint32_t)sizeof(KV)));
		memcpy(k, &v, sizeof(v));
#pragma unroll
		for (uint32_t i = 0; i < each; i++)
			sum = __fmaf_rn(q[e + i], from_state(k[i]), sum);
	}
	return sum;
}

/* Finds the tokens of a tree that lead to a row, by the numbers of their places behind span.pos. By
 * one warp. */
__device__ __forceinline__ void find_path(const attn_args &a, const mx_device_span &span,
                                          uint32_t token, uint32_t depth, uint32_t *path)
{
	if (threadIdx.x % 32 == 0)
		for (uint32_t i = token; i < span.n; i = a.parents[span.parent_begin + i])
			path[depth--] = i;
	__syncwarp();
}

template <typename A, typename KV, int DIM>
__global__ void __launch_bounds__(WARPS * 32) attend_plain(const attn_args a)
{
	constexpr uint32_t parts = DIM / 32;
	__shared__ float queries[WARPS][DIM];
	__shared__ uint32_t paths[WARPS][MX_TREE_TOKENS];
	uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
	uint64_t at = (uint64_t)blockIdx.x * WARPS + warp;
	uint32_t row = (uint32_t)(at / a.heads), head = (uint32_t)(at % a.heads);
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= a.n_rows)
		return;
	const mx_device_span &span = a.spans[a.row_span[row]];
	if (row < span.row || row - span.row >= span.n)
		return;
	const A *in = (const A *)a.qkv + (size_t)row * a.ld + (size_t)head * a.head_dim;
	float *q = queries[warp], o[parts] = {}, m = -INFINITY, l = 0;
	const bool tree = attn_is_tree(&a, &span);
	uint32_t pos = tree ? a.pos[row] : span.pos + (row - span.row), lo = attn_first_key(&a, pos);
	if (tree)
		find_path(a, span, row - span.row, pos - span.pos, paths[warp]);
	uint32_t line = a.dim * (uint32_t)sizeof(KV);
	size_t head_bytes = (size_t)a.page_tokens * line;
	for (uint32_t e = lane; e < a.dim; e += 32)
		q[e] = e < a.head_dim ? mx_to_float(in[e]) : 0;
	__syncwarp();
	for (uint32_t k0 = lo / 32 * 32; k0 <= pos; k0 += 32) {
		uint32_t key = k0 + lane, cell = key;
		bool seen = key >= lo && key <= pos;
		if (tree && seen && key >= span.pos)
			cell = span.pos + paths[warp][key - span.pos];
		const uint32_t t = cell % a.page_tokens;
		const unsigned char *keys = nullptr;
		float s = -INFINITY;
		if (seen) {
			keys = a.page_base + a.pages[span.page_begin + cell / a.page_tokens] * a.page_stride +
			       2 * (head / a.group) * head_bytes;
			s = dot<KV>(q, keys, t, line, a.dim);
			s = a.cap > 0 ? capped(a, s) : s * a.scale;
		}
		float top = s;
		for (int d = 16; d; d /= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
		top = fmaxf(top, m);
		float p = exp2f(s - top), alpha = exp2f(m - top), sum = p;
		for (int d = 16; d; d /= 2)
			sum += __shfl_xor_sync(~0u, sum, d);
		l = __fmaf_rn(l, alpha, sum);
		m = top;
#pragma unroll
		for (uint32_t i = 0; i < parts; i++)
			o[i] *= alpha;
		uint32_t first = lo > k0 ? lo - k0 : 0, end = pos - k0 < 32 ? pos - k0 + 1 : 32;
		for (uint32_t k = first; k < end; k++) {
			float pk = __shfl_sync(~0u, p, k);
			const unsigned char *v =
				(const unsigned char *)__shfl_sync(~0u, (unsigned long long)keys, k) + head_bytes;
			const uint32_t at = __shfl_sync(~0u, t, k);
#pragma unroll
			for (uint32_t i = 0; i < parts; i++)
				if (lane + 32 * i < a.dim)
					o[i] = __fmaf_rn(
						pk,
						from_state(
							*(const KV *)(v + attn_place(line, at,
					                                     (lane + 32 * i) * (uint32_t)sizeof(KV)))),
						o[i]);
		}
	}
	A *out = (A *)a.out + (size_t)row * a.ldo + (size_t)head * a.head_dim;
#pragma unroll
	for (uint32_t i = 0; i < parts; i++)
		if (lane + 32 * i < a.head_dim)
			out[lane + 32 * i] = mx_from_float<A>(finish(a, head, {m, l, o[i]}));
}

} // namespace

cudaError_t attn_plain(const struct attn_launch *l, const struct attn_args *a)
{
	uint64_t warps = (uint64_t)a->n_rows * a->heads;
	dim3 grid((unsigned)((warps + WARPS - 1) / WARPS)), block(WARPS * 32);
	bool narrow = l->act == MX_BF16;
#define FORM(A, KV)                                                                                \
	(a->dim <= 256                                                                                 \
	     ? mx_launch(attend_plain<A, KV, 256>, grid, block, 0, l->stream, *a)                      \
	     : mx_launch(attend_plain<A, KV, ATTN_CUDA_MAX_DIM>, grid, block, 0, l->stream, *a))
#define CALL(KV) (narrow ? FORM(__nv_bfloat16, KV) : FORM(float, KV))
	switch (l->kv) {
	case MX_F32: return CALL(float);
	case MX_BF16: return CALL(__nv_bfloat16);
	case MX_F8E4M3: return CALL(__nv_fp8_e4m3);
	default: return cudaErrorInvalidValue;
	}
#undef CALL
#undef FORM
}
