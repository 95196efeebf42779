/* SPDX-License-Identifier: Apache-2.0 */
/* A step of one token (step.cu): the row's own k, q, v, factors and beta, from the products. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_OWN_CUH
#define MX_MIXERS_RECURRENCE_CUDA_OWN_CUH

#include "mixers/recurrence/cuda/one.cuh"

namespace
{

template <int KT, bool VECTOR>
__device__ __forceinline__ void share_key(const one_args &a, const place &w, board<KT, VECTOR> &s,
                                          uint32_t i, uint2 k)
{
	*(uint2 *)(s.k + w.r * s.ld + i) = k;
	*(uint2 *)((T *)(w.unit + a.unit.k) + w.entry * s.kpad + i) = k;
}

/* ---- elements that another kernel computed ---- */

template <int KT, bool VECTOR>
__device__ __forceinline__ void load_own(const one_args &p, const recur_core &a, const place &w,
                                         board<KT, VECTOR> &s)
{
	const size_t row = w.row;
	const T *k = (const T *)a.k + (row * a.k_heads + shared_head(w.head, a.per_k)) * a.kpad;
	const T *q = (const T *)a.q + (row * a.q_heads + shared_head(w.head, a.per_q)) * a.kpad;
	const T *v = (const T *)a.v + (row * a.v_heads + shared_head(w.head, a.per_v)) * a.vpad;
	for (uint32_t i = threadIdx.x * 4; i < a.kpad; i += blockDim.x * 4) {
		share_key(p, w, s, i, *(const uint2 *)(k + i));
		*(uint2 *)(s.q + i) = *(const uint2 *)(q + i);
	}
	for (uint32_t i = threadIdx.x * 4; i < a.unit.cols; i += blockDim.x * 4)
		*(uint2 *)(s.v + i) = *(const uint2 *)(v + w.col + i);
	if (VECTOR) {
		const float *from = a.a + (row * a.a_heads + shared_head(w.head, a.per_a)) * a.kpad;
		float *ring = (float *)(w.unit + a.unit.a) + w.entry * a.kpad;
		for (uint32_t i = threadIdx.x; i < a.kpad; i += blockDim.x)
			ring[i] = s.av[w.r * a.kpad + i] = from[i];
	}
}

/* ---- elements of a stream, by a warp as heads.cu does; a lane has 4 neighbours ---- */

struct lane_part {
	uint32_t n;        /* the first element's number in the stream */
	bool there, keeps; /* keeps: puts the convolution's input into the slot */
	float4 w[4], bias; /* taps of each element, the last one for the token itself */
	uint2 seen[TAPS - 1];
};

/* Brings near what the elements are made of. */
__device__ __forceinline__ void part_near(const one_args &a, uint32_t job, const place &w)
{
	const one_stream &s = a.streams[job];
	const uint32_t lane = threadIdx.x & 31, taps = a.conv.taps;
	const uint32_t head = shared_head(w.head, s.shared), h = shared_head(head, s.per);
	const uint32_t i = (job == ONE_V ? w.col : 0) + lane * 4;
	if (i >= s.dim)
		return;
	const uint32_t at = s.at + h * s.stride + (head - h * s.n) * s.dim + i, n = head * s.dim + i;
	if (s.gates)
		line_near(a.gates + (size_t)w.row * a.ld_gates + at);
	else
		line_near(a.proj + (size_t)w.row * a.ld_proj + at);
	if (!s.conv)
		return;
	line_near(s.w + (size_t)n * taps);
	const T *ring = (const T *)(a.slots + w.slot * a.slot_stride + a.conv.at) + s.channel + n;
	const uint32_t here = w.pos % a.conv.cap;
#pragma unroll
	for (uint32_t back = 1; back < TAPS; back++)
		if (back < taps && back <= w.pos)
			line_near(ring + (size_t)(here >= back ? here - back : here + a.conv.cap - back) *
			                     a.conv.channels);
}

/* Begins to copy to shared memory what a lane's elements are made of: what is from earlier steps,
 * or (`now`) the products. Each lane takes what it began to copy, once it has waited for it. */
