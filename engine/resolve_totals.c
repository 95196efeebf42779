/* SPDX-License-Identifier: Apache-2.0 */
/* Totals over the mixers of a model: page size, memory, groups of instances by module. */
#include "engine/resolver.h"

#include <stdio.h>

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t t = a % b;
		a = b;
		b = t;
	}
	return a;
}

/* Returns the page size of a model whose configuration names none. CPUs read the keys of all heads
 * of a page in one run, and long runs faster; but beside states of fixed size, which are saved with
 * a page, pages stay small. */
static uint32_t default_page_tokens(const struct mx_resolver *r)
{
	const struct mx_model *m = r->model;
	for (uint32_t b = 0; b < m->n_blocks; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers; i++)
			if (m->blocks[b].mixers[i].state.fixed_bytes)
				return 32;
	return r->device->info.own_memory ? 32 : 64;
}

/* Sets page_tokens: the configured page size, or the default, rounded up to a multiple of each
 * mixer's page_multiple, for each of the ranks that share its pages. */
static mx_status choose_page_tokens(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	uint64_t lcm = 1, wanted = r->limits->max_context;
	for (uint32_t b = 0; b < m->n_blocks; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers; i++) {
			const struct mx_model_mixer *x = &m->blocks[b].mixers[i];
			const uint64_t multiple =
				(x->state.page_multiple ? x->state.page_multiple : 1) * mx_layer_contexts(&x->desc);
			if (x->state.bytes_per_token)
				wanted = r->limits->page_tokens ? r->limits->page_tokens : default_page_tokens(r);
			lcm = lcm / gcd(lcm, multiple) * multiple;
			if (lcm > 1 << 20)
				return mx_fail(r->err, MX_E_UNSUPPORTED, "the mixers agree on no page size");
		}
	m->page_tokens = (uint32_t)((wanted + lcm - 1) / lcm * lcm);
	return MX_OK;
}

/* Returns the group of the module; creates it if there is none yet. NULL and *r->err if there are
 * too many. */
static struct mx_model_group *group_of(struct mx_resolver *r, const struct mx_mixer_ops *ops)
{
	struct mx_model *m = r->model;
	for (uint32_t g = 0; g < m->n_groups; g++)
		if (m->groups[g].ops == ops)
			return &m->groups[g];
	if (m->n_groups == MX_ENGINE_MAX_MIXERS) {
		mx_fail(r->err, MX_E_UNSUPPORTED, "the model has more than %d kinds of mixers",
		        MX_ENGINE_MAX_MIXERS);
		return NULL;
	}
	struct mx_model_group *group = &m->groups[m->n_groups++];
	group->ops = ops;
	snprintf(group->use.name, sizeof group->use.name, "%s", ops->name);
	return group;
}

/* Adds the mixer to its group. page, slot, snapshot = bytes of its parts. */
static mx_status add_to_group(struct mx_resolver *r, const struct mx_model_mixer *x, size_t page,
                              size_t slot, size_t snapshot)
{
	struct mx_model_group *group = group_of(r, x->ops);
	if (!group)
		return MX_E_UNSUPPORTED;
	group->n++;
	group->use.layers++;
	if (x->state.settle_bytes > group->settle_bytes)
		group->settle_bytes = x->state.settle_bytes;
	group->use.page_bytes += page;
	group->use.slot_bytes += slot;
	group->use.snapshot_bytes += snapshot;
	group->use.instance_bytes += x->state.instance_bytes;
	return MX_OK;
}

/* Finds the pages that a mixer of block `b` reads, which are another's. */
static mx_status find_pages(struct mx_resolver *r, uint32_t b, struct mx_model_mixer *x)
{
	struct mx_model *m = r->model;
	uint32_t layer = m->blocks[b].layer;
	while (b-- > 0) {
		const struct mx_model_mixer *y = m->blocks[b].mixers;
		if (m->blocks[b].layer + x->pages_back != layer || !m->blocks[b].n_mixers ||
		    y->ops != x->ops || !y->state.bytes_per_token)
			continue;
		x->page_offset = y->page_offset;
		return MX_OK;
	}
	return mx_fail(r->err, MX_E_INTERNAL, "layer %u reads the pages of a layer that has none",
	               layer);
}

