/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rwkv mixer's table: parameters, weights, memory, life cycle, state. A step is in
 * rwkv_forward.c; see README.md.
 */
#include "mixers/rwkv/rwkv.h"

#include <stdlib.h>
#include <string.h>

/* Limits far above any model, so that no product of sizes overflows. */
#define MAX_DIM   1024
#define MAX_WIDTH (1 << 20)

static mx_status read_time(const struct mx_layer_desc *layer, struct rwkv_params *p,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	const struct {
		const char *name;
		int64_t def;
		uint32_t *to;
	} sizes[] = {
		{"decay_low_rank_dim", 64, &p->rank[RWKV_W]},
		{"a_low_rank_dim", 64, &p->rank[RWKV_A]},
		{"v_low_rank_dim", 16, &p->rank[RWKV_V]},
		{"gate_low_rank_dim", 128, &p->rank[RWKV_G]},
	};
	double eps = 1e-5;
	bool fused = true;
	mx_status st = mx_param_read_u32(in, "rwkv", "head_dim", 64, 1, MAX_DIM, &p->dim, err);
	for (size_t i = 0; st == MX_OK && i < sizeof sizes / sizeof *sizes; i++)
		st = mx_param_read_u32(in, "rwkv", sizes[i].name, sizes[i].def, 1, MAX_WIDTH, sizes[i].to,
		                       err);
	if (st == MX_OK)
		st = mx_param_read_bool(in, "rwkv", "value_residual", true, &p->value_residual, err);
	if (st == MX_OK)
		st = mx_param_read_bool(in, "rwkv", "fuse_norm", true, &fused, err);
	if (st == MX_OK)
		st = mx_param_read_number(in, "rwkv", "norm_eps", 1e-5, 0, 1, &eps, err);
	if (st != MX_OK)
		return st;
	if (layer->width % p->dim)
		return mx_mixer_fail(err, MX_E_RANGE, "rwkv: head_dim %u does not divide the width %u",
		                     p->dim, layer->width);
	p->heads = layer->width / p->dim;
	p->norm_eps = (float)(eps * p->dim);
	/* flash-linear-attention's two ways to divide by the length; the second divides by at least
	 * 1e-12. */
	p->l2_eps = fused ? 1e-6f : 1e-24f;
	return MX_OK;
}

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct rwkv_params *out,
                             struct mx_err *err)
{
	static const char *const known[] = {"part",           "head_dim",         "decay_low_rank_dim",
	                                    "a_low_rank_dim", "v_low_rank_dim",   "gate_low_rank_dim",
	                                    "value_dim",      "value_residual",   "fuse_norm",
	                                    "norm_eps",       "intermediate_size"};
	const struct mx_params *in = &layer->params;
	const int64_t inner = (4 * (int64_t)layer->width + 31) / 32 * 32;
	struct rwkv_params p = {0};
	mx_status st = mx_params_known(in, known, sizeof known / sizeof *known, "rwkv", err);
	if (st != MX_OK)
		return st;
	const char *part = mx_param_string(in, "part", "time");
	if (!strcmp(part, "channel"))
		p.part = RWKV_CHANNEL;
	else if (strcmp(part, "time"))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "rwkv: part '%.60s' is none of time, channel",
		                     part);
	if (p.part == RWKV_TIME)
		st = read_time(layer, &p, err);
	else
		st = mx_param_read_u32(in, "rwkv", "intermediate_size", inner, 1, MAX_WIDTH * 4, &p.inner,
		                       err);
	if (st == MX_OK)
		*out = p;
	return st;
}

static mx_status rwkv_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_err *err)
{
	struct rwkv_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "rwkv: this module runs on CPUs in f32");
	return read_params(layer, &p, err);
}

/* ---- tensors ---- */

struct tensor {
	struct mx_weight_spec spec;
	size_t offset; /* of the pointer in struct rwkv_weights */
};