__device__ __forceinline__ void part_begin(const one_args &a, uint32_t job, const place &w,
                                           part_stage &to, bool now)
{
	const one_stream &s = a.streams[job];
	const uint32_t lane = threadIdx.x & 31, taps = s.conv ? a.conv.taps : 0;
	const uint32_t head = shared_head(w.head, s.shared), h = shared_head(head, s.per);
	const uint32_t i = (job == ONE_V ? w.col : 0) + lane * 4;
	const uint32_t n = head * s.dim + i;
	const bool there = i < s.dim;
	if (now) {
		const uint32_t at = s.at + h * s.stride + (head - h * s.n) * s.dim + i;
		if (s.gates)
			copy_if<16>(there, to.read + lane, a.gates + (size_t)w.row * a.ld_gates + at);
		else
			copy_if<8>(there, to.read + lane, a.proj + (size_t)w.row * a.ld_proj + at);
		return;
	}
	const T *ring = (const T *)(a.slots + w.slot * a.slot_stride + a.conv.at) + s.channel + n;
	const uint32_t here = taps ? w.pos % a.conv.cap : 0;
#pragma unroll
	for (uint32_t back = 1; back < TAPS; back++) {
		const uint32_t entry = here >= back ? here - back : here + a.conv.cap - back;
		copy_if<8>(there && back < taps && w.pos >= back, to.seen[TAPS - 1 - back] + lane,
		           ring + (size_t)entry * a.conv.channels);
	}
	copy_if<16>(there && s.bias, to.bias + lane, s.bias + n);
#pragma unroll
	for (int e = 0; e < TAPS; e++)
		copy_if<16>(there && taps == TAPS, to.w[e] + lane, s.w + (size_t)(n + e) * TAPS);
}

/* Returns the products: 4 elements of bf16 or f32. */
__device__ __forceinline__ uint4 part_take(const one_args &a, uint32_t job, const place &w,
                                           const part_stage &from, lane_part &l)
{
	const one_stream &s = a.streams[job];
	const uint32_t lane = threadIdx.x & 31, taps = s.conv ? a.conv.taps : 0;
	const uint32_t head = shared_head(w.head, s.shared), i = (job == ONE_V ? w.col : 0) + lane * 4;
	l.n = head * s.dim + i;
	l.there = i < s.dim;
	l.keeps = s.conv && l.there && (job == ONE_V || !w.col) &&
	          (!w.head || shared_head(w.head - 1, s.shared) != head);
#pragma unroll
	for (uint32_t n = 0; n < TAPS - 1; n++)
		l.seen[n] = from.seen[n][lane];
	l.bias = *(const float4 *)&from.bias[lane];
#pragma unroll
	for (int e = 0; e < TAPS; e++)
		l.w[e] = *(const float4 *)&from.w[e][lane];
	if (taps && taps < TAPS && l.there)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float *end = s.w + (size_t)(l.n + e + 1) * taps;
			l.w[e] = make_float4(0, taps > 2 ? end[-3] : 0, taps > 1 ? end[-2] : 0, end[-1]);
		}
	return from.read[lane];
}

/* Returns the elements after convolution and activation. */
__device__ __forceinline__ float4 part_elements(const one_args &a, uint32_t job, const place &w,
                                                const lane_part &l, uint4 read)
{
	const one_stream &s = a.streams[job];
	float4 x = l.bias;
	if (!l.there)
		return x;
	if (s.gates) {
		const float4 in = *(const float4 *)&read;
		x = make_float4(x.x + in.x, x.y + in.y, x.z + in.z, x.w + in.w);
	} else {
		const uint2 raw = make_uint2(read.x, read.y);
		const float4 in = widen4(raw);
		if (s.conv) {
			const uint32_t taps = a.conv.taps;
			const float4 i0 = widen4(l.seen[0]), i1 = widen4(l.seen[1]), i2 = widen4(l.seen[2]);
			each4(x, [&](float &e, int i) {
				const float *in0 = &i0.x, *in1 = &i1.x, *in2 = &i2.x, *now = &in.x;
				e = taps > 3 ? __fmaf_rn(l.w[i].x, in0[i], e) : e;
				e = taps > 2 ? __fmaf_rn(l.w[i].y, in1[i], e) : e;
				e = taps > 1 ? __fmaf_rn(l.w[i].z, in2[i], e) : e;
				e = __fmaf_rn(l.w[i].w, now[i], e);
			});
			if (l.keeps)
				*(uint2 *)((T *)(a.slots + w.slot * a.slot_stride + a.conv.at) +
				           (size_t)(w.pos % a.conv.cap) * a.conv.channels + s.channel + l.n) = raw;
		} else
			x = make_float4(x.x + in.x, x.y + in.y, x.z + in.z, x.w + in.w);
	}
	if (s.silu)
		each4(x, [](float &e, int) { e = silu_of<T>(e); });
	return x;
}

