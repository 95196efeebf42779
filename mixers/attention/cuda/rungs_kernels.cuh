/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of decoding rows whose bits are those of prefill.cu. A unit, as in decode_kernels.cuh,
 * is a span, a key head, up to 8 rows and a split of the ladder (attn_rung), or the rows' first
 * splits (attn_lead), which are folded in order as prefill.cu does. It is computed in prefill.cu's
 * order: steps of ATTN_STEP keys, each with one maximum; sums of a score over the head size, and of
 * an output over a step's keys, in one accumulator of products of 16, ascending. So tensor cores
 * see the same operands in the same order, whichever of the two is the A operand.
 *
 * The four readers of a thread block, warps, compute a unit together: they share out the keys whose
 * scores they compute, and then the dimensions whose sums they have, so no sum is divided. They
 * have a ring of copies of 16 tokens' keys or values, which lanes of one more warp fill in turn
 * across the thread block's units: one alone would take 0.4 us for each.
 *
 * Compiled twice: by rungs.cu, and by rungs_shared.cu for ranks that share pages.
 */
#include "mixers/attention/cuda/twice.cuh"

#define READERS 4
#define WARPS   (READERS + 1) /* of a thread block; of units.cuh */

#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"
#include "mixers/softmax/cuda/mma.cuh"
#include "mixers/attention/cuda/partial.cuh"
#include "mixers/attention/cuda/units.cuh"

#define ROWS         8
#define BLOCK        ATTN_CUDA_WARP_KEYS
#define BLOCKS       (ATTN_STEP / BLOCK)
#define RING_BYTES   81920 /* two thread blocks share a multiprocessor */
#define STATIC_BYTES 1024
#define FILLERS      5 /* lanes that fill the ring: a divisor of every ring's stages */

namespace
{

/* How keys of dimension D lie in shared memory: a block is two groups of 8 tokens, in panels of 128
 * bytes. */
template <int D> struct tile {
	static constexpr int row = D * 2;
	static constexpr int block = BLOCK * row;
	static constexpr int stages = RING_BYTES / block; /* of the ring */
};

/* A thread block's dynamic shared memory: ring, scores, units, units before each span. */
constexpr int SCORES = 2 * BLOCKS * 32 * sizeof(float4); /* of two steps */
static size_t shared_bytes(uint32_t n_spans)
{
	return RING_BYTES + SCORES + UNITS * UNIT_WORDS * sizeof(uint32_t) +
	       (n_spans + 1) * sizeof(uint32_t);
}

#if __CUDA_ARCH__ >= 900

/* A step of the readers' work: up to ATTN_STEP keys of a unit. */
struct step {
	unit w;
	uint32_t i;          /* of the unit among those of the thread block */
	uint32_t k0;         /* first key, a multiple of ATTN_STEP */
	uint32_t after;      /* end of the unit's keys */
	uint32_t begin, end; /* blocks that have keys of the unit */
	bool there;

	__device__ void find(void)
	{
		begin = (max(w.lo, k0) - k0) / BLOCK;
		end = (min(w.hi, k0 + ATTN_STEP) - k0 + BLOCK - 1) / BLOCK;
	}

	__device__ void open(const attn_args &a, const uint32_t *first, const uint4 *units,
	                     uint32_t unit_i, uint32_t n)
	{
		i = unit_i;
		there = i < n;
		if (!there)
			return;
		load_unit<ROWS, false>(a, first, units, i, w);
		const uint32_t lead = w.split == attn_rung(w.lo) ? attn_lead(&a, w.pos) : 1;
		k0 = max(attn_rung_begin(w.split), w.lo / ATTN_STEP * ATTN_STEP);
		after = min(attn_rung_begin(w.split + lead), w.hi);
		find();
	}

	/* True if this is the last step of its split. */
	__device__ bool ends_split(void) const
	{
		return k0 + ATTN_STEP >= after || attn_rung(k0) != attn_rung(k0 + ATTN_STEP);
	}

