/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the mixer mla. */
#include <math.h>

#include "mixers/mla/mla_params.h"

#define MAX_HEADS 1024 /* far above any model, so that no product of sizes overflows */
#define MAX_RANK  65536
#define LOG2E     1.4426950408889634

/* Reads the rotation of the rope elements. */
static mx_status read_rope(const struct mx_params *in, struct mla_params *p, struct mx_err *err)
{
	const char *rope = mx_param_string(in, "rope", "default");
	const struct mx_param *freq = mx_param_find(in, "rope_inv_freq");
	double factor = 1;

	if (!strcmp(rope, "none"))
		return MX_OK;
	if (strcmp(rope, "default") && strcmp(rope, "linear") && strcmp(rope, "llama3") &&
	    strcmp(rope, "yarn"))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mla: rope type \"%.40s\" is not known", rope);
	if (p->rope % 2)
		return mx_mixer_fail(err, MX_E_RANGE, "mla: qk_rope_head_dim %u is odd", p->rope);
	if (freq && (freq->type != MX_PARAM_FLOATS || freq->n != p->rope / 2))
		return mx_mixer_fail(err, MX_E_INVALID, "mla: rope_inv_freq must have %u numbers",
		                     p->rope / 2);
	if (!freq && strcmp(rope, "default"))
		return mx_mixer_fail(err, MX_E_INVALID, "mla: rope \"%s\" needs rope_inv_freq", rope);
	p->rotates = true;
	p->inv_freq = freq ? freq->v : NULL;
	mx_status s =
		mx_param_read_number(in, "mla", "rope_theta", 10000, 1.0001, 1e18, &p->theta, err);
	if (s == MX_OK)
		s = mx_param_read_number(in, "mla", "rope_attention_factor", 1, 1e-6, 1e6, &factor, err);
	p->rope_factor = (float)factor;
	return s != MX_OK ? s : mx_param_read_bool(in, "mla", "rope_pairs", true, &p->pairs, err);
}

/* Takes the rank's share of the heads. Latents belong to all of them: every rank has them all, or
 * where ranks share pages, those of its part. Such ranks have the same heads, and divide the
 * outputs. */
static mx_status take_share(const struct mx_layer_desc *layer, struct mla_params *p,
                            struct mx_err *err)
{
	const uint32_t ranks = layer->ranks > 1 ? layer->ranks : 1, contexts = mx_layer_contexts(layer);
	p->all_heads = p->heads;
	p->contexts = contexts;
	p->context = layer->rank % contexts;
	if (contexts > 1 ? p->heads % ranks : p->heads < ranks)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mla: %u heads cannot be split over %u ranks%s",
		                     p->heads, ranks, contexts > 1 ? " that share pages" : "");
	const struct mx_share own = mx_share_of(p->heads, layer->rank / contexts, ranks / contexts);
	p->heads = own.n;
	p->first_head = own.first;
	p->out_heads = own.n / contexts;
	p->first_out = p->context * p->out_heads;
	return MX_OK;
}

mx_status mla_params_read(const struct mx_layer_desc *layer, struct mla_params *out,
                          struct mx_err *err)
{
	static const char *const known[] = {
		"heads",      "q_lora_rank",   "kv_lora_rank", "qk_nope_head_dim",
		"v_head_dim", "norm_eps",      "scale",        "qk_rope_head_dim",
		"bias",       "rope",          "rope_theta",   "rope_attention_factor",
		"rope_pairs", "rope_inv_freq", "q_scale_beta", "q_scale_length",
		"skip_first", "head_gate"};
	const struct mx_params *in = &layer->params;
	struct mla_params p = {.dtype = layer->state_dtype};
	const uint32_t widest = layer->width < MLA_MAX_DIM ? layer->width : MLA_MAX_DIM;
	const struct {
		const char *name;
		int64_t def;
		uint32_t min, max;
		uint32_t *to;
	} sizes[] = {
		{"heads", -1, 1, MAX_HEADS, &p.heads},
		{"q_lora_rank", 0, 0, MAX_RANK, &p.q_rank},
		{"kv_lora_rank", 512, 1, MLA_MAX_DIM, &p.rank},
		/* the device takes products of vectors as wide as the model's widest matrix */
		{"qk_nope_head_dim", 128, 1, widest, &p.nope},
		{"qk_rope_head_dim", 64, 1, MLA_MAX_DIM, &p.rope},
		{"v_head_dim", 128, 1, MLA_MAX_DIM, &p.v},
	};
	double eps = 0, scale = 0, beta = 0;
	mx_status s = mx_params_known(in, known, sizeof known / sizeof *known, "mla", err);
	for (size_t i = 0; s == MX_OK && i < sizeof sizes / sizeof *sizes; i++)
		s = mx_param_read_u32(in, "mla", sizes[i].name, sizes[i].def, sizes[i].min, sizes[i].max,
		                      sizes[i].to, err);
	if (s == MX_OK)
		s = take_share(layer, &p, err);
	if (s == MX_OK)
		s = mx_param_read_number(in, "mla", "norm_eps", 1e-6, 0, 1, &eps, err);
	if (s == MX_OK)
		s = mx_param_read_number(in, "mla", "scale", 1 / sqrt((double)p.nope + p.rope), 1e-9, 1e9,
		                         &scale, err);
	if (s == MX_OK)
		s = mx_param_read_bool(in, "mla", "bias", false, &p.bias, err);
	if (s == MX_OK)
		s = mx_param_read_number(in, "mla", "q_scale_beta", 0, -1e3, 1e3, &beta, err);
	if (s == MX_OK)
		s = mx_param_read_u32(in, "mla", "q_scale_length", 1, 1, UINT32_MAX, &p.q_length, err);
	if (s == MX_OK)
		s = mx_param_read_bool(in, "mla", "skip_first", false, &p.skip_first, err);
	if (s == MX_OK)
		s = mx_param_read_bool(in, "mla", "head_gate", false, &p.head_gate, err);
	if (s == MX_OK)
		s = read_rope(in, &p, err);
	if (s != MX_OK)
		return s;
	if (p.dtype != MX_F32 && p.dtype != MX_BF16)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mla: latents in %s", mx_dtype_name(p.dtype));
	p.norm_eps = (float)eps;
	p.q_beta = (float)beta;
	p.scale = (float)(scale * LOG2E);
	*out = p;
	return MX_OK;
}

