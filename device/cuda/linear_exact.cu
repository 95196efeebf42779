/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many rows whose sums have the order of `few` (linear.h): tiles of 128 rows of W times
 * N rows of x. The blocks of columns are multiplied lane by lane, each lane's sum in accumulators
 * that start from zero. And `any`, the product for every shape, with FMAs in the order of the
 * columns.
 */
#include "device/cuda/linear.cuh"

#define TILE_W  128
#define STAGES  4
#define THREADS 256

template <int N> static constexpr size_t exact_smem()
{
	return (size_t)STAGES * (TILE_W + N) * 128;
}
static_assert(exact_smem<64>() <= 99 * 1024, "thread blocks of 8.6, 8.9 and 12.0 have no more");

/* Position in the sequence of blocks: those of lane 0, those of lane 1 ... */
struct order {
	uint32_t lane, block;
	__device__ void next(uint32_t blocks)
	{
		block += MX_LINEAR_LANES;
		if (block >= blocks)
			block = ++lane;
	}
};

/* The warps are arranged 4 by 2 on the tile: 32 rows of W and N / 2 rows of x each. */
template <int N, typename O>
static __global__ void __launch_bounds__(THREADS) exact_bf16(const mx_cuda_product p)
{
	extern __shared__ __align__(128) unsigned char smem[];
	constexpr int NT = N / 16;
	constexpr uint32_t stage_mem = (TILE_W + N) * 128;
	constexpr int pitch = TILE_W + 4; /* floats, of the finished tile: [N][pitch] */
	static_assert(sizeof(float) * N * pitch <= STAGES * stage_mem, "the tile reuses the ring");
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem);
	const uint32_t token0 = blockIdx.x * N, row0 = blockIdx.y * TILE_W;
	const uint32_t blocks = (p.cols + MX_LINEAR_BLOCK - 1) / MX_LINEAR_BLOCK;

	mx_pdl_launch();
	mx_pdl_wait();

	order load = {0, 0};
	uint32_t loaded = 0;
	auto fill = [&]() {
		if (loaded < blocks) {
			const uint32_t to = ring + loaded % STAGES * stage_mem;
			const uint32_t unit = threadIdx.x % MX_LINEAR_UNITS;
			const uint32_t col = load.block * MX_LINEAR_BLOCK + unit * 8;
			const bool valid = col < p.cols;
			const __nv_bfloat16 *w = (const __nv_bfloat16 *)p.w + (valid ? col : 0);
			const __nv_bfloat16 *x = (const __nv_bfloat16 *)p.x + (valid ? col : 0);
#pragma unroll
			for (uint32_t r = threadIdx.x / MX_LINEAR_UNITS; r < TILE_W;
			     r += THREADS / MX_LINEAR_UNITS)
				mx_copy16(to + mx_linear_at(r, unit),
				          w + (size_t)min(row0 + r, p.rows - 1) * p.cols, valid);
#pragma unroll
			for (uint32_t r = threadIdx.x / MX_LINEAR_UNITS; r < N; r += THREADS / MX_LINEAR_UNITS)
				mx_copy16(to + TILE_W * 128 + mx_linear_at(r, unit),
				          x + (size_t)min(token0 + r, p.n - 1) * p.ldx, valid);
			load.next(blocks);
		}
		loaded++;
		mx_copy_commit();
	};
#pragma unroll 1
	for (int s = 0; s < STAGES - 1; s++)
		fill();

	const uint32_t w_row = warp % 4 * 32 + g, x_row = TILE_W + warp / 4 * (N / 2) + g;
	float total[2][NT][4], acc[2][NT][4] = {};
	order at = {0, 0};
	for (uint32_t i = 0; i < blocks; i++) {
		mx_copy_wait<STAGES - 2>();
		__syncthreads();
		fill();
		const uint32_t from = ring + i % STAGES * stage_mem;
#pragma unroll
		for (uint32_t j = 0; j < 2; j++) {
			uint4 w[2][2];
#pragma unroll
			for (uint32_t m = 0; m < 2; m++) {
				w[m][0] = mx_shared16(from + mx_linear_at(w_row + m * 16, j * 4 + t));
				w[m][1] = mx_shared16(from + mx_linear_at(w_row + m * 16 + 8, j * 4 + t));
			}
#pragma unroll
			for (uint32_t n = 0; n < NT; n++) {
				const uint4 x = mx_shared16(from + mx_linear_at(x_row + n * 8, j * 4 + t));
				mx_mma32(acc[0][n], w[0][0], w[0][1], x);
				mx_mma32(acc[1][n], w[1][0], w[1][1], x);
			}
		}
		const uint32_t of = at.lane;
		at.next(blocks);
		if (at.lane == of)
			continue;
#pragma unroll
		for (int m = 0; m < 2; m++)
#pragma unroll
			for (int n = 0; n < NT; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					total[m][n][e] = of == 0 ? acc[m][n][e] : total[m][n][e] + acc[m][n][e];
					acc[m][n][e] = 0;
				}
	}

	/* Through shared memory, so that writes to rows of y are coalesced. */
	__syncthreads();
	float *tile = (float *)smem;
