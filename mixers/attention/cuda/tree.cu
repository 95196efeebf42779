/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of drafts. The key of a tree's token lies where that of a chain's would, at its number in
 * the span, and belongs at its depth. So a row of a tree is computed as a span of one token at its
 * depth, by the kernels of such spans and with their bits: what differs is where they find the keys
 * of the row's ancestors. A path that is a chain has them in the pages. For any other the blocks of
 * 16 keys that the tree's tokens belong to, two at most, are copied, with the keys of the path in
 * order: a tail, which all rows of the path share.
 */
#include "device/cuda/launch.cuh"
#include "mixers/attention/cuda/attention_cuda.h"

#define THREADS 128

namespace
{

/* Returns the address of 16 bytes of a token's keys, or values, in a page. */
__device__ __forceinline__ uint4 *part_at(const attn_pages &p, uint32_t page, uint32_t cell,
                                          uint32_t head, uint32_t values, uint32_t part)
{
	return (uint4 *)(p.base + page * p.stride +
	                 (size_t)(2 * head + values) * p.page_tokens * p.line +
	                 attn_place(p.line, cell % p.page_tokens, part * 16));
}

/* Returns how many rows of trees come before a span. By the whole block. */
__device__ __forceinline__ uint32_t rows_before(const attn_args &a, uint32_t span)
{
	__shared__ uint32_t sum;
	if (threadIdx.x == 0)
		sum = 0;
	__syncthreads();
	uint32_t own = 0;
	for (uint32_t i = threadIdx.x; i < span; i += THREADS) {
		const mx_device_span s = a.spans[i];
		own += attn_is_tree(&a, &s) ? s.n : 0;
	}
	if (own)
		atomicAdd(&sum, own);
	__syncthreads();
	return sum;
}

/* A block has a row and a key head. */
__global__ void __launch_bounds__(THREADS)
	tree(const attn_args a, mx_device_span *spans, const uint32_t line, const bool all)
{
	__shared__ uint32_t parents[MX_TREE_TOKENS], path[MX_TREE_TOKENS];
	const uint32_t row = blockIdx.x, head = blockIdx.y, of = a.row_span[row];
	mx_device_span span = a.spans[of];
	const uint32_t token = row - span.row, page_begin = span.page_begin;
	const bool there = row >= span.row && token < span.n, is_tree = attn_is_tree(&a, &span);
	mx_pdl_launch();
	const uint32_t before = all ? 0 : rows_before(a, of);
	if (is_tree && threadIdx.x < span.n)
		parents[threadIdx.x] = a.parents[span.parent_begin + threadIdx.x];
	__syncthreads();
	mx_pdl_wait();
	if (!all && !(there && is_tree))
		return;
	/* a path that goes through the row, and the row's own depth */
	const uint32_t n = span.n, begin = span.pos, place = all ? row : before + token;
	const uint32_t pos = there && is_tree ? a.pos[row] : begin + token;
	uint32_t leaf = token, depth = pos - begin;
	for (uint32_t i = token + 1; is_tree && i < n; i++)
		if (parents[i] == leaf)
			leaf = i, depth++;
	const bool moved = there && is_tree && token != pos - begin;
	if (head == 0 && threadIdx.x == 0) {
		span.row = row, span.n = there, span.pos = pos, span.parent_begin = UINT32_MAX;
		spans[place] = span;
		a.tails[row] = {moved ? begin / 16 * 16 : UINT32_MAX, place - token + leaf};
	}
	if (leaf != token || leaf == depth || !there || !is_tree)
		return;
	if (threadIdx.x == 0)
		for (uint32_t i = leaf, k = depth; i < n; i = parents[i])
			path[k--] = i;
	__syncthreads();
	const attn_pages pages = {a.page_base, a.page_stride, a.page_tokens, a.kv_heads, line};
	const attn_pages tail = {a.tail_base, attn_tail_bytes(a.kv_heads, line), ATTN_TAIL, a.kv_heads,
	                         line};
	const uint32_t parts = line / 16, from = begin / 16 * 16, keys = begin + depth + 1 - from;
	for (uint32_t i = threadIdx.x; i < 2 * keys * parts; i += THREADS) {
		const uint32_t part = i % parts, k = i / parts % keys, values = i / parts / keys;
		const uint32_t at = from + k, cell = at < begin ? at : begin + path[at - begin];
		const uint32_t page = a.pages[page_begin + cell / a.page_tokens];
		*part_at(tail, place, k, head, values, part) =
			*part_at(pages, page, cell, head, values, part);
	}
}

/* A block has a tree of a layer. A thread has the same 16 bytes of every token: a token is moved to
 * where an earlier one of its path was, or one that is taken back. */
__global__ void __launch_bounds__(THREADS)
	move(const __grid_constant__ attn_moves moves, const attn_pages *layers)
{
	const attn_pages p = layers[blockIdx.y];
	const uint32_t index = moves.of[blockIdx.x].span, n = moves.of[blockIdx.x].n;
	const uint64_t path = moves.of[blockIdx.x].path;
	const mx_device_span &span = moves.spans[index];
	const uint32_t begin = span.pos, *pages = moves.pages + span.page_begin, parts = p.line / 16;
	mx_pdl_launch();
	mx_pdl_wait();
	for (uint32_t i = threadIdx.x; i < 2 * p.kv_heads * parts; i += THREADS) {
		const uint32_t part = i % parts, values = i / parts % 2, head = i / parts / 2;
		for (uint32_t k = 0; k < n; k++) {
			const uint32_t to = begin + k, from = begin + (uint32_t)(path >> 4 * k & 15);
			if (to != from)
				*part_at(p, pages[to / p.page_tokens], to, head, values, part) =
					*part_at(p, pages[from / p.page_tokens], from, head, values, part);
		}
	}
}

} // namespace

cudaError_t attn_tree(const struct attn_launch *l, const struct attn_args *a,
                      struct mx_device_span *spans, bool all)
{
	const uint32_t line = a->dim * (uint32_t)mx_dtype_size(l->kv);
	return mx_launch(tree, dim3(a->n_rows, a->kv_heads), dim3(THREADS), 0, l->stream, *a, spans,
	                 line, all);
}

cudaError_t attn_move(const struct attn_launch *l, const struct attn_moves *moves,
                      const struct attn_pages *layers, uint32_t n_layers)
{
	return mx_launch(move, dim3(moves->n, n_layers), dim3(THREADS), 0, l->stream, *moves, layers);
}
