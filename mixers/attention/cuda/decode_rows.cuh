/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a unit of decode_kernels.cuh in the registers of a warp: queries, the running maximum and
 * sum of each row's probabilities, and its weighted values. */
#ifndef MX_MIXERS_ATTENTION_CUDA_DECODE_ROWS_CUH
#define MX_MIXERS_ATTENTION_CUDA_DECODE_ROWS_CUH

#include "mixers/attention/cuda/decode_ring.cuh"

namespace
{

/* Elements e, e + 1 of a query (e even); zero from `dim` on. */
__device__ __forceinline__ uint32_t load_pair(const __nv_bfloat16 *q, uint32_t e, uint32_t dim)
{
	__nv_bfloat162 v = __floats2bfloat162_rn(0, 0);
	if (e < dim)
		v.x = q[e];
	if (e + 1 < dim)
		v.y = q[e + 1];
	return *(uint32_t *)&v;
}

template <typename KV, int D, int NT> struct rows {
	using T = tile<KV, D>;
	uint32_t q[NT][D / 16][2];
	uint32_t pos[NT][2]; /* of rows 2t and 2t + 1 of each 8 */
	float m[NT][2], l[NT][2], o[NT][D / 16][4];

	__device__ void load(const attn_args &a, const unit &w)
	{
		uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
		for (int j = 0; j < NT; j++) {
			uint32_t v = w.v0 + 8 * j + g;
			bool there = 8 * j + g < w.rows;
			uint32_t token = w.n == 1 ? 0 : v / a.group;
			uint32_t head = w.head * a.group + v - token * a.group;
			const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.qkv;
			if (there)
				x += (size_t)(w.row + token) * a.ld + head * a.head_dim;
			/* fp8: lane t holds dimensions 4t .. 4t + 3 of 16, as the keys' bytes lie */
			uint32_t e = T::fp8 ? 4 * t : 2 * t, next = T::fp8 ? 2 : 8;
			if (a.head_dim == D) { /* rows beyond the last read row 0 */
#pragma unroll
				for (int s = 0; s < D / 16; s++) {
					q[j][s][0] = *(const uint32_t *)(x + 16 * s + e);
					q[j][s][1] = *(const uint32_t *)(x + 16 * s + e + next);
				}
			} else {
				uint32_t dim = there ? a.head_dim : 0;
				for (int s = 0; s < D / 16; s++) {
					q[j][s][0] = load_pair(x, 16 * s + e, dim);
					q[j][s][1] = load_pair(x, 16 * s + e + next, dim);
				}
			}
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t r = 8 * j + 2 * t + i;
				r = r < w.rows ? r : w.rows - 1;
				pos[j][i] = w.pos + (w.n == 1 ? 0 : (w.v0 + r) / a.group);
			}
		}
	}

	/* Converts queries to f16 if the products are f16. Not in load: the loads are under way. */
	__device__ void convert(void)
	{
		if constexpr (T::fp8)
#pragma unroll
			for (int j = 0; j < NT; j++)
#pragma unroll
				for (int s = 0; s < D / 16; s++)
#pragma unroll
					for (int i = 0; i < 2; i++) {
						__nv_bfloat162 v = *(__nv_bfloat162 *)&q[j][s][i];
						q[j][s][i] = pack<true>(__low2float(v), __high2float(v));
					}
	}

	__device__ void clear(void)
	{
#pragma unroll
		for (int j = 0; j < NT; j++) {
			m[j][0] = m[j][1] = -INFINITY;
			l[j][0] = l[j][1] = 0;
#pragma unroll
			for (int s = 0; s < D / 16; s++)
				o[j][s][0] = o[j][s][1] = o[j][s][2] = o[j][s][3] = 0;
		}
	}

