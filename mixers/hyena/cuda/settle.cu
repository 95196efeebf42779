/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs units: those that become due with a step, of all layers and spans at once; those of a
 * prompt, level by level; and those that a load left out.
 */
#include "device/cuda/launch.cuh"
#include "mixers/hyena/cuda/unit.cuh"

namespace
{

using namespace lcg;

constexpr int BLOCKS = 3, RANGE_BLOCKS = 2; /* thread blocks of a multiprocessor */
constexpr size_t SHARED = sizeof(shared_memory);

/* ---- what is due ---- */

/* A unit that is due: the group's parts first .. last - 1 of the block. number: as in struct
 * lcg_range. */
struct item {
	uint16_t span, layer, first, last;
	uint32_t number, level;
};

/* Thread blocks share the units of a step out one by one: unit i belongs to block i % gridDim. They
 * all count the same units, the largest sides first, and keep a list of their own ones. */
struct share {
	static constexpr uint32_t ROOM = 128, FULL = 64; /* a turn adds fewer than ROOM - FULL */

	item items[ROOM];
	uint32_t n, total, warps[LCG_THREADS / 32];
};

/* A level of a span, for which layers' units are counted. */
struct candidate {
	lcg_times times;
	uint16_t span, level; /* span: of the step */
	uint32_t none;        /* 1 = nothing is due */
};

/* What a turn counts with, in the memory of transforms. */
struct candidates {
	static constexpr uint32_t MOST = LCG_THREADS, LAYERS = 1024;

	candidate of[MOST];
	uint32_t phases[LAYERS];
};
static_assert(sizeof(candidates) <= sizeof(shared_memory::room), "room for candidates");

/* A layer's units of a candidate. */
__device__ __forceinline__ lcg_range due_of(const lcg_shape &shape, const candidates *c,
                                            const candidate &of, const lcg_layer *layers,
                                            uint32_t layer)
{
	if (of.none)
		return {};
	const uint32_t phase = layer < candidates::LAYERS ? c->phases[layer] : layers[layer].phase;
	return lcg_range_in(of.level + LCG_LOG2_BLOCK, shape.channels, phase, &of.times);
}

/* Finds the times of candidates at .. at + n - 1: those that all layers share. */
__device__ __forceinline__ void find_candidates(const lcg_shape &shape, const lcg_layer *layers,
                                                uint32_t n_layers, const lcg_step &step,
                                                const lcg_spans &which, uint32_t token, uint32_t at,
                                                uint32_t n, candidates *c)
{
	for (uint32_t i = threadIdx.x; i < n_layers && i < candidates::LAYERS; i += LCG_THREADS)
		c->phases[i] = layers[i].phase;
	if (threadIdx.x < n) {
		const uint32_t i = at + threadIdx.x, k = i % which.n;
		const uint32_t level = shape.n_levels - 1 - i / which.n, log2_n = level + LCG_LOG2_BLOCK;
		candidate &of = c->of[threadIdx.x];
		const mx_device_span &span = step.spans[which.index[k]];
		const uint32_t from = span.pos + token, block = (from >> log2_n) + 1;
		of.span = which.index[k];
		of.level = (uint16_t)level;
		of.none = which.tokens[k] <= token || block < 2 ||
		          (uint64_t)block << log2_n >= cells_end(shape, span);
		of.times = lcg_times_of(log2_n, shape.period, from, from + 1);
	}
	__syncthreads();
}

/* Lists the block's units of candidates at .. at + n - 1 in all layers. */
__device__ __forceinline__ void take_turn(const lcg_shape &shape, const lcg_layer *layers,
                                          uint32_t n_layers, const lcg_step &step,
                                          const lcg_spans &which, uint32_t token, uint32_t at,
                                          uint32_t n, share *s, candidates *c)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = n * n_layers;
	const uint32_t each = (all + LCG_THREADS - 1) / LCG_THREADS;
	const uint32_t first = threadIdx.x * each < all ? threadIdx.x * each : all;
	const uint32_t end = first + each < all ? first + each : all;
	find_candidates(shape, layers, n_layers, step, which, token, at, n, c);
	uint32_t sum = 0;
	for (uint32_t i = first, k = i / n_layers, layer = i % n_layers; i < end; i++) {
		const lcg_range r = due_of(shape, c, c->of[k], layers, layer);
		sum += r.end - r.begin;
		if (++layer == n_layers)
			layer = 0, k++;
	}
	const uint32_t own = sum;
	for (int d = 1; d < 32; d *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, sum, d);
		sum += lane >= d ? other : 0;
	}
	if (lane == 31)
		s->warps[warp] = sum;
	__syncthreads();
	uint32_t to = s->total + sum - own;
	for (uint32_t w = 0; w < warp; w++)
		to += s->warps[w];
	__syncthreads();
	/* units until the block's next, from the thread's first on */
	uint32_t left = (blockIdx.x + gridDim.x - to % gridDim.x) % gridDim.x;
	const bool mine = left < own;
	for (uint32_t i = first, k = i / n_layers, layer = i % n_layers; mine && i < end; i++) {
		const candidate &of = c->of[k];
		const lcg_range r = due_of(shape, c, of, layers, layer);
		uint32_t unit = left;
		for (; unit < r.end - r.begin; unit += gridDim.x)
			s->items[atomicAdd(&s->n, 1)] = {of.span,
			                                 (uint16_t)layer,
			                                 (uint16_t)lcg_first_part(&r, r.begin + unit),
			                                 (uint16_t)lcg_end_part(&r, r.begin + unit),
			                                 r.begin + unit,
			                                 of.level};
		left = unit - (r.end - r.begin);
		if (++layer == n_layers)
			layer = 0, k++;
	}
	if (threadIdx.x == LCG_THREADS - 1)
		s->total = to + own;
	__syncthreads();
}

