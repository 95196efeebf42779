/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of experts with many links each, as in prompts: limited by arithmetic. A block
 * multiplies a tile of BM links with ROWS rows of an expert's matrices, BK columns at a time, which
 * cp.async brings to shared memory while tensor cores multiply those before. x is the A operand of
 * mma.m16n8k16, gathered by link; rows of a matrix are B. A warp has 32 rows of gate and the same
 * 32 of up, so that a thread has both sums of an element of the feed-forward's product.
 */
#include "device/cuda/experts.cuh"
#include "device/cuda/linear.cuh"

#define THREADS 256
#define ROWS    128 /* of matrices: 64 of gate and 64 of up, or 128 of one */
#define BK      64  /* columns: 128 bytes of a row, eight units of 16 */
#define STAGES  3
#define ROW_MEM (BK * 2)

namespace
{

typedef __nv_bfloat16 bf16;

/* Returns the byte offset of a unit of a row in shared memory: eight rows that are read together
 * have no bank conflicts. */
__device__ __forceinline__ uint32_t place(uint32_t row, uint32_t unit)
{
	return row * ROW_MEM + ((unit ^ (row & 7)) << 4);
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(from)
	             : "memory");
}

template <int BM> constexpr size_t many_smem()
{
	return (size_t)STAGES * (BM + ROWS) * ROW_MEM;
}
static_assert(many_smem<128>() <= 99 * 1024, "thread blocks of 8.6, 8.9 and 12.0 have no more");

