/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/convert.h"

#define VECTOR_ALIGN 64

/* Of matrices in a device's own memory: rows of real models are multiples of it, so that nothing
 * stands between two of them. */
#define MATRIX_ALIGN 256

struct resolver {
	struct mx_model *model;
	const struct mx_registry *registry;
	const struct mx_device *device;
	const struct mx_model_limits *limits;
	struct mx_err *err;
};

static bool has_own_memory(const struct mx_device *d)
{
	return d->info.own_memory;
}

/* ---- tensors ---- */

static void print_shape(char *text, size_t cap, const uint64_t *shape, uint32_t ndim)
{
	size_t at = 0;
	for (uint32_t i = 0; i < ndim && at < cap; i++)
		at += (size_t)snprintf(text + at, cap - at, "%s%llu", i ? ", " : "",
		                       (unsigned long long)shape[i]);
	if (!ndim)
		text[0] = 0;
}

static mx_status check_tensor(const struct mx_tensor *t, const uint64_t *shape, uint32_t ndim,
                              struct mx_err *err)
{
	if (t->ndim != ndim || memcmp(t->shape, shape, ndim * sizeof *shape)) {
		char has[128], wants[128];
		print_shape(has, sizeof has, t->shape, t->ndim);
		print_shape(wants, sizeof wants, shape, ndim);
		return mx_fail_at(err, MX_E_FORMAT, t->file,
		                  "tensor '%.160s' has shape [%s] where config.json asks for [%s]", t->name,
		                  has, wants);
	}
	if ((uintptr_t)t->data % mx_dtype_size(t->dtype))
		return mx_fail_at(err, MX_E_FORMAT, t->file,
		                  "tensor '%.160s' is not aligned to its %zu-byte elements", t->name,
		                  mx_dtype_size(t->dtype));
	return MX_OK;
}

/* Grows *list by one entry of `size` bytes; the old array stays in the arena until the end. */
static void *push(struct mx_arena *arena, void **list, size_t *n, size_t *cap, size_t size)
{
	if (*n == *cap) {
		size_t more = *cap ? *cap * 2 : 64;
		void *p = mx_arena_alloc(arena, more * size);
		if (!p)
			return NULL;
		if (*n)
			memcpy(p, *list, *n * size);
		*list = p;
		*cap = more;
	}
	return (unsigned char *)*list + (*n)++ * size;
}

/* The part of axis 0 that is wanted of a tensor: all of it unless the mixer asked for a slice. */
static mx_status check_slices(struct resolver *r, const struct mx_weight_spec *spec,
                              struct mx_weight_slice *out)
{
	*out = (struct mx_weight_slice){.n = spec->ndim ? spec->shape[0] : 1};
	if (!spec->n_slices)
		return MX_OK;
	const struct mx_weight_slice *s = &spec->slices[0];
	if (spec->n_slices > 1 || s->axis)
		return mx_fail(
			r->err, MX_E_UNSUPPORTED,
			"of tensor %s a mixer wants %u slices, the first of axis %u: the engine takes "
			"one, of axis 0",
			spec->name, spec->n_slices, s->axis);
	if (!s->n || s->first > out->n || s->n > out->n - s->first)
		return mx_fail(r->err, MX_E_INTERNAL,
		               "a mixer wants rows %llu .. of tensor %s, which has %llu",
		               (unsigned long long)s->first, spec->name, (unsigned long long)out->n);
	*out = *s;
	return MX_OK;
}

