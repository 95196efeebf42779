/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of 17 to 128 rows with quantised weights whose groups have 128 columns: limited by
 * reading W, and x once for each tile of rows of W. Compute capability 9.0a.
 *
 * A first kernel writes x as wgmma reads it: for each 128 columns the rows behind one another, with
 * the order of columns of linear_quant_tile.cuh and the swizzle, so that the second brings a stage
 * of x with one bulk copy. In that one a warp fills a ring of stages of 128 columns, codes and x;
 * two warpgroups of 64 rows of W each make bf16 of their codes in registers, the A operand, in
 * halves, so that the second half's conversion runs beside the first half's products.
 *
 * The CTAs of a cluster have other columns of the same rows of W, and add their sums through their
 * shared memories, in the order of the columns.
 */
#include <cooperative_groups.h>

#include "device/cuda/linear_quant_stream.h"
#include "device/cuda/linear_quant_tile.cuh"

#define COLS         MX_QUANT_FRAGMENT
#define ROWS         MX_TILE_ROWS
#define WARPS        MX_TILE_WARPS
#define THREADS      (WARPS * 32) /* that multiply; a warpgroup more fills the ring */
#define BARRIERS     1024         /* bytes; x behind them is aligned for the swizzle */
#define MOST_STAGES  24
#define MOST_CLUSTER 8
#define BLOCK        256

