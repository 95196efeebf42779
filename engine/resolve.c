/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a plan with a checkpoint: finds the mixers and tensors of each block. */
#include "engine/resolver.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/convert.h"

/* Sets *out to this rank's part of `all` elements. `what` names them. */
static mx_status share_of(struct mx_resolver *r, const char *what, uint32_t all,
                          struct mx_weight_slice *out)
{
	const struct mx_share own = mx_share_of_channels(all, r->limits->rank, r->limits->ranks);
	if (all < r->limits->ranks)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.tensor",
		                  "%s of width %u cannot be split over %u ranks", what, all,
		                  r->limits->ranks);
	*out = (struct mx_weight_slice){.first = own.first, .n = own.n};
	return MX_OK;
}

/* Finds rows first .. first + n - 1 of a matrix with `all` rows, and of its bias unless dest is
 * NULL. */
static mx_status need_rows(struct mx_resolver *r, const char *name, uint32_t all, uint32_t first,
                           uint32_t n, struct mx_weight *out, float **bias)
{
	char of_bias[256];
	struct mx_weight_spec w = MX_WEIGHT_SPEC(name, MATRIX, {all, r->model->plan->width});
	struct mx_weight_spec b = MX_WEIGHT_SPEC(of_bias, VECTOR, {all});
	w = mx_weight_spec_rows(w, first, n);
	b = mx_weight_spec_rows(b, first, n);
	mx_status st = mx_need_matrix(r, name, &w, out);
	if (st != MX_OK || !bias)
		return st;
	st = mx_bias_name(r, name, of_bias, sizeof of_bias);
	return st == MX_OK ? mx_need_vector(r, of_bias, &b, 0, bias) : st;
}

/* Finds the low-rank matrices that a feed-forward adds to gate and up. */
static mx_status resolve_adapter(struct mx_resolver *r, const struct mx_plan_mlp *p,
                                 struct mx_model_mlp *out)
{
	uint32_t n = p->width;
	if (!p->rank)
		return MX_OK;
	if (r->limits->ranks > 1)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.tensor",
		                  "feed-forwards with adapters are not split over ranks yet");
	if (p->rank > r->model->max_rank)
		r->model->max_rank = p->rank;
	struct mx_weight_spec w = MX_WEIGHT_SPEC(p->adapter_out, MATRIX, {2 * n, p->rank});
	struct mx_weight_spec gate = mx_weight_spec_rows(w, 0, n), up = mx_weight_spec_rows(w, n, n);
	mx_status st = mx_need_matrix_2d(r, p->adapter_in, p->rank, r->model->plan->width, &out->low);
	if (st == MX_OK)
		st = mx_need_matrix(r, p->adapter_out, &gate, &out->low_gate);
	return st == MX_OK ? mx_need_matrix(r, p->adapter_out, &up, &out->low_up) : st;
}

static mx_status resolve_mlp(struct mx_resolver *r, const struct mx_plan_mlp *p,
                             struct mx_model_mlp *out)
{
	uint32_t width = r->model->plan->width, all = p->fused ? 2 * p->width : p->width;
	struct mx_weight_slice share = {0};
	mx_status st = share_of(r, "a feed-forward", p->width, &share);
	if (st != MX_OK)
		return st;
	const uint32_t first = (uint32_t)share.first, n = (uint32_t)share.n;
	struct mx_weight_spec down = MX_WEIGHT_SPEC(p->down, MATRIX, {width, p->width});
	down = mx_weight_spec_part(down, 1, first, n);
	out->act = p->act;
	out->gated = p->gate != NULL;
	out->from_input = p->from_input;
	out->width = n;
	out->gate_scale = p->gate_scale;
	if (n > r->model->max_mlp)
		r->model->max_mlp = n;
	if (out->gated)
		st = need_rows(r, p->gate, all, first, n, &out->gate, p->bias ? &out->gate_bias : NULL);
	if (st == MX_OK && !p->from_input)
		st = need_rows(r, p->up, all, all - p->width + first, n, &out->up,
		               p->bias ? &out->up_bias : NULL);
	if (st == MX_OK)
		st = mx_need_matrix(r, p->down, &down, &out->down);
	if (st == MX_OK)
		st = resolve_adapter(r, p, out);
	if (st != MX_OK || !p->bias || r->limits->rank) /* the first rank's summand has the bias */
		return st;
	return mx_need_bias(r, p->down, width, &out->down_bias);
}

