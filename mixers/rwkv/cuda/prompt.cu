/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time mixing of long spans in three launches: what comes before the recurrence for all tokens at
 * once; the recurrence, token by token, PART columns of a head a block; what comes after it. The
 * recurrence is a chain that few warps of a head can follow faster: blocks have nothing else to do.
 */
#include "mixers/rwkv/cuda/time.cuh"

namespace
{

#define ROW_WARPS 8
#define PART      16                       /* columns of a block */
#define THREADS   (PART / COLUMNS * LANES) /* of a block of the recurrence */

/* Streams in shared memory, all elements of each, and of rwkv_time_args.made. */
enum { IN_W, IN_B, IN_K, IN_Z, IN_R, WHOLE, IN_V = WHOLE };

/* The row and head of a warp; false if there are none in a long span. */
__device__ __forceinline__ bool find(const rwkv_time_args &a, uint32_t *row, uint32_t *head,
                                     mx_device_span *span)
{
	const uint32_t at = blockIdx.x * ROW_WARPS + threadIdx.x / 32;
	*row = at / a.heads;
	*head = at - *row * a.heads;
	if (*row >= a.step.n_rows)
		return false;
	*span = a.step.spans[a.step.row_span[*row]];
	return *row >= span->row && *row - span->row < span->n && is_long(a, *span);
}

template <typename T, int D>
__global__ void __launch_bounds__(ROW_WARPS * 32) before(const rwkv_time_args a)
{
	uint32_t row, head;
	mx_device_span span;
	mx_pdl_launch();
	mx_pdl_wait();
	if (!find(a, &row, &head, &span))
		return;
	const size_t at = ((size_t)row * a.heads + head) * D;
	raw<T, D> in;
	inputs<D> x;
	bring(a, at, &in);
	prepare(a, head, in, &x);
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		const size_t i = at + element(j);
		a.made[IN_W][i] = x.w[j];
		a.made[IN_B][i] = x.b[j];
		a.made[IN_K][i] = x.k[j];
		a.made[IN_Z][i] = x.z[j];
		a.made[IN_R][i] = x.r[j];
		a.made[IN_V][i] = x.v[j];
	}
	if (threadIdx.x % 32 == 0)
		a.bonus[(size_t)row * a.heads + head] = x.bonus;
}

template <int D> struct shared {
	static constexpr int tile = D == 64 ? 16 : 8;
	float whole[2][tile][WHOLE][D];
	float v[2][tile][PART];
};

