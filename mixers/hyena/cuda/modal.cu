/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modal filters: a thread computes a channel of a span, token by token, from the states up to a
 * position and the inputs since, as ../modal.c does. A position is kept for each channel, so that
 * threads need not meet.
 */
#include "mixers/hyena/cuda/modal_cuda.h"
#include "mixers/hyena/cuda/rows.cuh"

namespace
{

using namespace lcg;

constexpr int THREADS = 128;

/* What a channel has in a slot or in a snapshot. */
struct channel_state {
	uint32_t *pos;          /* the states include the tokens before this position */
	float *states, *inputs; /* [size][2][channels], [rows][channels] */
	uint32_t channels, rows;

	__device__ __forceinline__ channel_state(unsigned char *base, uint32_t channels, uint32_t size,
	                                         uint32_t rows, uint32_t c)
		: pos((uint32_t *)base + c), states((float *)base + channels + c),
		  inputs(states + (size_t)2 * size * channels), channels(channels), rows(rows)
	{
	}
	__device__ __forceinline__ float &state(uint32_t i) const
	{
		return states[(size_t)i * channels];
	}
	__device__ __forceinline__ float &input(uint32_t at) const
	{
		return inputs[(size_t)(at % rows) * channels];
	}
};

/* Updates the states with z and returns the output. */
template <int MOST>
__device__ __forceinline__ float take_up(const lcg_modal &m, uint32_t c, float z, float *s)
{
	float sum = __fmul_rn(m.skip[c], z);
#pragma unroll
	for (uint32_t i = 0; i < MOST; i++) {
		if (i >= m.size)
			break;
		const float2 pole = ((const float2 *)m.poles)[(size_t)c * m.size + i];
		const float2 residue = ((const float2 *)m.residues)[(size_t)c * m.size + i];
		const float re = __fmaf_rn(pole.x, s[2 * i], __fmaf_rn(-pole.y, s[2 * i + 1], z));
		const float im = __fmaf_rn(pole.x, s[2 * i + 1], __fmul_rn(pole.y, s[2 * i]));
		sum = __fmaf_rn(residue.x, re, __fmaf_rn(-residue.y, im, sum));
		s[2 * i] = re;
		s[2 * i + 1] = im;
	}
	return sum;
}

/* Column `part` (x0, x1, v) of a channel in the projection. */
__device__ __forceinline__ uint32_t column(const lcg_modal &m, uint32_t c, uint32_t part)
{
	return c / m.dim * 3 * m.dim + part * m.dim + c % m.dim;
}

/* Block x: a row; y: channels. */
__global__ void __launch_bounds__(THREADS)
	gate(const lcg_shape shape, const lcg_layer layer, const lcg_modal m,
         const mx_device_span *spans, const uint32_t *row_span, const float *all, float *zs,
         float *gates)
{
	const uint32_t row = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = spans[row_span[row]];
	if (c >= shape.channels || row < span.row || row - span.row >= span.n)
		return;
	const slot_of slot(shape, layer, span.slot);
	const float *u = all + (size_t)span.row * 3 * shape.channels;
	float x[3];
	for (uint32_t k = 0; k < 3; k++)
		x[k] = short_filter(shape, layer, slot, u, span.pos, row - span.row, column(m, c, k));
	const size_t to = (size_t)row * shape.channels + c;
	gates[to] = x[0];
	zs[to] = __fmul_rn(x[1], x[2]);
}

/* Block x: channels; y: a span. */
template <int MOST, typename T>
__global__ void __launch_bounds__(THREADS)
	run(const lcg_shape shape, const lcg_layer layer, const lcg_modal m,
        const mx_device_span *spans, const float *all, const float *zs, const float *gates, T *out)
{
	const uint32_t c = blockIdx.x * THREADS + threadIdx.x, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = spans[blockIdx.y];
	if (c >= channels || !span.n)
		return;
	const slot_of slot(shape, layer, span.slot);
	const channel_state k(slot.base, channels, m.size, m.rows, c);
	const uint32_t first = *k.pos, end = span.pos + span.n;
	const uint32_t stay = span.kind == MX_SPAN_DRAFT ? span.pos : end;
	const uint32_t certain = stay > first + 1 ? stay - 1 : first;
	float s[2 * MOST];
#pragma unroll
	for (uint32_t i = 0; i < 2 * MOST; i++)
		s[i] = i < 2 * m.size ? k.state(i) : 0;
	for (uint32_t t = first; t < end; t++) {
		const size_t row = span.row + (t - span.pos);
		if (t == certain)
#pragma unroll
			for (uint32_t i = 0; i < 2 * MOST; i++)
				if (i < 2 * m.size)
					k.state(i) = s[i];
		const float z = t < span.pos ? k.input(t) : zs[row * channels + c];
		if (t >= certain)
			k.input(t) = z;
		const float y = take_up<MOST>(m, c, z, s);
		if (t >= span.pos)
			out[row * channels + c] = mx_from_float<T>(__fmul_rn(gates[row * channels + c], y));
	}
	*k.pos = certain;
	for (uint32_t t = span.n > shape.cap ? span.n - shape.cap : 0; t < span.n; t++)
		for (uint32_t part = 0; part < 3; part++) {
			const uint32_t col = column(m, c, part);
			*slot.raw(col, span.pos + t) = all[((size_t)span.row + t) * 3 * channels + col];
		}
}

/* A snapshot has the states without token pos - 1, and that token's input. */
template <int MOST>
__global__ void __launch_bounds__(THREADS)
	save(const lcg_shape shape, const lcg_modal m, unsigned char *slot, uint32_t pos,
         unsigned char *out)
{
	const uint32_t c = blockIdx.x * THREADS + threadIdx.x, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= channels)
		return;
	const channel_state from(slot, channels, m.size, m.rows, c), to(out, channels, m.size, 1, c);
	float s[2 * MOST];
#pragma unroll
	for (uint32_t i = 0; i < 2 * MOST; i++)
		s[i] = i < 2 * m.size ? from.state(i) : 0;
	for (uint32_t t = *from.pos; t + 1 < pos; t++)
		take_up<MOST>(m, c, from.input(t), s);
#pragma unroll
	for (uint32_t i = 0; i < 2 * MOST; i++)
		if (i < 2 * m.size)
			to.state(i) = s[i];
	*to.pos = pos - 1;
	to.input(0) = from.input(pos - 1);
}

