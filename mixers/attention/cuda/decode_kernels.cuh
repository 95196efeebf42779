/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of few rows over many keys, in two kernels (Flash-Decoding: Dao et
 * al. 2023): `attend` computes partials, `merge` folds them.
 *
 * A unit is a span, a key head, up to 8 NT rows (tokens times the query heads
 * of the group) and a split of keys. Blocks persist and take every gridDim-th
 * unit. In a thread block, warp w takes the 16-key blocks whose absolute number
 * is w modulo the number of warps. Each warp has its own ring of copies, which
 * prefetches across units. The products are transposed, S^T = K Q^T and
 * O^T = V^T P^T, so that 8 rows are enough for tensor cores.
 *
 * WHOLE: a unit goes through all splits of its rows and folds them here, bit for
 * bit as `merge` does. NEWEST: for spans of one token, in one kernel with what comes
 * before and after (newest.cuh).
 *
 * SMALL: where a thread block has too little shared memory for that. A warp copies a block of keys
 * when it comes to it, and its partials lie where its keys were, so that more thread blocks share a
 * multiprocessor and overlap. The sums are the same.
 *
 * Compiled twice: by decode.cu, and by decode_shared.cu for ranks that share pages.
 */
#include "mixers/attention/cuda/twice.cuh"

#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/attention/cuda/partial.cuh"
#include "mixers/attention/cuda/decode_rows.cuh"
#include "mixers/attention/cuda/newest.cuh"

#define MAX_STAGES   8
#define STATIC_BYTES 2048         /* most static shared memory */
#define DEEP_BYTES   (128 * 1024) /* of a thread block; with less, a warp's ring has two blocks */
#define RING_BYTES   20480 /* of a warp, about: two blocks of 64 to 80 KiB share a multiprocessor */

namespace
{

/* Layout of dynamic shared memory. */
template <typename KV, int D, int NT, bool WHOLE, bool SMALL> struct plan {
	static constexpr int rows = 8 * NT;
	static constexpr int buffers = WHOLE || SMALL ? 1 : 2;
	static constexpr int partials = rows * tile<KV, D>::pitch * (int)sizeof(float); /* of a warp */
	static constexpr int block = 2 * tile<KV, D>::block;
	/* of a warp, if SMALL: a block of keys and values, or partials; 1024: what swizzling assumes */
	static constexpr int place = ((block > partials ? block : partials) + 1023) / 1024 * 1024;
	static constexpr int apart = (SMALL ? place : partials) / 4; /* floats from warp to warp */
	static constexpr int values = SMALL ? 0 : WARPS * apart;     /* floats of a buffer */
	static constexpr int sums = WARPS * rows * 2;
	static constexpr int state = WHOLE ? rows * D + 2 * rows * 2 : 0;
	static constexpr int units = WHOLE ? 0 : UNITS * UNIT_WORDS;
	static size_t bytes(int stages, uint32_t n_spans)
	{
		return (size_t)WARPS * stages * (SMALL ? place : block) +
		       (buffers * (values + sums) + state + units) * sizeof(float) +
		       (n_spans + 1) * sizeof(uint32_t);
	}
	static int stages(const attn_launch *l)
	{
		int n = RING_BYTES / block;
		return SMALL                                         ? 1
		       : l->sm < 90 || l->smem < DEEP_BYTES || n < 2 ? 2
		       : n > MAX_STAGES                              ? MAX_STAGES
		                                                     : n;
	}
};

/* ---- the end of a split ---- */

/* Four dimensions of a row. */
struct quad {
	float m, l, o[4];
};

/* Joins the warps' partials of dimensions d .. d + 3 of row r into the split's partial. */
template <typename P, int PITCH>
__device__ __forceinline__ quad join_warps(const float *sums, const float *values, uint32_t r,
                                           uint32_t d)
{
	float2 sum[WARPS];
	quad x = {-INFINITY, 0, {}};
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		sum[w] = *(const float2 *)(sums + (w * P::rows + r) * 2);
		x.m = fmaxf(x.m, sum[w].x);
	}
	float use = x.m == -INFINITY ? 0 : x.m;
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		float f = exp2_fast(__fsub_rn(sum[w].x, use));
		float4 v = *(const float4 *)(values + w * P::apart + r * PITCH + d);
		x.l = __fmaf_rn(sum[w].y, f, x.l);
		x.o[0] = __fmaf_rn(v.x, f, x.o[0]);
		x.o[1] = __fmaf_rn(v.y, f, x.o[1]);
		x.o[2] = __fmaf_rn(v.z, f, x.o[2]);
		x.o[3] = __fmaf_rn(v.w, f, x.o[3]);
	}
	return x;
}

