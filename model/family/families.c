/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of families, and the steps from config.json to a plan that all of them
 * share. mx_plan_load and mx_plan_parse of model/plan.h are here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/family/family.h"
#include "model/folder.h"
#include "model/gguf/texts.h"
#include "model/plan.h"

#define CONFIG     "config.json"
#define GENERATION "generation_config.json"
#define MAX_CONFIG (16u << 20) /* bytes; real ones are a few KiB */

static const struct mx_family *const families[] = {
	&mx_family_llama,
	&mx_family_mistral,
	&mx_family_qwen2,
	&mx_family_qwen3,
	&mx_family_gemma2,
	&mx_family_gemma3_text,
	&mx_family_gemma3,
	&mx_family_gemma4_text,
	&mx_family_gemma4,
	&mx_family_phi,
	&mx_family_phi3,
	&mx_family_olmo,
	&mx_family_olmo2,
	&mx_family_olmo3,
	&mx_family_olmo_hybrid,
	&mx_family_smollm3,
	&mx_family_granite,
	&mx_family_ministral,
	&mx_family_ministral3,
	&mx_family_mistral3,
	&mx_family_nanochat,
	&mx_family_cohere2,
	&mx_family_gpt2,
	&mx_family_gpt_bigcode,
	&mx_family_gpt_neox,
	&mx_family_granite_swa,
	&mx_family_arcee,
	&mx_family_seed_oss,
	&mx_family_iquestcoder,
	&mx_family_cwm,
	&mx_family_cohere,
	&mx_family_gemma,
	&mx_family_glm,
	&mx_family_glm4,
	&mx_family_ernie4_5,
	&mx_family_exaone4,
	&mx_family_starcoder2,
	&mx_family_nemotron,
	&mx_family_mixtral,
	&mx_family_qwen2_moe,
	&mx_family_qwen3_moe,
	&mx_family_glm4_moe,
	&mx_family_deepseek_v2,
	&mx_family_deepseek_v3,
	&mx_family_kimi_k2,
	&mx_family_glm4_moe_lite,
	&mx_family_kimi_linear,
	&mx_family_bailing_hybrid,
	&mx_family_bailing_moe,
	&mx_family_qwen2_vl,
	&mx_family_qwen2_vl_text,
	&mx_family_qwen2_5_vl,
	&mx_family_qwen2_5_vl_text,
	&mx_family_qwen3_vl,
	&mx_family_qwen3_vl_text,
	&mx_family_qwen3_vl_moe,
	&mx_family_qwen3_vl_moe_text,
	&mx_family_qwen3_next,
	&mx_family_qwen3_5,
	&mx_family_qwen3_5_text,
	&mx_family_qwen3_5_moe,
	&mx_family_qwen3_5_moe_text,
	&mx_family_lfm2,
	&mx_family_lfm2_moe,
	&mx_family_bamba,
	&mx_family_falcon_h1,
	&mx_family_granitemoehybrid,
	&mx_family_nemotron_h,
	&mx_family_hunyuan_v1_dense,
	&mx_family_hunyuan_v1_moe,
	&mx_family_stablelm,
	&mx_family_helium,
	&mx_family_internlm3,
	&mx_family_vaultgemma,
	&mx_family_youtu,
	&mx_family_afmoe,
	&mx_family_hyperclovax,
	&mx_family_exaone_moe,
	&mx_family_mistral4,
	&mx_family_zamba2,
	&mx_family_lfm3,
	&mx_family_minimax_m2,
	&mx_family_olmoe,
	&mx_family_gpt_oss,
	&mx_family_minimax,
	&mx_family_minimax_text_01,
	&mx_family_minimax_m1,
	&mx_family_ernie4_5_moe,
	&mx_family_dots1,
	&mx_family_solar_open,
	&mx_family_mellum,
	&mx_family_granitemoe,
	&mx_family_granitemoeshared,
	&mx_family_jamba,
	&mx_family_mamba,
	&mx_family_falcon_mamba,
	&mx_family_mamba2,
	&mx_family_rwkv7,
	&mx_family_hyenadna,
	&mx_family_safari,
	&mx_family_stripedhyena,
	&mx_family_mixd,
	/* flash-linear-attention */
	&mx_family_delta_net,
	&mx_family_gated_deltanet,
	&mx_family_gla,
	&mx_family_hgrn,
	&mx_family_hgrn2,
	&mx_family_kda,
	&mx_family_linear_attn,
	&mx_family_retnet,
};
#define N_FAMILIES (sizeof families / sizeof *families)

