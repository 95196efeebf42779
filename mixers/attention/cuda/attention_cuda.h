/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA module of the attention mixer: how a step is cut into work, where
 * keys, values and partials lie, and the launchers of the kernels. For C and
 * CUDA C++; the formulas here are computed by the host and by the kernels.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_H
#define MX_MIXERS_ATTENTION_CUDA_H

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "mixers/mixer.h"

#ifdef __CUDACC__
#define ATTN_INLINE static __host__ __device__ __forceinline__
#else
#define ATTN_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_MAX_DIM     256
#define ATTN_BLOCK       16  /* keys that a warp takes at a time; pages hold whole blocks */
#define ATTN_SHORT       16  /* tokens: longer spans are prompts */
#define ATTN_MIN_SHIFT   7   /* chunks have at least 128 keys: two blocks a warp */
#define ATTN_MOST_SHIFT  10  /* and at least 1024 in large batches: beginning one takes time */
#define ATTN_EXACT_SHIFT 8   /* and at least 256 where the size is fixed */
#define ATTN_PARTS       256 /* parts that one row's keys are cut into, over all key heads */
#define ATTN_EXACT_PARTS 1024

/* ---- pages ----
 *
 * A page holds, for each key head, the keys of its tokens and then their values; both in groups of
 * 8 tokens, and these in panels: [8 tokens][panel bytes], 16-byte slots turned by the token as the
 * 128, 64 or 32-byte swizzles of shared memory have it. So a block of keys comes to shared memory
 * with one bulk copy, ready for ldmatrix and wgmma without conflicts. */

/* Where byte `at` of token t's row is, from the first token's, where a token's keys of one head
 * take `row` bytes (a multiple of 32). */
ATTN_INLINE uint32_t attn_place(uint32_t row, uint32_t t, uint32_t at)
{
	/* bytes of a panel are a power of two, and said so: nothing is divided */
	uint32_t bits = row % 128 == 0 ? 7 : row % 64 == 0 ? 6 : 5, rest = at & ((1u << bits) - 1);
	uint32_t turn = t >> (7 - bits) & ((1u << (bits - 4)) - 1);
	return t / 8 * 8 * row + ((at >> bits << 3 | t % 8) << bits) + ((rest / 16) ^ turn) * 16 +
	       at % 16;
}

/* ---- work ---- */

/* What the kernels of a step are told. */
struct attn_args {
	/* activations: rows of queries, keys and values side by side, [rows, ld]; outputs [rows, ldo]
	 */
	void *qkv, *out;
	uint32_t ld, ldo;
	uint32_t heads, kv_heads, group, head_dim, dim; /* dim: head_dim as pages have it */
	uint32_t window;
	float scale; /* with log2(e) */
	/* the step */
	const struct mx_device_span *spans;
	const uint32_t *row_span, *pages;
	uint32_t n_spans, n_rows;
	uint32_t min_n, max_n; /* spans of so many tokens are this launch's affair */
	/* pages */
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens;
	/* partials, see attn_partials */
	float *sums;   /* [.., 2] m, l */
	float *values; /* [.., dim] */
	uint32_t max_parts, max_rows, min_shift, fixed_shift;
	/* append */
	const float *q_norm, *k_norm, *inv_freq; /* NULL = none */
	float norm_eps, rope_scale;
	uint32_t rope_dim;
	bool rope_dynamic;
	double theta, factor;
	uint32_t max_position;
};

/* First key that the query at `pos` sees. */
ATTN_INLINE uint32_t attn_first_key(const struct attn_args *a, uint32_t pos)
{
	return a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
}

/* The least shift of a batch: of 128 keys where a sequence is alone, of more where there are
 * spans enough to keep all multiprocessors busy. */
ATTN_INLINE uint32_t attn_min_shift(uint32_t n_spans, uint32_t kv_heads)
{
	uint32_t shift = ATTN_MIN_SHIFT;
	while (shift < ATTN_MOST_SHIFT && n_spans * kv_heads >= 64u << (shift - ATTN_MIN_SHIFT))
		shift++;
	return shift;
}

/* Keys of a span are cut at multiples of 1 << shift: a function of the span and of the number of
 * spans; with fixed_shift of nothing, so that company changes nothing. */
ATTN_INLINE uint32_t attn_chunk_shift(const struct attn_args *a, uint32_t pos, uint32_t n)
{
	if (a->fixed_shift)
		return a->fixed_shift;
	uint32_t most = a->max_parts * a->max_rows / n;
	most = most > a->max_parts ? a->max_parts : most ? most : 1;
	uint32_t lo = attn_first_key(a, pos), hi = pos + n - 1, shift = a->min_shift;
	while ((hi >> shift) - (lo >> shift) >= most)
		shift++;
	return shift;
}

ATTN_INLINE uint32_t attn_chunks(const struct attn_args *a, uint32_t pos, uint32_t n,
                                 uint32_t shift)
{
	return ((pos + n - 1) >> shift) - (attn_first_key(a, pos) >> shift) + 1;
}

/* The first partial of row v (token * group + head of the group) of a span of n tokens and a key
 * head: those of its chunks lie side by side, then those of row v + 1. A span never has more than
 * max_parts * max_rows * heads of them. */
ATTN_INLINE uint32_t attn_partials(const struct attn_args *a, uint32_t span, uint32_t n,
                                   uint32_t kv_head, uint32_t v, uint32_t chunks)
{
	return span * a->max_parts * a->max_rows * a->heads + (kv_head * n * a->group + v) * chunks;
}

/* ---- launchers ---- */

struct attn_launch {
	cudaStream_t stream;
	int sms, sm;
	size_t smem; /* most that a block can have */
	enum mx_dtype act, kv;
};

/* Norm, rotation and the write of keys and values; queries are changed in place. */
cudaError_t attn_append(const struct attn_launch *l, const struct attn_args *a);

/* Split over keys: partials of spans of a->min_n .. a->max_n tokens, or their outputs where there
 * is but one chunk. Then attn_merge. bf16 activations, keys in bf16 or fp8. */
cudaError_t attn_decode(const struct attn_launch *l, const struct attn_args *a);
/* rows_a_span: most tokens of a span in question. */
cudaError_t attn_merge(const struct attn_launch *l, const struct attn_args *a,
                       uint32_t rows_a_span);

/* The same arithmetic without a split: chunk by chunk, bit-equal to decode and merge if the shift
 * is the same. */
cudaError_t attn_whole(const struct attn_launch *l, const struct attn_args *a);

/* Prompts on tensor cores of compute capability 9.0a; `rows` bounds those of the spans in question.
 * Not bit-equal to anything. */
bool attn_prefill_can(const struct attn_launch *l, uint32_t dim, uint32_t head_dim);
cudaError_t attn_prefill_prepare(uint32_t dim);
cudaError_t attn_prefill(const struct attn_launch *l, const struct attn_args *a, uint32_t rows);

/* Any types, any row, simple: one warp for each query and head. */
cudaError_t attn_plain(const struct attn_launch *l, const struct attn_args *a);

/* Once for a layer: lets the kernels have their shared memory. cudaErrorInvalidValue if the device
 * has not enough. */
cudaError_t attn_decode_prepare(const struct attn_launch *l, uint32_t dim, uint32_t max_spans);

#ifdef __cplusplus
}
#endif

#endif
