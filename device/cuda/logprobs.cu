/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-probabilities of tokens: logit - max - log(sum exp(logit - max)), the sum in
 * double; the token's rank; and the likeliest tokens. Each thread block of a row's
 * cluster finds the likeliest tokens of its slice, the first block merges them.
 */
#include "device/cuda/sample.cuh"

#define TOP MX_MAX_TOP_LOGPROBS

struct found {
	double sum;        /* of exp(logit - max) */
	uint32_t likelier; /* tokens likelier than the one asked for */
	uint64_t top[TOP]; /* keys, 0 = none */
};

struct report_space {
	double sums[MX_SAMPLE_WARPS];
	uint32_t likelier[MX_SAMPLE_WARPS];
	uint64_t keys[2][MX_SAMPLE_WARPS]; /* used in turn */
	found mine, blocks[MX_SAMPLE_BLOCKS];
	max_space max;
};

/* Adds the sums and the counts over the thread block, in a fixed order; thread 0 uses them. */
static __device__ __forceinline__ void add_up(double *sum, uint32_t *count, report_space &sh)
{
	const unsigned warp = threadIdx.x / 32;
#pragma unroll
	for (int i = 16; i; i /= 2) {
		*sum += __shfl_xor_sync(0xffffffffu, *sum, i);
		*count += __shfl_xor_sync(0xffffffffu, *count, i);
	}
	if (threadIdx.x % 32 == 0) {
		sh.sums[warp] = *sum;
		sh.likelier[warp] = *count;
	}
	__syncthreads();
	*sum = 0;
	*count = 0;
	for (unsigned i = 0; i < MX_SAMPLE_WARPS; i++) {
		*sum += sh.sums[i];
		*count += sh.likelier[i];
	}
}

/* Returns the largest of this thread's keys below `limit`, 0 if there is none. */
template <int BLOCKS>
static __device__ __forceinline__ uint64_t next_key(const slice &s, uint64_t limit)
{
	uint64_t best = 0;
	slice_each<BLOCKS>(s, [&](float v, uint32_t i) {
		const uint64_t key = i < s.n ? key_of(v, s.first + i) : 0;
		if (key < limit && key > best)
			best = key;
	});
	return best;
}

/* Finds the n largest keys of the slice. The thread that had the last one searches for its next. */
template <int BLOCKS>
static __device__ void top_of_slice(const slice &s, uint32_t n, report_space &sh)
{
	uint64_t mine = next_key<BLOCKS>(s, ~(uint64_t)0);
	for (uint32_t k = 0; k < n; k++) {
		uint64_t *keys = sh.keys[k % 2], key = warp_max(mine);
		if (threadIdx.x % 32 == 0)
			keys[threadIdx.x / 32] = key;
		__syncthreads();
		key = keys[0];
#pragma unroll
		for (int i = 1; i < MX_SAMPLE_WARPS; i++)
			key = keys[i] > key ? keys[i] : key;
		if (threadIdx.x == 0)
			sh.mine.top[k] = key;
		if (key && key == mine)
			mine = next_key<BLOCKS>(s, key);
	}
}

/* Called by one warp: merges the n largest keys of the blocks and writes the row's result. */
template <int BLOCKS>
static __device__ void answer(const report_space &sh, float max, float logit, int32_t token,
                              uint32_t n, struct mx_logprob *out)
{
	constexpr int EACH = (BLOCKS * TOP + 31) / 32;
	const unsigned lane = threadIdx.x % 32;
	uint64_t keys[EACH];
	double sum = 0;
	uint32_t likelier = 0;
	for (int k = 0; k < BLOCKS; k++) {
		sum += sh.blocks[k].sum;
		likelier += sh.blocks[k].likelier;
	}
	const double norm = (double)max + log(sum);
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		const unsigned at = lane + 32 * j, block = at / TOP;
		keys[j] = block < BLOCKS && at % TOP < n ? sh.blocks[block].top[at % TOP] : 0;
	}
	for (uint32_t k = 0; k < n; k++) {
		uint64_t best = 0;
#pragma unroll
		for (int j = 0; j < EACH; j++)
			best = keys[j] > best ? keys[j] : best;
		best = warp_max(best);
#pragma unroll
		for (int j = 0; j < EACH; j++)
			keys[j] = keys[j] == best ? 0 : keys[j];
		if (lane == 0) {
			out->top[k].token = key_id(best);
			out->top[k].logprob = (float)((double)key_value(best) - norm);
		}
	}
	if (lane == 0) {
		out->token = token;
		out->logprob = (float)((double)logit - norm);
		out->rank = (int32_t)likelier + 1;
		out->n_top = n;
	}
}

