/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of many rows: prompts, in chunks that begin at any position. After
 * FlashAttention-2 and 3 (Dao 2023, arXiv:2307.08691; Shah et al. 2024,
 * arXiv:2407.08608), for compute capability 9.0a.
 *
 * A thread block takes 128 rows (tokens times the query heads of a group) of a
 * span for one key head through the keys, 128 at a time. One warp copies keys
 * and values to shared memory, 16 tokens a copy, two steps ahead. Two warpgroups
 * of 64 rows each multiply, so that the softmax of one overlaps the products of
 * the other.
 */
#include "device/cuda/launch.cuh"
#include "device/cuda/wgmma.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"
#include "mixers/attention/cuda/partial.cuh"

#define GROUPS  2             /* warpgroups that multiply */
#define ROWS    (64 * GROUPS) /* of a thread block */
#define KEYS    128           /* of a step through the keys */
#define STAGES  2
#define THREADS (128 * (GROUPS + 1))

namespace
{

/* Shared memory: queries of the warpgroups, keys, values, barriers. */
template <int D> struct plan {
	static constexpr int row = D * 2;
	static constexpr int queries = ROWS * row;
	static constexpr int stage = KEYS * row;
	static constexpr int bars = queries + 2 * STAGES * stage;
	static constexpr int bytes = bars + 4 * STAGES * 8;
};

struct piece {
	uint32_t row, n, pos, page_begin, head, v0, rows;
	uint32_t lo, hi;    /* keys lo .. hi - 1: those in the window of any row */
	uint32_t k0, steps; /* first key of the first step */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Finds the thread block's piece: ROWS rows of a span and a key head. Pieces of a span are ordered
 * from its last rows, which see the most keys, to its first. False if there is no piece for the
 * block. */
__device__ bool find_piece(const attn_args &a, piece &w)
{
	uint32_t u = blockIdx.x;
	for (uint32_t s = 0; s < a.n_spans; s++) {
		const mx_device_span &span = a.spans[s];
		if (!attn_takes(&a, &span))
			continue;
		uint32_t all = span.n * a.group, tiles = (all + ROWS - 1) / ROWS;
		if (u >= tiles * a.kv_heads) {
			u -= tiles * a.kv_heads;
			continue;
		}
		w.row = span.row;
		w.n = span.n;
		w.pos = span.pos;
		w.page_begin = span.page_begin;
		w.head = u % a.kv_heads;
		w.v0 = (tiles - 1 - u / a.kv_heads) * ROWS;
		w.rows = all - w.v0 < ROWS ? all - w.v0 : ROWS;
		/* Position 0 is of the first step with skip_first too; with attn_first_key here registers
		 * would be spilled. */
		const uint32_t first_pos = w.pos + w.v0 / a.group;
		w.lo = a.window && first_pos + 1 > a.window ? first_pos + 1 - a.window : 0;
		w.hi = w.pos + (w.v0 + w.rows - 1) / a.group + 1;
		w.k0 = w.lo / KEYS * KEYS;
		w.steps = (w.hi - w.k0 + KEYS - 1) / KEYS;
		return true;
	}
	return false;
}

/* Addresses of the barriers of each stage: full and empty, for keys and for values. */
struct barriers {
	uint32_t base;
	__device__ uint32_t full(int values, uint32_t stage) const
	{
		return base + (values * STAGES + stage) * 8;
	}
	__device__ uint32_t empty(int values, uint32_t stage) const
	{
		return base + ((2 + values) * STAGES + stage) * 8;
	}
};

/* ---- the warp that copies keys and values ---- */

template <int D>
__device__ void produce(const attn_args &a, const piece &w, const barriers &bars, uint32_t keys)
{
	using P = plan<D>;
	constexpr uint32_t block = ATTN_CUDA_WARP_KEYS * P::row, blocks = KEYS / ATTN_CUDA_WARP_KEYS;
	uint32_t lane = threadIdx.x & 31, values = lane / blocks; /* lanes 0 .. 7 keys, .. 15 values */
	size_t part = (size_t)a.page_tokens * P::row;
	for (uint32_t i = 0; i < w.steps; i++) {
		uint32_t stage = i % STAGES, parity = (i / STAGES & 1) ^ 1;
		uint32_t key = w.k0 + i * KEYS + lane % blocks * ATTN_CUDA_WARP_KEYS;
		uint32_t left = w.hi - (w.k0 + i * KEYS);
		uint32_t n = left < KEYS ? (left + ATTN_CUDA_WARP_KEYS - 1) / ATTN_CUDA_WARP_KEYS : blocks;
		const unsigned char *from = nullptr;
		if (lane < 2 * blocks && lane % blocks < n)
			from = a.page_base + a.pages[w.page_begin + key / a.page_tokens] * a.page_stride +
			       (2 * w.head + values) * part + (size_t)(key % a.page_tokens) * P::row;
		for (uint32_t v = 0; v < 2; v++) {
			barrier_wait(bars.empty(v, stage), parity);
			if (lane == 0)
				barrier_expect(bars.full(v, stage), n * block);
			__syncwarp();
			if (values == v && from)
				copy_bulk(keys + (v * STAGES + stage) * P::stage + lane % blocks * block, from,
				          block, bars.full(v, stage));
		}
	}
}

/* ---- the warpgroups that multiply ---- */

/* Loads 64 rows of queries into shared memory, swizzled like keys; missing rows become zero. */
template <int D>
__device__ void load_queries(const attn_args &a, const piece &w, uint32_t group, unsigned char *to)
{
	using P = plan<D>;
	constexpr uint32_t parts = P::row / 16;
	for (uint32_t i = threadIdx.x & 127; i < 64 * parts; i += 128) {
		uint32_t r = i / parts, e = i % parts * 8, v = group * 64 + r;
		uint4 x = {0, 0, 0, 0};
		if (v < w.rows && e < a.head_dim) {
			uint32_t row = w.row + (w.v0 + v) / a.group;
			uint32_t head = w.head * a.group + (w.v0 + v) % a.group;
			x = *(const uint4 *)((const __nv_bfloat16 *)a.qkv + (size_t)row * a.ld +
			                     (size_t)head * a.head_dim + e);
		}
		*(uint4 *)(to + attn_place(P::row, r, e * 2)) = x;
	}
}

/* Sets the values of keys n .. KEYS - 1 of a stage to zero: memory that was never written may hold
 * NaN. */
template <int D> __device__ void clear_values(unsigned char *values, uint32_t n)
{
	using P = plan<D>;
	constexpr uint32_t parts = P::row / 16;
	for (uint32_t i = n * parts + (threadIdx.x & 127); i < KEYS * parts; i += 128)
		*(uint4 *)(values + attn_place(P::row, i / parts, i % parts * 16)) = {0, 0, 0, 0};
}

/* The running state of a thread: rows g and g + 8 of its warp's 16. */
template <int D> struct state {
	float m[2], l[2], o[D / 2];

	__device__ __forceinline__ void clear(void)
	{
		m[0] = m[1] = -INFINITY;
		l[0] = l[1] = 0;
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			o[i] = 0;
	}
};

/* Folds a split's result into that of the splits before it, as attn_merge does. */
template <int D> __device__ __forceinline__ void fold(state<D> &all, const state<D> &x)
{
	fold_factors f[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float sum = x.l[r];
		sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
		sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
		f[r] = factors(all.m[r], x.m[r]);
		all.m[r] = fmaxf(all.m[r], x.m[r]);
		all.l[r] = fold_number(all.l[r], f[r].old, sum, f[r].add);
	}
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		all.o[i] = fold_number(all.o[i], f[i / 2 & 1].old, x.o[i], f[i / 2 & 1].add);
}

/* Turns the scores of a step into probabilities. `pos`: positions of the thread's two rows;
 * `masked`: some row does not see all keys. */
template <int D>
__device__ __forceinline__ void softmax(const attn_args &a, float (&s)[KEYS / 2], state<D> &x,
                                        const uint32_t (&pos)[2], uint32_t k0, bool masked)
{
	uint32_t t = threadIdx.x & 3;
	if (masked) {
		uint32_t reach = a.window && a.window < 0x80000000u ? a.window : 0x80000000u;
#pragma unroll
		for (int i = 0; i < KEYS / 2; i++) {
			/* for later keys this wraps to a large number */
			uint32_t back = pos[i / 2 & 1] - (k0 + i / 4 * 8 + 2 * t + (i & 1));
			s[i] = back < reach ? s[i] : -INFINITY;
		}
	}
	if (a.skip_first && k0 == 0 && t == 0) { /* rows see position 0 if it is theirs */
		s[0] = pos[0] ? -INFINITY : s[0];
		s[2] = pos[1] ? -INFINITY : s[2];
	}
	float use[2], alpha[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
		for (int i = 0; i < KEYS / 2; i += 8)
#pragma unroll
			for (int k = 0; k < 4; k++)
				top[k] = fmaxf(top[k], s[i + k / 2 * 4 + 2 * r + (k & 1)]);
		top[0] = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 1));
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 2));
		float m = fmaxf(x.m[r], __fmul_rn(top[0], a.scale));
		use[r] = m == -INFINITY ? 0 : m;
		alpha[r] = exp2_fast(__fsub_rn(x.m[r], use[r]));
		x.m[r] = m;
	}
	float sum[2][2] = {};
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) {
		s[i] = exp2_fast(__fmaf_rn(s[i], a.scale, -use[i / 2 & 1]));
		sum[i / 2 & 1][i & 1] = __fadd_rn(sum[i / 2 & 1][i & 1], s[i]);
	}