	/* Goes to the next step. True if it is of the same unit. */
	__device__ bool next(const attn_args &a, const uint32_t *first, const uint4 *units, uint32_t n)
	{
		k0 += ATTN_STEP;
		if (k0 < after) {
			find();
			return true;
		}
		open(a, first, units, i + 1, n);
		return false;
	}
};

/* Where a side of the ring is: a reader, or a lane that fills it. */
template <int D> struct place {
	uint32_t ring, bars, stage, phase;

	__device__ place(unsigned char *smem, uint64_t *all)
		: ring(shared_address(smem)), bars(shared_address(all)), stage(0), phase(0)
	{
	}
	__device__ __forceinline__ uint32_t at(void) const
	{
		return ring + stage * tile<D>::block;
	}
	__device__ __forceinline__ uint32_t full(void) const
	{
		return bars + stage * 16;
	}
	__device__ __forceinline__ uint32_t empty(void) const
	{
		return bars + stage * 16 + 8;
	}
	/* Goes n <= stages blocks on. */
	__device__ __forceinline__ void advance(uint32_t n = 1)
	{
		stage += n;
		if (stage >= tile<D>::stages)
			stage -= tile<D>::stages, phase ^= 1;
	}
	/* Returns the place n blocks further on. */
	__device__ __forceinline__ place ahead(uint32_t n) const
	{
		place p = *this;
		p.advance(n);
		return p;
	}
	/* Gives back n <= 32 blocks, for one of the readers. */
	__device__ __forceinline__ void release(uint32_t n)
	{
		__syncwarp();
		if (threadIdx.x % 32 < n)
			barrier_arrive(ahead(threadIdx.x % 32).empty());
		advance(n);
	}
};

__device__ __forceinline__ bool barrier_passed(uint32_t bar, uint32_t parity)
{
	uint32_t passed;
	asm volatile("{\n.reg .pred p;\n"
	             "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
	             "selp.u32 %0, 1, 0, p;\n}\n"
	             : "=r"(passed)
	             : "r"(bar), "r"(parity)
	             : "memory");
	return passed;
}

/* Starts every FILLERS-th of the copies, from copy `turn` on. They come in the order in which they
 * are used: of each step the keys, then the values. A stage of the ring always has the same lane.
 */
template <int D>
__device__ void fill(const attn_args &a, const uint32_t *first, const uint4 *units, uint32_t n,
                     uint32_t turn, place<D> to)
{
	static_assert(tile<D>::stages % FILLERS == 0, "a stage has one filler");
	constexpr uint32_t bytes = tile<D>::block;
	step s;
	uint32_t block, page = 0;
	bool values = false, waited = false;
	s.open(a, first, units, 0, n);
	/* A rank that shares pages may have none of a row's keys. */
	auto skip = [&](void) {
		while (MX_SHARES(&a.places) && s.there && s.begin == s.end)
			s.next(a, first, units, n);
		block = s.begin;
	};
	/* Goes on by so many copies. The page of the next one is on its way while the ring is full. */
	auto go = [&](uint32_t copies) {
		for (uint32_t i = 0; i < copies && s.there; i++)
			if (++block == s.end) {
				if (values)
					s.next(a, first, units, n);
				values = !values;
				skip();
			}
		to.advance(copies);
		if (s.there)
			page = a.pages[s.w.page_begin + (s.k0 + block * BLOCK) / a.page_tokens];
	};
	skip();
	go(turn);
	while (s.there) {
		const uint32_t key = s.k0 + block * BLOCK;
		/* keys of this step of the engine are there after the wait */
		if (!waited && (key + BLOCK >= s.w.hi || to.phase)) {
			mx_pdl_wait();
			waited = true;
		}
		if (!barrier_passed(to.empty(), to.phase ^ 1))
			continue;
		barrier_expect(to.full(), bytes);
		const unsigned char *from =
			a.page_base + page * a.page_stride +
			((size_t)(2 * s.w.head + values) * a.page_tokens + key % a.page_tokens) * tile<D>::row;
		if (a.tails && key >= a.tails[s.w.row].from) {
			const attn_tail tail = a.tails[s.w.row];
			from = a.tail_base + tail.place * attn_tail_bytes(a.kv_heads, tile<D>::row) +
			       ((size_t)(2 * s.w.head + values) * ATTN_TAIL + key - tail.from) * tile<D>::row;
		}
		copy_bulk(to.at(), from, bytes, to.full());
		go(FILLERS);
	}
	if (!waited)
		mx_pdl_wait();
}

/* Queries of a unit's rows. */
template <int D> struct queries {
	uint32_t q[D / 16][2];

	__device__ void load(const attn_args &a, const unit &w)
	{
		const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		const uint32_t v = w.v0 + (g < w.rows ? g : 0); /* rows beyond the last repeat the first */
		const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.qkv + (size_t)w.row * a.ld +
		                         (size_t)(w.head * a.group + v) * a.head_dim;
#pragma unroll
		for (int s = 0; s < D / 16; s++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t e = 16 * s + 8 * i; /* head_dim is a multiple of 8 */
				q[s][i] = e < a.head_dim ? *(const uint32_t *)(x + e + 2 * t) : 0;
			}
	}

	/* Computes the scores of blocks: s[.][key g, g + 8][row 2t, 2t + 1]. The chains of several
	 * blocks are under way at once. */
	template <int N>
	__device__ __forceinline__ void scores(float (*s)[4], const uint32_t (&keys)[N]) const
	{
		const uint32_t row = threadIdx.x & 15, turn = row & 7;
		const uint32_t high = (threadIdx.x & 31) >> 4 ^ turn;
		const uint32_t from = row / 8 * 8 * tile<D>::row + row % 8 * 128;
#pragma unroll
		for (int j = 0; j < N; j++)
			s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
		for (int c = 0; c < D / 16; c++)
#pragma unroll
			for (int j = 0; j < N; j++) {
				uint32_t r[4];
				load_matrices(r, keys[j] + from + 2 * c / 8 * 1024 + ((2 * c % 8) ^ high) * 16);
				multiply<false>(s[j], r, q[c][0], q[c][1]);
			}
	}
};

/* The result of some keys for a unit's rows: of a thread rows 2t and 2t + 1, of a reader its part
 * of the dimensions. */
template <int D> struct rows {
	static constexpr int parts = D / 16 / READERS;
	float m[2], l[2], o[parts][4];

	__device__ void clear(void)
	{
		m[0] = m[1] = -INFINITY;
		l[0] = l[1] = 0;
#pragma unroll
		for (int s = 0; s < parts; s++)
			o[s][0] = o[s][1] = o[s][2] = o[s][3] = 0;
	}

	/* Turns the scores of a step into probabilities, as operands of the next product. `back`: the
	 * place of the row's last key less that of key g; `reach`: the row sees keys of 0 .. reach - 1
	 * back. */
	__device__ __forceinline__ void softmax(float (&s)[BLOCKS][4], uint32_t (&p)[BLOCKS][2],
	                                        float scale, uint32_t back, uint32_t reach, bool masked)
	{
		if (masked) {
#pragma unroll
			for (int j = 0; j < BLOCKS; j++)
#pragma unroll
				for (int i = 0; i < 4; i++) /* for later keys this wraps to a large number */
					s[j][i] = back - (j * BLOCK + (i & 2) * 4) < reach ? s[j][i] : -INFINITY;
		}
		float use[2], alpha[2];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float top = -INFINITY;
#pragma unroll
			for (int j = 0; j < BLOCKS; j++)
				top = fmaxf(top, fmaxf(s[j][i], s[j][i + 2]));
			for (int d = 4; d < 32; d *= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
			top = fmaxf(m[i], __fmul_rn(top, scale));
			use[i] = top == -INFINITY ? 0 : top;
			alpha[i] = exp2_fast(__fsub_rn(m[i], use[i]));
			m[i] = top;
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float sum = 0;
#pragma unroll
			for (int j = 0; j < BLOCKS; j++)
#pragma unroll
				for (int h = 0; h < 4; h += 2) {
					s[j][i + h] = exp2_fast(__fmaf_rn(s[j][i + h], scale, -use[i]));
					sum = __fadd_rn(sum, s[j][i + h]);
				}
			/* keys 2t and 2t + 1 of each 8 first, as a thread of prefill.cu has them */
			sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 4));
			l[i] = __fmaf_rn(l[i], alpha[i], sum);
		}
#pragma unroll
		for (int j = 0; j < BLOCKS; j++) {
			p[j][0] = transpose(pack<false>(s[j][0], s[j][1]));
			p[j][1] = transpose(pack<false>(s[j][2], s[j][3]));
		}
#pragma unroll
		for (int c = 0; c < parts; c++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				o[c][i] = __fmul_rn(o[c][i], alpha[i & 1]);
	}

