/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A causal convolution with a filter as long as the context, one position at a
 * time or many, exactly, in quasilinear time:
 *
 *     y[t] = sum over s <= t of h[t - s] z[s]          for each channel
 *
 * Flash Inference (Oncescu et al. 2024, arXiv 2410.12982) cuts the triangle of
 * pairs (t, s) into square tiles; each is computed when its inputs are known and
 * before its outputs are needed. Here every tile keeps one block away from the
 * diagonal: at each level n = LC_BLOCK, 2 LC_BLOCK, ... of the absolute position,
 * outputs of block o >= 2 take inputs of block o - 2 and, if o is odd, of block
 * o - 3. Nearer pairs belong to the levels below, and the nearest to the window:
 * an output's own block of LC_BLOCK inputs and the one before, summed directly.
 * (Every pair is in exactly one tile or window: test_longconv counts.)
 *
 * So n positions lie between the last input of a tile and its first output, and
 * its work can be spread over them. A unit is the tiles of one block for one group
 * of channels; of the largest sides a quarter of their transforms. The units of
 * block o become due one after the other while positions (o - 1) n .. o n -
 * LC_MAX_DRAFT become final. For every output the largest levels come first, so
 * its sum has one order.
 *
 * State. A sequence's pages have a cell for each position and channel. The cells
 * of a finished block of LC_BLOCK positions hold z: full pages can be shared by
 * sequences with the same prefix. A cell ahead of the position holds the sum of
 * the tiles computed so far: pages must reach ahead (lc_extent). The slot holds
 * the inputs of the current block (that of the next position) and of the one
 * before, room for a draft, and the sums of tiles for the current block. Inputs of
 * a draft remain in the slot until they are final; no tile reads them before.
 *
 * After load or fork, resume rebuilds the sums ahead from the inputs in the pages:
 * at most two blocks a level, three tiles; a few units a call.
 *
 * Threads: as mixers/mixer.h.
 */
#ifndef MX_MIXERS_HYENA_LONGCONV_H
#define MX_MIXERS_HYENA_LONGCONV_H

#include "mixers/hyena/kernels.h"
#include "mixers/mixer.h"

#define LC_MAX_DRAFT (LC_BLOCK / 2)

struct lc_spec {
	uint32_t channels;
	uint32_t max_len;   /* the longest sequence, at most 2^26 */
	uint32_t max_draft; /* <= LC_MAX_DRAFT */
	unsigned threads;   /* of the device */
	/* Lags that the filter has past max_len, as far as lc_more_lags tells. No output needs them,
	 * but the transforms of the largest tiles include them, and so the last bits of outputs. */
	uint32_t more_lags;
};

/* Returns the number of lags past max_len that tiles include, of a filter that has `len`. With
 * these the bits of a position depend on the whole filter, and not on max_len. */
uint32_t lc_more_lags(uint32_t max_len, uint32_t len);

/* Where the engine keeps the state of a layer (struct mx_mixer_init). */
struct lc_memory {
	unsigned char *page_base, *slot_base; /* slot_base: the convolution's part of slot 0 */
	size_t page_stride, slot_stride;
	uint32_t page_tokens; /* a multiple of LC_BLOCK */
};

/* Sizes in bytes, multiples of 64. */
size_t lc_bytes_per_token(const struct lc_spec *s);
size_t lc_slot_bytes(const struct lc_spec *s);
size_t lc_snapshot_bytes(const struct lc_spec *s);
size_t lc_scratch_bytes(const struct lc_spec *s);  /* workspace of forward, settle or resume */
size_t lc_instance_bytes(const struct lc_spec *s); /* upper estimate of what lc_create keeps */
size_t lc_create_bytes(const struct lc_spec *s);   /* what lc_create allocates besides and frees */

/* Tells which pages a sequence needs when its first n positions are final or about to be computed:
 * those of positions *out_first .. *out_end - 1. n <= max_len, the sequence's longest. */
void lc_extent(uint32_t n, uint32_t max_len, uint32_t *out_first, uint32_t *out_end);

struct lc;

/* Creates the convolution of one layer. h[max_len + more_lags, channels], in host memory, is read
 * during the call only; a factor on the input itself (Hyena's skip D) belongs into h[0]. `direct`
 * is the largest side of tiles that are computed without transforms; 0 = lc_crossing decides.
 * `phase`, the layer's number, shifts when its units are due against those of other layers. */
mx_status lc_create(const struct lc_spec *s, struct mx_device *d, const struct lc_memory *memory,
                    const float *h, uint32_t direct, uint32_t phase, struct lc **out);
void lc_destroy(struct lc *c); /* takes NULL */

/* Returns the largest side at which a tile is faster directly than by transforms. It is measured at
 * the first call in the process and stored in a cache file (see crossing.c). *out_cached, unless
 * NULL: true if it is in the file, so that the next process gives the same bits. */
uint32_t lc_crossing(const struct lc_kernels *k, bool *out_cached);

/* Computes y[n_rows, channels] from z[n_rows, channels] for all rows of the step. */
mx_status lc_forward(struct lc *c, const struct mx_step *step, const float *z, size_t ldz, float *y,
                     size_t ldy);

/* mx_mixer_ops.settle for some layers of one device: runs the units that are due, one sequence
 * after the other; running them level by level for all sequences is no faster (bench/NOTES.md).
 * scratch: the largest lc_scratch_bytes of the layers. */
void lc_settle(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step,
               const struct mx_kept *kept, void *scratch);

/* mx_mixer_ops.resume for n_layers >= 1 layers of one device: rebuilds, from the inputs in the
 * pages, the sums ahead that load and fork leave out. A call does a part of it: for some groups of
 * some layers of one sequence, one or a few units each, about as much as one group's largest unit
 * that settle runs in a step. The bits do not depend on what runs in between. */
void lc_resume(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step,
               uint32_t *progress);

/* mx_mixer_ops.save, load and fork for this part of a slot. After load or fork, lc_resume must be
 * called before the sequence's next forward. */
void lc_save(const struct lc *c, uint32_t slot, uint32_t pos, void *out);
void lc_load(struct lc *c, uint32_t slot, uint32_t pos, const void *in);
void lc_fork(struct lc *c, uint32_t from_slot, uint32_t to_slot);

#endif
