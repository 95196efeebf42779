/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/page_table.h"

#include "engine/ranks.h"

#define WORDS 256 /* told at a time */

/* Changes that are to be told. */
struct changes {
	struct mx_word words[WORDS];
	uint32_t n;
};

static mx_status flush(struct mx_model_engine *e, struct changes *c)
{
	mx_status st =
		c->n ? e->device->ops->put(e->device, e->scratch.page_table, c->words, c->n) : MX_OK;
	c->n = 0;
	return st;
}

static mx_status add(struct mx_model_engine *e, struct changes *c, uint32_t at, const uint32_t *ids,
                     uint32_t n)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < n && st == MX_OK; i++) {
		c->words[c->n++] = (struct mx_word){at + i, ids[i]};
		if (c->n == WORDS)
			st = flush(e, c);
	}
	return st;
}

/* Adds what a sequence's list has that was not told. */
static mx_status add_untold(struct mx_model_engine *e, struct changes *c, const struct mx_seq *q)
{
	const struct mx_page_list *l = &q->pages;
	return add(e, c, mx_page_table_at(e, q->slot) + l->n_told, l->ids + l->n_told,
	           l->n - l->n_told);
}

mx_status mx_page_table_tell(struct mx_model_engine *e, uint32_t slot, uint32_t from,
                             const uint32_t *ids, uint32_t n)
{
	struct changes c = {.n = 0};
	mx_status st = add(e, &c, mx_page_table_at(e, slot) + from, ids, n);
	return st == MX_OK ? flush(e, &c) : st;
}

mx_status mx_page_table_tell_sequence(struct mx_model_engine *e, struct mx_seq *q)
{
	struct changes c = {.n = 0};
	mx_status st = add_untold(e, &c, q);
	if (st == MX_OK)
		st = flush(e, &c);
	if (st == MX_OK)
		q->pages.n_told = q->pages.n;
	return st;
}

/* Tells the rank's device what has changed. */
static mx_status update_rank(struct mx_model_engine *e, const struct mx_rank_call *call)
{
	struct changes c = {.n = 0};
	mx_status st = MX_OK;
	for (size_t i = 0; i < call->n && st == MX_OK; i++)
		st = add_untold(e, &c, call->items[i].seq);
	return st == MX_OK ? flush(e, &c) : st;
}

mx_status mx_page_table_update(struct mx_model_engine *e)
{
	const struct mx_rank_call call = {
		.run = update_rank, .items = e->core.items, .n = e->core.n_items};
	bool changed = false;
	for (uint32_t i = 0; i < e->core.n_items; i++)
		changed |= e->core.items[i].seq->pages.n_told < e->core.items[i].seq->pages.n;
	mx_status st = changed ? mx_ranks_run(e, &call) : MX_OK;
	for (uint32_t i = 0; i < e->core.n_items && st == MX_OK; i++)
		e->core.items[i].seq->pages.n_told = e->core.items[i].seq->pages.n;
	return st;
}
