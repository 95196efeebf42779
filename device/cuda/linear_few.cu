/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows. Their cost is reading W, so every multiprocessor keeps
 * reads under way from before the previous kernel has ended until the end of its
 * last tile.
 *
 * bf16: W is divided into tiles of 16 rows, or fewer where CTAs get more equal shares so. There are
 * as many CTAs as multiprocessors; CTA i processes every gridDim-th tile from tile i on. Each warp
 * has its own blocks of columns and its own ring of blocks in shared memory, filled by cp.async (S
 * - 1 blocks of 2 KiB under way in each of 8 warps), so warps wait for one another only to add up a
 * tile. The ring is filled before the wait for the previous kernel and continues across tiles.
 * Tensor cores multiply, with W as the A operand and x, straight from memory, as B: 8, 16 or 32
 * rows of x cost the same instructions as one. x is read once for every R tiles.
 *
 * Gated products take tiles in pairs, one of gate and one of up. A second product's tiles follow
 * the first one's. With a norm, each CTA computes the norm of x by itself, into shared memory,
 * while its rings fill.
 */
#include "device/cuda/linear.cuh"
#include "device/cuda/norm.cuh"

#define WARPS     MX_LINEAR_LANES
#define TILE      16
#define BLOCK_MEM (TILE * MX_LINEAR_BLOCK * 2)
#define SUM_PITCH 20              /* floats from token to token: no bank conflicts */
#define SUM_TILE  (8 * SUM_PITCH) /* floats of a tile for 8 tokens */

/* Position of a warp in the sequence of its blocks: for each group of R tiles, for
 * each block of columns, for each tile. */
template <uint32_t R> struct cursor {
	uint32_t tile, tiles; /* of the group: first and number */
	uint32_t block, r;

	__device__ cursor(uint32_t first, uint32_t last, uint32_t warp)
		: tile(first), tiles(min(R, last - first)), block(warp), r(0)
	{
	}

	__device__ void next(uint32_t last, uint32_t warp, uint32_t blocks)
	{
		if (++r < tiles)
			return;
		r = 0;
		block += WARPS;
		if (block < blocks)
			return;
		block = warp;
		tile += tiles;
		tiles = min(R, last - tile);
	}
};

template <int NT, int R, int S> static constexpr size_t few_smem()
{
	return (size_t)WARPS * (S * BLOCK_MEM + R * NT * SUM_TILE * sizeof(float));
}

/* Tiles of `height` rows of the product and of its second one, whose tiles follow. */
static __host__ __device__ __forceinline__ uint32_t tiles_of(const mx_cuda_product &p,
                                                             uint32_t height)
{
	return (p.rows + height - 1) / height + (p.second.rows + height - 1) / height;
}

/* Returns the rows of a tile, TILE or fewer, with which no CTA has many more than another: the
 * fewest rows of the CTA that has most. Gated tiles are whole. */
static uint32_t height_of(const mx_cuda_product &p, uint32_t sms)
{
	const uint32_t least = (tiles_of(p, TILE) + sms - 1) / sms;
	uint32_t best = TILE, most = least * TILE;
	for (uint32_t each = least; each <= least + 2 && !p.gated; each++) {
		uint32_t height = ((p.rows + p.second.rows + each * sms - 1) / (each * sms) + 1) / 2 * 2;
		while (height <= TILE && tiles_of(p, height) > each * sms)
			height += 2;
		if (height <= TILE && each * height < most)
			most = each * height, best = height;
	}
	return best;
}

/* Loads row g of each 8 tokens of x [n, ldx] for one block: NT times two runs of 32 columns.
 */
template <int NT>
static __device__ __forceinline__ void few_x(uint4 (&f)[NT][2], const mx_cuda_product &p,
                                             const __nv_bfloat16 *x, size_t ldx, uint32_t block)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < NT; i++) {
		const uint32_t token = i * 8 + g;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			const uint32_t col = block * MX_LINEAR_BLOCK + j * 32 + t * 8;
			f[i][j] = make_uint4(0, 0, 0, 0);
			if (token < p.n && col < p.cols)
				f[i][j] = *(const uint4 *)(x + (size_t)token * ldx + col);
		}
	}
}