/* Writes the output of dimensions d .. d + 3 of row r after the row's last split. */
__device__ __forceinline__ void put_out(const attn_args &a, const unit &w, uint32_t r, uint32_t d,
                                        const quad &x)
{
	uint32_t v = w.v0 + r, token = w.n == 1 ? 0 : v / a.group;
	uint32_t head = w.head * a.group + v - token * a.group;
	__nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)(w.row + token) * a.ldo;
	if (sends(a)) {
		float *to = sent_partial(a, w.row + token, head);
		*(float4 *)(to + d) = make_float4(x.o[0], x.o[1], x.o[2], x.o[3]);
		if (d == 0)
			*(float2 *)(to + a.dim) = make_float2(x.m, x.l);
		return;
	}
	for (uint32_t i = 0; i < 4; i++)
		if (d + i < a.head_dim)
			out[head * a.head_dim + d + i] =
				__float2bfloat16_rn(finish(a, head, {x.m, x.l, x.o[i]}));
}

template <typename KV, int D, int NT, bool WHOLE, typename P>
__device__ void end_split(const attn_args &a, const unit &w, const float *sums, const float *values,
                          float *state, uint32_t parity)
{
	constexpr int rows = 8 * NT, quads = D / 4;
	float *old = state + rows * D + parity * 2 * rows;
	float *now = state + rows * D + (parity ^ 1) * 2 * rows;
	for (uint32_t e = threadIdx.x; e < w.rows * quads; e += THREADS) {
		uint32_t r = e / quads, d = e % quads * 4;
		quad x = join_warps<P, tile<KV, D>::pitch>(sums, values, r, d);
		if (!WHOLE && w.splits > 1) {
			size_t at = w.at + r * w.splits;
			*(float4 *)(a.values + at * D + d) = make_float4(x.o[0], x.o[1], x.o[2], x.o[3]);
			if (d == 0)
				*(float2 *)(a.sums + 2 * at) = make_float2(x.m, x.l);
			continue;
		}
		quad all = {-INFINITY, 0, {}};
		if (WHOLE && !w.fresh) {
			float4 v = *(const float4 *)(state + 4 * e);
			all = {old[2 * r], old[2 * r + 1], {v.x, v.y, v.z, v.w}};
		}
		fold_factors f = factors(all.m, x.m);
		all.m = fmaxf(all.m, x.m);
		all.l = fold_number(all.l, f.old, x.l, f.add);
#pragma unroll
		for (int i = 0; i < 4; i++)
			all.o[i] = fold_number(all.o[i], f.old, x.o[i], f.add);
		if (w.split + 1 == w.split_end) {
			put_out(a, w, r, d, all);
		} else if (WHOLE) {
			*(float4 *)(state + 4 * e) = make_float4(all.o[0], all.o[1], all.o[2], all.o[3]);
			if (d == 0) {
				now[2 * r] = all.m;
				now[2 * r + 1] = all.l;
			}
		}
	}
}