/* Gives the mixer its offsets in pages, slots and snapshots, and adds it to the totals. */
static mx_status add_up(struct mx_resolver *r, uint32_t b, struct mx_model_mixer *x)
{
	struct mx_model *m = r->model;
	size_t align = r->device->info.align;
	if (x->state.bytes_per_token > SIZE_MAX / 2 / m->page_tokens - m->page_bytes)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "a page of this model is too large");
	const uint32_t tokens = m->page_tokens / mx_layer_contexts(&x->desc);
	size_t page = mx_round_up(x->state.bytes_per_token * tokens, align);
	size_t slot = mx_round_up(x->state.fixed_bytes, align);
	size_t snapshot = mx_round_up(x->state.snapshot_bytes, align);
	x->page_offset = m->page_bytes;
	if (x->pages_back) {
		mx_status st = find_pages(r, b, x);
		if (st != MX_OK)
			return st;
	}
	x->slot_offset = m->slot_bytes;
	x->snapshot_offset = m->snapshot_bytes;
	m->page_bytes += page;
	m->slot_bytes += slot;
	m->snapshot_bytes += snapshot;
	m->instance_bytes += x->state.instance_bytes;
	m->input_scales |= x->in_scale != 1;
	m->resumes |= (x->ops->caps & MX_MIXER_RESUME) != 0;
	if (page && !(x->ops->caps & MX_MIXER_SHARE_PAGES))
		m->can_share = false;
	if (slot && !(x->ops->caps & MX_MIXER_SNAPSHOT && snapshot))
		m->can_share = false;
	if (x->state.scratch_bytes > m->mixer_scratch)
		m->mixer_scratch = x->state.scratch_bytes;
	if (x->state.create_bytes > m->create_bytes)
		m->create_bytes = x->state.create_bytes;
	if (page && x->ops->caps & MX_MIXER_EXTENT) {
		const struct mx_model_mixer **to = mx_resolve_push(
			&m->arena, (void **)&m->lookahead, &m->n_lookahead, &m->cap_lookahead, sizeof *to);
		if (!to)
			return mx_fail(r->err, MX_E_NOMEM, "out of memory");
		*to = x;
	} else {
		m->needs_all_pages |= page > 0;
	}
	return add_to_group(r, x, page, slot, snapshot);
}

/* Gives the head its place in pages for hidden states. */
static void add_head(struct mx_model *m, const struct mx_device_info *info)
{
	m->head.page_offset = m->page_bytes;
	m->page_bytes +=
		mx_round_up(2 * (size_t)m->plan->width * mx_dtype_size(info->act_dtype), info->align);
}

/* Fails if pages are to be shared by ranks and no mixer can do that. */
static mx_status check_contexts(struct mx_resolver *r)
{
	const struct mx_model *m = r->model;
	const char *paged = NULL;
	for (uint32_t b = 0; b < m->n_blocks && r->limits->contexts > 1; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers; i++) {
			const struct mx_model_mixer *x = &m->blocks[b].mixers[i];
			if (x->ops->caps & MX_MIXER_CONTEXT)
				return MX_OK;
			paged = x->state.bytes_per_token ? x->ops->name : paged;
		}
	if (r->limits->contexts <= 1)
		return MX_OK;
	if (paged)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.context",
		                  "pages of the mixer %s are not spread over ranks: use tensor", paged);
	return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.context",
	                  "the model has no keys and values that could be spread: use tensor");
}

mx_status mx_resolve_totals(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	mx_status st = check_contexts(r);
	if (st == MX_OK)
		st = choose_page_tokens(r);
	if (st == MX_OK)
		st = mx_resolve_places(r);
	if (st != MX_OK)
		return st;
	m->can_share = true;
	for (uint32_t b = 0; b < m->n_blocks && st == MX_OK; b++) {
		m->parallel_mixers |= m->blocks[b].n_mixers > 1;
		for (uint32_t i = 0; i < m->blocks[b].n_mixers && st == MX_OK; i++)
			st = add_up(r, b, &m->blocks[b].mixers[i]);
	}
	if (m->head.on && st == MX_OK)
		add_head(m, &r->device->info);
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++) {
		struct mx_model_group *group = &m->groups[g];
		group->instances = mx_arena_alloc(&m->arena, group->n * sizeof *group->instances);
		group->snapshot_offsets =
			mx_arena_alloc(&m->arena, group->n * sizeof *group->snapshot_offsets);
		group->parts = mx_arena_alloc(&m->arena, group->n * sizeof *group->parts);
		if (!group->instances || !group->snapshot_offsets || !group->parts)
			st = mx_fail(r->err, MX_E_NOMEM, "out of memory");
	}
	return st;
}