/* Returns what is added to a mixer's vector. */
static float plus_of(const struct mx_plan_mixer *p, const char *name)
{
	for (const char *const *n = p->plus_one; n && *n; n++)
		if (!strcmp(*n, name))
			return 1;
	return 0;
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
		struct mx_quant_matrix q;
		if (specs[i].optional && mx_resolve_find(r, name, &t, NULL) == MX_E_NOTFOUND &&
		    mx_resolve_quantised(r, name, specs[i].shape[0], specs[i].shape[1], &q) ==
		        MX_E_NOTFOUND)
			continue;
		if (specs[i].form != MX_WEIGHT_VECTOR)
			st = mx_need_matrix(r, name, &specs[i], &out->matrices[i]);
		else
			st = mx_need_vector(r, name, &specs[i], plus_of(p, specs[i].name), &out->vectors[i]);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* Sets where in *r->err to the layer that a mixer refused, as the config names it, or to
 * where the mixer was chosen. */
static mx_status in_layer(struct mx_resolver *r, const struct mx_plan_mixer *p, uint32_t layer,
                          mx_status st)
{
	bool ours = !strcmp(r->model->plan->family, "mixd");
	if (r->err && !r->err->where[0] && p->origin)
		snprintf(r->err->where, sizeof r->err->where, "%s", p->origin);
	else if (r->err && !r->err->where[0])
		snprintf(r->err->where, sizeof r->err->where, ours ? "mixd_layers[%u]" : "layer %u", layer);
	return st;
}

/* Raises the layer's scratch to the most that any rank needs: one with fewer heads may need more,
 * if it divides keys into more parts. */
static void most_scratch(const struct mx_resolver *r, struct mx_model_mixer *x)
{
	struct mx_layer_desc desc = x->desc;
	for (uint32_t i = 0; i < desc.ranks; i++) {
		struct mx_state_spec other = {0};
		desc.rank = i;
		if (x->ops->state(&desc, r->device, &other) == MX_OK &&
		    other.scratch_bytes > x->state.scratch_bytes)
			x->state.scratch_bytes = other.scratch_bytes;
	}
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
		return in_layer(r, p, layer, MX_E_NOTFOUND);
	if (l->ranks > 1 && !(out->ops->caps & MX_MIXER_RANKS))
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.tensor",
		                  "layer %u: the mixer %s is not split over ranks yet", layer, p->mixer);
	out->in_scale = p->in_scale;
	out->out_scale = p->out_scale;
	out->pages_back = p->pages_back;
	out->desc = (struct mx_layer_desc){
		.index = layer,
		.n_layers = m->plan->n_layers,
		.width = m->plan->width,
		.max_context = l->max_context,
		.max_rows = l->max_rows,
		.max_spans = l->max_spans,
		.max_draft = l->max_draft,
		.rank = l->rank,
		.ranks = l->ranks,
		.contexts = out->ops->caps & MX_MIXER_CONTEXT ? l->contexts : 1,
		.weight_dtype = m->embed.dtype == MX_QUANT ? MX_BF16 : m->embed.dtype,
		.params = p->params,
	};
	if (l->kv_dtype >= 0)
		out->desc.state_dtype = (enum mx_dtype)l->kv_dtype;
	else
		out->desc.state_dtype = m->embed.dtype == MX_F32 ? MX_F32 : MX_BF16;
	mx_status st = out->ops->probe(&out->desc, r->device, r->err);
	if (st != MX_OK)
		return in_layer(r, p, layer, st);
	if ((st = out->ops->state(&out->desc, r->device, &out->state)) != MX_OK)
		return mx_fail(r->err, st, "mixer %s cannot say the memory of layer %u", p->mixer, layer);
	if (l->ranks > 1)
		most_scratch(r, out);
	return mixer_weights(r, p, out);
}

/* Reads a tensor of one element; 1 if there is none. */
static mx_status resolve_scalar(struct mx_resolver *r, const char *name, float *out)
{
	const struct mx_tensor *t;
	*out = 1;
	if (!name)
		return MX_OK;
	mx_status st = mx_resolve_find(r, name, &t, r->err);
	if (st != MX_OK)
		return st;
	if (t->bytes != mx_dtype_size(t->dtype))
		return mx_fail_at(r->err, MX_E_FORMAT, t->file,
		                  "tensor '%.160s' has more than the one element it must have", t->name);
	mx_convert(out, MX_F32, t->data, t->dtype, 1);
	return MX_OK;
}

