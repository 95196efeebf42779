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

/* Thread blocks of a multiprocessor: with three, registers would not hold what a unit does. */
constexpr int BLOCKS = 2;
constexpr size_t SHARED = sizeof(shared_memory);
static_assert(SHARED <= 99 * 1024, "thread blocks of 8.6, 8.9 and 12.0 have no more");

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
	static constexpr uint32_t ROOM = 64, FULL = 32; /* a turn adds fewer than ROOM - FULL */

	item items[ROOM];
	uint32_t n, total, warps[LCG_THREADS / 32];
};

/* Phases of the layers, ascending, in the memory of transforms. */
struct phases {
	static constexpr uint32_t MOST = 1024;

	uint32_t of[MOST];
};
static_assert(sizeof(phases) <= sizeof(shared_memory::room), "room for phases");

__device__ __forceinline__ uint32_t phase_of(const phases *p, const lcg_layer *layers, uint32_t i)
{
	return i < phases::MOST ? p->of[i] : layers[i].phase;
}

/* Returns the layers whose phase is less than a time's rest: they are one unit further. */
__device__ __forceinline__ uint32_t layers_before(const phases *p, const lcg_layer *layers,
                                                  uint32_t n_layers, uint32_t rest)
{
	uint32_t low = 0, high = n_layers;
	while (low < high) {
		const uint32_t middle = (low + high) / 2;
		if (phase_of(p, layers, middle) < rest)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* A level of a span. Layers bounds[k] .. bounds[k + 1] - 1 have the same units due. */
struct candidate {
	lcg_times times;
	uint32_t span, log2_n; /* span: of the step */
	uint32_t bounds[4];    /* all 0: nothing is due */
};

/* Candidate number `number` of a step: the largest sides come first. */
__device__ __forceinline__ candidate candidate_of(const lcg_shape &shape, const lcg_layer *layers,
                                                  uint32_t n_layers, const lcg_step &step,
                                                  const lcg_spans &which, uint32_t token,
                                                  uint32_t number, const phases *p)
{
	const uint32_t k = number % which.n;
	candidate c = {};
	c.span = which.index[k];
	c.log2_n = shape.n_levels - 1 - number / which.n + LCG_LOG2_BLOCK;
	const mx_device_span &span = step.spans[c.span];
	const uint32_t from = span.pos + token, block = (from >> c.log2_n) + 1;
	if (which.tokens[k] <= token || block < 2 ||
	    (uint64_t)block << c.log2_n >= cells_end(shape, span))
		return c;
	c.times = lcg_times_of(c.log2_n, shape.period, from, from + 1);
	const uint32_t a = layers_before(p, layers, n_layers, c.times.begin.rest);
	const uint32_t b = layers_before(p, layers, n_layers, c.times.end.rest);
	c.bounds[1] = a < b ? a : b;
	c.bounds[2] = a < b ? b : a;
	c.bounds[3] = n_layers;
	return c;
}

/* The units of a candidate's layers bounds[k] .. in one of them. */
__device__ __forceinline__ lcg_range due_of(const lcg_shape &shape, const lcg_layer *layers,
                                            const phases *p, const candidate &c, int k)
{
	return lcg_range_in(c.log2_n, shape.channels, phase_of(p, layers, c.bounds[k]), &c.times);
}

/* Returns the units of all threads before this one. */
__device__ __forceinline__ uint32_t units_before(uint32_t own, share *s)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t sum = own;
	for (int d = 1; d < 32; d *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, sum, d);
		sum += lane >= d ? other : 0;
	}
	if (lane == 31)
		s->warps[warp] = sum;
	__syncthreads();
	sum -= own;
	for (uint32_t w = 0; w < warp; w++)
		sum += s->warps[w];
	return sum;
}