#define TENSOR(field, optional_, name, kind, ...)                                                  \
	do {                                                                                           \
		to[n] = (struct tensor){MX_WEIGHT_SPEC(name, kind, __VA_ARGS__),                           \
		                        offsetof(struct rwkv_weights, field)};                             \
		to[n++].spec.optional = optional_;                                                         \
	} while (0)

static size_t time_tensors(const struct mx_layer_desc *layer, const struct rwkv_params *p,
                           struct tensor *to)
{
	const uint64_t width = layer->width;
	const uint32_t *rank = p->rank;
	size_t n = 0;
	TENSOR(x[RWKV_X_R], true, "x_r", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_W], true, "x_w", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_K], true, "x_k", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_V], true, "x_v", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_A], true, "x_a", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_G], true, "x_g", VECTOR, {1, 1, width});
	TENSOR(x_x, true, "x_x", VECTOR, {RWKV_SHIFTS, width});
	TENSOR(r, false, "r_proj.weight", MATRIX, {width, width});
	TENSOR(k, false, "k_proj.weight", MATRIX, {width, width});
	TENSOR(v, false, "v_proj.weight", MATRIX, {width, width});
	TENSOR(o, false, "o_proj.weight", MATRIX, {width, width});
	TENSOR(down[RWKV_W], false, "w_lora.lora.0.weight", MATRIX, {rank[RWKV_W], width});
	TENSOR(up[RWKV_W], false, "w_lora.lora.2.weight", MATRIX, {width, rank[RWKV_W]});
	TENSOR(bias[RWKV_W], false, "w_lora.lora.2.bias", VECTOR, {width});
	TENSOR(down[RWKV_A], false, "a_lora.lora.0.weight", MATRIX, {rank[RWKV_A], width});
	TENSOR(up[RWKV_A], false, "a_lora.lora.2.weight", MATRIX, {width, rank[RWKV_A]});
	TENSOR(bias[RWKV_A], false, "a_lora.lora.2.bias", VECTOR, {width});
	TENSOR(down[RWKV_G], false, "g_lora.lora.0.weight", MATRIX, {rank[RWKV_G], width});
	TENSOR(up[RWKV_G], false, "g_lora.lora.2.weight", MATRIX, {width, rank[RWKV_G]});
	if (p->value_residual) {
		TENSOR(down[RWKV_V], false, "v_lora.lora.0.weight", MATRIX, {rank[RWKV_V], width});
		TENSOR(up[RWKV_V], false, "v_lora.lora.2.weight", MATRIX, {width, rank[RWKV_V]});
		TENSOR(bias[RWKV_V], false, "v_lora.lora.2.bias", VECTOR, {width});
	}
	TENSOR(k_k, false, "k_k", VECTOR, {width});
	TENSOR(k_a, false, "k_a", VECTOR, {width});
	TENSOR(r_k, false, "r_k", VECTOR, {p->heads, p->dim});
	TENSOR(norm, false, "g_norm.weight", VECTOR, {width});
	TENSOR(norm_bias, false, "g_norm.bias", VECTOR, {width});
	return n;
}

/* Lists all tensors of a layer, at most MX_MIXER_MAX_WEIGHTS; returns their number. */
static size_t tensors(const struct mx_layer_desc *layer, const struct rwkv_params *p,
                      struct tensor *to)
{
	size_t n = 0;
	if (p->part == RWKV_TIME)
		return time_tensors(layer, p, to);
	TENSOR(x[RWKV_X_K], false, "x_k", VECTOR, {layer->width});
	TENSOR(key, false, "key.weight", MATRIX, {p->inner, layer->width});
	TENSOR(value, false, "value.weight", MATRIX, {layer->width, p->inner});
	return n;
}

static mx_status rwkv_tensors(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct rwkv_params p;
	struct tensor list[MX_MIXER_MAX_WEIGHTS];
	mx_status st = read_params(layer, &p, NULL);
	if (st != MX_OK)
		return st;
	*out_n = tensors(layer, &p, list);
	for (size_t i = 0; i < *out_n; i++)
		specs[i] = list[i].spec;
	return MX_OK;
}