/* Finds what an aside has beside its mixer and feed-forward. */
static mx_status resolve_aside(struct mx_resolver *r, const struct mx_plan_aside *p, uint32_t layer,
                               struct mx_model_aside *out)
{
	const struct mx_plan *plan = r->model->plan;
	if (r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "layer %u has a shared block beside the hidden states, which runs on CPUs "
		               "only",
		               layer);
	r->model->asides = true;
	mx_status st = mx_need_vector_1d(r, p->norm, 2 * plan->width, plan->norm_plus_one ? 1 : 0,
	                                 &out->norm.weight);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->mlp_norm, &out->mlp_norm);
	return st == MX_OK ? mx_need_matrix_2d(r, p->out, plan->width, plan->width, &out->out) : st;
}

/* Fails if the block is not one of those that ranks can share. */
static mx_status check_split(struct mx_resolver *r, const struct mx_plan_block *p, uint32_t layer,
                             const struct mx_model_block *out)
{
	const char *what = NULL;
	const bool normed = out > r->model->blocks && out[-1].post_norm.weight;
	if (p->kind == MX_BLOCK_EXPERTS && p->experts.interleaved)
		what = "experts whose gate and up alternate";
	else if (p->kind == MX_BLOCK_EXPERTS && (p->experts.post_norm || p->experts.shared_post_norm))
		what = "norms of experts' outputs";
	else if (p->kind == MX_BLOCK_ASIDE)
		what = "a shared block beside the hidden states";
	else if (p->kind == MX_BLOCK_MLP && p->mlp.from_input)
		what = "inputs of layers";
	else if (p->parallel && (p->post_norm || normed))
		what = "a norm behind parallel blocks";
	if (!what)
		return MX_OK;
	return mx_fail_at(r->err, MX_E_UNSUPPORTED, "parallel.tensor",
	                  "layer %u has %s, which are not split over ranks yet", layer, what);
}

static mx_status resolve_block(struct mx_resolver *r, const struct mx_plan_block *p, uint32_t layer,
                               struct mx_model_block *out)
{
	struct mx_model *m = r->model;
	out->kind = p->kind;
	out->layer = layer;
	out->first_use = m->n_uses;
	out->first_vector = m->n_vectors;
	out->residual_scale = p->residual_scale;
	out->carried = p->carried;
	out->parallel = p->parallel;
	mx_status st = mx_resolve_norm(r, p->norm, &out->norm);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->post_norm, &out->post_norm);
	if (st == MX_OK)
		st = resolve_scalar(r, p->scalar, &out->scalar);
	if (st != MX_OK)
		return st;
	if (r->limits->ranks > 1 && (st = check_split(r, p, layer, out)) != MX_OK)
		return st;
	out->mlp.input_at = (size_t)layer * m->plan->inputs.width;
	if (p->kind == MX_BLOCK_MLP)
		return resolve_mlp(r, &p->mlp, &out->mlp);
	if (p->kind == MX_BLOCK_EXPERTS) {
		st = mx_resolve_experts(r, &p->experts, &out->experts);
		return st != MX_OK || !p->mlp.width ? st : resolve_mlp(r, &p->mlp, &out->mlp);
	}
	if (p->kind == MX_BLOCK_ASIDE) {
		st = resolve_aside(r, &p->aside, layer, &out->aside);
		if (st == MX_OK)
			st = resolve_mlp(r, &p->mlp, &out->mlp);
		if (st != MX_OK)
			return st;
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

/* Returns f as a number of the type. */
static float rounded(float f, enum mx_dtype dtype)
{
	int exponent, bits = dtype == MX_F16 ? 11 : 8;
	if (dtype == MX_F32)
		return f;
	f = frexpf(f, &exponent);
	return ldexpf(nearbyintf(ldexpf(f, bits)), exponent - bits);
}

/* Finds what layers get beside the hidden states. */
static mx_status resolve_inputs(struct mx_resolver *r, const struct mx_plan_inputs *p,
                                struct mx_model_inputs *out)
{
	struct mx_model *m = r->model;
	uint64_t all = (uint64_t)p->width * m->plan->n_layers;
	if (!p->width)
		return MX_OK;
	if (r->device->info.own_memory)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "%s: embeddings in each layer run on CPUs only",
		               p->embed);
	if (all > UINT32_MAX)
		return mx_fail(r->err, MX_E_RANGE, "%s: has more than 2^32 columns", p->embed);
	out->width = p->width;
	const struct mx_weight_spec embed = MX_WEIGHT_SPEC(p->embed, MATRIX, {p->vocab, all});
	mx_status st = mx_need_table(r, p->embed, &embed, false, &out->embed);
	if (st == MX_OK)
		st = mx_need_matrix_2d(r, p->projection, (uint32_t)all, m->plan->width, &out->projection);
	if (st == MX_OK)
		st = mx_need_vector_1d(r, p->norm, p->width, m->plan->norm_plus_one ? 1 : 0, &out->norm);
	out->embed_scale = rounded(sqrtf((float)p->width), out->embed.dtype);
	if (all > m->max_mlp) /* rows of embed are read to the feed-forward's buffer */
		m->max_mlp = (uint32_t)all;
	return st;
}

