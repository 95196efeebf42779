/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a mixer whose snapshot is a copy of its slot, byte for byte, in device memory.
 *
 * struct mx_mixer of such a mixer begins with struct recur_cuda_slots; then fork, save and load of
 * its table are those below.
 *
 * Threads: as mixers/mixer.h.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_SLOTS_H
#define MX_MIXERS_RECURRENCE_CUDA_SLOTS_H

#include "mixers/mixer.h"

/* What the functions below know of a mixer: the first member of its struct mx_mixer. */
struct recur_cuda_slots {
	struct mx_mixer_base base;
	struct mx_device *device;
	unsigned char *first; /* mx_mixer_init.slot_base */
	size_t stride;        /* bytes, mx_mixer_init.slot_stride */
	size_t bytes;         /* of a slot and of a snapshot */
};

/* What `create` of a mixer with the table ops puts there; bytes of a slot. */
static inline struct recur_cuda_slots
recur_cuda_slots(const struct mx_mixer_ops *ops, const struct mx_mixer_init *init, size_t bytes)
{
	return (struct recur_cuda_slots){
		.base = {ops, init->layer->index},
		.device = init->device,
		.first = init->slot_base,
		.stride = init->slot_stride,
		.bytes = bytes,
	};
}

/* mx_mixer_ops.fork, save and load. */
mx_status recur_cuda_slots_fork(struct mx_mixer *const *layers, uint32_t n_layers,
                                uint32_t from_slot, uint32_t to_slot);
mx_status recur_cuda_slots_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                uint32_t pos, void *const *out);
mx_status recur_cuda_slots_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                uint32_t pos, const void *const *in);

#endif