const struct mx_family *mx_family_at(size_t i)
{
	return i < N_FAMILIES ? families[i] : NULL;
}

static mx_status find_family(struct mx_plan_build *b, const struct mx_scope *scope)
{
	const char *type = NULL;
	const char *def = b->wrapper ? b->wrapper->text_type : NULL;
	mx_status s = mx_scope_string(scope, "model_type", def, &type, b->err);
	if (s)
		return s;
	if (mx_mamba2_is_raw(b->config)) {
		b->family = &mx_family_mamba2_raw;
		return MX_OK;
	}
	if (!type)
		return mx_fail(b->err, MX_E_INVALID, "model_type: is missing");
	for (size_t i = 0; i < N_FAMILIES; i++)
		if (!strcmp(families[i]->model_type, type)) {
			b->family = families[i];
			return MX_OK;
		}
	const char *names[N_FAMILIES];
	for (size_t i = 0; i < N_FAMILIES; i++)
		names[i] = families[i]->model_type;
	return mx_family_unknown(b, type, names, N_FAMILIES);
}

/* For a config of several parts: goes on with text_config and the family of the text. */
static mx_status enter_text(struct mx_plan_build *b)
{
	const json_t *text = json_object_get(b->config, "text_config");
	if (!json_is_object(text))
		return mx_fail(b->err, MX_E_INVALID, "text_config: must be an object");
	b->wrapper = b->family;
	b->config = text;
	const struct mx_scope scope = {.where = "text_config.", .inner = text};
	mx_status s = find_family(b, &scope);
	if (!s && b->family->text_type)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "text_config.model_type: '%s' has parts itself",
		            b->family->model_type);
	return s;
}

/* Replaces b->config by a copy in which the family's own keys have their usual names. */
static mx_status resolve_aliases(struct mx_plan_build *b)
{
	const char *const *a = b->family->aliases;
	if (!a)
		return MX_OK;
	b->own = json_copy((json_t *)b->config);
	if (!b->own)
		return mx_plan_no_memory(b);
	for (; *a; a += 2) {
		json_t *v = json_object_get(b->own, a[0]);
		if (v && json_object_set(b->own, a[1], v))
			return mx_plan_no_memory(b);
	}
	b->config = b->own;
	return MX_OK;
}

/* Returns a value of the config or, if it is part of a larger one, of that. */
static const json_t *own_or_whole(const struct mx_plan_build *b, const struct mx_scope *scope,
                                  const char *key)
{
	const json_t *v = mx_scope_get(scope, key);
	return v ? v : json_object_get(b->whole, key);
}

/* Refuses settings that would change the meaning of the weights or of the feed-forward. */
static mx_status refuse_unsupported(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	const json_t *q = own_or_whole(b, scope, "quantization");
	if (q) /* before quantization_config, which MLX writes too */
		return mx_fail(
			b->err, MX_E_UNSUPPORTED,
			"quantization: MLX's quantized weights (bits %d, group_size %d) are not "
			"supported: use the checkpoint that they were made from, in BF16, F16 or F32",
			(int)json_integer_value(json_object_get(q, "bits")),
			(int)json_integer_value(json_object_get(q, "group_size")));
	q = own_or_whole(b, scope, "quantization_config");
	mx_status st = json_is_object(q) ? mx_quantisation_read(b, q, &b->plan->quant) : MX_OK;
	if (st != MX_OK)
		return st;
	return b->family->default_act ? MX_OK : mx_hidden_act_check(b, scope);
}

