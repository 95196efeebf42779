/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of experts whose matrices are packed (device/quant_pack.h), with few links each, as in
 * decoding: limited by reading panels. Items, lanes and sums are those of experts_few.cu; a warp
 * multiplies blocks of panels as linear_quant_few.cu does. Each warp has its own ring of blocks in
 * shared memory, filled by bulk copies, which continues across items. Compute capability 9.0 and
 * up.
 *
 * Items of gate and up have a run of 16 rows of each, those of down one run, so that there are
 * items for all CTAs where a step has one row.
 */
#include "device/cuda/bulk.cuh"
#include "device/cuda/experts_few.cuh"
#include "device/cuda/experts_quant.h"
#include "device/cuda/linear_quant_block.cuh"

#define COLS        MX_QUANT_FRAGMENT
#define ITEMS       64 /* of a CTA whose places are looked up together */
#define MOST_STAGES 24
#define LEAST       3 /* stages */
#define BARRIERS    (WARPS * MOST_STAGES * 8)
#define SMEM        (111 * 1024) /* at most: two CTAs fill a multiprocessor's, with their items */

static_assert(TILE == MX_QUANT_ROWS, "a run is a panel");

namespace
{

/* Panels of an expert, and the links that they are multiplied with. */
struct item {
	const unsigned char *w[2];
	uint32_t row; /* the first run's first, of the matrix */
	uint32_t tile;
};

template <bool DOWN> constexpr __host__ __device__ int runs_of()
{
	return DOWN ? 1 : 2;
}

#if __CUDA_ARCH__ >= 900

template <bool DOWN>
__device__ __forceinline__ item find_item(const mx_cuda_experts &p, const matrices &m,
                                          size_t panel_bytes, uint32_t i)
{
	const uint32_t tile = i / m.groups, group = i % m.groups, last = (m.rows - 1) / TILE;
	const mx_expert_weights *w = &p.tiles[tile].w;
	const unsigned char *up = (const unsigned char *)w->up;
	if (DOWN)
		return {{(const unsigned char *)w->down + group * panel_bytes, NULL}, group * TILE, tile};
	if (p.m.gated)
		return {{(const unsigned char *)w->gate + group * panel_bytes, up + group * panel_bytes},
		        group * TILE,
		        tile};
	return {{up + 2 * group * panel_bytes, up + min(2 * group + 1, last) * panel_bytes},
	        2 * group * TILE,
	        tile};
}

/* Columns 8t .. 8t+7 of each 32 of a block; zeros behind the last column and for no row. */
template <int NT>
__device__ __forceinline__ void load_x(uint4 (&to)[NT][4], const bf16 *const (&x)[NT],
                                       uint32_t block, uint32_t t, uint32_t cols)
{
#pragma unroll
	for (int k = 0; k < NT; k++)
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t col = block * COLS + j * 32 + t * 8;
			to[k][j] = x[k] && col < cols ? *(const uint4 *)(x[k] + col) : make_uint4(0, 0, 0, 0);
		}
}
#endif