template <typename KV, int D, int NT, bool WHOLE, bool NEWEST, bool SMALL>
__global__ void __launch_bounds__(THREADS) attend(const attn_args a, const int stages)
{
	using T = tile<KV, D>;
	using P = plan<KV, D, NT, WHOLE, SMALL>;
	extern __shared__ __align__(1024) unsigned char ring[];
	__shared__ uint64_t bars[WARPS * MAX_STAGES];
	__shared__ float2 turns[NEWEST ? 2 * (D / 2) : 1]; /* of this unit and the next */
	float *behind = (float *)(ring + WARPS * stages * (SMALL ? P::place : P::block));
	float *values = SMALL ? (float *)ring : behind;
	float *sums = behind + P::buffers * P::values, *state = sums + P::buffers * P::sums;
	uint4 *units = (uint4 *)(state + P::state);
	uint32_t *first = (uint32_t *)units + P::units;
	uint32_t warp = threadIdx.x >> 5, parity = 0;
	uint32_t own = shared_address(ring) + warp * (SMALL ? P::place : stages * P::block);
	uint32_t bar = shared_address(bars) + warp * MAX_STAGES * 8;
	int stage = 0;
	uint32_t phase = 0;

	mx_pdl_launch();
#if __CUDA_ARCH__ >= 900
	if (threadIdx.x < WARPS * MAX_STAGES) {
		barrier_init(shared_address(bars) + threadIdx.x * 8, 1);
		barriers_ready();
	}
#endif
	if (a.tails)
		mx_pdl_wait();
	/* Before the wait: only tables and keys that were written before the step (launch.cuh). */
	list_units<8 * NT, WHOLE>(a, first); /* has barriers: all threads call it */
	__syncthreads();
	if (!WHOLE) {
		keep_units<8 * NT>(a, first, units);
		__syncthreads();
	}
	uint32_t all = first[a.n_spans];
	uint32_t n = all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
	feed<KV, D, 8 * NT, WHOLE> f;
	rows<KV, D, NT> x;
	unit w;
	int ahead = 0;
	newest<D> own_token;
	f.open(a, first, units, n);
	/* the newest key comes from the products, so all others are old */
	for (; !SMALL && ahead < stages && (NEWEST ? !f.done : f.old(a)); ahead++)
		f.push(a, own + ahead * 2 * T::block, bar + ahead * 8);
	if (n)
		load_unit<8 * NT, WHOLE>(a, first, units, 0, w);
	if (NEWEST && n)
		find_turns<D>(a, w.pos, turns);
	mx_pdl_wait();
	if (n)
		x.load(a, w);
	if (NEWEST && n)
		own_token.load(a, w);
	for (; !SMALL && ahead < stages; ahead++)
		f.push(a, own + ahead * 2 * T::block, bar + ahead * 8);
	if (NEWEST)
		__syncthreads(); /* turns */
	for (uint32_t i = 0; i < n;) {
		uint32_t b, end;
		const float2 *turn = turns + (NEWEST ? parity * (D / 2) : 0);
		if (w.fresh)
			x.convert();
		if constexpr (NEWEST)
			turn_queries<D>(a, turn, x.q[0]);
		x.clear();
		for (warp_blocks(w, warp, b, end); b < end; b += WARPS) {
			uint32_t at = own + stage * 2 * T::block;
			if (SMALL)
				f.push(a, at, bar);
#if __CUDA_ARCH__ >= 900
			barrier_wait(bar + stage * 8, phase);
#else
			copies_wait<SMALL ? 0 : 1>(); /* there are two stages */
			__syncwarp();
#endif
			if (NEWEST && own_token.here && b == own_token.place / ATTN_CUDA_WARP_KEYS)
				own_token.put(a, w, turn, ring + (at - shared_address(ring)));
			x.block(a, w, b, at);
			__syncwarp();
			if (!SMALL)
				f.push(a, at, bar + stage * 8);
			if (++stage == stages) {
				stage = 0;
				phase ^= 1;
			}
		}
		unit done = w;
		if (++w.split < w.split_end) {
			w.fresh = false;
		} else if (++i < n) { /* the next queries load while this unit ends */
			load_unit<8 * NT, WHOLE>(a, first, units, i, w);
			x.load(a, w);
			if (NEWEST) {
				own_token.load(a, w);
				find_turns<D>(a, w.pos, turns + (parity ^ 1) * (D / 2));
			}
		}
		uint32_t buffer = P::buffers == 1 ? 0 : parity;
		float *v = values + buffer * P::values, *s = sums + buffer * P::sums;
		x.store(s + warp * 8 * NT * 2, v + warp * P::apart);
		__syncthreads();
		end_split<KV, D, NT, WHOLE, P>(a, done, s, v, state, parity);
		if (NEWEST && done.splits > 1 && is_last(a, done))
			fold_rows<D>(a, done);
		parity ^= 1;
		if (SMALL)
			copies_after_writes();
		if (P::buffers == 1) /* else a barrier comes before this buffer is used again */
			__syncthreads();
	}
}