#pragma unroll
	for (int r = 0; r < 2; r++)
		x.l[r] = __fmaf_rn(x.l[r], alpha[r], __fadd_rn(sum[r][0], sum[r][1]));
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		x.o[i] = __fmul_rn(x.o[i], alpha[i / 2 & 1]);
}

/* LADDER: each split's result is folded into that of the splits before it; otherwise all keys are
 * one split. */
template <int D, bool LADDER>
__device__ void consume(const attn_args &a, const piece &w, const barriers &bars,
                        unsigned char *shared)
{
	using P = plan<D>;
	constexpr uint32_t group_bytes = 8 * P::row;
	uint32_t group = threadIdx.x / 128, lane = threadIdx.x & 31, g = lane / 4;
	uint32_t warp_row = group * 64 + (threadIdx.x & 127) / 32 * 16 + g;
	unsigned char *own = shared + group * 64 * P::row;
	uint32_t queries = shared_address(own), keys = shared_address(shared) + P::queries;
	uint32_t last = w.v0 + w.rows - 1, pos[2];
	state<D> x, all;
	x.clear();
	if constexpr (LADDER)
		all.clear();
	for (int r = 0; r < 2; r++) {
		uint32_t v = w.v0 + warp_row + 8 * r;
		pos[r] = w.pos + (v < last ? v : last) / a.group;
	}
	/* the first and the last position of the warpgroup's rows */
	uint32_t v = w.v0 + group * 64, lowest = w.pos + (v < last ? v : last) / a.group;
	uint32_t highest = w.pos + (v + 63 < last ? v + 63 : last) / a.group;
	load_queries<D>(a, w, group, own);
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
	for (uint32_t i = 0; i < w.steps; i++) {
		uint32_t stage = i % STAGES, parity = i / STAGES & 1, k0 = w.k0 + i * KEYS;
		uint32_t k = keys + stage * P::stage, val = keys + (STAGES + stage) * P::stage;
		float s[KEYS / 2];
		barrier_wait(bars.full(0, stage), parity);
		hold(s);
		products_begin();
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			/* 16 dimensions are 32 bytes of a panel of 128 */
			uint32_t at = c / 4 * 1024 + c % 4 * 32;
			wide_shared(s, matrix_at(queries + at, 0, group_bytes),
			            matrix_at(k + at, 0, group_bytes), c > 0);
		}
		products_commit();
		products_wait<0>();
		hold(s);
		if (lane == 0)
			barrier_arrive(bars.empty(0, stage));
		softmax(a, s, x, pos, k0, k0 + KEYS > lowest + 1 || (a.window && highest - k0 >= a.window));
		uint32_t p[KEYS / 4];
#pragma unroll
		for (int c = 0; c < KEYS / 4; c++)
			p[c] = pack<false>(s[2 * c], s[2 * c + 1]);
		barrier_wait(bars.full(1, stage), parity);
		if (w.hi - k0 < KEYS) { /* the last step */
			clear_values<D>(shared + P::queries + (STAGES + stage) * P::stage, w.hi - k0);
			asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
			asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
		}
		hold(x.o);
		products_begin();
#pragma unroll
		for (int c = 0; c < KEYS / 16; c++)
			wide_registers(x.o, p + 4 * c, matrix_at(val + 2 * c * group_bytes, 1024, group_bytes));
		products_commit();
		products_wait<0>();
		hold(x.o);
		if (lane == 0)
			barrier_arrive(bars.empty(1, stage));
		if constexpr (LADDER)
			if (i + 1 == w.steps || attn_rung(k0) != attn_rung(k0 + KEYS)) {
				fold(all, x);
				x.clear();
			}
	}
	for (int r = 0; r < 2; r++) {
		float sum = x.l[r];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		uint32_t at = warp_row + 8 * r;
		if (at >= w.rows)
			continue;
		uint32_t row = w.row + (w.v0 + at) / a.group;
		uint32_t head = w.head * a.group + (w.v0 + at) % a.group;
		__nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)row * a.ldo + head * a.head_dim;
		if constexpr (LADDER) {
#pragma unroll
			for (int c = 0; c < D / 8; c++) {
				uint32_t e = 8 * c + 2 * (lane & 3);
				if (e < a.head_dim)
					*(uint32_t *)(out + e) = pack<false>(
						finish(a, head, {all.m[r], all.l[r], all.o[4 * c + 2 * r]}),
						finish(a, head, {all.m[r], all.l[r], all.o[4 * c + 2 * r + 1]}));
			}
			continue;
		}
		float scale = __fdividef(1, with_sink(a, head, x.m[r], sum));
