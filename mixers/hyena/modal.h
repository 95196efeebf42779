/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modal filter of StripedHyena (Poli et al. 2023): a sum of exponentials,
 *
 *     h[t] = Re sum over s of R_s lambda_s^t                for each channel
 *
 * and so a recurrence with state_size complex states a channel:
 *
 *     S_s <- lambda_s S_s + z,    y = Re sum over s of R_s S_s + D z
 *
 * Tokens are computed one after the other, however they are divided into spans.
 * The slot holds the states up to a position and, in a ring, the inputs after it:
 * those of a draft and of the token before the draft, because a sequence may be
 * loaded one token before its end. The position of the next span tells which of
 * these inputs were kept; forward replays them.
 */
#ifndef MX_MIXERS_HYENA_MODAL_H
#define MX_MIXERS_HYENA_MODAL_H

#include "mixers/mixer.h"

#define MODAL_MAX_STATE 64

struct modal_spec {
	uint32_t channels, state_size; /* state_size <= MODAL_MAX_STATE */
	uint32_t max_draft;
};

/* Bytes, multiples of 64. A slot that is all zero is an empty state. */
size_t modal_slot_bytes(const struct modal_spec *s);
size_t modal_snapshot_bytes(const struct modal_spec *s);
size_t modal_instance_bytes(const struct modal_spec *s); /* what create allocates */

struct modal;

/* Creates a filter. poles and residues [channels, state_size, 2], real parts first, and d
 * [channels] are in host memory and read during the call only. MX_E_NOMEM. */
mx_status modal_create(const struct modal_spec *s, const float *poles, const float *residues,
                       const float *d, struct modal **out);
void modal_destroy(struct modal *m); /* takes NULL */

/* Computes y[n_rows, channels] from z[n_rows, channels] for all rows of the step. The slot of span
 * i is at slot_base + spans[i].slot * slot_stride, aligned to 64. */
void modal_forward(const struct modal *m, struct mx_device *d, const struct mx_step *step,
                   unsigned char *slot_base, size_t slot_stride, const float *z, size_t ldz,
                   float *y, size_t ldy);

/* mx_mixer_ops.save and load for this part of a slot. */
void modal_save(const struct modal *m, const void *slot, uint32_t pos, void *out);
void modal_load(const struct modal *m, void *slot, const void *in);

#endif