template <int NT, int R, int S, bool NORM, typename O>
static __global__ void __launch_bounds__(WARPS * 32, NT < 4 ? 2 : 1)
	few_bf16(const mx_cuda_product p, uint32_t height)
{
	extern __shared__ __align__(128) unsigned char smem[];
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem) + warp * (S * BLOCK_MEM);
	float *sums = (float *)(smem + WARPS * S * BLOCK_MEM); /* [lanes][R][NT][8 tokens][pitch] */
	const uint32_t behind = (p.rows + height - 1) / height * height; /* the second product's rows */
	const uint32_t tiles = tiles_of(p, height);                      /* if gated: pairs */
	const uint32_t rows = p.gated ? 2 * p.rows : p.rows;
	const uint32_t blocks = (p.cols + MX_LINEAR_BLOCK - 1) / MX_LINEAR_BLOCK;
	/* Tiles of this CTA, counted from 0: every gridDim-th, so that all CTAs read nearby addresses.
	 */
	const uint32_t first = 0, mine = (tiles - blockIdx.x - 1) / gridDim.x + 1;
	const uint32_t last = p.gated ? 2 * mine : mine;
	auto row_of = [&](uint32_t i) {
		return p.gated ? ((i / 2) * gridDim.x + blockIdx.x) * TILE + (i % 2) * p.rows
		               : (i * gridDim.x + blockIdx.x) * height;
	};

	/* Called first: the next kernel's rings are then full when this one ends, which hides the last
	 * sums of this kernel and the start of the next one's products. */
	mx_pdl_launch();
	cursor<R> at(first, last, warp);
	if (warp >= blocks)
		at.tile = last; /* this warp only helps to add up */
	const uint64_t once = mx_read_once();
	auto fill = [&](uint32_t stage) {
		if (at.tile < last) {
			const uint32_t unit = lane % MX_LINEAR_UNITS;
			const uint32_t col = at.block * MX_LINEAR_BLOCK + unit * 8;
			const bool valid = col < p.cols;
			uint32_t row0 = row_of(at.tile + at.r), end = rows;
			const void *w = p.w;
			if (p.second.rows && row0 >= behind)
				row0 -= behind, end = p.second.rows, w = p.second.w;
			const __nv_bfloat16 *from = (const __nv_bfloat16 *)w + (valid ? col : 0);
#pragma unroll
			for (uint32_t i = 0; i < 4; i++) {
				const uint32_t r = i * 4 + lane / MX_LINEAR_UNITS;
				const uint32_t row = min(row0 + r, end - 1);
				mx_copy16_as(ring + stage * BLOCK_MEM + mx_linear_at(r, unit),
				             from + (size_t)row * p.cols, valid && r < height, once);
			}
			at.next(last, warp, blocks);
		}
		mx_copy_commit();
	};
