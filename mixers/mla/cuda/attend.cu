/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The softmax over latents on tensor cores, bf16. A unit of work is a span, BLOCKS blocks of 16
 * rows (a token's head is a row) and a split of keys, which a thread block goes through in tiles of
 * 64 keys; the next tile is copied meanwhile. Of a tile, a warp computes the scores of 16 keys,
 * then all warps the sums of a part of the values each. So each key comes once from memory for all
 * heads, and the values are the same bytes in shared memory.
 *
 * A row's bits depend on its query, its keys and the borders of splits alone: tiles and splits
 * begin at absolute positions, keys that the row does not see get a weight of exactly 0.
 */
#include "device/cuda/launch.cuh"
#include "mixers/mla/cuda/mla_cuda.h"
#include "mixers/softmax/cuda/fold.cuh"

#define MOST_VALUES 512

namespace
{

/* Shared memory of a thread block, in bytes from its start. */
struct places {
	uint32_t q, p, top, sum, total, bytes;
};

__host__ __device__ __forceinline__ places lay_out(const mla_args &a, uint32_t rows, bool fold)
{
	const uint32_t row = a.dim * 2;
	places s;
	s.q = a.stages * MLA_KEYS * row;
	s.p = s.q + rows * row;
	s.top = s.p + rows * MLA_KEYS * 2;
	s.sum = s.top + 8 * rows * 4;
	s.total = s.sum + 8 * rows * 4;
	s.bytes = s.total + (fold ? rows * MOST_VALUES * 4 : 0);
	return s;
}

/* Copies 16 bytes to shared memory, or zeros. */
__device__ __forceinline__ void copy_or_zero(uint32_t to, const void *from, bool copy)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
	             "r"(copy ? 16 : 0)
	             : "memory");
}

/* Writes two elements of the result of row v of a span: what they are, or what ranks exchange. */
__device__ __forceinline__ void put_result(const mla_args &a, uint32_t first_row, uint32_t v,
                                           uint32_t e, float m, float l, float x, float y)
{
	if (a.sent) {
		const uint32_t token = v / a.heads;
		float *to = a.sent + mx_partial_at(&a.places, a.n_rows, a.heads, a.rank, first_row + token,
		                                   v - token * a.heads);
		*(float2 *)(to + e) = make_float2(x, y);
		if (e == 0)
			*(float2 *)(to + a.rank) = make_float2(m, l);
		return;
	}
	__nv_bfloat16 *out = (__nv_bfloat16 *)a.sums + ((size_t)first_row * a.heads + v) * a.rank + e;
	*(uint32_t *)out = pack<false>(__fdiv_rn(x, l), __fdiv_rn(y, l));
}