/* Reads tie_word_embeddings: of the whole config, else of its part. */
static mx_status read_tied(const struct mx_plan_build *b, const struct mx_scope *scope, bool *out)
{
	const struct mx_scope whole = {.where = "", .outer = b->whole};
	bool outside = mx_scope_get(&whole, "tie_word_embeddings") != NULL;
	return mx_scope_bool(outside ? &whole : scope, "tie_word_embeddings", b->family->tied, out,
	                     b->err);
}

/* Finds the family, and the part of the config that it reads. */
static mx_status choose_family(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	b->whole = b->config;
	mx_status s = find_family(b, &scope);
	if (!s && b->family->text_type &&
	    (!b->family->layers || json_object_get(b->config, "text_config")))
		s = enter_text(b);
	return s ? s : resolve_aliases(b);
}

static mx_status read_model(struct mx_plan_build *b)
{
	struct mx_plan *p = b->plan;
	int64_t width = 0, vocab = 0;
	double eps = 0;
	bool tied = false;

	mx_status s = choose_family(b);
	if (s)
		return s;
	const struct mx_family *f = b->family, *outside = b->wrapper ? b->wrapper : f;
	const struct mx_scope scope = {.where = b->wrapper ? "text_config." : "", .outer = b->config};
	s = refuse_unsupported(b, &scope);
	if (!s)
		s = mx_scope_need_int(&scope, f->width_key ? f->width_key : "hidden_size", 1,
		                      MX_PLAN_MAX_WIDTH, &width, b->err);
	if (!s)
		s = mx_scope_need_int(&scope, "vocab_size", 1, MX_PLAN_MAX_VOCAB, &vocab, b->err);
	if (!s)
		s = mx_scope_int(&scope,
		                 f->max_position_key ? f->max_position_key : "max_position_embeddings", 1,
		                 MX_PLAN_MAX_POSITION, f->default_max_position, &b->max_position, b->err);
	if (!s)
		s = mx_scope_float(&scope, f->norm_eps_key ? f->norm_eps_key : "rms_norm_eps", 0, 1,
		                   f->default_norm_eps > 0 ? f->default_norm_eps : 1e-6, &eps, b->err);
	if (!s)
		s = read_tied(b, &scope, &tied);
	if (s)
		return s;
	p->family = outside->model_type;
	p->width = (uint32_t)width;
	p->vocab = (uint32_t)vocab;
	p->max_context = (uint32_t)b->max_position;
	p->norm = f->norm;
	p->norm_eps = (float)eps;
	p->embed = f->names->embed;
	p->final_norm = f->names->final_norm;
	p->lm_head = tied ? p->embed : f->names->lm_head;
	/* of several parts: what the whole config does not say, the checkpoint does */
	p->may_be_tied = b->wrapper && !json_object_get(b->whole, "tie_word_embeddings");
	if (p->may_be_tied)
		p->lm_head = f->names->lm_head;
	p->layer_prefix = f->names->layers;
	p->roots = outside->roots;
	p->also = f->also;
	p->ones = f->ones;
	p->skipped = outside->skipped;
	p->embed_scale = p->logit_scale = 1;
	return f->layers(b);
}

/* Reads config.json's token ids, then generation_config.json, which overrides them. The ids of
 * config.json must be valid even if they are overridden. */
static mx_status read_generation(struct mx_plan_build *b, const json_t *generation)
{
	static const char *const keys[] = {"eos_token_id", "bos_token_id"};
	json_t *ids = json_object();
	mx_status s = MX_OK;
	if (!ids)
		return mx_plan_no_memory(b);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		json_t *v = json_object_get(b->whole, keys[i]);
		if (!v)
			v = json_object_get(b->config, keys[i]);
		if (v && json_object_set(ids, keys[i], v))
			s = mx_plan_no_memory(b);
	}
	if (!s)
		s = mx_generation_config_read(b, ids);
	json_decref(ids);
	if (!s && generation) {
		if (b->err)
			snprintf(b->err->where, sizeof b->err->where, "%s", GENERATION);
		s = mx_generation_config_read(b, generation);
	}
	return s;
}