#pragma unroll 1
	for (uint32_t s = 0; s < S - 1; s++)
		fill(s);

	const __nv_bfloat16 *from_x = (const __nv_bfloat16 *)p.x;
	size_t ldx = p.ldx;
	if constexpr (NORM) {
		__shared__ float part[2 * 8];
		__nv_bfloat16 *normed = (__nv_bfloat16 *)(sums + WARPS * R * NT * SUM_TILE);
		mx_norm_weights weights;
		weights.load(p);
		mx_pdl_wait();
		mx_norm_rows(p, weights, normed, part);
		from_x = normed;
		ldx = p.cols;
	} else {
		mx_pdl_wait();
	}

	uint4 next[NT][2];
	few_x<NT>(next, p, from_x, ldx, warp);
	uint32_t stage = 0, before = S - 1; /* stages of the current block and of the one before it */
	for (uint32_t tile = first; tile < last; tile += R) {
		const uint32_t here = min((uint32_t)R, last - tile);
		float acc[R][NT][4] = {};
		for (uint32_t block = warp; block < blocks; block += WARPS) {
			uint4 x[NT][2];
#pragma unroll
			for (int i = 0; i < NT; i++)
				x[i][0] = next[i][0], x[i][1] = next[i][1];
			few_x<NT>(next, p, from_x, ldx, block + WARPS < blocks ? block + WARPS : warp);
#pragma unroll
			for (int r = 0; r < R; r++) {
				if (r >= here)
					break;
				mx_copy_wait<S - 2>();
				__syncwarp();
				fill(before);
#pragma unroll
				for (uint32_t j = 0; j < 2; j++) {
					const uint32_t from = ring + stage * BLOCK_MEM;
					const uint4 lo = mx_shared16(from + mx_linear_at(g, j * 4 + t));
					const uint4 hi = mx_shared16(from + mx_linear_at(g + 8, j * 4 + t));
#pragma unroll
					for (int i = 0; i < NT; i++)
						mx_mma32(acc[r][i], lo, hi, x[i][j]);
				}
				before = stage;
				stage = stage + 1 == S ? 0 : stage + 1;
			}
		}

		if (tile != first)
			__syncthreads(); /* the sums of the group before have been read */
#pragma unroll
		for (int r = 0; r < R; r++) {
#pragma unroll
			for (int i = 0; i < NT; i++) {
				float *to = sums + ((warp * R + r) * NT + i) * SUM_TILE + 2 * t * SUM_PITCH + g;
				to[0] = acc[r][i][0];
				to[SUM_PITCH] = acc[r][i][1];
				to[8] = acc[r][i][2];
				to[SUM_PITCH + 8] = acc[r][i][3];
			}
		}
		__syncthreads();
		auto sum_of = [&](uint32_t r, uint32_t token, uint32_t row) {
			const float *from =
				sums + (r * NT + token / 8) * SUM_TILE + token % 8 * SUM_PITCH + row;
			float v = from[0];
#pragma unroll
			for (int l = 1; l < WARPS; l++)
				v += from[l * R * NT * SUM_TILE];
			return v;
		};
		const uint32_t outputs = p.gated ? 1 : here;
		for (uint32_t o = threadIdx.x; o < outputs * NT * 8 * TILE; o += WARPS * 32) {
			const uint32_t row = o % TILE, token = o / TILE % (NT * 8), r = o / (TILE * NT * 8);
			const uint32_t out = row_of(tile + r) + row;
			if (row >= height)
				continue;
			if (p.second.rows && out >= behind && token < p.n && out - behind < p.second.rows) {
				float v = sum_of(r, token, row);
				if (p.second.bias)
					v += p.second.bias[out - behind];
				p.second.y[(size_t)token * p.second.ldy + out - behind] = v;
			}
			if (token >= p.n || out >= p.rows)
				continue;
			const float v = sum_of(r, token, row);
			if (p.gated)
				((O *)p.y)[(size_t)token * p.ldy + out] =
					mx_from_float<O>(mx_linear_gated(v, sum_of(1, token, row)));
			else
				mx_linear_store<O>(p, token, out, v);
		}
	}
}