	/* Adds the values of a block's first n keys: memory that was never written may hold NaN.
	 * `part`: the reader's first 16 dimensions. */
	__device__ __forceinline__ void add_values(const uint32_t (&p)[2], uint32_t values, uint32_t n,
	                                           uint32_t part)
	{
		const uint32_t lane = threadIdx.x & 31, t = lane % 4;
		const uint32_t row = (lane & 7) + lane / 16 * 8, high = (lane >> 3 & 1) ^ (row & 7);
		uint32_t keep[2];
#pragma unroll
		for (uint32_t i = 0; i < 2; i++)
			keep[i] = (2 * t + 8 * i < n ? 0xffffu : 0) | (2 * t + 8 * i + 1 < n ? 0xffff0000u : 0);
		values += row / 8 * 8 * tile<D>::row + row % 8 * 128;
#pragma unroll
		for (uint32_t c = 0; c < parts; c++) {
			const uint32_t to = 2 * (part + c);
			uint32_t r[4];
			load_transposed(r, values + to / 8 * 1024 + ((to % 8) ^ high) * 16);
			const uint32_t v[4] = {r[0] & keep[0], r[1] & keep[0], r[2] & keep[1], r[3] & keep[1]};
			multiply<false>(o[c], v, p[0], p[1]);
		}
	}

