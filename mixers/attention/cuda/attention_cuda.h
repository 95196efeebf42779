/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA module of the attention mixer: how a step is split into work, where
 * keys, values and partials lie, and the launchers of the kernels. For C and
 * CUDA C++; both the host and the kernels compute the formulas here.
 *
 * A split is a range of keys of one span that one unit of work goes through, as
 * in Flash-Decoding; its partial result is folded with those of the others.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_H
#define MX_MIXERS_ATTENTION_CUDA_H

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "mixers/mixer.h"
#include "mixers/softmax/cuda/places.h"
#include "mixers/tree.h"

#ifdef __CUDACC__
#define ATTN_INLINE static __host__ __device__ __forceinline__
#else
#define ATTN_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_CUDA_MAX_DIM 512
#define ATTN_MMA_DIM      256 /* largest head of the kernels for tensor cores */
#define ATTN_CUDA_WARP_KEYS                                                                        \
	16                      /* keys that a warp takes at a time: a block; pages hold whole blocks */
#define ATTN_SHORT       16 /* tokens: longer spans are prompts */
#define ATTN_MIN_SHIFT   7  /* splits have at least 128 keys: two blocks a warp */
#define ATTN_MOST_SHIFT  10 /* and at least 1024 in large batches: starting a split takes time */
#define ATTN_EXACT_SHIFT 8  /* and at least 256 if their size is fixed */
#define ATTN_PARTS       256 /* most splits of one row's keys, over all key heads */
#define ATTN_EXACT_PARTS 1024
#define ATTN_STEP        128 /* keys: the steps of a ladder of splits, see attn_rung */
#define ATTN_TAIL        32  /* keys: those of a tree's tokens lie in two blocks at most */

/* ---- pages ----
 *
 * A page holds, for each key head, the keys of its tokens and then their values, both in groups of
 * 8 tokens. A group consists of panels, [8 tokens][panel bytes], whose 16-byte parts are permuted
 * by the token like the 128, 64 or 32-byte swizzles of shared memory. So one bulk copy brings a
 * block of keys to shared memory, ready for ldmatrix and wgmma without bank conflicts. */

/* Returns the offset of byte `at` of token t's row from the first token's row. `row`: bytes of a
 * token's keys of one head, a multiple of 32. */
ATTN_INLINE uint32_t attn_place(uint32_t row, uint32_t t, uint32_t at)
{
	/* the bytes of a panel are a power of two, written as a shift: no division */
	uint32_t bits = row % 128 == 0 ? 7 : row % 64 == 0 ? 6 : 5, rest = at & ((1u << bits) - 1);
	uint32_t turn = t >> (7 - bits) & ((1u << (bits - 4)) - 1);
	return t / 8 * 8 * row + ((at >> bits << 3 | t % 8) << bits) + ((rest / 16) ^ turn) * 16 +
	       at % 16;
}

/* ---- work ----
 *
 * Splits, pages and copies are by a key's place (places.h), windows and masks by its position.
 */

/* Where a row of a tree finds its last keys: from key `from` on, a multiple of 16, in tail number
 * `place` (attn_tree). UINT32_MAX = all of them are in pages. */
struct attn_tail {
	uint32_t from, place;
};