template <int BLOCKS, int WARPS, bool FOLD> struct worker {
	static constexpr int ROWS = BLOCKS * MLA_ROWS, THREADS = WARPS * 32;
	static constexpr int PARTS = MOST_VALUES / WARPS / 16; /* 16 elements of values each */
	/* A warp computes the scores of 8 EIGHTS keys of MINE blocks of queries. */
	static constexpr int EIGHTS = BLOCKS * 4 < WARPS ? 1 : 2, GROUPS = 8 / EIGHTS;
	static constexpr int MINE = BLOCKS * GROUPS / WARPS;

	const mla_args &a;
	const mx_device_span &span;
	const places at;
	unsigned char *smem;
	uint32_t base;                     /* of shared memory */
	uint32_t v0, rows, end, row_bytes; /* end: places of keys that any row sees */
	uint32_t lane, warp, g, t;
	uint32_t first, per; /* this warp's elements of values */
	float o[BLOCKS][PARTS][2][4];
	float m[BLOCKS][2], l[BLOCKS][2];
	float total_m[2], total_l[2];
	uint32_t page[MLA_KEYS / MLA_GROUP]; /* of the tile that is copied next */

	__device__ worker(const mla_args &a, const mx_device_span &span, uint32_t block,
	                  unsigned char *smem)
		: a(a), span(span), at(lay_out(a, ROWS, FOLD)), smem(smem)
	{
		const uint32_t all = span.n * a.heads;
		base = shared_address(smem);
		v0 = block * ROWS;
		rows = all - v0 < ROWS ? all - v0 : ROWS;
		end = mx_place_of(&a.places, span.pos + (v0 + rows - 1) / a.heads + 1);
		row_bytes = a.dim * 2;
		lane = threadIdx.x & 31;
		warp = threadIdx.x >> 5;
		g = lane / 4;
		t = lane % 4;
		per = (a.rank + WARPS * 16 - 1) / (WARPS * 16) * 16;
		first = warp * per;
		total_m[0] = total_m[1] = -INFINITY;
		total_l[0] = total_l[1] = 0;
	}

	__device__ __forceinline__ uint32_t position(uint32_t row) const
	{
		return span.pos + (v0 + row) / a.heads;
	}

	__device__ void clear()
	{
#pragma unroll
		for (int b = 0; b < BLOCKS; b++) {
			m[b][0] = m[b][1] = -INFINITY;
			l[b][0] = l[b][1] = 0;
#pragma unroll
			for (int i = 0; i < PARTS * 8; i++)
				o[b][i / 8][i / 4 % 2][i % 4] = 0;
		}
	}

	/* Begins to copy the queries. Rows that are missing are zero. */
	__device__ void load_queries()
	{
		const uint32_t parts = row_bytes / 16;
		const unsigned char *from =
			(const unsigned char *)a.absorbed + ((size_t)span.row * a.heads + v0) * row_bytes;
		for (uint32_t i = threadIdx.x; i < ROWS * parts; i += THREADS) {
			const uint32_t r = i / parts, c = i % parts * 16;
			const bool is = r < rows;
			copy_or_zero(base + at.q + mla_place(row_bytes, r, c),
			             from + (is ? (size_t)r * row_bytes + c : 0), is);
		}
	}

	/* Reads the page numbers of a tile, some time before they are needed. */
	__device__ __forceinline__ void find_pages(uint32_t tile)
	{
#pragma unroll
		for (uint32_t i = 0; i < MLA_KEYS / MLA_GROUP; i++) {
			const uint32_t k = tile * MLA_KEYS + i * MLA_GROUP;
			page[i] = k < end ? a.pages[span.page_begin + k / a.page_tokens] : 0;
		}
	}

	/* Begins to copy the keys of a tile, whose pages are known. Keys that no row sees are zero:
	 * their memory may hold anything. */
	__device__ __forceinline__ void load_keys(uint32_t tile, uint32_t stage)
	{
		const uint32_t bytes = MLA_GROUP * row_bytes;
		uint32_t to = base + stage * MLA_KEYS * row_bytes;
#pragma unroll
		for (uint32_t i = 0; i < MLA_KEYS / MLA_GROUP; i++, to += bytes) {
			const uint32_t k = tile * MLA_KEYS + i * MLA_GROUP, left = k < end ? end - k : 0;
			const uint32_t valid = (left < MLA_GROUP ? left : MLA_GROUP) * row_bytes;
			const unsigned char *from =
				a.page_base + page[i] * a.page_stride + (size_t)(k % a.page_tokens) * row_bytes;
#pragma unroll 4
			for (uint32_t part = threadIdx.x * 16; part < bytes; part += THREADS * 16)
				copy_or_zero(to + part, part < valid ? from + part : a.page_base, part < valid);
		}
	}

	/* Computes the scores of this warp's keys and blocks, and their maxima of each row. */
	__device__ __forceinline__ void scores(uint32_t tile, uint32_t stage,
	                                       float (&s)[MINE][EIGHTS][4])
	{
		const uint32_t keys = warp % GROUPS * 8 * EIGHTS;
		/* these keys are neighbours */
		const uint32_t from = mx_position_of(&a.places, tile * MLA_KEYS + keys);
		const uint32_t k_row = keys + lane % 8 + (EIGHTS == 2 ? lane / 16 * 8 : 0);
		const uint32_t k_at = EIGHTS == 2 ? lane / 8 % 2 * 16 : lane / 8 * 16;
		const uint32_t q_row = lane % 8 + lane / 8 % 2 * 8, q_at = lane / 16 * 16;
		const uint32_t key = base + stage * MLA_KEYS * row_bytes + k_row * row_bytes;
		const uint32_t turn = (lane & 7) << 4;
		float odd[MINE][EIGHTS][4] = {};
#pragma unroll
		for (int i = 0; i < MINE * EIGHTS * 4; i++)
			s[i / (EIGHTS * 4)][i / 4 % EIGHTS][i % 4] = 0;
#pragma unroll BLOCKS == 1 ? 6 : 2
		for (uint32_t e = 0; e < row_bytes; e += 64) { /* rows are multiples of 128 bytes */
			uint32_t k[EIGHTS][4];
			load_matrices(k[0], key + ((e + k_at) ^ turn));
			if constexpr (EIGHTS == 2)
				load_matrices(k[1], key + ((e + 32 + k_at) ^ turn));
#pragma unroll
			for (int i = 0; i < MINE; i++) {
				const uint32_t row =
					((warp / GROUPS + i * (WARPS / GROUPS)) * MLA_ROWS + q_row) * row_bytes;
				uint32_t q0[4], q1[4];
				load_matrices(q0, base + at.q + row + ((e + q_at) ^ turn));
				load_matrices(q1, base + at.q + row + ((e + 32 + q_at) ^ turn));
				if constexpr (EIGHTS == 2) {
					multiply<false>(s[i][0], q0, k[0][0], k[0][1]);
					multiply<false>(s[i][1], q0, k[0][2], k[0][3]);
					multiply<false>(odd[i][0], q1, k[1][0], k[1][1]);
					multiply<false>(odd[i][1], q1, k[1][2], k[1][3]);
				} else {
					multiply<false>(s[i][0], q0, k[0][0], k[0][1]);
					multiply<false>(odd[i][0], q1, k[0][2], k[0][3]);
				}
			}
		}
		float *top = (float *)(smem + at.top) + warp % GROUPS * ROWS;
#pragma unroll
		for (int i = 0; i < MINE; i++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint32_t row =
					(warp / GROUPS + i * (WARPS / GROUPS)) * MLA_ROWS + g + 8 * half;
				const uint32_t pos = position(row), low = mla_first_key(&a, pos);
				float most = -INFINITY;
#pragma unroll
				for (int j = 0; j < 2 * EIGHTS; j++) {
					float &x = s[i][j / 2][2 * half + j % 2];
					const uint32_t k = from + j / 2 * 8 + 2 * t + j % 2;
					const bool seen = k <= pos && k >= low;
					x = seen ? (x + odd[i][j / 2][2 * half + j % 2]) * a.scale : -INFINITY;
					most = fmaxf(most, x);
				}
				most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
				most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
				if (t == 0)
					top[row] = most;
			}
	}

	/* Raises the maxima to those of the tile and scales the sums. */
	__device__ void raise()
	{
		const float *top = (const float *)(smem + at.top);
#pragma unroll
		for (int b = 0; b < BLOCKS; b++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint32_t row = b * MLA_ROWS + g + 8 * half;
				float now = m[b][half];
				for (int i = 0; i < GROUPS; i++)
					now = fmaxf(now, top[i * ROWS + row]);
				const float use = now == -INFINITY ? 0 : now;
				const float alpha = exp2_fast(m[b][half] - use);
				m[b][half] = now;
				l[b][half] *= alpha;
#pragma unroll
				for (int i = 0; i < PARTS * 2; i++) {
					o[b][i / 2][i % 2][2 * half] *= alpha;
					o[b][i / 2][i % 2][2 * half + 1] *= alpha;
				}
			}
	}

	/* Writes the weights of this warp's scores to shared memory, and their sums of 8 keys each. */
	__device__ __forceinline__ void weights(const float (&s)[MINE][EIGHTS][4])
	{
		const uint32_t eighth = warp % GROUPS * EIGHTS;
#pragma unroll
		for (int i = 0; i < MINE; i++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint32_t b = warp / GROUPS + i * (WARPS / GROUPS);
				const uint32_t row = b * MLA_ROWS + g + 8 * half;
				float now = -INFINITY;
				/* m[b] of a block that is not known when this is compiled would be in memory */
#pragma unroll
				for (int j = 0; j < BLOCKS; j++)
					now = j == (int)b ? m[j][half] : now;
				const float use = now == -INFINITY ? 0 : now;
#pragma unroll
				for (int j = 0; j < EIGHTS; j++) {
					const float x = exp2_fast(s[i][j][2 * half] - use);
					const float y = exp2_fast(s[i][j][2 * half + 1] - use);
					float sum = x + y;
					sum += __shfl_xor_sync(~0u, sum, 1);
					sum += __shfl_xor_sync(~0u, sum, 2);
					if (t == 0)
						((float *)(smem + at.sum))[(eighth + j) * ROWS + row] = sum;
					*(uint32_t *)(smem + at.p +
					              mla_place(MLA_KEYS * 2, row, ((eighth + j) * 8 + 2 * t) * 2)) =
						pack<false>(x, y);
				}
			}
	}

	/* Adds the tile's weighted values. */
	__device__ void values(uint32_t stage)
	{
		const uint32_t p_row = lane % 8 + lane / 8 % 2 * 8, p_at = lane / 16 * 16;
		const uint32_t v_row = lane % 8 + lane / 8 % 2 * 8, turn = (lane & 7) << 4;
		const uint32_t from = base + stage * MLA_KEYS * row_bytes;
		const float *sums = (const float *)(smem + at.sum);
#pragma unroll
		for (int b = 0; b < BLOCKS; b++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint32_t row = b * MLA_ROWS + g + 8 * half;
				float sum = 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					sum += sums[i * ROWS + row];
				l[b][half] += sum;
			}
#pragma unroll
		for (int k = 0; k < MLA_KEYS / 16; k++) {
			uint32_t p[BLOCKS][4];
#pragma unroll
			for (int b = 0; b < BLOCKS; b++)
				load_matrices(p[b], base + at.p + (b * MLA_ROWS + p_row) * MLA_KEYS * 2 +
				                        ((k * 32 + p_at) ^ turn));
#pragma unroll
			for (int i = 0; i < PARTS; i++) {
				const uint32_t e = first + 16 * i;
				if (16 * i < (int)per && e < a.rank) {
					uint32_t v[4];
					load_transposed(v, from + (16 * k + v_row) * row_bytes +
					                       ((e * 2 + lane / 16 * 16) ^ turn));
#pragma unroll
					for (int b = 0; b < BLOCKS; b++) {
						multiply<false>(o[b][i][0], p[b], v[0], v[1]);
						multiply<false>(o[b][i][1], p[b], v[2], v[3]);
					}
				}
			}
		}
	}

	/* Adds what a split has to the totals in shared memory, each thread its own; FOLD, one block.
	 */
	__device__ void fold()
	{
		float *total = (float *)(smem + at.total) + threadIdx.x;
		fold_factors f[2];
		for (int half = 0; half < 2; half++) {
			f[half] = factors(total_m[half], m[0][half]);
			total_l[half] = fold_number(total_l[half], f[half].old, l[0][half], f[half].add);
			total_m[half] = fmaxf(total_m[half], m[0][half]);
		}
#pragma unroll
		for (int i = 0; i < PARTS * 8; i++) {
			const int j = i % 4;
			float &x = total[i * THREADS];
			x = fold_number(x, f[j / 2].old, o[0][i / 8][i / 4 % 2][j], f[j / 2].add);
		}
	}

	/* Goes through the tiles tile .. last - 1; those of a split begin with the split. */
	__device__ void run(uint32_t tile, uint32_t last, uint32_t tiles_a_split)
	{
		float s[MINE][EIGHTS][4];
		uint32_t stage = 0;
		const bool ahead = a.stages == 2; /* a tile comes while the one before it is used */
		clear();
		load_queries();
		find_pages(tile);
		load_keys(tile, 0);
		copies_commit();
		find_pages(tile + 1);
		for (; tile < last; tile++, stage ^= ahead) {
			if (FOLD && tile % tiles_a_split == 0 && tile) {
				fold();
				clear();
			}
			copies_wait<0>();
			__syncthreads(); /* the tile is there, and the other stage is not read any more */
			if (ahead) {
				if (tile + 1 < last)
					load_keys(tile + 1, stage ^ 1);
				copies_commit();
				find_pages(tile + 2);
			}
			scores(tile, stage, s);
			__syncthreads();
			raise();
			weights(s);
			__syncthreads();
			values(stage);
			if (!ahead) {
				__syncthreads(); /* the tile is not read any more */
				if (tile + 1 < last)
					load_keys(tile + 1, 0);
				copies_commit();
				find_pages(tile + 2);
			}
		}
		if (FOLD)
			fold();
	}

	/* Calls put(row, element, values of two elements) for the results of this thread. */
	template <typename Put> __device__ __forceinline__ void each(Put put)
	{
#pragma unroll
		for (int b = 0; b < BLOCKS; b++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint32_t row = b * MLA_ROWS + g + 8 * half;
				if (row >= rows)
					continue;
#pragma unroll
				for (int i = 0; i < PARTS * 2; i++) {
					const uint32_t e = first + 8 * i + 2 * t;
					if (8 * i < (int)per && e < a.rank)
						put(b, half, row, e, o[b][i / 2][i % 2][2 * half],
						    o[b][i / 2][i % 2][2 * half + 1]);
				}
			}
	}

	__device__ void put_out(uint32_t row, uint32_t e, float m, float l, float x, float y)
	{
		put_result(a, span.row, v0 + row, e, m, l, x, y);
	}
};

