/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core.h"

void mx_draft_source_destroy(struct mx_draft_source *d)
{
	if (d)
		d->ops->destroy(d);
}

void mx_draft_drop_nothing(struct mx_draft_source *d)
{
	(void)d;
}

mx_status mx_draft_open(struct mx_draft_source *source, const struct mx_seq *s,
                        const struct mx_seq_params *params, struct mx_draft *out)
{
	void *state;
	mx_status st = source->ops->open(source, s, params, &state);
	if (st == MX_OK)
		*out = (struct mx_draft){.source = source, .state = state};
	return st;
}

void mx_draft_close(struct mx_draft *d)
{
	if (d->source)
		d->source->ops->close(d->source, d->state);
	d->source = NULL;
}

void mx_draft_release(struct mx_draft *d)
{
	if (d->source)
		d->source->ops->release(d->source, d->state);
}

void mx_draft_propose(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n)
{
	bool any = false;
	for (uint32_t i = 0; i < n; i++) {
		struct mx_draft *own = &items[i].seq->draft;
		items[i].draft = own->tokens;
		items[i].parent = NULL;
		items[i].odds = NULL;
		own->is_tree = own->has_odds = false;
		if (!own->source)
			items[i].n_draft = 0;
		any |= items[i].n_draft > 0;
	}
	if (!any)
		return;
	d->ops->propose(d, items, n);
	for (uint32_t i = 0; i < n; i++) {
		struct mx_draft *own = &items[i].seq->draft;
		if (items[i].n_draft && own->is_tree)
			items[i].parent = own->parents;
		if (items[i].n_draft && own->has_odds)
			items[i].odds = own->odds;
	}
}
