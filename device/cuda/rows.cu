/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on rows: norms, SwiGLU, rotary embedding, embedding, scaling, gathering, moving.
 *
 * All are limited by memory bandwidth: elements move in 16-byte vectors if widths,
 * strides and pointers allow it, else one by one. This choice, and how a row is
 * divided among threads, depends on the shape alone, so a row's bits depend on that
 * row alone. Arithmetic is f32, rounded once when it is stored.
 *
 * ids, rows, pos, rope->inv_freq and norm weights are device memory.
 */
#include <stdint.h>

#include "device/cuda/acts.cuh"
#include "device/cuda/impl.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/norm.cuh"

#define WARP 32

template <typename T> using pack = mx_pack<T>;

template <typename T> static __device__ __forceinline__ pack<T> load(const T *p)
{
	return *reinterpret_cast<const pack<T> *>(p);
}

template <typename T> static __device__ __forceinline__ void store(T *p, const pack<T> &v)
{
	*reinterpret_cast<pack<T> *>(p) = v;
}

static bool aligned(const void *p)
{
	return (uintptr_t)p % 16 == 0;
}

static uint32_t div_up(size_t n, size_t by)
{
	return (uint32_t)((n + by - 1) / by);
}

static mx_status check(struct mx_device *d, cudaError_t e, const char *what)
{
	return mx_cuda_check(d, e, what);
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
	for (int i = WARP / 2; i; i /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, i);
	return v;
}

/* Returns the sum over the thread block to every thread. No thread may still read part[]. */
static __device__ __forceinline__ float block_sum(float v, float *part)
{
	return mx_block_sum(v, part, blockDim.x, [] { __syncthreads(); });
}

/* ---- rmsnorm ---- */

/* y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019). If ADD, x += r first, and the
 * norm is that of the stored (rounded) x. A thread block processes one row at a time, with the row
 * and the weights in registers, V vectors a thread. */
template <typename T, int V, bool ADD>
static __global__ void __launch_bounds__(512)
	rmsnorm_vectors(T *x, const T *r, const float *weight, float eps, uint32_t n, uint32_t width,
                    T *y)
{
	constexpr int N = pack<T>::N;
	__shared__ float part[2][512 / WARP];
	const uint32_t vectors = width / N;
	float w[V][N];
	mx_pdl_launch();
#pragma unroll
	for (int j = 0; j < V; j++) {
		uint32_t i = threadIdx.x + j * blockDim.x;
#pragma unroll
		for (int k = 0; k < N; k += 4) {
			float4 q = {};
			if (i < vectors)
				q = mx_load_weights(weight + i * N + k);
			w[j][k] = q.x;
			w[j][k + 1] = q.y;
			w[j][k + 2] = q.z;
			w[j][k + 3] = q.w;
		}
	}
	mx_pdl_wait();
	int turn = 0;
	for (uint32_t row = blockIdx.x; row < n; row += gridDim.x, turn ^= 1) {
		const size_t at = (size_t)row * width;
		pack<T> v[V], a[V];
#pragma unroll
		for (int j = 0; j < V; j++) {
			uint32_t i = threadIdx.x + j * blockDim.x;
			if (i < vectors) {
				v[j] = load(x + at + i * N);
				if (ADD)
					a[j] = load(r + at + i * N);
			}
		}
		float sum = 0;
#pragma unroll
		for (int j = 0; j < V; j++) {
			uint32_t i = threadIdx.x + j * blockDim.x;
			if (i >= vectors)
				continue;
#pragma unroll
			for (int k = 0; k < N; k++) {
				if (ADD)
					v[j].v[k] =
						mx_from_float<T>(mx_to_float<T>(v[j].v[k]) + mx_to_float<T>(a[j].v[k]));
				float f = mx_to_float<T>(v[j].v[k]);
				sum = fmaf(f, f, sum);
			}
			if (ADD)
				store(x + at + i * N, v[j]);
		}
		float scale = 1.0f / sqrtf(block_sum(sum, part[turn]) / (float)width + eps);
#pragma unroll
		for (int j = 0; j < V; j++) {
			uint32_t i = threadIdx.x + j * blockDim.x;
			if (i >= vectors)
				continue;
#pragma unroll
			for (int k = 0; k < N; k++)
				v[j].v[k] = mx_from_float<T>(mx_to_float<T>(v[j].v[k]) * scale * w[j][k]);
			store(y + at + i * N, v[j]);
		}
	}
}

