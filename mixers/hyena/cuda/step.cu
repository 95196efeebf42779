/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of decode and draft spans: WAYS threads compute a channel of a span, token by token. */
#include "mixers/hyena/cuda/rows.cuh"

namespace
{

using namespace lcg;

constexpr int THREADS = 128, LANES = THREADS / WAYS;

/* Way k = 0, 1, 2 computes column k of the short filter. What earlier steps left is read before the
 * wait; its sums stand ready in the slot if settle has seen the token before. */
template <typename T>
__global__ void __launch_bounds__(THREADS) rows_step(const lcg_shape shape, const lcg_layer *layer,
                                                     const lcg_step step, const float *all, T *out)
{
	__shared__ float parts[WAYS][LANES], filtered[3][LANES];
	const uint32_t lane = threadIdx.x % LANES, way = threadIdx.x / LANES;
	const uint32_t channels = shape.channels, c = blockIdx.x * LANES + lane;
	const uint32_t column = way * channels + c;
	const bool active = c < channels, filters = active && way < 3;
	mx_pdl_launch();
	const mx_device_span &span = step.spans[blockIdx.y];
	if (span.kind == MX_SPAN_PREFILL || !span.n) {
		mx_pdl_wait();
		return;
	}
	const lcg_layer &l = *layer;
	const slot_of slot(shape, l, span.slot);
	const uint32_t *pages = step.pages + span.page_begin, begin = span.pos;
	const uint32_t finished = slot.finished();
	const float *u = all + (size_t)span.row * 3 * channels;
	const bool ready = begin && *slot.ahead() == begin;
	float part = 0, tiles = 0, tap = 0, past = 0;
	if (active) {
		part = *slot.ready(way, c);
		tiles = *slot.ready(WAYS, c);
	}
	if (active && !ready) {
		part = window_part(l, slot, c, begin, way);
		tiles = way ? 0 : tiles_of(shape, l, slot, pages, finished, c, begin);
	}
	if (filters) {
		past = short_filter_past(shape, l, slot, begin, column);
		tap = l.conv_weight[(size_t)column * shape.taps + shape.taps - 1];
	}
	const float near = active ? l.window[c] : 0;
	mx_pdl_wait();
	for (uint32_t t = 0; t < span.n; t++) {
		const uint32_t pos = begin + t;
		if (filters)
			filtered[way][lane] = t ? short_filter(shape, l, slot, u, begin, t, column)
			                        : __fmaf_rn(tap, u[column], past);
		if (active && t)
			part = window_part(l, slot, c, pos, way);
		__syncthreads();
		const float z = __fmul_rn(filtered[1][lane], filtered[2][lane]);
		if (active && pos % WAYS == way) {
			part = __fmaf_rn(near, z, part);
			*slot.input(c, pos) = z; /* only this thread reads it, in this span */
		}
		parts[way][lane] = part;
		__syncthreads();
		if (active && way == 0) {
			float a[WAYS];
			for (int i = 0; i < WAYS; i++)
				a[i] = parts[i][lane];
			const float y = __fadd_rn(t ? tiles_of(shape, l, slot, pages, finished, c, pos) : tiles,
			                          window_end(a));
			out[(size_t)(span.row + t) * channels + c] =
				mx_from_float<T>(__fmul_rn(filtered[0][lane], y));
		}
		if (active && way == 1 && pos >= finished && span.kind == MX_SPAN_DECODE)
			*cell(shape, l, pages, c, pos) = z;
		__syncthreads();
	}
	/* all threads have read what is overwritten now */
	for (uint32_t t = 0; filters && t < span.n; t++)
		*slot.raw(column, begin + t) = u[(size_t)t * 3 * channels + column];
}

/* Spans that a block of look_ahead computes: lags are read once for all. */
constexpr uint32_t TOGETHER = 8;

/* What it knows of a span. */
struct next {
	uint32_t slot, pos;
	uint32_t lags; /* the window has the inputs at distance 1 .. lags; 0 = there is no next one */
	uint32_t tiles_ld;
	const float *tiles; /* channel 0's sum of tiles; NULL = there are none */
};

__device__ __forceinline__ next next_of(const lcg_shape &shape, const lcg_layer &l,
                                        const lcg_step &step, const mx_device_span &span,
                                        uint32_t tokens)
{
	const slot_of slot(shape, l, span.slot);
	const uint32_t pos = span.pos + tokens;
	next s = {span.slot, pos, 0, shape.page_tokens, nullptr};
	if (pos >= cells_end(shape, span))
		return s;
	s.lags = pos - window_begin(pos);
	if (!has_tiles(pos))
		return s;
	const bool in_cell = pos >= slot.finished();
	s.tiles = in_cell ? cell(shape, l, step.pages + span.page_begin, 0, pos) : slot.sum(0);
	s.tiles_ld = in_cell ? shape.page_tokens : 1;
	return s;
}

/* Sums up the window of the position after the last token that is kept, but for its own input.
 * Block x: channels; y: a layer; z: TOGETHER spans. All that is read but the input at distance 1 is
 * there before the step; `late` if spans keep more than one token, so that more is not. */
__global__ void __launch_bounds__(THREADS, 10)
	look_ahead(const lcg_shape shape, const lcg_layer *layers, const lcg_step step,
               const lcg_spans which, bool late)
{
	constexpr int MOST = 2 * LCG_BLOCK / WAYS;
	__shared__ next spans[TOGETHER];
	__shared__ float lags[MOST * THREADS], sums[TOGETHER][THREADS], tiles[TOGETHER][LANES];
	const uint32_t lane = threadIdx.x % LANES, residue = threadIdx.x / LANES;
	const uint32_t c = blockIdx.x * LANES + lane, first = blockIdx.z * TOGETHER;
	const uint32_t n = which.n - first < TOGETHER ? which.n - first : TOGETHER;
	const lcg_layer &l = layers[blockIdx.y];
	const bool active = c < shape.channels;
	mx_pdl_launch();
	if (late)
		mx_pdl_wait();
	float *h = lags + threadIdx.x; /* every THREADS-th: the thread's own */
#pragma unroll
	for (int i = 0; i < MOST; i++)
		if (active)
			copy_async(h + i * THREADS,
			           l.window + (size_t)(residue + i * WAYS) * shape.channels + c);
	copies_end();
	if (threadIdx.x < n)
		spans[threadIdx.x] = next_of(shape, l, step, step.spans[which.index[first + threadIdx.x]],
		                             which.tokens[first + threadIdx.x]);
	__syncthreads();
	wait_copies<0>();
#pragma unroll 1
	for (uint32_t k = 0; active && k < n; k++) {
		const next &s = spans[k];
		const float *ring = slot_of(shape, l, s.slot).input(c, 0);
		const uint32_t at = s.pos % LCG_RING, end = s.lags;
		const bool adds = (s.pos - residue) % WAYS == 0 && s.tiles;
		const float tile = adds ? s.tiles[(size_t)c * s.tiles_ld] : 0;
		float z[MOST], sum = 0;
#pragma unroll
		for (int i = 0; i < MOST; i++) {
			const uint32_t lag = residue + i * WAYS,
						   row = at < lag ? at + LCG_RING - lag : at - lag;
			z[i] = lag > 1 && lag <= end ? ring[(size_t)row * shape.channels] : 0;
		}
#pragma unroll
		for (int i = MOST - 1; i >= 0; i--) {
			const uint32_t lag = residue + i * WAYS;
			const float more = __fmaf_rn(h[i * THREADS], z[i], sum);
			sum = lag > 1 && lag <= end ? more : sum;
		}
		sums[k][threadIdx.x] = sum;
		if ((s.pos - residue) % WAYS == 0)
			tiles[k][lane] = tile;
	}
	mx_pdl_wait();
	float last[TOGETHER];
#pragma unroll
	for (uint32_t k = 0; k < TOGETHER; k++)
		last[k] = active && residue == 1 && k < n
		              ? *slot_of(shape, l, spans[k].slot).input(c, spans[k].pos - 1)
		              : 0;
#pragma unroll
	for (uint32_t k = 0; k < TOGETHER; k++) {
		const next &s = spans[k];
		if (!active || k >= n || !s.lags)
			continue;
		const slot_of slot(shape, l, s.slot);
		const uint32_t way = (s.pos - residue) % WAYS;
		const float sum = sums[k][threadIdx.x];
		*slot.ready(way, c) = residue == 1 ? __fmaf_rn(h[0], last[k], sum) : sum;
		if (way == 0)
			*slot.ready(WAYS, c) = tiles[k][lane];
		if (way == 0 && c == 0)
			*slot.ahead() = s.pos;
	}
}

/* Block x: channels; y: a layer; z: a span. */
__global__ void __launch_bounds__(THREADS)
	keep(const lcg_shape shape, const lcg_layer *layers, const lcg_step step, const lcg_spans which)
{
	const uint32_t c = blockIdx.x * THREADS + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	if (c >= shape.channels || span.kind != MX_SPAN_DRAFT)
		return;
	const lcg_layer &l = layers[blockIdx.y];
	const slot_of slot(shape, l, span.slot);
	const uint32_t end = span.pos + which.tokens[blockIdx.z];
	for (uint32_t pos = span.pos; pos < end; pos++)
		if (pos >= slot.finished())
			*cell(shape, l, step.pages + span.page_begin, c, pos) = *slot.input(c, pos);
}

uint32_t blocks(const lcg_shape *s)
{
	return (s->channels + THREADS - 1) / THREADS;
}

} // namespace