/* `name` is the whole name of the tensor that spec names. */
static mx_status need_matrix(struct resolver *r, const char *name,
                             const struct mx_weight_spec *spec, struct mx_weight *out)
{
	struct mx_model *m = r->model;
	const struct mx_tensor *t;
	mx_status st = mx_checkpoint_find(m->checkpoint, name, &t, r->err);
	struct mx_weight_slice rows;
	if (st == MX_OK)
		st = check_tensor(t, spec->shape, spec->ndim, r->err);
	if (st == MX_OK)
		st = check_slices(r, spec, &rows);
	if (st != MX_OK)
		return st;
	uint64_t cols = 1;
	for (uint32_t i = 1; i < spec->ndim; i++)
		cols *= spec->shape[i];
	if (!spec->ndim || !rows.n || !cols || spec->shape[0] > UINT32_MAX || cols > UINT32_MAX)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, name, "tensor %s has an unusable shape", name);
	const struct mx_weight whole = {t->dtype, (uint32_t)spec->shape[0], (uint32_t)cols, t->data};
	*out = mx_weight_rows(&whole, (uint32_t)rows.first, (uint32_t)rows.n);
	if (out->cols > m->max_cols)
		m->max_cols = out->cols;
	struct mx_model_use *use =
		push(&m->arena, (void **)&m->uses, &m->n_uses, &m->cap_uses, sizeof *use);
	if (!use)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*use = (struct mx_model_use){t, out, (uint32_t)rows.first};
	return MX_OK;
}

static mx_status need_vector(struct resolver *r, const char *name,
                             const struct mx_weight_spec *spec, float **dest)
{
	struct mx_model *m = r->model;
	const struct mx_tensor *t;
	mx_status st = mx_checkpoint_find(m->checkpoint, name, &t, r->err);
	struct mx_weight_slice part;
	if (st == MX_OK)
		st = check_tensor(t, spec->shape, spec->ndim, r->err);
	if (st == MX_OK)
		st = check_slices(r, spec, &part);
	if (st != MX_OK)
		return st;
	size_t same = 0, n = t->bytes / mx_dtype_size(t->dtype);
	while (same < m->n_vectors && m->vectors[same].tensor != t)
		same++;
	bool copied = same < m->n_vectors;
	struct mx_model_vector *v =
		push(&m->arena, (void **)&m->vectors, &m->n_vectors, &m->cap_vectors, sizeof *v);
	if (!v)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*v = (struct mx_model_vector){
		.tensor = t,
		.dest = dest,
		.same = copied ? same : SIZE_MAX,
		.n = n,
		.first = spec->ndim ? n / spec->shape[0] * part.first : 0,
	};
	if (copied)
		return MX_OK;
	m->private_bytes += mx_round_up(v->n * sizeof(float), VECTOR_ALIGN);
	m->mapped_bytes += t->bytes;
	return MX_OK;
}

static mx_status matrix_2d(struct resolver *r, const char *name, uint32_t rows, uint32_t cols,
                           struct mx_weight *out)
{
	const struct mx_weight_spec spec = MX_WEIGHT_SPEC(name, MATRIX, {rows, cols});
	return need_matrix(r, name, &spec, out);
}

static mx_status vector_1d(struct resolver *r, const char *name, uint32_t n, float **dest)
{
	const struct mx_weight_spec spec = MX_WEIGHT_SPEC(name, VECTOR, {n});
	return need_vector(r, name, &spec, dest);
}

/* ---- blocks ---- */

/* A bias stands beside its weight: "x.weight" -> "x.bias". */
static mx_status bias_beside(struct resolver *r, const char *weight, uint32_t n, float **dest)
{
	char name[256];
	size_t stem = strlen(weight);
	if (stem > 7 && !strcmp(weight + stem - 7, ".weight"))
		stem -= 7;
	if (snprintf(name, sizeof name, "%.*s.bias", (int)stem, weight) >= (int)sizeof name)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", weight);
	return vector_1d(r, name, n, dest);
}

/* Tensors of the plan's kind of norm. */
static mx_status resolve_norm(struct resolver *r, const char *weight, struct mx_model_norm *out)
{
	const struct mx_plan *p = r->model->plan;
	mx_status st = vector_1d(r, weight, p->width, &out->weight);
	if (st != MX_OK || p->norm == MX_NORM_RMS)
		return st;
	if (has_own_memory(r->device))
		return mx_fail(r->err, MX_E_UNSUPPORTED, "norm %s is a LayerNorm, which runs on CPUs only",
		               weight);
	return bias_beside(r, weight, p->width, &out->bias);
}