/* ---- merge ---- */

/* Folds the partials of all splits. A warp computes 32 dimensions of one row and head. A thread
 * block is (token of a span, key head, WARPS such parts of the group). Loads of the sums and values
 * of 32 splits are under way at once. */
template <typename A, int D>
__global__ void __launch_bounds__(THREADS) merge(const attn_args a, const uint32_t rows_a_span)
{
	constexpr uint32_t parts = D / 32, ahead = 32, run = 8;
	__shared__ float4 steps[WARPS][ahead]; /* factors of old and new, l of the new */
	uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = blockIdx.z * WARPS + warp;
	uint32_t g = part / parts, d = part % parts * 32 + lane, head = blockIdx.y * a.group + g;
	uint32_t s = blockIdx.x / rows_a_span, i = blockIdx.x - s * rows_a_span;
	mx_pdl_launch();
	if (a.tails)
		mx_pdl_wait();
	const mx_device_span span = a.spans[s];
	bool there = g < a.group && attn_takes(&a, &span) && i < span.n;
	uint32_t shift = there ? attn_split_shift(&a, span.pos, span.n) : 0;
	uint32_t splits = there ? attn_splits(&a, span.pos, span.n, shift) : 1;
	uint32_t p = attn_partials(&a, s, span.n, blockIdx.y, i * a.group + g, splits);
	mx_pdl_wait(); /* also before the return: the next kernel waits for this one only */
	if (splits == 1)
		return;
	const float2 *sums = (const float2 *)a.sums + p + lane;
	const float *values = a.values + (size_t)p * D + d;
	partial all = {-INFINITY, 0, 0};
	for (uint32_t c = 0; c < splits; c += ahead, sums += ahead, values += ahead * D) {
		uint32_t n = splits - c < ahead ? splits - c : ahead;
		float2 own = {-INFINITY, 0};
		float v[ahead];
		if (lane < n)
			own = *sums;
#pragma unroll
		for (uint32_t k0 = 0; k0 < ahead; k0 += run)
			if (k0 < n) {
#pragma unroll
				for (uint32_t k = k0; k < k0 + run; k++)
					v[k] = values[(k < n ? k : n - 1) * D];
			}
		/* the factors of 32 folds at once: a maximum does not depend on the order */
		float upto = own.x;
		for (int j = 1; j < 32; j *= 2) {
			float y = __shfl_up_sync(~0u, upto, j);
			upto = lane >= (uint32_t)j ? fmaxf(upto, y) : upto;
		}
		upto = fmaxf(upto, all.m);
		float before = __shfl_up_sync(~0u, upto, 1);
		fold_factors f = factors(lane ? before : all.m, own.x);
		all.m = __shfl_sync(~0u, upto, 31);
		__syncwarp();
		steps[warp][lane] = make_float4(f.old, f.add, own.y, 0);
		__syncwarp();
#pragma unroll
		for (uint32_t k0 = 0; k0 < ahead; k0 += run)
			if (k0 < n) {
#pragma unroll
				for (uint32_t k = k0; k < k0 + run; k++)
					if (k < n) {
						float4 step = steps[warp][k];
						all.l = fold_number(all.l, step.x, step.z, step.y);
						all.o = fold_number(all.o, step.x, v[k], step.y);
					}
			}
	}
	if (sends(a)) {
		float *to = sent_partial(a, span.row + i, head);
		to[d] = all.o;
		if (d == 0)
			*(float2 *)(to + D) = make_float2(all.m, all.l);
		return;
	}
	if (d < a.head_dim)
		((A *)a.out)[(size_t)(span.row + i) * a.ldo + head * a.head_dim + d] =
			mx_from_float<A>(finish(a, head, all));
}

