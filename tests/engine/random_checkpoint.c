/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/random_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/engine/random_model.h"
#include "device/cpu/cpu.h"
#include "model/plan.h"

enum { MAX_TENSORS = 4096 };

struct list {
	struct mx_random_tensor *items; /* [MAX_TENSORS] */
	size_t n;
	mx_status status;
};

static void add(struct list *l, const char *name, uint32_t ndim, const uint64_t *shape)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->items[i].name, name)) /* tied, or shared by layers */
			return;
	if (l->n == MAX_TENSORS) {
		l->status = MX_E_LIMIT;
		return;
	}
	struct mx_random_tensor *t = &l->items[l->n++];
	uint64_t cols = 1;
	snprintf(t->name, sizeof t->name, "%s", name);
	t->ndim = ndim;
	memcpy(t->shape, shape, ndim * sizeof *shape);
	for (uint32_t i = 1; i < ndim; i++)
		cols *= shape[i];
	t->scale = ndim > 1 ? mx_random_scale(cols) : 0.5f;
	size_t len = strlen(name);
	bool bias = len > 5 && !strcmp(name + len - 5, ".bias");
	if (strstr(name, "norm") && !bias) {
		t->scale = 0.25f;
		t->offset = 1;
	} else if (strstr(name, "dt_bias")) {
		t->offset = -3;
	}
}

static void add_matrix(struct list *l, const char *name, uint64_t rows, uint64_t cols)
{
	const uint64_t shape[2] = {rows, cols};
	add(l, name, 2, shape);
}

static void add_vector(struct list *l, const char *name, uint64_t n)
{
	add(l, name, 1, &n);
}

/* "x.weight" -> "x.bias" */
static void add_bias(struct list *l, const char *weight, uint64_t n)
{
	char name[256];
	snprintf(name, sizeof name, "%.*sbias", (int)(strlen(weight) - strlen("weight")), weight);
	add_vector(l, name, n);
}

static void add_norm(struct list *l, const struct mx_plan *p, const char *weight)
{
	if (!weight)
		return;
	add_vector(l, weight, p->width);
	if (p->norm == MX_NORM_LAYER)
		add_bias(l, weight, p->width);
}

static void add_mlp(struct list *l, const struct mx_plan_mlp *m, uint64_t width)
{
	const char *const weights[3] = {m->gate, m->up, m->down};
	for (int i = m->gate && !m->fused ? 0 : 1; i < 3; i++) {
		uint64_t rows = i < 2 ? m->width << m->fused : width, cols = i < 2 ? width : m->width;
		add_matrix(l, weights[i], rows, cols);
		if (m->bias)
			add_bias(l, weights[i], rows);
	}
}

static void add_fused_experts(struct list *l, const struct mx_plan_experts *x, uint64_t width)
{
	const uint64_t up = 2ull * x->width, down = x->width;
	const uint64_t up_shape[3] = {x->n, x->interleaved ? width : up, x->interleaved ? up : width};
	const uint64_t down_shape[3] = {x->n, x->interleaved ? down : width,
	                                x->interleaved ? width : down};
	add(l, x->fused_up, 3, up_shape);
	add(l, x->fused_down, 3, down_shape);
	if (x->interleaved) {
		char bias[128];
		snprintf(bias, sizeof bias, "%s_bias", x->fused_up);
		add_matrix(l, bias, x->n, up);
		snprintf(bias, sizeof bias, "%s_bias", x->fused_down);
		add_matrix(l, bias, x->n, width);
	}
}

static void add_experts(struct list *l, const struct mx_plan_block *b, uint64_t width)
{
	const struct mx_plan_experts *x = &b->experts;
	add_matrix(l, x->router, x->n, width);
	if (x->router_bias)
		add_vector(l, x->router_bias, x->n);
	if (x->correction)
		add_vector(l, x->correction, x->n);
	if (!x->list)
		add_fused_experts(l, x, width);
	for (uint32_t i = 0; x->list && i < x->n; i++) {
		char gate[128], up[128], down[128];
		snprintf(gate, sizeof gate, "%s%u%s", x->list, i, x->gate);
		snprintf(up, sizeof up, "%s%u%s", x->list, i, x->up);
		snprintf(down, sizeof down, "%s%u%s", x->list, i, x->down);
		const struct mx_plan_mlp m = {.gate = gate, .up = up, .down = down, .width = x->width};
		add_mlp(l, &m, width);
	}
	if (b->mlp.width)
		add_mlp(l, &b->mlp, width);
	if (x->shared_gate)
		add_matrix(l, x->shared_gate, 1, width);
}

