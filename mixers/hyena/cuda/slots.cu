/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of slots, and the rings of inputs that they leave out. */
#include "mixers/hyena/cuda/rows.cuh"

namespace
{

using namespace lcg;

constexpr int THREADS = 256;

/* Block x: 32 channels; y: a layer; z: a span. */
__global__ void __launch_bounds__(THREADS) refill(const lcg_shape shape, const lcg_layer *layers,
                                                  const lcg_step step, const lcg_spans which)
{
	__shared__ float tile[2 * LCG_BLOCK][33];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32;
	mx_pdl_launch();
	mx_pdl_wait();
	const mx_device_span &span = step.spans[which.index[blockIdx.z]];
	const lcg_layer &l = layers[blockIdx.y];
	const slot_of slot(shape, l, span.slot);
	const uint32_t begin = window_begin(span.pos);
	for (uint32_t column = warp; column < 32 && first + column < shape.channels;
	     column += THREADS / 32)
		for (uint32_t pos = begin + lane; pos < span.pos; pos += 32)
			tile[pos - begin][column] =
				*cell(shape, l, step.pages + span.page_begin, first + column, pos);
	__syncthreads();
	if (first + lane < shape.channels)
		for (uint32_t pos = begin + warp; pos < span.pos; pos += THREADS / 32)
			*slot.input(first + lane, pos) = tile[pos - begin][lane];
}

/* Copies n numbers. If there is a head, all of it is written: `finished`, or that of from_head. */
__global__ void __launch_bounds__(THREADS)
	copy_slot(uint32_t *head, const lcg_head *from_head, uint32_t finished, float *to,
              const float *from, size_t n)
{
	mx_pdl_launch();
	mx_pdl_wait();
	const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
	if (head && first < LCG_HEAD)
		head[first] = first ? 0 : from_head ? from_head->finished : finished;
	for (size_t i = first; i < n; i += (size_t)gridDim.x * THREADS)
		to[i] = from[i];
}

size_t ring_floats(const lcg_shape *s)
{
	return (size_t)s->cap * 3 * s->channels;
}

dim3 copy_grid(const lcg_shape *s)
{
	const size_t blocks = (ring_floats(s) + THREADS - 1) / THREADS;
	return dim3(blocks < 64 ? (uint32_t)blocks : 64);
}

} // namespace

cudaError_t lcg_refill(cudaStream_t stream, const struct lcg_shape *shape,
                       const struct lcg_layer *layers, uint32_t n_layers,
                       const struct lcg_step *step, const struct lcg_spans *which)
{
	return mx_launch(refill, dim3((shape->channels + 31) / 32, n_layers, which->n), dim3(THREADS),
	                 0, stream, *shape, layers, *step, *which);
}

cudaError_t lcg_save(cudaStream_t stream, const struct lcg_shape *shape, const unsigned char *slot,
                     uint32_t pos, void *out)
{
	return mx_launch(copy_slot, copy_grid(shape), dim3(THREADS), 0, stream, (uint32_t *)out,
	                 (const lcg_head *)nullptr, pos / LCG_BLOCK * LCG_BLOCK,
	                 (float *)out + LCG_HEAD, (const float *)(slot + shape->conv_offset),
	                 ring_floats(shape));
}

cudaError_t lcg_load(cudaStream_t stream, const struct lcg_shape *shape, unsigned char *slot,
                     const void *in)
{
	return mx_launch(copy_slot, copy_grid(shape), dim3(THREADS), 0, stream, (uint32_t *)slot,
	                 (const lcg_head *)in, 0u, (float *)(slot + shape->conv_offset),
	                 (const float *)in + LCG_HEAD, ring_floats(shape));
}

cudaError_t lcg_copy_ring(cudaStream_t stream, const struct lcg_shape *shape, void *to,
                          const void *from)
{
	return mx_launch(copy_slot, copy_grid(shape), dim3(THREADS), 0, stream, (uint32_t *)nullptr,
	                 (const lcg_head *)nullptr, 0u, (float *)to, (const float *)from,
	                 ring_floats(shape));
}
