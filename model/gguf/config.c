/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes config.json and generation_config.json: what all architectures have, and the ends of text.
 */
#include <stdio.h>
#include <string.h>

#include "model/gguf/arch.h"
#include "model/gguf/texts.h"
#include "model/gguf/tokens.h"

/* Returns the heads of keys, which must be the same number in all layers of attention. */
static int64_t kv_heads(struct mx_gguf_maker *m, int64_t heads)
{
	static const char key[] = "attention.head_count_kv";
	int64_t first =
		m->arch->hybrid ? mx_gguf_first_of(m, key, heads) : mx_gguf_of_layer(m, key, 0, heads);
	for (int64_t i = 1; !m->status && !m->arch->own_heads && i < m->layers; i++) {
		int64_t own = mx_gguf_of_layer(m, key, i, heads);
		if (own != first && !(m->arch->hybrid && !own))
			mx_gguf_refuse(m, MX_E_UNSUPPORTED,
			               "%s.%s differs between layers, which is not supported for it",
			               m->arch->name, key);
	}
	return first;
}

static void attention(struct mx_gguf_maker *m)
{
	int64_t heads = mx_gguf_of_layer(m, "attention.head_count", 0, 0);
	if (m->status || heads < 1)
		return;
	mx_gguf_set_int(m, "num_attention_heads", heads);
	mx_gguf_copy_float(m, "rope.freq_base", "rope_theta");
	if (m->arch->latent)
		return;
	int64_t width = mx_gguf_need_int(m, "embedding_length");
	int64_t dim = mx_gguf_get_int(m, "attention.key_length", width / heads);
	int64_t rotated = mx_gguf_get_int(m, "rope.dimension_count", dim);
	if (mx_gguf_get_int(m, "attention.value_length", dim) != dim)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "attention.value_length that is not attention.key_length is not supported");
	mx_gguf_set_int(m, "num_key_value_heads", kv_heads(m, heads));
	mx_gguf_set_int(m, "head_dim", dim);
	if (dim > 0) /* a little more than a part, since what is rotated is rounded down */
		mx_gguf_set_float(m, "partial_rotary_factor",
		                  rotated == dim ? 1 : ((double)rotated + 0.25) / (double)dim);
}

/* Returns rope_freqs.weight, by which the frequencies are divided, as a list. */
static json_t *frequency_factors(struct mx_gguf_maker *m)
{
	const struct mx_gguf_tensor *t = mx_gguf_tensor(m->g, "rope_freqs.weight");
	json_t *list = t ? json_array() : NULL;
	if (t && (t->type != MX_GGUF_TYPE_F32 || t->bytes > 4096))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "rope_freqs.weight: is not a short tensor of F32");
	for (size_t i = 0; list && !m->status && i < t->bytes / 4; i++) {
		float f;
		memcpy(&f, (const char *)t->data + 4 * i, 4);
		json_array_append_new(list, json_real((double)f)); /* NaN: no value is added */
	}
	return list;
}

static void rope_scaling(struct mx_gguf_maker *m)
{
	static const char *const pairs[] = {"rope.scaling.factor", "factor"};
	char key[128];
	struct mx_gguf_string type = {"none", 4};
	json_t *out = json_object(), *factors = frequency_factors(m);
	snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch->name);
	if (!m->status)
		m->status = mx_gguf_text(m->g, key, &type, NULL, m->err);
	bool linear = type.n == 6 && !memcmp(type.s, "linear", 6);
	bool yarn = type.n == 4 && !memcmp(type.s, "yarn", 4);
	/* its factors are tensors, which architectures that have them read (mx_gguf_longrope) */
	bool has_long = m->arch->outside == mx_gguf_longrope_names;
	bool longrope = has_long && type.n == 8 && !memcmp(type.s, "longrope", 8);
	if (!linear && !yarn && !longrope && !(type.n == 4 && !memcmp(type.s, "none", 4)))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s '%.*s' is none of linear, yarn%s", key,
		               type.n < 40 ? (int)type.n : 40, type.s, has_long ? ", longrope" : "");
	if (longrope && !mx_gguf_has_tensor(m, "rope_factors_long.weight"))
		mx_gguf_refuse(m, MX_E_FORMAT,
		               "rope_factors_long.weight: is missing, which %s 'longrope' needs", key);
	if ((linear || yarn) && factors)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "rope.scaling.type with rope_freqs is not supported");
	if (linear || yarn) {
		json_object_set_new(out, "rope_type", json_string(linear ? "linear" : "yarn"));
		json_object_set_new(out, pairs[1], json_real(mx_gguf_get_float(m, pairs[0], 1)));
	}
	if (yarn) {
		json_object_set_new(
			out, "original_max_position_embeddings",
			json_integer(mx_gguf_need_int(m, "rope.scaling.original_context_length")));
		json_object_set_new(out, "beta_fast",
		                    json_real(mx_gguf_get_float(m, "rope.scaling.yarn_beta_fast", 32)));
		json_object_set_new(out, "beta_slow",
		                    json_real(mx_gguf_get_float(m, "rope.scaling.yarn_beta_slow", 1)));
		if (mx_gguf_has(m, "rope.scaling.yarn_attn_factor"))
			json_object_set_new(
				out, "attention_factor",
				json_real(mx_gguf_get_float(m, "rope.scaling.yarn_attn_factor", 1)));
	}
	if (factors) {
		json_object_set_new(out, "rope_type", json_string("default"));
		json_object_set_new(out, "frequency_factors", factors);
	}
	if (json_object_size(out))
		mx_gguf_set(m, "rope_scaling", out);
	else
		json_decref(out);
}

