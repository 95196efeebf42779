/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention's parameters and tensors. They are the same for every device, so this
 * file is part of each module of attention.
 */
#include "mixers/softmax/heads.h"

#include <math.h>

#define MAX_HEADS 4096 /* far above any model, so that no product of sizes overflows */
#define MAX_DIM   512
#define MAX_INPUT (1 << 22)

#define NAMES(style, q, k, v, qkv, o, q_norm, k_norm)                                              \
	{                                                                                              \
		style, q ".weight", k ".weight", v ".weight", qkv ".weight", o ".weight", q ".bias",       \
			k ".bias", v ".bias", qkv ".bias", o ".bias", q_norm ".weight", k_norm ".weight"       \
	}
/* The first is the default. "mha" is flash-attention's MHA, the default if q, k and v are fused. */
static const struct attn_names names[] = {
	NAMES("llama", "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"),
	NAMES("mha", "q_proj", "k_proj", "v_proj", "Wqkv", "out_proj", "q_norm", "k_norm"),
	NAMES("lfm2", "q_proj", "k_proj", "v_proj", "qkv_proj", "out_proj", "q_layernorm",
          "k_layernorm"),
	NAMES("hunyuan", "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "query_layernorm",
          "key_layernorm"),
	NAMES("gpt2", "q_attn", "k_attn", "v_attn", "c_attn", "c_proj", "q_norm", "k_norm"),
	NAMES("gpt_neox", "query", "key", "value", "query_key_value", "dense", "q_norm", "k_norm"),
};

static mx_status read_names(const struct mx_params *in, struct attn_params *p, struct mx_err *err)
{
	const char *style = mx_param_string(in, "names", p->fused ? "mha" : "llama");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(names[i].style, style)) {
			p->names = &names[i];
			return MX_OK;
		}
	return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: names \"%s\" are not known", style);
}

static mx_status read_long_rope(const struct mx_params *in, struct attn_params *p,
                                struct mx_err *err)
{
	const struct mx_param *freq = mx_param_find(in, "rope_long_inv_freq");
	if (!freq || freq->type != MX_PARAM_FLOATS || freq->n != p->rope_dim / 2)
		return mx_mixer_fail(err, MX_E_INVALID,
		                     "attention: rope_long_inv_freq must have %u numbers", p->rope_dim / 2);
	p->long_inv_freq = freq->v;
	return mx_param_read_u32(in, "attention", "rope_original", -1, 1, UINT32_MAX, &p->original,
	                         err);
}

static mx_status read_dynamic_rope(const struct mx_params *in, struct attn_params *p,
                                   struct mx_err *err)
{
	p->theta = mx_param_float(in, "rope_theta", 0);
	p->factor = mx_param_float(in, "rope_factor", 0);
	if (!(p->theta > 0) || !(p->factor >= 1) || p->rope_dim < 4)
		return mx_mixer_fail(
			err, MX_E_RANGE,
			"attention: dynamic rope needs rope_theta > 0, rope_factor >= 1 and rope_dim >= 4");
	return mx_param_read_u32(in, "attention", "rope_max_position", -1, 1, UINT32_MAX,
	                         &p->max_position, err);
}

static mx_status read_rope(const struct mx_layer_desc *layer, struct attn_params *p,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	const char *rope = mx_param_string(in, "rope", "none");

	if (!strcmp(rope, "none")) {
		p->rope = ATTN_ROPE_NONE;
		return MX_OK;
	}
	if (!strcmp(rope, "dynamic"))
		p->rope = ATTN_ROPE_DYNAMIC;
	else if (!strcmp(rope, "longrope"))
		p->rope = ATTN_ROPE_LONG;
	else if (!strcmp(rope, "default") || !strcmp(rope, "linear") || !strcmp(rope, "llama3") ||
	         !strcmp(rope, "yarn"))
		p->rope = ATTN_ROPE_STATIC;
	else
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: rope type \"%s\" is not known",
		                     rope);

	mx_status status = mx_param_read_u32(in, "attention", "rope_dim", p->head_dim, 2, p->head_dim,
	                                     &p->rope_dim, err);
	if (status != MX_OK)
		return status;
	if (p->rope_dim % 2)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: rope_dim %u is odd", p->rope_dim);
	const struct mx_param *freq = mx_param_find(in, "rope_inv_freq");
	if (!freq || freq->type != MX_PARAM_FLOATS || freq->n != p->rope_dim / 2)
		return mx_mixer_fail(err, MX_E_INVALID, "attention: rope_inv_freq must have %u numbers",
		                     p->rope_dim / 2);
	p->inv_freq = freq->v;
	p->rope_attention_factor = (float)mx_param_float(in, "rope_attention_factor", 1);
	status = mx_param_read_bool(in, "attention", "rope_pairs", false, &p->rope_pairs, err);
	if (status != MX_OK)
		return status;
	if (p->rope == ATTN_ROPE_LONG)
		return read_long_rope(in, p, err);
	return p->rope == ATTN_ROPE_DYNAMIC ? read_dynamic_rope(in, p, err) : MX_OK;
}

