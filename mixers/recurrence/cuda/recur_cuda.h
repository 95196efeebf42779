/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of recurrent layers on CUDA devices, and their arguments. README.md has the maths of
 * a step and the layout of a slot. Included by C and CUDA C++.
 *
 * Element types: "act" is the device's activation type, bf16 or f32.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_RECUR_CUDA_H
#define MX_MIXERS_RECURRENCE_CUDA_RECUR_CUDA_H

#include <cuda_runtime_api.h>

#include "mixers/recurrence/layer.h"
#include "mixers/tree.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RECUR_LONG     32  /* tokens of a span from which on it is long */
#define RECUR_FEW      9   /* most tokens of a span that recur_cuda_few computes */
#define RECUR_STRETCH  64  /* tokens of a stretch, see stretch.h */
#define RECUR_PIECES   512 /* most pieces of a span, over all thread blocks, see stretch.cuh */
#define RECUR_TAPS     8   /* most taps of a convolution */
#define RECUR_UNIT     128 /* most columns of a unit */
#define RECUR_CHANNELS 128 /* channels of a unit of MX_RECUR_CHANNEL */
#define RECUR_MAX_KEYS 256 /* most elements of a key */
#define RECUR_MAX_HEAD 256 /* most elements of a head of q and k as projected */

#define RECUR_PIECE_BYTES (33 * 1024)

/* What differs between steps, and what does not but is used by all kernels. */
struct recur_step {
	const struct mx_device_span *spans;
	const uint32_t *row_span, *pos, *parents; /* parents NULL = there are no trees */
	uint32_t n_rows, n_spans;
	unsigned char *slot_base; /* of this layer */
	size_t slot_stride;
};

/* Where a stream's elements are in a row of a product, and what happens to them first: element i of
 * head h is at off + h / per * stride + h % per * dim + i. */
struct recur_source {
	uint32_t heads, dim; /* n = heads * dim; 0 heads = the layer has no such stream */
	uint32_t off, per, stride;
	bool gates; /* the product is `gates`, in f32; else `proj` */
	bool conv, silu;
	uint32_t channel;           /* first of the convolution's channels */
	const float *bias;          /* [n] added to it; NULL = none */
	const float *w, *conv_bias; /* [n, taps], [n] or NULL */
};

/* The convolutions' part of a slot: raw inputs, act [cap][channels], that of position p at p % cap.
 */
struct recur_conv {
	uint32_t taps, channels, cap;
	size_t at; /* offset in a slot, in bytes */
};

/* Streams to what the recurrence takes. */
struct recur_rows {
	struct recur_step step;
	struct recur_source source[MX_RECUR_STREAMS];
	struct recur_conv conv;
	const void *proj, *gates; /* [n_rows, ld_proj] act, [n_rows, ld_gates] f32 */
	size_t ld_proj, ld_gates;
	/* The second pass of feature maps with trained products: q and k are read from these products,
	 * act [n_rows * heads, k_dim], and nothing else is done; first: q and k are written without
	 * their map, act [n_rows, heads * k_dim]. */
	const void *layers[2][2];
	void *plain[2];
	bool first, second;
	enum mx_recur_feature feature;
	uint32_t features;             /* elements of a head after the map */
	enum mx_recur_qk_norm norm[2]; /* of q, of k */
	float scale[2];
	const float *inv_freq; /* NULL = no rope */
	enum mx_recur_decay_map decay;
	const float *pre, *mul, *add;
	float decay_min;
	enum mx_recur_beta_map beta;
	float beta_scale, step_min, step_max;
	bool k_is_rest, v_times_rest, vector, channel;
	bool one; /* v has a 1 behind its elements */
	/* The results. Heads are padded with zeros to kpad and vpad elements. recur_cuda_heads leaves
	 * k or v if it is NULL. */
	void *q, *k, *v; /* act [n_rows, heads * kpad], .. vpad */
	float *a;        /* [n_rows, a_heads], [n_rows, a_heads * kpad] or, by channel, as v */
	float *b;        /* [n_rows, heads] */
	uint32_t kpad, vpad;
};

/* The layout of a unit: the state that one thread block reads and writes, RECUR_UNIT columns of a
 * head or fewer. Offsets in bytes from its beginning, where the border is. */
struct recur_unit {
	uint32_t per_head;            /* units of a head; of recur_cuda_scan: all units */
	uint32_t cols;                /* columns of a unit, a multiple of 16 */
	uint32_t cap;                 /* tokens of a ring */
	size_t S, low, k, x, a, b, t; /* low: of bf16, the low halves of S (halves.cuh) */
	size_t bytes;
};

