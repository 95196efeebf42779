/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of prompts, whose inputs are all known at once: short filter and inner gate, sums out of the
 * cells and inputs into them, then (settle.cu, whole.cu) the tiles, level by level, then the window
 * and the outer gate.
 *
 * Cells have a channel's positions side by side, rows a position's channels. Thread blocks of
 * `enter` and `finish` take tiles of LCG_BLOCK positions, from a multiple of it, by as many
 * channels.
 */
#include "mixers/hyena/cuda/rows.cuh"

namespace
{

using namespace lcg;

constexpr int TILE = LCG_BLOCK, WARPS = LCG_THREADS / 32, EACH = TILE / WARPS;

/* Outputs of the short filter for a column of EACH tokens from token number t on; tokens outside
 * 0 .. n - 1 give any numbers. u: the span's first row. */
__device__ __forceinline__ void short_filters(const lcg_shape &s, const lcg_layer &l,
                                              const slot_of &slot, const float *u,
                                              const mx_device_span &span, int t, uint32_t column,
                                              float *y)
{
	const float *w = l.conv_weight + (size_t)column * s.taps;
	const int n = (int)span.n, taps = (int)s.taps;
	const size_t columns = 3 * s.channels;
#pragma unroll
	for (int i = 0; i < EACH; i++)
		y[i] = l.conv_bias[column];
	if (taps == 3 && t >= 2 && t + EACH <= n) {
		const float w0 = w[0], w1 = w[1], w2 = w[2], *from = u + (t - 2) * columns + column;
		float x[EACH + 2];
#pragma unroll
		for (int i = 0; i < EACH + 2; i++)
			x[i] = from[i * columns];
#pragma unroll
		for (int i = 0; i < EACH; i++)
			y[i] = __fmaf_rn(w2, x[i + 2], __fmaf_rn(w1, x[i + 1], __fmaf_rn(w0, x[i], y[i])));
		return;
	}
	if (t + 1 >= taps && t + EACH <= n) {
		const float *x = u + (t + 1 - taps) * columns + column;
		for (int k = 0; k < taps; k++, x += columns)
#pragma unroll
			for (int i = 0; i < EACH; i++)
				y[i] = __fmaf_rn(w[k], x[i * columns], y[i]);
		return;
	}
	for (int back = taps - 1; back >= 0; back--) {
		const float weight = w[taps - 1 - back];
		float x[EACH];
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			const int from = t + i - back;
			x[i] = 0;
			if (from >= 0 && from < n)
				x[i] = u[from * columns + column];
			else if (from < 0 && (int)span.pos + from >= 0 && t + i >= 0)
				x[i] = *slot.raw(column, span.pos + from);
		}
#pragma unroll
		for (int i = 0; i < EACH; i++)
			y[i] = __fmaf_rn(weight, x[i], y[i]);
	}
}

/* Block x: a tile of positions; y: of channels; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS)
	enter(const lcg_shape shape, const lcg_layer *layer, const lcg_step step, const lcg_spans which,
          const float *all, const lcg_sums sums)
{
	__shared__ float tile[TILE][33];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const uint32_t start = (span.pos / TILE + blockIdx.x) * TILE, end = span.pos + span.n;
	if (start >= end)
		return;
	const lcg_layer &l = *layer;
	const slot_of slot(shape, l, span.slot);
	const uint32_t finished = slot.finished(), first = blockIdx.y * 32, c = first + lane;
	const uint32_t pos = start + lane;
	const bool in_span = pos >= span.pos && pos < end;
	float *at =
		in_span ? cell(shape, l, step.pages + span.page_begin, first + warp * EACH, pos) : nullptr;
	if (c < channels) {
		const float *u = all + (size_t)span.row * 3 * channels;
		const int t = (int)(start + warp * EACH) - (int)span.pos;
		float x1[EACH], v[EACH];
		short_filters(shape, l, slot, u, span, t, channels + c, x1);
		short_filters(shape, l, slot, u, span, t, 2 * channels + c, v);
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			const uint32_t of = start + warp * EACH + i;
			const float z = __fmul_rn(x1[i], v[i]);
			tile[warp * EACH + i][lane] = z;
			if (of >= span.pos && of < end && of + 2 * LCG_BLOCK >= end)
				*slot.input(c, of) = z;
		}
	}
	__syncthreads();
	if (!in_span)
		return;
	/* a unit of side n is due behind position n, and for outputs before 3 n: cells further ahead
	 * hold nothing, and the first tile sets their sum */
	const bool sets = pos / 3 >= span.pos && has_tiles(pos);
#pragma unroll
	for (int i = 0; i < EACH; i++, at += shape.page_tokens) {
		const uint32_t k = first + warp * EACH + i;
		if (k >= channels)
			break;
		float sum = 0;
		if (has_tiles(pos) && !sets)
			sum = pos >= finished ? *at : *slot.sum(k);
		if (!sets)
			sums.sums[k * sums.ld + span.row + (pos - span.pos)] = sum;
		if (pos >= finished)
			*at = tile[lane][warp * EACH + i];
	}
}