static mx_status resolve_mlp(struct resolver *r, const struct mx_plan_mlp *p,
                             struct mx_model_mlp *out)
{
	uint32_t width = r->model->plan->width;
	bool gated = p->kind == MX_MLP_SWIGLU;
	out->kind = p->kind;
	out->width = p->width;
	if (p->width > r->model->max_mlp)
		r->model->max_mlp = p->width;
	if (!gated && has_own_memory(r->device))
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "the feed-forward %s has GELU, which runs on CPUs only", p->up);
	mx_status st = gated ? matrix_2d(r, p->gate, p->width, width, &out->gate) : MX_OK;
	if (st == MX_OK)
		st = matrix_2d(r, p->up, p->width, width, &out->up);
	if (st == MX_OK)
		st = matrix_2d(r, p->down, width, p->width, &out->down);
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

/* The weights of expert i, all without bias. */
static mx_status resolve_expert(struct resolver *r, const struct mx_plan_experts *p, uint32_t i,
                                struct mx_model_mlp *out)
{
	char gate[256], up[256], down[256];
	int n = snprintf(gate, sizeof gate, "%s%u.gate_proj.weight", p->prefix, i);
	snprintf(up, sizeof up, "%s%u.up_proj.weight", p->prefix, i);
	snprintf(down, sizeof down, "%s%u.down_proj.weight", p->prefix, i);
	if (n >= (int)sizeof gate)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", gate);
	const struct mx_plan_mlp mlp = {.gate = gate, .up = up, .down = down, .width = p->width};
	return resolve_mlp(r, &mlp, out);
}

static mx_status resolve_experts(struct resolver *r, const struct mx_plan_block *b,
                                 struct mx_model_block *out)
{
	struct mx_model *m = r->model;
	const struct mx_plan_experts *p = &b->experts;
	struct mx_model_experts *x = &out->experts;
	const struct mx_tensor *t;
	mx_status st = matrix_2d(r, p->router, p->n, m->plan->width, &x->router);
	if (st != MX_OK)
		return st;
	x->n = p->n;
	x->chosen = p->chosen;
	x->normalize = p->normalize;
	if (p->n > m->max_experts)
		m->max_experts = p->n;
	if (p->chosen > m->max_chosen)
		m->max_chosen = p->chosen;
	x->experts = mx_arena_alloc(&m->arena, p->n * sizeof *x->experts);
	if (!x->experts)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (uint32_t i = 0; i < p->n && st == MX_OK; i++)
		st = resolve_expert(r, p, i, &x->experts[i]);
	if (st != MX_OK || !b->mlp.width)
		return st;
	st = resolve_mlp(r, &b->mlp, &out->mlp);
	if (st == MX_OK && mx_checkpoint_find(m->checkpoint, p->shared_gate, &t, NULL) == MX_OK)
		st = matrix_2d(r, p->shared_gate, 1, m->plan->width, &x->shared_gate);
	return st;
}

static mx_status mixer_weights(struct resolver *r, const struct mx_plan_mixer *p,
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
		/* A name with a '/' in front is a tensor of the model's, which layers may share. */
		bool whole = specs[i].name[0] == '/';
		char name[256];
		if (snprintf(name, sizeof name, "%s%s", whole ? "" : p->prefix, specs[i].name + whole) >=
		    (int)sizeof name)
			return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", name);
		const struct mx_tensor *t;
		if (specs[i].optional && mx_checkpoint_find(m->checkpoint, name, &t, NULL) == MX_E_NOTFOUND)
			continue;
		if (specs[i].form == MX_WEIGHT_MATRIX)
			st = need_matrix(r, name, &specs[i], &out->matrices[i]);
		else
			st = need_vector(r, name, &specs[i], &out->vectors[i]);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* Says in *r->err which layer a mixer complains of, as the config names it. */
static mx_status in_layer(struct resolver *r, uint32_t layer, mx_status st)
{
	bool ours = !strcmp(r->model->plan->family, "mixd");
	if (r->err && !r->err->where[0])
		snprintf(r->err->where, sizeof r->err->where, ours ? "mixd_layers[%u]" : "layer %u", layer);
	return st;
}

static mx_status resolve_mixer(struct resolver *r, const struct mx_plan_mixer *p, uint32_t layer,
                               struct mx_model_mixer *out)
{
	struct mx_model *m = r->model;
	const struct mx_model_limits *l = r->limits;
	out->ops = mx_registry_find(r->registry, p->mixer, r->device->info.kind, r->err);
	if (!out->ops && has_own_memory(r->device))
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

static mx_status resolve_block(struct resolver *r, const struct mx_plan_block *p, uint32_t layer,
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
	if (p->kind == MX_BLOCK_EXPERTS && has_own_memory(r->device))
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "layer %u is a mixture of experts, which runs on CPUs only", layer);
	if (p->kind == MX_BLOCK_EXPERTS)
		return resolve_experts(r, p, out);
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

/* ---- what the mixers need together ---- */

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t t = a % b;
		a = b;
		b = t;
	}
	return a;
}