/* grid: blocks of queries, splits, spans */
template <int BLOCKS, int WARPS> __global__ void __launch_bounds__(WARPS * 32, 1) attend(mla_args a)
{
	extern __shared__ __align__(128) unsigned char smem[];
	const mx_device_span &span = a.spans[blockIdx.z];
	const uint32_t split = blockIdx.y;
	mx_pdl_launch();
	mx_pdl_wait();
	if (span.n < a.min_n || span.n > a.max_n || blockIdx.x * BLOCKS * MLA_ROWS >= span.n * a.heads)
		return;
	/* those with the most keys first */
	const uint32_t blocks = (span.n * a.heads - 1) / (BLOCKS * MLA_ROWS) + 1;
	const uint32_t block = blocks - 1 - blockIdx.x;
	worker<BLOCKS, WARPS, false> w(a, span, block, smem);
	const uint32_t keys = mla_split_keys(&a, mx_place_of(&a.places, span.pos + span.n));
	const uint32_t begin = split * keys;
	if (begin >= w.end && (split || !a.sent || a.parts > 1)) /* a rank may have no keys */
		return;
	const uint32_t end = w.end - begin < keys ? w.end : begin + keys;
	w.run(begin / MLA_KEYS, (end + MLA_KEYS - 1) / MLA_KEYS, 0);
	if (a.parts == 1) {
		w.each([&](int b, int half, uint32_t row, uint32_t e, float x, float y) {
			w.put_out(row, e, w.m[b][half], w.l[b][half], x, y);
		});
		return;
	}
	const size_t unit = ((size_t)blockIdx.z * gridDim.x + block) * a.parts + split;
	w.each([&](int b, int half, uint32_t row, uint32_t e, float x, float y) {
		const size_t at = unit * BLOCKS * MLA_ROWS + row;
		*(float2 *)(a.values + at * a.rank + e) = make_float2(x, y);
		if (e == 0) {
			a.stats[2 * at] = w.m[b][half];
			a.stats[2 * at + 1] = w.l[b][half];
		}
	});
}