/* Sets what nearly all architectures have. */
static void common(struct mx_gguf_maker *m)
{
	const struct mx_gguf_tensor *embed = mx_gguf_tensor(m->g, "token_embd.weight");
	bool causal = true;
	char key[128];
	snprintf(key, sizeof key, "%s.attention.causal", m->arch->name);
	if (!m->status)
		m->status = mx_gguf_bool(m->g, key, &causal, NULL, m->err);
	if (!causal)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s: false is not supported", key);
	if (!embed || embed->ndim != 2) {
		mx_gguf_refuse(m, MX_E_FORMAT, "tensor 'token_embd.weight' is missing or not a matrix");
		return;
	}
	m->layers = mx_gguf_need_int(m, "block_count") - mx_gguf_get_int(m, "nextn_predict_layers", 0);
	if (m->layers < 1 || m->layers > 4096)
		mx_gguf_refuse(m, MX_E_RANGE, "%s.block_count: %lld layers are not from 1 to 4096",
		               m->arch->name, (long long)m->layers);
	mx_gguf_set_string(m, "model_type", m->arch->model_type);
	mx_gguf_set_int(m, "hidden_size", mx_gguf_need_int(m, "embedding_length"));
	mx_gguf_set_int(m, "num_hidden_layers", m->layers);
	mx_gguf_set_int(m, "vocab_size", (json_int_t)embed->shape[0]);
	mx_gguf_set_bool(m, "tie_word_embeddings", !mx_gguf_has_tensor(m, "output.weight"));
	if (m->arch->hybrid && mx_gguf_has(m, "feed_forward_length"))
		mx_gguf_set_int(m, "intermediate_size", mx_gguf_first_of(m, "feed_forward_length", 0));
	else
		mx_gguf_copy_int(m, "feed_forward_length", "intermediate_size");
	mx_gguf_copy_int(m, "context_length", "max_position_embeddings");
	mx_gguf_copy_float(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
	attention(m);
	rope_scaling(m);
}

/* Adds the ids of tokens that end a text or a turn, and the one that begins it. */
static void ends(struct mx_gguf_maker *m)
{
	int32_t ids[MX_GGUF_MAX_ENDS], bos = -1;
	size_t n = 0;
	json_t *list = json_array();
	if (!m->status)
		m->status = mx_gguf_ends(m->g, ids, &n, &bos, m->err);
	for (size_t i = 0; list && i < n; i++)
		json_array_append_new(list, json_integer(ids[i]));
	if (n)
		mx_gguf_set(m, "eos_token_id", list);
	else
		json_decref(list);
	if (bos >= 0)
		mx_gguf_set_int(m, "bos_token_id", bos);
}

mx_status mx_gguf_config(const struct mx_gguf *g, json_t **out, struct mx_err *err)
{
	struct mx_gguf_maker m = {.g = g, .err = err, .out = json_object()};
	mx_status s = m.out ? mx_gguf_arch_of(g, &m.arch, err)
	                    : mx_fail_at(err, MX_E_NOMEM, mx_gguf_name(g), "out of memory");
	if (!s) {
		common(&m);
		if (m.arch->config && !m.status)
			m.arch->config(&m);
		ends(&m);
		s = m.status;
	}
	if (s) {
		json_decref(m.out);
		return s;
	}
	*out = m.out;
	return MX_OK;
}

bool mx_gguf_norms_hold_one(const struct mx_gguf *g)
{
	const struct mx_gguf_arch *a = NULL;
	return mx_gguf_arch_of(g, &a, NULL) == MX_OK && a->norms_hold_one;
}