/* Lists the block's units of candidates at .. at + n - 1, of which each thread has one. */
__device__ __forceinline__ void take_turn(const lcg_shape &shape, const lcg_layer *layers,
                                          uint32_t n_layers, const lcg_step &step,
                                          const lcg_spans &which, uint32_t token, uint32_t at,
                                          uint32_t n, share *s, phases *p)
{
	for (uint32_t i = threadIdx.x; i < n_layers && i < phases::MOST; i += LCG_THREADS)
		p->of[i] = layers[i].phase;
	__syncthreads();
	candidate c = {};
	if (threadIdx.x < n)
		c = candidate_of(shape, layers, n_layers, step, which, token, at + threadIdx.x, p);
	uint32_t own = 0;
#pragma unroll
	for (int k = 0; k < 3; k++)
		if (c.bounds[k] < c.bounds[k + 1]) {
			const lcg_range r = due_of(shape, layers, p, c, k);
			own += (r.end - r.begin) * (c.bounds[k + 1] - c.bounds[k]);
		}
	const uint32_t to = s->total + units_before(own, s);
	/* the block's next unit, counted from the thread's first */
	uint32_t next = (blockIdx.x + gridDim.x - to % gridDim.x) % gridDim.x;
	if (next < own)
#pragma unroll
		for (int k = 0; k < 3; k++)
			if (c.bounds[k] < c.bounds[k + 1]) {
				const lcg_range r = due_of(shape, layers, p, c, k);
				const uint32_t each = r.end - r.begin, all = each * (c.bounds[k + 1] - c.bounds[k]);
				for (; next < all; next += gridDim.x) {
					const uint32_t number = r.begin + next % each;
					s->items[atomicAdd(&s->n, 1)] = {(uint16_t)c.span,
					                                 (uint16_t)(c.bounds[k] + next / each),
					                                 (uint16_t)lcg_first_part(&r, number),
					                                 (uint16_t)lcg_end_part(&r, number),
					                                 number,
					                                 c.log2_n - LCG_LOG2_BLOCK};
				}
				next -= all;
			}
	__syncthreads();
	if (threadIdx.x == LCG_THREADS - 1)
		s->total = to + own;
	__syncthreads();
}

__device__ __forceinline__ place place_of(const lcg_shape &shape, const lcg_layer *layer,
                                          const lcg_step &step, const mx_device_span &span,
                                          const item &what)
{
	const uint32_t log2_n = what.level + LCG_LOG2_BLOCK;
	const uint32_t groups = lcg_groups(shape.channels, log2_n);
	const page_range all = {step.pages + span.page_begin, 0};
	place u;
	u.page_base = layer->page_base;
	u.page_stride = shape.page_stride;
	u.page_tokens = shape.page_tokens;
	u.page_magic = shape.page_magic;
	u.spectra = layer->spectra[what.level];
	u.in = u.out = all;
	u.channels = shape.channels;
	u.end = cells_end(shape, span);
	u.log2_n = log2_n;
	u.block = what.number / groups;
	u.group = what.number % groups;
	u.first_part = what.first;
	u.end_part = what.last;
	return u;
}

/* turn: candidates of a turn. What is due at the first token of a step has inputs and sums from
 * before the step: so these units wait only before they write. */
__global__ void __launch_bounds__(LCG_THREADS, BLOCKS)
	run_due(const lcg_shape shape, const lcg_layer *layers, uint32_t n_layers, const lcg_step step,
            const lcg_spans which, uint32_t token, uint32_t turn)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ share s;
	__shared__ place u;
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	if (threadIdx.x == 0)
		s.n = s.total = 0;
	fft::make_tables(shared->tables);
	__syncthreads();
	bool waited = token == 0;
	const uint32_t all = which.n * shape.n_levels;
	for (uint32_t at = 0; at < all; at += turn) {
		const uint32_t n = at + turn < all ? turn : all - at;
		take_turn(shape, layers, n_layers, step, which, token, at, n, &s, (phases *)shared->room);
		if (at + turn < all && s.n < share::FULL)
			continue;
		if (!waited)
			mx_pdl_wait();
		waited = true;
		for (uint32_t i = 0; i < s.n; i++) {
			const item &what = s.items[i];
			if (threadIdx.x == 0)
				u = place_of(shape, layers + what.layer, step, step.spans[what.span], what);
			__syncthreads();
			run_unit(u, shared);
		}
		__syncthreads();
		if (threadIdx.x == 0)
			s.n = 0;
		__syncthreads();
	}
	mx_pdl_wait();
}

/* ---- ranges of positions ---- */

