/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of comm.h.
 *
 * A large sum (comm_push.cu has small ones): each rank tells where its x is and meets the others,
 * adds up its share of the elements from all x, writes the sums to all x, and meets them again. An
 * element is ((x0 + x1) + x2) + ... in f32, rounded once.
 */
#include "device/cuda/comm.cuh"

#define THREADS 512

/* ---- sums ---- */

/* Vectors that a thread reads before it needs the first: a link has many reads under way. */
#define AHEAD 4

/* Adds up the vectors at, at + step .. of all ranks' x, for all of them. */
template <typename T>
static __device__ __forceinline__ void sum_vectors(const struct mx_comm_rank &r, T *const *xs,
                                                   size_t at, size_t step, size_t last, bool whole)
{
	constexpr size_t N = vec<T>::N;
	float total[AHEAD][N];
	for (uint32_t i = 0; i < r.ranks; i++) {
		vec<T> v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * step < last)
				v[j] = load<T>(xs[i], at + j * step, last, whole);
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
#pragma unroll
			for (size_t k = 0; k < N; k++) {
				const float f = mx_to_float<T>(v[j].one[k]);
				total[j][k] = i ? total[j][k] + f : f;
			}
	}
#pragma unroll
	for (int j = 0; j < AHEAD; j++) {
		vec<T> sum;
#pragma unroll
		for (size_t k = 0; k < N; k++)
			sum.one[k] = mx_from_float<T>(total[j][k]);
		for (uint32_t i = 0; i < r.ranks && at + j * step < last; i++)
			store(xs[i], at + j * step, last, whole, sum);
	}
}

/* A rank adds up `share` elements of all ranks' x, for all of them. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	sum_shares(struct mx_comm_rank r, T *x, size_t n, size_t share)
{
	__shared__ T *xs[MX_CUDA_MAX_RANKS];
	uint64_t clock;
	const uint32_t before = begin(r, &clock), b = blockIdx.x;
	bool whole = true;
	if (!threadIdx.x)
		r.memory[r.rank]->posts[b].x = x;
	bool met = meet(r, before + 1);
	if (threadIdx.x < r.ranks)
		xs[threadIdx.x] =
			(T *)(uintptr_t) * (volatile uint64_t *)&r.memory[threadIdx.x]->posts[b].x;
	__syncthreads();
	for (uint32_t i = 0; i < r.ranks; i++)
		whole &= is_aligned(xs[i], 16);
	const size_t first = r.rank * share, last = first + share < n ? first + share : n;
	const size_t N = vec<T>::N, step = gridDim.x * THREADS * N;
	for (size_t at = first + (b * THREADS + threadIdx.x) * N; at < last && met; at += AHEAD * step)
		sum_vectors(r, xs, at, step, last, whole);
	met = met && meet(r, before + 2);
	end(r, before + 2, clock);
}

template <typename T>
static cudaError_t sum(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream, T *x,
                       size_t n)
{
	const size_t each = vec<T>::N;
	const size_t share = ((n + r->ranks - 1) / r->ranks + each - 1) / each * each;
	return mx_launch(sum_shares<T>, dim3(blocks), dim3(THREADS), 0, stream, *r, x, n, share);
}

cudaError_t mx_comm_sum(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream, void *x,
                        size_t n, enum mx_dtype dtype)
{
	return dtype == MX_F32 ? sum(r, blocks, stream, (float *)x, n)
	                       : sum(r, blocks, stream, (__nv_bfloat16 *)x, n);
}

/* ---- copies ---- */

/* Copies a peer's memory, by threads first, first + all ... */
template <typename T>
static __device__ void copy_as(T *to, const T *from, size_t n, size_t first, size_t all)
{
	for (size_t i = first; i < n; i += all)
		to[i] = ((const volatile T *)from)[i];
}

static __device__ void copy(void *to, const void *from, size_t bytes)
{
	const size_t first = blockIdx.x * THREADS + threadIdx.x, all = gridDim.x * THREADS;
	const uintptr_t odd = (uintptr_t)to | (uintptr_t)from | bytes;
	if (odd % 16 == 0)
		for (size_t i = first; i < bytes / 16; i += all)
			((uint4 *)to)[i] = load_peer((const uint4 *)from + i);
	else if (odd % 4 == 0)
		copy_as((uint32_t *)to, (const uint32_t *)from, bytes / 4, first, all);
	else
		copy_as((char *)to, (const char *)from, bytes, first, all);
}

static __global__ void __launch_bounds__(THREADS)
	collect(struct mx_comm_rank r, const void *x, size_t bytes, uint32_t first, uint32_t n, void *y)
{
	uint64_t clock;
	const uint32_t before = begin(r, &clock), b = blockIdx.x;
	if (!threadIdx.x)
		r.memory[r.rank]->posts[b].x = (void *)x;
	bool met = meet(r, before + 1);
	for (uint32_t i = 0; i < n && y && met; i++) {
		const void *from =
			(const void *)(uintptr_t) * (volatile uint64_t *)&r.memory[first + i]->posts[b].x;
		copy((char *)y + i * bytes, from, bytes);
	}
	met = met && meet(r, before + 2);
	end(r, before + 2, clock);
}

cudaError_t mx_comm_collect(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                            const void *x, size_t bytes, uint32_t first, uint32_t n, void *y)
{
	const size_t wanted = (bytes + MX_COMM_BLOCK_BYTES - 1) / MX_COMM_BLOCK_BYTES;
	const size_t grid = wanted < 1 ? 1 : wanted < blocks ? wanted : blocks;
	return mx_launch(collect, dim3((unsigned)grid), dim3(THREADS), 0, stream, *r, x, bytes, first,
	                 n, y);
}

