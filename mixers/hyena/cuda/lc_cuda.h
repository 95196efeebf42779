/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long convolutions on CUDA devices: the memory that kernels share, and their launchers. For C and
 * CUDA C++.
 *
 * Cells and units are those of ../longconv.h: a cell holds the sum of the tiles computed so far,
 * and from the moment its position is final the input z. Pages are [channels][page_tokens] f32, so
 * that a tile of a channel reads whole lines. The convolution's part of a slot, in floats:
 *
 *     LCG_HEAD        struct lcg_head
 *     [channels]      sums of position head.finished - 1, whose cell may be another sequence's
 *     [LCG_RING][channels]    z of position p at p % LCG_RING: what the window reads, and drafts
 *     [LCG_AHEAD][channels]   sums of position head.ahead without its own input: of the window in
 *                             four parts (rows.cuh), of the tiles
 */
#ifndef MX_MIXERS_HYENA_CUDA_LC_CUDA_H
#define MX_MIXERS_HYENA_CUDA_LC_CUDA_H

#include <cuda_runtime_api.h>

#include "mixers/hyena/cuda/due.h"
#include "mixers/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LCG_BLOCK   (1u << LCG_LOG2_BLOCK)
#define LCG_HEAD    64u
#define LCG_RING    96u
#define LCG_AHEAD   5u
#define LCG_SPANS   480u /* spans of one launch */
#define LCG_THREADS 256

/* First cell that may be written, a multiple of LCG_BLOCK; those before hold inputs, in pages that
 * may be shared. After a load it may be the position after the next. */
struct lcg_head {
	uint32_t finished;
	uint32_t ahead; /* 0 = none */
};

/* What the layers of a model have in common. */
struct lcg_shape {
	uint32_t channels, period;        /* period: lcg_period(channels) */
	uint32_t page_tokens, page_magic; /* page_magic: 2^32 / page_tokens, rounded up */
	uint32_t max_len, n_levels;
	uint32_t taps, cap; /* of the short convolution; rows of its ring */
	size_t page_stride, slot_stride;
	size_t conv_offset; /* bytes from a slot's beginning to the short convolution's ring */
};

/* A layer. All pointers are to the device's memory. */
struct lcg_layer {
	unsigned char *page_base, *slot_base;
	const float *conv_weight, *conv_bias; /* [3 channels, taps], [3 channels] */
	const float *window;                  /* [2 LCG_BLOCK][channels] by lag */
	/* By level: [distances][channels][parts][8][side / parts / 16] pairs
	 * of complex numbers, in the order in which a thread block holds them. */
	const float *spectra[LCG_MAX_LEVELS];
	/* The same for distances 0 and 1 and blocks of LCG_POINTS (whole.cu); NULL: not used. */
	const float *near;
	uint32_t phase;
};

/* A step as the kernels read it. */
struct lcg_step {
	const struct mx_device_span *spans;
	const uint32_t *pages;
};

/* Some spans of a step: n numbers, and a count of tokens for each. */
struct lcg_spans {
	uint32_t n;
	uint16_t index[LCG_SPANS];
	uint8_t tokens[LCG_SPANS];
};

/* ---- step.cu ---- */

/* Rows of a layer between its projections. */
struct lcg_rows {
	const float *u; /* [n_rows, 3 channels] x0, x1, v before the short filter */
	void *out;      /* [n_rows, channels] activations: x0 y */
	enum mx_dtype act;
};

/* Computes the rows of decode and draft spans of a layer. n_spans: of the step; longest: tokens of
 * the longest of these spans. */
cudaError_t lcg_rows_step(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layer, const struct lcg_step *step,
                          uint32_t n_spans, const struct lcg_rows *rows);
/* Sums up the window of the position after the first tokens[i] tokens of each span, all but its own
 * input, so that forward finds it ready. */
cudaError_t lcg_look_ahead(cudaStream_t stream, const struct lcg_shape *shape,
                           const struct lcg_layer *layers, uint32_t n_layers,
                           const struct lcg_step *step, const struct lcg_spans *which);
