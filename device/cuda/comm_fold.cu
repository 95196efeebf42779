/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over keys that ranks share: each rank's partials of a row and head are folded in the
 * order of the ranks (Milakov and Gimelshein 2018, arXiv:1805.02867), by the rank that finishes the
 * head. A warp folds a partial of all ranks.
 *
 * Few rows: each rank writes its partials as packets into the slots of the peers that want them
 * (comm_push.cu has the rules), which takes one way over the link. Many rows: each rank tells where
 * its partials are, meets the others, and reads theirs.
 */
#include "device/cuda/comm.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define READERS 512                      /* threads of a block that reads its peers' memory */
#define AHEAD   (4 / V)                  /* partials of each rank that a warp of it has under way */
#define MAX_V   (MX_COMM_FOLD_DIM / 128) /* vectors of a lane */
#define LOG2E   1.4426950408889634f

static_assert(WARPS * (MX_COMM_FOLD_DIM / 4 + 1) <= MX_COMM_PUSH_VECTORS, "a block's fit a slot");

/* What a lane has of a partial: vectors lane, lane + 32 .. of o. */
template <int V> struct piece {
	float m, l;
	float4 o[V];
};

static __device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

static __device__ __forceinline__ float fold_one(float old, float f_old, float add, float f_add)
{
	return __fmaf_rn(add, f_add, __fmul_rn(old, f_old));
}

/* Folds x into what was found before. */
template <int V> static __device__ __forceinline__ void fold(piece<V> &all, const piece<V> &x)
{
	const float m = fmaxf(all.m, x.m), use = m == -INFINITY ? 0 : m;
	const float old = exp2_fast(__fsub_rn(all.m, use)), add = exp2_fast(__fsub_rn(x.m, use));
	all.m = m;
	all.l = fold_one(all.l, old, x.l, add);
#pragma unroll
	for (int j = 0; j < V; j++) {
		all.o[j].x = fold_one(all.o[j].x, old, x.o[j].x, add);
		all.o[j].y = fold_one(all.o[j].y, old, x.o[j].y, add);
		all.o[j].z = fold_one(all.o[j].z, old, x.o[j].z, add);
		all.o[j].w = fold_one(all.o[j].w, old, x.o[j].w, add);
	}
}

template <typename T> struct alignas(4 * sizeof(T)) four {
	T one[4];
};

/* Writes what a lane has of the output of record i, row and head. */
template <typename T, int V>
static __device__ __forceinline__ void finish(const struct mx_partials &p, size_t i,
                                              const piece<V> &all)
{
	const size_t row = i / p.heads;
	const uint32_t head = (uint32_t)(i - row * p.heads), lane = threadIdx.x % 32;
	T *y = (T *)p.y + row * p.ldy + head * p.out;
	float l = all.l;
	if (p.sinks)
		l = __fadd_rn(l, exp2_fast(__fmaf_rn(p.sinks[head], LOG2E, -all.m)));
	const bool whole = p.out % 4 == 0 && p.ldy % 4 == 0 && is_aligned(p.y, 4 * sizeof(T));
#pragma unroll
	for (int j = 0; j < V; j++) {
		const float o[4] = {all.o[j].x, all.o[j].y, all.o[j].z, all.o[j].w};
		const uint32_t e = (lane + 32 * j) * 4;
		four<T> r;
#pragma unroll
		for (int k = 0; k < 4; k++)
			r.one[k] = mx_from_float<T>(__fdiv_rn(o[k], l));
		if (whole && e < p.out)
			*(four<T> *)(y + e) = r;
		for (uint32_t k = 0; !whole && k < 4 && e + k < p.out; k++)
			y[e + k] = r.one[k];
	}
}

/* Reads a partial from memory; of a peer, past the first-level cache. */
template <int V>
static __device__ __forceinline__ piece<V> read(const float *x, size_t i, uint32_t vectors)
{
	const uint4 *from = (const uint4 *)x + i * (vectors + 1);
	const uint32_t lane = threadIdx.x % 32;
	piece<V> r;
#pragma unroll
	for (int j = 0; j < V; j++) {
		const uint4 v =
			lane + 32 * j < vectors ? load_peer(from + lane + 32 * j) : make_uint4(0, 0, 0, 0);
		r.o[j] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
		                     __uint_as_float(v.w));
	}
	const uint4 s = load_peer(from + vectors);
	r.m = __uint_as_float(s.x);
	r.l = __uint_as_float(s.y);
	return r;
}