/* Each rank writes its columns to the root's memory. */
static __global__ void __launch_bounds__(THREADS)
	columns(struct mx_comm_rank r, uint32_t root, const float *x, size_t ldx, size_t n,
            size_t first, size_t cols, float *y, size_t ldy)
{
	uint64_t clock;
	const uint32_t before = begin(r, &clock), b = blockIdx.x;
	struct mx_comm_post *own = &r.memory[r.rank]->posts[b];
	const volatile struct mx_comm_post *post = &r.memory[root]->posts[b];
	if (!threadIdx.x) {
		own->x = y;
		own->n = ldy;
	}
	bool met = meet(r, before + 1);
	if (met) {
		float *to = (float *)post->x + first;
		const size_t ld = post->n, at = b * THREADS + threadIdx.x, all = gridDim.x * THREADS;
		const bool whole = is_aligned(to, 16) && is_aligned(x, 16) && ld % 4 == 0 && ldx % 4 == 0;
		const size_t vectors = whole ? cols / 4 : 0, rest = cols - 4 * vectors;
		for (size_t i = at; to != x && i < n * vectors; i += all) {
			const size_t row = i / vectors, k = i % vectors;
			((float4 *)(to + row * ld))[k] = ((const float4 *)(x + row * ldx))[k];
		}
		for (size_t i = at; to != x && i < n * rest; i += all) {
			const size_t row = i / rest, k = 4 * vectors + i % rest;
			to[row * ld + k] = x[row * ldx + k];
		}
	}
	met = met && meet(r, before + 2);
	end(r, before + 2, clock);
}

cudaError_t mx_comm_columns(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                            uint32_t root, const float *x, size_t ldx, size_t n, size_t first,
                            size_t cols, float *y, size_t ldy)
{
	return mx_launch(columns, dim3(blocks), dim3(THREADS), 0, stream, *r, root, x, ldx, n, first,
	                 cols, y, ldy);
}

static __global__ void __launch_bounds__(THREADS) meet_all(struct mx_comm_rank r)
{
	uint64_t clock;
	const uint32_t epoch = begin(r, &clock) + 1;
	meet(r, epoch);
	end(r, epoch, clock);
}

cudaError_t mx_comm_meet(const struct mx_comm_rank *r, cudaStream_t stream)
{
	return mx_launch(meet_all, dim3(1), dim3(THREADS), 0, stream, *r);
}

/* ---- messages ---- */

static __global__ void __launch_bounds__(THREADS)
	give(struct mx_comm_rank r, uint32_t peer, const void *x, size_t bytes)
{
	uint64_t clock;
	(void)begin(r, &clock);
	struct mx_comm_memory *own = r.memory[r.rank];
	const uint32_t b = blockIdx.x;
	if (!threadIdx.x) {
		const uint32_t number = own->sends[peer][b] + 1;
		own->sends[peer][b] = number;
		own->mail[peer][b].x = (void *)x;
		own->mail[peer][b].n = bytes;
		__threadfence_system();
		store_release(&r.memory[peer]->sent[r.rank][b], number);
		wait_for(r, &own->taken[peer][b], number);
	}
	__syncthreads();
	stop_clock(r, clock);
	if (r.shared)
		mx_pdl_launch();
}

static __global__ void __launch_bounds__(THREADS)
	take(struct mx_comm_rank r, uint32_t peer, void *y, size_t bytes)
{
	uint64_t clock;
	(void)begin(r, &clock);
	struct mx_comm_memory *own = r.memory[r.rank], *from = r.memory[peer];
	const uint32_t b = blockIdx.x, number = own->recvs[peer][b] + 1;
	bool fine = true;
	if (!threadIdx.x)
		fine = wait_for(r, &own->sent[peer][b], number);
	fine = __syncthreads_and(fine);
	if (fine) {
		const volatile struct mx_comm_post *mail = &from->mail[r.rank][b];
		if (mail->n == bytes)
			copy(y, mail->x, bytes);
		else if (!threadIdx.x)
			store_release(r.ended, 1);
	}
	__syncthreads();
	if (!threadIdx.x) {
		own->recvs[peer][b] = number;
		__threadfence_system();
		store_release(&from->taken[r.rank][b], number);
	}
	stop_clock(r, clock);
	if (r.shared)
		mx_pdl_launch();
}

/* Blocks for both sides of a message: they do not know each other's bytes. */
cudaError_t mx_comm_give(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                         uint32_t peer, const void *x, size_t bytes)
{
	return mx_launch(give, dim3(blocks), dim3(THREADS), 0, stream, *r, peer, x, bytes);
}

cudaError_t mx_comm_take(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                         uint32_t peer, void *y, size_t bytes)
{
	return mx_launch(take, dim3(blocks), dim3(THREADS), 0, stream, *r, peer, y, bytes);
}

/* ---- loading ---- */

cudaError_t mx_comm_load_kernels(void)
{
	const void *kernels[] = {(const void *)sum_shares<float>,
	                         (const void *)sum_shares<__nv_bfloat16>,
	                         (const void *)collect,
	                         (const void *)columns,
	                         (const void *)meet_all,
	                         (const void *)give,
	                         (const void *)take};
	cudaFuncAttributes a;
	cudaError_t e = cudaSuccess;
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
		e = cudaFuncGetAttributes(&a, kernels[i]);
	return e;
}