/* Computes a stream's part for this unit, and puts what stays in the rings. */
template <int KT, bool VECTOR>
__device__ __forceinline__ void close_part(const one_args &a, uint32_t job, const place &w,
                                           board<KT, VECTOR> &s, const lane_part &l, uint4 read)
{
	constexpr uint32_t kpad = KT * 16;
	const uint32_t i = (threadIdx.x & 31) * 4;
	float4 x[1] = {part_elements(a, job, w, l, read)};
	if (job == ONE_V) {
		if (!l.there)
			each4(x[0], [&](float &f, int n) {
				f = a.ones && w.col + i + n == a.streams[ONE_V].dim ? 1 : 0;
			});
		if (i < a.unit.cols)
			*(uint2 *)(s.v + i) = round4(x[0]);
		return;
	}
	if (VECTOR && job == ONE_A) {
		each4(x[0], [&](float &f, int n) { f = l.there ? factor(a, terms_of(a, l.n + n), f) : 1; });
		if (i >= kpad)
			return;
		store4(s.av + w.r * kpad + i, x[0]);
		store4((float *)(w.unit + a.unit.a) + w.entry * kpad + i, x[0]);
		if (a.k_is_rest)
			share_key(a, w, s, i,
			          round4(make_float4(1 - x[0].x, 1 - x[0].y, 1 - x[0].z, 1 - x[0].w)));
		return;
	}
	each4(x[0], [&](float &e, int) { e = feature(a.feature, e); });
	if (!l.there)
		x[0] = make_float4(0, 0, 0, 0);
	float scale = a.scale_of[job];
	if (a.norm_of[job] != MX_RECUR_QK_NONE)
		scale *= norm_of(a.norm_of[job], x);
	each4(x[0], [&](float &f, int) { f *= scale; });
	if (i >= kpad)
		return;
	if (job == ONE_K)
		share_key(a, w, s, i, round4(x[0]));
	else
		*(uint2 *)(s.q + i) = round4(x[0]);
}

/* ---- factor and beta of the row itself ---- */

/* Where a stream has the number of a head. */
__device__ __forceinline__ uint32_t number_at(const one_stream &s, uint32_t n)
{
	const uint32_t h = shared_head(n, s.per);
	return s.at + h * s.stride + (n - h * s.n);
}

/* Brings near what factor, beta and gate are made of: one of it for each lane. */
template <bool VECTOR>
__device__ __forceinline__ void numbers_near(const one_args &a, const place &w)
{
	const uint32_t lane = threadIdx.x & 31;
	const one_stream &sa = a.streams[ONE_A], &sb = a.streams[ONE_BETA];
	const uint32_t n = a.decay == MX_RECUR_A_STEP ? w.head : shared_head(w.head, sa.shared);
	const float *row = a.gates + (size_t)w.row * a.ld_gates;
	const bool rings = a.decays && !VECTOR && !a.fixed_a;
	const void *p = NULL;
	switch (lane) {
	case 0: p = rings && sa.bias ? sa.bias + n : NULL; break;
	case 1: p = rings && a.mul ? a.mul + n : NULL; break;
	case 2: p = rings && a.add ? a.add + n : NULL; break;
	case 3: p = sb.bias ? sb.bias + w.head : NULL; break;
	case 4: p = rings ? (const float *)(w.unit + a.unit.a) + w.first : NULL; break;
	case 5: p = a.gain ? (const float *)(w.unit + a.unit.b) + w.first : NULL; break;
	case 6: p = a.has_beta ? row + number_at(sb, w.head) : NULL; break;
	case 7: p = rings && sa.there ? row + number_at(sa, n) : NULL; break;
	case 8:
	case 9:
		p = a.proj + (size_t)w.row * a.ld_proj + a.streams[ONE_GATE].at + w.head * a.norm.dim +
		    (lane - 8) * 64;
		if (!a.finish || !a.streams[ONE_GATE].there || (lane - 8) * 64 >= a.norm.dim)
			p = NULL;
		break;
	default: break;
	}
	if (p)
		line_near(p);
}

struct own_terms {
	float2 z, bias; /* of beta, of the factor */
	factor_terms terms;
	float fixed;
};

/* Reads all that factor and beta of row `at` are made of. */
template <bool VECTOR>
__device__ __forceinline__ void open_numbers(const one_args &a, const place &w, uint32_t at,
                                             own_terms &o)
{
	const one_stream &sa = a.streams[ONE_A], &sb = a.streams[ONE_BETA];
	const bool step = a.decay == MX_RECUR_A_STEP, mapped = a.decays && !VECTOR && !a.fixed_a;
	const float *row = a.gates + (size_t)at * a.ld_gates;
	const uint32_t na = shared_head(w.head, sa.shared), n = step ? w.head : na;
	o.z.x = load_if(a.has_beta, row + number_at(sb, w.head), 0);
	o.z.y = load_if(mapped && !step, row + number_at(sa, na), 0);
	o.bias.x = load_if(a.has_beta && sb.bias, sb.bias + w.head, 0);
	o.bias.y = load_if(mapped && !step && sa.bias, sa.bias + na, 0);
	o.terms.pre = load_if(mapped && a.pre, a.pre + n, 1);
	o.terms.mul = load_if(mapped && a.mul, a.mul + n, 1);
	o.terms.add = load_if(mapped && a.add, a.add + n, 0);
	o.fixed = load_if(a.decays && !VECTOR && a.fixed_a, a.fixed_a + w.head, 1);
}