/* Reads the whole numbers and the flags. */
static mx_status read_shape(const struct mx_params *in, struct attn_params *p, struct mx_err *err)
{
	mx_status status =
		mx_param_read_u32(in, "attention", "heads", -1, 1, MAX_HEADS, &p->heads, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "kv_heads", p->heads, 1, p->heads, &p->kv_heads,
		                           err);
	if (status == MX_OK && p->heads % p->kv_heads)
		status = mx_mixer_fail(err, MX_E_RANGE, "attention: kv_heads %u does not divide heads %u",
		                       p->kv_heads, p->heads);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "head_dim", -1, 1, MAX_DIM, &p->head_dim, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "window", 0, 0, UINT32_MAX, &p->window, err);

	const struct {
		const char *name;
		bool *to;
	} flags[] = {
		{"bias", &p->bias},
		{"o_bias", &p->o_bias},
		{"qk_norm", &p->qk_norm},
		{"fused", &p->fused},
		{"qk_norm_whole", &p->qk_norm_whole},
		{"per_head", &p->per_head},
		{"gate", &p->gate},
		{"head_gate", &p->head_gate},
		{"wide_gate", &p->wide_gate},
		{"sinks", &p->sinks},
		{"v_norm", &p->v_norm},
		{"k_is_v", &p->k_is_v},
		{"shared_kv", &p->shared_kv},
		{"norm_last", &p->norm_last},
		{"skip_first", &p->skip_first},
	};
	for (size_t i = 0; status == MX_OK && i < sizeof flags / sizeof *flags; i++)
		status = mx_param_read_bool(in, "attention", flags[i].name, false, flags[i].to, err);
	return status;
}

static mx_status read_adapters(const struct mx_params *in, struct attn_params *p,
                               struct mx_err *err)
{
	static const char *const keys[3][2] = {{"q_adapter_in", "q_adapter_out"},
	                                       {"k_adapter_in", "k_adapter_out"},
	                                       {"v_adapter_in", "v_adapter_out"}};
	mx_status status =
		mx_param_read_u32(in, "attention", "input_width", 0, 0, MAX_INPUT, &p->input_width, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "adapter_rank", 0, 0, MAX_INPUT,
		                           &p->adapter_rank, err);
	for (size_t i = 0; status == MX_OK && p->adapter_rank && i < 6; i++) {
		const char **name = &p->adapters[i / 2][i % 2];
		*name = mx_param_string(in, keys[i / 2][i % 2], NULL);
		if (!*name)
			status =
				mx_mixer_fail(err, MX_E_INVALID, "attention: %s is missing", keys[i / 2][i % 2]);
	}
	return status;
}