/* The recurrence. */
struct recur_core {
	struct recur_step step;
	struct recur_conv conv;
	struct recur_source source[MX_RECUR_STREAMS]; /* for the inputs of convolutions that are kept */
	const void *proj;
	size_t ld_proj;
	struct recur_unit unit;
	uint32_t heads, q_heads, k_heads, v_heads, a_heads;
	/* 2^32 over the heads that share one of q, k, v, a, and over the units of a head, rounded up:
	 * multiplied by a head's or unit's number, below 2^16, it gives the quotient in the high half
	 */
	uint64_t per_q, per_k, per_v, per_a, per_unit;
	uint32_t keep_channels;     /* of convolutions, whose inputs a block keeps */
	uint32_t kpad, vpad, v_dim; /* v_dim: columns of y */
	bool delta, gain, vector, decays;
	const void *q, *k, *v; /* as recur_rows writes them */
	/* Of recur_cuda_stretch: elements from a row of k or v to the next, if they lie elsewhere than
	 * recur_rows writes them; 0 = k_heads * kpad, v_heads * vpad. */
	uint32_t ld_k, ld_v;
	const float *a, *b;   /* likewise; NULL: fixed_a, 1 */
	const float *fixed_a; /* [heads] or NULL */
	float fixed_b;        /* beta of the delta rule without a stream */
	const float *skip;    /* [heads] or NULL */
	float *y;             /* [n_rows, heads * v_dim] */
	/* recur_cuda_stretch writes outputs in bf16, each row to the first half of its place. */
	bool y_half;
	/* bf16: spans of up to `few` tokens but trees are left to recur_cuda_step (1) or
	 * recur_cuda_few, long ones that stay to recur_cuda_prompt. f32, and long recorded drafts:
	 * recur_cuda_chunks computes all. */
	bool all;
	uint32_t few;
	void *records;         /* of recur_cuda_prompt: n_records * heads of recur_cuda_record_bytes */
	uint32_t n_records;    /* n_rows / 16 + n_spans * extra_chunks + 1 */
	size_t note_bytes;     /* of recur_cuda_stretch: recur_cuda_note_bytes */
	uint32_t n_notes;      /* of recur_cuda_stretch: n_rows / 64 + n_spans * extra_chunks + 1 */
	uint32_t extra_chunks; /* chunks of a span beyond the sixteenth part of its rows */
	uint32_t n_long;       /* of recur_cuda_stretch: long spans of the step */
	void *pieces;          /* likewise, without the delta rule: n_pieces of RECUR_PIECE_BYTES */
	uint32_t n_pieces;     /* RECUR_PIECES, or 0: spans are not cut into segments */
};

/* The norm and the gate of outputs. */
struct recur_out {
	uint32_t n_rows;
	struct mx_recur_norm norm; /* with its pointers */
	bool has_norm;
	const float *y; /* [n_rows, ldy]; heads of head_dim elements, head_ld apart */
	size_t ldy;
	uint32_t heads, head_dim, head_ld;
	bool divide; /* by the element behind the head's */
	/* Not NULL: other kernels compute the rows of spans of up to `few` tokens. */
	const struct mx_device_span *spans;
	const uint32_t *row_span;
	uint32_t few;
	bool trees; /* spans may have parents; other kernels leave those to this one */
	/* recur_core.y_half, if recur_cuda_out_of_128: of which spans, NULL = all. */
	bool half;
	const struct mx_device_span *half_spans;
	const void *gate; /* act [n_rows, ld_gate], placed as `source` says */
	size_t ld_gate;
	struct recur_source source;
	float gate_scale;
	uint32_t by_turns; /* struct mx_recur_layer; then each head is a group of the norm */
	void *out;         /* act [n_rows, heads * head_dim] */
};

/* A norm of which the rank has a part of one group, recur_out.norm.dim elements of `dim`. */
struct recur_share {
	float *sums; /* [n_rows, groups] of squares */
	uint32_t group, groups, dim;
};

/* A step of spans of one token, or of few. fused: q, k, v, a and b are computed from the products
 * on the way, as recur_cuda_heads would, else `core` has them. finish: what recur_cuda_out does to
 * core.y is done at once, and y is not written. */
struct recur_one {
	struct recur_core core;
	struct recur_rows rows;
	struct recur_out out;
	bool fused, finish;
};

/* Launches: act is MX_BF16 or MX_F32. heads: rows, if it can. step, few: bf16; with
 * what step can. few: of spans whose tokens are no more than recur_conv.cap - taps + 1. */