template <typename U>
__device__ __forceinline__ U place_of(const lcg_shape &shape, const lcg_layer *layer,
                                      const lcg_step &step, const mx_device_span &span,
                                      const item &what)
{
	const uint32_t groups = lcg_groups(shape.channels, what.level + LCG_LOG2_BLOCK);
	U u = {};
	u.shape = &shape;
	u.layer = layer;
	u.pages = step.pages + span.page_begin;
	u.end = cells_end(shape, span);
	u.block = what.number / groups;
	u.group = what.number % groups;
	u.first_part = what.first;
	u.end_part = what.last;
	return u;
}

/* The first turns come before the wait: they read only the step's tables. turn: candidates of a
 * turn. */
__global__ void __launch_bounds__(LCG_THREADS, BLOCKS)
	run_due(const lcg_shape shape, const lcg_layer *layers, uint32_t n_layers, const lcg_step step,
            const lcg_spans which, uint32_t token, uint32_t turn)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ share s;
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	if (threadIdx.x == 0)
		s.n = s.total = 0;
	fft::make_tables(shared->tables);
	__syncthreads();
	bool waited = false;
	const uint32_t all = which.n * shape.n_levels;
	for (uint32_t at = 0; at < all; at += turn) {
		const uint32_t n = at + turn < all ? turn : all - at;
		take_turn(shape, layers, n_layers, step, which, token, at, n, &s,
		          (candidates *)shared->room);
		if (at + turn < all && s.n < share::FULL)
			continue;
		if (!waited)
			mx_pdl_wait();
		waited = true;
		for (uint32_t i = 0; i < s.n; i++)
			run_unit(place_of<place>(shape, layers + s.items[i].layer, step,
			                         step.spans[s.items[i].span], s.items[i]),
			         s.items[i].level, shared);
		__syncthreads();
		if (threadIdx.x == 0)
			s.n = 0;
		__syncthreads();
	}
	if (!waited)
		mx_pdl_wait();
}

/* ---- ranges of positions ---- */

/* Block x: a unit of a level; y: a layer; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS, RANGE_BLOCKS)
	run_range(const lcg_shape shape, const lcg_layer *layers, const lcg_step step,
              const lcg_spans which, uint32_t level, bool resume, const lcg_sums sums)
{
	extern __shared__ __align__(16) unsigned char memory[];
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	fft::make_tables(shared->tables);
	__syncthreads();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const lcg_layer *layer = layers + blockIdx.y;
	const uint32_t log2_n = level + LCG_LOG2_BLOCK, n = 1u << log2_n, block = span.pos >> log2_n;
	/* a resume runs the units of the block that holds the position, and those due of the next */
	const uint32_t from = !resume ? span.pos : block ? (block - 1) * n : 0;
	const uint32_t to = resume ? span.pos : span.pos + span.n;
	const lcg_range r = lcg_range_of(log2_n, shape.channels, shape.period, layer->phase, from, to);
	const uint32_t number = r.begin + blockIdx.x;
	if (number >= r.end)
		return;
	const item what = {
		0,      0,    (uint16_t)lcg_first_part(&r, number), (uint16_t)lcg_end_part(&r, number),
		number, level};
	place_in_range u = place_of<place_in_range>(shape, layer, step, span, what);
	if (u.block < 2 || (uint64_t)u.block << log2_n >= u.end)
		return;
	if (resume) {
		unsigned char *slot = layer->slot_base + span.slot * shape.slot_stride;
		u.from = u.sums_begin = span.pos;
		u.sums_end = ((const lcg_head *)slot)->finished;
		u.sums = (float *)slot + LCG_HEAD;
		u.sums_ld = 1;
	} else {
		u.sums_begin = span.pos;
		u.sums_end = to;
		u.sums = sums.sums + span.row;
		u.sums_ld = sums.ld;
	}
	run_unit(u, level, shared);
}

/* ---- spectra ---- */