/* Refuses combinations that no model has. */
static mx_status check_together(const struct attn_params *p, struct mx_err *err)
{
	if (p->adapter_rank && (p->fused || p->gate || p->k_is_v || p->shared_kv))
		return mx_mixer_fail(
			err, MX_E_UNSUPPORTED,
			"attention: adapters are for matrices of q, k and v alone, without gates");
	if (p->per_head && (!p->fused || p->gate))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: per_head is for fused matrices without gates");
	if (p->shared_kv && (p->fused || p->rope_pairs))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: shared_kv is not for fused matrices or rope_pairs");
	if (p->k_is_v && p->fused)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: k_is_v is not for fused matrices");
	if (p->gate && p->fused)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: gate is not for fused matrices");
	if (p->norm_last && !p->qk_norm)
		return mx_mixer_fail(err, MX_E_INVALID, "attention: norm_last without qk_norm");
	if (p->gate + p->head_gate + p->wide_gate > 1)
		return mx_mixer_fail(err, MX_E_INVALID,
		                     "attention: gate, head_gate and wide_gate exclude each other");
	if (p->qk_norm && p->qk_norm_whole)
		return mx_mixer_fail(err, MX_E_INVALID,
		                     "attention: qk_norm and qk_norm_whole exclude each other");
	if (p->rope_pairs && p->qk_norm)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: rope_pairs with qk_norm");
	return MX_OK;
}

/* Reads what happens to scores and queries besides. */
static mx_status read_scales(const struct mx_params *in, struct attn_params *p, struct mx_err *err)
{
	double scale = mx_param_float(in, "scale", 1 / sqrt((double)p->head_dim));
	double cap = mx_param_float(in, "softcap", 0), beta = mx_param_float(in, "q_scale_beta", 0);
	if (!(scale > 0) || !isfinite(scale))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: scale must be positive");
	if (!(cap >= 0) || !isfinite(cap))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: softcap must not be negative");
	if (!isfinite(beta))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: q_scale_beta must be finite");
	p->scale = (float)(scale * ATTN_LOG2E);
	p->cap = (float)(cap * ATTN_LOG2E);
	p->q_beta = (float)beta;
	return mx_param_read_u32(in, "attention", "q_scale_length", 1, 1, UINT32_MAX, &p->q_length,
	                         err);
}

/* Takes the rank's share of the heads. Ranks that share pages have the same heads of queries and
 * keys, and divide the outputs. */
static mx_status take_share(const struct mx_layer_desc *layer, struct attn_params *p,
                            struct mx_err *err)
{
	const uint32_t contexts = mx_layer_contexts(layer), heads = p->heads, kv = p->kv_heads;
	const uint32_t ranks = layer->ranks > 1 ? layer->ranks : 1, groups = ranks / contexts;
	p->all_heads = heads;
	p->all_kv_heads = kv;
	p->contexts = contexts;
	p->context = layer->rank % contexts;
	struct mx_group_share own;
	const bool even = heads % ranks == 0 && (kv % groups == 0 || groups % kv == 0);
	const bool splits =
		mx_share_of_groups(kv, heads / kv, false, layer->rank / contexts, groups, &own) &&
		(even || contexts == 1) && (kv >= groups || !p->per_head);
	if (!splits && contexts > 1)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: %u heads cannot be split over %u ranks, or %u key heads "
		                     "over %u groups of them",
		                     heads, ranks, kv, groups);
	if (!splits)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: %u heads and %u key heads cannot be split over %u ranks",
		                     heads, kv, ranks);
	p->summed = p->qk_norm_whole && groups > 1;
	if (p->summed && kv < groups && groups % kv) /* a key head would count more than another */
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "attention: %u key heads with one norm cannot be split over %u ranks",
		                     kv, ranks);
	p->sharers = own.sharers * contexts;
	p->heads = own.members.n;
	p->kv_heads = own.groups.n;
	p->first_head = own.members.first;
	p->first_kv_head = own.groups.first;
	p->out_heads = p->heads / contexts;
	p->first_out = p->first_head + p->context * p->out_heads;
	if (layer->rank)
		p->o_bias = false; /* the first rank's summand has it */
	return MX_OK;
}

mx_status attn_params_read(const struct mx_layer_desc *layer, struct attn_params *out,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	struct attn_params p = {0};

	mx_status status = read_shape(in, &p, err);
	if (status != MX_OK)
		return status;
	status = take_share(layer, &p, err);
	if (status != MX_OK)
		return status;
	p.group = p.heads / p.kv_heads;
	p.norm_eps = (float)mx_param_float(in, "norm_eps", 1e-6);
	p.dtype = layer->state_dtype;
	status = read_scales(in, &p, err);
	if (status == MX_OK)
		status = read_names(in, &p, err);
	if (status == MX_OK)
		status = read_rope(layer, &p, err);
	if (status == MX_OK)
		status = read_adapters(in, &p, err);
	if (status == MX_OK)
		status = check_together(&p, err);
	if (status != MX_OK)
		return status;
	if (p.shared_kv)
		p.v_norm = p.k_is_v = false;
	*out = p;
	return MX_OK;
}

