/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time mixing of short spans: a block has a head of a span, and computes all of it token by token.
 *
 * S in the slot is as of the last token but one, and what the tokens since add is in a ring. So a
 * draft undoes nothing, and a saved state can go on one token earlier. The order of all sums is
 * that of a token alone, so outputs have equal bits wherever a prompt is cut.
 */
#include "mixers/rwkv/cuda/time.cuh"

namespace
{

/* Streams of a token in shared memory: those of the ring, and two more. */
enum { Z = RING, R, STREAMS };

#define TILE 8 /* tokens that are prepared at once, a warp each */
#define PAD  8 /* floats between tokens of outputs: lanes write without conflicts */

template <int D> struct shared {
	float token[TILE][STREAMS][D];
	float y[TILE][D + PAD];
};

/* Stores a lane's elements of a vector. */
template <int OWN> __device__ __forceinline__ void store(const float (&x)[OWN], float *to)
{
#pragma unroll
	for (int j = 0; j < OWN; j++)
		to[element(j)] = x[j];
}

template <typename T, int D> struct walker {
	typedef shape<D> of;
	const rwkv_time_args &a;
	const mx_device_span &span;
	unsigned char *unit;
	shared<D> &s;
	uint32_t head;

	__device__ __forceinline__ size_t place(uint32_t pos) const
	{
		return (size_t)(span.row + (pos - span.pos)) * a.heads * a.dim + head * a.dim;
	}

	/* Goes through n tokens of a tile from t on; FULL: n is GROUP. */
	template <bool FULL>
	__device__ __forceinline__ void group(uint32_t t, uint32_t n,
	                                      float (&S)[COLUMNS][of::rows]) const
	{
		const uint32_t column = threadIdx.x / LANES * COLUMNS, lane = threadIdx.x % LANES;
		float y[GROUP][COLUMNS] = {};
#pragma unroll
		for (uint32_t i = 0; i < GROUP; i++) {
			if (!FULL && i >= n)
				continue;
			float(*x)[D] = s.token[t + i], p[COLUMNS];
			const float v[COLUMNS] = {x[V][column], x[V][column + 1]};
			pass<D>(S, x[W], x[B], x[K], x[Z], x[R], v, p, y[i]);
			if (lane == 0)
				*(float2 *)&x[P][column] = make_float2(p[0], p[1]);
		}
		s.y[t + lane / COLUMNS][column + lane % COLUMNS] = sum_outputs(y);
	}

	/* Goes through tokens from .. to - 1 of the span; those from `keep` on go to the ring. */
	__device__ __forceinline__ void run(uint32_t from, uint32_t to, uint32_t keep,
	                                    float (&S)[COLUMNS][of::rows]) const
	{
		const uint32_t t = threadIdx.x / 32; /* the token of a tile that the warp prepares */
		for (; from < to; from += TILE) {
			const uint32_t n = to - from < TILE ? to - from : TILE;
			raw<T, D> in;
			inputs<D> x;
			if (t < n) {
				bring(a, place(from + t), &in);
				prepare(a, head, in, &x);
				float(*token)[D] = s.token[t];
				store(x.w, token[W]);
				store(x.b, token[B]);
				store(x.k, token[K]);
				store(x.v, token[V]);
				store(x.z, token[Z]);
				store(x.r, token[R]);
			}
			__syncthreads();
			uint32_t i = 0;
			for (; i + GROUP <= n; i += GROUP)
				group<true>(i, GROUP, S);
			if (i < n)
				group<false>(i, n - i, S);
			__syncthreads();
			for (i = keep > from ? keep - from : 0; i < n; i++)
				for (uint32_t e = threadIdx.x; e < RING * D; e += of::threads)
					ring_of<D>(a, unit, from + i)[e] = s.token[i][0][e];
			if (t < n) {
				float y[of::own];
#pragma unroll
				for (int j = 0; j < of::own; j++)
					y[j] = s.y[t][element(j)];
				finish<T, D>(a, head, place(from + t), y, x.v, in.g, x.bonus);
			}
			__syncthreads();
		}
	}
};

/* True if a span is left to `one`. */
__device__ __forceinline__ bool is_one(const mx_device_span &span)
{
	return span.n == 1 && span.kind != MX_SPAN_DRAFT;
}

template <typename T, int D>
__global__ void __launch_bounds__(shape<D>::threads, D == 64 ? 3 : 1) mix(const rwkv_time_args a)
{
	__shared__ __align__(16) shared<D> s;
	const mx_device_span span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	if (!span.n || is_one(span) || is_long(a, span)) {
		mx_pdl_wait();
		return;
	}
	unsigned char *unit = unit_of(a, span, blockIdx.x);
	const walker<T, D> w = {a, span, unit, s, blockIdx.x};
	const uint32_t column = threadIdx.x / LANES * COLUMNS;
	float S[COLUMNS][shape<D>::rows];
	load_state<D>(unit, threadIdx.x, S);
	const uint32_t base = *(const volatile uint32_t *)unit, folded = base_after(span, base);
	const uint32_t past = folded < span.pos ? folded : span.pos, end = span.pos + span.n;
	const uint32_t middle = folded > span.pos ? folded : span.pos;
	replay<D>(a, unit, base, past, column, S);
	mx_pdl_wait();
	/* first the span's tokens that S in the slot includes, if there are any: of a prompt */
#pragma unroll 1
	for (int part = 0; part < 2; part++) {
		w.run(part ? middle : span.pos, part ? end : middle, part ? middle : end, S);
		if (part)
			break;
		if (folded > base)
			store_state<D>(unit, threadIdx.x, S);
		replay<D>(a, unit, past, span.pos, column, S);
		__syncthreads(); /* the ring has been read */
	}
	if (threadIdx.x == 0)
		*(uint32_t *)unit = folded;
}

/* The same for spans of one token that stays. What is read does not depend on what has been read,
 * so that all of it is on its way at once. */
template <typename T, int D>
__global__ void __launch_bounds__(shape<D>::threads, D == 64 ? 3 : 1) one(const rwkv_time_args a)
{
	__shared__ __align__(16) float x[STREAMS][D];
	__shared__ float y[D];
	const mx_device_span span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	if (!is_one(span)) {
		mx_pdl_wait();
		return;
	}
	const uint32_t head = blockIdx.x, pos = span.pos;
	const uint32_t column = threadIdx.x / LANES * COLUMNS, lane = threadIdx.x % LANES;
	const size_t at = (size_t)span.row * a.heads * a.dim + head * a.dim;
	unsigned char *unit = unit_of(a, span, head);
	float S[COLUMNS][shape<D>::rows], p[COLUMNS], sums[GROUP][COLUMNS] = {};
	load_state<D>(unit, threadIdx.x, S);
	const float *past = ring_of<D>(a, unit, pos ? pos - 1 : 0);
	const uint32_t base = *(const volatile uint32_t *)unit;
	part<D> w, b, k;
	read_part(past + W * D, &w);
	read_part(past + B * D, &b);
	read_part(past + K * D, &k);
	const float past_v[COLUMNS] = {past[V * D + column], past[V * D + column + 1]};
	const float past_p[COLUMNS] = {past[P * D + column], past[P * D + column + 1]};
	mx_pdl_wait();
	raw<T, D> in;
	inputs<D> own;
	if (threadIdx.x < 32)
		bring(a, at, &in);
	replay<D>(a, unit, base, pos ? pos - 1 : 0, column, S); /* tokens of a draft */
	if (base < pos) {
		advance<D, part<D>>(S, w, b, k, past_v, past_p);
		store_state<D>(unit, threadIdx.x, S);
	}
	if (threadIdx.x < 32) {
		prepare(a, head, in, &own);
		store(own.w, x[W]);
		store(own.b, x[B]);
		store(own.k, x[K]);
		store(own.v, x[V]);
		store(own.z, x[Z]);
		store(own.r, x[R]);
	}
	__syncthreads();
	const float v[COLUMNS] = {x[V][column], x[V][column + 1]};
	pass<D>(S, x[W], x[B], x[K], x[Z], x[R], v, p, sums[0]);
	const float sum = sum_outputs(sums);
	if (lane < COLUMNS)
		y[column + lane] = sum;
	if (lane == 0)
		*(float2 *)&x[P][column] = make_float2(p[0], p[1]);
	__syncthreads();
	float *ring = ring_of<D>(a, unit, pos);
	for (uint32_t e = threadIdx.x; e < RING * D; e += shape<D>::threads)
		ring[e] = x[0][e];
	if (threadIdx.x == 0)
		*(uint32_t *)unit = pos;
	if (threadIdx.x < 32) {
		float out[shape<D>::own];
#pragma unroll
		for (int j = 0; j < shape<D>::own; j++)
			out[j] = y[element(j)];
		finish<T, D>(a, head, at, out, own.v, in.g, own.bonus);
	}
}

template <typename T, int D>
cudaError_t launch(cudaStream_t stream, const rwkv_time_args &a, bool ones, bool more)
{
	const dim3 grid(a.heads, a.step.n_spans), block(shape<D>::threads);
	cudaError_t e = ones ? mx_launch(one<T, D>, grid, block, 0, stream, a) : cudaSuccess;
	return e == cudaSuccess && more ? mx_launch(mix<T, D>, grid, block, 0, stream, a) : e;
}

} // namespace

cudaError_t rwkv_cuda_time(cudaStream_t stream, enum mx_dtype act, const struct rwkv_time_args *a,
                           bool one, bool more)
{
	if (a->unit.padded == 64)
		return act == MX_BF16 ? launch<__nv_bfloat16, 64>(stream, *a, one, more)
		                      : launch<float, 64>(stream, *a, one, more);
	return act == MX_BF16 ? launch<__nv_bfloat16, RWKV_MAX_DIM>(stream, *a, one, more)
	                      : launch<float, RWKV_MAX_DIM>(stream, *a, one, more);
}

void rwkv_cuda_unit(uint32_t dim, uint32_t max_draft, struct rwkv_unit *out)
{
	struct rwkv_unit u = {};
	u.padded = dim <= 64 ? 64 : RWKV_MAX_DIM;
	u.cap = 1 + max_draft;
	u.ring = 64 + (size_t)u.padded * u.padded * sizeof(float);
	u.bytes = (u.ring + (size_t)u.cap * RING * u.padded * sizeof(float) + 127) / 128 * 128;
	*out = u;
}