/* Input i of a tile's lags at distance d: h[d n + i] + i h[(d - 1) n + i], weighted. */
__device__ __forceinline__ float2 lag_pair(const float *h, uint32_t channels, uint32_t n_lags,
                                           uint32_t channel, uint32_t n, uint32_t d, uint32_t i)
{
	const uint32_t after = d * n + i, before = after - n;
	return make_float2(after < n_lags ? h[(size_t)after * channels + channel] : 0,
	                   i && before < n_lags ? h[(size_t)before * channels + channel] : 0);
}

/* Block x: a group of channels, or a part of one; y: distance - 2. */
__global__ void __launch_bounds__(LCG_THREADS, RANGE_BLOCKS)
	make_spectra(uint32_t channels, uint32_t log2_n, const float *h, uint32_t n_lags,
                 float *spectra)
{
	extern __shared__ __align__(16) unsigned char memory[];
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	fft::make_tables(shared->tables);
	__syncthreads();
	mx_pdl_wait();
	const fft::plan p(log2_n < LCG_LOG2_POINTS ? (int)log2_n : LCG_LOG2_POINTS, shared->tables,
	                  shared->room);
	const uint32_t parts = lcg_parts(log2_n), n = 1u << log2_n, d = blockIdx.y + 2;
	const uint32_t part = blockIdx.x % parts;
	const uint32_t channel =
		blockIdx.x / parts * (LCG_POINTS >> p.log2) + (threadIdx.x >> (p.log2 - 4));
	const weights w(p, log2_n, part);
	float2 x[16];
#pragma unroll
	for (int q = 0; q < 16; q++)
		x[q] = make_float2(0, 0);
	if (channel < channels)
		for (uint32_t j = 0; j < parts; j++) {
			const float2 b = w.of_j(j);
#pragma unroll
			for (int q = 0; q < 16; q++)
				x[q] = fft::fma(lag_pair(h, channels, n_lags, channel, n, d,
				                         p.t + p.threads * q + (j << p.log2)),
				                b, x[q]);
		}
	fft::turn_all(x, make_float2(1, 0), w.a);
	p.forward(x, w.v);
	if (channel >= channels)
		return;
	float4 *to = (float4 *)spectra +
	             ((((size_t)blockIdx.y * channels + channel) * parts + part) << (p.log2 - 1));
	const float scale = 1 / (float)n;
#pragma unroll
	for (int e = 0; e < 8; e++)
		to[e * p.threads + p.t] = make_float4(x[2 * e].x * scale, x[2 * e].y * scale,
		                                      x[2 * e + 1].x * scale, x[2 * e + 1].y * scale);
}

} // namespace

cudaError_t lcg_run_due(cudaStream_t stream, const struct lcg_shape *shape,
                        const struct lcg_layer *layers, uint32_t n_layers,
                        const struct lcg_step *step, const struct lcg_spans *which, uint32_t token,
                        uint32_t blocks)
{
	/* a turn may fill the rest of a block's list */
	const uint32_t most = shape->period / 2048 + 2; /* units of a layer's level */
	const uint32_t fit = (share::ROOM - share::FULL) * blocks / (n_layers * most);
	const uint32_t turn = fit < 1 ? 1 : fit < candidates::MOST ? fit : candidates::MOST;
	return mx_launch(run_due, dim3(blocks), dim3(LCG_THREADS), SHARED, stream, *shape, layers,
	                 n_layers, *step, *which, token, turn);
}

cudaError_t lcg_run_range(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layers, uint32_t n_layers,
                          const struct lcg_step *step, const struct lcg_spans *which,
                          uint32_t level, bool resume, const struct lcg_sums *sums, uint32_t most)
{
	const struct lcg_sums none = {};
	return mx_launch(run_range, dim3(most, n_layers, which->n), dim3(LCG_THREADS), SHARED, stream,
	                 *shape, layers, *step, *which, level, resume, sums ? *sums : none);
}

cudaError_t lcg_spectra(cudaStream_t stream, uint32_t channels, uint32_t log2_n, uint32_t distances,
                        const float *h, uint32_t n_lags, float *spectra)
{
	const dim3 grid(lcg_groups(channels, log2_n) * lcg_parts(log2_n), distances);
	cudaError_t e =
		cudaFuncSetAttribute(make_spectra, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	return e != cudaSuccess ? e
	                        : mx_launch(make_spectra, grid, dim3(LCG_THREADS), SHARED, stream,
	                                    channels, log2_n, h, n_lags, spectra);
}

cudaError_t lcg_prepare(int sms, uint32_t *out_blocks)
{
	int blocks = 0;
	cudaError_t e =
		cudaFuncSetAttribute(run_due, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(run_range, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	if (e == cudaSuccess)
		e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, run_due, LCG_THREADS, SHARED);
	*out_blocks = (uint32_t)(blocks > 0 ? blocks * sms : sms);
	return e;
}