/* Rows of the layer's projections. */
static uint64_t q_rows(const struct attn_params *p)
{
	return (uint64_t)p->all_heads * p->head_dim;
}

static uint64_t kv_rows(const struct attn_params *p)
{
	return (uint64_t)p->all_kv_heads * p->head_dim;
}

/* Returns `spec`, whose axis has `each` elements for every head, for the rank's heads only. */
static struct mx_weight_spec of_heads(const struct attn_params *p, struct mx_weight_spec spec,
                                      uint32_t axis, uint64_t each)
{
	return mx_weight_spec_part(spec, axis, p->first_head * each, p->heads * each);
}

/* The same of key heads. */
static struct mx_weight_spec of_kv_heads(const struct attn_params *p, struct mx_weight_spec spec,
                                         uint64_t each)
{
	return mx_weight_spec_part(spec, 0, p->first_kv_head * each, p->kv_heads * each);
}

/* Queries, keys and values, in the order of their rows in the fused tensor. */
enum { Q, K, V };

/* Fills the rows of a projection of the input: the rank has [first, first + n) of `all` in a tensor
 * of its own, or in the fused one. */
static void rows_of(const struct attn_params *p, int which, uint64_t *all, uint64_t *first,
                    uint64_t *n)
{
	const uint64_t d = which == Q && p->gate ? 2 * p->head_dim : p->head_dim;
	*all = d * (which == Q ? p->all_heads : p->all_kv_heads);
	*first = d * (which == Q ? p->first_head : p->first_kv_head);
	*n = d * (which == Q ? p->heads : p->kv_heads);
	if (!p->fused)
		return;
	*first += which == Q ? 0 : which == K ? q_rows(p) : q_rows(p) + kv_rows(p);
	*all = q_rows(p) + 2 * kv_rows(p);
}

static struct mx_weight_spec projection(const struct attn_params *p, int which, const char *name,
                                        const char *fused, uint64_t width)
{
	uint64_t all, first, n;
	rows_of(p, which, &all, &first, &n);
	return mx_weight_spec_part(MX_WEIGHT_SPEC(p->fused ? fused : name, MATRIX, {all, width}), 0,
	                           first, n);
}

static struct mx_weight_spec bias(const struct attn_params *p, int which, const char *name,
                                  const char *fused)
{
	uint64_t all, first, n;
	rows_of(p, which, &all, &first, &n);
	return mx_weight_spec_part(MX_WEIGHT_SPEC(p->fused ? fused : name, VECTOR, {all}), 0, first, n);
}

uint32_t attn_params_raw(const struct attn_params *p)
{
	if (p->per_head)
		return (p->heads + 2 * p->kv_heads) * p->head_dim;
	return p->gate ? 2 * p->heads * p->head_dim : 0;
}

/* Lists q, k and v, or all of the fused tensor if per_head. */
static size_t list_inputs(const struct attn_params *p, uint64_t width, struct mx_weight_spec *specs)
{
	const struct attn_names *t = p->names;
	uint64_t q = q_rows(p), kv = kv_rows(p);
	size_t n = 0;
	if (p->per_head) {
		specs[n++] = of_kv_heads(p, MX_WEIGHT_SPEC(t->qkv, MATRIX, {q + 2 * kv, width}),
		                         (q + 2 * kv) / p->all_kv_heads);
		return n;
	}
	specs[n++] = projection(p, Q, t->q, t->qkv, width);
	if (p->shared_kv)
		return n;
	specs[n++] = projection(p, K, t->k, t->qkv, width);
	if (!p->k_is_v)
		specs[n++] = projection(p, V, t->v, t->qkv, width);
	return n;
}