template <int BM, bool DOWN>
__global__ void __launch_bounds__(THREADS, 2) many(const mx_cuda_experts p)
{
	constexpr int MI = BM / 64; /* tiles of 16 links of a warp: four warps share BM links */
	extern __shared__ __align__(128) unsigned char smem[];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint32_t warp_m = warp % 4, warp_n = warp / 4;
	const uint32_t rows = DOWN ? p.m.cols : p.m.width, cols = DOWN ? p.m.width : p.m.cols;
	const bool pair = !DOWN && p.m.gated;
	mx_pdl_launch();
	mx_pdl_wait();
	if (blockIdx.y >= *p.n_tiles)
		return;
	const mx_expert_tile tile = p.tiles[blockIdx.y];
	const uint32_t first = blockIdx.x * (pair ? ROWS / 2 : ROWS);

	/* What this thread copies: a unit of every 32nd row. */
	const uint32_t unit = threadIdx.x % 8, copied = threadIdx.x / 8;
	const bf16 *x[BM / 32], *w[ROWS / 32];
#pragma unroll
	for (int i = 0; i < BM / 32; i++) {
		const uint32_t link = copied + i * 32;
		x[i] = link >= tile.n ? NULL
		       : DOWN         ? (const bf16 *)p.product + (size_t)(tile.first + link) * cols
		                      : (const bf16 *)p.x +
		                    (size_t)(p.order[tile.first + link] / p.m.rule.chosen) * cols;
	}
#pragma unroll
	for (int i = 0; i < ROWS / 32; i++) {
		const uint32_t row = copied + i * 32;
		const bf16 *from = (const bf16 *)(DOWN            ? tile.w.down
		                                  : pair && i < 2 ? tile.w.gate
		                                                  : tile.w.up);
		const uint32_t at = first + (pair ? row % (ROWS / 2) : row);
		w[i] = from + (size_t)min(at, rows - 1) * cols;
	}
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
	const uint32_t steps = (cols + BK - 1) / BK;
	auto fill = [&](uint32_t step) {
		if (step < steps) {
			const uint32_t to = base + step % STAGES * ((BM + ROWS) * ROW_MEM);
			const uint32_t col = step * BK + unit * 8;
			const bool valid = col < cols;
#pragma unroll
			for (int i = 0; i < BM / 32; i++)
				mx_copy16(to + place(copied + i * 32, unit),
				          x[i] && valid ? x[i] + col : (const bf16 *)p.x, x[i] && valid);
#pragma unroll
			for (int i = 0; i < ROWS / 32; i++)
				mx_copy16(to + BM * ROW_MEM + place(copied + i * 32, unit),
				          w[i] + (valid ? col : 0), valid);
		}
		mx_copy_commit();
	};
#pragma unroll
	for (uint32_t s = 0; s < STAGES - 1; s++)
		fill(s);

	float acc[MI][8][4] = {}; /* columns: 32 rows of gate, then 32 of up */
	for (uint32_t step = 0; step < steps; step++) {
		mx_copy_wait<STAGES - 2>();
		__syncthreads();
		fill(step + STAGES - 1);
		const uint32_t from = base + step % STAGES * ((BM + ROWS) * ROW_MEM);
#pragma unroll
		for (uint32_t k = 0; k < BK / 16; k++) {
			uint32_t a[MI][4];
#pragma unroll
			for (int i = 0; i < MI; i++)
				load_matrices(
					a[i], from + place(warp_m * 16 * MI + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
			for (int n = 0; n < 8; n += 2) {
				/* two tiles of 8 rows, each with columns 0 .. 7 and 8 .. 15 of this k */
				const uint32_t row =
					(n < 4 ? 0 : ROWS / 2) + warp_n * 32 + (n % 4) * 8 + lane / 16 * 8 + lane % 8;
				uint32_t b[4];
				load_matrices(b, from + BM * ROW_MEM + place(row, k * 2 + lane / 8 % 2));
#pragma unroll
				for (int i = 0; i < MI; i++) {
					mx_mma(acc[i][n], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
					mx_mma(acc[i][n + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
				}
			}
		}
	}
	mx_copy_wait<0>();

	/* A thread has rows 2t and 2t + 1 of each 8, for links g and g + 8 of each 16. */
	const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
	for (int i = 0; i < MI; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint32_t link = warp_m * 16 * MI + i * 16 + h * 8 + g;
			if (link >= tile.n)
				continue;
			bf16 *to = DOWN ? (bf16 *)p.out + (size_t)p.order[tile.first + link] * p.m.cols
			                : (bf16 *)p.product + (size_t)(tile.first + link) * p.m.width;
#pragma unroll
			for (int n = 0; n < (pair ? 4 : 8); n++) {
				const uint32_t at =
					first + (n < 4 ? 0 : ROWS / 2) + warp_n * 32 + (n % 4) * 8 + 2 * t;
				if (at >= rows)
					continue;
				float v[2] = {acc[i][n][2 * h], acc[i][n][2 * h + 1]};
#pragma unroll
				for (int e = 0; e < 2; e++)
					if (DOWN)
						v[e] += tile.w.down_bias ? tile.w.down_bias[at + e] : 0.0f;
					else
						v[e] = mx_feed(p.m, tile.w, at + e, v[e],
						               pair ? acc[i][(n + 4) % 8][2 * h + e] : v[e]);
				*(__nv_bfloat162 *)(to + at) = __floats2bfloat162_rn(v[0], v[1]);
			}
		}
}

template <int BM, bool DOWN> cudaError_t launch(const mx_cuda_experts &p, cudaStream_t stream)
{
	const uint32_t rows = DOWN ? p.m.cols : p.m.width, each = !DOWN && p.m.gated ? ROWS / 2 : ROWS;
	return mx_launch(many<BM, DOWN>, dim3((rows + each - 1) / each, p.max_tiles), dim3(THREADS),
	                 many_smem<BM>(), stream, p);
}

template <int BM> cudaError_t many_as(const mx_cuda_experts &p, cudaStream_t stream)
{
	cudaError_t e = launch<BM, false>(p, stream);
	return e == cudaSuccess ? launch<BM, true>(p, stream) : e;
}

template <int BM> cudaError_t allow(void)
{
	const int bytes = (int)many_smem<BM>();
	cudaError_t e =
		cudaFuncSetAttribute(many<BM, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
	return e != cudaSuccess
	           ? e
	           : cudaFuncSetAttribute(many<BM, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                  bytes);
}

} // namespace

cudaError_t mx_cuda_experts_many_setup(void)
{
	cudaError_t e = allow<64>();
	return e == cudaSuccess ? allow<128>() : e;
}

cudaError_t mx_cuda_experts_many(const struct mx_cuda_experts *p, cudaStream_t stream)
{
	return p->tile == 64 ? many_as<64>(*p, stream) : many_as<128>(*p, stream);
}
