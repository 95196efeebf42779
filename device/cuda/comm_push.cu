/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small sums over ranks, alone or with the residual add and the rmsnorm behind them.
 *
 * Each rank writes its elements into a slot in the memory of every peer, and reads the peers'
 * elements from its own. A packet of 8 bytes, which is written and read whole, holds 4 bytes of
 * elements and a number that grows with every use of the block's slots, so that a reader knows when
 * they are there: a sum takes one way over the link, without fences and flags. That doubles the
 * bytes, which small sums do not notice.
 *
 * A block has two slots for each peer, by turns. A rank writes the slot of two uses ago: it has the
 * peer's elements of the last use, which the peer sent after it had read those of the use before.
 *
 * An element is ((x0 + x1) + x2) + ... in f32, rounded once; with the norm behind it the bits are
 * those of the operator add_rmsnorm (rows.cu) on the sum.
 */
#include "device/cuda/comm.cuh"
#include "device/cuda/norm.cuh"

#define THREADS 512
#define MAX     MX_CUDA_MAX_RANKS

/* Writes a thread's vectors, number first + j * step of the slot for each j, to all peers. */
template <typename T, int V>
static __device__ __forceinline__ void send(const struct mx_comm_rank &r, const vec<T> (&own)[V],
                                            uint32_t first, uint32_t step, uint32_t end,
                                            uint32_t number)
{
	for (uint32_t k = 1; k < r.ranks; k++) { /* each begins with another peer */
		const uint32_t peer = (r.rank + k) % r.ranks;
		packets *to = slot_of(r, peer, r.rank, number);
#pragma unroll
		for (int j = 0; j < V; j++)
			if (first + j * step < end)
				put(to + first + j * step, own[j].all, number);
	}
}

/* Reads what a peer has sent. False if the communication has ended. */
template <typename T, int V>
static __device__ __forceinline__ bool take(const struct mx_comm_rank &r, uint32_t peer,
                                            uint32_t first, uint32_t step, uint32_t end,
                                            uint32_t number, vec<T> (&out)[V])
{
	const packets *from = slot_of(r, r.rank, peer, number);
	uint64_t begin = 0;
	for (uint32_t i = 1;; i++) {
		bool there = true;
		uint4 a[V], b[V];
#pragma unroll
		for (int j = 0; j < V; j++)
			if (first + j * step < end) {
				a[j] = load_peer(&from[first + j * step].half[0]);
				b[j] = load_peer(&from[first + j * step].half[1]);
			}
#pragma unroll
		for (int j = 0; j < V; j++)
			if (first + j * step < end) {
				there &=
					a[j].y == number && a[j].w == number && b[j].y == number && b[j].w == number;
				out[j].all = make_uint4(a[j].x, a[j].z, b[j].x, b[j].z);
			}
		if (there)
			return true;
		if (i % 1024 == 0 && !may_wait(r, &begin))
			return false;
	}
}

/* Replaces a thread's vectors by their sums over the ranks, in the order of the ranks. */
template <typename T, int V>
static __device__ __forceinline__ bool sum(const struct mx_comm_rank &r, vec<T> (&own)[V],
                                           uint32_t first, uint32_t step, uint32_t end,
                                           uint32_t number)
{
	constexpr int N = vec<T>::N;
	float total[V][N];
	bool fine = true;
	for (uint32_t i = 0; i < r.ranks; i++) {
		vec<T> v[V];
#pragma unroll
		for (int j = 0; j < V; j++)
			v[j] = own[j];
		if (i != r.rank && fine)
			fine = take<T, V>(r, i, first, step, end, number, v);
#pragma unroll
		for (int j = 0; j < V; j++)
#pragma unroll
			for (int k = 0; k < N; k++) {
				const float f = mx_to_float<T>(v[j].one[k]);
				total[j][k] = i ? total[j][k] + f : f;
			}
	}
#pragma unroll
	for (int j = 0; j < V; j++)
#pragma unroll
		for (int k = 0; k < N; k++)
			own[j].one[k] = mx_from_float<T>(total[j][k]);
	return fine;
}