/* Finds elements [first, first + n) of the bias of lm_head. */
static mx_status resolve_logit_bias(struct mx_resolver *r, uint64_t first, uint64_t n)
{
	const struct mx_plan *p = r->model->plan;
	char name[256];
	const struct mx_weight_spec bias = MX_WEIGHT_SPEC(name, VECTOR, {p->vocab});
	const struct mx_weight_spec part = mx_weight_spec_part(bias, 0, first, n);
	mx_status st = mx_bias_name(r, p->lm_head, name, sizeof name);
	return st == MX_OK ? mx_need_vector(r, name, &part, 0, &r->model->lm_head_bias) : st;
}

/* Finds the embedding, what is added to it, and the head. The embedding is never transposed. */
static mx_status resolve_ends(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_plan *p = m->plan;
	const struct mx_tensor *t;
	struct mx_quant_matrix q;
	const bool no_head =
		mx_resolve_find(r, p->lm_head, &t, NULL) == MX_E_NOTFOUND &&
		mx_resolve_quantised(r, p->lm_head, p->vocab, p->width, &q) == MX_E_NOTFOUND;
	bool tied = p->may_be_tied && no_head;
	/* of vectors alone; the embedding is in its place, so that nothing else differs */
	m->headless = !tied && m->root && !*m->root && no_head;
	const struct mx_weight_spec embed = MX_WEIGHT_SPEC(p->embed, MATRIX, {p->vocab, p->width});
	const struct mx_weight_spec positions =
		MX_WEIGHT_SPEC(p->positions, MATRIX, {p->n_positions, p->width});
	mx_status st = mx_need_table(r, p->embed, &embed, tied && !m->headless, &m->embed);
	if (st == MX_OK && p->positions)
		st = mx_need_table(r, p->positions, &positions, false, &m->positions);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->embed_norm, &m->embed_norm);
	tied = tied || m->headless;
	/* each rank computes the logits of a part of the vocabulary */
	const uint64_t first = (uint64_t)p->vocab * r->limits->rank / r->limits->ranks;
	const uint64_t end = (uint64_t)p->vocab * (r->limits->rank + 1) / r->limits->ranks;
	struct mx_weight_spec head = embed;
	head.name = tied ? p->embed : p->lm_head;
	head = mx_weight_spec_part(head, 0, first, end - first);
	m->first_logit = (uint32_t)first;
	if (st == MX_OK)
		st = mx_need_table(r, head.name, &head, !m->headless, &m->lm_head);
	if (st == MX_OK && p->lm_head_bias)
		st = resolve_logit_bias(r, first, end - first);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->final_norm, &m->final_norm);
	m->embed_scale = p->embed_scale;
	if (p->embed_scale_rounds)
		m->embed_scale = rounded(p->embed_scale, m->embed.dtype);
	return st == MX_OK ? resolve_inputs(r, &p->inputs, &m->inputs) : st;
}