static mx_status add_mixer(struct list *l, const struct mx_plan *p, uint32_t layer,
                           const struct mx_plan_mixer *m, const struct mx_registry *mixers,
                           const struct mx_device *device, struct mx_err *err)
{
	const struct mx_mixer_ops *ops = mx_registry_find(mixers, m->mixer, device->info.kind, err);
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS];
	size_t n = 0;
	const struct mx_layer_desc desc = {
		.index = layer,
		.n_layers = p->n_layers,
		.width = p->width,
		.max_context = p->max_context,
		.max_rows = 512,
		.max_spans = 16,
		.weight_dtype = MX_F32,
		.state_dtype = MX_F32,
		.params = m->params,
	};
	if (!ops)
		return MX_E_NOTFOUND;
	mx_status st = ops->probe(&desc, device, err);
	if (st == MX_OK)
		st = ops->weights(&desc, specs, &n);
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		bool whole = specs[i].name[0] == '/';
		char name[128];
		snprintf(name, sizeof name, "%s%s", whole ? "" : m->prefix, specs[i].name + whole);
		add(l, name, specs[i].ndim, specs[i].shape);
	}
	return st;
}

static mx_status add_layer(struct list *l, const struct mx_plan *p, uint32_t layer,
                           const struct mx_registry *mixers, const struct mx_device *device,
                           struct mx_err *err)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < p->layers[layer].n_blocks; i++) {
		const struct mx_plan_block *b = &p->layers[layer].blocks[i];
		add_norm(l, p, b->norm);
		add_norm(l, p, b->post_norm);
		if (b->kind == MX_BLOCK_MLP)
			add_mlp(l, &b->mlp, p->width);
		if (b->kind == MX_BLOCK_EXPERTS)
			add_experts(l, b, p->width);
		for (uint32_t k = 0; k < b->n_mixers && st == MX_OK; k++)
			st = add_mixer(l, p, layer, &b->mixers[k], mixers, device, err);
	}
	return st;
}

static mx_status list_tensors(struct list *l, const struct mx_plan *p,
                              const struct mx_registry *mixers, struct mx_err *err)
{
	struct mx_device *device = NULL;
	mx_status st = mx_cpu_create(1, mx_cpu_isa(), 1, 64, &device, err);
	if (st != MX_OK)
		return st;
	add_matrix(l, p->embed, p->vocab, p->width);
	add_matrix(l, p->lm_head, p->vocab, p->width);
	add_norm(l, p, p->embed_norm);
	add_norm(l, p, p->final_norm);
	for (uint32_t i = 0; i < p->n_layers && st == MX_OK; i++)
		st = add_layer(l, p, i, mixers, device, err);
	mx_cpu_destroy(device);
	return st != MX_OK ? st : l->status;
}

mx_status random_checkpoint_write(const char *dir, const char *config,
                                  const struct mx_registry *mixers, enum mx_dtype dtype,
                                  uint64_t seed, struct mx_err *err)
{
	struct mx_plan *plan = NULL;
	struct list l = {.items = calloc(MAX_TENSORS, sizeof *l.items)};
	if (!l.items)
		return MX_E_NOMEM;
	mx_status st = mx_plan_parse(config, strlen(config), NULL, 0, &plan, err);
	if (st == MX_OK)
		st = list_tensors(&l, plan, mixers, err);
	if (st == MX_OK)
		st = mx_random_config_write(dir, config, err);
	if (st == MX_OK)
		st = mx_random_tensors_write(dir, l.items, l.n, dtype, seed, err);
	mx_plan_destroy(plan);
	free(l.items);
	return st;
}