/* Parts of V * THREADS vectors, one after the other. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS) sum_pushed(struct mx_comm_rank r, T *x, size_t n)
{
	constexpr size_t N = vec<T>::N, PART = V * THREADS * N;
	if (!r.shared)
		mx_pdl_launch();
	mx_pdl_wait();
	const uint64_t clock = start_clock(r);
	volatile uint32_t *uses = &r.memory[r.rank]->pushes[blockIdx.x];
	const bool whole = is_aligned(x, 16);
	uint32_t number = *uses;
	bool fine = true;
	for (size_t first = blockIdx.x * PART; first < n; first += gridDim.x * PART) {
		const size_t left = (n - first + N - 1) / N;
		const uint32_t end = left < V * THREADS ? (uint32_t)left : V * THREADS;
		vec<T> v[V] = {};
		number = next_number(number);
#pragma unroll
		for (int j = 0; j < V; j++)
			if (threadIdx.x + j * THREADS < end)
				v[j] = load(x, first + (threadIdx.x + j * THREADS) * N, n, whole);
		send<T, V>(r, v, threadIdx.x, THREADS, end, number);
		if (fine)
			fine = sum<T, V>(r, v, threadIdx.x, THREADS, end, number);
#pragma unroll
		for (int j = 0; j < V; j++)
			if (threadIdx.x + j * THREADS < end)
				store(x, first + (threadIdx.x + j * THREADS) * N, n, whole, v[j]);
		__syncthreads(); /* all have read the number, and their slots */
	}
	end_pushes(r, uses, number, clock);
}

/* h += the sum of y, then x = rmsnorm(h) * weight. A thread block has one row at a time. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
	norm_pushed(struct mx_comm_rank r, const T *y, T *h, const float *weight, float eps, uint32_t n,
                uint32_t width, T *x)
{
	constexpr int N = vec<T>::N;
	__shared__ float part[2][THREADS / 32];
	const uint32_t vectors = width / N, step = blockDim.x;
	float w[V][N];
	if (!r.shared)
		mx_pdl_launch();
#pragma unroll
	for (int j = 0; j < V; j++) {
		const uint32_t i = threadIdx.x + j * step;
#pragma unroll
		for (int k = 0; k < N; k += 4) {
			const float4 q =
				i < vectors ? mx_load_weights(weight + i * N + k) : make_float4(0, 0, 0, 0);
			w[j][k] = q.x;
			w[j][k + 1] = q.y;
			w[j][k + 2] = q.z;
			w[j][k + 3] = q.w;
		}
	}
	mx_pdl_wait();
	const uint64_t clock = start_clock(r);
	volatile uint32_t *uses = &r.memory[r.rank]->pushes[blockIdx.x];
	uint32_t number = *uses;
	bool fine = true;
	int turn = 0;
	for (uint32_t row = blockIdx.x; row < n; row += gridDim.x, turn ^= 1) {
		const size_t at = (size_t)row * width;
		vec<T> v[V] = {}, a[V] = {};
		number = next_number(number);
#pragma unroll
		for (int j = 0; j < V; j++)
			if (threadIdx.x + j * step < vectors)
				v[j].all = load_peer(y + at + (threadIdx.x + j * step) * N);
		send<T, V>(r, v, threadIdx.x, step, vectors, number);
#pragma unroll
		for (int j = 0; j < V; j++)
			if (threadIdx.x + j * step < vectors)
				a[j].all = *(const uint4 *)(h + at + (threadIdx.x + j * step) * N);
		if (fine)
			fine = sum<T, V>(r, v, threadIdx.x, step, vectors, number);
		float squares = 0;
#pragma unroll
		for (int j = 0; j < V; j++) {
			const uint32_t i = threadIdx.x + j * step;
			if (i >= vectors)
				continue;
#pragma unroll
			for (int k = 0; k < N; k++) {
				a[j].one[k] =
					mx_from_float<T>(mx_to_float<T>(a[j].one[k]) + mx_to_float<T>(v[j].one[k]));
				const float f = mx_to_float<T>(a[j].one[k]);
				squares = fmaf(f, f, squares);
			}
			*(uint4 *)(h + at + i * N) = a[j].all;
		}
		const float all = mx_block_sum(squares, part[turn], blockDim.x, [] { __syncthreads(); });
		const float scale = 1.0f / sqrtf(all / (float)width + eps);
#pragma unroll
		for (int j = 0; j < V; j++) {
			const uint32_t i = threadIdx.x + j * step;
			if (i >= vectors)
				continue;
#pragma unroll
			for (int k = 0; k < N; k++)
				a[j].one[k] = mx_from_float<T>(mx_to_float<T>(a[j].one[k]) * scale * w[j][k]);
			*(uint4 *)(x + at + i * N) = a[j].all;
		}
	}
	end_pushes(r, uses, number, clock);
}

/* ---- launches ---- */

