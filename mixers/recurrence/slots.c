/* SPDX-License-Identifier: Apache-2.0 */
#include "mixers/recurrence/slots.h"

#include <string.h>

static size_t slot_bytes(const struct mx_recur_part *p)
{
	return p->recur  ? mx_recur_slot_bytes(p->recur)
	       : p->scan ? mx_select_slot_bytes(p->scan)
	       : p->conv ? mx_conv_slot_bytes(p->conv)
	                 : 0;
}

static size_t snapshot_bytes(const struct mx_recur_part *p)
{
	return p->recur  ? mx_recur_snapshot_bytes(p->recur)
	       : p->scan ? mx_select_snapshot_bytes(p->scan)
	       : p->conv ? mx_conv_snapshot_bytes(p->conv)
	                 : 0;
}

size_t mx_recur_slots_bytes(const struct mx_recur_slots *s)
{
	size_t n = 0;
	for (unsigned i = 0; i < MX_RECUR_PARTS; i++)
		n += slot_bytes(&s->parts[i]);
	return n;
}

size_t mx_recur_slots_snapshot_bytes(const struct mx_recur_slots *s)
{
	size_t n = 0;
	for (unsigned i = 0; i < MX_RECUR_PARTS; i++)
		n += snapshot_bytes(&s->parts[i]);
	return n;
}

unsigned char *mx_recur_slots_part(const struct mx_recur_slots *s, unsigned i)
{
	unsigned char *at = s->base;
	for (unsigned j = 0; j < i; j++)
		at += slot_bytes(&s->parts[j]);
	return at;
}

static const struct mx_recur_mixer *recur_mixer(const struct mx_mixer *m)
{
	return (const struct mx_recur_mixer *)m;
}

static unsigned char *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	const struct mx_recur_slots *s = &recur_mixer(m)->slots;
	return s->base + slot * s->stride;
}

mx_status mx_recur_slots_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                              uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(slot_of(layers[i], to_slot), slot_of(layers[i], from_slot),
		       mx_recur_slots_bytes(&recur_mixer(layers[i])->slots));
	return MX_OK;
}

static void save_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, void *out)
{
	const unsigned char *from = slot_of(m, slot);
	unsigned char *to = out;
	for (unsigned i = 0; i < MX_RECUR_PARTS; i++) {
		const struct mx_recur_part *p = &recur_mixer(m)->slots.parts[i];
		if (p->recur)
			mx_recur_save(p->recur, from, pos, to);
		else if (p->scan)
			mx_select_save(p->scan, from, pos, to);
		else if (p->conv)
			mx_conv_save(p->conv, from, pos, to);
		from += slot_bytes(p);
		to += snapshot_bytes(p);
	}
}

static void load_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, const void *in)
{
	const unsigned char *from = in;
	unsigned char *to = slot_of(m, slot);
	for (unsigned i = 0; i < MX_RECUR_PARTS; i++) {
		const struct mx_recur_part *p = &recur_mixer(m)->slots.parts[i];
		if (p->recur)
			mx_recur_load(p->recur, to, pos, from);
		else if (p->scan)
			mx_select_load(p->scan, to, pos, from);
		else if (p->conv)
			mx_conv_load(p->conv, to, pos, from);
		from += snapshot_bytes(p);
		to += slot_bytes(p);
	}
}

mx_status mx_recur_slots_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                              uint32_t pos, void *const *out)
{
	return mx_recur_save_layers(recur_mixer(layers[0])->device, layers, n_layers, slot, pos, out,
	                            save_layer);
}

mx_status mx_recur_slots_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                              uint32_t pos, const void *const *in)
{
	return mx_recur_load_layers(recur_mixer(layers[0])->device, layers, n_layers, slot, pos, in,
	                            load_layer);
}

static void commit_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos,
                         const struct mx_kept *kept)
{
	unsigned char *at = slot_of(m, slot);
	for (unsigned i = 0; i < MX_RECUR_PARTS; i++) {
		const struct mx_recur_part *p = &recur_mixer(m)->slots.parts[i];
		if (p->recur)
			mx_recur_commit(p->recur, at, pos, kept);
		else if (p->scan)
			mx_select_commit(p->scan, at, pos, kept);
		else if (p->conv)
			mx_conv_commit(p->conv, at, pos, kept);
		at += slot_bytes(p);
	}
}

mx_status mx_recur_slots_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                                const struct mx_step *step, const struct mx_kept *kept)
{
	return mx_recur_commit_layers(recur_mixer(layers[0])->device, layers, n_layers, step, kept,
	                              commit_layer);
}