	/* Folds the result of a split into that of the splits before it, this, and starts the next. */
	__device__ __forceinline__ void fold(rows &x)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float sum = x.l[i];
			sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 8));
			sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 16));
			const fold_factors f = factors(m[i], x.m[i]);
			m[i] = fmaxf(m[i], x.m[i]);
			l[i] = fold_number(l[i], f.old, sum, f.add);
#pragma unroll
			for (int c = 0; c < parts; c++) {
				o[c][i] = fold_number(o[c][i], f.old, x.o[c][i], f.add);
				o[c][i + 2] = fold_number(o[c][i + 2], f.old, x.o[c][i + 2], f.add);
			}
		}
		x.clear();
	}

	/* Stores the unit's partials, or the outputs if there are no others. */
	__device__ void store(const attn_args &a, const unit &w, uint32_t part) const
	{
		const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t r = 2 * t + i, head = w.head * a.group + w.v0 + r;
			if (r >= w.rows)
				continue;
			const size_t at = w.at + r * w.splits;
			__nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)w.row * a.ldo + head * a.head_dim;
			float *to = sends(a) ? sent_partial(a, w.row, head) : nullptr;
			if (w.splits > 1 && g == 0 && part == 0)
				*(float2 *)(a.sums + 2 * at) = make_float2(m[i], l[i]);
			else if (to && g == 0 && part == 0)
				*(float2 *)(to + D) = make_float2(m[i], l[i]);
#pragma unroll
			for (uint32_t c = 0; c < parts; c++)
#pragma unroll
				for (int h = 0; h < 2; h++) {
					const uint32_t d = 16 * (part + c) + 8 * h + g;
					if (w.splits > 1)
						a.values[at * D + d] = o[c][i + 2 * h];
					else if (to)
						to[d] = o[c][i + 2 * h];
					else if (d < a.head_dim)
						out[d] =
							__float2bfloat16_rn(finish(a, head, {m[i], l[i], o[c][i + 2 * h]}));
				}
		}
	}
};

/* Waits for the scores of the other readers. */
__device__ __forceinline__ void readers_sync(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(READERS * 32) : "memory");
}

