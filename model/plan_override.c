/* SPDX-License-Identifier: Apache-2.0 */
/* Gives layers of a plan another mixer than the checkpoint's config says: mx_plan_override. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan_build.h"

/* Reads a whole number below n and moves *at behind it. */
static bool read_layer(const char **at, uint32_t n, uint32_t *out)
{
	size_t digits = strspn(*at, "0123456789");
	if (!digits || digits > 9)
		return false;
	*out = (uint32_t)strtoul(*at, NULL, 10);
	*at += digits;
	return *out < n;
}

/* Marks the layers of a text such as "8-31" or "0, 4-7". */
static mx_status read_layers(const struct mx_plan *p, const char *text, bool *out,
                             struct mx_err *err)
{
	const char *at = text;
	if (!strcmp(text, "all")) {
		memset(out, true, p->n_layers);
		return MX_OK;
	}
	do {
		uint32_t first, last;
		at += strspn(at, " ");
		bool ok = read_layer(&at, p->n_layers, &first);
		last = first;
		if (ok && *at == '-') {
			at++;
			ok = read_layer(&at, p->n_layers, &last) && last >= first;
		}
		at += strspn(at, " ");
		if (!ok || (*at && *at != ','))
			return mx_fail(err, MX_E_INVALID,
			               "layers \"%.60s\": must be all, or numbers and ranges from 0 to %u: "
			               "\"0, 4-7\"",
			               text, p->n_layers - 1);
		memset(out + first, true, last - first + 1);
	} while (*at++ == ',');
	return MX_OK;
}

/* True if a later layer reads the pages of layer i. */
static bool is_shared(const struct mx_plan *p, uint32_t i)
{
	for (uint32_t j = i + 1; j < p->n_layers; j++)
		for (uint32_t b = 0; b < p->layers[j].n_blocks; b++)
			for (uint32_t k = 0; k < p->layers[j].blocks[b].n_mixers; k++)
				if (p->layers[j].blocks[b].mixers[k].pages_back == j - i)
					return true;
	return false;
}

/* Copies the override's parameters behind the mixer's own. */
static mx_status add_params(struct mx_arena *a, const struct mx_plan_override *o,
                            struct mx_plan_mixer *m, struct mx_err *err)
{
	size_t own = m->params.n, n = own + o->params.n;
	struct mx_param *to = mx_arena_alloc(a, (n + 1) * sizeof *to);
	bool full = !to;
	for (size_t i = 0; !full && i < own; i++)
		to[i] = m->params.items[i];
	for (size_t i = 0; !full && i < o->params.n; i++) {
		const struct mx_param *p = &o->params.items[i];
		if (mx_param_find(&m->params, p->name))
			return mx_fail(err, MX_E_INVALID, "%.60s: the checkpoint's config says that already",
			               p->name);
		to[own + i] = *p;
		to[own + i].name = mx_arena_strndup(a, p->name, strlen(p->name));
		full = !to[own + i].name;
		if (!full && p->type == MX_PARAM_STRING)
			full = !(to[own + i].s = mx_arena_strndup(a, p->s, strlen(p->s)));
	}
	if (full)
		return mx_fail(err, MX_E_NOMEM, "no memory for the layer plan");
	m->params = (struct mx_params){to, n};
	return MX_OK;
}

/* Replaces the attention mixers of a layer. */
static mx_status override_layer(struct mx_plan *p, uint32_t i, const struct mx_plan_override *o,
                                const char *mixer, const char *origin, struct mx_plan_layer *layer,
                                struct mx_err *err)
{
	struct mx_arena *a = mx_plan_arena(p);
	struct mx_plan_block *blocks = mx_arena_alloc(a, layer->n_blocks * sizeof *blocks);
	uint32_t replaced = 0;
	if (!blocks)
		return mx_fail(err, MX_E_NOMEM, "no memory for the layer plan");
	memcpy(blocks, layer->blocks, layer->n_blocks * sizeof *blocks);
	for (uint32_t b = 0; b < layer->n_blocks; b++) {
		if (!blocks[b].n_mixers)
			continue;
		struct mx_plan_mixer *mixers = mx_arena_alloc(a, blocks[b].n_mixers * sizeof *mixers);
		if (!mixers)
			return mx_fail(err, MX_E_NOMEM, "no memory for the layer plan");
		memcpy(mixers, blocks[b].mixers, blocks[b].n_mixers * sizeof *mixers);
		blocks[b].mixers = mixers;
		for (uint32_t k = 0; k < blocks[b].n_mixers; k++) {
			if (strcmp(mixers[k].mixer, "attention"))
				continue;
			mx_status st = add_params(a, o, &mixers[k], err);
			if (st != MX_OK)
				return st;
			mixers[k].mixer = mixer;
			mixers[k].origin = origin;
			replaced++;
		}
	}
	if (!replaced)
		return mx_fail(err, MX_E_INVALID, "layer %u is no attention layer", i);
	if (is_shared(p, i))
		return mx_fail(err, MX_E_UNSUPPORTED, "a later layer reads the keys of layer %u", i);
	layer->blocks = blocks;
	return MX_OK;
}

mx_status mx_plan_override(struct mx_plan *p, const struct mx_plan_override *o, struct mx_err *err)
{
	struct mx_arena *a = mx_plan_arena(p);
	bool *chosen = mx_arena_alloc(a, p->n_layers + 1);
	struct mx_plan_layer *layers = mx_arena_alloc(a, (p->n_layers + 1) * sizeof *layers);
	const char *mixer = mx_arena_strndup(a, o->mixer, strlen(o->mixer));
	const char *origin = o->origin ? mx_arena_strndup(a, o->origin, strlen(o->origin)) : "";
	if (!chosen || !layers || !mixer || !origin)
		return mx_fail(err, MX_E_NOMEM, "no memory for the layer plan");
	memcpy(layers, p->layers, p->n_layers * sizeof *layers);
	mx_status st = read_layers(p, o->layers, chosen, err);
	for (uint32_t i = 0; i < p->n_layers && st == MX_OK; i++)
		if (chosen[i])
			st = override_layer(p, i, o, mixer, *origin ? origin : NULL, &layers[i], err);
	if (st == MX_OK)
		p->layers = layers;
	else if (err && o->origin)
		snprintf(err->where, sizeof err->where, "%s", o->origin);
	return st;
}