	/* Computes the scores of 16 keys: s[key g, g + 8][row 2t, 2t + 1]. */
	__device__ void scores(float (&s)[NT][4], uint32_t keys) const
	{
		uint32_t lane = threadIdx.x & 31, row = lane & 15;
		uint32_t turn = (row & 7) >> T::shift & (T::parts - 1), high = lane >> 4 ^ turn;
		float s1[NT][4] = {};
		keys += row / 8 * 8 * T::row + row % 8 * T::panel;
#pragma unroll
		for (int c = 0; c < T::row / 32; c++) {
			uint32_t r[4];
			load_matrices(r, keys + 2 * c / T::parts * 8 * T::panel +
			                     ((2 * c % T::parts) ^ high) * 16);
			if constexpr (T::fp8) {
				uint32_t a0[4] = {widen_fp8(r[0]), widen_fp8(r[1]), widen_fp8(r[0] >> 16),
				                  widen_fp8(r[1] >> 16)};
				uint32_t a1[4] = {widen_fp8(r[2]), widen_fp8(r[3]), widen_fp8(r[2] >> 16),
				                  widen_fp8(r[3] >> 16)};
#pragma unroll
				for (int j = 0; j < NT; j++) {
					multiply<true>(s[j], a0, q[j][2 * c][0], q[j][2 * c][1]);
					multiply<true>(s1[j], a1, q[j][2 * c + 1][0], q[j][2 * c + 1][1]);
				}
			} else {
#pragma unroll
				for (int j = 0; j < NT; j++)
					multiply<false>(c % 2 ? s1[j] : s[j], r, q[j][c][0], q[j][c][1]);
			}
		}
#pragma unroll
		for (int j = 0; j < NT; j++)
			for (int i = 0; i < 4; i++)
				s[j][i] = __fadd_rn(s[j][i], s1[j][i]);
	}

