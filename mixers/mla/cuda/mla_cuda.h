/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-head latent attention on CUDA devices: the arguments of its kernels, how keys are split,
 * where bytes of a page are. For C and CUDA C++.
 *
 * A key is a token's latent and its rotated elements, `dim` elements with padding: a row. Values
 * are the first `rank` elements of the same row, so a row is read once for all heads.
 */
#ifndef MX_MIXERS_MLA_CUDA_H
#define MX_MIXERS_MLA_CUDA_H

#include <cuda_runtime_api.h>

#include "mixers/mixer.h"
#include "mixers/softmax/cuda/places.h"

#ifdef __CUDACC__
#define MLA_INLINE static __host__ __device__ __forceinline__
#else
#define MLA_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MLA_KEYS  64 /* of a tile: tiles begin at multiples of it */
#define MLA_GROUP 16 /* tokens; pages hold whole groups */
#define MLA_SHORT 16 /* tokens: longer spans are prompts */
#define MLA_ROWS  16 /* of a block of queries: a token's head is a row */

/* Returns the offset of byte `at` of token t's row from the first row of a page. The 16-byte parts
 * of a row are permuted by the token within 128 bytes, so that a copy of rows in shared memory is
 * read without bank conflicts. `row`: bytes of a row, a multiple of 128. */
MLA_INLINE uint32_t mla_place(uint32_t row, uint32_t t, uint32_t at)
{
	return t * row + (at ^ (t & 7) << 4);
}

struct mla_args {
	/* the step */
	const struct mx_device_span *spans;
	const uint32_t *row_span, *pages;
	uint32_t n_spans, n_rows;
	uint32_t min_n, max_n; /* the launch computes spans of min_n .. max_n tokens */
	uint32_t longest;      /* tokens of the longest of them */
	/* the layer */
	uint32_t heads, rank, nope, rope, v, dim;
	uint32_t stages; /* tiles of keys in shared memory: 2, or 1 where a thread block has little */
	float scale;     /* of scores, times log2(e) */
	float norm_eps, rope_factor, q_beta;
	uint32_t q_length;
	bool pairs;
	bool skip_first;       /* position 0 is seen by its own row alone */
	const float *inv_freq; /* [rope / 2]; NULL = no positions */
	const float *kv_norm;  /* [rank] */
	/* activations, one row after the other */
	void *q;        /* [n_rows, heads, nope + rope] */
	void *latent;   /* [n_rows, rank + rope] as projected */
	void *absorbed; /* [n_rows, heads, dim]: queries of keys */
	void *sums;     /* [n_rows, heads, rank]: weighted sums of latents */
	/* pages */
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens; /* of which this rank has the keys */
	/* Splits, tiles and pages are by a key's place, masks by its position. */
	struct mx_places places;
	/* What the rows found in this rank's keys, instead of `sums` (mx_partial_at). NULL = no pages
	 * are shared. */
	float *sent;
	/* Splits of keys, at multiples of `split` keys; 0 = as many keys as give `parts` splits of a
	 * span. Partials of split s of block b of queries, of `rows` rows, of a span: unit = (span *
	 * blocks + b) * parts + s; the stats of a row are m, l. */
	uint32_t parts, split;
	float *stats;  /* [units, rows, 2] */
	float *values; /* [units, rows, rank] */
};

/* Returns the keys of a split of a span that ends at place `end`. */
MLA_INLINE uint32_t mla_split_keys(const struct mla_args *a, uint32_t end)
{
	const uint32_t each = (end + a->parts - 1) / a->parts;
	const uint32_t whole = (each + MLA_KEYS - 1) / MLA_KEYS * MLA_KEYS;
	return a->split ? a->split : whole ? whole : MLA_KEYS;
}

/* Returns the first key that the query at `pos` sees. */
MLA_INLINE uint32_t mla_first_key(const struct mla_args *a, uint32_t pos)
{
	return a->skip_first && pos ? 1 : 0;
}

struct mla_launch {
	cudaStream_t stream;
	enum mx_dtype act, kv;
};

/* Normalises latents, rotates, writes keys to pages and the rotated elements of queries to
 * `absorbed`, with its padding. */
cudaError_t mla_arrange(const struct mla_launch *l, const struct mla_args *a);

/* ---- tensor cores: bf16 activations and pages, ranks that are multiples of 16 ---- */

/* Bytes of shared memory that the kernels take for `blocks` (1 or 4) blocks of queries at a time;
 * fold: of mla_whole. */
size_t mla_attend_smem(const struct mla_args *a, int blocks, bool fold);
/* Opts the kernels into the shared memory of rows of `a`, as far as there are smem bytes. */
cudaError_t mla_attend_prepare(const struct mla_args *a, size_t smem);
/* Computes `sums`, or partials if parts > 1; then call mla_merge. */
cudaError_t mla_attend(const struct mla_launch *l, const struct mla_args *a, int blocks);
cudaError_t mla_merge(const struct mla_launch *l, const struct mla_args *a, int blocks);
/* Computes `sums` with the bits of mla_attend and mla_merge for the same `split`: a thread block
 * goes through all splits of a block of queries. */
cudaError_t mla_whole(const struct mla_launch *l, const struct mla_args *a);

/* y[n, heads, rows] = W_h x[n, heads, ..cols], bf16. Weights [rows, cols] of heads are w_head
 * elements apart; ldx, ldy: elements from one head of x or y to the next. cols and rows must be
 * multiples of 32 and 16. */
struct mla_product {
	const void *w, *x;
	void *y;
	size_t w_head, ldx, ldy;
	uint32_t n, heads, rows, cols;
};
cudaError_t mla_heads(cudaStream_t stream, const struct mla_product *a);

/* to[heads, cols, rows] = transposes of from[heads, rows, cols], whose heads are from_head elements
 * apart; elements of 2 or 4 bytes. */
cudaError_t mla_transpose(cudaStream_t stream, size_t size, const void *from, size_t from_head,
                          uint32_t heads, uint32_t rows, uint32_t cols, void *to);

/* ---- any types and sizes: a warp for each row and head ---- */

cudaError_t mla_plain(const struct mla_launch *l, const struct mla_args *a);

#ifdef __cplusplus
}
#endif

#endif
