/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of linear_quant_few.cu: a stage has W adjacent blocks of one tile of 16 rows, one for
 * each warp that multiplies. If FED, one more warp fills it, a stage with one bulk copy, so that
 * those that multiply have no instructions for it, and leaves fewer registers to each. Otherwise
 * each warp copies its own blocks: with bulk copies too, or cp.async on devices before 9.0.
 *
 * Tiles are taken two at a time, so that x is read once for both; of a gated product these are one
 * of gate and one of up. If FED, others are taken alone towards the end, and where there are no
 * more than thread blocks.
 *
 * If FED, a thread block takes all tiles but its first from a counter. As those of the kernel
 * before leave one by one, two thread blocks of this one can come to lie on one multiprocessor, and
 * each then takes longer for a tile than those that are alone.
 */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_RING_CUH
#define MX_DEVICE_CUDA_LINEAR_QUANT_RING_CUH

#include "device/cuda/linear_quant.cuh"

#define W           MX_LINEAR_LANES /* warps that multiply */
#define R           2               /* tiles at a time */
#define MOST_STAGES 24
#define NO_GROUP    0xffffffffu

/* What a thread block computes. Not FED: every gridDim-th tile, or pair of gate and up, from its
 * number on. */
struct work {
	const unsigned char *panels;
	uint32_t tiles;  /* of W; if gated, of gate and of up */
	uint32_t last;   /* number of this block's tiles */
	uint32_t blocks; /* of a panel */
	uint32_t bytes;  /* of a block */
	bool gated;
	/* FED: groups of tiles: the first `pairs` have two, the others one */
	uint32_t groups, pairs;

	__device__ __forceinline__ work(const mx_cuda_quant_product &a, uint32_t tile_rows,
	                                uint32_t block_cols)
		: panels((const unsigned char *)a.p.w), tiles((a.p.rows + tile_rows - 1) / tile_rows),
		  blocks((a.p.cols + block_cols - 1) / block_cols), bytes(a.q.super_bytes), gated(a.p.gated)
	{
		const uint32_t mine = (tiles - blockIdx.x - 1) / gridDim.x + 1;
		last = gated ? 2 * mine : mine;
		const uint32_t n = gridDim.x;
		pairs = gated           ? tiles
		        : tiles > 4 * n ? (tiles - 2 * n) / 2
		        : tiles > 2 * n ? (tiles - n) / 2
		        : tiles > n     ? tiles / 2
		                        : 0;
		groups = gated ? tiles : tiles - pairs;
	}

	/* Returns the number of tiles of a group, and its first, or pair of gate and up. */
	__device__ __forceinline__ uint32_t group(uint32_t i, uint32_t *first) const
	{
		*first = gated || i >= pairs ? i + (gated ? 0 : pairs) : 2 * i;
		return i < pairs ? R : 1;
	}

	/* Returns block `block` of tile `t` of a group. */
	__device__ __forceinline__ const unsigned char *of_group(uint32_t first, uint32_t t,
	                                                         uint32_t block) const
	{
		return panels + ((size_t)(first + t * (gated ? tiles : 1)) * blocks + block) * bytes;
	}

	/* Returns block `block` of this thread block's tile `i`. */
	__device__ __forceinline__ const unsigned char *at(uint32_t i, uint32_t block) const
	{
		const size_t panel =
			gated ? i / 2 * gridDim.x + blockIdx.x + i % 2 * tiles : i * gridDim.x + blockIdx.x;
		return panels + (panel * blocks + block) * bytes;
	}
};

#if __CUDA_ARCH__ >= 900

static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{\n\t"
	             ".reg .pred p;\n\t"
	             "again:\n\t"
	             "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
	             "@!p bra again;\n\t"
	             "}" ::"r"(bar),
	             "r"(parity)
	             : "memory");
}

/* Starts a bulk copy of what is read once (mx_read_once), and announces its bytes. */
static __device__ __forceinline__ void bulk(uint32_t to, const unsigned char *from, uint32_t bytes,
                                            uint32_t bar, uint64_t policy)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
	             : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
	             "[%0], [%1], %2, [%3], %4;" ::"r"(to),
	             "l"(from), "r"(bytes), "r"(bar), "l"(policy)
	             : "memory");
}

#endif