/* The windows of a tile of positions, from `start` on, are added to y[TILE][33]. */
__device__ __forceinline__ void add_windows(const lcg_shape &shape, const lcg_layer &l,
                                            const uint32_t *pages, uint32_t start, uint32_t end,
                                            float (*z)[33], float (*h)[32], float (*y)[33])
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * 32;
	const uint32_t begin = window_begin(start), c = first + lane;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const uint32_t column = warp * EACH + i;
		if (first + column >= shape.channels)
			break;
		for (uint32_t pos = begin + lane; pos < start + TILE && pos < end; pos += 32)
			z[pos - begin][column] = *cell(shape, l, pages, first + column, pos);
	}
	if (c < shape.channels)
		for (uint32_t lag = warp; lag < 2 * TILE; lag += WARPS)
			h[lag][lane] = l.window[(size_t)lag * shape.channels + c];
	__syncthreads();
	if (c >= shape.channels)
		return;
	float a[EACH][4] = {};
	const uint32_t base = start + warp * EACH; /* of the warp's rows */
	for (uint32_t s = begin; s < base + EACH && s < end; s += 4)
#pragma unroll
		for (uint32_t k = 0; k < 4; k++) {
			const float in = s + k < end ? z[s + k - begin][lane] : 0;
#pragma unroll
			for (uint32_t i = 0; i < EACH; i++)
				if (s + k <= base + i)
					a[i][k] = __fmaf_rn(h[base + i - s - k][lane], in, a[i][k]);
		}
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		y[warp * EACH + i][lane] = __fadd_rn(y[warp * EACH + i][lane], window_end(a[i]));
}

/* Likewise. whole: sums of whole blocks have their windows. */
template <typename T>
__global__ void __launch_bounds__(LCG_THREADS)
	finish(const lcg_shape shape, const lcg_layer *layer, const lcg_step step,
           const lcg_spans which, const float *all, const lcg_sums sums, bool whole, T *out)
{
	__shared__ float z[2 * TILE][33], h[2 * TILE][32], y[TILE][33];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const uint32_t start = (span.pos / TILE + blockIdx.x) * TILE, end = span.pos + span.n;
	if (start >= end)
		return;
	const lcg_layer &l = *layer;
	const slot_of slot(shape, l, span.slot);
	const uint32_t first = blockIdx.y * 32, c = first + lane;
	const int t = (int)(start + warp * EACH) - (int)span.pos;
	float gate[EACH];
	if (c < channels)
		short_filters(shape, l, slot, all + (size_t)span.row * 3 * channels, span, t, c, gate);
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const uint32_t column = warp * EACH + i, pos = start + lane;
		if (first + column < channels && pos >= span.pos && pos < end)
			y[lane][column] = sums.sums[(first + column) * sums.ld + span.row + (pos - span.pos)];
	}
	const lcg_stretch has = lcg_whole(span.pos, span.n);
	if (!whole || start < has.from || start >= has.to) {
		__syncthreads(); /* y[warp * EACH + i][lane] is of another thread */
		add_windows(shape, l, step.pages + span.page_begin, start, end, z, h, y);
	}
	__syncthreads();
	if (c >= channels)
		return;
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++) {
		const uint32_t pos = start + warp * EACH + i;
		if (pos < span.pos || pos >= end)
			continue;
		const size_t to = (size_t)(span.row + (pos - span.pos)) * channels + c;
		out[to] = mx_from_float<T>(__fmul_rn(gate[i], y[warp * EACH + i][lane]));
	}
}

/* Keeps the last rows for the short filter. Block x: columns; y: a row of the ring; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS)
	keep_rows(const lcg_shape shape, const lcg_layer *layer, const lcg_step step,
              const lcg_spans which, const float *all)
{
	const uint32_t column = blockIdx.x * LCG_THREADS + threadIdx.x, columns = 3 * shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	if (column >= columns || blockIdx.y >= span.n)
		return;
	const uint32_t t = span.n - 1 - blockIdx.y;
	*slot_of(shape, *layer, span.slot).raw(column, span.pos + t) =
		all[(size_t)(span.row + t) * columns + column];
}

uint32_t tiles(uint32_t n)
{
	return (n + 31) / 32;
}

} // namespace

cudaError_t lcg_prompt_enter(cudaStream_t stream, const struct lcg_shape *shape,
                             const struct lcg_layer *layer, const struct lcg_step *step,
                             const struct lcg_spans *which, uint32_t longest,
                             const struct lcg_prompt *p)
{
	const dim3 grid(tiles(longest) + 1, tiles(shape->channels), which->n);
	return mx_launch(enter, grid, dim3(LCG_THREADS), 0, stream, *shape, layer, *step, *which,
	                 p->rows->u, p->sums);
}

cudaError_t lcg_prompt_finish(cudaStream_t stream, const struct lcg_shape *shape,
                              const struct lcg_layer *layer, const struct lcg_step *step,
                              const struct lcg_spans *which, uint32_t longest,
                              const struct lcg_prompt *p)
{
	const dim3 grid(tiles(longest) + 1, tiles(shape->channels), which->n), block(LCG_THREADS);
	const dim3 kept((3 * shape->channels + LCG_THREADS - 1) / LCG_THREADS, shape->cap, which->n);
	cudaError_t e =
		p->rows->act == MX_BF16
			? mx_launch(finish<__nv_bfloat16>, grid, block, 0, stream, *shape, layer, *step, *which,
	                    p->rows->u, p->sums, p->whole, (__nv_bfloat16 *)p->rows->out)
			: mx_launch(finish<float>, grid, block, 0, stream, *shape, layer, *step, *which,
	                    p->rows->u, p->sums, p->whole, (float *)p->rows->out);
	return e != cudaSuccess ? e
	                        : mx_launch(keep_rows, kept, block, 0, stream, *shape, layer, *step,
	                                    *which, p->rows->u);
}
