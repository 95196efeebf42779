/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays of a tree of drafts: the entries of its path in rings move to where a chain would have
 * left them. Nothing else is to be done, since S has no token that can be taken back.
 */
#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"

#define THREADS 128
#define PARTS   8 /* blocks that share a layer's units */

namespace
{

/* Moves the entries of a path in a ring, by the whole block. A thread has the same bytes of each:
 * an entry goes to where an earlier one of the path was, or one that is taken back. */
__device__ __forceinline__ void move_ring(unsigned char *ring, uint32_t bytes, uint32_t cap,
                                          uint32_t pos, uint64_t path, uint32_t n)
{
	for (uint32_t i = threadIdx.x * 2; i < bytes; i += THREADS * 2)
		for (uint32_t k = 0; k < n; k++) {
			const uint32_t from = pos + (uint32_t)(path >> 4 * k & 15), to = pos + k;
			if (from != to)
				*(uint16_t *)(ring + (size_t)(to % cap) * bytes + i) =
					*(const uint16_t *)(ring + (size_t)(from % cap) * bytes + i);
		}
}

/* A block has some units of a layer, for one tree. */
__global__ void __launch_bounds__(THREADS)
	move(const __grid_constant__ recur_moves moves, const recur_rings *layers)
{
	const recur_rings l = layers[blockIdx.y];
	const mx_device_span &span = moves.spans[moves.of[blockIdx.x].span];
	const uint64_t path = moves.of[blockIdx.x].path;
	const uint32_t n = moves.of[blockIdx.x].n, pos = span.pos;
	unsigned char *slot = l.slot_base + span.slot * l.slot_stride;
	mx_pdl_launch();
	mx_pdl_wait();
	for (uint32_t u = blockIdx.z; u < l.units; u += PARTS)
		for (int i = 0; i < 5; i++)
			move_ring(slot + u * l.unit_bytes + l.at[i], l.bytes[i], l.cap, pos, path, n);
	if (blockIdx.z == 0)
		move_ring(slot + l.conv_at, l.conv_bytes, l.conv_cap, pos, path, n);
}

} // namespace

cudaError_t recur_cuda_move(cudaStream_t stream, const struct recur_moves *moves,
                            const struct recur_rings *layers, uint32_t n_layers)
{
	return mx_launch(move, dim3(moves->n, n_layers, PARTS), dim3(THREADS), 0, stream, *moves,
	                 layers);
}