__global__ void __launch_bounds__(THREADS)
	load(const lcg_shape shape, const lcg_modal m, unsigned char *slot, unsigned char *in)
{
	const uint32_t c = blockIdx.x * THREADS + threadIdx.x, channels = shape.channels;
	mx_pdl_launch();
	mx_pdl_wait();
	if (c >= channels)
		return;
	const channel_state to(slot, channels, m.size, m.rows, c), from(in, channels, m.size, 1, c);
	for (uint32_t i = 0; i < 2 * m.size; i++)
		to.state(i) = from.state(i);
	*to.pos = *from.pos;
	to.input(*from.pos) = from.input(0);
}

dim3 channel_grid(const lcg_shape *s, uint32_t n)
{
	return dim3((s->channels + THREADS - 1) / THREADS, n);
}

template <int MOST>
cudaError_t launch_run(cudaStream_t stream, const lcg_shape *shape, const lcg_layer *layer,
                       const lcg_modal *m, const mx_step *step, const lcg_rows *rows,
                       const float *z, const float *gates)
{
	const dim3 grid = channel_grid(shape, step->n_spans), block(THREADS);
	if (rows->act == MX_BF16)
		return mx_launch(run<MOST, __nv_bfloat16>, grid, block, 0, stream, *shape, *layer, *m,
		                 step->tables->spans, rows->u, z, gates, (__nv_bfloat16 *)rows->out);
	return mx_launch(run<MOST, float>, grid, block, 0, stream, *shape, *layer, *m,
	                 step->tables->spans, rows->u, z, gates, (float *)rows->out);
}

} // namespace

cudaError_t lcg_modal_rows(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_layer *layer, const struct lcg_modal *m,
                           const struct mx_step *step, const struct lcg_rows *rows, float *z,
                           float *gates)
{
	const dim3 grid(step->n_rows, (shape->channels + THREADS - 1) / THREADS);
	cudaError_t e = mx_launch(gate, grid, dim3(THREADS), 0, stream, *shape, *layer, *m,
	                          step->tables->spans, step->tables->row_span, rows->u, z, gates);
	if (e != cudaSuccess)
		return e;
	auto as = m->size <= 2 ? launch_run<2> : m->size <= 8 ? launch_run<8> : launch_run<64>;
	return as(stream, shape, layer, m, step, rows, z, gates);
}

cudaError_t lcg_modal_save(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_modal *m, unsigned char *slot, uint32_t pos, void *out)
{
	auto as = m->size <= 2 ? save<2> : m->size <= 8 ? save<8> : save<64>;
	return mx_launch(as, channel_grid(shape, 1), dim3(THREADS), 0, stream, *shape, *m, slot, pos,
	                 (unsigned char *)out);
}

cudaError_t lcg_modal_load(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_modal *m, unsigned char *slot, const void *in)
{
	return mx_launch(load, channel_grid(shape, 1), dim3(THREADS), 0, stream, *shape, *m, slot,
	                 (unsigned char *)in);
}
