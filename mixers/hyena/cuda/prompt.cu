/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of prompts, whose inputs are all known at once: short filter and gate, then sums out of the
 * cells and inputs into them, then (settle.cu) the tiles, level by level, then the window.
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

/* Block x: rows; y: channels; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS)
	gate(const lcg_shape shape, const lcg_layer *layer, const lcg_step step, const lcg_spans which,
         const float *all, float *zs, float *gates)
{
	const uint32_t c = blockIdx.y * 32 + threadIdx.x % 32, channels = shape.channels;
	const uint32_t t = blockIdx.x * WARPS + threadIdx.x / 32;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	if (c >= channels || t >= span.n)
		return;
	const slot_of slot(shape, *layer, span.slot);
	const float *u = all + (size_t)span.row * 3 * channels;
	float x[3];
	for (uint32_t k = 0; k < 3; k++)
		x[k] = short_filter(shape, *layer, slot, u, span.pos, t, k * channels + c);
	const size_t to = (size_t)(span.row + t) * channels + c;
	gates[to] = x[0];
	zs[to] = __fmul_rn(x[1], x[2]);
}

/* Block x: a tile of positions; y: of channels; z: a span. */
__global__ void __launch_bounds__(LCG_THREADS)
	enter(const lcg_shape shape, const lcg_layer *layer, const lcg_step step, const lcg_spans which,
          const float *all, const float *zs, const lcg_sums sums)
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
	const uint32_t finished = slot.finished(), first = blockIdx.y * 32;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const uint32_t at = warp * EACH + i, pos = start + at, c = first + lane;
		if (pos < span.pos || pos >= end || c >= channels)
			continue;
		const size_t row = span.row + (pos - span.pos);
		const float z = zs[row * channels + c];
		tile[at][lane] = z;
		if (pos + 2 * LCG_BLOCK >= end)
			*slot.input(c, pos) = z;
		if (pos + shape.cap >= end)
			for (uint32_t k = 0; k < 3; k++)
				*slot.raw(k * channels + c, pos) = all[(row * 3 + k) * channels + c];
	}
	__syncthreads();
	const uint32_t pos = start + lane;
	if (pos < span.pos || pos >= end)
		return;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const uint32_t c = first + warp * EACH + i;
		if (c >= channels)
			break;
		float *at = cell(shape, l, step.pages + span.page_begin, c, pos), sum = 0;
		if (has_tiles(pos))
			sum = pos >= finished ? *at : *slot.sum(c);
		sums.sums[c * sums.ld + span.row + (pos - span.pos)] = sum;
		if (pos >= finished)
			*at = tile[lane][warp * EACH + i];
	}
}

/* Likewise. */
template <typename T>
__global__ void __launch_bounds__(LCG_THREADS)
	finish(const lcg_shape shape, const lcg_layer *layer, const lcg_step step,
           const lcg_spans which, const float *gates, const lcg_sums sums, T *out)
{
	__shared__ float z[2 * TILE][33], h[2 * TILE][32], y[TILE][33];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const uint32_t start = (span.pos / TILE + blockIdx.x) * TILE, end = span.pos + span.n;
	if (start >= end)
		return;
	const uint32_t begin = window_begin(start), first = blockIdx.y * 32;
	const uint32_t *pages = step.pages + span.page_begin;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		const uint32_t column = warp * EACH + i, c = first + column;
		if (c >= channels)
			break;
		for (uint32_t pos = begin + lane; pos < start + TILE && pos < end; pos += 32)
			z[pos - begin][column] = *cell(shape, *layer, pages, c, pos);
		const uint32_t pos = start + lane;
		if (pos >= span.pos && pos < end)
			y[lane][column] = sums.sums[c * sums.ld + span.row + (pos - span.pos)];
	}
	const uint32_t c = first + lane;
	if (c < channels)
		for (uint32_t lag = warp; lag < 2 * TILE; lag += WARPS)
			h[lag][lane] = layer->window[(size_t)lag * channels + c];
	__syncthreads();
	if (c >= channels)
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
	for (uint32_t i = 0; i < EACH; i++) {
		const uint32_t pos = base + i;
		if (pos < span.pos || pos >= end)
			continue;
		const size_t to = (size_t)(span.row + (pos - span.pos)) * channels + c;
		const float sum = __fadd_rn(y[warp * EACH + i][lane], window_end(a[i]));
		out[to] = mx_from_float<T>(__fmul_rn(gates[to], sum));
	}
}

uint32_t tiles(uint32_t n)
{
	return (n + 31) / 32;
}

} // namespace

cudaError_t lcg_prompt_gate(cudaStream_t stream, const struct lcg_shape *shape,
                            const struct lcg_layer *layer, const struct lcg_step *step,
                            const struct lcg_spans *which, uint32_t longest,
                            const struct lcg_prompt *p)
{
	const dim3 grid((longest + WARPS - 1) / WARPS, tiles(shape->channels), which->n);
	return mx_launch(gate, grid, dim3(LCG_THREADS), 0, stream, *shape, layer, *step, *which,
	                 p->rows->u, p->z, p->gate);
}

cudaError_t lcg_prompt_enter(cudaStream_t stream, const struct lcg_shape *shape,
                             const struct lcg_layer *layer, const struct lcg_step *step,
                             const struct lcg_spans *which, uint32_t longest,
                             const struct lcg_prompt *p)
{
	const dim3 grid(tiles(longest) + 1, tiles(shape->channels), which->n);
	return mx_launch(enter, grid, dim3(LCG_THREADS), 0, stream, *shape, layer, *step, *which,
	                 p->rows->u, (const float *)p->z, p->sums);
}

cudaError_t lcg_prompt_window(cudaStream_t stream, const struct lcg_shape *shape,
                              const struct lcg_layer *layer, const struct lcg_step *step,
                              const struct lcg_spans *which, uint32_t longest,
                              const struct lcg_prompt *p)
{
	const dim3 grid(tiles(longest) + 1, tiles(shape->channels), which->n), block(LCG_THREADS);
	if (p->rows->act == MX_BF16)
		return mx_launch(finish<__nv_bfloat16>, grid, block, 0, stream, *shape, layer, *step,
		                 *which, (const float *)p->gate, p->sums, (__nv_bfloat16 *)p->rows->out);
	return mx_launch(finish<float>, grid, block, 0, stream, *shape, layer, *step, *which,
	                 (const float *)p->gate, p->sums, (float *)p->rows->out);
}