/* Finds the head's tensors, after all others; `out` are its blocks. */
static mx_status resolve_head(struct mx_resolver *r, struct mx_model_block *out)
{
	struct mx_model *m = r->model;
	const struct mx_plan_head *p = &m->plan->head;
	struct mx_model_head *h = &m->head;
	const uint64_t width = m->plan->width;
	mx_status st = MX_OK;
	for (uint32_t b = 0; b < p->layer->n_blocks && st == MX_OK; b++)
		st = resolve_block(r, &p->layer->blocks[b], m->plan->n_layers, &out[b]);
	/* each rank projects to a part of the hidden state */
	const uint64_t first = width * r->limits->rank / r->limits->ranks;
	const uint64_t end = width * (r->limits->rank + 1) / r->limits->ranks;
	const struct mx_weight_spec whole = MX_WEIGHT_SPEC(p->projection, MATRIX, {width, 2 * width});
	const struct mx_weight_spec part = mx_weight_spec_part(whole, 0, first, end - first);
	h->first = (uint32_t)first;
	if (st == MX_OK)
		st = mx_need_matrix(r, p->projection, &part, &h->projection);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->embed_norm, &h->embed_norm);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->hidden_norm, &h->hidden_norm);
	if (st == MX_OK)
		st = mx_resolve_norm(r, p->final_norm, &h->final_norm);
	return st;
}

/* Fails if the plan's head is to be used and cannot be. */
static mx_status check_head(struct mx_resolver *r)
{
	const struct mx_plan *p = r->model->plan;
	const struct mx_tensor *t;
	const char *where = "speculation.source";
	struct mx_quant_matrix q;
	if (!r->limits->head)
		return MX_OK;
	if (!p->head.n)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, where,
		                  "mtp: this model (%s) has no head for multi-token prediction that is "
		                  "known: say none, ngram or draft",
		                  p->family);
	if (p->head.n > 1)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, where,
		                  "mtp: this model has %u heads for multi-token prediction, and models of "
		                  "more than one are not supported: say none, ngram or draft",
		                  p->head.n);
	if (mx_resolve_find(r, p->head.projection, &t, NULL) == MX_E_NOTFOUND &&
	    mx_resolve_quantised(r, p->head.projection, p->width, 2 * p->width, &q) == MX_E_NOTFOUND)
		return mx_fail_at(
			r->err, MX_E_NOTFOUND, where,
			"mtp: the checkpoint lacks the head for multi-token prediction: it has no "
			"tensor '%s'",
			p->head.projection);
	return MX_OK;
}

static mx_status resolve_all(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_plan *p = m->plan;
	mx_status st = mx_resolve_root(r);
	if (st == MX_OK)
		st = check_head(r);
	if (st == MX_OK)
		st = resolve_ends(r);
	if (st != MX_OK)
		return st;
	for (uint32_t i = 0; i < p->n_layers; i++)
		m->n_own += p->layers[i].n_blocks;
	m->head.on = r->limits->head;
	m->n_blocks = m->n_own + (m->head.on ? p->head.layer->n_blocks : 0);
	m->blocks = mx_arena_alloc(&m->arena, m->n_blocks * sizeof *m->blocks);
	if (!m->blocks)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	struct mx_model_block *out = m->blocks;
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t b = 0; b < p->layers[i].n_blocks; b++)
			if ((st = resolve_block(r, &p->layers[i].blocks[b], i, out++)) != MX_OK)
				return st;
	st = m->head.on ? resolve_head(r, out) : MX_OK;
	if (st == MX_OK && !r->limits->rank) /* the first rank uses every tensor */
		st = mx_resolve_unused(r);
	return st == MX_OK ? mx_resolve_totals(r) : st;
}

mx_status mx_model_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                           const struct mx_registry *registry, const struct mx_device *device,
                           const struct mx_model_limits *limits, struct mx_model *out,
                           struct mx_err *err)
{
	/* Built in place: struct mx_model_vector.dest points into *out. */
	*out = (struct mx_model){.plan = plan, .checkpoint = checkpoint};
	struct mx_model_limits l = *limits;
	l.ranks = l.ranks ? l.ranks : 1;
	l.contexts = l.contexts ? l.contexts : 1;
	struct mx_resolver r = {out, registry, device, &l, err, false, false, false};
	mx_status st = resolve_all(&r);
	if (st != MX_OK)
		mx_model_free(out);
	return st;
}

void mx_model_free(struct mx_model *m)
{
	if (m->packed_map)
		mx_unmap(m->packed_map, m->packed_bytes);
	if (m->made_map)
		mx_unmap(m->made_map, m->made_bytes);
	mx_arena_free(&m->arena);
	*m = (struct mx_model){0};
}
