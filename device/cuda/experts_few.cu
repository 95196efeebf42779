/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of experts. Few links an expert, as in decoding: the cost is reading the matrices of the
 * experts that rows chose, once for each tile of links.
 *
 * The work is divided into items: a tile of links and 32 rows of its expert's matrices (16 of gate
 * and 16 of up). CTA i processes every gridDim-th item from item i on. As in linear_few.cu each
 * warp has its own blocks of columns and its own ring of blocks in shared memory, filled by
 * cp.async, so that warps wait for one another only to add up an item, and the ring continues
 * across items.
 */
#include "device/cuda/experts_few.cuh"

#define BLOCK_MEM (TILE * MX_LINEAR_BLOCK * 2)
#define ITEMS     64 /* of a CTA whose places are looked up together */

namespace
{

/* Two runs of TILE rows of an expert's matrices, and the links that they are multiplied with. */
struct item {
	const bf16 *w[2];
	uint32_t row[2]; /* of the matrices; may lie behind the last */
	uint32_t tile;
};

template <bool DOWN>
__device__ __forceinline__ item find_item(const mx_cuda_experts &p, const matrices &m, uint32_t i)
{
	const uint32_t tile = i / m.groups, group = i % m.groups;
	const mx_expert_weights *w = &p.tiles[tile].w;
	if (!DOWN && p.m.gated)
		return {{(const bf16 *)w->gate, (const bf16 *)w->up}, {group * TILE, group * TILE}, tile};
	const bf16 *from = (const bf16 *)(DOWN ? w->down : w->up);
	return {{from, from}, {group * 2 * TILE, group * 2 * TILE + TILE}, tile};
}

template <int NT, int S> constexpr size_t few_smem()
{
	return (size_t)WARPS * (S * BLOCK_MEM + 2 * NT * SUM_TILE * sizeof(float));
}

template <int NT, int S, bool DOWN>
__global__ void __launch_bounds__(WARPS * 32, 2) few(const mx_cuda_experts p)
{
	extern __shared__ __align__(128) unsigned char smem[];
	__shared__ item items[ITEMS];
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem) + warp * (S * BLOCK_MEM);
	float *sums = (float *)(smem + WARPS * S * BLOCK_MEM); /* [lanes][2][NT][8 links][pitch] */
	const matrices m = matrices_of<DOWN, 2>(p.m);
	const uint32_t blocks = (m.cols + MX_LINEAR_BLOCK - 1) / MX_LINEAR_BLOCK;
	mx_pdl_launch();
	mx_pdl_wait();
	const uint32_t all = *p.n_tiles * m.groups;
	for (uint32_t begin = blockIdx.x; begin < all; begin += ITEMS * gridDim.x) {
		const uint32_t n = min((uint32_t)ITEMS, (all - begin - 1) / gridDim.x + 1);
		__syncthreads(); /* the items before have been read */
		if (threadIdx.x < n)
			items[threadIdx.x] = find_item<DOWN>(p, m, begin + threadIdx.x * gridDim.x);
		__syncthreads();

		/* where the ring is filled: item, block of columns, run */
		uint32_t to = warp < blocks ? 0 : n, to_block = warp, to_run = 0;
		auto fill = [&](uint32_t stage) {
			if (to < n) {
				const uint32_t unit = lane % MX_LINEAR_UNITS;
				const uint32_t col = to_block * MX_LINEAR_BLOCK + unit * 8;
				const bool valid = col < m.cols;
				const bf16 *from = items[to].w[to_run] + (valid ? col : 0);
				const uint32_t first = items[to].row[to_run];
#pragma unroll
				for (uint32_t i = 0; i < 4; i++) {
					const uint32_t r = i * 4 + lane / MX_LINEAR_UNITS;
					const uint32_t row = min(first + r, m.rows - 1);
					mx_copy16(ring + stage * BLOCK_MEM + mx_linear_at(r, unit),
					          from + (size_t)row * m.cols, valid);
				}
				to_run ^= 1;
				to_block += to_run ? 0 : WARPS;
				if (to_block >= blocks)
					to_block = warp, to++;
			}
			mx_copy_commit();
		};
#pragma unroll 1
		for (uint32_t s = 0; s < S - 1; s++)
			fill(s);

		uint32_t stage = 0, before = S - 1;
		for (uint32_t i = 0; i < n; i++) {
			const mx_expert_tile tile = p.tiles[items[i].tile];
			const bf16 *x[NT];
#pragma unroll
			for (int k = 0; k < NT; k++)
				x[k] = row_of<DOWN>(p, tile, k * 8 + g);
			float acc[2][NT][4] = {};
			for (uint32_t block = warp; block < blocks; block += WARPS) {
				uint4 b[NT][2];
#pragma unroll
				for (int k = 0; k < NT; k++)
#pragma unroll
					for (int j = 0; j < 2; j++) {
						const uint32_t col = block * MX_LINEAR_BLOCK + j * 32 + t * 8;
						b[k][j] = x[k] && col < m.cols ? *(const uint4 *)(x[k] + col)
						                               : make_uint4(0, 0, 0, 0);
					}
#pragma unroll
				for (int r = 0; r < 2; r++) {
					mx_copy_wait<S - 2>();
					__syncwarp();
					fill(before);
#pragma unroll
					for (uint32_t j = 0; j < 2; j++) {
						const uint32_t from = ring + stage * BLOCK_MEM;
						const uint4 lo = mx_shared16(from + mx_linear_at(g, j * 4 + t));
						const uint4 hi = mx_shared16(from + mx_linear_at(g + 8, j * 4 + t));
#pragma unroll
						for (int k = 0; k < NT; k++)
							mx_mma32(acc[r][k], lo, hi, b[k][j]);
					}
					before = stage;
					stage = stage + 1 == S ? 0 : stage + 1;
				}
			}
			if (i)
				__syncthreads(); /* the sums of the item before have been read */
			store_parts<2, NT>(acc, sums);
			__syncthreads();
			if (DOWN)
				store_down<2, NT>(p, items[i].row[0], tile, sums);
			else
				store_up<2, NT>(p, items[i].row[0], tile, sums);
		}
		mx_copy_wait<0>();
	}
}