/* grid: blocks of queries, spans */
__global__ void __launch_bounds__(256, 1) attend_whole(mla_args a)
{
	extern __shared__ __align__(128) unsigned char smem[];
	constexpr int WARPS = 8;
	const mx_device_span &span = a.spans[blockIdx.y];
	mx_pdl_launch();
	mx_pdl_wait();
	if (span.n < a.min_n || span.n > a.max_n || blockIdx.x * MLA_ROWS >= span.n * a.heads)
		return;
	const uint32_t block = (span.n * a.heads - 1) / MLA_ROWS - blockIdx.x;
	worker<1, WARPS, true> w(a, span, block, smem);
	float *total = (float *)(smem + w.at.total) + threadIdx.x;
	for (int i = 0; i < w.PARTS * 8; i++)
		total[i * w.THREADS] = 0;
	w.run(0, (w.end + MLA_KEYS - 1) / MLA_KEYS, a.split / MLA_KEYS);
#pragma unroll
	for (int i = 0; i < w.PARTS * 8; i++)
		w.o[0][i / 8][i / 4 % 2][i % 4] = total[i * w.THREADS];
	w.each([&](int b, int half, uint32_t row, uint32_t e, float x, float y) {
		(void)b;
		w.put_out(row, e, w.total_m[half], w.total_l[half], x, y);
	});
}

