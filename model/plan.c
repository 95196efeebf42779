/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees a plan, and describes its layers in words. */
#include "model/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan_build.h"

#define MAX_ARENA (64u << 20)

struct plan_memory {
	struct mx_plan plan; /* first: mx_plan_destroy gets its address */
	struct mx_arena arena;
};

mx_status mx_plan_new(struct mx_plan_build *b)
{
	struct plan_memory *m = mx_calloc(1, sizeof *m);
	if (!m)
		return MX_E_NOMEM;
	m->arena.limit = MAX_ARENA;
	m->plan.bos = m->plan.top_k = -1;
	b->plan = &m->plan;
	b->arena = &m->arena;
	return MX_OK;
}

void mx_plan_destroy(struct mx_plan *p)
{
	if (!p)
		return;
	struct plan_memory *m = (struct plan_memory *)p;
	mx_arena_free(&m->arena);
	free(m);
}

struct mx_arena *mx_plan_arena(struct mx_plan *p)
{
	return &((struct plan_memory *)p)->arena;
}

mx_status mx_plan_no_memory(const struct mx_plan_build *b)
{
	return mx_fail(b->err, MX_E_NOMEM, "no memory for the layer plan (at most %u MiB)",
	               MAX_ARENA >> 20);
}

static bool same_mixers(const struct mx_plan_layer *a, const struct mx_plan_layer *b)
{
	if (a->n_blocks != b->n_blocks)
		return false;
	for (uint32_t i = 0; i < a->n_blocks; i++) {
		if (a->blocks[i].n_mixers != b->blocks[i].n_mixers)
			return false;
		for (uint32_t k = 0; k < a->blocks[i].n_mixers; k++)
			if (strcmp(a->blocks[i].mixers[k].mixer, b->blocks[i].mixers[k].mixer))
				return false;
	}
	return true;
}

/* Describes layers first to last, which run the same mixers: "4-6 gla + attention". Returns the
 * length. */
static int describe_run(const struct mx_plan *p, uint32_t first, uint32_t last, char *text,
                        size_t cap)
{
	const struct mx_plan_layer *l = &p->layers[first];
	int n = first == last ? snprintf(text, cap, "%u", first)
	                      : snprintf(text, cap, "%u-%u", first, last);
	const char *between = " ";
	for (uint32_t b = 0; b < l->n_blocks; b++)
		for (uint32_t i = 0; i < l->blocks[b].n_mixers; i++, between = " + ")
			if ((size_t)n < cap)
				n += snprintf(text + n, cap - (size_t)n, "%s%s", between,
				              l->blocks[b].mixers[i].mixer);
	return n;
}

void mx_plan_describe_layers(const struct mx_plan *p, char *text, size_t cap)
{
	size_t at = 0;
	for (uint32_t first = 0, last; first < p->n_layers; first = last + 1) {
		char run[256];
		last = first;
		while (last + 1 < p->n_layers && same_mixers(&p->layers[first], &p->layers[last + 1]))
			last++;
		(void)describe_run(p, first, last, run, sizeof run);
		size_t need = strlen(run) + (at ? 2 : 0);
		if (at + need + sizeof ", ..." > cap) {
			snprintf(text + at, cap - at, "%s...", at ? ", " : "");
			return;
		}
		at += (size_t)snprintf(text + at, cap - at, "%s%s", at ? ", " : "", run);
	}
}
