/* SPDX-License-Identifier: Apache-2.0 */
/* Saving, loading and committing the slots of a mixer's layers, a task a layer. */
#include "mixers/recurrence/recurrence.h"
#include "mixers/tree.h"

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

struct commit_run {
	struct mx_mixer *const *layers;
	const struct mx_step *step;
	const struct mx_kept *kept;
	mx_recur_commit_f *commit;
};

static void commit_task(void *arg, size_t task, unsigned worker)
{
	const struct commit_run *run = arg;
	(void)worker;
	for (uint32_t i = 0; i < run->step->n_spans; i++) {
		const struct mx_span *span = &run->step->spans[i];
		if (mx_tree_moves(&run->kept[i]))
			run->commit(run->layers[task], span->slot, span->pos, &run->kept[i]);
	}
}

mx_status mx_recur_commit_layers(struct mx_device *d, struct mx_mixer *const *layers,
                                 uint32_t n_layers, const struct mx_step *step,
                                 const struct mx_kept *kept, mx_recur_commit_f *commit)
{
	struct commit_run run = {layers, step, kept, commit};
	if (mx_tree_any_moves(step, kept))
		d->ops->parallel(d, n_layers, commit_task, &run);
	return MX_OK;
}