cudaError_t lcg_rows_step(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layer, const struct lcg_step *step,
                          uint32_t n_spans, const struct lcg_rows *rows)
{
	const dim3 grid((shape->channels + LANES - 1) / LANES, n_spans), block(THREADS);
	if (rows->act == MX_BF16)
		return mx_launch(rows_step<__nv_bfloat16>, grid, block, 0, stream, *shape, layer, *step,
		                 rows->u, (__nv_bfloat16 *)rows->out);
	return mx_launch(rows_step<float>, grid, block, 0, stream, *shape, layer, *step, rows->u,
	                 (float *)rows->out);
}

cudaError_t lcg_look_ahead(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_layer *layers, uint32_t n_layers,
                           const struct lcg_step *step, const struct lcg_spans *which)
{
	const dim3 grid((shape->channels + LANES - 1) / LANES, n_layers,
	                (which->n + TOGETHER - 1) / TOGETHER);
	bool late = false;
	for (uint32_t i = 0; i < which->n; i++)
		late |= which->tokens[i] > 1;
	return mx_launch(look_ahead, grid, dim3(THREADS), 0, stream, *shape, layers, *step, *which,
	                 late);
}

cudaError_t lcg_keep(cudaStream_t stream, const struct lcg_shape *shape,
                     const struct lcg_layer *layers, uint32_t n_layers, const struct lcg_step *step,
                     const struct lcg_spans *which)
{
	return mx_launch(keep, dim3(blocks(shape), n_layers, which->n), dim3(THREADS), 0, stream,
	                 *shape, layers, *step, *which);
}