mx_status mla_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                             size_t *out_n)
{
	struct mla_params p;
	mx_status s = mla_params_read(layer, &p, NULL);
	if (s != MX_OK)
		return s;
	const uint64_t width = layer->width, rank = p.rank, q_rank = p.q_rank, first = p.first_head;
	const uint64_t q = p.nope + p.rope, kv = p.nope + p.v; /* rows of a head */
	const struct mx_weight_spec queries =
		q_rank ? MX_WEIGHT_SPEC("q_b_proj.weight", MATRIX, {p.all_heads * q, q_rank})
			   : MX_WEIGHT_SPEC("q_proj.weight", MATRIX, {p.all_heads * q, width});
	const struct mx_weight_spec kv_b =
		MX_WEIGHT_SPEC("kv_b_proj.weight", PLAIN, {p.all_heads * kv, rank});
	const struct mx_weight_spec o =
		MX_WEIGHT_SPEC("o_proj.weight", MATRIX, {width, (uint64_t)p.all_heads * p.v});
	const struct mx_weight_spec gate =
		MX_WEIGHT_SPEC("g_proj.weight", MATRIX, {p.all_heads, width});
	size_t n = 0;
	if (q_rank) {
		specs[n++] = MX_WEIGHT_SPEC("q_a_proj.weight", MATRIX, {q_rank, width});
		specs[n++] = MX_WEIGHT_SPEC("q_a_layernorm.weight", VECTOR, {q_rank});
	}
	specs[n++] = mx_weight_spec_part(queries, 0, first * q, p.heads * q);
	specs[n++] = MX_WEIGHT_SPEC("kv_a_proj_with_mqa.weight", MATRIX, {rank + p.rope, width});
	specs[n++] = MX_WEIGHT_SPEC("kv_a_layernorm.weight", VECTOR, {rank});
	specs[n++] = mx_weight_spec_part(kv_b, 0, first * kv, p.heads * kv);
	specs[n++] =
		mx_weight_spec_part(o, 1, (first + p.first_out) * p.v, (uint64_t)p.out_heads * p.v);
	if (p.bias && q_rank)
		specs[n++] = MX_WEIGHT_SPEC("q_a_proj.bias", VECTOR, {q_rank});
	if (p.bias)
		specs[n++] = MX_WEIGHT_SPEC("kv_a_proj_with_mqa.bias", VECTOR, {rank + p.rope});
	if (p.bias && !layer->rank) /* the first rank's summand has it */
		specs[n++] = MX_WEIGHT_SPEC("o_proj.bias", VECTOR, {width});
	if (p.head_gate)
		specs[n++] = mx_weight_spec_part(gate, 0, first, p.heads);
	*out_n = n;
	return MX_OK;
}

void mla_params_take(const struct mla_params *p, const void *const *w, struct mla_weights *out)
{
	*out = (struct mla_weights){0};
	if (p->q_rank) {
		out->q_a = *w++;
		out->q_norm = *w++;
	}
	out->q = *w++;
	out->kv_a = *w++;
	out->kv_norm = *w++;
	out->kv_b = *w++;
	out->o = *w++;
	if (p->bias && p->q_rank)
		out->q_a_bias = *w++;
	if (p->bias)
		out->kv_a_bias = *w++;
	if (p->bias && !p->first_head && !p->first_out)
		out->o_bias = *w++;
	if (p->head_gate)
		out->gate = *w++;
}

float mla_params_frequency(const struct mla_params *p, uint32_t i)
{
	return p->inv_freq ? (float)p->inv_freq[i]
	                   : 1 / (float)pow((float)p->theta, (float)(2 * i) / (float)p->rope);
}
