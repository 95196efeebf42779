/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/rig.h"

#include <stdlib.h>

/* Opens a sequence with a dirty slot and no pages. */
static void seq_init(struct rig *r, struct seq *s, struct text *text)
{
	uint32_t spare = r->layer.max_context - text->len;
	*s = (struct seq){.text = text, .save_from = 1, .slot = pool_take(&r->slots, &r->rng)};
	s->max_len = text->len + rng_below(&r->rng, spare + 1);
	if (r->max_pages) {
		s->pages = allocate(r->max_pages, sizeof(*s->pages));
		memset(s->pages, 0xff, r->max_pages * sizeof(*s->pages));
		s->shown = allocate(r->max_pages, sizeof(*s->shown));
	}
}

void seq_open(struct rig *r, struct seq *s, struct text *text)
{
	seq_init(r, s, text);
	s->drops = rng_below(&r->rng, 2);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		memset(pool_at(&r->slots, s->slot, l), 0, r->slots.bytes);
}

void seq_trim(struct rig *r, struct seq *s, uint32_t n_pages)
{
	while (s->n_pages > n_pages) {
		pool_drop(&r->pages, s->pages[--s->n_pages]);
		s->pages[s->n_pages] = UINT32_MAX;
	}
}

void seq_close(struct rig *r, struct seq *s)
{
	seq_trim(r, s, 0);
	pool_drop(&r->slots, s->slot);
	free(s->pages);
	free(s->shown);
	*s = (struct seq){0};
}

void seq_whole(struct rig *r, struct text *text)
{
	struct seq s;
	seq_open(r, &s, text);
	s.record = true;
	struct item it = item_prefill(&s, text->len);
	rig_step(r, &it, 1);
	seq_close(r, &s);
}

/* Copies the pages of the first n_tokens to `to`: full pages are shared, the page that is not full
 * is copied. */
static uint32_t share_pages(struct rig *r, const uint32_t *from, uint32_t n_tokens, uint32_t *to)
{
	uint32_t n = rig_pages(r, n_tokens);
	for (uint32_t i = 0; i < n; i++) {
		if ((i + 1) * r->page_tokens <= n_tokens) {
			to[i] = from[i];
			r->pages.refs[to[i]]++;
			continue;
		}
		to[i] = pool_take(&r->pages, &r->rng);
		for (uint32_t l = 0; l < RUN_LAYERS; l++)
			memcpy(pool_at(&r->pages, to[i], l), pool_at(&r->pages, from[i], l), r->pages.bytes);
	}
	return n;
}

void seq_fork(struct rig *r, const struct seq *from, struct seq *to, struct text *text)
{
	seq_init(r, to, text);
	to->computed = from->computed;
	to->save_from = from->save_from;
	to->n_pages = share_pages(r, from->pages, from->computed, to->pages);
	if (r->state.fixed_bytes)
		rig_check(r, "fork", r->ops->fork(r->mixers, RUN_LAYERS, from->slot, to->slot));
	to->resumes = r->state.fixed_bytes && r->ops->caps & MX_MIXER_RESUME;
	pool_check(&r->slots, "slots, in fork");
}

void seq_save(struct rig *r, const struct seq *s, struct saved *out)
{
	*out = (struct saved){.text = s->text, .pos = s->computed};
	MUST(s->computed >= s->save_from);
	if (r->max_pages)
		out->pages = allocate(r->max_pages, sizeof(*out->pages));
	out->n_pages = share_pages(r, s->pages, s->computed, out->pages);
	if (!r->state.fixed_bytes)
		return;
	struct block second[RUN_LAYERS];
	void *to[2][RUN_LAYERS];
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		block_alloc(&out->bytes[l], rig_memory(r), r->state.snapshot_bytes, r->device->info.align);
		block_alloc(&second[l], rig_memory(r), r->state.snapshot_bytes, r->device->info.align);
		memset(out->bytes[l].p, 0, out->bytes[l].size);
		memset(second[l].p, POISON, second[l].size);
		to[0][l] = out->bytes[l].p;
		to[1][l] = second[l].p;
	}
	for (int i = 0; i < 2; i++)
		rig_check(r, "save", r->ops->save(r->mixers, RUN_LAYERS, s->slot, s->computed, to[i]));
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		block_check(&out->bytes[l], "a snapshot");
		block_check(&second[l], "a snapshot");
		for (size_t i = 0; i < second[l].size; i++)
			if (out->bytes[l].p[i] != second[l].p[i])
				rig_fail(r, "save at %u: two saves differ at byte %zu, or did not write it",
				         s->computed, i);
		block_free(&second[l]);
	}
	pool_check(&r->slots, "slots, in save");
}

void saved_drop(struct rig *r, struct saved *v)
{
	for (uint32_t i = 0; i < v->n_pages; i++)
		pool_drop(&r->pages, v->pages[i]);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		block_free(&v->bytes[l]);
	free(v->pages);
	*v = (struct saved){0};
}

void seq_resume(struct rig *r, struct seq *s, const struct saved *v, struct text *text, uint32_t at)
{
	MUST(at == v->pos || at + 1 == v->pos);
	seq_init(r, s, text);
	s->computed = at;
	s->save_from = v->pos;
	s->n_pages = share_pages(r, v->pages, at, s->pages);
	if (!r->state.fixed_bytes)
		return;
	/* load gets a copy at another address, which is gone afterwards. */
	struct block copy[RUN_LAYERS];
	const void *in[RUN_LAYERS];
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		block_alloc(&copy[l], rig_memory(r), v->bytes[l].size, r->device->info.align);
		memcpy(copy[l].p, v->bytes[l].p, copy[l].size);
		in[l] = copy[l].p;
	}
	rig_check(r, "load", r->ops->load(r->mixers, RUN_LAYERS, s->slot, at, in));
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		if (memcmp(copy[l].p, v->bytes[l].p, copy[l].size))
			rig_fail(r, "load wrote to the snapshot");
		memset(copy[l].p, POISON, copy[l].size);
		block_free(&copy[l]);
	}
	s->resumes = r->ops->caps & MX_MIXER_RESUME;
	pool_check(&r->slots, "slots, in load");
}
