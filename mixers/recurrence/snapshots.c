/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading the slots of a mixer's layers, a task a layer. */
#include "mixers/recurrence/recurrence.h"

struct copy_run {
	struct mx_mixer *const *layers;
	uint32_t slot, pos;
	void *const *out;      /* save */
	const void *const *in; /* load */
	mx_recur_save_f *save;
	mx_recur_load_f *load;
};

static void copy_task(void *arg, size_t task, unsigned worker)
{
	const struct copy_run *run = arg;
	(void)worker;
	if (run->save)
		run->save(run->layers[task], run->slot, run->pos, run->out[task]);
	else
		run->load(run->layers[task], run->slot, run->pos, run->in[task]);
}

mx_status mx_recur_save_layers(struct mx_device *d, struct mx_mixer *const *layers,
                               uint32_t n_layers, uint32_t slot, uint32_t pos, void *const *out,
                               mx_recur_save_f *save)
{
	struct copy_run run = {.layers = layers, .slot = slot, .pos = pos, .out = out, .save = save};
	d->ops->parallel(d, n_layers, copy_task, &run);
	return MX_OK;
}

mx_status mx_recur_load_layers(struct mx_device *d, struct mx_mixer *const *layers,
                               uint32_t n_layers, uint32_t slot, uint32_t pos,
                               const void *const *in, mx_recur_load_f *load)
{
	struct copy_run run = {.layers = layers, .slot = slot, .pos = pos, .in = in, .load = load};
	d->ops->parallel(d, n_layers, copy_task, &run);
	return MX_OK;
}