static size_t list_input_biases(const struct attn_params *p, struct mx_weight_spec *specs)
{
	const struct attn_names *t = p->names;
	uint64_t q = q_rows(p), kv = kv_rows(p);
	size_t n = 0;
	if (p->per_head) {
		specs[n++] = of_kv_heads(p, MX_WEIGHT_SPEC(t->qkv_bias, VECTOR, {q + 2 * kv}),
		                         (q + 2 * kv) / p->all_kv_heads);
		return n;
	}
	specs[n++] = bias(p, Q, t->q_bias, t->qkv_bias);
	if (p->shared_kv)
		return n;
	specs[n++] = bias(p, K, t->k_bias, t->qkv_bias);
	if (!p->k_is_v)
		specs[n++] = bias(p, V, t->v_bias, t->qkv_bias);
	return n;
}

static size_t list_weights(const struct attn_params *p, uint64_t width,
                           struct mx_weight_spec *specs)
{
	const struct attn_names *t = p->names;
	uint64_t q = q_rows(p), d = p->head_dim, input = attn_params_input(p, (uint32_t)width);
	size_t n = list_inputs(p, input, specs);
	specs[n++] = mx_weight_spec_part(MX_WEIGHT_SPEC(t->o, MATRIX, {width, q}), 1, p->first_out * d,
	                                 p->out_heads * d);
	if (p->bias)
		n += list_input_biases(p, specs + n);
	if (p->o_bias)
		specs[n++] = MX_WEIGHT_SPEC(t->o_bias, VECTOR, {width});
	if (p->qk_norm || p->qk_norm_whole) {
		struct mx_weight_spec q_norm = MX_WEIGHT_SPEC(t->q_norm, VECTOR, {p->qk_norm ? d : q});
		struct mx_weight_spec k_norm =
			MX_WEIGHT_SPEC(t->k_norm, VECTOR, {p->qk_norm ? d : kv_rows(p)});
		specs[n++] = p->qk_norm ? q_norm : of_heads(p, q_norm, 0, d);
		if (!p->shared_kv)
			specs[n++] = p->qk_norm ? k_norm : of_kv_heads(p, k_norm, d);
	}
	if (p->sinks)
		specs[n++] = of_heads(p, MX_WEIGHT_SPEC("sinks", VECTOR, {p->all_heads}), 0, 1);
	if (attn_params_gates(p)) {
		uint64_t each = p->wide_gate ? d : 1, rows = each * p->all_heads;
		specs[n++] =
			of_heads(p, MX_WEIGHT_SPEC("gate_proj.weight", MATRIX, {rows, input}), 0, each);
	}
	for (size_t i = 0; p->adapter_rank && i < 3; i++) {
		uint64_t rank = p->adapter_rank, all, first, rows;
		rows_of(p, (int)i, &all, &first, &rows);
		specs[n++] = MX_WEIGHT_SPEC(p->adapters[i][0], MATRIX, {rank, input});
		specs[n++] = mx_weight_spec_part(MX_WEIGHT_SPEC(p->adapters[i][1], MATRIX, {all, rank}), 0,
		                                 first, rows);
	}
	return n;
}

mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct attn_params p;
	mx_status status = attn_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	*out_n = list_weights(&p, layer->width, specs);
	return MX_OK;
}

void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out)
{
	bool has_k = !p->per_head && !p->shared_kv, has_v = has_k && !p->k_is_v;
	size_t n = 0;
	*out = (struct attn_weights){.q = w[n++]};
	if (has_k)
		out->k = w[n++];
	if (has_v)
		out->v = w[n++];
	out->o = w[n++];
	if (p->bias)
		out->q_bias = w[n++];
	if (p->bias && has_k)
		out->k_bias = w[n++];
	if (p->bias && has_v)
		out->v_bias = w[n++];
	if (p->o_bias)
		out->o_bias = w[n++];
	if (p->qk_norm || p->qk_norm_whole) {
		out->q_norm = w[n++];
		if (!p->shared_kv)
			out->k_norm = w[n++];
	}
	if (p->sinks)
		out->sinks = w[n++];
	if (attn_params_gates(p))
		out->gate = w[n++];
	for (size_t i = 0; p->adapter_rank && i < 6; i++)
		out->adapters[i / 2][i % 2] = w[n++];
}