/* ---- launchers ---- */

template <typename P> bool fits(const attn_launch *l, uint32_t n_spans)
{
	return P::bytes(P::stages(l), n_spans) + STATIC_BYTES <= l->smem;
}

/* True if a thread block has too little shared memory for the form that is not SMALL. Heads of
 * fewer than 256 bytes have no other: 99 KiB are enough. */
template <typename KV, int D, int NT, bool WHOLE> bool is_small(const attn_launch *l)
{
	return !fits<plan<KV, D, NT, WHOLE, false>>(l, 0);
}

template <typename KV, int D, int NT, bool WHOLE, bool NEWEST, bool SMALL = false>
cudaError_t launch_as(const attn_launch *l, const attn_args *a)
{
	using P = plan<KV, D, NT, WHOLE, SMALL>;
	int stages = P::stages(l);
	size_t bytes = P::bytes(stages, a->n_spans);
	/* a multiprocessor has 1 KiB more than a thread block can use, and reserves 1 KiB for each */
	uint32_t a_sm = (uint32_t)((l->smem + 1024) / (bytes + 1024 + STATIC_BYTES));
	uint32_t blocks = l->sms * (a_sm > 2 ? 2 : a_sm < 1 ? 1 : a_sm);
	if (!WHOLE) {
		uint64_t units = (uint64_t)a->n_spans * a->kv_heads * a->max_parts * a->max_rows *
		                 ((ATTN_SHORT * a->group + 8 * NT - 1) / (8 * NT));
		blocks = units < blocks ? (uint32_t)units : blocks;
	}
	return mx_launch(attend<KV, D, NT, WHOLE, NEWEST, SMALL>, dim3(blocks), dim3(THREADS), bytes,
	                 l->stream, *a, stages);
}

template <typename KV, int D, int NT, bool WHOLE, bool NEWEST>
cudaError_t launch(const attn_launch *l, const attn_args *a)
{
	if constexpr (D * sizeof(KV) >= 256)
		if (is_small<KV, D, NT, WHOLE>(l))
			return launch_as<KV, D, NT, WHOLE, NEWEST, true>(l, a);
	return launch_as<KV, D, NT, WHOLE, NEWEST>(l, a);
}

template <typename KV, int D, int NT, bool WHOLE, bool NEWEST, bool SMALL = false>
cudaError_t prepare_as(const attn_launch *l, uint32_t max_spans)
{
	using P = plan<KV, D, NT, WHOLE, SMALL>;
	if (!fits<P>(l, max_spans))
		return cudaErrorInvalidValue;
	return cudaFuncSetAttribute(attend<KV, D, NT, WHOLE, NEWEST, SMALL>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)P::bytes(P::stages(l), max_spans));
}

template <typename KV, int D, int NT, bool WHOLE, bool NEWEST>
cudaError_t prepare(const attn_launch *l, uint32_t max_spans)
{
	if constexpr (D * sizeof(KV) >= 256)
		if (is_small<KV, D, NT, WHOLE>(l))
			return prepare_as<KV, D, NT, WHOLE, NEWEST, true>(l, max_spans);
	return prepare_as<KV, D, NT, WHOLE, NEWEST>(l, max_spans);
}