/* open_numbers by way of shared memory, as part_begin: w is the lane's head. */
template <bool VECTOR>
__device__ __forceinline__ void numbers_begin(const one_args &a, const place &w, number_stage &to,
                                              bool now)
{
	const one_stream &sa = a.streams[ONE_A], &sb = a.streams[ONE_BETA];
	const uint32_t lane = threadIdx.x & 31;
	const bool step = a.decay == MX_RECUR_A_STEP, mapped = a.decays && !VECTOR && !a.fixed_a;
	const uint32_t na = shared_head(w.head, sa.shared), n = step ? w.head : na;
	if (now) {
		const float *row = a.gates + (size_t)w.row * a.ld_gates;
		copy_if<4>(a.has_beta, to.n[0] + lane, row + number_at(sb, w.head));
		copy_if<4>(mapped && !step, to.n[1] + lane, row + number_at(sa, na));
		return;
	}
	copy_if<4>(a.has_beta && sb.bias, to.n[2] + lane, sb.bias + w.head);
	copy_if<4>(mapped && !step && sa.bias, to.n[3] + lane, sa.bias + na);
	copy_if<4>(mapped && a.pre, to.n[4] + lane, a.pre + n);
	copy_if<4>(mapped && a.mul, to.n[5] + lane, a.mul + n);
	copy_if<4>(mapped && a.add, to.n[6] + lane, a.add + n);
	copy_if<4>(a.decays && !VECTOR && a.fixed_a, to.n[7] + lane, a.fixed_a + w.head);
}

template <bool VECTOR>
__device__ __forceinline__ void numbers_take(const one_args &a, const number_stage &from,
                                             own_terms &o)
{
	const uint32_t lane = threadIdx.x & 31;
	const bool mapped = a.decays && !VECTOR && !a.fixed_a;
	o.z = make_float2(from.n[0][lane], from.n[1][lane]);
	o.bias = make_float2(from.n[2][lane], from.n[3][lane]);
	o.terms.pre = mapped && a.pre ? from.n[4][lane] : 1;
	o.terms.mul = mapped && a.mul ? from.n[5][lane] : 1;
	o.terms.add = from.n[6][lane];
	o.fixed = a.decays && !VECTOR && a.fixed_a ? from.n[7][lane] : 1;
}

/* Factor and gain of the lane's earlier token, lane `j` of n, likewise. */
template <bool VECTOR>
__device__ __forceinline__ void old_begin(const one_args &a, const place &w, uint32_t j,
                                          number_stage &to)
{
	const uint32_t lane = threadIdx.x & 31;
	copy_if<4>(j < w.r && a.decays && !VECTOR, to.n[8] + lane,
	           a.fixed_a ? a.fixed_a + w.head : (const float *)(w.unit + a.unit.a) + w.first + j);
	copy_if<4>(j < w.r && a.gain, to.n[9] + lane, (const float *)(w.unit + a.unit.b) + w.first + j);
}

template <bool VECTOR>
__device__ __forceinline__ void old_take(const one_args &a, const place &w, uint32_t j,
                                         const number_stage &from, float *f, float *b)
{
	const uint32_t lane = threadIdx.x & 31;
	*f = j < w.r && a.decays && !VECTOR ? from.n[8][lane] : 1;
	*b = from.n[9][lane];
}

/* Factor and beta from what was read. By a warp; all lanes have them. */
template <bool VECTOR>
__device__ __forceinline__ void close_numbers(const one_args &a, const own_terms &o, float *f,
                                              float *b)
{
	*b = a.has_beta ? beta_of(a, o.z.x + o.bias.x) : a.fixed_b;
	*f = o.fixed;
	if (!VECTOR && a.decays && !a.fixed_a)
		*f = a.decay == MX_RECUR_A_STEP ? expf(*b * o.terms.mul)
		                                : factor(a, o.terms, o.z.y + o.bias.y);
}

template <bool VECTOR>
__device__ __forceinline__ void load_numbers(const recur_core &a, const place &w, uint32_t at,
                                             float *f, float *b)
{
	*f = 1;
	if (a.decays && !VECTOR)
		*f = a.fixed_a ? a.fixed_a[w.head]
		               : a.a[(size_t)at * a.a_heads + shared_head(w.head, a.per_a)];
	*b = a.b ? a.b[(size_t)at * a.heads + w.head] : a.fixed_b;
}

template <bool VECTOR>
__device__ __forceinline__ void keep_numbers(const one_args &a, const place &w, float f, float b)
{
	if (threadIdx.x & 31)
		return;
	if (a.decays && !VECTOR && !a.fixed_a)
		((float *)(w.unit + a.unit.a))[w.entry] = f;
	if (a.gain)
		((float *)(w.unit + a.unit.b))[w.entry] = b;
}

} // namespace

#endif