/* The least multiple of every mixer's page_multiple that is at least what was wanted. */
static mx_status choose_page_tokens(struct resolver *r)
{
	struct mx_model *m = r->model;
	uint64_t lcm = 1, wanted = r->limits->max_context;
	for (uint32_t b = 0; b < m->n_blocks; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers; i++) {
			const struct mx_state_spec *state = &m->blocks[b].mixers[i].state;
			if (state->bytes_per_token)
				wanted = r->limits->page_tokens;
			if (state->page_multiple)
				lcm = lcm / gcd(lcm, state->page_multiple) * state->page_multiple;
			if (lcm > 1 << 20)
				return mx_fail(r->err, MX_E_UNSUPPORTED, "the mixers agree on no page size");
		}
	m->page_tokens = (uint32_t)((wanted + lcm - 1) / lcm * lcm);
	return MX_OK;
}

/* The group of that module, made if need be; NULL with *r->err filled. */
static struct mx_model_group *group_of(struct resolver *r, const struct mx_mixer_ops *ops)
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

/* Finds the mixer's place in pages, slots and snapshots. */
static mx_status add_up(struct resolver *r, struct mx_model_mixer *x)
{
	struct mx_model *m = r->model;
	size_t align = r->device->info.align;
	if (x->state.bytes_per_token > SIZE_MAX / 2 / m->page_tokens - m->page_bytes)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "a page of this model is too large");
	size_t page = mx_round_up(x->state.bytes_per_token * m->page_tokens, align);
	size_t slot = mx_round_up(x->state.fixed_bytes, align);
	size_t snapshot = mx_round_up(x->state.snapshot_bytes, align);
	x->page_offset = m->page_bytes;
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
	struct mx_model_group *group = group_of(r, x->ops);
	if (!group)
		return MX_E_UNSUPPORTED;
	if (page && x->ops->caps & MX_MIXER_EXTENT) {
		const struct mx_model_mixer **to =
			push(&m->arena, (void **)&m->reaching, &m->n_reaching, &m->cap_reaching, sizeof *to);
		if (!to)
			return mx_fail(r->err, MX_E_NOMEM, "out of memory");
		*to = x;
	} else {
		m->keeps_pages |= page > 0;
	}
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

