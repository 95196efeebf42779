/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws tokens from logits: device/cpu/sample.c on the GPU, in the same order of
 * operations, with the same weights e = exp((logit - largest) / temperature) and the
 * same random numbers.
 *
 * Weights are summed as integers, in units of 2^-43. The sums are exact in any order,
 * so a draw is repeatable; the sum over a vocabulary of 2^20 fits in 63 bits. The
 * filters find their threshold by a radix search on the bits of e, ten at a time, as
 * on CPUs. No token is moved: a filter leaves the tokens with e above a floor, and the
 * first few of those at the floor.
 */
#include "device/cuda/sample.cuh"

#define RADIX_BITS 10
#define RADIX      (1u << RADIX_BITS)

struct histogram {
	uint32_t low[RADIX], high[RADIX]; /* halves of 64-bit sums: no 64-bit atomic add */
};

struct draw_space {
	histogram h[2]; /* used in turn: one is cleared while other blocks read the other */
	uint64_t warps[MX_SAMPLE_WARPS];
	uint64_t blocks[MX_SAMPLE_BLOCKS];
	uint64_t target, above, mass; /* of the last search */
	uint32_t bucket;
	int32_t last;
	max_space max;
};

/* The tokens of a row that the filters left: e above the floor, or e at the floor up to index
 * `last` of the slice. */
struct rest {
	float floor;
	int32_t last;

	__device__ __forceinline__ bool has(float e, uint32_t i) const
	{
		return e > floor || (e == floor && (int32_t)i <= last);
	}
};

static __device__ __forceinline__ uint64_t weight(float e)
{
	return __float2ull_rn(e * 0x1p43f);
}

/* Turns logits into weights. */
template <int BLOCKS>
static __device__ __forceinline__ void weigh(const slice &s, float max, float scale)
{
	auto f = [&](float l) { return weight_exp(__fmul_rn(__fsub_rn(l, max), scale)); };
	if (BLOCKS > 1) {
#pragma unroll 2
		for (uint32_t i = s.begin + threadIdx.x % 32 * 4; i < s.end; i += 128) {
			float4 *p = reinterpret_cast<float4 *>(s.v + i), q = *p;
			*p = make_float4(f(q.x), f(q.y), f(q.z), f(q.w));
		}
	} else {
		for (uint32_t i = s.begin + threadIdx.x % 32; i < s.end; i += 32)
			s.v[i] = f(s.v[i]);
	}
}

/* ---- logit_bias, banned tokens, penalties ---- */

static __device__ __forceinline__ void penalise(const slice &s, const mx_draw_row &r,
                                                uint32_t token, uint32_t output)
{
	const uint32_t i = token - s.first;
	if (i >= s.n)
		return;
	float l = s.v[i];
	if (r.repetition != 1)
		l = l > 0 ? __fdiv_rn(l, r.repetition) : __fmul_rn(l, r.repetition);
	l = __fsub_rn(l, __fmul_rn(r.frequency, (float)output));
	s.v[i] = __fsub_rn(l, output ? r.presence : 0.0f);
}

static __device__ void apply_lists(const slice &s, const mx_draw_row &r, const uint32_t *words)
{
	const uint32_t *bias = words + r.first, *banned = bias + 2 * r.n_bias;
	const uint32_t *counts = banned + r.n_banned, *many = counts + r.n_counts;
	__syncthreads();
	for (uint32_t k = threadIdx.x; k < r.n_bias; k += MX_SAMPLE_THREADS) {
		uint32_t i = bias[2 * k] - s.first;
		if (i < s.n)
			atomicAdd(&s.v[i], __uint_as_float(bias[2 * k + 1])); /* a token may come twice */
	}
	__syncthreads();
	for (uint32_t k = threadIdx.x; k < r.n_banned; k += MX_SAMPLE_THREADS)
		if (banned[k] - s.first < s.n)
			s.v[banned[k] - s.first] = -INFINITY;
	__syncthreads();
	for (uint32_t k = threadIdx.x; k < r.n_counts; k += MX_SAMPLE_THREADS)
		penalise(s, r, counts[k] >> MX_DRAW_COUNT_BITS, counts[k] & MX_DRAW_MANY);
	for (uint32_t k = threadIdx.x; k < r.n_many; k += MX_SAMPLE_THREADS)
		penalise(s, r, many[2 * k], many[2 * k + 1]);
	__syncthreads();
}

/* Takes away the tokens that are not in a set. A thread changes its own elements only, so this
 * needs no barrier. */
template <int BLOCKS>
static __device__ __forceinline__ void apply_mask(const slice &s, const uint32_t *mask)
{
	slice_each<BLOCKS>(s, [&](float, uint32_t i) {
		const uint32_t token = s.first + i;
		if (i < s.n && !(mask[token / 32] >> token % 32 & 1))
			s.v[i] = -INFINITY;
	});
}

