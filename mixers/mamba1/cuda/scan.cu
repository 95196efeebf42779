/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The selective scan, for each channel with states h[n]:
 *
 *     h[n] <- exp(dt A[n]) h[n] + (dt x) B[n]        y = (sum of C[n] h[n] + D x) silu(z)
 *
 * token by token, MAMBA1_LANES threads a channel, h in registers: a chain of one multiply-add a
 * token. The bound is the rate of exponentials, so there is nothing to gain from cutting a sequence
 * into segments, and outputs have equal bits wherever it is cut.
 *
 * h in the slot is as of the last token but one, and what the tokens since add is in rings. So a
 * draft undoes nothing, and a saved state can go on one token earlier.
 */
#include "device/cuda/launch.cuh"
#include "mixers/mamba1/cuda/mamba1_kernels.h"
#include "mixers/recurrence/cuda/math.cuh"

namespace
{

#define UNIT    MAMBA1_UNIT
#define LANES   MAMBA1_LANES
#define THREADS (UNIT * LANES)
#define OUT_LD  40 /* floats between tokens of outputs there: lanes write without conflicts */

/* dt and dt x of a token of a channel. */
struct step {
	float dt, dx;
};

__device__ __forceinline__ float power(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* log(1 + exp(x)): with e = exp(-|x|) and s = e / (2 + e), at most 1/3, log(1 + e) = 2 atanh(s), to
 * 3e-7 of its value. */
__device__ __forceinline__ float softplus_fast(float x)
{
	const float e = power(__fmul_rn(fabsf(x), -1.4426950408889634f));
	const float s = __fdividef(e, __fadd_rn(2, e)), q = __fmul_rn(s, s);
	float r = 1 / 13.0f;
	r = __fmaf_rn(r, q, 1 / 11.0f);
	r = __fmaf_rn(r, q, 1 / 9.0f);
	r = __fmaf_rn(r, q, 1 / 7.0f);
	r = __fmaf_rn(r, q, 1 / 5.0f);
	r = __fmaf_rn(r, q, 1 / 3.0f);
	r = __fmaf_rn(r, q, 1);
	return __fmaf_rn(__fadd_rn(s, s), r, fmaxf(x, 0));
}

__device__ __forceinline__ step make_step(float raw, float x)
{
	step s;
	s.dt = softplus_fast(raw);
	s.dx = __fmul_rn(s.dt, x);
	return s;
}

/* A lane's part of a token's B or C. */
template <int S> __device__ __forceinline__ void read_part(const float *from, float (&to)[S])
{
#pragma unroll
	for (int i = 0; i < S; i += 4)
		*(float4 *)&to[i] = *(const float4 *)(from + i * LANES);
}

/* What a token multiplies a lane's S states of a channel by, and adds to them. */
template <int S>
__device__ __forceinline__ void factors(const float (&a)[S], step s, const float (&b)[S],
                                        float (&e)[S], float (&u)[S])
{
#pragma unroll
	for (int i = 0; i < S; i++)
		e[i] = power(__fmul_rn(s.dt, a[i]));
#pragma unroll
	for (int i = 0; i < S; i++)
		u[i] = __fmul_rn(s.dx, b[i]);
}

template <int S>
__device__ __forceinline__ void apply(float (&h)[S], const float (&e)[S], const float (&u)[S])
{
#pragma unroll
	for (int i = 0; i < S; i++)
		h[i] = __fmaf_rn(e[i], h[i], u[i]);
}

/* A lane's S states of a channel go on by a token. */
template <int S>
__device__ __forceinline__ void advance(float (&h)[S], const float (&a)[S], step s,
                                        const float (&b)[S])
{
	float e[S], u[S];
	factors(a, s, b, e, u);
	apply(h, e, u);
}

/* The lane's part of C h. */
template <int S> __device__ __forceinline__ float output(const float (&h)[S], const float (&c)[S])
{
	float y = 0;
#pragma unroll
	for (int i = 0; i < S; i++)
		y = __fmaf_rn(c[i], h[i], y);
	return y;
}

/* Sums four values over the lanes of a channel; lane l returns the sum of y[l]. */
__device__ __forceinline__ float sum_lanes(const float (&y)[LANES])
{
	const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
	const float a = high ? y[2] : y[0], b = high ? y[3] : y[1];
	const float a2 = __shfl_xor_sync(~0u, high ? y[0] : y[2], 2);
	const float b2 = __shfl_xor_sync(~0u, high ? y[1] : y[3], 2);
	const float u = __fadd_rn(a, a2), v = __fadd_rn(b, b2);
	return __fadd_rn(odd ? v : u, __shfl_xor_sync(~0u, odd ? u : v, 1));
}

template <typename T> __device__ __forceinline__ T finish(float y, float skip, float x, float z)
{
	return mx_from_float<T>(__fmul_rn(__fmaf_rn(skip, x, y), silu_of<T>(z)));
}

/* Tokens that h of the slot includes after a span: all but the last; of a draft none, except those
 * before the last token before it. */
__device__ __forceinline__ uint32_t base_after(const mx_device_span &span, uint32_t base)
{
	const uint32_t end = span.kind == MX_SPAN_DRAFT ? span.pos : span.pos + span.n;
	return end > base + 1 ? end - 1 : base;
}

template <int S> __device__ __forceinline__ void load_states(const float *from, float (&to)[S])
{
#pragma unroll
	for (int i = 0; i < S / 4; i++)
		*(float4 *)&to[4 * i] = ((const float4 *)from)[i * THREADS + threadIdx.x];
}

template <int S> __device__ __forceinline__ void store_states(float *to, const float (&from)[S])
{
#pragma unroll
	for (int i = 0; i < S / 4; i++)
		((float4 *)to)[i * THREADS + threadIdx.x] = *(const float4 *)&from[4 * i];
}

/* Copies the last raw inputs of a span's convolution to their ring, channels first .. end - 1. */
template <typename T>
__device__ __forceinline__ void keep_inputs(const mamba1_args &a, const mx_device_span &span,
                                            uint32_t first, uint32_t end)
{
	const uint32_t keep = span.kind == MX_SPAN_DRAFT || span.n < a.taps ? span.n : a.taps;
	T *ring = (T *)(a.slot_base + span.slot * a.slot_stride + a.conv_at);
	end = end < a.channels ? end : a.channels;
	for (uint32_t c = first + threadIdx.x; c < end; c += THREADS)
		for (uint32_t t = span.n - keep; t < span.n; t++)
			ring[(size_t)((span.pos + t) % a.conv_cap) * a.channels + c] =
				((const T *)a.xz)[(size_t)(span.row + t) * 2 * a.channels + c];
}

/* ---- spans of several tokens, and drafts: a block has a unit ---- */

/* TILE: tokens that are brought to shared memory at once. EACH: those that a thread brings. */
template <int S> struct tiles {
	static constexpr uint32_t TILE = S == 4 ? 32 : 16;
	static constexpr int EACH = TILE / (THREADS / UNIT);
};

template <int S> struct shared {
	static constexpr uint32_t TILE = tiles<S>::TILE;
	float bc[2][TILE][2 * S * LANES];
	step steps[TILE][UNIT];
	float y[TILE * OUT_LD];
};

__device__ __forceinline__ void copy16(void *to, const void *from)
{
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

/* What a thread brings of a tile: tokens of its warp, warp + 4 .. of the channel of its lane. Not
 * converted: that would wait for them. */
template <typename T, int S> struct inputs {
	float dt[tiles<S>::EACH];
	T x[tiles<S>::EACH], z[tiles<S>::EACH];
};

template <typename T, int S> struct walker {
	static constexpr uint32_t TILE = tiles<S>::TILE;
	static constexpr int EACH = tiles<S>::EACH;
	const mamba1_args &a;
	const mx_device_span &span;
	unsigned char *unit;
	shared<S> &s;
	uint32_t channel; /* of the tile's rows that this thread brings */
	float skip;

	/* The number of tokens that this thread brings of a tile of n. */
	__device__ __forceinline__ int brings(uint32_t n) const
	{
		return channel < a.channels ? (int)(n + 3 - threadIdx.x / UNIT) / 4 : 0;
	}

	/* Begins to bring tokens from .. to - 1, at most a tile, of the span. */
	__device__ __forceinline__ void fetch(uint32_t from, uint32_t to, int buffer,
	                                      inputs<T, S> *in) const
	{
		const uint32_t n = to - from < TILE ? to - from : TILE;
		const size_t first = span.row + (from - span.pos), row = first + threadIdx.x / UNIT;
		constexpr uint32_t parts = 2 * S * LANES / 4;
		for (uint32_t i = threadIdx.x; i < n * parts; i += THREADS)
			copy16(&s.bc[buffer][0][0] + 4 * i, a.bc + first * (parts * 4) + 4 * i);
		asm volatile("cp.async.commit_group;" ::: "memory");
		const int mine = brings(n);
		const size_t stride = (size_t)a.channels * 4;
		const float *dt = a.dt + row * a.channels + channel;
		const T *x = (const T *)a.x + row * a.channels + channel;
		const T *z = (const T *)a.xz + (row * 2 + 1) * a.channels + channel;
#pragma unroll
		for (int i = 0; i < EACH; i++, dt += stride, x += stride, z += 2 * stride) {
			in->dt[i] = i < mine ? *dt : 0;
			in->x[i] = i < mine ? *x : T(0.0f);
			in->z[i] = i < mine ? *z : T(0.0f);
		}
	}

	/* Goes through n tokens of a tile from t on; FULL: n is LANES. */
	template <bool FULL>
	__device__ __forceinline__ void group(uint32_t t, uint32_t n, int buffer, float (&h)[S],
	                                      const float (&rate)[S]) const
	{
		const uint32_t c = threadIdx.x / LANES, lane = threadIdx.x % LANES;
		float y[LANES];
		if constexpr (FULL && S <= 8) { /* exponentials are on their way before they are needed */
			float e[LANES][S], u[LANES][S], v[S];
#pragma unroll
			for (uint32_t i = 0; i < LANES; i++) {
				read_part(s.bc[buffer][t + i] + 4 * lane, v);
				factors(rate, s.steps[t + i][c], v, e[i], u[i]);
			}
#pragma unroll
			for (uint32_t i = 0; i < LANES; i++) {
				read_part(s.bc[buffer][t + i] + 4 * lane + S * LANES, v);
				apply(h, e[i], u[i]);
				y[i] = output(h, v);
			}
		} else {
#pragma unroll
			for (uint32_t i = 0; i < LANES; i++) {
				float v[S];
				y[i] = 0;
				if (!FULL && i >= n)
					continue;
				const float *bc = s.bc[buffer][t + i] + 4 * lane;
				read_part(bc, v);
				advance(h, rate, s.steps[t + i][c], v);
				read_part(bc + S * LANES, v);
				y[i] = output(h, v);
			}
		}
		s.y[(t + lane) * OUT_LD + c] = sum_lanes(y);
	}

	/* Goes through tokens from .. to - 1 of the span; those from `keep` on go to the rings. */
	__device__ __forceinline__ void run(uint32_t from, uint32_t to, uint32_t keep, float (&h)[S],
	                                    const float (&rate)[S]) const
	{
		inputs<T, S> now, next;
		int buffer = 0;
		if (from >= to)
			return;
		fetch(from, to, 0, &next);
		for (; from < to; from += TILE, buffer ^= 1) {
			const uint32_t n = to - from < TILE ? to - from : TILE;
			now = next;
#pragma unroll
			for (int i = 0; i < EACH; i++)
				s.steps[threadIdx.x / UNIT + 4 * i][threadIdx.x % UNIT] =
					make_step(now.dt[i], mx_to_float(now.x[i]));
			asm volatile("cp.async.wait_all;" ::: "memory");
			__syncthreads();
			if (from + TILE < to)
				fetch(from + TILE, to, buffer ^ 1, &next);
			uint32_t t = 0;
			for (; t + LANES <= n; t += LANES)
				group<true>(t, LANES, buffer, h, rate);
			if (t < n)
				group<false>(t, n - t, buffer, h, rate);
			__syncthreads();
			if (from + n > keep)
				keep_tokens(from, n, keep, buffer);
			const int mine = brings(n);
			T *to = (T *)a.x +
			        (span.row + (from - span.pos) + threadIdx.x / UNIT) * (size_t)a.channels +
			        channel;
			T out[EACH];
#pragma unroll
			for (int i = 0; i < EACH; i++)
				out[i] = finish<T>(s.y[(threadIdx.x / UNIT + 4 * i) * OUT_LD + threadIdx.x % UNIT],
				                   skip, mx_to_float(now.x[i]), mx_to_float(now.z[i]));
#pragma unroll
			for (int i = 0; i < EACH; i++, to += (size_t)a.channels * 4)
				if (i < mine)
					*to = out[i];
			__syncthreads();
		}
	}

	/* Copies what the tile's tokens from `keep` on add to the rings. */
	__device__ __forceinline__ void keep_tokens(uint32_t from, uint32_t n, uint32_t keep,
	                                            int buffer) const
	{
		constexpr uint32_t padded = S * LANES;
		step *steps = (step *)(unit + a.unit.steps);
		float *b = (float *)(unit + a.unit.b);
		for (uint32_t t = keep > from ? keep - from : 0; t < n; t++) {
			const uint32_t at = (from + t) % a.unit.cap;
			if (threadIdx.x < UNIT)
				steps[at * UNIT + threadIdx.x] = s.steps[t][threadIdx.x];
			for (uint32_t i = threadIdx.x; i < padded; i += THREADS)
				b[at * padded + i] = s.bc[buffer][t][i];
		}
	}

	/* Goes through tokens from .. to - 1, before the span, from the rings. */
	__device__ __forceinline__ void replay(uint32_t from, uint32_t to, float (&h)[S],
	                                       const float (&rate)[S]) const
	{
		const step *steps = (const step *)(unit + a.unit.steps);
		const float *b = (const float *)(unit + a.unit.b);
		for (; from < to; from++) {
			const uint32_t at = from % a.unit.cap;
			float v[S];
			read_part(b + at * (S * LANES) + 4 * (threadIdx.x % LANES), v);
			advance(h, rate, steps[at * UNIT + threadIdx.x / LANES], v);
		}
	}
};

/* all: spans of one token that stays, too. */
template <typename T, int S>
__global__ void __launch_bounds__(THREADS) walk(const mamba1_args a, bool all)
{
	__shared__ __align__(16) shared<S> s;
	const mx_device_span span = a.spans[blockIdx.y];
	mx_pdl_launch();
	if (!span.n || (!all && span.n == 1 && span.kind != MX_SPAN_DRAFT)) {
		mx_pdl_wait();
		return;
	}
	unsigned char *unit =
		a.slot_base + span.slot * a.slot_stride + (size_t)blockIdx.x * a.unit.bytes;
	const uint32_t channel = blockIdx.x * UNIT + threadIdx.x % UNIT, end = span.pos + span.n;
	const walker<T, S> w = {a, span, unit, s, channel, channel < a.channels ? a.skip[channel] : 0};
	float h[S], rate[S];
	load_states(a.a + (size_t)blockIdx.x * UNIT * LANES * S, rate);
	load_states((const float *)(unit + 64), h);
	const uint32_t base = *(const volatile uint32_t *)unit, folded = base_after(span, base);
	const uint32_t past = folded < span.pos ? folded : span.pos;
	const uint32_t middle = folded > span.pos ? folded : span.pos;
	w.replay(base, past, h, rate);
	mx_pdl_wait();
	/* first the span's tokens that h in the slot includes, if there are any: of a prompt */
#pragma unroll 1
	for (int part = 0; part < 2; part++) {
		w.run(part ? middle : span.pos, part ? end : middle, part ? middle : end, h, rate);
		if (part)
			break;
		if (folded > base)
			store_states((float *)(unit + 64), h);
		w.replay(past, span.pos, h, rate);
		__syncthreads(); /* the rings have been read */
	}
	if (threadIdx.x == 0)
		*(uint32_t *)unit = folded;
	keep_inputs<T>(a, span, blockIdx.x * UNIT, (blockIdx.x + 1) * UNIT);
}

/* ---- spans of one token that stays: a block has MAMBA1_LANES units ---- */

/* A value of lane `from` of the thread's channel. */
__device__ __forceinline__ float of_lane(float x, int from)
{
	return __shfl_sync(~0u, x, from, LANES);
}

/* All units of the block go on by a token: lane l of a channel has the step of unit l. */
template <int S>
__device__ __forceinline__ void advance_units(float (&h)[LANES][S], const float (&rate)[LANES][S],
                                              step mine, const float (&b)[S])
{
#pragma unroll
	for (int u = 0; u < LANES; u++)
		advance(h[u], rate[u], {of_lane(mine.dt, u), of_lane(mine.dx, u)}, b);
}

/* Lane l of a channel brings and finishes that channel of unit l. What is read does not depend on
 * what has been read, so that all of it is on its way at once. */
template <typename T, int S>
__global__ void __launch_bounds__(THREADS, S == 4 ? 5 : 1) one(const mamba1_args a)
{
	const mx_device_span span = a.spans[blockIdx.y];
	const uint32_t c = threadIdx.x / LANES, lane = threadIdx.x % LANES, first = blockIdx.x * LANES;
	const uint32_t units = (a.channels + UNIT - 1) / UNIT, channel = (first + lane) * UNIT + c;
	constexpr uint32_t padded = S * LANES;
	mx_pdl_launch();
	if (span.n != 1 || span.kind == MX_SPAN_DRAFT) {
		mx_pdl_wait();
		return;
	}
	unsigned char *unit = a.slot_base + span.slot * a.slot_stride + first * a.unit.bytes;
	float h[LANES][S], rate[LANES][S], past_b[S], b[S], cc[S];
	const uint32_t pos = span.pos, at = pos % a.unit.cap;
#pragma unroll
	for (uint32_t u = 0; u < LANES; u++)
		if (first + u < units) {
			load_states((const float *)(unit + u * a.unit.bytes + 64), h[u]);
			load_states(a.a + (size_t)(first + u) * UNIT * padded, rate[u]);
		}
	/* all units of a slot have the same tokens in their rings: B is read from the first */
	const bool real = channel < a.channels;
	step *steps = (step *)(unit + (real ? lane : 0) * a.unit.bytes + a.unit.steps) + c;
	const float *ring_b = (const float *)(unit + a.unit.b) + 4 * lane;
	const uint32_t base = *(const volatile uint32_t *)unit;
	const uint32_t before = (pos ? pos - 1 : 0) % a.unit.cap;
	step past = steps[before * UNIT];
	read_part(ring_b + before * padded, past_b);
	const float skip = real ? a.skip[channel] : 0;
	mx_pdl_wait();
	const size_t row = span.row;
	float raw = 0;
	T x = T(0.0f), z = T(0.0f), in = T(0.0f);
	if (real) {
		raw = a.dt[row * a.channels + channel];
		x = ((const T *)a.x)[row * a.channels + channel];
		in = ((const T *)a.xz)[row * 2 * a.channels + channel];
		z = ((const T *)a.xz)[(row * 2 + 1) * a.channels + channel];
	}
	read_part(a.bc + row * 2 * padded + 4 * lane, b);
	read_part(a.bc + row * 2 * padded + padded + 4 * lane, cc);
	if (!real)
		past = {0, 0};
	for (uint32_t t = base; t + 1 < pos; t++) { /* tokens of a draft */
		float v[S];
		read_part(ring_b + t % a.unit.cap * padded, v);
		advance_units(h, rate, real ? steps[t % a.unit.cap * UNIT] : step{0, 0}, v);
	}
	if (base < pos) {
		advance_units(h, rate, past, past_b);
#pragma unroll
		for (uint32_t u = 0; u < LANES; u++)
			if (first + u < units)
				store_states((float *)(unit + u * a.unit.bytes + 64), h[u]);
	}
	const step mine = make_step(raw, mx_to_float(x));
	advance_units(h, rate, mine, b);
	float y[LANES];
#pragma unroll
	for (int u = 0; u < LANES; u++)
		y[u] = output(h[u], cc);
	const float sum = sum_lanes(y);
	__syncthreads(); /* the rings and the base have been read */
	if (real) {
		((T *)a.x)[row * a.channels + channel] =
			finish<T>(sum, skip, mx_to_float(x), mx_to_float(z));
		T *inputs = (T *)(a.slot_base + span.slot * a.slot_stride + a.conv_at);
		inputs[(size_t)(pos % a.conv_cap) * a.channels + channel] = in;
		steps[at * UNIT] = mine;
	}
	if (c < LANES && first + c < units) {
		float *to = (float *)(unit + c * a.unit.bytes + a.unit.b) + at * padded + 4 * lane;
#pragma unroll
		for (int i = 0; i < S; i += 4)
			*(float4 *)(to + i * LANES) = *(const float4 *)&b[i];
		if (lane == 0)
			*(uint32_t *)(unit + c * a.unit.bytes) = pos;
	}
}

template <typename T, int S>
cudaError_t launch(cudaStream_t stream, const mamba1_args &a, bool ones, bool more)
{
	const uint32_t units = (a.channels + UNIT - 1) / UNIT;
	constexpr bool all = S > 16; /* states of several units need more registers than there are */
	cudaError_t e = cudaSuccess;
	if constexpr (!all)
		if (ones)
			e = mx_launch(one<T, S>, dim3((units + LANES - 1) / LANES, a.n_spans), dim3(THREADS), 0,
			              stream, a);
	if (e == cudaSuccess && (more || all))
		e = mx_launch(walk<T, S>, dim3(units, a.n_spans), dim3(THREADS), 0, stream, a, all);
	return e;
}

template <typename T>
cudaError_t scan(cudaStream_t stream, const mamba1_args &a, bool ones, bool more)
{
	switch (a.unit.padded) {
	case 16: return launch<T, 4>(stream, a, ones, more);
	case 32: return launch<T, 8>(stream, a, ones, more);
	case 64: return launch<T, 16>(stream, a, ones, more);
	case 128: return launch<T, 32>(stream, a, ones, more);
	default: return cudaErrorInvalidValue;
	}
}

size_t round_up(size_t n)
{
	return (n + 127) / 128 * 128;
}

} // namespace

cudaError_t mamba1_cuda_scan(cudaStream_t stream, enum mx_dtype act, const struct mamba1_args *a,
                             bool one, bool more)
{
	return act == MX_BF16 ? scan<__nv_bfloat16>(stream, *a, one, more)
	                      : scan<float>(stream, *a, one, more);
}

void mamba1_cuda_unit(uint32_t states, uint32_t max_draft, struct mamba1_unit *out)
{
	struct mamba1_unit u = {};
	u.padded = 16;
	while (u.padded < states)
		u.padded *= 2;
	u.cap = 1 + max_draft;
	u.steps = 64 + UNIT * u.padded * sizeof(float);
	u.b = u.steps + u.cap * UNIT * sizeof(step);
	u.bytes = round_up(u.b + u.cap * u.padded * sizeof(float));
	*out = u;
}