namespace
{

/* ---- x ---- */

/* A thread moves eight columns of a row. */
__global__ void __launch_bounds__(BLOCK)
	arrange(const mx_cuda_product p, uint32_t N, uint32_t blocks, unsigned char *to)
{
	const uint32_t i = blockIdx.x * BLOCK + threadIdx.x, k = i % 16, block = i / 16 % blocks;
	const uint32_t r = i / 16 / blocks, col = block * COLS + k * 8;
	mx_pdl_launch();
	mx_pdl_wait();
	if (r >= N)
		return;
	uint4 v = make_uint4(0, 0, 0, 0);
	if (r < p.n && col < p.cols)
		v = *(const uint4 *)((const __nv_bfloat16 *)p.x + r * p.ldx + col);
	const uint32_t w[4] = {v.x, v.y, v.z, v.w};
	unsigned char *row =
		to + (size_t)block * N * COLS * 2 + k / 8 * (N * 128) + r * 128 + k % 4 * 4;
#pragma unroll
	for (uint32_t j = 0; j < 4; j++)
		*(uint32_t *)(row + (((k / 4 % 2 * 4 + j) ^ (r & 7)) << 4)) = w[j];
}

/* ---- products ---- */

/* What a CTA multiplies. */
struct share {
	uint32_t first;        /* row of W */
	uint32_t begin, steps; /* blocks of columns */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Stores the outputs of this CTA's share of x's rows: the sums of the cluster in the order of
 * columns. */
template <typename O>
__device__ __forceinline__ void store(const mx_cuda_product &p, uint32_t first, float *sums)
{
	namespace cg = cooperative_groups;
	const cg::cluster_group cluster = cg::this_cluster();
	const uint32_t parts = cluster.num_blocks(), rank = cluster.block_rank();
	const uint32_t r = threadIdx.x % ROWS, step = THREADS / ROWS * parts;
#pragma unroll 2
	for (uint32_t i = threadIdx.x / ROWS * parts + rank; i < p.n; i += step) {
		float v = 0;
		for (uint32_t k = 0; k < parts; k++)
			v += cluster.map_shared_rank(sums, k)[i * MX_TILE_PITCH + r];
		if (first + r < p.rows)
			mx_linear_store<O>(p, i, first + r, v);
	}
}

/* The warp that fills the ring; called by all its lanes. */
template <int N>
__device__ __forceinline__ void feed(const mx_cuda_quant_product &a, const share &s,
                                     const unsigned char *image, uint32_t ring, uint32_t bars,
                                     uint32_t stages)
{
	constexpr uint32_t X = N * COLS * 2;
	const uint32_t lane = threadIdx.x % 32, super_bytes = a.q.super_bytes;
	const uint32_t blocks = (a.p.cols + COLS - 1) / COLS;
	const uint32_t panel =
		min(s.first / MX_QUANT_ROWS + min(lane, WARPS - 1), (a.p.rows - 1) / MX_QUANT_ROWS);
	const unsigned char *w =
		(const unsigned char *)a.p.w + ((size_t)panel * blocks + s.begin) * super_bytes;
	const uint32_t w_ring = ring + stages * X + lane * super_bytes;
	auto bring_w = [&](uint32_t step, uint32_t stage) {
		if (lane == 0)
			barrier_expect(bars + stage * 8, X + WARPS * super_bytes);
		__syncwarp();
		if (lane < WARPS)
			copy_bulk(w_ring + stage * WARPS * super_bytes, w + (size_t)step * super_bytes,
			          super_bytes, bars + stage * 8);
	};
	auto bring_x = [&](uint32_t step, uint32_t stage) {
		if (lane == 0)
			copy_bulk(ring + stage * X, image + (size_t)(s.begin + step) * X, X, bars + stage * 8);
	};
	const uint32_t early = min(stages, s.steps);
#pragma unroll 1
	for (uint32_t i = 0; i < early; i++)
		bring_w(i, i);
	mx_pdl_wait();
#pragma unroll 1
	for (uint32_t i = 0; i < early; i++)
		bring_x(i, i);
	uint32_t stage = 0, parity = 0;
#pragma unroll 1
	for (uint32_t i = early; i < s.steps; i++) {
		barrier_wait(bars + (stages + stage) * 8, parity);
		bring_w(i, stage);
		bring_x(i, stage);
		if (++stage == stages)
			stage = 0, parity ^= 1;
	}
}

/* A warpgroup's sums. `block`: this warp's block of the first stage. */
template <int CODES, int N>
__device__ __forceinline__ void multiply(float (&acc)[N / 2], const mx_cuda_quant &q,
                                         const unsigned char *block, uint32_t x_ring, uint32_t bars,
                                         uint32_t stages, uint32_t steps)
{
	constexpr uint32_t X = N * COLS * 2;
	const uint32_t lane = threadIdx.x % 32, g = lane / 4;
	float part[N / 2];
	uint32_t stage = 0, parity = 0;
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		acc[i] = 0;
#pragma unroll 1
	for (uint32_t step = 0; step < steps; step++) {
		const unsigned char *at = block + stage * WARPS * q.super_bytes;
		const uint64_t x = (uint64_t)(1024 >> 4 | 1u << 30) << 32 | (x_ring + stage * X) >> 4;
		barrier_wait(bars + stage * 8, parity);
		uint4 ops[4][2];
#pragma unroll
		for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
			for (uint32_t j = 2 * h; j < 2 * h + 2; j++)
				mx_tile_operands<CODES, MX_TILE_SUMS>(ops[j], q, at, lane, j);
			products_begin();
#pragma unroll
			for (uint32_t k = 4 * h; k < 4 * h + 4; k++)
				mx_tile_product<N>(part, ops[k / 2][k % 2], x + h * (N * 128 / 16) + k % 4 * 2,
				                   k > 0);
			products_commit();
		}
		const float2 scale = ((const float2 *)at)[g]; /* of rows g and g + 8 */
		products_wait<0>();
		hold(part);
		__syncwarp();
		if (lane == 0)
			barrier_arrive(bars + (stages + stage) * 8);
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			acc[i] = fmaf(i & 2 ? scale.y : scale.x, part[i], acc[i]);
		if (++stage == stages)
			stage = 0, parity ^= 1;
	}
}
#endif

/* CTAs of a multiprocessor. */
constexpr __host__ __device__ int ctas_of(int N)
{
	return N <= 64 ? 2 : 1;
}

/* Registers of a thread that multiplies. All start with as many as the number of threads allows, 80
 * or 168; then the warpgroup that fills the ring gives back all but 24, and the others take them.
 */
constexpr __host__ __device__ int registers_of(int N)
{
	return N <= 64 ? 104 : 240;
}

template <int CODES, int N>
__global__ void __launch_bounds__(THREADS + 128, ctas_of(N))
	stream(const mx_cuda_quant_product a, const unsigned char *image, const uint32_t stages)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	namespace cg = cooperative_groups;
	extern __shared__ __align__(1024) unsigned char smem[]; /* barriers, x, codes; sums */
	constexpr uint32_t X = N * COLS * 2;
	const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	const uint32_t blocks = (a.p.cols + COLS - 1) / COLS;
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
	const uint32_t begin = blocks * blockIdx.z / gridDim.z;
	const share s = {blockIdx.y * ROWS, begin, blocks * (blockIdx.z + 1) / gridDim.z - begin};
	mx_pdl_launch();
	if (threadIdx.x == 0) {
#pragma unroll 1
		for (uint32_t i = 0; i < stages; i++) {
			barrier_init(base + i * 8, 1);
			barrier_init(base + (stages + i) * 8, WARPS);
		}
		barriers_ready();
	}
	__syncthreads();
	if (warp >= WARPS) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
		if (warp == WARPS)
			feed<N>(a, s, image, base + BARRIERS, base, stages);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers_of(N)));
		const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
		float acc[N / 2];
		multiply<CODES, N>(acc, a.q, smem + BARRIERS + stages * X + warp * a.q.super_bytes,
		                   base + BARRIERS, base, stages, s.steps);
		mx_pdl_wait();                                             /* before outputs */
		asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); /* the ring is read */
		float *sums = (float *)(smem + BARRIERS);
		float *to = sums + 2 * t * MX_TILE_PITCH + warp * MX_QUANT_ROWS + g;
