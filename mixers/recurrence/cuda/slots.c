/* SPDX-License-Identifier: Apache-2.0 */
#include "mixers/recurrence/cuda/slots.h"

static unsigned char *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	const struct recur_cuda_slots *s = (const struct recur_cuda_slots *)m;
	return s->first + slot * s->stride;
}

static mx_status copy(const struct mx_mixer *m, void *to, const void *from)
{
	const struct recur_cuda_slots *s = (const struct recur_cuda_slots *)m;
	return s->device->ops->copy(s->device, to, from, s->bytes);
}

mx_status recur_cuda_slots_fork(struct mx_mixer *const *layers, uint32_t n_layers,
                                uint32_t from_slot, uint32_t to_slot)
{
	mx_status status = MX_OK;
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++)
		status = copy(layers[i], slot_of(layers[i], to_slot), slot_of(layers[i], from_slot));
	return status;
}

mx_status recur_cuda_slots_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                uint32_t pos, void *const *out)
{
	mx_status status = MX_OK;
	(void)pos;
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++)
		status = copy(layers[i], out[i], slot_of(layers[i], slot));
	return status;
}

mx_status recur_cuda_slots_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                uint32_t pos, const void *const *in)
{
	mx_status status = MX_OK;
	(void)pos;
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++)
		status = copy(layers[i], slot_of(layers[i], slot), in[i]);
	return status;
}