/* The same for rows of any width. */
template <typename T, bool ADD>
static __global__ void __launch_bounds__(256)
	rmsnorm_any(T *x, const T *r, const float *weight, float eps, uint32_t n, uint32_t width, T *y)
{
	__shared__ float part[2][256 / WARP];
	mx_pdl_launch();
	mx_pdl_wait();
	int turn = 0;
	for (uint32_t row = blockIdx.x; row < n; row += gridDim.x, turn ^= 1) {
		const size_t at = (size_t)row * width;
		float sum = 0;
		for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
			float f = mx_to_float<T>(x[at + i]);
			if (ADD) {
				x[at + i] = mx_from_float<T>(f + mx_to_float<T>(r[at + i]));
				f = mx_to_float<T>(x[at + i]);
			}
			sum = fmaf(f, f, sum);
		}
		float scale = 1.0f / sqrtf(block_sum(sum, part[turn]) / (float)width + eps);
		for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
			y[at + i] = mx_from_float<T>(mx_to_float<T>(x[at + i]) * scale * weight[i]);
	}
}

template <typename T, bool ADD>
static cudaError_t rmsnorm_as(struct mx_device *d, T *x, const T *r, const float *weight, float eps,
                              size_t n, size_t width, T *y)
{
	constexpr int N = pack<T>::N;
	const size_t vectors = width / N;
	const cudaStream_t stream = mx_cuda_stream(d);
	const uint32_t most = (uint32_t)mx_cuda_base(d)->sms * 8;
	const dim3 grid(n < most ? (uint32_t)n : most);
	bool fits = width % N == 0 && vectors <= 512 * 4 && aligned(x) && aligned(y) &&
	            aligned(weight) && (!ADD || aligned(r));
	if (!fits)
		return mx_launch(rmsnorm_any<T, ADD>, grid, dim3(256), 0, stream, x, r, weight, eps, n,
		                 width, y);
	const mx_norm_shape shape = mx_norm_shape_of((uint32_t)vectors);
	auto kernel = shape.each == 1   ? rmsnorm_vectors<T, 1, ADD>
	              : shape.each == 2 ? rmsnorm_vectors<T, 2, ADD>
	                                : rmsnorm_vectors<T, 4, ADD>;
	return mx_launch(kernel, grid, dim3(shape.threads), 0, stream, x, r, weight, eps, n, width, y);
}

mx_status mx_cuda_rmsnorm(struct mx_device *d, const void *x, const float *weight, float eps,
                          size_t n, size_t width, void *y)
{
	if (!n)
		return MX_OK;
	/* without a residual x is only read */
	void *rx = const_cast<void *>(x);
	return check(
		d,
		mx_cuda_bf16(d)
			? rmsnorm_as<__nv_bfloat16, false>(d, (__nv_bfloat16 *)rx, nullptr, weight, eps, n,
	                                           width, (__nv_bfloat16 *)y)
			: rmsnorm_as<float, false>(d, (float *)rx, nullptr, weight, eps, n, width, (float *)y),
		"rmsnorm");
}

mx_status mx_cuda_add_rmsnorm(struct mx_device *d, void *x, const void *r, const float *weight,
                              float eps, size_t n, size_t width, void *y)
{
	if (!n)
		return MX_OK;
	return check(d,
	             mx_cuda_bf16(d) ? rmsnorm_as<__nv_bfloat16, true>(
									   d, (__nv_bfloat16 *)x, (const __nv_bfloat16 *)r, weight, eps,
									   n, width, (__nv_bfloat16 *)y)
	                             : rmsnorm_as<float, true>(d, (float *)x, (const float *)r, weight,
	                                                       eps, n, width, (float *)y),
	             "add_rmsnorm");
}