bool recur_cuda_heads_can(const struct recur_rows *a);
bool recur_cuda_step_can_fuse(const struct recur_one *a);
bool recur_cuda_step_can_finish(const struct recur_one *a);
bool recur_cuda_out_of_128(const struct recur_out *a); /* heads of 128 in order, aligned */
cudaError_t recur_cuda_heads(cudaStream_t stream, enum mx_dtype act, const struct recur_rows *a);
cudaError_t recur_cuda_rows(cudaStream_t stream, enum mx_dtype act, const struct recur_rows *a);
cudaError_t recur_cuda_chunks(cudaStream_t stream, enum mx_dtype act, const struct recur_core *a);
cudaError_t recur_cuda_step(cudaStream_t stream, const struct recur_one *a);
cudaError_t recur_cuda_few(cudaStream_t stream, const struct recur_one *a);

/* recur_cuda_step for heads of 64 columns that share keys and queries two and two, in so many
 * sequences that this is faster: the same bits. recur_cuda_step chooses it, and prepares it for a
 * size of keys. */
bool recur_cuda_pair_can(const struct recur_one *a);
cudaError_t recur_cuda_pair(cudaStream_t stream, const struct recur_one *a);
cudaError_t recur_cuda_pair_prepare(uint32_t kpad);
cudaError_t recur_cuda_prompt(cudaStream_t stream, const struct recur_core *a);
cudaError_t recur_cuda_scan(cudaStream_t stream, enum mx_dtype act, const struct recur_core *a);
cudaError_t recur_cuda_out(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a);

/* recur_cuda_out of a norm that ranks share, in two: squares of the rank's part, to be summed over
 * the ranks, and what follows of their sums. */
cudaError_t recur_cuda_squares(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a,
                               const struct recur_share *s);
cudaError_t recur_cuda_scaled(cudaStream_t stream, enum mx_dtype act, const struct recur_out *a,
                              const struct recur_share *s);

/* What a layer keeps of tokens in a slot: rings of `cap` entries in each of `units` units, and the
 * inputs of convolutions. */
struct recur_rings {
	unsigned char *slot_base;
	size_t slot_stride, unit_bytes, at[5], conv_at; /* at: of a ring in a unit */
	uint32_t units, cap, bytes[5];                  /* bytes: of an entry; 0 = no such ring */
	uint32_t conv_cap, conv_bytes;
};

/* The tokens that stay of some trees. */
struct recur_moves {
	const struct mx_device_span *spans;
	uint32_t n;
	struct mx_tree_move of[MX_TREE_MOVES];
};

/* Moves what the paths left to where chains leave it, in all layers [n_layers]. */
cudaError_t recur_cuda_move(cudaStream_t stream, const struct recur_moves *moves,
                            const struct recur_rings *layers, uint32_t n_layers);

/* room, here and below: most shared memory of a thread block, in bytes. Returns the most columns of
 * a unit with which recur_cuda_step fits: RECUR_UNIT, or a half or quarter where keys are long. */
uint32_t recur_cuda_step_cols(uint32_t kpad, bool vector, size_t room);

/* Returns the shared memory of a thread block of recur_cuda_chunks, the only kernel that may not
 * fit: in f32, with keys padded to 256 and a factor for each. */
size_t recur_cuda_chunks_bytes(enum mx_dtype act, uint32_t kpad, bool vector);

/* True if a thread block of recur_cuda_few has room for units of so many columns. */
bool recur_cuda_few_can(uint32_t kpad, bool vector, size_t room);

/* Opt the kernels into their shared memory; once for a size of keys and kind of factors. */
cudaError_t recur_cuda_chunks_prepare(enum mx_dtype act, uint32_t kpad, bool vector);
cudaError_t recur_cuda_step_prepare(uint32_t kpad, bool vector, size_t room);
cudaError_t recur_cuda_few_prepare(uint32_t kpad, bool vector, size_t room);
cudaError_t recur_cuda_prompt_prepare(uint32_t kpad);

/* Bytes of what recur_cuda_prompt notes of a chunk of a head. */
size_t recur_cuda_record_bytes(uint32_t kpad, bool vector);

/* Fill the layout of a unit: of recur_cuda_chunks, and of recur_cuda_scan. */
void recur_cuda_unit(const struct mx_recur_spec *s, uint32_t kpad, size_t act_size, size_t room,
                     struct recur_unit *out);
void recur_cuda_scan_unit(const struct mx_recur_spec *s, size_t act_size, struct recur_unit *out);

#ifdef __cplusplus
}
#endif

#endif