/* Block x: a unit of a level; y: a layer; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS, BLOCKS)
	run_range(const lcg_shape shape, const lcg_layer *layers, const lcg_step step,
              const lcg_spans which, uint32_t level, lcg_stage stage, const lcg_sums sums)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ place_in_range u;
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	fft::make_tables(shared->tables);
	__syncthreads();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const lcg_layer *layer = layers + blockIdx.y;
	const uint32_t log2_n = level + LCG_LOG2_BLOCK, n = 1u << log2_n, block = span.pos >> log2_n;
	const bool resume = stage == LCG_RESUME;
	/* a resume runs the units of the block that holds the position, and those due of the next */
	const lcg_stretch due = resume ? lcg_stretch{block ? (block - 1) * n : 0, span.pos}
	                               : lcg_stage_of(stage, log2_n, span.pos, span.n);
	const lcg_range r =
		lcg_range_of(log2_n, shape.channels, shape.period, layer->phase, due.from, due.to);
	const uint32_t number = r.begin + blockIdx.x;
	if (number >= r.end)
		return;
	const item what = {
		0,      0,    (uint16_t)lcg_first_part(&r, number), (uint16_t)lcg_end_part(&r, number),
		number, level};
	const uint32_t end = cells_end(shape, span), o = number / r.groups;
	if (o < 2 || (uint64_t)o << log2_n >= end)
		return;
	if (threadIdx.x == 0) {
		(place &)u = place_of(shape, layer, step, span, what);
		u.from = resume ? span.pos : 0;
		u.undo = stage == LCG_UNDO;
		u.sums_begin = span.pos;
		u.sums_end = span.pos + span.n;
		u.sums = sums.sums + span.row;
		u.sums_ld = sums.ld;
		if (resume) {
			unsigned char *slot = layer->slot_base + span.slot * shape.slot_stride;
			u.sums_end = ((const lcg_head *)slot)->finished;
			u.sums = (float *)slot + LCG_HEAD;
			u.sums_ld = 1;
		}
	}
	__syncthreads();
	run_unit(u, shared);
}

/* ---- spectra ---- */

/* Input i of a tile's lags at distance d: h[d n + i] + i h[(d - 1) n + i], weighted. There are no
 * lags below 0. */
__device__ __forceinline__ float2 lag_pair(const float *h, uint32_t channels, uint32_t n_lags,
                                           uint32_t channel, uint32_t n, uint32_t d, uint32_t i)
{
	const uint32_t after = d * n + i, before = after - n;
	return make_float2(after < n_lags ? h[(size_t)after * channels + channel] : 0,
	                   i && before < n_lags ? h[(size_t)before * channels + channel] : 0);
}

/* Block x: a group of channels, or a part of one; y: distance - first. */
__global__ void __launch_bounds__(LCG_THREADS, BLOCKS)
	make_spectra(uint32_t channels, uint32_t log2_n, uint32_t first, const float *h,
                 uint32_t n_lags, float *spectra)
{
	extern __shared__ __align__(16) unsigned char memory[];
	shared_memory *shared = (shared_memory *)memory;
	mx_pdl_launch();
	fft::make_tables(shared->tables);
	__syncthreads();
	mx_pdl_wait();
	const fft::plan p(log2_n < LCG_LOG2_POINTS ? (int)log2_n : LCG_LOG2_POINTS, shared->tables,
	                  shared->room);
	const uint32_t parts = lcg_parts(log2_n), n = 1u << log2_n, d = blockIdx.y + first;
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
	const uint32_t turn = fit < 1 ? 1 : fit < LCG_THREADS ? fit : LCG_THREADS;
	return mx_launch(run_due, dim3(blocks), dim3(LCG_THREADS), SHARED, stream, *shape, layers,
	                 n_layers, *step, *which, token, turn);
}

cudaError_t lcg_run_range(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layers, uint32_t n_layers,
                          const struct lcg_step *step, const struct lcg_spans *which,
                          uint32_t level, enum lcg_stage stage, const struct lcg_sums *sums,
                          uint32_t most)
{
	const struct lcg_sums none = {};
	return mx_launch(run_range, dim3(most, n_layers, which->n), dim3(LCG_THREADS), SHARED, stream,
	                 *shape, layers, *step, *which, level, stage, sums ? *sums : none);
}

cudaError_t lcg_spectra(cudaStream_t stream, uint32_t channels, uint32_t log2_n, uint32_t first,
                        uint32_t distances, const float *h, uint32_t n_lags, float *spectra)
{
	const dim3 grid(lcg_groups(channels, log2_n) * lcg_parts(log2_n), distances);
	cudaError_t e =
		cudaFuncSetAttribute(make_spectra, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	return e != cudaSuccess ? e
	                        : mx_launch(make_spectra, grid, dim3(LCG_THREADS), SHARED, stream,
	                                    channels, log2_n, first, h, n_lags, spectra);
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