/* ---- two-dimensional grids: block (row, part of the columns) ---- */

#define BLOCK 256

/* Returns the thread's column, in vectors or elements. */
static __device__ __forceinline__ uint32_t column(void)
{
	return blockIdx.y * BLOCK + threadIdx.x;
}

static dim3 grid_of(size_t n, size_t columns)
{
	return dim3((uint32_t)n, div_up(columns, BLOCK));
}

/* ---- silu_mul ---- */

template <typename T> static __device__ __forceinline__ T silu(T gate, T up)
{
	float g = mx_to_float<T>(gate), u = mx_to_float<T>(up);
	return mx_from_float<T>(sizeof(T) == 2 ? mx_silu_mul_fast(g, u) : g / (1.0f + expf(-g)) * u);
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	silu_mul_vectors(const T *gate, size_t ld_gate, const T *up, size_t ld_up, uint32_t vectors,
                     T *y, size_t ld_y)
{
	constexpr int N = pack<T>::N;
	const size_t row = blockIdx.x;
	const uint32_t i = column();
	mx_pdl_launch();
	mx_pdl_wait();
	if (i >= vectors)
		return;
	pack<T> g = load(gate + row * ld_gate + i * N), u = load(up + row * ld_up + i * N);
#pragma unroll
	for (int k = 0; k < N; k++)
		g.v[k] = silu(g.v[k], u.v[k]);
	store(y + row * ld_y + i * N, g);
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	silu_mul_any(const T *gate, size_t ld_gate, const T *up, size_t ld_up, uint32_t width, T *y,
                 size_t ld_y)
{
	const size_t row = blockIdx.x;
	const uint32_t i = column();
	mx_pdl_launch();
	mx_pdl_wait();
	if (i < width)
		y[row * ld_y + i] = silu(gate[row * ld_gate + i], up[row * ld_up + i]);
}

template <typename T>
static cudaError_t silu_mul_as(struct mx_device *d, const T *gate, size_t ld_gate, const T *up,
                               size_t ld_up, size_t n, size_t width, T *y, size_t ld_y)
{
	constexpr int N = pack<T>::N;
	const cudaStream_t stream = mx_cuda_stream(d);
	if ((width | ld_gate | ld_up | ld_y) % N || !aligned(gate) || !aligned(up) || !aligned(y))
		return mx_launch(silu_mul_any<T>, grid_of(n, width), dim3(BLOCK), 0, stream, gate, ld_gate,
		                 up, ld_up, width, y, ld_y);
	return mx_launch(silu_mul_vectors<T>, grid_of(n, width / N), dim3(BLOCK), 0, stream, gate,
	                 ld_gate, up, ld_up, width / N, y, ld_y);
}

mx_status mx_cuda_silu_mul(struct mx_device *d, const void *gate, size_t ld_gate, const void *up,
                           size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	if (!n)
		return MX_OK;
	return check(d,
	             mx_cuda_bf16(d)
	                 ? silu_mul_as<__nv_bfloat16>(d, (const __nv_bfloat16 *)gate, ld_gate,
	                                              (const __nv_bfloat16 *)up, ld_up, n, width,
	                                              (__nv_bfloat16 *)y, ld_y)
	                 : silu_mul_as<float>(d, (const float *)gate, ld_gate, (const float *)up, ld_up,
	                                      n, width, (float *)y, ld_y),
	             "silu_mul");
}

/* ---- rope ---- */

#define ROPE_MAX_DIM 512
#define ROPE_WARPS   8

/* V adjacent elements. */
template <typename T, int V> struct alignas(sizeof(T) * V) few {
	T v[V];
};

/* A thread block has ROPE_WARPS heads of a row, one a warp. The angle is rounded to f32 before sine
 * and cosine, as in the Hugging Face models. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROPE_WARPS *WARP)
	rope_heads(T *x, size_t ld, uint32_t n_heads, uint32_t head_dim, const float *inv_freq,
               uint32_t half, float scale, const uint32_t *pos, const float *norm, float eps)
{
	__shared__ float cosines[ROPE_MAX_DIM / 2], sines[ROPE_MAX_DIM / 2];
	const uint32_t lane = threadIdx.x % WARP, head = blockIdx.y * ROPE_WARPS + threadIdx.x / WARP;
	mx_pdl_launch();
	mx_pdl_wait();
	const float p = (float)pos[blockIdx.x];
	for (uint32_t i = threadIdx.x; i < half; i += ROPE_WARPS * WARP) {
		float s, c;
		sincosf(__fmul_rn(p, inv_freq[i]), &s, &c);
		cosines[i] = c * scale;
		sines[i] = s * scale;
	}
	__syncthreads();
	if (head >= n_heads)
		return;
	x += blockIdx.x * ld + (size_t)head * head_dim;
	float rms = 1;
	if (norm) {
		float sum = 0;
		for (uint32_t i = lane * V; i < head_dim; i += WARP * V) {
			few<T, V> q = *reinterpret_cast<const few<T, V> *>(x + i);
#pragma unroll
			for (int k = 0; k < V; k++)
				sum = fmaf(mx_to_float<T>(q.v[k]), mx_to_float<T>(q.v[k]), sum);
		}
		rms = 1.0f / sqrtf(warp_sum(sum) / (float)head_dim + eps);
		for (uint32_t i = 2 * half + lane; i < head_dim;
		     i += WARP) /* dimensions that are not rotated */
			x[i] = mx_from_float<T>(mx_to_float<T>(x[i]) * rms * norm[i]);
	}
	for (uint32_t i = lane * V; i < half; i += WARP * V) {
		few<T, V> *lo = reinterpret_cast<few<T, V> *>(x + i),
				  *hi = reinterpret_cast<few<T, V> *>(x + half + i);
		few<T, V> a = *lo, b = *hi;
#pragma unroll
		for (int k = 0; k < V; k++) {
			float f = mx_to_float<T>(a.v[k]), g = mx_to_float<T>(b.v[k]);
			float c = cosines[i + k], s = sines[i + k];
			if (norm) {
				f = f * rms * norm[i + k];
				g = g * rms * norm[half + i + k];
			}
			a.v[k] = mx_from_float<T>(f * c - g * s);
			b.v[k] = mx_from_float<T>(g * c + f * s);
		}
		*lo = a;
		*hi = b;
	}
}