#pragma unroll
		for (int c = 0; c < D / 8; c++) {
			uint32_t e = 8 * c + 2 * (lane & 3);
			if (e < a.head_dim)
				*(uint32_t *)(out + e) =
					pack<false>(x.o[4 * c + 2 * r] * scale, x.o[4 * c + 2 * r + 1] * scale);
		}
	}
}

#endif

template <int D, bool LADDER>
__global__ void __launch_bounds__(THREADS, 1) prefill(const attn_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(1024) unsigned char shared[];
	using P = plan<D>;
	barriers bars = {shared_address(shared) + P::bars};
	piece w;
	mx_pdl_launch();
	if (threadIdx.x == 0) {
		for (int values = 0; values < 2; values++)
			for (uint32_t stage = 0; stage < STAGES; stage++) {
				barrier_init(bars.full(values, stage), 1);
				barrier_init(bars.empty(values, stage), 4 * GROUPS);
			}
		barriers_ready();
	}
	__syncthreads();
	bool there = find_piece(a, w);
	mx_pdl_wait(); /* also before the return: the next kernel waits for this one only */
	if (!there)
		return;
	if (threadIdx.x < 128 * GROUPS) {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
		consume<D, LADDER>(a, w, bars, shared);
	} else {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
		if (threadIdx.x < 128 * GROUPS + 32)
			produce<D>(a, w, bars, shared_address(shared) + P::queries);
	}
#else
	(void)a;
	__trap(); /* never launched: attn_prefill_can is false */
#endif
}