	/* Turns scores into probabilities, operands of the next product, and rescales the state. */
	__device__ void softmax(float (&s)[NT][4], uint32_t (&p)[NT][2], float scale)
	{
#pragma unroll
		for (int j = 0; j < NT; j++) {
			float use[2], alpha[2];
			bool moved = false;
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float top = fmaxf(s[j][i], s[j][i + 2]);
				for (int d = 4; d < 32; d *= 2)
					top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
				top = fmaxf(m[j][i], __fmul_rn(top, scale));
				use[i] = top == -INFINITY ? 0 : top;
				alpha[i] = exp2_fast(__fsub_rn(m[j][i], use[i]));
				moved |= top != m[j][i];
				m[j][i] = top;
			}
			float e[4];
#pragma unroll
			for (int i = 0; i < 4; i++)
				e[i] = exp2_fast(__fsub_rn(__fmul_rn(s[j][i], scale), use[i & 1]));
			for (int i = 0; i < 2; i++)
				l[j][i] = __fmaf_rn(l[j][i], alpha[i], __fadd_rn(e[i], e[i + 2]));
			p[j][0] = transpose(pack<T::fp8>(e[0], e[1]));
			p[j][1] = transpose(pack<T::fp8>(e[2], e[3]));
			if (!__any_sync(~0u, moved))
				continue;
#pragma unroll
			for (int c = 0; c < D / 16; c++)
				for (int i = 0; i < 4; i++)
					o[j][c][i] = __fmul_rn(o[j][c][i], alpha[i & 1]);
		}
	}

	/* Adds the values of 16 keys to o. Keys from `n` on (0 .. 16) are not used: memory that was
	 * never written may hold NaN. */
	__device__ void add_values(const uint32_t (&p)[NT][2], uint32_t values, uint32_t n)
	{
		uint32_t lane = threadIdx.x & 31, t = lane % 4;
		uint32_t row = T::fp8 ? lane & 15 : (lane & 7) + lane / 16 * 8;
		uint32_t high = T::fp8 ? lane >> 4 : lane >> 3 & 1;
		uint32_t turn = (row & 7) >> T::shift & (T::parts - 1);
		uint32_t keep[2];
		for (uint32_t i = 0; i < 2; i++)
			keep[i] = (2 * t + 8 * i < n ? 0xffffu : 0) | (2 * t + 8 * i + 1 < n ? 0xffff0000u : 0);
		high ^= turn;
		values += row / 8 * 8 * T::row + row % 8 * T::panel;
#pragma unroll
		for (int c = 0; c < T::row / 32; c++) {
			uint32_t r[4];
			load_transposed(r, values + 2 * c / T::parts * 8 * T::panel +
			                       ((2 * c % T::parts) ^ high) * 16);
			if constexpr (T::fp8) {
#pragma unroll
				for (int k = 0; k < 2; k++) {
					/* even bytes are dimension 2g of two keys, odd ones 2g + 1 */
					uint32_t x = __byte_perm(r[2 * k], 0, 0x3120);
					uint32_t y = __byte_perm(r[2 * k + 1], 0, 0x3120);
					uint32_t a[4] = {widen_fp8(x) & keep[0], widen_fp8(x >> 16) & keep[0],
					                 widen_fp8(y) & keep[1], widen_fp8(y >> 16) & keep[1]};
#pragma unroll
					for (int j = 0; j < NT; j++)
						multiply<true>(o[j][2 * c + k], a, p[j][0], p[j][1]);
				}
			} else {
				uint32_t a[4] = {r[0] & keep[0], r[1] & keep[0], r[2] & keep[1], r[3] & keep[1]};
#pragma unroll
				for (int j = 0; j < NT; j++)
					multiply<false>(o[j][c], a, p[j][0], p[j][1]);
			}
		}
	}

	/* Computes block b of 16 keys, which lies at `at`. Keys from w.hi on may never have been
	 * written. */
	__device__ void block(const attn_args &a, const unit &w, uint32_t b, uint32_t at)
	{
		uint32_t g = (threadIdx.x & 31) / 4, k0 = b * ATTN_CUDA_WARP_KEYS;
		float s[NT][4] = {};
		uint32_t p[NT][2];
		scores(s, at);
		if (a.cap > 0)
#pragma unroll
			for (int j = 0; j < NT; j++)
				for (int i = 0; i < 4; i++)
					s[j][i] = capped(a, s[j][i]);
		const uint32_t p0 = mx_position_of(&a.places, k0);
		if (p0 + ATTN_CUDA_WARP_KEYS > w.first_pos + 1 || p0 < attn_first_key(&a, w.last_pos)) {
#pragma unroll
			for (int j = 0; j < NT; j++)
				for (int i = 0; i < 4; i++) {
					/* for later keys this wraps to a large number */
					uint32_t back = pos[j][i & 1] - (p0 + g + (i & 2) * 4);
					s[j][i] = back < attn_reach(&a, pos[j][i & 1]) ? s[j][i] : -INFINITY;
				}
		}
		softmax(s, p, a.cap > 0 ? 1.0f : a.scale);
		add_values(p, at + T::block,
		           w.hi - k0 < ATTN_CUDA_WARP_KEYS ? w.hi - k0 : ATTN_CUDA_WARP_KEYS);
	}

	/* Stores the warp's partials for join_warps: sums [rows][2], values [rows][pitch]. */
	__device__ void store(float *sums, float *values)
	{
		uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
		for (int j = 0; j < NT; j++) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t r = 8 * j + 2 * t + i;
				float sum = l[j][i];
				for (int d = 4; d < 32; d *= 2)
					sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
				if (g == 0) {
					sums[2 * r] = m[j][i];
					sums[2 * r + 1] = sum;
				}
#pragma unroll
				for (int c = 0; c < D / 16; c++) {
					uint32_t d = 16 * c + (T::fp8 ? 2 * g : g);
					values[r * T::pitch + d] = o[j][c][i];
					values[r * T::pitch + d + (T::fp8 ? 1 : 8)] = o[j][c][i + 2];
				}
			}
		}
	}
};

} // namespace

#endif