/* Rows of a unit in groups of 8: as many as the registers hold. */
template <int D> constexpr int whole_tiles(void)
{
	return D > 128 ? 1 : 2;
}

template <typename KV, int D> cudaError_t prepare_both(const attn_launch *l, uint32_t max_spans)
{
	cudaError_t e = prepare<KV, D, 1, false, false>(l, max_spans);
	if constexpr (sizeof(KV) == 2 && (D == 64 || D == 128))
		e = e == cudaSuccess ? prepare<KV, D, 1, false, true>(l, max_spans) : e;
	return e == cudaSuccess ? prepare<KV, D, whole_tiles<D>(), true, false>(l, max_spans) : e;
}

} // namespace

/* Choose the template instance for the layer's padded dimension and type of keys. */
#define BY_DIM(dim, call)                                                                          \
	switch (dim) {                                                                                 \
	case 32: call(32);                                                                             \
	case 64: call(64);                                                                             \
	case 96: call(96);                                                                             \
	case 128: call(128);                                                                           \
	case 256: call(256);                                                                           \
	default: return cudaErrorInvalidValue;                                                         \
	}
#define BY_TYPE(kv, f, ...)                                                                        \
	(kv) == MX_BF16 ? f<__nv_bfloat16, __VA_ARGS__> : f<__nv_fp8_e4m3, __VA_ARGS__>

cudaError_t OF(attn_decode_prepare)(const attn_launch *l, uint32_t dim, uint32_t max_spans)
{
	SHARED_INSTEAD(attn_decode_prepare_shared(l, dim, max_spans));
#define CALL(D) return (BY_TYPE(l->kv, prepare_both, D))(l, max_spans)
	BY_DIM(dim, CALL);
#undef CALL
}

cudaError_t OF(attn_decode)(const attn_launch *l, const attn_args *a)
{
	SHARED_INSTEAD(attn_decode_shared(l, a));
#define CALL(D) return (BY_TYPE(l->kv, launch, D, 1, false, false))(l, a)
	BY_DIM(a->dim, CALL);
#undef CALL
}

#ifndef ATTN_SHARED
bool attn_newest_can(const attn_launch *l, const attn_args *a)
{
	return l->act == MX_BF16 && l->kv == MX_BF16 && (a->head_dim == 64 || a->head_dim == 128) &&
	       a->group <= 8 && !a->fixed_shift && !a->ladder && !a->norm_whole && !a->norm_last &&
	       !a->long_freq && !a->v_norm && !a->k_is_v && a->q_beta == 0 &&
	       (!a->inv_freq || (!a->rope_pairs && !a->rope_dynamic && a->rope_dim == a->head_dim));
}
#endif

cudaError_t OF(attn_newest)(const attn_launch *l, const attn_args *a)
{
	SHARED_INSTEAD(attn_newest_shared(l, a));
	return a->dim == 64 ? launch<__nv_bfloat16, 64, 1, false, true>(l, a)
	                    : launch<__nv_bfloat16, 128, 1, false, true>(l, a);
}

cudaError_t OF(attn_whole)(const attn_launch *l, const attn_args *a)
{
	SHARED_INSTEAD(attn_whole_shared(l, a));
#define CALL(D) return (BY_TYPE(l->kv, launch, D, whole_tiles<D>(), true, false))(l, a)
	BY_DIM(a->dim, CALL);
#undef CALL
}

cudaError_t OF(attn_merge)(const attn_launch *l, const attn_args *a, uint32_t rows_a_span)
{
	SHARED_INSTEAD(attn_merge_shared(l, a, rows_a_span));
	uint32_t parts = a->group * (a->dim / 32);
	dim3 grid(a->n_spans * rows_a_span, a->kv_heads, (parts + WARPS - 1) / WARPS);
#define CALL(D)                                                                                    \
	return mx_launch(merge<__nv_bfloat16, D>, grid, dim3(THREADS), 0, l->stream, *a, rows_a_span)
	BY_DIM(a->dim, CALL);
#undef CALL
}