template <int CODES, int OFFSET, int SCALING, int NT, bool DOWN>
__global__ void __launch_bounds__(WARPS * 32, 2)
	few_packed(const mx_cuda_experts p, const mx_cuda_quant q, const uint32_t stages)
{
#if __CUDA_ARCH__ >= 900
	constexpr int RUNS = runs_of<DOWN>();
	constexpr uint32_t KEEPS = keeps(SCALING, OFFSET);
	extern __shared__ __align__(128) unsigned char smem[]; /* barriers, kept, stages, sums */
	__shared__ item items[ITEMS];
	const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = lane_id();
	const uint32_t g = lane / 4, t = lane % 4, bytes = q.super_bytes;
	const matrices m = matrices_of<DOWN, RUNS>(p.m);
	const uint32_t blocks = (m.cols + COLS - 1) / COLS;
	const uint32_t bars = (uint32_t)__cvta_generic_to_shared(smem) + warp * MOST_STAGES * 8;
	kept *const k = (kept *)(smem + BARRIERS) + warp * KEEPS;
	unsigned char *const rings = smem + BARRIERS + WARPS * KEEPS * sizeof(kept);
	unsigned char *const mine = rings + warp * stages * bytes;
	const uint32_t ring = (uint32_t)__cvta_generic_to_shared(mine);
	float *const sums = (float *)(rings + WARPS * stages * bytes);
	const uint32_t second = q.group_shift == 6 ? 64 : 0;
	const uint32_t center = (0x4300 | q.center) * 0x10001;
	if (lane == 0) {
#pragma unroll 1
		for (uint32_t s = 0; s < stages; s++)
			barrier_init(bars + s * 8, 1);
		barriers_ready();
	}
	__syncwarp();
	mx_pdl_launch();
	mx_pdl_wait();
	const uint32_t all = *p.n_tiles * m.groups;
	uint32_t stage = 0, parity = 0, ahead = 0; /* read next, filled next */
	for (uint32_t begin = blockIdx.x; begin < all; begin += ITEMS * gridDim.x) {
		const uint32_t n = min((uint32_t)ITEMS, (all - begin - 1) / gridDim.x + 1);
		__syncthreads(); /* the items before have been read */
		if (threadIdx.x < n)
			items[threadIdx.x] =
				find_item<DOWN>(p, m, (size_t)blocks * bytes, begin + threadIdx.x * gridDim.x);
		__syncthreads();

		/* what the ring is filled with next: item, block of columns, run */
		uint32_t to = warp < blocks ? 0 : n, to_block = warp, to_run = 0;
		auto fill = [&]() {
			if (to >= n)
				return;
			if (lane == 0) {
				barrier_expect(bars + ahead * 8, bytes);
				copy_bulk(ring + ahead * bytes, items[to].w[to_run] + (size_t)to_block * bytes,
				          bytes, bars + ahead * 8);
			}
			ahead = ahead + 1 == stages ? 0 : ahead + 1;
			if (++to_run == RUNS) {
				to_run = 0;
				to_block += WARPS;
				if (to_block >= blocks)
					to_block = warp, to++;
			}
		};
#pragma unroll 1
		for (uint32_t s = 0; s < stages; s++)
			fill();

#pragma unroll 1
		for (uint32_t i = 0; i < n; i++) {
			const mx_expert_tile tile = p.tiles[items[i].tile];
			const bf16 *x[NT];
#pragma unroll
			for (int l = 0; l < NT; l++)
				x[l] = row_of<DOWN>(p, tile, l * 8 + g);
			float acc[RUNS][NT][4] = {};
			uint4 next[NT][4];
			load_x<NT>(next, x, warp, t, m.cols);
#pragma unroll 1
			for (uint32_t block = warp; block < blocks; block += WARPS) {
				uint4 b[NT][4];
#pragma unroll
				for (int l = 0; l < NT; l++)
#pragma unroll
					for (int j = 0; j < 4; j++)
						b[l][j] = next[l][j];
				load_x<NT>(next, x, block + WARPS, t, m.cols);
#pragma unroll
				for (int r = 0; r < RUNS; r++) {
					const unsigned char *data = mine + stage * bytes;
					barrier_wait(bars + stage * 8, parity);
					if (KEEPS) {
						keep<CODES, OFFSET, SCALING>(k, q, data, lane);
						__syncwarp();
					}
					const beside of = {data + g * (SCALING == BY_F32 ? 8 : 4),
					                   data + q.zeros + g * 2, k, second};
					multiply<CODES, OFFSET, SCALING, NT>(
						acc[r], b, (const uint4 *)(data + q.codes) + lane, of, g, t, center);
					__syncwarp(); /* the stage and what is kept of it have been read */
					if (++stage == stages)
						stage = 0, parity ^= 1;
					fill();
				}
			}
			if (i)
				__syncthreads(); /* the sums of the item before have been read */
			store_parts<RUNS, NT>(acc, sums);
			__syncthreads();
			if (DOWN)
				store_down<RUNS, NT>(p, items[i].row, tile, sums);
			else
				store_up<RUNS, NT>(p, items[i].row, tile, sums);
		}
	}
#endif
}

/* ---- launches ---- */

typedef void few_f(const mx_cuda_experts, const mx_cuda_quant, const uint32_t);

enum { N_SIZES = 4 }; /* gate and up by 8 and by 16 links, down by 8 and by 16 */