/* grid: rows of a span, spans. A thread has two elements. */
template <int ROWS> __global__ void merge(mla_args a, uint32_t blocks)
{
	const mx_device_span &span = a.spans[blockIdx.y];
	const uint32_t v = blockIdx.x, block = v / ROWS;
	mx_pdl_launch();
	mx_pdl_wait();
	if (span.n < a.min_n || span.n > a.max_n || v >= span.n * a.heads)
		return;
	const uint32_t last =
		(block + 1) * ROWS < span.n * a.heads ? (block + 1) * ROWS : span.n * a.heads;
	const uint32_t end = mx_place_of(&a.places, span.pos + (last - 1) / a.heads + 1);
	const uint32_t keys = mla_split_keys(&a, mx_place_of(&a.places, span.pos + span.n));
	const uint32_t parts = (end + keys - 1) / keys;
	const size_t unit = ((size_t)blockIdx.y * blocks + block) * a.parts;
	for (uint32_t e = 2 * threadIdx.x; e < a.rank; e += 2 * blockDim.x) {
		float m = -INFINITY, l = 0, x = 0, y = 0;
#pragma unroll 4
		for (uint32_t s = 0; s < parts; s++) {
			const size_t at = (unit + s) * ROWS + v % ROWS;
			const float2 stat = *(const float2 *)(a.stats + 2 * at);
			const float2 o = *(const float2 *)(a.values + at * a.rank + e);
			const fold_factors f = factors(m, stat.x);
			l = fold_number(l, f.old, stat.y, f.add);
			x = fold_number(x, f.old, o.x, f.add);
			y = fold_number(y, f.old, o.y, f.add);
			m = fmaxf(m, stat.x);
		}
		put_result(a, span.row, v, e, m, l, x, y);
	}
}