#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				/* lanes without blocks add their zeros, as in `few` */
				const float v = blocks < MX_LINEAR_LANES ? total[m][n][e] + 0.0f : total[m][n][e];
				const uint32_t token = warp / 4 * (N / 2) + n * 8 + 2 * t + e % 2;
				tile[token * pitch + warp % 4 * 32 + m * 16 + g + e / 2 * 8] = v;
			}
	__syncthreads();
	for (uint32_t o = threadIdx.x; o < N * TILE_W; o += THREADS) {
		const uint32_t token = o / TILE_W, row = o % TILE_W;
		if (token0 + token < p.n && row0 + row < p.rows)
			mx_linear_store<O>(p, token0 + token, row0 + row, tile[token * pitch + row]);
	}
}

#define ANY_TILE 64
#define ANY_COLS 16

/* A thread block multiplies 64 rows of W with 64 rows of x; each of its 16 by 16 threads has every
 * 16th row of both. */
template <typename T, typename O>
static __global__ void __launch_bounds__(256) any_product(const mx_cuda_product p)
{
	__shared__ float w[ANY_COLS][ANY_TILE + 1], x[ANY_COLS][ANY_TILE + 1];
	const uint32_t tr = threadIdx.x % 16, tt = threadIdx.x / 16;
	const uint32_t row0 = blockIdx.x * ANY_TILE, token0 = blockIdx.y * ANY_TILE;
	mx_pdl_launch();
	mx_pdl_wait();
	float acc[4][4] = {};
	for (uint32_t c0 = 0; c0 < p.cols; c0 += ANY_COLS) {
		for (uint32_t i = threadIdx.x; i < ANY_TILE * ANY_COLS; i += 256) {
			const uint32_t r = i / ANY_COLS, c = i % ANY_COLS;
			const bool in = c0 + c < p.cols;
			w[c][r] = in && row0 + r < p.rows
			              ? mx_to_float<T>(((const T *)p.w)[(size_t)(row0 + r) * p.cols + c0 + c])
			              : 0.0f;
			x[c][r] = in && token0 + r < p.n
			              ? mx_to_float<T>(((const T *)p.x)[(size_t)(token0 + r) * p.ldx + c0 + c])
			              : 0.0f;
		}
		__syncthreads();
#pragma unroll
		for (int c = 0; c < ANY_COLS; c++)
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					acc[i][j] = fmaf(w[c][i * 16 + tr], x[c][j * 16 + tt], acc[i][j]);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const uint32_t row = row0 + i * 16 + tr, token = token0 + j * 16 + tt;
			if (row < p.rows && token < p.n)
				mx_linear_store<O>(p, token, row, acc[i][j]);
		}
}

template <typename O> static __global__ void __launch_bounds__(256) bias_rows(mx_cuda_product p)
{
	const uint32_t row = blockIdx.x * 256 + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	for (uint32_t token = blockIdx.y; row < p.rows && token < p.n; token += gridDim.y)
		mx_linear_store<O>(p, token, row, 0.0f);
}

template <int N, typename O> static cudaError_t allow_smem(cudaError_t e)
{
	return e != cudaSuccess
	           ? e
	           : cudaFuncSetAttribute(exact_bf16<N, O>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                  (int)exact_smem<N>());
}

extern "C" cudaError_t mx_cuda_linear_exact_setup(size_t room)
{
	cudaError_t e = allow_smem<64, float>(allow_smem<64, __nv_bfloat16>(cudaSuccess));
	return exact_smem<128>() > room ? e : allow_smem<128, float>(allow_smem<128, __nv_bfloat16>(e));
}

template <int N> static cudaError_t launch_exact(const mx_cuda_product &p, cudaStream_t stream)
{
	const dim3 grid((p.n + N - 1) / N, (p.rows + TILE_W - 1) / TILE_W);
	return mx_launch(p.bf16_out ? exact_bf16<N, __nv_bfloat16> : exact_bf16<N, float>, grid,
	                 dim3(THREADS), exact_smem<N>(), stream, p);
}

extern "C" cudaError_t mx_cuda_linear_exact(const struct mx_cuda_product *p, size_t room,
                                            cudaStream_t stream)
{
	return p->n <= 64 || exact_smem<128>() > room ? launch_exact<64>(*p, stream)
	                                              : launch_exact<128>(*p, stream);
}

extern "C" cudaError_t mx_cuda_linear_any(const struct mx_cuda_product *p, cudaStream_t stream)
{
	const dim3 grid((p->rows + ANY_TILE - 1) / ANY_TILE, (p->n + ANY_TILE - 1) / ANY_TILE);
	if (!p->bf16)
		return mx_launch(any_product<float, float>, grid, dim3(256), 0, stream, *p);
	return mx_launch(p->bf16_out ? any_product<__nv_bfloat16, __nv_bfloat16>
	                             : any_product<__nv_bfloat16, float>,
	                 grid, dim3(256), 0, stream, *p);
}

extern "C" cudaError_t mx_cuda_linear_bias(const struct mx_cuda_product *p, cudaStream_t stream)
{
	const dim3 grid((p->rows + 255) / 256, p->n < 4096 ? p->n : 4096);
	return mx_launch(p->bf16_out ? bias_rows<__nv_bfloat16> : bias_rows<float>, grid, dim3(256), 0,
	                 stream, *p);
}