/* ---- sums over a block ---- */

static __device__ __forceinline__ uint64_t warp_running_sum(uint64_t v)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2) {
		uint64_t before = __shfl_up_sync(0xffffffffu, v, i);
		v += threadIdx.x % 32 >= (unsigned)i ? before : 0;
	}
	return v;
}

/* Returns the sum of v over the threads before this one, and over all threads in *total. sh.warps
 * is in use until the next barrier. */
static __device__ __forceinline__ uint64_t block_running_sum(uint64_t v, uint64_t *total,
                                                             draw_space &sh)
{
	const unsigned warp = threadIdx.x / 32;
	const uint64_t sum = warp_running_sum(v);
	if (threadIdx.x % 32 == 31)
		sh.warps[warp] = sum;
	__syncthreads();
	uint64_t before = 0, all = 0;
#pragma unroll
	for (unsigned i = 0; i < MX_SAMPLE_WARPS; i++) {
		before += i < warp ? sh.warps[i] : 0;
		all += sh.warps[i];
	}
	*total = all;
	return before + sum - v;
}

/* Finds the index at which the running sum of f(e, i) over the slice, in order, exceeds `target`,
 * which is below the sum over the slice. One thread returns the index, the others -1. */
template <int BLOCKS, typename F>
static __device__ int32_t locate(const slice &s, uint64_t target, draw_space &sh, F f)
{
	constexpr uint32_t step = BLOCKS > 1 ? 4 : 1;
	const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint64_t mine = 0, total;
	slice_each<BLOCKS>(s, [&](float e, uint32_t i) { mine += f(e, i); });
	uint64_t before = block_running_sum(mine, &total, sh);
	before = __shfl_sync(0xffffffffu, before, 0); /* the sum before this warp's range */
	if (before > target || before + sh.warps[warp] <= target)
		return -1;
	for (uint32_t i = s.begin; i < s.end; i += 32 * step) {
		const uint32_t at = i + lane * step;
		uint64_t sum = 0;
		for (uint32_t k = 0; k < step && at + k < s.end; k++)
			sum += f(s.v[at + k], at + k);
		const uint64_t running = before + warp_running_sum(sum);
		const unsigned passed = __ballot_sync(0xffffffffu, running > target);
		if (!passed) {
			before = __shfl_sync(0xffffffffu, running, 31);
			continue;
		}
		if (lane != (unsigned)__ffs(passed) - 1)
			return -1;
		sum = running - sum;
		for (uint32_t k = 0; k < step && at + k < s.end; k++)
			if ((sum += f(s.v[at + k], at + k)) > target)
				return (int32_t)(at + k);
	}
	return -1;
}

/* ---- filters ---- */

static __device__ __forceinline__ void add(histogram &h, uint32_t bucket, uint64_t w)
{
	const uint32_t low = (uint32_t)w;
	uint32_t high = (uint32_t)(w >> 32);
	high += atomicAdd(&h.low[bucket], low) + low < low;
	if (high)
		atomicAdd(&h.high[bucket], high);
}

/* Buckets b and b - 1 over all blocks of the cluster; b is odd. */
template <int BLOCKS>
static __device__ __forceinline__ void gather(histogram &h, uint32_t b, uint64_t *of_b,
                                              uint64_t *of_next)
{
	uint64_t x = 0, y = 0;
#pragma unroll
	for (unsigned k = 0; k < BLOCKS; k++) {
		uint2 low = *cluster_at<BLOCKS>(reinterpret_cast<uint2 *>(&h.low[b - 1]), k);
		uint2 high = *cluster_at<BLOCKS>(reinterpret_cast<uint2 *>(&h.high[b - 1]), k);
		x += (uint64_t)high.y << 32 | low.y;
		y += (uint64_t)high.x << 32 | low.x;
	}
	*of_b = x;
	*of_next = y;
}

/* Goes down from the largest e of the rest until the number of tokens reaches k or, with k = 0,
 * until their weight reaches the share p of the total. Returns that e; 0 if k is never reached.
 * With k = 0, leaves the weight of all larger e in sh.above, the weight of the equal ones in
 * sh.mass, and p times the total in sh.target. */
