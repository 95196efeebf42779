/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a plan with a checkpoint: finds the mixers and tensors of each block. */
#include "engine/resolver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the bias that belongs to a weight: "x.weight" -> "x.bias". */
static mx_status bias_beside(struct mx_resolver *r, const char *weight, uint32_t n, float **dest)
{
	char name[256];
	size_t stem = strlen(weight);
	if (stem > 7 && !strcmp(weight + stem - 7, ".weight"))
		stem -= 7;
	if (snprintf(name, sizeof name, "%.*s.bias", (int)stem, weight) >= (int)sizeof name)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", weight);
	return mx_need_vector_1d(r, name, n, dest);
}

/* Finds the tensors of a norm of the plan's kind. */
static mx_status resolve_norm(struct mx_resolver *r, const char *weight, struct mx_model_norm *out)
{
	const struct mx_plan *p = r->model->plan;
	mx_status st = mx_need_vector_1d(r, weight, p->width, &out->weight);
	if (st != MX_OK || p->norm == MX_NORM_RMS)
		return st;
	if (r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "norm %s is a LayerNorm, which runs on CPUs only",
		               weight);
	return bias_beside(r, weight, p->width, &out->bias);
}

static mx_status resolve_mlp(struct mx_resolver *r, const struct mx_plan_mlp *p,
                             struct mx_model_mlp *out)
{
	uint32_t width = r->model->plan->width;
	bool gated = p->kind == MX_MLP_SWIGLU;
	out->kind = p->kind;
	out->width = p->width;
	if (p->width > r->model->max_mlp)
		r->model->max_mlp = p->width;
	if (!gated && r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "the feed-forward %s has GELU, which runs on CPUs only", p->up);
	mx_status st = gated ? mx_need_matrix_2d(r, p->gate, p->width, width, &out->gate) : MX_OK;
	if (st == MX_OK)
		st = mx_need_matrix_2d(r, p->up, p->width, width, &out->up);
	if (st == MX_OK)
		st = mx_need_matrix_2d(r, p->down, width, p->width, &out->down);
	if (st != MX_OK || !p->bias)
		return st;
	if (gated)
		st = bias_beside(r, p->gate, p->width, &out->gate_bias);
	if (st == MX_OK)
		st = bias_beside(r, p->up, p->width, &out->up_bias);
	if (st == MX_OK)
		st = bias_beside(r, p->down, width, &out->down_bias);
	return st;
}

static mx_status mixer_weights(struct mx_resolver *r, const struct mx_plan_mixer *p,
                               struct mx_model_mixer *out)
{
	struct mx_model *m = r->model;
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	size_t n = 0;
	mx_status st = out->ops->weights(&out->desc, specs, &n);
	if (st != MX_OK || n > MX_MIXER_MAX_WEIGHTS)
		return mx_fail(r->err, st != MX_OK ? st : MX_E_INTERNAL,
		               "mixer %s cannot list the weights of layer %u", p->mixer, out->desc.index);
	out->n_weights = n;
	out->matrices = mx_arena_alloc(&m->arena, n * sizeof *out->matrices);
	out->vectors = mx_arena_alloc(&m->arena, n * sizeof *out->vectors);
	if (!out->matrices || !out->vectors)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		/* A leading '/' names a tensor of the whole model, which layers may share. */
		bool whole = specs[i].name[0] == '/';
		char name[256];
		if (snprintf(name, sizeof name, "%s%s", whole ? "" : p->prefix, specs[i].name + whole) >=
		    (int)sizeof name)
			return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", name);
		const struct mx_tensor *t;
		if (specs[i].optional && mx_checkpoint_find(m->checkpoint, name, &t, NULL) == MX_E_NOTFOUND)
			continue;
		if (specs[i].form == MX_WEIGHT_MATRIX)
			st = mx_need_matrix(r, name, &specs[i], &out->matrices[i]);
		else
			st = mx_need_vector(r, name, &specs[i], &out->vectors[i]);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* Sets where in *r->err to the layer that a mixer refused, as the config names it. */
static mx_status in_layer(struct mx_resolver *r, uint32_t layer, mx_status st)
{
	bool ours = !strcmp(r->model->plan->family, "mixd");
	if (r->err && !r->err->where[0])
		snprintf(r->err->where, sizeof r->err->where, ours ? "mixd_layers[%u]" : "layer %u", layer);
	return st;
}

static mx_status resolve_mixer(struct mx_resolver *r, const struct mx_plan_mixer *p, uint32_t layer,
                               struct mx_model_mixer *out)
{
	struct mx_model *m = r->model;
	const struct mx_model_limits *l = r->limits;
	out->ops = mx_registry_find(r->registry, p->mixer, r->device->info.kind, r->err);
	if (!out->ops && r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "layer %u: mixer %s does not run on %s", layer,
		               p->mixer, r->device->info.name);
	if (!out->ops)
		return in_layer(r, layer, MX_E_NOTFOUND);
	out->in_scale = p->in_scale;
	out->out_scale = p->out_scale;
	out->desc = (struct mx_layer_desc){
		.index = layer,
		.n_layers = m->plan->n_layers,
		.width = m->plan->width,
		.max_context = l->max_context,
		.max_rows = l->max_rows,
		.max_spans = l->max_spans,
		.max_draft = l->max_draft,
		.ranks = 1,
		.weight_dtype = m->embed.dtype,
		.params = p->params,
	};
	if (l->kv_dtype >= 0)
		out->desc.state_dtype = (enum mx_dtype)l->kv_dtype;
	else
		out->desc.state_dtype = m->embed.dtype == MX_F32 ? MX_F32 : MX_BF16;
	mx_status st = out->ops->probe(&out->desc, r->device, r->err);
	if (st != MX_OK)
		return in_layer(r, layer, st);
	if ((st = out->ops->state(&out->desc, r->device, &out->state)) != MX_OK)
		return mx_fail(r->err, st, "mixer %s cannot say the memory of layer %u", p->mixer, layer);
	return mixer_weights(r, p, out);
}

static mx_status resolve_block(struct mx_resolver *r, const struct mx_plan_block *p, uint32_t layer,
                               struct mx_model_block *out)
{
	struct mx_model *m = r->model;
	out->kind = p->kind;
	out->residual_scale = p->residual_scale;
	mx_status st = resolve_norm(r, p->norm, &out->norm);
	if (st != MX_OK)
		return st;
	if (p->kind == MX_BLOCK_MLP)
		return resolve_mlp(r, &p->mlp, &out->mlp);
	if (p->kind == MX_BLOCK_EXPERTS && r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "layer %u is a mixture of experts, which runs on CPUs only", layer);
	if (p->kind == MX_BLOCK_EXPERTS) {
		st = mx_resolve_experts(r, &p->experts, &out->experts);
		return st != MX_OK || !p->mlp.width ? st : resolve_mlp(r, &p->mlp, &out->mlp);
	}
	if (!p->n_mixers)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "layer %u has a block without a mixer", layer);
	out->n_mixers = p->n_mixers;
	out->mixers = mx_arena_alloc(&m->arena, p->n_mixers * sizeof *out->mixers);
	if (!out->mixers)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (uint32_t i = 0; i < p->n_mixers && st == MX_OK; i++)
		st = resolve_mixer(r, &p->mixers[i], layer, &out->mixers[i]);
	return st;
}

