/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heads.cu for many rows, bf16. Half a warp has a head, or 128 elements of a stream without heads.
 * A lane has 8 neighbours of two rows, so that what is computed of one waits for nothing of the
 * other, or, where pairs are turned, 4 and the 4 that they are turned with; the next rows are on
 * their way. Sums over a head have the order of warp_sum over lanes of 4 neighbours, so bits are
 * those of every other kernel.
 */
#include "mixers/recurrence/cuda/heads.cuh"

#define LOT          32 /* rows of a warp of many */
#define AHEAD        2  /* rows that are computed side by side, while the next are fetched */
#define EIGHT        8
#define HALF         16 /* lanes */
#define TURNED_WARPS 8
#define TURNED_ROWS  4 /* of a block of turned */
#define TURNED_EACH  4 /* heads of half a warp */
#define TURNED_HEADS (TURNED_WARPS * 2 * TURNED_EACH)

namespace
{

typedef __nv_bfloat16 T;

/* Warps of many for each stream; those of numbers have a lane for each head. */
struct jobs {
	uint32_t q, k, v, a, b;
};

__host__ __device__ __forceinline__ jobs jobs_of(const recur_rows &a)
{
	const recur_source *s = a.source;
	jobs j = {0, 0, 0, 0, 0};
	if (!a.inv_freq)
		j.q = (s[MX_RECUR_Q].heads + 1) / 2, j.k = a.k ? (s[MX_RECUR_K].heads + 1) / 2 : 0;
	j.v = a.v ? (s[MX_RECUR_V].heads * pieces(a.vpad) + 1) / 2 : 0;
	if (!a.vector && !a.channel)
		j.a = (s[MX_RECUR_A].heads + 31) / 32, j.b = (s[MX_RECUR_BETA].heads + 31) / 32;
	return j;
}

__device__ __forceinline__ void widen8(uint4 v, float (&x)[EIGHT])
{
	const float4 low = widen4(make_uint2(v.x, v.y)), high = widen4(make_uint2(v.z, v.w));
	x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
	x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ __forceinline__ float4 low_of(const float (&x)[EIGHT])
{
	return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ float4 high_of(const float (&x)[EIGHT])
{
	return make_float4(x[4], x[5], x[6], x[7]);
}

/* Every lane of half a warp gets the sum of its half. */
__device__ __forceinline__ float half_sum(float x)
{
#pragma unroll
	for (int d = HALF / 2; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	return x;
}

/* Brings the inputs of the tokens before token t of a span; n: the lane's first channel. */
__device__ __forceinline__ void fill(const recur_rows &a, const recur_source &s, uint32_t n,
                                     const T *from, const mx_device_span &span, uint32_t t,
                                     float (&seen)[TAPS - 1][EIGHT])
{
	const unsigned char *slot = a.step.slot_base + span.slot * a.step.slot_stride;
	const T *ring = (const T *)(slot + a.conv.at) + s.channel + n;
	const uint32_t pos = position_of(a.step, span, t);
#pragma unroll
	for (uint32_t i = 0; i + 1 < TAPS; i++) {
		const uint32_t back = TAPS - 1 - i, token = token_before(a.step, span, t, back);
		uint4 in = make_uint4(0, 0, 0, 0);
		if (token != UINT32_MAX)
			in = *(const uint4 *)(from + (size_t)(span.row + token) * a.ld_proj);
		else if (pos >= back) {
			const T *p = ring + (size_t)((pos - back) % a.conv.cap) * a.conv.channels;
			const uint2 low = *(const uint2 *)p, high = *(const uint2 *)(p + 4);
			in = make_uint4(low.x, low.y, high.x, high.y);
		}
		widen8(in, seen[i]);
	}
}

template <typename F> __device__ __forceinline__ void each_of(float (&x)[AHEAD][EIGHT], F f)
{
#pragma unroll
	for (uint32_t u = 0; u < AHEAD; u++)
#pragma unroll
		for (uint32_t i = 0; i < EIGHT; i++)
			f(x[u][i], i);
}

/* Multiplies the rows' scales by the factors of their norms, all rows side by side. */
template <enum mx_recur_qk_norm NORM>
__device__ __forceinline__ void norms(const float (&x)[AHEAD][EIGHT], float (&scale)[AHEAD])
{
	float sum[AHEAD][2];
#pragma unroll
	for (uint32_t u = 0; u < AHEAD; u++)
		sum[u][0] = norm_part(NORM, low_of(x[u])), sum[u][1] = norm_part(NORM, high_of(x[u]));
#pragma unroll
	for (int d = HALF / 2; d; d /= 2)
#pragma unroll
		for (uint32_t u = 0; u < AHEAD; u++) {
			sum[u][0] += __shfl_xor_sync(~0u, sum[u][0], d);
			sum[u][1] += __shfl_xor_sync(~0u, sum[u][1], d);
		}
#pragma unroll
	for (uint32_t u = 0; u < AHEAD; u++)
		scale[u] *= norm_factor(NORM, sum[u][0] + sum[u][1]);
}

/* LOT rows of two heads, or pieces, of q, k or v. TAPPED: there is a convolution, with TAPS taps.
 */
template <bool TAPPED>
__device__ __forceinline__ void run_many(const recur_rows &a, int stream, uint32_t two,
                                         uint32_t first)
{
	const recur_source &s = a.source[stream];
	const bool key = stream <= MX_RECUR_K, normed = key && a.norm[stream] != MX_RECUR_QK_NONE;
	const uint32_t lane = threadIdx.x & 31, n_rows = a.step.n_rows;
	const uint32_t pad = key ? a.kpad : a.vpad, each = pieces(pad);
	const uint32_t piece = 2 * two + lane / HALF, head = piece / each;
	const uint32_t e = piece % each * WIDE + lane % HALF * EIGHT, n = head * s.dim + e;
	const uint32_t end = first + LOT < n_rows ? first + LOT : n_rows;
	const bool is = head < s.heads, there = is && e < s.dim;
	const T *from = (const T *)a.proj + s.off + head / s.per * s.stride + head % s.per * s.dim + e;
	T *to = (T *)(stream == MX_RECUR_Q   ? a.q
	              : stream == MX_RECUR_K ? a.k
	                                     : a.v) +
	        (size_t)head * pad + e;
	const float *biases = TAPPED ? s.conv_bias : s.bias;
	float4 w[EIGHT] = {};
	float bias[EIGHT] = {}, seen[TAPS - 1][EIGHT] = {};
	uint4 next[AHEAD] = {};
	uint32_t begin = 0, n_span = 0; /* rows of the span */
	bool tree = false;
	if (TAPPED && there)
#pragma unroll
		for (uint32_t i = 0; i < EIGHT; i++)
			w[i] = *(const float4 *)(s.w + (size_t)(n + i) * TAPS);
	if (biases && there)
#pragma unroll
		for (uint32_t i = 0; i < EIGHT; i++)
			bias[i] = biases[n + i];
	const auto fetch = [&](uint32_t row, uint4 &in) {
		if (there && row < end)
			in = *(const uint4 *)(from + (size_t)row * a.ld_proj);
	};
#pragma unroll
	for (uint32_t u = 0; u < AHEAD; u++)
		fetch(first + u, next[u]);
	for (uint32_t base = first; base < end; base += AHEAD) {
		float x[AHEAD][EIGHT], scale[AHEAD];
		bool writes[AHEAD];
#pragma unroll
		for (uint32_t u = 0; u < AHEAD; u++) {
			const uint32_t row = base + u;
			float in[EIGHT];
			if (row < end && (row == first || row - begin >= n_span || tree)) {
				const mx_device_span span = a.step.spans[a.step.row_span[row]];
				begin = span.row, n_span = span.n, tree = is_tree(a.step, span);
				if (TAPPED && there && row - begin < n_span)
					fill(a, s, n, from, span, row - begin, seen);
			}
			writes[u] = row < end && row - begin < n_span && is && e < pad;
			scale[u] = key ? a.scale[stream] : 1;
			widen8(next[u], in);
			fetch(row + AHEAD, next[u]);
#pragma unroll
			for (uint32_t i = 0; i < EIGHT; i++) {
				if (TAPPED) {
					x[u][i] = __fmaf_rn(w[i].x, seen[0][i], bias[i]);
					x[u][i] = __fmaf_rn(w[i].y, seen[1][i], x[u][i]);
					x[u][i] = __fmaf_rn(w[i].z, seen[2][i], x[u][i]);
					x[u][i] = __fmaf_rn(w[i].w, in[i], x[u][i]);
					seen[0][i] = seen[1][i], seen[1][i] = seen[2][i], seen[2][i] = in[i];
				} else
					x[u][i] = bias[i] + in[i];
			}
		}
		if (s.silu)
			each_of(x, [](float &f, uint32_t) { f = silu_of<T>(f); });
		if (key && a.feature != MX_RECUR_FEATURE_IDENTITY)
			each_of(x, [&](float &f, uint32_t) { f = feature(a.feature, f); });
		if (!there)
			each_of(x, [&](float &f, uint32_t i) { f = !key && a.one && e + i == s.dim ? 1 : 0; });
		if (normed && a.norm[stream] == MX_RECUR_QK_L2)
			norms<MX_RECUR_QK_L2>(x, scale);
		else if (normed && a.norm[stream] == MX_RECUR_QK_L1)
			norms<MX_RECUR_QK_L1>(x, scale);
		else if (normed)
			norms<MX_RECUR_QK_SUM>(x, scale);
#pragma unroll
		for (uint32_t u = 0; u < AHEAD; u++) {
			if (key)
#pragma unroll
				for (uint32_t i = 0; i < EIGHT; i++)
					x[u][i] *= scale[u];
			const uint2 low = round4(low_of(x[u])), high = round4(high_of(x[u]));
			if (writes[u])
				*(uint4 *)(to + (size_t)(base + u) * s.heads * pad) =
					make_uint4(low.x, low.y, high.x, high.y);
		}
	}
}

/* Heads of q, k and v, and numbers; those of q and k that are turned have a kernel of their own. */
__global__ void __launch_bounds__(WARPS * 32, 4) many(const recur_rows a)
{
	uint32_t n = blockIdx.x * WARPS + (threadIdx.x >> 5);
	const uint32_t first = blockIdx.y * LOT;
	const jobs all = jobs_of(a);
	mx_pdl_launch();
	mx_pdl_wait();
	/* numbers first: they take longest */
	if (n < all.a)
		return run_numbers(a, MX_RECUR_A, n * 32, first, LOT);
	n -= all.a;
	if (n < all.b)
		return run_numbers(a, MX_RECUR_BETA, n * 32, first, LOT);
	n -= all.b;
	int stream = MX_RECUR_Q;
	if (n >= all.q)
		stream = MX_RECUR_K, n -= all.q;
	if (stream == MX_RECUR_K && n >= all.k)
		stream = MX_RECUR_V, n -= all.k;
	if (stream == MX_RECUR_V && n >= all.v)
		return;
	if (a.source[stream].conv)
		run_many<true>(a, stream, n, first);
	else
		run_many<false>(a, stream, n, first);
}

/* Of a block's rows: cosines and sines of each four pairs, and which rows are of a span. */
struct angles {
	float4 c[TURNED_ROWS][HALF], s[TURNED_ROWS][HALF];
	bool is[TURNED_ROWS];
};

__device__ __forceinline__ void take_angles(const recur_rows &a, uint32_t first, uint32_t pairs,
                                            angles *out)
{
	for (uint32_t i = threadIdx.x; i < TURNED_ROWS * WIDE / 2; i += TURNED_WARPS * 32) {
		const uint32_t r = i / (WIDE / 2), p = i % (WIDE / 2), row = first + r;
		bool is = row < a.step.n_rows;
		float c = 1, s = 0;
		if (is) {
			const mx_device_span span = a.step.spans[a.step.row_span[row]];
			is = row - span.row < span.n;
			if (is && p < pairs)
				sincosf((float)position_of(a.step, span, row - span.row) * a.inv_freq[p], &s, &c);
		}
		((float *)out->c[r])[p] = c, ((float *)out->s[r])[p] = s;
		if (p == 0)
			out->is[r] = is;
	}
}

/* Heads of q and k with rotation, without a convolution. */
__global__ void __launch_bounds__(TURNED_WARPS * 32, 3) turned(const recur_rows a)
{
	__shared__ angles by;
	const uint32_t first = blockIdx.x * TURNED_ROWS, lane = threadIdx.x & 31, l = lane % HALF;
	const uint32_t dim = a.source[MX_RECUR_Q].dim, half = dim / 2, q = a.source[MX_RECUR_Q].heads;
	const uint32_t all = q + a.source[MX_RECUR_K].heads, rows = a.step.n_rows;
	const uint32_t h0 = blockIdx.y * TURNED_HEADS + threadIdx.x / 32 * 2 + lane / HALF;
	const bool there = 4 * l < half;
	const T *from[TURNED_EACH];
	T *to[TURNED_EACH];
	uint2 next[TURNED_EACH][2] = {};
	mx_pdl_launch();
	take_angles(a, first, half, &by); /* of tables and weights */
	mx_pdl_wait();
#pragma unroll
	for (uint32_t i = 0; i < TURNED_EACH; i++) {
		const uint32_t n = h0 + i * TURNED_WARPS * 2, h = n < q ? n : n - q;
		const recur_source &s = a.source[n < q ? MX_RECUR_Q : MX_RECUR_K];
		from[i] = (const T *)a.proj + s.off + h / s.per * s.stride + h % s.per * dim + 4 * l;
		to[i] = (T *)(n < q ? a.q : a.k) + h * a.kpad + 4 * l;
	}
	const auto fetch = [&](uint32_t row, uint32_t i) {
		if (there && row < rows && h0 + i * TURNED_WARPS * 2 < all) {
			next[i][0] = *(const uint2 *)(from[i] + (size_t)row * a.ld_proj);
			next[i][1] = *(const uint2 *)(from[i] + (size_t)row * a.ld_proj + half);
		}
	};
#pragma unroll
	for (uint32_t i = 0; i < TURNED_EACH; i++)
		fetch(first, i);
	__syncthreads();
#pragma unroll 1
	for (uint32_t r = 0; r < TURNED_ROWS; r++) {
		const uint32_t row = first + r;
		const float4 c = by.c[r][l], sine = by.s[r][l];
#pragma unroll
		for (uint32_t i = 0; i < TURNED_EACH; i++) {
			const uint32_t n = h0 + i * TURNED_WARPS * 2, h = n < q ? n : n - q;
			const int stream = n < q ? MX_RECUR_Q : MX_RECUR_K; /* of the whole warp */
			const recur_source &s = a.source[stream];
			const float *bias = s.bias ? s.bias + h * dim + 4 * l : NULL;
			float4 x[2] = {widen4(next[i][0]), widen4(next[i][1])}, y[2];
			if (n >= all)
				break;
			if (r + 1 < TURNED_ROWS)
				fetch(row + 1, i);
#pragma unroll
			for (int e = 0; e < 2; e++) {
				if (bias && there)
					each4(x[e], [&](float &f, int m) { f += bias[e * half + m]; });
				if (s.silu)
					each4(x[e], [&](float &f, int) { f = silu_of<T>(f); });
				if (a.feature != MX_RECUR_FEATURE_IDENTITY)
					each4(x[e], [&](float &f, int) { f = feature(a.feature, f); });
			}
			y[0] = make_float4(__fmaf_rn(x[0].x, c.x, __fmul_rn(x[1].x, -sine.x)),
			                   __fmaf_rn(x[0].y, c.y, __fmul_rn(x[1].y, -sine.y)),
			                   __fmaf_rn(x[0].z, c.z, __fmul_rn(x[1].z, -sine.z)),
			                   __fmaf_rn(x[0].w, c.w, __fmul_rn(x[1].w, -sine.w)));
			y[1] = make_float4(__fmaf_rn(x[1].x, c.x, __fmul_rn(x[0].x, sine.x)),
			                   __fmaf_rn(x[1].y, c.y, __fmul_rn(x[0].y, sine.y)),
			                   __fmaf_rn(x[1].z, c.z, __fmul_rn(x[0].z, sine.z)),
			                   __fmaf_rn(x[1].w, c.w, __fmul_rn(x[0].w, sine.w)));
			float scale = a.scale[stream];
			if (a.norm[stream] != MX_RECUR_QK_NONE) {
				const float part =
					there ? norm_part(a.norm[stream], y[0]) + norm_part(a.norm[stream], y[1]) : 0;
				scale *= norm_factor(a.norm[stream], half_sum(part));
			}
			T *out = to[i] + (size_t)row * s.heads * a.kpad;
#pragma unroll
			for (int e = 0; e < 2; e++) {
				each4(y[e], [&](float &f, int) { f *= scale; });
				if (there && by.is[r])
					store4(out + e * half, y[e]);
			}
			for (uint32_t pad = dim; by.is[r] && pad + 4 * l < a.kpad; pad += 4 * HALF)
				*(uint2 *)(out + pad) = make_uint2(0, 0);
		}
	}
}

} // namespace

bool recur_heads_many_can(const recur_rows &a)
{
	bool can = a.step.n_rows >= 32 * LOT && (!a.conv.channels || a.conv.taps == TAPS) &&
	           a.ld_proj % EIGHT == 0 && a.kpad % EIGHT == 0 && a.vpad % EIGHT == 0;
	for (int s = 0; s <= MX_RECUR_V; s++) {
		const recur_source &from = a.source[s];
		if (from.heads)
			can = can && !from.gates && from.dim % EIGHT == 0 && from.off % EIGHT == 0 &&
			      (from.per >= from.heads || from.stride % EIGHT == 0);
	}
	for (int s = 0; s <= MX_RECUR_K && a.inv_freq; s++) {
		const uint32_t dim = a.source[s].dim;
		/* a sum's order is that of other kernels in heads of a power of two */
		can = can && a.source[s].heads % 2 == 0 && !a.source[s].conv &&
		      (a.norm[s] == MX_RECUR_QK_NONE || (dim & (dim - 1)) == 0);
	}
	return can;
}

cudaError_t recur_heads_many(cudaStream_t stream, const recur_rows &a)
{
	const jobs j = jobs_of(a);
	const uint32_t n = a.step.n_rows, warps = j.q + j.k + j.v + j.a + j.b;
	const uint32_t keys = a.source[MX_RECUR_Q].heads + a.source[MX_RECUR_K].heads;
	cudaError_t e = cudaSuccess;
	if (a.inv_freq)
		e = mx_launch(
			turned,
			dim3((n + TURNED_ROWS - 1) / TURNED_ROWS, (keys + TURNED_HEADS - 1) / TURNED_HEADS),
			dim3(TURNED_WARPS * 32), 0, stream, a);
	if (e == cudaSuccess && warps)
		e = mx_launch(many, dim3((warps + WARPS - 1) / WARPS, (n + LOT - 1) / LOT),
		              dim3(WARPS * 32), 0, stream, a);
	return e;
}
