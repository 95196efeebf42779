/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One kernel between the products and attention: the norm of each query and key
 * head (Qwen3's qk-norm; Hunyuan's comes after the rotation), the rotation
 * (half-split pairs), and the write of keys and values to their pages. One warp for each row and
 * head; or, where most layers are alike (rows_can), a warp for some heads at a time, with 16 bytes
 * a lane.
 */
#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"

#define WARPS 4

namespace
{

template <typename KV> __device__ __forceinline__ KV to_state(float v)
{
	return mx_from_float<KV>(v);
}
template <> __device__ __forceinline__ __nv_fp8_e4m3 to_state<__nv_fp8_e4m3>(float v)
{
	__nv_fp8_e4m3 r;
	r.__x = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
	return r;
}

/* Returns the angle of a pair at a position. With dynamic rope, beyond the trained length, the base
 * depends on the position (NTK, as in transformers' _compute_dynamic_ntk_parameters for pos + 1
 * tokens). */
__device__ __forceinline__ float angle(const attn_args &a, uint32_t pos, uint32_t max_len,
                                       uint32_t pair)
{
	const float *table = a.long_freq && max_len > a.original ? a.long_freq : a.inv_freq;
	float freq = table[pair];
	if (a.rope_dynamic && pos >= a.max_position) {
		double dim = a.rope_dim;
		double stretch = a.factor * ((double)pos + 1) / a.max_position - (a.factor - 1);
		double base = a.theta * pow(stretch, dim / (dim - 2));
		freq = (float)pow(base, -2.0 * pair / dim);
	}
	return (float)pos * freq;
}

/* Normalises a head; called by a whole warp. weight NULL = 1. */
template <int EACH>
__device__ __forceinline__ void norm(const attn_args &a, float (&x)[EACH], const float *weight)
{
	uint32_t lane = threadIdx.x & 31;
	float sum = 0;
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		sum = __fmaf_rn(x[i], x[i], sum);
	for (int d = 16; d; d /= 2)
		sum += __shfl_xor_sync(~0u, sum, d);
	float r = rsqrtf(sum / (float)a.head_dim + a.norm_eps);
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		if (lane + 32 * i < a.head_dim)
			x[i] = weight ? x[i] * r * weight[lane + 32 * i] : x[i] * r;
}

/* Computes the factors of each element of the pairs, (i, i + rope_dim / 2) or (2i, 2i + 1), at a
 * position: .x multiplies the element itself, .y the other element of its pair. */
__device__ __forceinline__ void rotation(const attn_args &a, uint32_t pos, uint32_t max_len,
                                         float2 *turn)
{
	uint32_t half = a.rope_dim / 2;
	for (uint32_t i = threadIdx.x & 31; i < half; i += 32) {
		float s, c;
		sincosf(angle(a, pos, max_len, i), &s, &c);
		turn[a.rope_pairs ? 2 * i : i] = make_float2(c * a.rope_scale, -(s * a.rope_scale));
		turn[a.rope_pairs ? 2 * i + 1 : i + half] = make_float2(c * a.rope_scale, s * a.rope_scale);
	}
	__syncwarp();
}

/* Rotates the pairs of a head. The lanes exchange elements through `all` [32 * EACH]. */
template <int EACH>
__device__ __forceinline__ void rotate(const attn_args &a, float (&x)[EACH],
                                       const float2 (&turn)[EACH], float *all)
{
	uint32_t lane = threadIdx.x & 31, half = a.rope_dim / 2;
	float other[EACH];
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		all[lane + 32 * i] = x[i];
	__syncwarp();
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++) {
		uint32_t e = lane + 32 * i;
		uint32_t o = a.rope_pairs ? e ^ 1 : e < half ? e + half : e - half;
		other[i] = all[e < a.rope_dim ? o : e];
	}
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		if (lane + 32 * i < a.rope_dim)
			x[i] = __fmaf_rn(x[i], turn[i].x, __fmul_rn(other[i], turn[i].y));
	__syncwarp();
}

/* A warp processes `each` heads of a row, one after the other. A lane has the EACH elements lane,
 * lane + 32, .. of a head. */