template <int D> cudaError_t prepare(void)
{
	cudaError_t e = cudaFuncSetAttribute(
		prefill<D, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, plan<D>::bytes);
	return e != cudaSuccess
	           ? e
	           : cudaFuncSetAttribute(prefill<D, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                  plan<D>::bytes);
}

} // namespace

bool attn_prefill_can(const attn_launch *l, uint32_t dim, uint32_t head_dim)
{
#if defined(MX_CUDA_90A)
	return l->sm == 90 && l->act == MX_BF16 && l->kv == MX_BF16 && (dim == 64 || dim == 128) &&
	       head_dim % 8 == 0;
#else
	(void)l, (void)dim, (void)head_dim;
	return false;
#endif
}

cudaError_t attn_prefill_prepare(uint32_t dim)
{
	return dim == 64 ? prepare<64>() : prepare<128>();
}

cudaError_t attn_prefill(const attn_launch *l, const attn_args *a, uint32_t rows)
{
	/* each span may have one piece that is not full */
	dim3 grid((unsigned)(((uint64_t)rows * a->group / ROWS + a->n_spans) * a->kv_heads));
	if (a->dim == 64)
		return mx_launch(a->ladder ? prefill<64, true> : prefill<64, false>, grid, dim3(THREADS),
		                 plan<64>::bytes, l->stream, *a);
	return mx_launch(a->ladder ? prefill<128, true> : prefill<128, false>, grid, dim3(THREADS),
	                 plan<128>::bytes, l->stream, *a);
}