/* Copies the inputs of the first tokens[i] tokens of draft spans from the ring to the cells. */
cudaError_t lcg_keep(cudaStream_t stream, const struct lcg_shape *shape,
                     const struct lcg_layer *layers, uint32_t n_layers, const struct lcg_step *step,
                     const struct lcg_spans *which);

/* ---- settle.cu ---- */

/* Runs the units that become due at token number `token` of each of the spans that keep more.
 * blocks: thread blocks that fit on the device at once. */
cudaError_t lcg_run_due(cudaStream_t stream, const struct lcg_shape *shape,
                        const struct lcg_layer *layers, uint32_t n_layers,
                        const struct lcg_step *step, const struct lcg_spans *which, uint32_t token,
                        uint32_t blocks);
/* Runs a stage of a level for whole ranges of positions. Outputs within the spans go to
 * sums[channels][ld] (column: the row of the step), but for LCG_RESUME. most: the most units of a
 * span. */
struct lcg_sums {
	float *sums;
	size_t ld;
};
cudaError_t lcg_run_range(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layers, uint32_t n_layers,
                          const struct lcg_step *step, const struct lcg_spans *which,
                          uint32_t level, enum lcg_stage stage, const struct lcg_sums *sums,
                          uint32_t most);
/* Writes the spectra of a side's distances first .. first + distances - 1 from h[n_lags, channels].
 */
cudaError_t lcg_spectra(cudaStream_t stream, uint32_t channels, uint32_t log2_n, uint32_t first,
                        uint32_t distances, const float *h, uint32_t n_lags, float *spectra);
/* Lets the kernels have their shared memory; *out_blocks: for lcg_run_due. */
cudaError_t lcg_prepare(int sms, uint32_t *out_blocks);

/* ---- prompt.cu ---- */

/* Rows of prompts, and their sums of tiles. */
struct lcg_prompt {
	const struct lcg_rows *rows;
	struct lcg_sums sums;
	bool whole; /* whole blocks are computed by lcg_run_whole */
};

/* Short filters and inner gate: inputs go to the spans' cells and slots, and the sums that were in
 * the cells to p->sums. */
cudaError_t lcg_prompt_enter(cudaStream_t stream, const struct lcg_shape *shape,
                             const struct lcg_layer *layer, const struct lcg_step *step,
                             const struct lcg_spans *which, uint32_t longest,
                             const struct lcg_prompt *p);
/* Adds the window where it is missing, gates, and keeps the last rows for the short filter. */
cudaError_t lcg_prompt_finish(cudaStream_t stream, const struct lcg_shape *shape,
                              const struct lcg_layer *layer, const struct lcg_step *step,
                              const struct lcg_spans *which, uint32_t longest,
                              const struct lcg_prompt *p);

/* ---- whole.cu ---- */

/* Shared memory that a thread block must have, in bytes, at most. */
#define LCG_WHOLE_BYTES (104 * 1024)

/* Adds to the sums of the spans' whole blocks what their window and their tiles of sides up to
 * LCG_POINTS would add, in another order; those of that side are left out in a span's first whole
 * block. blocks: thread blocks that fit on the device at once. */
cudaError_t lcg_run_whole(cudaStream_t stream, const struct lcg_shape *shape,
                          const struct lcg_layer *layer, const struct lcg_step *step,
                          const struct lcg_spans *which, const struct lcg_sums *sums,
                          uint32_t blocks);

/* ---- slots.cu ---- */

/* For spans that go on after a load: copies inputs from the cells to the rings. */
cudaError_t lcg_refill(cudaStream_t stream, const struct lcg_shape *shape,
                       const struct lcg_layer *layers, uint32_t n_layers,
                       const struct lcg_step *step, const struct lcg_spans *which);
/* Writes and reads snapshots of a layer: struct lcg_head, then the short convolution's ring. */
cudaError_t lcg_save(cudaStream_t stream, const struct lcg_shape *shape, const unsigned char *slot,
                     uint32_t pos, void *out);
cudaError_t lcg_load(cudaStream_t stream, const struct lcg_shape *shape, unsigned char *slot,
                     const void *in);
/* Copies the short convolution's ring alone. */
cudaError_t lcg_copy_ring(cudaStream_t stream, const struct lcg_shape *shape, void *to,
                          const void *from);

#ifdef __cplusplus
}
#endif

#endif
