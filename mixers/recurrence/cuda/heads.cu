/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.cu for most layers: heads of up to 128 elements whose feature map, if any, is a function of
 * elements. A warp computes a head, or 128 elements of a stream without heads, of
 * several rows, one after the other: the taps and the inputs that they see stay in registers. A
 * lane has 4 neighbours.
 */
#include "mixers/recurrence/cuda/heads.cuh"

#define PARTS (WIDE / 128) /* elements of a warp, PARTS for each lane four */

namespace
{

/* What a warp is to do: a head of a stream, or a part of it. */
struct job {
	int stream;
	uint32_t head, first; /* first element, of the head */
};

/* Warps of a row for each stream. Those of numbers have a lane for each head. */
struct jobs {
	uint32_t q, k, v, a, b;
};

__host__ __device__ __forceinline__ jobs jobs_of(const recur_rows &a)
{
	const recur_source *s = a.source;
	jobs j = {s[MX_RECUR_Q].heads, a.k ? s[MX_RECUR_K].heads : 0, 0, 0, 0};
	j.v = a.v_times_rest || !a.v ? 0 : s[MX_RECUR_V].heads * pieces(a.vpad);
	j.a = a.channel  ? s[MX_RECUR_A].heads * pieces(a.vpad)
	      : a.vector ? s[MX_RECUR_A].heads
	                 : (s[MX_RECUR_A].heads + 31) / 32;
	j.b = (s[MX_RECUR_BETA].heads + 31) / 32;
	return j;
}

/* A stream's head as a lane sees it, and the inputs of the last rows. */
template <typename X> struct window {
	const X *from; /* element of this lane in row 0 of the product */
	size_t ld;
	float4 w[TAPS], seen[TAPS], bias;
};

/* Takes the place of a lane's elements, their taps and biases. */
template <typename X>
__device__ __forceinline__ void open(const recur_rows &a, const recur_source &s, uint32_t head,
                                     uint32_t i, window<X> *out)
{
	const uint32_t n = head * s.dim + i, taps = s.conv ? a.conv.taps : 0;
	out->from = (const X *)(s.gates ? a.gates : a.proj) + s.off + head / s.per * s.stride +
	            head % s.per * s.dim + i;
	out->ld = s.gates ? a.ld_gates : a.ld_proj;
	out->bias = make_float4(0, 0, 0, 0);
	const float *bias = s.conv ? s.conv_bias : s.bias;
	if (bias)
		each4(out->bias, [&](float &x, int e) { x = bias[n + e]; });
#pragma unroll
	for (uint32_t t = 0; t < TAPS; t++)
		if (t < taps)
			each4(out->w[t], [&](float &x, int e) { x = s.w[(size_t)(n + e) * taps + t]; });
}

/* Brings the inputs of the tokens before token t of a span. */
template <typename T>
__device__ __forceinline__ void fill(const recur_rows &a, const recur_source &s, uint32_t n,
                                     const mx_device_span &span, uint32_t t,
                                     const unsigned char *slot, window<T> &w)
{
	const T *ring = (const T *)(slot + a.conv.at) + s.channel + n;
	const uint32_t pos = position_of(a.step, span, t);
#pragma unroll
	for (uint32_t i = 0; i + 1 < TAPS; i++) {
		const uint32_t back = a.conv.taps - 1 - i;
		if (i + 1 >= a.conv.taps)
			break;
		const uint32_t token = token_before(a.step, span, t, back);
		w.seen[i] = make_float4(0, 0, 0, 0);
		if (token != UINT32_MAX)
			w.seen[i] = load4(w.from + (size_t)(span.row + token) * w.ld);
		else if (pos >= back)
			w.seen[i] = load4(ring + (size_t)((pos - back) % a.conv.cap) * a.conv.channels);
	}
}

/* Returns the lane's elements of a row; the window moves on. */
template <typename T, typename X>
__device__ __forceinline__ float4 take(const recur_rows &a, const recur_source &s, float4 in,
                                       window<X> &w)
{
	float4 x = w.bias;
	if (s.conv) {
#pragma unroll
		for (uint32_t t = 0; t < TAPS; t++) {
			if (t >= a.conv.taps)
				break;
			const float4 v = t + 1 == a.conv.taps ? in : w.seen[t];
			x.x = __fmaf_rn(w.w[t].x, v.x, x.x);
			x.y = __fmaf_rn(w.w[t].y, v.y, x.y);
			x.z = __fmaf_rn(w.w[t].z, v.z, x.z);
			x.w = __fmaf_rn(w.w[t].w, v.w, x.w);
		}
#pragma unroll
		for (uint32_t t = 0; t + 1 < TAPS; t++)
			if (t + 1 < a.conv.taps)
				w.seen[t] = t + 2 == a.conv.taps ? in : w.seen[t + 1];
	} else
		x = make_float4(x.x + in.x, x.y + in.y, x.z + in.z, x.w + in.w);
	if (s.silu)
		each4(x, [](float &e, int) { e = silu_of<T>(e); });
	return x;
}

/* Of a lane's four elements of a head of `dim` at a position: those of the lane that has the other
 * elements of the pairs are the same, so each computes two. */
struct angles {
	float4 c, s;
};

__device__ __forceinline__ angles angles_of(const recur_rows &a, uint32_t dim, uint32_t pos)
{
	const uint32_t lane = threadIdx.x & 31, half = dim / 8;
	const bool low = lane < half;
	const uint32_t from = low ? lane + half : lane - half, i = low ? lane * 4 : from * 4 + 2;
	float s[2] = {}, c[2] = {};
	if (lane < 2 * half)
#pragma unroll
		for (int e = 0; e < 2; e++)
			sincosf((float)pos * a.inv_freq[i + e], s + e, c + e);
	const float s0 = __shfl_sync(~0u, s[0], from), s1 = __shfl_sync(~0u, s[1], from);
	const float c0 = __shfl_sync(~0u, c[0], from), c1 = __shfl_sync(~0u, c[1], from);
	return low ? angles{make_float4(c[0], c[1], c0, c1), make_float4(s[0], s[1], s0, s1)}
	           : angles{make_float4(c0, c1, c[0], c[1]), make_float4(s0, s1, s[0], s[1])};
}

/* Turns the pairs (i, i + dim / 2) of a head; a whole warp calls it. */
__device__ __forceinline__ float4 turn(float4 x, uint32_t dim, const angles &w)
{
	const uint32_t lane = threadIdx.x & 31, half = dim / 8;
	const bool low = lane < half;
	const uint32_t from = low ? lane + half : lane - half;
	const float4 o = make_float4(__shfl_sync(~0u, x.x, from), __shfl_sync(~0u, x.y, from),
	                             __shfl_sync(~0u, x.z, from), __shfl_sync(~0u, x.w, from));
	const float sign = low ? -1 : 1;
	if (lane >= 2 * half) /* beyond the head */
		return make_float4(0, 0, 0, 0);
	return make_float4(__fmaf_rn(x.x, w.c.x, __fmul_rn(o.x, sign * w.s.x)),
	                   __fmaf_rn(x.y, w.c.y, __fmul_rn(o.y, sign * w.s.y)),
	                   __fmaf_rn(x.z, w.c.z, __fmul_rn(o.z, sign * w.s.z)),
	                   __fmaf_rn(x.w, w.c.w, __fmul_rn(o.w, sign * w.s.w)));
}

/* Writes what a stream's elements of a row become. */
template <typename T>
__device__ __forceinline__ void finish(const recur_rows &a, const job &j, uint32_t row,
                                       uint32_t pos, float4 (&x)[PARTS],
                                       const float4 (&other)[PARTS])
{
	const recur_source &s = a.source[j.stream];
	const bool key = j.stream <= MX_RECUR_K;
	const uint32_t pad = key || (j.stream == MX_RECUR_A && !a.channel) ? a.kpad : a.vpad;
	const size_t base = ((size_t)row * s.heads + j.head) * pad + j.first;
	float scale = 1;
	if (key) {
#pragma unroll
		for (int half = 0; half < PARTS; half++)
			each4(x[half], [&](float &e, int) { e = feature(a.feature, e); });
			/* elements beyond the head are not part of it */
#pragma unroll
		for (int half = 0; half < PARTS; half++)
			if (half * 128 + (threadIdx.x & 31) * 4 >= s.dim)
				x[half] = make_float4(0, 0, 0, 0);
		if (a.inv_freq)
			x[0] = turn(x[0], s.dim, angles_of(a, s.dim, pos));
		scale = a.scale[j.stream];
		if (a.norm[j.stream] != MX_RECUR_QK_NONE)
			scale *= norm_factor(a.norm[j.stream], warp_sum(norm_part(a.norm[j.stream], x[0])));
	}
#pragma unroll
	for (int half = 0; half < PARTS; half++) {
		const uint32_t i = half * 128 + (threadIdx.x & 31) * 4, e = j.first + i;
		if (e >= pad)
			continue;
		const bool there = e < s.dim;
		float4 v = x[half];
		if (j.stream == MX_RECUR_A) {
			each4(v,
			      [&](float &f, int n) { f = there ? factor(a, j.head * s.dim + e + n, f) : 1; });
			store4(a.a + base + i, v);
			float4 rest = make_float4(1 - v.x, 1 - v.y, 1 - v.z, 1 - v.w), o = other[half];
			if (a.k_is_rest)
				store4((T *)a.k + base + i, rest);
			else if (a.v_times_rest)
				store4((T *)a.v + base + i,
				       make_float4(rest.x * o.x, rest.y * o.y, rest.z * o.z, rest.w * o.w));
			continue;
		}
		if (key)
			each4(v, [&](float &f, int) { f *= scale; });
		if (!there)
			each4(v, [&](float &f, int n) { f = a.one && !key && e + n == s.dim ? 1 : 0; });
		store4((T *)(j.stream == MX_RECUR_Q   ? a.q
		             : j.stream == MX_RECUR_K ? a.k
		                                      : a.v) +
		           base + i,
		       v);
	}
}

/* Rows `first` .. of a head. X: the type of its product. */
template <typename T, typename X, bool PAIR>
__device__ void run_head(const recur_rows &a, const job &j, uint32_t first, uint32_t rows)
{
	const recur_source &s = a.source[j.stream], &sv = a.source[MX_RECUR_V];
	const uint32_t lane = threadIdx.x & 31;
	const bool pair = PAIR && j.stream == MX_RECUR_A && a.v_times_rest;
	window<X> w[PARTS];
	window<T> v[PARTS];
#pragma unroll
	for (int half = 0; half < PARTS; half++) {
		const uint32_t i = j.first + half * 128 + lane * 4;
		if (i < s.dim)
			open(a, s, j.head, i, &w[half]);
		if (i < s.dim && pair)
			open(a, sv, j.head, i, &v[half]);
	}
	const uint32_t end = first + rows < a.step.n_rows ? first + rows : a.step.n_rows;
	float4 in[PARTS] = {}, in_v[PARTS] = {};
	const auto fetch = [&](uint32_t row) {
#pragma unroll
		for (int half = 0; half < PARTS; half++) {
			const uint32_t i = j.first + half * 128 + lane * 4;
			if (row >= end || i >= s.dim)
				continue;
			in[half] = load4(w[half].from + (size_t)row * w[half].ld);
			if (pair)
				in_v[half] = load4(v[half].from + (size_t)row * v[half].ld);
		}
	};
	mx_device_span span = {};
	fetch(first);
	for (uint32_t row = first; row < end; row++) {
		float4 x[PARTS] = {}, other[PARTS] = {};
		const bool enters = row == first || row - span.row >= span.n || is_tree(a.step, span);
		if (enters)
			span = a.step.spans[a.step.row_span[row]];
		const uint32_t t = row - span.row;
		const unsigned char *slot = a.step.slot_base + span.slot * a.step.slot_stride;
		float4 now[PARTS], now_v[PARTS];
#pragma unroll
		for (int half = 0; half < PARTS; half++)
			now[half] = in[half], now_v[half] = in_v[half];
		fetch(row + 1);
		if (t >= span.n)
			continue; /* pads a recorded step */
#pragma unroll
		for (int half = 0; half < PARTS; half++) {
			const uint32_t i = j.first + half * 128 + lane * 4;
			if (i >= s.dim)
				continue;
			if constexpr (sizeof(X) == sizeof(T))
				if (s.conv && enters)
					fill<T>(a, s, j.head * s.dim + i, span, t, slot, w[half]);
			if (pair && sv.conv && enters)
				fill<T>(a, sv, j.head * s.dim + i, span, t, slot, v[half]);
			x[half] = take<T>(a, s, now[half], w[half]);
			if (pair)
				other[half] = take<T>(a, sv, now_v[half], v[half]);
		}
		finish<T>(a, j, row, position_of(a.step, span, t), x, other);
	}
}

/* Finds a warp's head of q, k or v; false if it is beyond them. */
__device__ __forceinline__ bool find_head(const recur_rows &a, const jobs &all, uint32_t n,
                                          job *out)
{
	const uint32_t each = pieces(a.vpad);
	*out = {MX_RECUR_Q, n, 0};
	if (n < all.q)
		return true;
	n -= all.q;
	*out = {MX_RECUR_K, n, 0};
	if (n < all.k)
		return true;
	n -= all.k;
	*out = {MX_RECUR_V, n / each, n % each * WIDE};
	return n < all.v;
}

/* `skip`: heads of q, k and v that are left to `many`. */
template <typename T, bool PAIR>
__global__ void __launch_bounds__(WARPS * 32, PAIR ? 3 : 5)
	heads(const recur_rows a, const uint32_t rows, const uint32_t skip)
{
	uint32_t n = skip + blockIdx.x * WARPS + (threadIdx.x >> 5);
	const uint32_t first = blockIdx.y * rows, each = pieces(a.vpad);
	const jobs all = jobs_of(a);
	job j;
	mx_pdl_launch();
	mx_pdl_wait();
	if (find_head(a, all, n, &j))
		return run_head<T, T, PAIR>(a, j, first, rows);
	n -= all.q + all.k + all.v;
	if (n < all.a && !a.vector && !a.channel)
		return run_numbers(a, MX_RECUR_A, n * 32, first, rows);
	const uint32_t parts = a.channel ? each : 1;
	j.stream = MX_RECUR_A, j.head = n / parts, j.first = n % parts * WIDE;
	if (n < all.a && a.source[MX_RECUR_A].gates)
		return run_head<T, float, PAIR>(a, j, first, rows);
	if (n < all.a)
		return run_head<T, T, PAIR>(a, j, first, rows);
	n -= all.a;
	if (n < all.b)
		run_numbers(a, MX_RECUR_BETA, n * 32, first, rows);
}

template <typename T, bool PAIR> cudaError_t launch(cudaStream_t stream, const recur_rows &a)
{
	const jobs j = jobs_of(a);
	const uint32_t n = a.step.n_rows, numbers = a.vector || a.channel ? 0 : j.a + j.b;
	/* enough warps for the GPU before a warp takes more rows */
	const uint32_t rows = n >= 4096 ? 16 : n >= 1024 ? 8 : n >= 256 ? 2 : 1;
	uint32_t skip = 0, all = j.q + j.k + j.v + j.a + j.b;
	if (sizeof(T) == 2 && !PAIR && recur_heads_many_can(a)) {
		const cudaError_t e = recur_heads_many(stream, a);
		skip = j.q + j.k + j.v + numbers;
		if (e != cudaSuccess || skip == all)
			return e;
		all -= skip;
	}
	if (!all)
		return cudaSuccess;
	return mx_launch(heads<T, PAIR>, dim3((all + WARPS - 1) / WARPS, (n + rows - 1) / rows),
	                 dim3(WARPS * 32), 0, stream, a, rows, skip);
}

} // namespace

bool recur_cuda_heads_can(const struct recur_rows *a)
{
	const bool map = a->feature <= MX_RECUR_FEATURE_ELU;
	if (!map || a->conv.taps > TAPS || a->kpad > WIDE || a->ld_proj % 4 || a->ld_gates % 4)
		return false;
	for (int s = 0; s <= MX_RECUR_BETA; s++) {
		const struct recur_source *from = &a->source[s];
		const bool number = from->dim == 1 && from->gates;
		if (from->heads && !number &&
		    (from->dim % 4 || from->off % 4 || from->stride % 4 || from->channel % 4))
			return false;
		if (from->heads && s <= MX_RECUR_K && (from->dim > WIDE || (a->inv_freq && from->dim % 8)))
			return false;
	}
	return a->conv.channels % 4 == 0 && a->vpad % 4 == 0;
}

cudaError_t recur_cuda_heads(cudaStream_t stream, enum mx_dtype act, const struct recur_rows *a)
{
	if (a->v_times_rest)
		return act == MX_F32 ? launch<float, true>(stream, *a)
		                     : launch<__nv_bfloat16, true>(stream, *a);
	return act == MX_F32 ? launch<float, false>(stream, *a)
	                     : launch<__nv_bfloat16, false>(stream, *a);
}