/* Computes the thread block's n units. */
template <int D>
__device__ void work(const attn_args &a, const uint32_t *first, const uint4 *units, uint32_t n,
                     unsigned char *smem, uint64_t *bars)
{
	const uint32_t reader = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t part = reader * rows<D>::parts;
	if (reader == READERS) {
		if (lane < FILLERS)
			fill<D>(a, first, units, n, lane, place<D>(smem, bars));
		return;
	}
	float4 *shared_scores = (float4 *)(smem + RING_BYTES); /* [2][BLOCKS][32] */
	place<D> in(smem, bars);
	queries<D> q;
	rows<D> all_splits, x; /* x: of the split */
	step s;
	s.open(a, first, units, 0, n);
	mx_pdl_wait();
	if (!s.there)
		return;
	q.load(a, s.w);
	all_splits.clear();
	x.clear();
	for (uint32_t turn = 0; s.there; turn ^= 1) {
		float score[BLOCKS][4] = {};
		uint32_t p[BLOCKS][2];
		/* each reader the scores of some blocks, which all of them need */
		constexpr uint32_t own = BLOCKS / READERS;
		float mine[own][4];
		uint32_t keys[own];
#pragma unroll
		for (uint32_t j = 0; j < own; j++) {
			const uint32_t block = own * reader + j;
			keys[j] = in.at(); /* of a block that is there, for one that is not */
			if (block < s.begin || block >= s.end)
				continue;
			const place<D> from = in.ahead(block - s.begin);
			barrier_wait(from.full(), from.phase);
			keys[j] = from.at();
		}
		if (own * reader < s.end && own * reader + own > s.begin)
			q.scores(mine, keys);
		float4 *to = shared_scores + turn * BLOCKS * 32 + lane;
#pragma unroll
		for (uint32_t j = 0; j < own; j++) {
			const uint32_t block = own * reader + j;
			const bool there = block >= s.begin && block < s.end;
			to[block * 32] = there ? make_float4(mine[j][0], mine[j][1], mine[j][2], mine[j][3])
			                       : make_float4(0, 0, 0, 0);
		}
		readers_sync();
		in.release(s.end - s.begin);
#pragma unroll
		for (uint32_t j = 0; j < BLOCKS; j++)
			*(float4 *)score[j] = to[j * 32];
		x.softmax(score, p, a.scale, s.w.hi - 1 - s.k0 - lane / 4, s.w.hi - s.w.lo,
		          s.k0 + ATTN_STEP > s.w.hi || s.k0 < s.w.lo);
#pragma unroll
		for (int j = 0; j < BLOCKS; j++)
			if (j >= s.begin && j < s.end) {
				barrier_wait(in.full(), in.phase);
				x.add_values(p[j], in.at(), min(s.w.hi - s.k0 - j * BLOCK, (uint32_t)BLOCK), part);
				in.release(1);
			}
		if (s.ends_split())
			all_splits.fold(x);
		const unit done = s.w;
		if (s.next(a, first, units, n))
			continue;
		all_splits.store(a, done, part);
		all_splits.clear();
		if (s.there)
			q.load(a, s.w);
	}
}

#endif

template <int D> __global__ void __launch_bounds__(THREADS, 2) rungs(const attn_args a)
{
#if __CUDA_ARCH__ >= 900
	constexpr uint32_t stages = tile<D>::stages;
	extern __shared__ __align__(1024) unsigned char smem[];
	__shared__ uint64_t bars[stages * 2];
	uint4 *units = (uint4 *)(smem + RING_BYTES + SCORES);
	uint32_t *first = (uint32_t *)units + UNITS * UNIT_WORDS;
	mx_pdl_launch();
	if (a.tails)
		mx_pdl_wait();
	/* Before the wait: only tables and keys that were written before the step (launch.cuh). */
	list_units<ROWS, false>(a, first); /* has barriers: all threads call it */
	__syncthreads();
	const uint32_t all = first[a.n_spans];
	const uint32_t n = all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
	for (uint32_t i = threadIdx.x; i < stages * 2; i += THREADS)
		barrier_init(shared_address(bars) + i * 8, i % 2 ? READERS : 1);
	barriers_ready();
	keep_units<ROWS>(a, first, units);
	__syncthreads();
	work<D>(a, first, units, n, smem, bars);
#else
	(void)a;
	__trap(); /* never launched: attn_prefill_can is false */
#endif
}

template <int D> cudaError_t launch(const attn_launch *l, const attn_args *a)
{
	const uint64_t units =
		(uint64_t)a->n_spans * a->kv_heads * a->max_parts * ((a->group + ROWS - 1) / ROWS);
	const uint32_t most = 2 * (uint32_t)l->sms;
	return mx_launch(rungs<D>, dim3(units < most ? (uint32_t)units : most), dim3(THREADS),
	                 shared_bytes(a->n_spans), l->stream, *a);
}

template <int D> cudaError_t prepare(const attn_launch *l, uint32_t max_spans)
{
	const size_t bytes = shared_bytes(max_spans);
	if (bytes + STATIC_BYTES > l->smem)
		return cudaErrorInvalidValue;
	return cudaFuncSetAttribute(rungs<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

} // namespace

cudaError_t OF(attn_rungs_prepare)(const attn_launch *l, uint32_t dim, uint32_t max_spans)
{
	SHARED_INSTEAD(attn_rungs_prepare_shared(l, dim, max_spans));
	return dim == 64 ? prepare<64>(l, max_spans) : prepare<128>(l, max_spans);
}

cudaError_t OF(attn_rungs)(const attn_launch *l, const attn_args *a)
{
	SHARED_INSTEAD(attn_rungs_shared(l, a));
	return a->dim == 64 ? launch<64>(l, a) : launch<128>(l, a);
}