template <int BLOCKS>
static __device__ float search(const slice &s, const rest &left, uint32_t k, float p, int *turn,
                               draw_space &sh)
{
	uint64_t above = 0, target = k;
	uint32_t prefix = 0;
	for (int shift = 2 * RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
		histogram &h = sh.h[*turn];
		*turn ^= 1;
		for (uint32_t b = threadIdx.x; b < RADIX; b += MX_SAMPLE_THREADS)
			h.low[b] = h.high[b] = 0;
		__syncthreads();
		slice_each<BLOCKS>(s, [&](float e, uint32_t i) {
			const uint32_t bits = __float_as_uint(e);
			if (bits >> shift >> RADIX_BITS != prefix || !bits || !left.has(e, i))
				return;
			if (k)
				atomicAdd(&h.low[bits >> shift & (RADIX - 1)], 1u);
			else
				add(h, bits >> shift & (RADIX - 1), weight(e));
		});
		cluster_sync<BLOCKS>();
		const uint32_t b = RADIX - 1 - 2 * threadIdx.x; /* this thread has b and b - 1 */
		uint64_t of_b, of_next, total;
		gather<BLOCKS>(h, b, &of_b, &of_next);
		const uint64_t before = above + block_running_sum(of_b + of_next, &total, sh);
		if (shift == 2 * RADIX_BITS) {
			if (k && total < k)
				return 0;
			if (!k)
				target = max(__double2ull_ru((double)p * (double)total), (unsigned long long)1);
		}
		if (before < target && before + of_b + of_next >= target) {
			const bool next = before + of_b < target;
			sh.bucket = next ? b - 1 : b;
			sh.above = next ? before + of_b : before;
			sh.mass = next ? of_next : of_b;
		}
		__syncthreads();
		prefix = prefix << RADIX_BITS | sh.bucket;
		above = sh.above;
	}
	if (!k) { /* for cut_top_p */
		if (threadIdx.x == 0)
			sh.target = target;
		__syncthreads();
	}
	return __uint_as_float(prefix);
}

/* Cuts the rest to the fewest tokens, largest first and ties by lower id, whose weight is the share
 * p. */
template <int BLOCKS>
static __device__ void cut_top_p(const slice &s, rest *left, float p, unsigned rank, int *turn,
                                 draw_space &sh)
{
	const float e = search<BLOCKS>(s, *left, 0, p, turn, sh);
	const uint64_t w = weight(e), target = sh.target;
	const uint64_t ties = sh.mass / w, wanted = (target - sh.above + w - 1) / w;
	const rest before = *left;
	*left = rest{e, INT32_MAX};
	if (wanted >= ties)
		return;
	/* the histogram of the last search gives the ties of each block */
	histogram &h = sh.h[*turn ^ 1];
	uint64_t first = 0, mine = 0;
	for (unsigned k = 0; k <= rank; k++) {
		first += mine;
		mine = ((uint64_t)*cluster_at<BLOCKS>(&h.high[sh.bucket], k) << 32 |
		        *cluster_at<BLOCKS>(&h.low[sh.bucket], k)) /
		       w;
	}
	if (wanted <= first) {
		left->last = -1;
	} else if (wanted < first + mine) {
		int32_t at = locate<BLOCKS>(s, wanted - first - 1, sh, [&](float x, uint32_t i) {
			return (uint64_t)(x == e && before.has(x, i));
		});
		if (at >= 0)
			sh.last = at;
		__syncthreads();
		left->last = sh.last;
	}
}

/* ---- the draw ---- */

/* Finds the token at which the running sum of the weights, in order of ids, exceeds u times their
 * total. One thread of the cluster returns it, the others -1. */
template <int BLOCKS>
static __device__ int32_t draw(const slice &s, const rest &left, double u, unsigned rank,
                               draw_space &sh)
{
	auto f = [&](float e, uint32_t i) { return left.has(e, i) ? weight(e) : 0; };
	uint64_t mine = 0, total;
	slice_each<BLOCKS>(s, [&](float e, uint32_t i) { mine += f(e, i); });
	__syncthreads(); /* sh.warps and sh.blocks are in use */
	block_running_sum(mine, &total, sh);
	if (threadIdx.x < BLOCKS)
		*cluster_at<BLOCKS>(&sh.blocks[rank], threadIdx.x) = total;
	cluster_sync<BLOCKS>();
	uint64_t all = 0, before = 0;
#pragma unroll
	for (unsigned k = 0; k < BLOCKS; k++) {
		before += k < rank ? sh.blocks[k] : 0;
		all += sh.blocks[k];
	}
	uint64_t target = __double2ull_rd(u * (double)all);
	if (target >= all)
		target = all - 1; /* the product was rounded up */
	if (target < before || target >= before + sh.blocks[rank])
		return -1;
	const int32_t at = locate<BLOCKS>(s, target - before, sh, f);
	return at < 0 ? -1 : (int32_t)s.first + at;
}

/* ---- the kernel ---- */

static __device__ __forceinline__ void hand_back(uint64_t *tokens, size_t max_rows, size_t row,
                                                 uint32_t serial, int32_t token)
{
	/* one store: if the host sees the serial number, it sees the token */
	*(volatile uint64_t *)&tokens[serial % 2 * max_rows + row] =
		(uint64_t)serial << 32 | (uint32_t)token;
}