#pragma unroll
		for (int i = 0; i < N / 8; i++) {
			float *at = to + i * 8 * MX_TILE_PITCH;
			at[0] = acc[4 * i];
			at[MX_TILE_PITCH] = acc[4 * i + 1];
			at[8] = acc[4 * i + 2];
			at[MX_TILE_PITCH + 8] = acc[4 * i + 3];
		}
		cg::this_cluster().sync();
		if (a.p.bf16_out)
			store<__nv_bfloat16>(a.p, s.first, sums);
		else
			store<float>(a.p, s.first, sums);
		cg::this_cluster().sync(); /* others read this CTA's sums */
	}
#endif
}

/* ---- launches ---- */

typedef void stream_f(const mx_cuda_quant_product, const unsigned char *, const uint32_t);

const uint32_t widths[] = {32, 64, 128}; /* N of the kernels */
enum { N_WIDTHS = sizeof widths / sizeof *widths };

stream_f *const kernels[][N_WIDTHS] = {
	{stream<MX_CODES_4, 32>, stream<MX_CODES_4, 64>, stream<MX_CODES_4, 128>},
	{stream<MX_CODES_E4M3, 32>, stream<MX_CODES_E4M3, 64>, stream<MX_CODES_E4M3, 128>},
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

uint32_t width_of(uint32_t n)
{
	return n <= 32 ? 0 : n <= 64 ? 1 : 2;
}

/* Bytes of shared memory of a CTA. */
uint32_t room_of(uint32_t N)
{
	return (ctas_of(N) == 2 ? 113 : 227) * 1024;
}

} // namespace

extern "C" cudaError_t mx_cuda_quant_stream_setup(void)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * N_WIDTHS && e == cudaSuccess; i++)
		e = cudaFuncSetAttribute(kernels[i / N_WIDTHS][i % N_WIDTHS],
		                         cudaFuncAttributeMaxDynamicSharedMemorySize,
		                         (int)room_of(widths[i % N_WIDTHS]));
	return e;
}

extern "C" bool mx_cuda_quant_stream_can(const struct mx_cuda_quant *q)
{
	return q->group_shift == 7 && q->scales == MX_SCALES_F32 && q->offset != MX_OFFSET_MIN &&
	       (q->codes_as == MX_CODES_4 || q->codes_as == MX_CODES_E4M3);
}

extern "C" size_t mx_cuda_quant_stream_bytes(uint32_t n, uint32_t cols)
{
	return (size_t)widths[width_of(n)] * ((cols + COLS - 1) / COLS) * COLS * 2;
}

extern "C" cudaError_t mx_cuda_quant_stream(const struct mx_cuda_quant_product *p, void *image,
                                            int sms, cudaStream_t stream)
{
	const uint32_t width = width_of(p->p.n), N = widths[width];
	const uint32_t blocks = (p->p.cols + COLS - 1) / COLS, tiles = (p->p.rows + ROWS - 1) / ROWS;
	const uint32_t bytes = N * COLS * 2 + WARPS * p->q.super_bytes; /* of a stage */
	const uint32_t room = (room_of(N) - BARRIERS) / bytes;
	const uint32_t stages = room < MOST_STAGES ? room : MOST_STAGES, ring = stages * bytes;
	const uint32_t sums = N * MX_TILE_PITCH * 4;
	uint32_t parts = 1;
	while (parts < MOST_CLUSTER && parts * 2 <= blocks && tiles * parts <= (uint32_t)sms)
		parts *= 2;
	cudaError_t e = mx_launch(arrange, dim3((N * blocks * 16 + BLOCK - 1) / BLOCK), dim3(BLOCK), 0,
	                          stream, p->p, N, blocks, (unsigned char *)image);
	if (e != cudaSuccess)
		return e;
	/* the swizzle needs 1024 bytes' alignment of every CTA of a multiprocessor */
	const size_t smem = (BARRIERS + (ring > sums ? ring : sums) + 1023) / 1024 * 1024;
	return mx_launch_clusters(dim3(1, 1, parts),
	                          kernels[p->q.codes_as == MX_CODES_4 ? 0 : 1][width],
	                          dim3(1, tiles, parts), dim3(THREADS + 128), smem, stream, *p,
	                          (const unsigned char *)image, stages);
}
