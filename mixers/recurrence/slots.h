/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a mixer whose state is parts of mixers/recurrence, one behind the
 * other: a recurrence or a scan, then its convolutions. A snapshot has the same
 * parts in the same order.
 *
 * struct mx_mixer of such a mixer begins with struct mx_recur_mixer; then commit,
 * fork, save and load of its table are those below.
 *
 * Threads: as mixers/mixer.h.
 */
#ifndef MX_MIXERS_RECURRENCE_SLOTS_H
#define MX_MIXERS_RECURRENCE_SLOTS_H

#include "mixers/recurrence/recurrence.h"

#define MX_RECUR_PARTS 8

/* A part: exactly one of the pointers is set. What it points to lives as long as the part. */
struct mx_recur_part {
	const struct mx_recur_spec *recur;
	const struct mx_select_spec *scan;
	const struct mx_conv_spec *conv;
};

struct mx_recur_slots {
	struct mx_recur_part parts[MX_RECUR_PARTS]; /* the rest of them is empty */
	unsigned char *base;                        /* mx_mixer_init.slot_base */
	size_t stride;                              /* bytes, mx_mixer_init.slot_stride */
};

/* What the functions below know of a mixer: the first member of its struct mx_mixer. */
struct mx_recur_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	struct mx_recur_slots slots;
};

/* Bytes of a slot and of a snapshot with these parts, multiples of 64. */
size_t mx_recur_slots_bytes(const struct mx_recur_slots *s);
size_t mx_recur_slots_snapshot_bytes(const struct mx_recur_slots *s);

/* Returns the first byte of part i of slot 0; that of the next slot is s->stride bytes further. */
unsigned char *mx_recur_slots_part(const struct mx_recur_slots *s, unsigned i);

/* mx_mixer_ops.commit, fork, save and load. */
mx_status mx_recur_slots_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                                const struct mx_step *step, const struct mx_kept *kept);
mx_status mx_recur_slots_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                              uint32_t to_slot);
mx_status mx_recur_slots_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                              uint32_t pos, void *const *out);
mx_status mx_recur_slots_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                              uint32_t pos, const void *const *in);

#endif
