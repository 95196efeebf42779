/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/counts.h"

#include <stdlib.h>

#include "base/mem.h"

mx_status mx_counts_create(uint32_t max_distinct, struct mx_counts *out)
{
	struct mx_counts c = {0};
	uint32_t size = 16;
	while (size / 2 < max_distinct && size < UINT32_MAX / 2)
		size *= 2;
	c.mask = size - 1;
	c.items = mx_calloc(max_distinct, sizeof *c.items);
	c.index = mx_calloc(size, sizeof *c.index);
	if (!c.items || !c.index) {
		mx_counts_destroy(&c);
		return MX_E_NOMEM;
	}
	*out = c;
	return MX_OK;
}

void mx_counts_destroy(struct mx_counts *c)
{
	if (!c)
		return;
	free(c->items);
	free(c->index);
	*c = (struct mx_counts){0};
}

/* Returns the place of a token in the index: its own, or the free one that it would get. */
static uint32_t find(const struct mx_counts *c, int32_t token)
{
	/* Fibonacci hashing; the probe ends because at most half of the index is in use. */
	uint32_t at = (uint32_t)token * 2654435769u >> 7 & c->mask;
	while (c->index[at] && c->items[c->index[at] - 1].token != token)
		at = (at + 1) & c->mask;
	return at;
}

void mx_counts_add(struct mx_counts *c, int32_t token, bool in_prompt)
{
	uint32_t at = find(c, token);
	if (!c->index[at]) {
		c->items[c->n] = (struct mx_token_count){.token = token};
		c->index[at] = ++c->n;
	}
	struct mx_token_count *item = &c->items[c->index[at] - 1];
	if (in_prompt)
		item->prompt++;
	else
		item->output++;
}

void mx_counts_take_back(struct mx_counts *c, int32_t token)
{
	uint32_t at = find(c, token);
	struct mx_token_count *item = &c->items[c->index[at] - 1];
	if (--item->output || item->prompt)
		return;
	/* The latest count was its first: it is the last item, and no probe goes past its place. */
	c->index[at] = 0;
	c->n--;
}