template <int BLOCKS>
static __global__ void __launch_bounds__(MX_SAMPLE_THREADS, 2)
	logprobs_rows(const float *logits, size_t ld, uint32_t vocab, bool vectors,
                  const mx_logprob_ask *asks, struct mx_logprob *out)
{
	extern __shared__ float4 space[];
	__shared__ report_space sh;
	const size_t row = blockIdx.x / BLOCKS;
	const unsigned rank = blockIdx.x % BLOCKS;
	cluster_arrive<BLOCKS>();
	mx_pdl_launch();
	mx_pdl_wait();
	logits += row * ld;
	const int32_t token = asks[row].token;
	const uint32_t n_top = min(min(asks[row].n_top, (uint32_t)TOP), vocab);
	const float logit = logits[token];
	/* with one block the slice is the row itself, which is only read */
	const slice s =
		slice_of<BLOCKS>(BLOCKS > 1 ? (float *)space : const_cast<float *>(logits), vocab, rank);
	if (BLOCKS > 1)
		slice_load(logits, s, vectors);
	largest most;
	slice_each<BLOCKS>(s, [&](float l, uint32_t i) { most.take(l, s.first + i); });
	const float max = key_value(cluster_max<BLOCKS>(most.key(), rank, sh.max));
	double sum = 0;
	uint32_t likelier = 0;
	slice_each<BLOCKS>(s, [&](float l, uint32_t i) {
		sum += (double)weight_exp(__fsub_rn(l, max));
		likelier += (int32_t)(s.first + i) < token ? l >= logit : l > logit;
	});
	add_up(&sum, &likelier, sh);
	top_of_slice<BLOCKS>(s, n_top, sh);
	__syncthreads();
	found *to = cluster_at<BLOCKS>(&sh.blocks[rank], 0);
	if (threadIdx.x == 0) {
		to->sum = sum;
		to->likelier = likelier;
	}
	if (threadIdx.x < n_top)
		to->top[threadIdx.x] = sh.mine.top[threadIdx.x];
	cluster_sync<BLOCKS>();
	if (rank == 0 && threadIdx.x < 32)
		answer<BLOCKS>(sh, max, logit, token, n_top, &out[row]);
}

cudaError_t mx_cuda_logprobs_setup(struct mx_device *d)
{
	static_assert(sizeof(report_space) <= MX_SAMPLE_OTHER, "the slices' share of shared memory");
	const size_t bytes = slice_bytes(d, mx_cuda(d)->limits.vocab);
	return cudaFuncSetAttribute(logprobs_rows<MX_SAMPLE_BLOCKS>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

cudaError_t mx_cuda_logprobs_launch(struct mx_device *d, const float *logits, size_t ld, size_t n,
                                    uint32_t vocab, const struct mx_logprob_ask *asks,
                                    struct mx_logprob *out)
{
	const cudaStream_t stream = mx_cuda_stream(d);
	const bool vectors = ld % 4 == 0 && (uintptr_t)logits % 16 == 0;
	const size_t bytes = slice_bytes(d, vocab);
	if (bytes)
		return mx_launch_clusters(dim3(MX_SAMPLE_BLOCKS), logprobs_rows<MX_SAMPLE_BLOCKS>,
		                          dim3((uint32_t)n * MX_SAMPLE_BLOCKS), dim3(MX_SAMPLE_THREADS),
		                          bytes, stream, logits, ld, vocab, vectors, asks, out);
	return mx_launch(logprobs_rows<1>, dim3((uint32_t)n), dim3(MX_SAMPLE_THREADS), 0, stream,
	                 logits, ld, vocab, vectors, asks, out);
}