/* f32: one warp for each row of W, which reads 512 bytes of it at a time. */
template <int N> static __global__ void __launch_bounds__(256) few_f32(const mx_cuda_product p)
{
	const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
	mx_pdl_launch();
	mx_pdl_wait();
	if (row >= p.rows)
		return;
	const float *w = (const float *)p.w + (size_t)row * p.cols;
	float acc[N] = {};
#pragma unroll 4
	for (uint32_t col = lane * 4; col < p.cols; col += 128) {
		const float4 a = __ldcs((const float4 *)(w + col));
#pragma unroll
		for (int i = 0; i < N; i++) {
			if (i >= p.n)
				break;
			const float4 b = *(const float4 *)((const float *)p.x + i * p.ldx + col);
			acc[i] = fmaf(a.x, b.x, acc[i]);
			acc[i] = fmaf(a.y, b.y, acc[i]);
			acc[i] = fmaf(a.z, b.z, acc[i]);
			acc[i] = fmaf(a.w, b.w, acc[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
#pragma unroll
		for (int m = 16; m; m /= 2)
			acc[i] += __shfl_xor_sync(~0u, acc[i], m);
		if (lane == 0 && i < p.n)
			mx_linear_store<float>(p, i, row, acc[i]);
	}
}

/* Most shared memory for the rows of x after their norm, so that two CTAs fit on a multiprocessor.
 */
#define NORM_BYTES (22 * 1024)
#define FIXED      128 /* bytes of static shared memory */

/* Returns the bytes for those rows where a thread block has at most `room`. */
static size_t norm_room(size_t room)
{
	const size_t left = room - few_smem<1, 2, 5>() - FIXED;
	return left < NORM_BYTES ? left : NORM_BYTES;
}

template <int NT, int R, int S, bool NORM, typename O>
static cudaError_t launch_bf16(const mx_cuda_product &p, int sms, cudaStream_t stream)
{
	const uint32_t height = height_of(p, (uint32_t)sms), tiles = tiles_of(p, height);
	const size_t normed = NORM ? (size_t)p.n * p.cols * 2 : 0;
	const size_t smem = few_smem<NT, R, S>() + normed;
	return mx_launch(few_bf16<NT, R, S, NORM, O>, dim3(min(tiles, (uint32_t)sms)), dim3(WARPS * 32),
	                 !NORM && p.wide ? (size_t)MX_CUDA_WIDE : smem, stream, p, height);
}

/* Launches with a ring of S stages, or one less where `room` is too small for it: the sums are the
 * same. */
template <int NT, int R, int S, typename O>
static cudaError_t launch_deep(const mx_cuda_product &p, int sms, size_t room, cudaStream_t stream)
{
	return few_smem<NT, R, S>() <= room ? launch_bf16<NT, R, S, false, O>(p, sms, stream)
	                                    : launch_bf16<NT, R, S - 1, false, O>(p, sms, stream);
}

/* Chooses the tiles at a time and the depth of the ring, so that a CTA of this kernel and one of
 * the next fit on a multiprocessor of compute capability 9.0 together. */
template <typename O>
static cudaError_t choose_bf16(const mx_cuda_product &p, int sms, size_t room, cudaStream_t stream)
{
	if (p.norm)
		return launch_bf16<1, 2, 5, true, O>(p, sms, stream);
	if (p.n <= 8)
		return launch_deep<1, 2, 6, O>(p, sms, room, stream);
	if (p.n <= 16 && p.rows < 8 * TILE * (uint32_t)sms)
		return launch_deep<2, 2, 5, O>(p, sms, room, stream);
	if (p.n <= 16)
		return launch_deep<2, 4, 4, O>(p, sms, room, stream);
	return launch_deep<4, 2, 4, O>(p, sms, room, stream);
}

template <int NT, int R, int S, bool NORM, typename O>
static cudaError_t allow_smem(size_t bytes, cudaError_t e)
{
	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(few_bf16<NT, R, S, NORM, O>,
		                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(few_bf16<NT, R, S, NORM, O>,
		                         cudaFuncAttributePreferredSharedMemoryCarveout,
		                         cudaSharedmemCarveoutMaxShared);
	return e;
}

template <int NT, int R, int S, typename O>
static cudaError_t allow_deep(size_t room, cudaError_t e)
{
	if (room >= MX_CUDA_WIDE)
		return allow_smem<NT, R, S, false, O>(MX_CUDA_WIDE, e);
	return few_smem<NT, R, S>() <= room
	           ? allow_smem<NT, R, S, false, O>(few_smem<NT, R, S>(), e)
	           : allow_smem<NT, R, S - 1, false, O>(few_smem<NT, R, S - 1>(), e);
}

template <typename O> static cudaError_t setup_bf16(size_t room, cudaError_t e)
{
	e = allow_smem<1, 2, 5, true, O>(few_smem<1, 2, 5>() + norm_room(room), e);
	e = allow_deep<1, 2, 6, O>(room, e);
	e = allow_deep<2, 2, 5, O>(room, e);
	e = allow_deep<2, 4, 4, O>(room, e);
	return allow_deep<4, 2, 4, O>(room, e);
}

extern "C" bool mx_cuda_linear_few_can_norm(const struct mx_cuda_product *p, size_t room)
{
	return p->bf16 && p->n <= MX_CUDA_PAIR && mx_norm_fits(*p, norm_room(room));
}

extern "C" cudaError_t mx_cuda_linear_few_setup(size_t room)
{
	return setup_bf16<float>(room, setup_bf16<__nv_bfloat16>(room, cudaSuccess));
}

extern "C" cudaError_t mx_cuda_linear_few(const struct mx_cuda_product *p, int sms, size_t room,
                                          cudaStream_t stream)
{
	if (p->bf16)
		return p->bf16_out ? choose_bf16<__nv_bfloat16>(*p, sms, room, stream)
		                   : choose_bf16<float>(*p, sms, room, stream);
	const dim3 grid((p->rows + 7) / 8);
	if (p->n == 1)
		return mx_launch(few_f32<1>, grid, dim3(256), 0, stream, *p);
	if (p->n <= 4)
		return mx_launch(few_f32<4>, grid, dim3(256), 0, stream, *p);
	return mx_launch(few_f32<16>, grid, dim3(256), 0, stream, *p);
}