/* Arguments of a step's kernels. */
struct attn_args {
	/* activations: rows of queries, keys and values side by side, [rows, ld]; outputs [rows, ldo]
	 */
	void *qkv, *out;
	uint32_t ld, ldo;
	uint32_t heads, kv_heads, group, head_dim, dim; /* dim: head_dim padded, as in pages */
	uint32_t window;
	bool skip_first;    /* position 0 is seen by its own row alone */
	float scale;        /* of scores, times log2(e) */
	float cap;          /* scaled scores become cap tanh(score / cap); 0 = none */
	const float *sinks; /* [heads] scores of keys without values, not scaled; NULL = none */
	/* the step */
	const struct mx_device_span *spans;
	const uint32_t *row_span, *pages;
	uint32_t n_spans, n_rows;
	uint32_t min_n, max_n;         /* the launch computes spans of min_n .. max_n tokens */
	const uint32_t *pos, *parents; /* the step's tables; parents NULL = there are no trees */
	/* Of a launch whose spans are rows of trees (attn_tree), else NULL: by row of the step. Such
	 * spans and tails were written by a kernel of the step. */
	struct attn_tail *tails;
	unsigned char *tail_base; /* tails, of attn_tail_bytes each */
	/* pages */
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens; /* of which this rank has the keys */
	struct mx_places places;
	/* What the rows found in this rank's keys, instead of outputs (mx_partial_at). NULL = no pages
	 * are shared. */
	float *sent;
	uint32_t first_out; /* the first head of the outputs in `out` */
	/* partials, see attn_partials */
	float *sums;   /* [.., 2] m, l */
	float *values; /* [.., dim] */
	uint32_t max_parts, max_rows, min_shift, fixed_shift;
	uint32_t *tiles;   /* attn_prefill: how many were taken; 0 */
	uint32_t *arrived; /* [max_spans, kv_heads] partials of a row that are done: attn_newest; 0 */
	bool ladder;       /* splits are those of attn_rung, for every row */
	uint32_t lead;     /* then: a row's first so many splits are one unit of work and one partial */
	/* products that are taken apart: [rows, ld_raw], NULL = there are none. gate: rows are [q |
	 * gate] for each head, else [q.. | k | v] for each key head. */
	void *raw;
	uint32_t ld_raw;
	bool gate;
	/* Their sigmoids multiply the outputs: [rows, heads], or [rows, heads * head_dim] with
	 * wide_gate; NULL = none. */
	float *gates;
	bool wide_gate;
	bool norm_whole; /* q_norm and k_norm are of all heads together */
	bool norm_last;  /* they come after rope */
	/* append */
	const float *q_norm, *k_norm, *inv_freq; /* NULL = none */
	const float *long_freq; /* frequencies of sequences that may grow longer than .. */
	uint32_t original;      /* .. this; NULL = none */
	bool v_norm;            /* values are normalised, without a weight */
	bool k_is_v;            /* values are the keys before norm and rotation */
	bool rope_pairs;        /* x[2i], x[2i + 1] rotate together */
	float q_beta;           /* queries are multiplied by 1 + q_beta ln(1 + floor(pos / q_length)) */
	uint32_t q_length;
	float norm_eps, rope_scale;
	uint32_t rope_dim;
	bool rope_dynamic;
	double theta, factor;
	uint32_t max_position;
};

/* Returns the first key that the query at `pos` sees. */
ATTN_INLINE uint32_t attn_first_key(const struct attn_args *a, uint32_t pos)
{
	const uint32_t first = a->skip_first && pos ? 1 : 0;
	return a->window && pos + 1 - first > a->window ? pos + 1 - a->window : first;
}

/* Returns the number of keys that the query at `pos` sees: the last ones up to its own. */
ATTN_INLINE uint32_t attn_reach(const struct attn_args *a, uint32_t pos)
{
	return pos + 1 - attn_first_key(a, pos);
}

/* Returns the place of the first key that the query at pos sees in the rank's keys. */
ATTN_INLINE uint32_t attn_lo(const struct attn_args *a, uint32_t pos)
{
	return mx_place_of(&a->places, attn_first_key(a, pos));
}

/* Returns the place of the last one, or that of the first, lo, if there is none. */
ATTN_INLINE uint32_t attn_last(const struct attn_args *a, uint32_t lo, uint32_t pos)
{
	if (!MX_SHARES(&a->places))
		return pos;
	const uint32_t end = mx_place_of(&a->places, pos + 1);
	return end > lo ? end - 1 : lo;
}

/* Returns the smallest shift of a step's splits: 128 keys for a single sequence, more if there are
 * enough spans to keep all multiprocessors busy. */
ATTN_INLINE uint32_t attn_min_shift(uint32_t n_spans, uint32_t kv_heads)
{
	uint32_t shift = ATTN_MIN_SHIFT;
	while (shift < ATTN_MOST_SHIFT && n_spans * kv_heads >= 64u << (shift - ATTN_MIN_SHIFT))
		shift++;
	return shift;
}

/* Returns the shift of a span's splits: its keys are split at multiples of 1 << shift. The shift
 * depends on the span and on the number of spans of the step; fixed_shift depends on neither, so
 * the other sequences of a batch change nothing. */
ATTN_INLINE uint32_t attn_split_shift(const struct attn_args *a, uint32_t pos, uint32_t n)
{
	if (a->fixed_shift || a->ladder)
		return a->fixed_shift;
	uint32_t most = a->max_parts * a->max_rows / n;
	most = most > a->max_parts ? a->max_parts : most ? most : 1;
	uint32_t lo = attn_lo(a, pos), hi = attn_last(a, lo, pos + n - 1), shift = a->min_shift;
	while ((hi >> shift) - (lo >> shift) >= most)
		shift++;
	return shift;
}

/* A ladder of splits that depends on nothing but the keys' places: 16 splits of ATTN_STEP keys,
 * and then 16 in each doubling of the context, so that the keys of one sequence fill a chip at any
 * length while a row has few partials. Returns the split of a key. */