/* ---- few rows ---- */

/* Writes a partial to a peer's slot, from its vector `at` on. */
template <int V>
static __device__ __forceinline__ void send(packets *to, const piece<V> &x, uint32_t vectors,
                                            uint32_t number)
{
	const uint32_t lane = threadIdx.x % 32;
#pragma unroll
	for (int j = 0; j < V; j++)
		if (lane + 32 * j < vectors)
			put(to + lane + 32 * j,
			    make_uint4(__float_as_uint(x.o[j].x), __float_as_uint(x.o[j].y),
			               __float_as_uint(x.o[j].z), __float_as_uint(x.o[j].w)),
			    number);
	if (lane == 0)
		put(to + vectors, make_uint4(__float_as_uint(x.m), __float_as_uint(x.l), 0, 0), number);
}

/* Reads one that a peer has sent. False if the communication has ended. */
template <int V>
static __device__ __forceinline__ bool take(const struct mx_comm_rank &r, const packets *from,
                                            uint32_t vectors, uint32_t number, piece<V> &out)
{
	const uint32_t lane = threadIdx.x % 32;
	uint64_t begin = 0;
	for (uint32_t i = 1;; i++) {
		uint4 a[V + 1], b[V + 1];
		bool there = true;
#pragma unroll
		for (int j = 0; j <= V; j++) {
			const uint32_t at = j < V ? lane + 32 * j : vectors;
			if (at <= vectors) {
				a[j] = load_peer(&from[at].half[0]);
				b[j] = load_peer(&from[at].half[1]);
			}
		}
#pragma unroll
		for (int j = 0; j <= V; j++) {
			const uint32_t at = j < V ? lane + 32 * j : vectors;
			if (at <= vectors)
				there &=
					a[j].y == number && a[j].w == number && b[j].y == number && b[j].w == number;
			if (j < V)
				out.o[j] = at < vectors
				               ? make_float4(__uint_as_float(a[j].x), __uint_as_float(a[j].z),
				                             __uint_as_float(b[j].x), __uint_as_float(b[j].z))
				               : make_float4(0, 0, 0, 0);
		}
		out.m = __uint_as_float(a[V].x);
		out.l = __uint_as_float(a[V].z);
		if (there)
			return true;
		if (i % 1024 == 0 && !may_wait(r, &begin))
			return false;
	}
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
	fold_pushed(struct mx_comm_rank r, struct mx_partials p)
{
	const uint32_t warp = threadIdx.x / 32, vectors = p.dim / 4, each = vectors + 1;
	const size_t all = p.rows * p.heads;
	if (!r.shared)
		mx_pdl_launch();
	mx_pdl_wait();
	const uint64_t clock = start_clock(r);
	volatile uint32_t *uses = &r.memory[r.rank]->pushes[blockIdx.x];
	uint32_t number = *uses;
	bool fine = true;
	for (size_t first = blockIdx.x * WARPS; first < all; first += gridDim.x * WARPS) {
		const size_t i = first + warp;
		number = next_number(number);
		if (i < all) {
			for (uint32_t k = 1; k < r.ranks; k++) { /* each begins with another peer */
				const uint32_t peer = (r.rank + k) % r.ranks;
				send<V>(slot_of(r, peer, r.rank, number) + warp * each,
				        read<V>(p.x, peer * all + i, vectors), vectors, number);
			}
			const piece<V> own = read<V>(p.x, r.rank * all + i, vectors);
			piece<V> sum;
			for (uint32_t k = 0; k < r.ranks; k++) {
				piece<V> x = own;
				if (k != r.rank && fine)
					fine =
						take<V>(r, slot_of(r, r.rank, k, number) + warp * each, vectors, number, x);
				if (k)
					fold(sum, x);
				else
					sum = x;
			}
			finish<T, V>(p, i, sum);
		}
		__syncthreads(); /* all have read the number, and their slots */
	}
	end_pushes(r, uses, number, clock);
}

/* ---- many rows ---- */

template <typename T, int V>
static __global__ void __launch_bounds__(READERS)
	fold_read(struct mx_comm_rank r, struct mx_partials p)
{
	__shared__ const float *xs[MX_CUDA_MAX_RANKS];
	uint64_t clock;
	const uint32_t before = begin(r, &clock), vectors = p.dim / 4;
	const size_t all = p.rows * p.heads;
	if (!threadIdx.x)
		r.memory[r.rank]->posts[blockIdx.x].x = (void *)p.x;
	bool met = meet(r, before + 1);
	if (threadIdx.x < r.ranks)
		xs[threadIdx.x] = (const float *)(uintptr_t) *
		                  (volatile uint64_t *)&r.memory[threadIdx.x]->posts[blockIdx.x].x;
	__syncthreads();
	const size_t step = gridDim.x * (READERS / 32);
	for (size_t i = blockIdx.x * (READERS / 32) + threadIdx.x / 32; i < all && met;
	     i += AHEAD * step) {
		piece<V> sum[AHEAD];
		for (uint32_t k = 0; k < r.ranks; k++) {
			piece<V> x[AHEAD];
#pragma unroll
			for (int j = 0; j < AHEAD; j++) /* one that is there, for one that is not */
				x[j] =
					read<V>(xs[k], r.rank * all + (i + j * step < all ? i + j * step : i), vectors);
#pragma unroll
			for (int j = 0; j < AHEAD; j++)
				if (k)
					fold(sum[j], x[j]);
				else
					sum[j] = x[j];
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (i + j * step < all)
				finish<T, V>(p, i + j * step, sum[j]);
	}
	met = met && meet(r, before + 2);
	end(r, before + 2, clock);
}

/* ---- launches ---- */

template <typename T, int V>
static cudaError_t launch(const struct mx_comm_rank *r, cudaStream_t stream,
                          const struct mx_partials *p)
{
	const size_t all = p->rows * p->heads, bytes = all * (p->dim + 4) * sizeof(float);
	const bool push = bytes * (r->ranks - 1) <= MX_COMM_PUSH_MOST;
	const size_t most = r->shared ? MX_COMM_FEW_BLOCKS : push ? r->push_blocks : MX_COMM_BLOCKS;
	const uint32_t threads = push ? THREADS : READERS;
	const size_t blocks = (all * 32 + threads - 1) / threads;
	return mx_launch(push ? fold_pushed<T, V> : fold_read<T, V>,
	                 dim3((unsigned)(blocks < most ? blocks : most)), dim3(threads), 0, stream, *r,
	                 *p);
}

template <typename T>
static cudaError_t fold_as(const struct mx_comm_rank *r, cudaStream_t stream,
                           const struct mx_partials *p)
{
	return p->dim <= 128   ? launch<T, 1>(r, stream, p)
	       : p->dim <= 256 ? launch<T, 2>(r, stream, p)
	                       : launch<T, MAX_V>(r, stream, p);
}

cudaError_t mx_comm_fold(const struct mx_comm_rank *r, cudaStream_t stream,
                         const struct mx_partials *p, enum mx_dtype dtype)
{
	return dtype == MX_F32 ? fold_as<float>(r, stream, p) : fold_as<__nv_bfloat16>(r, stream, p);
}

template <typename T, int V> static cudaError_t load_kernels(void)
{
	cudaFuncAttributes a;
	cudaError_t e = cudaFuncGetAttributes(&a, (const void *)fold_pushed<T, V>);
	return e == cudaSuccess ? cudaFuncGetAttributes(&a, (const void *)fold_read<T, V>) : e;
}

template <typename T> static cudaError_t load_all(void)
{
	cudaError_t e = load_kernels<T, 1>();
	if (e == cudaSuccess)
		e = load_kernels<T, 2>();
	return e == cudaSuccess ? load_kernels<T, MAX_V>() : e;
}

cudaError_t mx_comm_load_fold(void)
{
	const cudaError_t e = load_all<float>();
	return e == cudaSuccess ? load_all<__nv_bfloat16>() : e;
}