/* Stores the pointers. The first version of flash-linear-attention's checkpoints has the six
 * vectors of the shift in one tensor. */
static mx_status take_weights(struct mx_mixer *m, const struct mx_mixer_init *init,
                              struct mx_err *err)
{
	struct tensor list[MX_MIXER_MAX_WEIGHTS];
	size_t n = tensors(init->layer, &m->params, list);
	for (size_t i = 0; i < n; i++)
		memcpy((unsigned char *)&m->w + list[i].offset, &init->weights[i], sizeof(void *));
	for (int i = 0; m->params.part == RWKV_TIME && i < RWKV_SHIFTS; i++) {
		if (m->w.x_x)
			m->w.x[i] = m->w.x_x + (size_t)i * m->width;
		if (!m->w.x[i])
			return mx_mixer_fail(err, MX_E_FORMAT, "rwkv: %s is missing", list[i].spec.name);
	}
	return MX_OK;
}

/* ---- memory and life cycle ---- */

static struct mx_conv_spec shift_spec(const struct mx_layer_desc *layer)
{
	return (struct mx_conv_spec){
		.channels = layer->width, .width = 2, .max_draft = layer->max_draft};
}

static struct mx_recur_spec recur_spec(const struct mx_layer_desc *layer,
                                       const struct rwkv_params *p)
{
	return (struct mx_recur_spec){.heads = p->heads,
	                              .q_heads = p->heads,
	                              .k_heads = p->heads,
	                              .v_heads = p->heads,
	                              .a_heads = p->heads,
	                              .k_dim = p->dim,
	                              .v_dim = p->dim,
	                              .decay = MX_RECUR_VECTOR,
	                              .removal = true,
	                              .max_draft = layer->max_draft};
}

/* Bytes of v of a step, which the model's first time mixing keeps: the one without a value
 * residual. */
static size_t v_first_bytes(const struct mx_layer_desc *layer, const struct rwkv_params *p)
{
	return p->part == RWKV_TIME && !p->value_residual
	           ? (size_t)layer->max_rows * layer->width * sizeof(float)
	           : 0;
}

static mx_status rwkv_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct rwkv_params p;
	mx_status st = read_params(layer, &p, NULL);
	if (st != MX_OK)
		return st;
	const bool time = p.part == RWKV_TIME;
	const struct mx_conv_spec shift = shift_spec(layer);
	const struct mx_recur_spec recur = recur_spec(layer, &p);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_conv_slot_bytes(&shift) + (time ? mx_recur_slot_bytes(&recur) : 0),
		.snapshot_bytes =
			mx_conv_snapshot_bytes(&shift) + (time ? mx_recur_snapshot_bytes(&recur) : 0),
		.scratch_bytes = rwkv_layout(&p, &recur, layer->width, layer->max_rows,
	                                 device->info.threads, NULL, NULL),
		.instance_bytes = 2 * layer->width * sizeof(float) + v_first_bytes(layer, &p),
	};
	return MX_OK;
}

static void rwkv_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (m->is_first)
		free(m->v_first);
	free(m->taps);
	free(m);
}

static const struct mx_mixer_ops rwkv_ops;