static int by_tensor(const void *a, const void *b)
{
	const struct mx_model_matrix *x = a, *y = b;
	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* Each matrix once, tied ones too, and what is mapped of the checkpoint. */
static mx_status count_matrices(struct resolver *r)
{
	struct mx_model *m = r->model;
	size_t n = 0;
	m->matrices = mx_arena_alloc(&m->arena, m->n_uses * sizeof *m->matrices);
	if (!m->matrices)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (size_t i = 0; i < m->n_uses; i++)
		m->matrices[i] = (struct mx_model_matrix){m->uses[i].tensor, SIZE_MAX};
	qsort(m->matrices, m->n_uses, sizeof *m->matrices, by_tensor);
	for (size_t i = 0; i < m->n_uses; i++)
		if (!n || m->matrices[n - 1].tensor != m->matrices[i].tensor) {
			m->matrices[n++] = m->matrices[i];
			m->mapped_bytes += m->matrices[i].tensor->bytes;
		}
	m->n_matrices = n;
	return MX_OK;
}

static struct mx_model_matrix *matrix_of(const struct mx_model *m, const struct mx_model_use *use)
{
	const struct mx_model_matrix key = {.tensor = use->tensor};
	return bsearch(&key, m->matrices, m->n_matrices, sizeof key, by_tensor);
}

size_t mx_model_offset(const struct mx_model *m, const struct mx_model_use *use)
{
	return matrix_of(m, use)->offset;
}

/* Gives every matrix its place in the device's memory, where it is used first. */
static void find_places(struct mx_model *m, const struct mx_device *device)
{
	for (size_t i = 0; has_own_memory(device) && i < m->n_uses; i++) {
		struct mx_model_matrix *x = matrix_of(m, &m->uses[i]);
		if (x->offset != SIZE_MAX)
			continue;
		x->offset = m->weight_bytes;
		size_t n = x->tensor->bytes / mx_dtype_size(x->tensor->dtype);
		m->weight_bytes += mx_round_up(n * mx_dtype_size(device->info.act_dtype), MATRIX_ALIGN);
	}
}

static mx_status sum_up(struct resolver *r)
{
	struct mx_model *m = r->model;
	mx_status st = choose_page_tokens(r);
	if (st == MX_OK)
		st = count_matrices(r);
	if (st != MX_OK)
		return st;
	find_places(m, r->device);
	m->can_share = true;
	for (uint32_t b = 0; b < m->n_blocks && st == MX_OK; b++) {
		m->parallel_mixers |= m->blocks[b].n_mixers > 1;
		for (uint32_t i = 0; i < m->blocks[b].n_mixers && st == MX_OK; i++)
			st = add_up(r, &m->blocks[b].mixers[i]);
	}
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

/* A checkpoint with more layers than config.json says is another model. Other tensors that no block
 * names (buffers such as rotary_emb.inv_freq) are left alone. */
static mx_status refuse_more_layers(struct resolver *r)
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

static mx_status resolve_all(struct resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_plan *p = m->plan;
	mx_status st = matrix_2d(r, p->embed, p->vocab, p->width, &m->embed);
	if (st == MX_OK)
		st = matrix_2d(r, p->lm_head, p->vocab, p->width, &m->lm_head);
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
	return st == MX_OK ? sum_up(r) : st;
}

mx_status mx_model_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                           const struct mx_registry *registry, const struct mx_device *device,
                           const struct mx_model_limits *limits, struct mx_model *out,
                           struct mx_err *err)
{
	/* In place: the vectors' destinations are addresses in *out. */
	*out = (struct mx_model){.plan = plan, .checkpoint = checkpoint};
	struct resolver r = {out, registry, device, limits, err};
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

/* ---- vectors ---- */

void mx_model_convert(struct mx_model *m, unsigned char *at, unsigned char *base)
{
	for (size_t i = 0; i < m->n_vectors; i++) {
		struct mx_model_vector *v = &m->vectors[i];
		v->copy = (float *)(void *)base;
		if (v->same != SIZE_MAX)
			v->copy = m->vectors[v->same].copy;
		*v->dest = v->copy + v->first;
		if (v->same != SIZE_MAX)
			continue;
		mx_convert(at, MX_F32, v->tensor->data, v->tensor->dtype, v->n);
		at += mx_round_up(v->n * sizeof(float), VECTOR_ALIGN);
		base += mx_round_up(v->n * sizeof(float), VECTOR_ALIGN);
	}
}

void mx_model_place(struct mx_model *m, unsigned char *base, enum mx_dtype dtype)
{
	for (size_t i = 0; i < m->n_uses; i++) {
		const struct mx_model_use *use = &m->uses[i];
		size_t before = (size_t)use->first * use->weight->cols * mx_dtype_size(dtype);
		use->weight->data = base + mx_model_offset(m, use) + before;
		use->weight->dtype = dtype;
	}
}