ATTN_INLINE uint32_t attn_rung(uint32_t key)
{
	uint32_t step = key / ATTN_STEP, shift = 0;
	while (step >> shift >= 32)
		shift++;
	return 16 * shift + (step >> shift);
}

/* Returns the first key of a split of the ladder. */
ATTN_INLINE uint32_t attn_rung_begin(uint32_t rung)
{
	uint32_t shift = rung < 32 ? 0 : rung / 16 - 1;
	return ((rung - 16 * shift) << shift) * ATTN_STEP;
}

/* Returns the split of a key. */
ATTN_INLINE uint32_t attn_split(const struct attn_args *a, uint32_t key, uint32_t shift)
{
	return a->ladder ? attn_rung(key) : key >> shift;
}

/* Returns how many splits the first partial of a row at `pos` has, with a ladder. Partials are
 * folded in order, so a unit may fold the first ones itself: that changes no bit. */
ATTN_INLINE uint32_t attn_lead(const struct attn_args *a, uint32_t pos)
{
	uint32_t lo = attn_lo(a, pos), all = attn_rung(attn_last(a, lo, pos)) - attn_rung(lo) + 1;
	return a->lead < all ? a->lead : all;
}

/* Returns the number of splits, or with a ladder of partials, of a span of n tokens from position
 * `pos`. */
ATTN_INLINE uint32_t attn_splits(const struct attn_args *a, uint32_t pos, uint32_t n,
                                 uint32_t shift)
{
	uint32_t lo = attn_lo(a, pos), first = attn_split(a, lo, shift);
	uint32_t last = attn_split(a, attn_last(a, lo, pos + n - 1), shift);
	return last - first + 1 - (a->ladder ? attn_lead(a, pos) - 1 : 0);
}

/* Returns a ladder's lead for a step: if there are as many rows as keep the chip busy by
 * themselves, partials only cost time. */
ATTN_INLINE uint32_t attn_lead_for(uint32_t n_spans, uint32_t kv_heads)
{
	uint32_t units = n_spans * kv_heads;
	return units >= 1024 ? 32 : units >= 512 ? 16 : 1;
}

/* Returns the index of the first partial of row v (token * group + head of the group) of a span of
 * n tokens and a key head. The partials of the row's splits are contiguous; those of row v + 1
 * follow. A span has at most max_parts * max_rows * heads partials. */
ATTN_INLINE uint32_t attn_partials(const struct attn_args *a, uint32_t span, uint32_t n,
                                   uint32_t kv_head, uint32_t v, uint32_t splits)
{
	return span * a->max_parts * a->max_rows * a->heads + (kv_head * n * a->group + v) * splits;
}

/* True if a span's rows see ancestors only, so that each is computed as a span of its own. */
ATTN_INLINE bool attn_is_tree(const struct attn_args *a, const struct mx_device_span *s)
{
	return a->parents && s->parent_begin != UINT32_MAX && s->n > 1;
}

/* True if the launch computes the span. */
ATTN_INLINE bool attn_takes(const struct attn_args *a, const struct mx_device_span *s)
{
	return s->n >= a->min_n && s->n <= a->max_n && !attn_is_tree(a, s);
}

/* Returns the bytes of a tail: for each key head ATTN_TAIL keys, then as many values, as in a page
 * of so many tokens. line: bytes of a token's keys of one head. */
ATTN_INLINE size_t attn_tail_bytes(uint32_t kv_heads, uint32_t line)
{
	return (size_t)2 * kv_heads * ATTN_TAIL * line;
}

/* ---- launchers ---- */

struct attn_launch;

/* Takes products apart and normalises all heads of a row together, where the layer has that. */
cudaError_t attn_arrange(const struct attn_launch *l, const struct attn_args *a);

/* A norm of all heads of a row, of which several ranks have some: squares of the rank's q and k, to
 * be summed over the ranks, and the norm by their sums. */
struct attn_summed {
	void *qkv; /* act [n_rows, ld], which begin with n[0] elements of q and n[1] of k */
	size_t ld;
	uint32_t n_rows, n[2], all[2]; /* all: elements that the sums are of */
	const float *weight[2];
	float eps;
	float *sums; /* [n_rows, 2] */
};
cudaError_t attn_squares(const struct attn_launch *l, const struct attn_summed *a);
cudaError_t attn_scaled(const struct attn_launch *l, const struct attn_summed *a);
/* Multiplies the outputs by their gates, where the layer has some. */
cudaError_t attn_gates(const struct attn_launch *l, const struct attn_args *a);