uint32_t blocks_of(const mla_args &a, int blocks)
{
	const uint32_t rows = (uint32_t)blocks * MLA_ROWS;
	return (a.longest * a.heads + rows - 1) / rows;
}

} // namespace

size_t mla_attend_smem(const struct mla_args *a, int blocks, bool fold)
{
	return lay_out(*a, (uint32_t)blocks * MLA_ROWS, fold).bytes;
}

cudaError_t mla_attend_prepare(const struct mla_args *a, size_t smem)
{
	const cudaFuncAttribute what = cudaFuncAttributeMaxDynamicSharedMemorySize;
	cudaError_t e = cudaFuncSetAttribute(attend<1, 8>, what, (int)mla_attend_smem(a, 1, false));
	if (e == cudaSuccess && mla_attend_smem(a, 1, true) <= smem)
		e = cudaFuncSetAttribute(attend_whole, what, (int)mla_attend_smem(a, 1, true));
	if (e == cudaSuccess && mla_attend_smem(a, 4, false) <= smem)
		e = cudaFuncSetAttribute(attend<4, 8>, what, (int)mla_attend_smem(a, 4, false));
	return e;
}

cudaError_t mla_attend(const struct mla_launch *l, const struct mla_args *a, int blocks)
{
	const dim3 grid(blocks_of(*a, blocks), a->parts, a->n_spans);
	const size_t smem = mla_attend_smem(a, blocks, false);
	return blocks == 1 ? mx_launch(attend<1, 8>, grid, dim3(256), smem, l->stream, *a)
	                   : mx_launch(attend<4, 8>, grid, dim3(256), smem, l->stream, *a);
}

cudaError_t mla_merge(const struct mla_launch *l, const struct mla_args *a, int blocks)
{
	const dim3 grid(a->longest * a->heads, a->n_spans), block(128);
	const uint32_t n = blocks_of(*a, blocks);
	if (a->parts == 1)
		return cudaSuccess;
	return blocks == 1 ? mx_launch(merge<MLA_ROWS>, grid, block, 0, l->stream, *a, n)
	                   : mx_launch(merge<4 * MLA_ROWS>, grid, block, 0, l->stream, *a, n);
}

cudaError_t mla_whole(const struct mla_launch *l, const struct mla_args *a)
{
	const dim3 grid(blocks_of(*a, 1), a->n_spans);
	return mx_launch(attend_whole, grid, dim3(256), mla_attend_smem(a, 1, true), l->stream, *a);
}