template <typename T>
static cudaError_t rope_as(struct mx_device *d, T *x, size_t ld, size_t n, uint32_t n_heads,
                           uint32_t head_dim, const struct mx_rope *rope, const uint32_t *pos,
                           const float *norm, float eps)
{
	/* pairs fill a warp for heads of 128 */
	bool pairs = ld % 2 == 0 && head_dim % 2 == 0 && rope->dim % 4 == 0 && aligned(x);
	return mx_launch(pairs ? rope_heads<T, 2> : rope_heads<T, 1>,
	                 dim3((uint32_t)n, div_up(n_heads, ROPE_WARPS)), dim3(ROPE_WARPS * WARP), 0,
	                 mx_cuda_stream(d), x, ld, n_heads, head_dim, rope->inv_freq, rope->dim / 2,
	                 rope->scale, pos, norm, eps);
}

mx_status mx_cuda_rope(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
                       uint32_t head_dim, const struct mx_rope *rope, const uint32_t *pos,
                       const float *norm, float eps)
{
	if (rope->dim > ROPE_MAX_DIM || rope->dim % 2 || rope->dim > head_dim)
		return MX_E_UNSUPPORTED;
	if (!n || !n_heads)
		return MX_OK;
	return check(d,
	             mx_cuda_bf16(d) ? rope_as<__nv_bfloat16>(d, (__nv_bfloat16 *)x, ld, n, n_heads,
	                                                      head_dim, rope, pos, norm, eps)
	                             : rope_as<float>(d, (float *)x, ld, n, n_heads, head_dim, rope,
	                                              pos, norm, eps),
	             "rope");
}

