/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the rwkv mixer, for the modules of every device. */
#include "mixers/rwkv/rwkv_params.h"

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

/* Takes the rank's share of the heads, or of channel mixing's elements. */
static mx_status take_share(const struct mx_layer_desc *layer, struct rwkv_params *p,
                            struct mx_err *err)
{
	const bool time = p->part == RWKV_TIME;
	const uint32_t all = time ? p->heads : p->inner;
	if (all < layer->ranks)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     time ? "rwkv: %u heads cannot be split over %u ranks"
		                          : "rwkv: intermediate_size %u cannot be split over %u ranks",
		                     all, layer->ranks);
	p->share = time ? mx_share_of(all, layer->rank, layer->ranks)
	                : mx_share_of_channels(all, layer->rank, layer->ranks);
	p->heads = time ? p->share.n : p->heads;
	p->inner = time ? p->heads * p->dim : p->share.n;
	return MX_OK;
}

mx_status rwkv_params_read(const struct mx_layer_desc *layer, struct rwkv_params *out,
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
		st = take_share(layer, &p, err);
	if (st == MX_OK)
		*out = p;
	return st;
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
	const uint64_t width = layer->width, inner = p->inner;
	const uint32_t *rank = p->rank;
	size_t n = 0;
	TENSOR(x[RWKV_X_R], true, "x_r", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_W], true, "x_w", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_K], true, "x_k", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_V], true, "x_v", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_A], true, "x_a", VECTOR, {1, 1, width});
	TENSOR(x[RWKV_X_G], true, "x_g", VECTOR, {1, 1, width});
	TENSOR(x_x, true, "x_x", VECTOR, {RWKV_SHIFTS, width});
	TENSOR(r, false, "r_proj.weight", MATRIX, {inner, width});
	TENSOR(k, false, "k_proj.weight", MATRIX, {inner, width});
	TENSOR(v, false, "v_proj.weight", MATRIX, {inner, width});
	TENSOR(o, false, "o_proj.weight", MATRIX, {width, inner});
	TENSOR(down[RWKV_W], false, "w_lora.lora.0.weight", MATRIX, {rank[RWKV_W], width});
	TENSOR(up[RWKV_W], false, "w_lora.lora.2.weight", MATRIX, {inner, rank[RWKV_W]});
	TENSOR(bias[RWKV_W], false, "w_lora.lora.2.bias", VECTOR, {inner});
	TENSOR(down[RWKV_A], false, "a_lora.lora.0.weight", MATRIX, {rank[RWKV_A], width});
	TENSOR(up[RWKV_A], false, "a_lora.lora.2.weight", MATRIX, {inner, rank[RWKV_A]});
	TENSOR(bias[RWKV_A], false, "a_lora.lora.2.bias", VECTOR, {inner});
	TENSOR(down[RWKV_G], false, "g_lora.lora.0.weight", MATRIX, {rank[RWKV_G], width});
	TENSOR(up[RWKV_G], false, "g_lora.lora.2.weight", MATRIX, {inner, rank[RWKV_G]});
	if (p->value_residual) {
		TENSOR(down[RWKV_V], false, "v_lora.lora.0.weight", MATRIX, {rank[RWKV_V], width});
		TENSOR(up[RWKV_V], false, "v_lora.lora.2.weight", MATRIX, {inner, rank[RWKV_V]});
		TENSOR(bias[RWKV_V], false, "v_lora.lora.2.bias", VECTOR, {inner});
	}
	TENSOR(k_k, false, "k_k", VECTOR, {inner});
	TENSOR(k_a, false, "k_a", VECTOR, {inner});
	TENSOR(r_k, false, "r_k", VECTOR, {p->heads, p->dim});
	TENSOR(norm, false, "g_norm.weight", VECTOR, {inner});
	TENSOR(norm_bias, false, "g_norm.bias", VECTOR, {inner});
	return n;
}

/* Lists all tensors of a layer with the sizes of a rank's share, at most MX_MIXER_MAX_WEIGHTS;
 * returns their number. */
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

mx_status rwkv_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct mx_layer_desc one = *layer;
	struct rwkv_params whole, share;
	struct tensor all[MX_MIXER_MAX_WEIGHTS], own[MX_MIXER_MAX_WEIGHTS];
	one.rank = 0;
	one.ranks = 1;
	mx_status st = rwkv_params_read(&one, &whole, NULL);
	if (st == MX_OK)
		st = rwkv_params_read(layer, &share, NULL);
	if (st != MX_OK)
		return st;
	*out_n = tensors(layer, &whole, all);
	tensors(layer, &share, own);
	for (size_t i = 0; i < *out_n; i++)
		specs[i] = mx_weight_spec_share(all[i].spec, &own[i].spec, share.share);
	return MX_OK;
}

/* The first version of flash-linear-attention's checkpoints has the six vectors of the shift in one
 * tensor. */
mx_status rwkv_params_take(const struct mx_layer_desc *layer, const struct rwkv_params *p,
                           const void *const *weights, struct rwkv_weights *out, struct mx_err *err)
{
	struct tensor list[MX_MIXER_MAX_WEIGHTS];
	struct rwkv_weights w = {0};
	size_t n = tensors(layer, p, list);
	for (size_t i = 0; i < n; i++)
		memcpy((unsigned char *)&w + list[i].offset, &weights[i], sizeof(void *));
	for (int i = 0; p->part == RWKV_TIME && i < RWKV_SHIFTS; i++) {
		if (w.x_x)
			w.x[i] = w.x_x + (size_t)i * layer->width;
		if (!w.x[i])
			return mx_mixer_fail(err, MX_E_FORMAT, "rwkv: %s is missing", list[i].spec.name);
	}
	*out = w;
	return MX_OK;
}