template <typename A, typename KV, int EACH>
__global__ void __launch_bounds__(WARPS * 32) append(const attn_args a, const uint32_t each)
{
	__shared__ float heads[WARPS][32 * EACH];
	__shared__ float2 turns[WARPS][32 * EACH];
	uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
	uint32_t all = a.heads + 2 * a.kv_heads, of_row = (all + each - 1) / each;
	uint32_t at = blockIdx.x * WARPS + warp, row = at / of_row, head = at % of_row * each;
	uint32_t end = head + each < all ? head + each : all, keys = a.heads + a.kv_heads;
	mx_pdl_launch();
	const mx_device_span span = a.spans[row < a.n_rows ? a.row_span[row] : 0];
	/* false for rows that pad a recorded step */
	bool there = row < a.n_rows && row >= span.row && row - span.row < span.n;
	uint32_t cell = span.pos + (row - span.row), page = 0; /* where the keys go */
	const uint32_t place = mx_place_of(&a.places, cell), t = place % a.page_tokens;
	const bool has =
		mx_has_place(&a.places, cell); /* else another rank has the row's keys and values */
	uint32_t line = a.dim * (uint32_t)sizeof(KV);
	uint32_t pos = there && attn_is_tree(&a, &span) ? a.pos[row] : cell;
	if (there && end > a.heads && has)
		page = a.pages[span.page_begin + place / a.page_tokens];
	if (there && head < keys && a.inv_freq)
		rotation(a, pos, span.max_len, turns[warp]);
	float2 turn[EACH]; /* elements beyond rope_dim are not read */
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		turn[i] = turns[warp][lane + 32 * i];
	mx_pdl_wait(); /* also before the return: the next kernel waits for this one only */
	if (!there)
		return;
	A *in = (A *)a.qkv + (size_t)row * a.ld + lane;
	unsigned char *to = a.page_base + page * a.page_stride;
#pragma unroll 1
	for (; head < end; head++) {
		bool query = head < a.heads, key = !query && head < keys;
		if (!query && !has)
			break;
		const float *weight = a.norm_whole ? nullptr : query ? a.q_norm : key ? a.k_norm : nullptr;
		bool value = !query && !key;
		uint32_t from = value && a.k_is_v ? head - a.kv_heads : head;
		A *of_head = in + (size_t)from * a.head_dim;
		float x[EACH];
		if (query && !weight && !a.inv_freq && a.q_beta == 0)
			continue; /* the query does not change */
#pragma unroll
		for (uint32_t i = 0; i < EACH; i++)
			x[i] = lane + 32 * i < a.head_dim ? mx_to_float(of_head[32 * i]) : 0;
		if ((weight && !a.norm_last) || (value && a.v_norm))
			norm(a, x, weight);
		if ((query || key) && a.inv_freq)
			rotate(a, x, turn, heads[warp]);
		if (weight && a.norm_last)
			norm(a, x, weight);
		float grow =
			query && a.q_beta != 0 ? 1 + a.q_beta * logf(1 + (float)(pos / a.q_length)) : 1;
		uint32_t part = key ? 2 * (head - a.heads) : 2 * (head - keys) + 1;
		unsigned char *own = to + (size_t)part * a.page_tokens * line;
#pragma unroll
		for (uint32_t i = 0; i < EACH; i++) {
			uint32_t e = lane + 32 * i;
			if (query && e < a.head_dim)
				of_head[32 * i] = mx_from_float<A>(x[i] * grow);
			else if (!query && e < a.dim)
				*(KV *)(own + attn_place(line, t, e * (uint32_t)sizeof(KV))) = to_state<KV>(x[i]);
		}
	}
}

/* True if a layer is of the kind of append_rows. The kernels differ in the order of a norm's sum,
 * so this depends on the layer alone. */
bool rows_can(const attn_launch *l, const attn_args *a)
{
	return l->act == MX_BF16 && (l->kv == MX_BF16 || l->kv == MX_F8E4M3) &&
	       (a->head_dim == 64 || a->head_dim == 128) && !a->norm_last && !a->v_norm && !a->k_is_v &&
	       a->q_beta == 0 && !a->q_norm == !a->k_norm &&
	       (!a->inv_freq || (!a->rope_pairs && a->rope_dim == a->head_dim));
}