/* ---- rows of a table: embed and gather ---- */

/* y[i] = row rows[i] of x [limit, width]. A row index beyond x gives NaN, which the sampler
 * reports. A thread writes up to N elements. */
template <typename S, typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
	take_rows(const S *x, const uint32_t *rows, uint32_t limit, uint32_t width, T *y)
{
	const uint32_t i = column() * N;
	mx_pdl_launch();
	mx_pdl_wait();
	if (i >= width)
		return;
	const uint32_t row = rows[blockIdx.x];
	few<T, N> out;
	few<S, N> in = {};
	if (row < limit)
		in = *reinterpret_cast<const few<S, N> *>(x + (size_t)row * width + i);
#pragma unroll
	for (int k = 0; k < N; k++)
		out.v[k] =
			mx_from_float<T>(row < limit ? mx_to_float<S>(in.v[k]) : __int_as_float(0x7fffffff));
	*reinterpret_cast<few<T, N> *>(y + (size_t)blockIdx.x * width + i) = out;
}

template <typename S, typename T>
static cudaError_t take_rows_as(struct mx_device *d, const void *x, const uint32_t *rows,
                                uint32_t limit, size_t n, size_t width, void *y)
{
	constexpr int N = 16 / (sizeof(S) > sizeof(T) ? sizeof(S) : sizeof(T));
	const cudaStream_t stream = mx_cuda_stream(d);
	if (width % N || !aligned(x) || !aligned(y))
		return mx_launch(take_rows<S, T, 1>, grid_of(n, width), dim3(BLOCK), 0, stream,
		                 (const S *)x, rows, limit, width, (T *)y);
	return mx_launch(take_rows<S, T, N>, grid_of(n, width / N), dim3(BLOCK), 0, stream,
	                 (const S *)x, rows, limit, width, (T *)y);
}

mx_status mx_cuda_embed(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
                        size_t n, void *y)
{
	const bool to_bf16 = mx_cuda_bf16(d), from_bf16 = table->dtype == MX_BF16;
	if (table->dtype == MX_F16)
		return MX_E_UNSUPPORTED;
	if (!n)
		return MX_OK;
	auto take = from_bf16
	                ? (to_bf16 ? take_rows_as<__nv_bfloat16, __nv_bfloat16>
	                           : take_rows_as<__nv_bfloat16, float>)
	                : (to_bf16 ? take_rows_as<float, __nv_bfloat16> : take_rows_as<float, float>);
	return check(d, take(d, table->data, (const uint32_t *)ids, table->rows, n, table->cols, y),
	             "embed");
}

mx_status mx_cuda_gather(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
                         size_t width, void *y)
{
	if (!n)
		return MX_OK;
	auto take =
		mx_cuda_bf16(d) ? take_rows_as<__nv_bfloat16, __nv_bfloat16> : take_rows_as<float, float>;
	return check(d, take(d, x, rows, UINT32_MAX, n, width, y), "gather");
}

/* ---- rows from and to anywhere ---- */

/* Copies n elements of each row. */
template <typename V>
static __global__ void __launch_bounds__(BLOCK)
	move_each(const struct mx_row_move *moves, uint32_t n)
{
	const uint32_t i = column();
	mx_pdl_launch();
	mx_pdl_wait();
	const struct mx_row_move m = moves[blockIdx.x];
	if (i < n && m.to)
		((V *)m.to)[i] = m.from ? ((const V *)m.from)[i] : V{};
}