struct attn_launch {
	cudaStream_t stream;
	int sms, sm;
	size_t smem; /* most shared memory of a thread block, in bytes */
	bool shared; /* ranks share pages: other kernels */
	enum mx_dtype act, kv;
};

/* Normalises and rotates queries and keys, and writes keys and values to their pages. Queries are
 * changed in place. */
cudaError_t attn_append(const struct attn_launch *l, const struct attn_args *a);

/* Computes the partials of spans of a->min_n .. a->max_n tokens, split over keys, or their outputs
 * if there is only one split. Call attn_merge next. bf16 activations, keys in bf16 or fp8. */
cudaError_t attn_decode(const struct attn_launch *l, const struct attn_args *a);
/* attn_append, attn_decode and attn_merge in one kernel, for a step in which every span has one
 * token or none. can: true if the layer is of the kind that the kernel supports (newest.cuh). */
#define ATTN_NEWEST_SPANS 1 /* with more, three kernels are faster */
bool attn_newest_can(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_newest(const struct attn_launch *l, const struct attn_args *a);
/* Folds the partials that attn_decode wrote. rows_a_span: most tokens of a span of this launch. */
cudaError_t attn_merge(const struct attn_launch *l, const struct attn_args *a,
                       uint32_t rows_a_span);

/* Computes the outputs with the arithmetic of attn_decode, but one unit goes through all splits of
 * its rows. Bit-equal to attn_decode and attn_merge if the shift is the same. */
cudaError_t attn_whole(const struct attn_launch *l, const struct attn_args *a);

/* Computes the partials of decoding rows, split by the ladder (spans of one token), with the
 * arithmetic of attn_prefill. Call attn_merge next. For layers that attn_prefill_can, with keys in
 * bf16. */
cudaError_t attn_rungs(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_rungs_prepare(const struct attn_launch *l, uint32_t dim, uint32_t max_spans);

/* Computes prompts on the tensor cores of compute capability 9.0a. `rows` is an upper bound for the
 * tokens of the spans of this launch. With a ladder, bit-equal to attn_rungs and attn_merge, else
 * to no other kernel. can: true if the kernel supports the layer and the device. prepare: once for
 * a head size, opts into the shared memory. */
bool attn_prefill_can(const struct attn_launch *l, uint32_t dim, uint32_t head_dim);
cudaError_t attn_prefill_prepare(uint32_t dim);
cudaError_t attn_prefill(const struct attn_launch *l, const struct attn_args *a, uint32_t rows);

/* Computes spans of any length with any types; simple: one warp for each query and head. */
cudaError_t attn_plain(const struct attn_launch *l, const struct attn_args *a);

/* Writes a span of one token to `spans` for each row of a tree, or with `all` for each of the
 * step's rows, in their order, and where it finds its keys to a->tails: the path to a row has its
 * keys where a chain would have them, in pages or, copied, in a tail. With `all` rows that pad the
 * step get spans of no tokens. Call after attn_append, with the step's own spans in `a`. */
cudaError_t attn_tree(const struct attn_launch *l, const struct attn_args *a,
                      struct mx_device_span *spans, bool all);

/* A layer's pages. */
struct attn_pages {
	unsigned char *base;
	size_t stride;
	uint32_t page_tokens, kv_heads, line;
};

/* The tokens that stay of some trees. */
struct attn_moves {
	const struct mx_device_span *spans;
	const uint32_t *pages;
	uint32_t n;
	struct mx_tree_move of[MX_TREE_MOVES];
};

/* Moves keys and values of paths to where those of chains are, in all layers [n_layers]. */
cudaError_t attn_move(const struct attn_launch *l, const struct attn_moves *moves,
                      const struct attn_pages *layers, uint32_t n_layers);

/* Called once for a head size: opts into the shared memory of attn_decode, attn_newest and
 * attn_whole.
 * cudaErrorInvalidValue if the device has too little. */
cudaError_t attn_decode_prepare(const struct attn_launch *l, uint32_t dim, uint32_t max_spans);

/* The same for ranks that share pages (decode_shared.cu, rungs_shared.cu), called by those above.
 */
cudaError_t attn_decode_shared(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_newest_shared(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_merge_shared(const struct attn_launch *l, const struct attn_args *a,
                              uint32_t rows_a_span);
cudaError_t attn_whole_shared(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_decode_prepare_shared(const struct attn_launch *l, uint32_t dim,
                                       uint32_t max_spans);
cudaError_t attn_rungs_shared(const struct attn_launch *l, const struct attn_args *a);
cudaError_t attn_rungs_prepare_shared(const struct attn_launch *l, uint32_t dim,
                                      uint32_t max_spans);

#ifdef __cplusplus
}
#endif

#endif