/* Eight elements of a head, as a lane has them. */
struct eight {
	float x[8];

	__device__ __forceinline__ void unpack(const uint4 &v)
	{
		const uint32_t in[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[2 * i] = __uint_as_float(in[i] << 16);
			x[2 * i + 1] = __uint_as_float(in[i] & 0xffff0000u);
		}
	}
	__device__ __forceinline__ uint4 packed(void) const
	{
		return {pack<false>(x[0], x[1]), pack<false>(x[2], x[3]), pack<false>(x[4], x[5]),
		        pack<false>(x[6], x[7])};
	}
	__device__ __forceinline__ void put(__nv_bfloat16 *to) const
	{
		*(uint4 *)to = packed();
	}
	__device__ __forceinline__ void put(__nv_fp8_e4m3 *to) const
	{
		uint32_t v[2] = {0, 0};
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i / 4] |= (uint32_t)to_state<__nv_fp8_e4m3>(x[i]).__x << i % 4 * 8;
		*(uint2 *)to = {v[0], v[1]};
	}
};

/* The work of append, `each` heads of a row for a warp. The lanes of a head have eight neighbours
 * each; the other elements of their pairs are those of one other lane. NORM: queries and keys are
 * normalised. */
template <typename KV, int D, bool NORM>
__global__ void __launch_bounds__(WARPS * 32) append_rows(const attn_args a, const uint32_t each)
{
	constexpr uint32_t lanes = D / 8, heads = 32 / lanes, ahead = 3;
	__shared__ float2 turns[WARPS][D];
	const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, e = lane % lanes * 8;
	const uint32_t all = a.heads + 2 * a.kv_heads, of_row = (all + each - 1) / each;
	const uint32_t at = blockIdx.x * WARPS + warp, row = at / of_row, keys = a.heads + a.kv_heads;
	uint32_t head = at % of_row * each, end = head + each < all ? head + each : all, page = 0;
	mx_pdl_launch();
	const mx_device_span span = a.spans[row < a.n_rows ? a.row_span[row] : 0];
	/* false for rows that pad a recorded step */
	const bool there = row < a.n_rows && row >= span.row && row - span.row < span.n;
	const uint32_t cell = span.pos + (row - span.row); /* where the keys go */
	const uint32_t place = mx_place_of(&a.places, cell), t = place % a.page_tokens;
	const bool has = mx_has_place(&a.places, cell);
	if (there && end > a.heads && has)
		page = a.pages[span.page_begin + place / a.page_tokens];
	if (there && head < keys && a.inv_freq)
		rotation(a, attn_is_tree(&a, &span) ? a.pos[row] : cell, span.max_len, turns[warp]);
	float2 turn[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		turn[i] = turns[warp][e + i];
	mx_pdl_wait(); /* also before the return: the next kernel waits for this one only */
	if (!there)
		return;
	if (!has && end > a.heads)
		end = a.heads; /* another rank has the row's keys and values */
	const bool norm_heads = NORM && !a.norm_whole, stays = !norm_heads && !a.inv_freq;
	__nv_bfloat16 *in = (__nv_bfloat16 *)a.qkv + (size_t)row * a.ld + e;
	const size_t of_head = (size_t)a.page_tokens * D * sizeof(KV);
	unsigned char *to = a.page_base + page * a.page_stride +
	                    attn_place(D * (uint32_t)sizeof(KV), t, e * (uint32_t)sizeof(KV));
#pragma unroll 1
	for (head += lane / lanes; __any_sync(~0u, head < end); head += ahead * heads) {
		uint4 v[ahead];
#pragma unroll
		for (uint32_t k = 0; k < ahead; k++) {
			const uint32_t h = head + k * heads;
			v[k] = {0, 0, 0, 0};
			if (h < end && !(stays && h < a.heads))
				v[k] = *(const uint4 *)(in + h * D);
		}
#pragma unroll
		for (uint32_t k = 0; k < ahead; k++) {
			const uint32_t h = head + k * heads;
			eight x, other;
			x.unpack(v[k]);
			if (norm_heads) {
				const float *weight = h < a.heads ? a.q_norm : a.k_norm;
				float sum = 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					sum = __fmaf_rn(x.x[i], x.x[i], sum);
#pragma unroll
				for (uint32_t d = lanes / 2; d; d /= 2)
					sum += __shfl_xor_sync(~0u, sum, d);
				const float r = rsqrtf(sum / (float)D + a.norm_eps);
#pragma unroll
				for (int i = 0; i < 8; i++)
					x.x[i] = h < keys ? x.x[i] * r * weight[e + i] : x.x[i];
			}
			if (a.inv_freq) {
				if constexpr (NORM) {
#pragma unroll
					for (int i = 0; i < 8; i++)
						other.x[i] = __shfl_xor_sync(~0u, x.x[i], lanes / 2);
				} else {
					v[k].x = __shfl_xor_sync(~0u, v[k].x, lanes / 2);
					v[k].y = __shfl_xor_sync(~0u, v[k].y, lanes / 2);
					v[k].z = __shfl_xor_sync(~0u, v[k].z, lanes / 2);
					v[k].w = __shfl_xor_sync(~0u, v[k].w, lanes / 2);
					other.unpack(v[k]);
				}
#pragma unroll
				for (int i = 0; i < 8; i++)
					x.x[i] = h < keys
					             ? __fmaf_rn(x.x[i], turn[i].x, __fmul_rn(other.x[i], turn[i].y))
					             : x.x[i];
			}
			if (h >= end)
				continue;
			const uint32_t part = h < keys ? 2 * (h - a.heads) : 2 * (h - keys) + 1;
			if (h >= a.heads)
				x.put((KV *)(to + part * of_head));
			else if (!stays)
				x.put(in + h * D);
		}
	}
}

template <typename KV, int D> cudaError_t launch_rows(const attn_launch *l, const attn_args *a)
{
	constexpr uint32_t heads = 256 / D;
	const uint32_t all = a->heads + 2 * a->kv_heads, each = a->n_rows < 128 ? heads : 24;
	const uint64_t warps = (uint64_t)a->n_rows * ((all + each - 1) / each);
	const dim3 grid((unsigned)((warps + WARPS - 1) / WARPS)), block(WARPS * 32);
	return a->q_norm ? mx_launch(append_rows<KV, D, true>, grid, block, 0, l->stream, *a, each)
	                 : mx_launch(append_rows<KV, D, false>, grid, block, 0, l->stream, *a, each);
}

} // namespace