static mx_status build(const json_t *config, const json_t *generation, struct mx_plan **out,
                       struct mx_err *err)
{
	struct mx_plan_build b = {.config = config, .err = err};
	mx_status s = mx_plan_new(&b);
	if (s)
		return mx_fail_at(err, s, CONFIG, "no memory for the layer plan");
	if (err)
		snprintf(err->where, sizeof err->where, "%s", CONFIG);
	s = read_model(&b);
	if (!s)
		s = read_generation(&b, generation);
	json_decref(b.own);
	if (s) {
		mx_plan_destroy(b.plan);
		return s;
	}
	if (err)
		err->where[0] = 0;
	*out = b.plan;
	return MX_OK;
}

mx_status mx_plan_parse(const char *config, size_t config_len, const char *generation,
                        size_t generation_len, struct mx_plan **out, struct mx_err *err)
{
	json_t *c = NULL, *g = NULL;
	mx_status s = mx_json_parse(config, config_len, CONFIG, &c, err);
	if (!s && generation)
		s = mx_json_parse(generation, generation_len, GENERATION, &g, err);
	if (!s)
		s = build(c, g, out, err);
	json_decref(c);
	json_decref(g);
	return s;
}

/* Reads DIR/NAME. */
static mx_status slurp(const char *dir, const char *name, char **out, size_t *out_len,
                       struct mx_err *err)
{
	size_t n = strlen(dir) + strlen(name) + 2;
	char *path = mx_calloc(n, 1);
	if (!path)
		return mx_fail_at(err, MX_E_NOMEM, name, "no memory for its path");
	snprintf(path, n, "%s/%s", dir, name);
	mx_status s = mx_json_slurp(path, MAX_CONFIG, out, out_len, err);
	free(path);
	return s;
}

static void layer_holds_one(const struct mx_plan_layer *layer)
{
	for (uint32_t b = 0; b < layer->n_blocks; b++)
		for (uint32_t k = 0; k < layer->blocks[b].n_mixers; k++) {
			const struct mx_plan_mixer *m = &layer->blocks[b].mixers[k];
			((struct mx_plan_mixer *)(uintptr_t)m)->plus_one = NULL; /* of the plan's arena */
		}
}

/* Nothing is added to norms that hold 1 + w where the family expects w. */
static void norms_hold_one(struct mx_plan *p)
{
	p->norm_plus_one = false;
	for (uint32_t i = 0; i < p->n_layers; i++)
		layer_holds_one(&p->layers[i]);
	if (p->head.layer)
		layer_holds_one(p->head.layer);
}

/* Reads the plan of a GGUF file. */
static mx_status load_gguf(const char *path, struct mx_plan **out, struct mx_err *err)
{
	struct mx_gguf *g = NULL;
	char *config = NULL, *generation = NULL;
	size_t config_len = 0, generation_len = 0;
	mx_status s = mx_gguf_open(path, &g, err);
	if (!s)
		s = mx_gguf_make(g, CONFIG, &config, &config_len, err);
	if (!s &&
	    (s = mx_gguf_make(g, GENERATION, &generation, &generation_len, err)) == MX_E_NOTFOUND) {
		s = MX_OK;
		if (err)
			*err = (struct mx_err){0};
	}
	if (!s)
		s = mx_plan_parse(config, config_len, generation, generation_len, out, err);
	if (!s && mx_gguf_norms_hold_one(g))
		norms_hold_one(*out);
	mx_gguf_close(g);
	free(config);
	free(generation);
	return s;
}

mx_status mx_plan_load(const char *dir, struct mx_plan **out, struct mx_err *err)
{
	char *config = NULL, *generation = NULL;
	size_t config_len = 0, generation_len = 0;
	if (mx_gguf_is(dir))
		return load_gguf(dir, out, err);
	mx_status s = mx_folder_check(dir, err);
	if (!s)
		s = slurp(dir, CONFIG, &config, &config_len, err);
	if (!s) {
		s = slurp(dir, GENERATION, &generation, &generation_len, err);
		if (s == MX_E_NOTFOUND) { /* the file is optional: its absence is no error */
			s = MX_OK;
			if (err)
				*err = (struct mx_err){0};
		}
	}
	if (!s)
		s = mx_plan_parse(config, config_len, generation, generation_len, out, err);
	free(config);
	free(generation);
	return s;
}