template <typename V>
static cudaError_t move_as(struct mx_device *d, const struct mx_row_move *moves, size_t n,
                           size_t bytes)
{
	const uint32_t each = (uint32_t)(bytes / sizeof(V));
	return mx_launch(move_each<V>, grid_of(n, each), dim3(BLOCK), 0, mx_cuda_stream(d), moves,
	                 each);
}

mx_status mx_cuda_move_rows(struct mx_device *d, const struct mx_row_move *moves, size_t n,
                            size_t bytes)
{
	if (!n || !bytes)
		return MX_OK;
	auto move = bytes % 16 == 0  ? move_as<uint4>
	            : bytes % 4 == 0 ? move_as<uint32_t>
	                             : move_as<unsigned char>;
	return check(d, move(d, moves, n, bytes), "moving rows");
}

/* ---- scaling ---- */

/* y *= scale, or y += scale * a. Thread i has vector i, or one of the elements after the last
 * vector. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	scale_vectors(T *y, const T *a, size_t vectors, size_t n, float scale)
{
	constexpr int N = pack<T>::N;
	const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	if (i < vectors) {
		pack<T> v = load(y + i * N), b = a ? load(a + i * N) : v;
#pragma unroll
		for (int k = 0; k < N; k++) {
			float f = mx_to_float<T>(v.v[k]);
			v.v[k] = mx_from_float<T>(a ? fmaf(scale, mx_to_float<T>(b.v[k]), f) : f * scale);
		}
		store(y + i * N, v);
		return;
	}
	const size_t j = vectors * N + (i - vectors);
	if (j < n) {
		float f = mx_to_float<T>(y[j]);
		y[j] = mx_from_float<T>(a ? fmaf(scale, mx_to_float<T>(a[j]), f) : f * scale);
	}
}

template <typename T>
static cudaError_t scale_as(struct mx_device *d, T *y, const T *a, size_t n, float scale)
{
	constexpr int N = pack<T>::N;
	size_t vectors = aligned(y) && aligned(a) ? n / N : 0, rest = n - vectors * N;
	return mx_launch(scale_vectors<T>, dim3(div_up(vectors + rest, BLOCK)), dim3(BLOCK), 0,
	                 mx_cuda_stream(d), y, a, vectors, n, scale);
}

mx_status mx_cuda_add_scaled(struct mx_device *d, void *y, const void *a, size_t n, float scale)
{
	if (!n)
		return MX_OK;
	return check(d,
	             mx_cuda_bf16(d) ? scale_as<__nv_bfloat16>(d, (__nv_bfloat16 *)y,
	                                                       (const __nv_bfloat16 *)a, n, scale)
	                             : scale_as<float>(d, (float *)y, (const float *)a, n, scale),
	             "add_scaled");
}

mx_status mx_cuda_scale(struct mx_device *d, void *y, size_t n, float scale)
{
	return mx_cuda_add_scaled(d, y, NULL, n, scale);
}

static __global__ void __launch_bounds__(BLOCK)
	scale_columns(float *y, size_t ld, uint32_t vectors, uint32_t width, float scale)
{
	const uint32_t i = column();
	float *row = y + blockIdx.x * ld;
	mx_pdl_launch();
	mx_pdl_wait();
	if (i < vectors) {
		float4 *p = reinterpret_cast<float4 *>(row) + i, v = *p;
		*p = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
		return;
	}
	const uint32_t j = vectors * 4 + (i - vectors);
	if (j < width)
		row[j] *= scale;
}

mx_status mx_cuda_scale_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                               float scale)
{
	if (!n || !vocab)
		return MX_OK;
	uint32_t vectors = ld % 4 == 0 && aligned(y) ? vocab / 4 : 0;
	return check(d,
	             mx_launch(scale_columns, grid_of(n, vectors + (vocab - vectors * 4)), dim3(BLOCK),
	                       0, mx_cuda_stream(d), y, ld, vectors, vocab, scale),
	             "scale_logits");
}