cudaError_t attn_append(const struct attn_launch *l, const struct attn_args *a)
{
	/* Few rows: as many warps as possible. Many rows: a warp computes sines and cosines once for
	 * several heads. */
	uint32_t all = a->heads + 2 * a->kv_heads, each = a->n_rows < 128 ? 1 : 12;
	uint64_t warps = (uint64_t)a->n_rows * ((all + each - 1) / each);
	dim3 grid((unsigned)((warps + WARPS - 1) / WARPS)), block(WARPS * 32);
	bool narrow = l->act == MX_BF16;
	if (rows_can(l, a)) {
		const bool wide = a->head_dim == 128;
		if (l->kv == MX_BF16)
			return wide ? launch_rows<__nv_bfloat16, 128>(l, a)
			            : launch_rows<__nv_bfloat16, 64>(l, a);
		return wide ? launch_rows<__nv_fp8_e4m3, 128>(l, a) : launch_rows<__nv_fp8_e4m3, 64>(l, a);
	}
#define FORM(A, KV)                                                                                \
	(a->dim <= 128   ? mx_launch(append<A, KV, 4>, grid, block, 0, l->stream, *a, each)            \
	 : a->dim <= 256 ? mx_launch(append<A, KV, 8>, grid, block, 0, l->stream, *a, each)            \
	                 : mx_launch(append<A, KV, 16>, grid, block, 0, l->stream, *a, each))
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