static uint32_t grid_of(const struct mx_comm_rank *r, size_t wanted)
{
	const uint32_t most = r->shared ? MX_COMM_FEW_BLOCKS : r->push_blocks;
	return wanted < most ? (uint32_t)wanted : most;
}

bool mx_comm_may_push(const struct mx_comm_rank *r, size_t bytes)
{
	return bytes * (r->ranks - 1) <= MX_COMM_PUSH_MOST;
}

/* Threads have one vector each if there are blocks enough, else two. */
template <typename T>
static cudaError_t push_sum(const struct mx_comm_rank *r, cudaStream_t stream, T *x, size_t n)
{
	constexpr size_t PART = THREADS * vec<T>::N;
	const size_t parts = (n + PART - 1) / PART, blocks = grid_of(r, parts);
	const int each = parts <= blocks ? 1 : 2;
	auto kernel = each == 1 ? sum_pushed<T, 1> : sum_pushed<T, 2>;
	return mx_launch(kernel, dim3(grid_of(r, (parts + each - 1) / each)), dim3(THREADS), 0, stream,
	                 *r, x, n);
}

cudaError_t mx_comm_push_sum(const struct mx_comm_rank *r, cudaStream_t stream, void *x, size_t n,
                             enum mx_dtype dtype)
{
	return dtype == MX_F32 ? push_sum(r, stream, (float *)x, n)
	                       : push_sum(r, stream, (__nv_bfloat16 *)x, n);
}

bool mx_comm_may_push_norm(const struct mx_comm_rank *r, const struct mx_comm_norm *norm,
                           enum mx_dtype dtype)
{
	const size_t row = norm->width * mx_dtype_size(dtype);
	const uintptr_t odd = (uintptr_t)norm->y | (uintptr_t)norm->h | (uintptr_t)norm->x |
	                      (uintptr_t)norm->weight | row;
	return odd % 16 == 0 && row / 16 <= MX_COMM_PUSH_VECTORS &&
	       norm->rows * row <= MX_COMM_PUSH_NORM && mx_comm_may_push(r, norm->rows * row);
}

template <typename T>
static cudaError_t push_norm(const struct mx_comm_rank *r, cudaStream_t stream,
                             const struct mx_comm_norm *norm)
{
	const mx_norm_shape shape = mx_norm_shape_of((uint32_t)(norm->width / vec<T>::N));
	auto kernel = shape.each == 1   ? norm_pushed<T, 1>
	              : shape.each == 2 ? norm_pushed<T, 2>
	                                : norm_pushed<T, 4>;
	return mx_launch(kernel, dim3(grid_of(r, norm->rows)), dim3(shape.threads), 0, stream, *r,
	                 (const T *)norm->y, (T *)norm->h, norm->weight, norm->eps, norm->rows,
	                 norm->width, (T *)norm->x);
}

cudaError_t mx_comm_push_norm(const struct mx_comm_rank *r, cudaStream_t stream,
                              const struct mx_comm_norm *norm, enum mx_dtype dtype)
{
	return dtype == MX_F32 ? push_norm<float>(r, stream, norm)
	                       : push_norm<__nv_bfloat16>(r, stream, norm);
}

cudaError_t mx_comm_load_push(void)
{
	const void *kernels[] = {
		(const void *)sum_pushed<float, 1>,          (const void *)sum_pushed<float, 2>,
		(const void *)sum_pushed<__nv_bfloat16, 1>,  (const void *)sum_pushed<__nv_bfloat16, 2>,
		(const void *)norm_pushed<float, 1>,         (const void *)norm_pushed<float, 2>,
		(const void *)norm_pushed<float, 4>,         (const void *)norm_pushed<__nv_bfloat16, 1>,
		(const void *)norm_pushed<__nv_bfloat16, 2>, (const void *)norm_pushed<__nv_bfloat16, 4>,
	};
	cudaFuncAttributes a;
	cudaError_t e = cudaSuccess;
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
		e = cudaFuncGetAttributes(&a, kernels[i]);
	return e;
}