template <int NT, int S, bool DOWN>
cudaError_t launch(const mx_cuda_experts &p, int sms, cudaStream_t stream)
{
	const uint32_t rows = DOWN ? p.m.cols : p.m.width, each = !DOWN && p.m.gated ? TILE : 2 * TILE;
	const uint64_t most = (uint64_t)p.max_tiles * ((rows + each - 1) / each);
	const uint32_t ctas = (uint32_t)(most < 2 * (uint64_t)sms ? most : 2 * (uint64_t)sms);
	return mx_launch(few<NT, S, DOWN>, dim3(ctas), dim3(WARPS * 32), few_smem<NT, S>(), stream, p);
}

template <int NT, int S> cudaError_t few_as(const mx_cuda_experts &p, int sms, cudaStream_t stream)
{
	cudaError_t e = launch<NT, S, false>(p, sms, stream);
	return e == cudaSuccess ? launch<NT, S, true>(p, sms, stream) : e;
}

template <int NT, int S> cudaError_t allow(void)
{
	const int bytes = (int)few_smem<NT, S>();
	cudaError_t e =
		cudaFuncSetAttribute(few<NT, S, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
	return e != cudaSuccess
	           ? e
	           : cudaFuncSetAttribute(few<NT, S, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                  bytes);
}

/* Stages of a ring: two CTAs fill the shared memory of a multiprocessor of compute capability 9.0.
 */
#define STAGES(NT) ((NT) == 1 ? 6 : (NT) == 2 ? 5 : 4)

/* True if a thread block, which has at most `room`, has room for such a ring; else it is a stage
 * shorter. The sums are the same. */
template <int NT> bool is_deep(size_t room)
{
	return few_smem<NT, STAGES(NT)>() + ITEMS * sizeof(item) <= room;
}

template <int NT> cudaError_t allow_rings(size_t room)
{
	return is_deep<NT>(room) ? allow<NT, STAGES(NT)>() : allow<NT, STAGES(NT) - 1>();
}

template <int NT>
cudaError_t few_in_rings(const mx_cuda_experts &p, int sms, size_t room, cudaStream_t stream)
{
	return is_deep<NT>(room) ? few_as<NT, STAGES(NT)>(p, sms, stream)
	                         : few_as<NT, STAGES(NT) - 1>(p, sms, stream);
}

/* ---- any: a warp a row of an expert's matrices; eight rows and one tile a block ---- */

/* Returns the product of two rows of n elements to every lane. */
template <typename T> __device__ __forceinline__ float dot(const T *w, const T *x, uint32_t n)
{
	float sum = 0;
	for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
		sum = fmaf(mx_to_float<T>(w[i]), mx_to_float<T>(x[i]), sum);
#pragma unroll
	for (int m = 16; m; m /= 2)
		sum += __shfl_xor_sync(~0u, sum, m);
	return sum;
}

template <typename T> __global__ void __launch_bounds__(WARPS * 32) up_any(const mx_cuda_experts p)
{
	const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32, cols = p.m.cols;
	mx_pdl_launch();
	mx_pdl_wait();
	if (blockIdx.y >= *p.n_tiles || row >= p.m.width)
		return;
	const mx_expert_tile tile = p.tiles[blockIdx.y];
	const mx_expert_weights &w = tile.w;
	for (uint32_t i = 0; i < tile.n; i++) {
		const T *x = (const T *)p.x + (size_t)(p.order[tile.first + i] / p.m.rule.chosen) * cols;
		const float up = dot<T>((const T *)w.up + (size_t)row * cols, x, cols);
		const float gate =
			p.m.gated ? dot<T>((const T *)w.gate + (size_t)row * cols, x, cols) : 0.0f;
		if (threadIdx.x % 32 == 0)
			((T *)p.product)[(size_t)(tile.first + i) * p.m.width + row] =
				mx_from_float<T>(mx_feed(p.m, w, row, gate, up));
	}
}

template <typename T>
__global__ void __launch_bounds__(WARPS * 32) down_any(const mx_cuda_experts p)
{
	const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32, width = p.m.width;
	mx_pdl_launch();
	mx_pdl_wait();
	if (blockIdx.y >= *p.n_tiles || row >= p.m.cols)
		return;
	const mx_expert_tile tile = p.tiles[blockIdx.y];
	const mx_expert_weights &w = tile.w;
	for (uint32_t i = 0; i < tile.n; i++) {
		const T *x = (const T *)p.product + (size_t)(tile.first + i) * width;
		const float v = dot<T>((const T *)w.down + (size_t)row * width, x, width);
		if (threadIdx.x % 32 == 0)
			((T *)p.out)[(size_t)p.order[tile.first + i] * p.m.cols + row] =
				mx_from_float<T>(v + (w.down_bias ? w.down_bias[row] : 0.0f));
	}
}

template <typename T> cudaError_t any_as(const mx_cuda_experts &p, cudaStream_t stream)
{
	cudaError_t e = mx_launch(up_any<T>, dim3((p.m.width + WARPS - 1) / WARPS, p.max_tiles),
	                          dim3(WARPS * 32), 0, stream, p);
	return e != cudaSuccess
	           ? e
	           : mx_launch(down_any<T>, dim3((p.m.cols + WARPS - 1) / WARPS, p.max_tiles),
	                       dim3(WARPS * 32), 0, stream, p);
}

} // namespace

cudaError_t mx_cuda_experts_few_setup(size_t room)
{
	cudaError_t e = allow_rings<1>(room);
	if (e == cudaSuccess)
		e = allow_rings<2>(room);
	return e == cudaSuccess ? allow_rings<4>(room) : e;
}

cudaError_t mx_cuda_experts_few(const struct mx_cuda_experts *p, int sms, size_t room,
                                cudaStream_t stream)
{
	return p->tile == 8    ? few_in_rings<1>(*p, sms, room, stream)
	       : p->tile == 16 ? few_in_rings<2>(*p, sms, room, stream)
	                       : few_in_rings<4>(*p, sms, room, stream);
}

cudaError_t mx_cuda_experts_any(const struct mx_cuda_experts *p, bool bf16, cudaStream_t stream)
{
	return bf16 ? any_as<__nv_bfloat16>(*p, stream) : any_as<float>(*p, stream);
}