few_f *const kernels[][N_SIZES] = {
#define KERNEL(codes, offset, scaling)                                                             \
	{                                                                                              \
		few_packed<codes, offset, scaling, 1, false>,                                              \
			few_packed<codes, offset, scaling, 2, false>,                                          \
			few_packed<codes, offset, scaling, 1, true>,                                           \
			few_packed<codes, offset, scaling, 2, true>                                            \
	}
	KERNEL(MX_CODES_E2M1, MX_OFFSET_NONE, BY_BF16), KERNEL(MX_CODES_E4M3, MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_CODES_E4M3, MX_OFFSET_NONE, BY_KEPT), KERNEL(MX_CODES_4, MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_CODES_4, MX_OFFSET_ZERO, BY_KEPT),    KERNEL(MX_CODES_4, MX_OFFSET_MIN, BY_KEPT),
	KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_KEPT),    KERNEL(MX_CODES_8, MX_OFFSET_MIN, BY_KEPT),
	KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_SMALL),   KERNEL(MX_CODES_4, MX_OFFSET_NONE, BY_SMALL),
	KERNEL(MX_CODES_4, MX_OFFSET_MIN, BY_SMALL),
#undef KERNEL
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* Returns the row of the table for a form. Kernels with zeros also compute forms without. */
int kernel_of(const mx_cuda_quant &q)
{
	const scaling by = scaling_of(q);
	const bool minima = q.offset == MX_OFFSET_MIN;
	if (by == BY_SMALL)
		return q.codes_as == MX_CODES_8 ? 8 : 9 + minima;
	switch (q.codes_as) {
	case MX_CODES_E2M1: return 0;
	case MX_CODES_E4M3: return by == BY_F32 ? 1 : 2;
	case MX_CODES_4: return minima ? 5 : q.offset == MX_OFFSET_NONE && by == BY_F32 ? 3 : 4;
	default: return 6 + minima;
	}
}

/* Returns how many `kept` a warp has. */
uint32_t kept_by(int kernel)
{
	return kernel == 0 || kernel == 1 || kernel == 3 ? 0 : kernel == 10 ? 2 : 1;
}

/* Returns the dynamic shared memory of a CTA where a thread block has at most `room`. */
uint32_t smem_of(size_t room)
{
	const size_t left = room - ITEMS * sizeof(item);
	return left < SMEM ? (uint32_t)left : SMEM;
}

template <bool DOWN>
cudaError_t launch(const mx_cuda_experts &p, const mx_cuda_quant &q, int sms, size_t room,
                   cudaStream_t stream)
{
	constexpr uint32_t RUNS = runs_of<DOWN>();
	const uint32_t nt = p.tile <= 8 ? 1 : 2, rows = DOWN ? p.m.cols : p.m.width;
	const uint32_t each = !DOWN && p.m.gated ? TILE : RUNS * TILE;
	const uint64_t most = (uint64_t)p.max_tiles * ((rows + each - 1) / each);
	const uint32_t ctas = (uint32_t)(most < 2 * (uint64_t)sms ? most : 2 * (uint64_t)sms);
	const int kernel = kernel_of(q);
	const uint32_t fixed = BARRIERS + WARPS * kept_by(kernel) * (uint32_t)sizeof(kept) +
	                       WARPS * RUNS * nt * SUM_TILE * (uint32_t)sizeof(float);
	const uint32_t each_stage = WARPS * q.super_bytes, fit = (smem_of(room) - fixed) / each_stage;
	const uint32_t stages = fit < MOST_STAGES ? fit : MOST_STAGES;
	if (stages < LEAST)
		return cudaErrorInvalidValue;
	return mx_launch(kernels[kernel][(DOWN ? 2 : 0) + nt - 1], dim3(ctas), dim3(WARPS * 32),
	                 fixed + stages * each_stage, stream, p, q, stages);
}

} // namespace

cudaError_t mx_cuda_experts_quant_few_setup(size_t room)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * N_SIZES && e == cudaSuccess; i++)
		e = cudaFuncSetAttribute(kernels[i / N_SIZES][i % N_SIZES],
		                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_of(room));
	return e;
}

cudaError_t mx_cuda_experts_quant_few(const struct mx_cuda_experts *p,
                                      const struct mx_cuda_quant *up,
                                      const struct mx_cuda_quant *down, int sms, size_t room,
                                      cudaStream_t stream)
{
	cudaError_t e = launch<false>(*p, *up, sms, room, stream);
	return e == cudaSuccess ? launch<true>(*p, *down, sms, room, stream) : e;
}
