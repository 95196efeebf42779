/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A causal convolution with a filter as long as the context, one position at a
 * time or many, exactly, in quasilinear time:
 *
 *     y[t] = sum over s <= t of h[t - s] z[s]          for each channel
 *
 * Flash Inference (Oncescu et al. 2024, arXiv 2410.12982) cuts the triangle of
 * pairs (t, s) into square tiles, each done when its inputs are known and before
 * its outputs are due. Here every tile stays one block away from the diagonal:
 * at each level n = LC_BLOCK, 2 LC_BLOCK, ... of the absolute position, outputs
 * of block o >= 2 take inputs of block o - 2 and, if o is odd, of block o - 3;
 * what is nearer is left to the levels below, and in the end to the window: an
 * output's own block of LC_BLOCK inputs and the one before, as they stand. (Every
 * pair is in exactly one of them: test_longconv counts.) So between the last
 * input of a tile and its first output lie n positions, and its work can be cut
 * up: a unit is one group of channels of one block's tiles, or of the largest a
 * quarter of their transforms, and the units of block o are due one after the
 * other while positions (o - 1) n .. o n - LC_MAX_DRAFT become final. The largest
 * levels come first for every output, so sums have one order.
 *
 * State. A sequence's pages have a cell for each position and channel. A cell
 * whose block of LC_BLOCK positions is finished holds z: full pages can be shared
 * by sequences with the same beginning. A cell ahead holds the sum of the tiles
 * done so far: pages must reach ahead of the position (lc_extent). The slot
 * holds the inputs of the block that was begun and of the one before, room for a
 * draft, and the sums for the block that was begun. What a draft brings stays in
 * the slot until it is final; no tile sees it.
 *
 * After load or fork, resume rebuilds the sums ahead from the inputs in the pages:
 * at most two blocks a level, three tiles.
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
	uint32_t max_len;   /* lags of the filter, and the longest sequence; to 2^26 */
	uint32_t max_draft; /* <= LC_MAX_DRAFT */
	unsigned threads;   /* the device's */
};

/* Where the engine keeps the state of a layer (struct mx_mixer_init). */
struct lc_memory {
	unsigned char *page_base, *slot_base; /* slot_base: this part of the first slot */
	size_t page_stride, slot_stride;
	uint32_t page_tokens; /* a multiple of LC_BLOCK */
};

size_t lc_bytes_per_token(const struct lc_spec *s);
size_t lc_slot_bytes(const struct lc_spec *s); /* multiples of 64, as those below */
size_t lc_snapshot_bytes(const struct lc_spec *s);
size_t lc_scratch_bytes(const struct lc_spec *s);  /* of each of forward, settle and resume */
size_t lc_instance_bytes(const struct lc_spec *s); /* what create keeps, at most, about */
size_t lc_create_bytes(const struct lc_spec *s);   /* what it needs besides and gives back */

/* A sequence whose first n positions are final, or are about to be computed, needs pages for
 * positions < *out_end, and none any more for those < *out_first. n <= max_len, which is the
 * sequence's own. */
void lc_extent(uint32_t n, uint32_t max_len, uint32_t *out_first, uint32_t *out_end);

struct lc;

/* One layer. h[max_len, channels] is read during the call only; a factor on the input itself (the
 * skip of Hyena's D) belongs into h[0]. `direct` is the largest tile side done without a transform,
 * 0 = lc_crossing decides. `phase` moves the layer's units against those of others: its number. */
mx_status lc_create(const struct lc_spec *s, struct mx_device *d, const struct lc_memory *memory,
                    const float *h, uint32_t direct, uint32_t phase, struct lc **out);
void lc_destroy(struct lc *c); /* takes NULL */

/* The largest side at which a tile as it stands is faster than by transforms, measured on this
 * machine at the first call in the process and kept in a file (crossing.c says where); *out_kept,
 * unless it is NULL: whether it is in the file, for the next process to give the same bits. */
uint32_t lc_crossing(const struct lc_kernels *k, bool *out_kept);

/* y[n_rows, channels] from z[n_rows, channels] for all rows of the step. */
mx_status lc_forward(struct lc *c, const struct mx_step *step, const float *z, size_t ldz, float *y,
                     size_t ldy);

/* mx_mixer_ops.settle for some layers of one device: the units that are due, of one sequence after
 * the other; level by level for all of them is no faster (bench/NOTES.md). scratch: as much as the
 * layer that wants most of lc_scratch_bytes. */
void lc_settle(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step,
               const struct mx_kept *kept, void *scratch);

/* mx_mixer_ops.resume for some layers of one device: rebuilds, from the inputs in the pages, the
 * sums ahead that load and fork leave out. */
void lc_resume(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step);

/* mx_mixer_ops.save, load and fork for this part of a slot. After load and fork lc_resume must come
 * before the sequence's next forward. */
void lc_save(const struct lc *c, uint32_t slot, uint32_t pos, void *out);
void lc_load(struct lc *c, uint32_t slot, uint32_t pos, const void *in);
void lc_fork(struct lc *c, uint32_t from_slot, uint32_t to_slot);

#endif