static mx_status rwkv_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                             struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct rwkv_params p;
	mx_status st = read_params(layer, &p, err);
	if (st != MX_OK)
		return st;
	struct mx_mixer *m = calloc(1, sizeof *m);
	float *taps = malloc(2 * (size_t)layer->width * sizeof *taps);
	if (!m || !taps) {
		free(m);
		free(taps);
		return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: out of memory");
	}
	*m = (struct mx_mixer){
		.base = {&rwkv_ops, layer->index},
		.device = init->device,
		.kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa)),
		.params = p,
		.width = layer->width,
		.max_rows = layer->max_rows,
		.shift = shift_spec(layer),
		.taps = taps,
		.recur = recur_spec(layer, &p),
		.slot_base = init->slot_base,
		.slot_stride = init->slot_stride,
	};
	m->shift_bytes = mx_conv_slot_bytes(&m->shift);
	m->shift_snapshot = mx_conv_snapshot_bytes(&m->shift);
	m->slot_bytes = m->shift_bytes + (p.part == RWKV_TIME ? mx_recur_slot_bytes(&m->recur) : 0);
	for (uint32_t i = 0; i < layer->width; i++) {
		taps[2 * i] = 1;
		taps[2 * i + 1] = -1;
	}
	st = take_weights(m, init, err);
	if (st != MX_OK) {
		rwkv_destroy(m);
		return st;
	}
	*out = m;
	return MX_OK;
}

/* Finds the model's first time mixing, and shares its memory for v with the others. */
static mx_status rwkv_prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	float *v_first = NULL;
	for (uint32_t i = 0; i < n_layers; i++) {
		struct mx_mixer *m = layers[i];
		if (m->params.part != RWKV_TIME)
			continue;
		m->is_first = !v_first;
		if (m->is_first)
			v_first = malloc((size_t)m->max_rows * m->width * sizeof *v_first);
		if (!v_first)
			return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: out of memory");
		m->v_first = v_first;
	}
	return MX_OK;
}

/* ---- a sequence's state ---- */

static unsigned char *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	return m->slot_base + slot * m->slot_stride;
}

static mx_status rwkv_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                           uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(slot_of(layers[i], to_slot), slot_of(layers[i], from_slot), layers[i]->slot_bytes);
	return MX_OK;
}

static void save_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, void *out)
{
	const unsigned char *from = slot_of(m, slot);
	unsigned char *to = out;
	mx_conv_save(&m->shift, from, pos, to);
	if (m->params.part == RWKV_TIME)
		mx_recur_save(&m->recur, from + m->shift_bytes, pos, to + m->shift_snapshot);
}

static void load_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, const void *in)
{
	const unsigned char *from = in;
	unsigned char *to = slot_of(m, slot);
	mx_conv_load(&m->shift, to, pos, from);
	if (m->params.part == RWKV_TIME)
		mx_recur_load(&m->recur, to + m->shift_bytes, pos, from + m->shift_snapshot);
}

static mx_status rwkv_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                           uint32_t pos, void *const *out)
{
	return mx_recur_save_layers(layers[0]->device, layers, n_layers, slot, pos, out, save_layer);
}

static mx_status rwkv_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                           uint32_t pos, const void *const *in)
{
	return mx_recur_load_layers(layers[0]->device, layers, n_layers, slot, pos, in, load_layer);
}

static void rwkv_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct rwkv_params *p = &m->params;
	if (p->part == RWKV_TIME)
		snprintf(text, cap, "rwkv: time mixing, %u heads of %u, kernels %s", p->heads, p->dim,
		         mx_recur_kernels_name(m->kernels));
	else
		snprintf(text, cap, "rwkv: channel mixing of %u, kernels %s", p->inner,
		         mx_recur_kernels_name(m->kernels));
}

/* commit does nothing: the next span's position tells which tokens were kept (recurrence.h). */
static const struct mx_mixer_ops rwkv_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "rwkv",
	.summary = "RWKV-7: time mixing by a generalised delta rule, and channel mixing",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = rwkv_probe,
	.weights = rwkv_tensors,
	.state = rwkv_state,
	.extent = mx_mixer_extent_all,
	.create = rwkv_create,
	.prepare = rwkv_prepare,
	.destroy = rwkv_destroy,
	.forward = rwkv_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = rwkv_fork,
	.save = rwkv_save,
	.load = rwkv_load,
	.resume = mx_mixer_resume_nothing,
	.describe = rwkv_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &rwkv_ops;
}