__device__ __forceinline__ void copy16(void *to, const void *from)
{
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

template <int D> struct walker {
	typedef shape<D> of;
	static constexpr uint32_t tile = shared<D>::tile;
	const rwkv_time_args &a;
	const mx_device_span &span;
	shared<D> &s;
	uint32_t head, first; /* first: of the block's columns */

	/* Element 0 of the head of a token. */
	__device__ __forceinline__ size_t place(uint32_t pos) const
	{
		return ((size_t)(span.row + (pos - span.pos)) * a.heads + head) * D;
	}

	/* Begins to bring tokens from .. to - 1, at most a tile. */
	__device__ __forceinline__ void fetch(uint32_t from, uint32_t to, int buffer) const
	{
		const uint32_t n = to - from < tile ? to - from : tile;
		const size_t ld = (size_t)a.heads * D, at = place(from);
#pragma unroll
		for (int m = 0; m < WHOLE; m++)
			for (uint32_t i = threadIdx.x; i < n * (D / 4); i += THREADS)
				copy16(&s.whole[buffer][i / (D / 4)][m][i % (D / 4) * 4],
				       a.made[m] + at + i / (D / 4) * ld + i % (D / 4) * 4);
		for (uint32_t i = threadIdx.x; i < n * (PART / 4); i += THREADS)
			copy16(&s.v[buffer][i / (PART / 4)][i % (PART / 4) * 4],
			       a.made[IN_V] + at + first + i / (PART / 4) * ld + i % (PART / 4) * 4);
		asm volatile("cp.async.commit_group;" ::: "memory");
	}

	template <bool FULL>
	__device__ __forceinline__ void group(uint32_t from, uint32_t t, uint32_t n, int buffer,
	                                      float (&S)[COLUMNS][of::rows], float (&p)[COLUMNS]) const
	{
		const uint32_t column = threadIdx.x / LANES * COLUMNS, lane = threadIdx.x % LANES;
		float y[GROUP][COLUMNS] = {};
#pragma unroll
		for (uint32_t i = 0; i < GROUP; i++) {
			if (!FULL && i >= n)
				continue;
			const float(*x)[D] = s.whole[buffer][t + i];
			const float2 two = *(const float2 *)&s.v[buffer][t + i][column];
			const float v[COLUMNS] = {two.x, two.y};
			pass<D>(S, x[IN_W], x[IN_B], x[IN_K], x[IN_Z], x[IN_R], v, p, y[i]);
		}
		const float sum = sum_outputs(y);
		if (FULL || lane / COLUMNS < n)
			a.y[place(from + t + lane / COLUMNS) + first + column + lane % COLUMNS] = sum;
	}

	/* Goes through tokens from .. to - 1 of the span; p: of the last. */
	__device__ __forceinline__ void run(uint32_t from, uint32_t to, float (&S)[COLUMNS][of::rows],
	                                    float (&p)[COLUMNS]) const
	{
		int buffer = 0;
		fetch(from, to, 0);
		for (; from < to; from += tile, buffer ^= 1) {
			const uint32_t n = to - from < tile ? to - from : tile;
			asm volatile("cp.async.wait_all;" ::: "memory");
			__syncthreads(); /* the tile is there, and the other buffer has been read */
			if (from + tile < to)
				fetch(from + tile, to, buffer ^ 1);
			uint32_t t = 0;
			for (; t + GROUP <= n; t += GROUP)
				group<true>(from, t, GROUP, buffer, S, p);
			if (t < n)
				group<false>(from, t, n - t, buffer, S, p);
		}
		__syncthreads();
	}
};

template <int D> __global__ void __launch_bounds__(THREADS) chain(const rwkv_time_args a)
{
	__shared__ __align__(16) shared<D> s;
	const mx_device_span span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	if (!is_long(a, span)) {
		mx_pdl_wait();
		return;
	}
	constexpr uint32_t parts = D / PART;
	const uint32_t head = blockIdx.x / parts, part = blockIdx.x % parts;
	const uint32_t thread = part * THREADS + threadIdx.x, last = span.pos + span.n - 1;
	const uint32_t column = thread / LANES * COLUMNS;
	unsigned char *unit = unit_of(a, span, head);
	const walker<D> w = {a, span, s, head, part * PART};
	float S[COLUMNS][shape<D>::rows], p[COLUMNS];
	load_state<D>(unit, thread, S);
	replay<D>(a, unit, *(const volatile uint32_t *)unit, span.pos, column, S);
	mx_pdl_wait();
#pragma unroll 1
	for (int part = 0; part < 2; part++) {
		w.run(part ? last : span.pos, part ? last + 1 : last, S, p);
		if (!part)
			store_state<D>(unit, thread, S);
	}
	if (threadIdx.x % LANES == 0) /* no other block reads these columns of the ring */
		*(float2 *)(ring_of<D>(a, unit, last) + P * D + column) = make_float2(p[0], p[1]);
}

/* The last token's inputs go to the ring here, when all blocks of `chain` have read it. */
template <typename T, int D>
__global__ void __launch_bounds__(ROW_WARPS * 32) after(const rwkv_time_args a)
{
	uint32_t row, head;
	mx_device_span span;
	mx_pdl_launch();
	mx_pdl_wait();
	if (!find(a, &row, &head, &span))
		return;
	const size_t at = ((size_t)row * a.heads + head) * D;
	float y[shape<D>::own], v[shape<D>::own];
	T g[shape<D>::own];
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		y[j] = a.y[at + element(j)];
		v[j] = a.made[IN_V][at + element(j)];
		g[j] = ((const T *)a.g)[at + element(j)];
	}
	finish<T, D>(a, head, at, y, v, g, a.bonus[(size_t)row * a.heads + head]);
	if (row != span.row + span.n - 1)
		return;
	unsigned char *unit = unit_of(a, span, head);
	float *ring = ring_of<D>(a, unit, span.pos + span.n - 1);
#pragma unroll
	for (int j = 0; j < shape<D>::own; j++) {
		ring[W * D + element(j)] = a.made[IN_W][at + element(j)];
		ring[B * D + element(j)] = a.made[IN_B][at + element(j)];
		ring[K * D + element(j)] = a.made[IN_K][at + element(j)];
		ring[V * D + element(j)] = v[j];
	}
	if (threadIdx.x % 32 == 0)
		*(uint32_t *)unit = span.pos + span.n - 1;
}

template <typename T, int D> cudaError_t launch(cudaStream_t stream, const rwkv_time_args &a)
{
	const uint64_t warps = (uint64_t)a.step.n_rows * a.heads;
	const dim3 rows((unsigned)((warps + ROW_WARPS - 1) / ROW_WARPS)), block(ROW_WARPS * 32);
	const dim3 parts(a.heads * (D / PART), a.step.n_spans);
	cudaError_t e = mx_launch(before<T, D>, rows, block, 0, stream, a);
	if (e == cudaSuccess)
		e = mx_launch(chain<D>, parts, dim3(THREADS), 0, stream, a);
	return e == cudaSuccess ? mx_launch(after<T, D>, rows, block, 0, stream, a) : e;
}

} // namespace

cudaError_t rwkv_cuda_prompt(cudaStream_t stream, enum mx_dtype act, const struct rwkv_time_args *a)
{
	if (a->dim == 64)
		return act == MX_BF16 ? launch<__nv_bfloat16, 64>(stream, *a)
		                      : launch<float, 64>(stream, *a);
	if (a->dim == RWKV_MAX_DIM)
		return act == MX_BF16 ? launch<__nv_bfloat16, RWKV_MAX_DIM>(stream, *a)
		                      : launch<float, RWKV_MAX_DIM>(stream, *a);
	return cudaErrorInvalidValue;
}
