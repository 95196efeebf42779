/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/draft.h"

void mx_draft_source_destroy(struct mx_draft_source *d)
{
	if (d)
		d->ops->destroy(d);
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

uint32_t mx_draft_propose(struct mx_draft *d, const struct mx_seq *s, uint32_t most)
{
	return d->source ? d->source->ops->propose(d->source, d->state, s, most, d->tokens) : 0;
}