/* The ring as a warp sees it. All threads of the thread block make one. */
template <bool FED> struct ring {
	unsigned char *mine; /* this warp's part of the first stage */
	uint32_t stage_bytes, stages;
	uint32_t *groups; /* FED: the group that a stage is of */
	/* Barriers: a stage is full when its copy has come. FED: [stages], then [stages], a stage is
	 * free when all warps have left it. Otherwise [MOST_STAGES] for each warp. */
	uint32_t full;
	uint32_t stage = 0, parity = 0;
	uint32_t tile = 0, block, ahead = 0; /* not FED: what is copied next, and to which stage */

	/* `bars`: shared memory of W MOST_STAGES barriers (FED: of which the last ones are the numbers
	 * of groups); `at`: of the stages. */
	__device__ __forceinline__ ring(unsigned char *bars, unsigned char *at, uint32_t n,
	                                uint32_t bytes, uint32_t warp, uint32_t lane)
		: mine(at + warp * bytes), stage_bytes(W * bytes), stages(n),
		  groups((uint32_t *)(bars + 2 * MOST_STAGES * 8)),
		  full((uint32_t)__cvta_generic_to_shared(bars) + (FED ? 0 : warp * MOST_STAGES * 8)),
		  block(warp)
	{
#if __CUDA_ARCH__ >= 900
		if (lane == 0 && (!FED || warp == W)) {
#pragma unroll 1
			for (uint32_t s = 0; s < stages; s++) {
				barrier_init(full + s * 8, 1);
				if (FED)
					barrier_init(full + (stages + s) * 8, W);
			}
			asm volatile("fence.mbarrier_init.release.cluster;\n\t"
			             "fence.proxy.async.shared::cta;" ::
			                 : "memory");
		}
		if (FED)
			__syncthreads();
		else
			__syncwarp();
#endif
	}

	/* FED: fills the ring with blocks of groups of tiles; called by one thread of the last warp.
	 * `ask`: counts the groups that thread blocks have asked for, and is 0 between launches; NULL:
	 * they take every gridDim-th. */
	__device__ __forceinline__ void feed(const work &w, uint32_t *ask) const
	{
#if __CUDA_ARCH__ >= 900
		const uint32_t to = (uint32_t)__cvta_generic_to_shared(mine) - W * w.bytes;
		const uint64_t once = mx_read_once();
		uint32_t s = 0, turn = 1, group = blockIdx.x;
		if (w.groups == gridDim.x) /* kernels that do not fill the chip have no counter */
			ask = NULL;
#pragma unroll 1
		for (;;) {
			uint32_t first, then = group + gridDim.x;
			const bool end = group >= w.groups;
			const uint32_t here = end ? 1 : w.group(group, &first);
#pragma unroll 1
			for (uint32_t b = 0; b < w.blocks; b += W) {
				const uint32_t bytes = min((uint32_t)W, w.blocks - b) * w.bytes;
#pragma unroll 1
				for (uint32_t t = 0; t < here; t++) {
					barrier_wait(full + (stages + s) * 8, turn);
					groups[s] = end ? NO_GROUP : group;
					if (end) {
						barrier_arrive(full + s * 8);
						return;
					}
					bulk(to + s * stage_bytes, w.of_group(first, t, b), bytes, full + s * 8, once);
					if (++s == stages)
						s = 0, turn ^= 1;
				}
			}
			/* only now, so that thread blocks that are slow ask less often; before the wait for the
			 * kernel before, which has another counter */
			if (ask)
				then = gridDim.x + atomicAdd(ask, 1);
			if (ask && then == gridDim.x + w.groups - 1)
				*ask = 0; /* the last question of all thread blocks */
			group = then;
		}
#endif
	}

	/* Not FED: copies this warp's next block to its next stage. */
	__device__ __forceinline__ void copy(const work &w, uint32_t warp, uint32_t lane)
	{
		if (block < w.blocks && tile < w.last) {
			const uint32_t to = (uint32_t)__cvta_generic_to_shared(mine) + ahead * stage_bytes;
			const unsigned char *from = w.at(tile, block);
#if __CUDA_ARCH__ >= 900
			if (lane == 0)
				bulk(to, from, w.bytes, full + ahead * 8, mx_read_once());
#else
			for (uint32_t i = lane * 16; i < w.bytes; i += 512)
				mx_copy16(to + i, from + i, true);
#endif
			ahead = ahead + 1 == stages ? 0 : ahead + 1;
			const uint32_t end = min(tile / R * R + R, w.last);
			if (++tile == end) {
				block += W;
				if (block < w.blocks)
					tile = (end - 1) / R * R;
				else
					block = warp;
			}
		}
#if __CUDA_ARCH__ < 900
		mx_copy_commit();
#endif
	}

	/* Waits for the next stage and returns its number. Not FED: only called if the warp has a block
	 * there. */
	__device__ __forceinline__ uint32_t take(void)
	{
		const uint32_t s = stage;
#if __CUDA_ARCH__ >= 900
		barrier_wait(full + s * 8, parity);
#else
		mx_copy_wait<0>();
		__syncwarp();
#endif
		if (++stage == stages)
			stage = 0, parity ^= 1;
		return s;
	}

	/* Leaves a stage, of which all lanes have read what they need. */
	__device__ __forceinline__ void leave(const work &w, uint32_t s, uint32_t warp, uint32_t lane)
	{
#if __CUDA_ARCH__ >= 900
		if (FED) {
			if (lane == 0)
				barrier_arrive(full + (stages + s) * 8);
			return;
		}
#endif
		copy(w, warp, lane);
	}
};

#endif
