/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of many rows: prompts, in chunks that begin at any position. After
 * FlashAttention-2 and 3 (Dao 2023, arXiv:2307.08691; Shah et al. 2024,
 * arXiv:2407.08608), for compute capability 9.0a.
 *
 * A thread block takes tiles of 128 rows (tokens times the query heads of a group) of a span for
 * one key head through the keys, 128 at a time. Some warps bring queries, keys and values to shared
 * memory (prefill_produce.cuh), two steps ahead, those of the next tile too. Two warpgroups of 64
 * rows each multiply (prefill_consume.cuh), so that the softmax of one overlaps the products of the
 * other.
 */
#include "mixers/attention/cuda/prefill_consume.cuh"
#include "mixers/attention/cuda/prefill_produce.cuh"

namespace
{

template <int D, bool HALF, bool LADDER, bool SHARED>
__global__ void __launch_bounds__(threads(HALF), 1) prefill(const attn_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(1024) unsigned char shared[];
	using P = plan<D, HALF>;
	const barriers bars = {shared_address(shared) + P::bars_at};
	mx_pdl_launch();
	if (threadIdx.x == 0) {
		for (int values = 0; values < 2; values++)
			for (uint32_t stage = 0; stage < STAGES; stage++) {
				barrier_init(bars.full(values, stage), HALF ? producers(true) : 1);
				barrier_init(bars.empty(values, stage), 4 * GROUPS);
			}
		for (uint32_t slot = 0; slot < TOLD; slot++) {
			barrier_init(bars.told(slot), 1);
			barrier_init(bars.heard(slot), 4 * GROUPS + producers(HALF) - 1);
		}
		barrier_init(bars.asked(), 32 * (HALF ? producers(true) : producers(false) - 1));
		barrier_init(bars.answered(), 4 * GROUPS);
		for (uint32_t warp = 0; warp < producers(true); warp++)
			for (uint32_t slot = 0; slot < RAW; slot++)
				barrier_init(bars.raw(warp, slot), 1);
		barriers_ready();
	}
	__syncthreads();
	mx_pdl_wait();
	if (threadIdx.x < 128 * GROUPS) {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(HALF ? 208 : 232));
		consume<D, HALF, LADDER, SHARED>(a, shared, bars);
	} else {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(HALF ? 48 : 40));
		if constexpr (HALF)
			widen_keys<D, SHARED>(a, shared, bars);
		else if (threadIdx.x < 128 * GROUPS + 32)
			copy_keys<D, SHARED>(a, shared, bars);
		else
			copy_queries<D>(a, shared, bars);
	}
#else
	(void)a;
	__trap(); /* never launched: attn_prefill_can is false */
#endif
}

template <int D, bool HALF, bool LADDER, bool SHARED> cudaError_t prepare_one(void)
{
	return cudaFuncSetAttribute(prefill<D, HALF, LADDER, SHARED>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize, plan<D, HALF>::bytes);
}

template <int D> cudaError_t prepare(void)
{
	const cudaError_t e[] = {
		prepare_one<D, false, false, false>(), prepare_one<D, false, true, false>(),
		prepare_one<D, false, false, true>(),  prepare_one<D, false, true, true>(),
		prepare_one<D, true, false, false>(),  prepare_one<D, true, false, true>()};
	for (size_t i = 0; i < sizeof(e) / sizeof(*e); i++)
		if (e[i] != cudaSuccess)
			return e[i];
	return cudaSuccess;
}

template <int D> cudaError_t launch(const attn_launch *l, const attn_args *a, dim3 grid)
{
	const bool half = l->kv == MX_F8E4M3;
	auto kernel =
		half      ? (a->sent ? prefill<D, true, false, true> : prefill<D, true, false, false>)
		: a->sent ? (a->ladder ? prefill<D, false, true, true> : prefill<D, false, false, true>)
				  : (a->ladder ? prefill<D, false, true, false> : prefill<D, false, false, false>);
	return mx_launch(kernel, grid, dim3(threads(half)),
	                 half ? plan<D, true>::bytes : plan<D, false>::bytes, l->stream, *a);
}

} // namespace

bool attn_prefill_can(const attn_launch *l, uint32_t dim, uint32_t head_dim)
{
#if defined(MX_CUDA_90A)
	return l->sm == 90 && l->act == MX_BF16 && (l->kv == MX_BF16 || l->kv == MX_F8E4M3) &&
	       (dim == 64 || dim == 128) && head_dim % 8 == 0;
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
	/* each span may have one tile that is not full */
	const uint64_t tiles = ((uint64_t)rows * a->group / ROWS + a->n_spans) * a->kv_heads;
	dim3 grid(tiles < (uint64_t)l->sms ? (unsigned)tiles : (unsigned)l->sms);
	return a->dim == 64 ? launch<64>(l, a, grid) : launch<128>(l, a, grid);
}