/* BLOCKS thread blocks draw a row. */
template <int BLOCKS>
static __global__ void __launch_bounds__(MX_SAMPLE_THREADS, 2)
	draw_rows(float *logits, size_t ld, uint32_t vocab, bool vectors, const mx_draw_row *rows,
              const uint32_t *words, const uint32_t *masks, size_t mask_words, uint64_t *tokens,
              size_t max_rows)
{
	extern __shared__ float4 space[];
	__shared__ draw_space sh;
	const size_t row = blockIdx.x / BLOCKS;
	const unsigned rank = blockIdx.x % BLOCKS;
	mx_pdl_launch();
	const mx_draw_row r = rows[row]; /* like a step's tables: written before the step */
	mx_pdl_wait();
	logits += row * ld;
	if (r.mode == MX_DRAW_NOTHING) {
		if (rank == 0 && threadIdx.x == 0)
			hand_back(tokens, max_rows, row, rows[0].serial, 0);
		return;
	}
	cluster_arrive<BLOCKS>();
	const slice s = slice_of<BLOCKS>(BLOCKS > 1 ? (float *)space : logits, vocab, rank);
	const bool lists = r.n_bias | r.n_banned | r.n_counts | r.n_many;
	largest most;
	if (BLOCKS > 1 && r.mode == MX_DRAW_LARGEST && !lists && !r.mask) {
#pragma unroll 8
		for (uint32_t i = s.begin + threadIdx.x % 32 * 4; i < s.end; i += 128) {
			const float4 q = slice_fetch(logits, s, i, vectors);
			most.take(q.x, s.first + i);
			most.take(q.y, s.first + i + 1);
			most.take(q.z, s.first + i + 2);
			most.take(q.w, s.first + i + 3);
		}
	} else {
		if (BLOCKS > 1)
			slice_load(logits, s, vectors);
		if (lists)
			apply_lists(s, r, words);
		if (r.mask)
			apply_mask<BLOCKS>(s, masks + (r.mask - 1) * mask_words);
		slice_each<BLOCKS>(s, [&](float l, uint32_t i) { most.take(l, s.first + i); });
	}
	const uint64_t key = cluster_max<BLOCKS>(most.key(), rank, sh.max);
	const float max = key_value(key);
	if (!isfinite(max) || r.mode == MX_DRAW_LARGEST) {
		if (rank == 0 && threadIdx.x == 0)
			hand_back(tokens, max_rows, row, r.serial, isfinite(max) ? key_id(key) : -1);
		return;
	}
	weigh<BLOCKS>(s, max, r.inv_temperature);
	rest left = {r.min_p > 0 ? r.min_p : 0, INT32_MAX};
	int turn = 0;
	if (r.top_k && r.top_k < vocab)
		left.floor = fmaxf(left.floor, search<BLOCKS>(s, left, r.top_k, 0, &turn, sh));
	if (r.top_p < 1)
		cut_top_p<BLOCKS>(s, &left, r.top_p, rank, &turn, sh);
	const int32_t token = draw<BLOCKS>(s, left, r.uniform, rank, sh);
	if (token >= 0)
		hand_back(tokens, max_rows, row, r.serial, token);
}

/* ---- launch ---- */

cudaError_t mx_cuda_draw_setup(struct mx_device *d)
{
	static_assert(sizeof(draw_space) <= MX_SAMPLE_OTHER, "the slices' share of shared memory");
	static_assert(RADIX == 2 * MX_SAMPLE_THREADS, "a thread has two buckets");
	const size_t bytes = slice_bytes(d, mx_cuda(d)->limits.vocab);
	return cudaFuncSetAttribute(draw_rows<MX_SAMPLE_BLOCKS>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

cudaError_t mx_cuda_draw_launch(struct mx_device *d, float *logits, size_t ld, size_t n,
                                uint32_t vocab, const struct mx_draw_row *rows,
                                const uint32_t *words, const uint32_t *masks, size_t mask_words,
                                uint64_t *tokens, size_t max_rows)
{
	const cudaStream_t stream = mx_cuda_stream(d);
	const bool vectors = ld % 4 == 0 && (uintptr_t)logits % 16 == 0;
	const size_t bytes = slice_bytes(d, vocab);
	if (bytes)
		return mx_launch_clusters(dim3(MX_SAMPLE_BLOCKS), draw_rows<MX_SAMPLE_BLOCKS>,
		                          dim3((uint32_t)n * MX_SAMPLE_BLOCKS), dim3(MX_SAMPLE_THREADS),
		                          bytes, stream, logits, ld, vocab, vectors, rows, words, masks,
		                          mask_words, tokens, max_rows);
	return mx_launch(draw_rows<1>, dim3((uint32_t)n), dim3(MX_SAMPLE_THREADS), 0, stream, logits,
	                 ld, vocab, vectors, rows, words, masks, mask_words, tokens, max_rows);
}