/* Fails if the checkpoint has more layers than config.json says: it is of another model. Other
 * unused tensors (buffers such as rotary_emb.inv_freq) are ignored. */
static mx_status refuse_more_layers(struct mx_resolver *r)
{
	const struct mx_model *m = r->model;
	const char *prefix = m->plan->layer_prefix;
	size_t prefix_len = strlen(prefix);
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(m->checkpoint, i);
		const char *digits = t->name + prefix_len;
		if (strncmp(t->name, prefix, prefix_len))
			continue;
		size_t n = strspn(digits, "0123456789");
		/* saturates at ULONG_MAX */
		unsigned long layer = n && digits[n] == '.' ? strtoul(digits, NULL, 10) : 0;
		if (layer >= m->plan->n_layers)
			return mx_fail_at(r->err, MX_E_FORMAT, t->file,
			                  "tensor '%.160s' is of layer %lu, but config.json's "
			                  "num_hidden_layers is %u",
			                  t->name, layer, m->plan->n_layers);
	}
	return MX_OK;
}

static mx_status resolve_all(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_plan *p = m->plan;
	mx_status st = mx_need_matrix_2d(r, p->embed, p->vocab, p->width, &m->embed);
	if (st == MX_OK)
		st = mx_need_matrix_2d(r, p->lm_head, p->vocab, p->width, &m->lm_head);
	if (st == MX_OK)
		st = resolve_norm(r, p->final_norm, &m->final_norm);
	if (st != MX_OK)
		return st;
	for (uint32_t i = 0; i < p->n_layers; i++)
		m->n_blocks += p->layers[i].n_blocks;
	m->blocks = mx_arena_alloc(&m->arena, m->n_blocks * sizeof *m->blocks);
	if (!m->blocks)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	struct mx_model_block *out = m->blocks;
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t b = 0; b < p->layers[i].n_blocks; b++)
			if ((st = resolve_block(r, &p->layers[i].blocks[b], i, out++)) != MX_OK)
				return st;
	st = refuse_more_layers(r);
	return st == MX_OK ? mx_resolve_totals(r) : st;
}

mx_status mx_model_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                           const struct mx_registry *registry, const struct mx_device *device,
                           const struct mx_model_limits *limits, struct mx_model *out,
                           struct mx_err *err)
{
	/* Built in place: struct mx_model_vector.dest points into *out. */
	*out = (struct mx_model){.plan = plan, .checkpoint = checkpoint};
	struct mx_resolver r = {out, registry, device, limits, err};
	mx_status st = resolve_all(&r);
	if (st != MX_OK)
		mx_model_free(out);
	return st;
}

void mx_model_free(struct mx_model *m)
{
	mx_arena_free(&m->arena);
	*m = (struct mx_model){0};
}
