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

/* Sums up the window of the position after the last token that is kept. Block x: channels; y: a
 * layer; z: a span. */
__global__ void __launch_bounds__(THREADS)
	look_ahead(const lcg_shape shape, const lcg_layer *layers, const lcg_step step,
               const lcg_spans which)
{
	const uint32_t c = blockIdx.x * LANES + threadIdx.x % LANES, way = threadIdx.x / LANES;
	mx_pdl_launch();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const lcg_layer &l = layers[blockIdx.y];
	const slot_of slot(shape, l, span.slot);
	const uint32_t pos = span.pos + which.tokens[blockIdx.z];
	const uint32_t *pages = step.pages + span.page_begin;
	const bool active = pos < cells_end(shape, span) && c < shape.channels;
	mx_pdl_wait();
	if (!active)
		return;
	const float tiles = way ? 0 : tiles_of(shape, l, slot, pages, slot.finished(), c, pos);
	*slot.ready(way, c) = window_part(l, slot, c, pos, way);
	if (way == 0)
		*slot.ready(WAYS, c) = tiles;
	if (c == 0 && way == 0)
		*slot.ahead() = pos;
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
	const dim3 grid((shape->channels + LANES - 1) / LANES, n_layers, which->n);
	return mx_launch(look_ahead, grid, dim3(THREADS), 0, stream, *shape, layers, *step, *which);
}

cudaError_t lcg_keep(cudaStream_t stream, const struct lcg_shape *shape,
                     const struct lcg_layer *layers, uint32_t n_layers, const struct lcg_step *step,
                     const struct lcg_spans *which)
{
	return mx_launch(keep, dim3(blocks(shape), n_layers, which->n), dim3(THREADS), 0, stream,
	                 *shape, layers, *step, *which);
}
