/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads rotary embedding parameters in either spelling: rope_theta with
 * rope_scaling, or transformers 5's rope_parameters.
 *
 * The formulas and the order of rounding are those of transformers 5
 * (modeling_rope_utils.py): frequencies in float32, YaRN's borders in double.
 */
#include <math.h>
#include <string.h>

#include "model/family/family.h"

#define TWO_PI 6.283185307179586476925

/* The objects that rope keys are read from. */
struct rope_source {
	struct mx_scope dict;         /* rope_scaling or rope_parameters; empty if neither exists */
	const struct mx_scope *model; /* the keys around it */
	const struct mx_plan_build *b;
	const char *layers; /* "full_attention", "sliding_attention"; NULL = all layers */
	bool local;         /* the keys are those of layers with a window, in the old spelling */
};

/* Returns the rope dictionary of one object: rope_scaling unless it is empty, else rope_parameters.
 */
static const json_t *dict_of(const json_t *object, const char **out_where)
{
	const json_t *d = json_object_get(object, "rope_scaling");
	*out_where = "rope_scaling.";
	if (d && !json_is_null(d) && !(json_is_object(d) && json_object_size(d) == 0))
		return d;
	*out_where = "rope_parameters.";
	d = json_object_get(object, "rope_parameters");
	return json_is_null(d) ? NULL : d;
}

/* True if the dictionary has one for each type of layer. */
static bool by_type(const json_t *dict)
{
	const char *key;
	json_t *v;
	double number;
	json_object_foreach((json_t *)dict, key,
	                    v) if (json_is_object(v) && !mx_json_number(v, &number)) return true;
	return false;
}

/* Finds the dictionary of a type of layers; NULL = all have the same. */
static mx_status find_dict(struct rope_source *src)
{
	const char *where = "";
	const json_t *d = dict_of(src->model->inner, &where);
	if (!d)
		d = dict_of(src->model->outer, &where);
	if (d && !json_is_object(d))
		return mx_fail(src->b->err, MX_E_INVALID, "%.*s: must be an object", (int)strlen(where) - 1,
		               where);
	if (d && by_type(d)) {
		if (!src->layers)
			return mx_fail(src->b->err, MX_E_UNSUPPORTED,
			               "%.*s: parameters by type of layer are not supported for model_type "
			               "'%s'",
			               (int)strlen(where) - 1, where, src->b->family->model_type);
		d = json_object_get(d, src->layers);
		d = json_is_object(d) ? d : NULL;
	} else if (src->layers && !strcmp(src->layers, "sliding_attention")) {
		d = NULL; /* scaling in the old spelling is that of the other layers */
		src->local = true;
	}
	src->dict = (struct mx_scope){.where = where, .inner = d};
	return MX_OK;
}

static mx_status read_type(const struct rope_source *src, const char **out)
{
	static const char *const known[] = {"default", "linear",   "dynamic",      "llama3",
	                                    "yarn",    "longrope", "proportional", "none"};
	const char *type = "";
	const char *key = mx_scope_get(&src->dict, "rope_type") ? "rope_type" : "type";
	mx_status s = mx_scope_string(&src->dict, key, "default", &type, src->b->err);
	if (s)
		return s;
	/* earlier names of Phi-3 */
	if (!strcmp(type, "su") || (!strcmp(type, "yarn") && mx_scope_get(&src->dict, "short_factor")))
		type = "longrope";
	if (!strcmp(type, "mrope") && src->b->family->three_positions)
		type = "default";
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(type, known[i]) && (src->b->family->own || strcmp(type, "none")) &&
		    (src->b->family->rope_by_type || strcmp(type, "proportional"))) {
			*out = known[i];
			return MX_OK;
		}
	return mx_fail(src->b->err, MX_E_UNSUPPORTED,
	               "%s%s: '%.60s' is none of default, linear, dynamic, llama3, yarn, "
	               "longrope",
	               src->dict.where, key, type);
}

/* Reads the number of rotated dimensions of a head, or for "proportional" of those that have a
 * frequency other than 0. */
static mx_status read_dim(const struct rope_source *src, uint32_t head_dim, uint32_t *out)
{
	struct mx_err *err = src->b->err;
	const struct mx_scope *from =
		mx_scope_get(&src->dict, "partial_rotary_factor") ? &src->dict : src->model;
	const struct mx_family *f = src->b->family;
	double part = 1, def = f->default_partial > 0 ? f->default_partial : 1;
	mx_status s = mx_scope_float(from, "partial_rotary_factor", 0, 1, def, &part, err);
	if (s)
		return s;
	if (part != 1 && !f->own && !(f->default_partial > 0))
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "%spartial_rotary_factor: %g is not supported for model_type '%s'",
		               from->where, part, f->model_type);
	int64_t rotated = (int64_t)(head_dim * part);
	if (f->default_partial > 0) /* MiniMax's spelling */
		s = mx_scope_int(src->model, "rotary_dim", 2, head_dim, rotated, &rotated, err);
	if (s)
		return s;
	uint32_t dim = (uint32_t)rotated;
	if (dim < 2 || dim % 2)
		return mx_fail(err, MX_E_RANGE,
		               "head_dim: rope over %u dimensions, which must be even and 2 or more", dim);
	*out = dim;
	return MX_OK;
}

static mx_status read_original(const struct rope_source *src, int64_t *out)
{
	static const char key[] = "original_max_position_embeddings";
	/* A key beside the dictionary overrides the one inside, as in transformers. */
	const struct mx_scope *from = mx_scope_get(src->model, key) ? src->model : &src->dict;
	return mx_scope_int(from, key, 1, MX_PLAN_MAX_POSITION, src->b->max_position, out, src->b->err);
}

static mx_status read_factor(const struct rope_source *src, double *out)
{
	if (!mx_scope_get(&src->dict, "factor"))
		return mx_fail(src->b->err, MX_E_INVALID, "%sfactor: is missing", src->dict.where);
	return mx_scope_float(&src->dict, "factor", 1, 1e6, 1, out, src->b->err);
}

/* Applies Llama 3's scaling: long wavelengths are stretched, short ones unchanged, those between
 * blended. */
static mx_status scale_llama3(const struct rope_source *src, const struct mx_rope_config *r,
                              double *inv)
{
	double lo = 0, hi = 0;
	int64_t original = 0;
	struct mx_err *err = src->b->err;
	for (int i = 0; i < 2; i++) {
		const char *key = i ? "high_freq_factor" : "low_freq_factor";
		if (!mx_scope_get(&src->dict, key))
			return mx_fail(err, MX_E_INVALID, "%s%s: is missing", src->dict.where, key);
	}
	mx_status s = mx_scope_float(&src->dict, "low_freq_factor", 1e-6, 1e6, 1, &lo, err);
	if (!s)
		s = mx_scope_float(&src->dict, "high_freq_factor", 1e-6, 1e6, 4, &hi, err);
	if (!s)
		s = read_original(src, &original);
	if (s)
		return s;
	if (!(hi > lo))
		return mx_fail(err, MX_E_RANGE, "%shigh_freq_factor: %g is not above low_freq_factor %g",
		               src->dict.where, hi, lo);

	const float f = (float)r->factor, l0 = (float)original;
	for (uint32_t i = 0; i < r->dim / 2; i++) {
		float freq = (float)inv[i], wavelen = (float)TWO_PI / freq;
		float smooth = (l0 / wavelen - (float)lo) / (float)(hi - lo);
		if (wavelen > (float)((double)original / lo))
			inv[i] = freq / f;
		else if (!(wavelen < (float)((double)original / hi)))
			inv[i] = (1 - smooth) * freq / f + smooth * freq;
	}
	return MX_OK;
}

/* Returns YaRN's magnitude scale: 0.1 m ln(s) + 1. */
static double yarn_magnitude(double scale, double m)
{
	return scale <= 1 ? 1 : 0.1 * m * log(scale) + 1;
}

static mx_status yarn_attention_factor(const struct rope_source *src, double factor, double *out)
{
	double m = 0, m_all = 0;
	struct mx_err *err = src->b->err;
	mx_status s = mx_scope_float(&src->dict, "mscale", 0, 1e3, 0, &m, err);
	if (!s)
		s = mx_scope_float(&src->dict, "mscale_all_dim", 0, 1e3, 0, &m_all, err);
	if (s)
		return s;
	double def = m > 0 && m_all > 0 ? yarn_magnitude(factor, m) / yarn_magnitude(factor, m_all)
	                                : yarn_magnitude(factor, 1);
	return mx_scope_float(&src->dict, "attention_factor", 1e-6, 1e6, def, out, err);
}

/* Applies YaRN (arXiv 2309.00071): dimensions that rotate often are unchanged, those that rotate
 * less than beta_slow times within the original length are stretched, with a linear ramp between.
 */
static mx_status scale_yarn(const struct rope_source *src, struct mx_rope_config *r, double *inv)
{
	struct mx_err *err = src->b->err;
	int64_t original = 0;
	double fast = 0, slow = 0;
	bool truncate = true;
	mx_status s = read_original(src, &original);
	if (!s && !mx_scope_get(&src->dict, "factor"))
		r->factor = (double)src->b->max_position / (double)original;
	else if (!s)
		s = read_factor(src, &r->factor);
	if (!s)
		s = yarn_attention_factor(src, r->factor, &r->attention_factor);
	if (!s)
		s = mx_scope_float(&src->dict, "beta_fast", 0, 1e6, 0, &fast, err);
	if (!s)
		s = mx_scope_float(&src->dict, "beta_slow", 0, 1e6, 0, &slow, err);
	if (!s)
		s = mx_scope_bool(&src->dict, "truncate", true, &truncate, err);
	if (s)
		return s;
	r->max_context = (double)original * r->factor;

	const double dim = r->dim, turn = 2 * log(r->theta);
	double low = dim * log((double)original / ((fast > 0 ? fast : 32) * TWO_PI)) / turn;
	double high = dim * log((double)original / ((slow > 0 ? slow : 1) * TWO_PI)) / turn;
	if (truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, dim - 1);
	if (low == high)
		high += 0.001;
	for (uint32_t i = 0; i < r->dim / 2; i++) {
		float ramp = ((float)i - (float)low) / (float)(high - low);
		float keep = 1 - fminf(fmaxf(ramp, 0), 1);
		float freq = (float)inv[i], stretched = 1 / ((float)r->factor * (1 / freq));
		inv[i] = stretched * (1 - keep) + freq * keep;
	}
	return MX_OK;
}

/* Reads a list of dim / 2 factors and divides the unscaled frequencies by them. */
static mx_status divide(const struct rope_source *src, const char *key,
                        const struct mx_rope_config *r, double *inv)
{
	const json_t *list = mx_scope_get(&src->dict, key);
	if (!json_is_array(list) || json_array_size(list) != r->dim / 2)
		return mx_fail(src->b->err, MX_E_INVALID, "%s%s: must be a list of %u numbers",
		               src->dict.where, key, r->dim / 2);
	for (uint32_t i = 0; i < r->dim / 2; i++) {
		double f;
		if (!mx_json_number(json_array_get(list, i), &f) || !(f > 0))
			return mx_fail(src->b->err, MX_E_RANGE, "%s%s[%u]: must be a positive number",
			               src->dict.where, key, i);
		inv[i] = 1 / ((float)f * (float)pow((float)r->theta, (float)(2 * i) / (float)r->dim));
	}
	return MX_OK;
}

/* LongRoPE (arXiv 2402.13753): a list of factors for sequences of the original length, another for
 * longer ones. */
static mx_status scale_long(const struct rope_source *src, struct mx_rope_config *r, double *inv)
{
	struct mx_err *err = src->b->err;
	double *longer = mx_arena_alloc(src->b->arena, r->dim / 2 * sizeof *longer), def = 1;
	if (!longer)
		return mx_plan_no_memory(src->b);
	mx_status s = read_original(src, &r->original);
	if (!s && mx_scope_get(&src->dict, "factor"))
		s = read_factor(src, &r->factor);
	else if (!s)
		r->factor = (double)src->b->max_position / (double)r->original;
	if (!s)
		s = divide(src, "short_factor", r, inv);
	if (!s)
		s = divide(src, "long_factor", r, longer);
	if (s)
		return s;
	r->long_inv_freq = longer;
	if (r->factor > 1 && r->original > 1)
		def = sqrt(1 + log(r->factor) / log((double)r->original));
	return mx_scope_float(&src->dict, "attention_factor", 1e-6, 1e6, def, &r->attention_factor,
	                      err);
}

static mx_status scale(const struct rope_source *src, struct mx_rope_config *r, double *inv)
{
	mx_status s;
	if (!strcmp(r->type, "default")) /* the list is that of a GGUF file's rope_freqs */
		return mx_scope_get(&src->dict, "frequency_factors")
		           ? divide(src, "frequency_factors", r, inv)
		           : MX_OK;
	if (!strcmp(r->type, "yarn"))
		return scale_yarn(src, r, inv);
	if (!strcmp(r->type, "longrope"))
		return scale_long(src, r, inv);
	if ((s = read_factor(src, &r->factor)))
		return s;
	if (!strcmp(r->type, "llama3"))
		return scale_llama3(src, r, inv);

	r->max_context *= r->factor;
	if (!strcmp(r->type, "linear"))
		for (uint32_t i = 0; i < r->dim / 2; i++)
			inv[i] = (float)inv[i] / (float)r->factor;
	else if (r->dim < 4) /* dynamic's exponent is dim / (dim - 2) */
		return mx_fail(src->b->err, MX_E_RANGE, "head_dim: dynamic rope needs 4 dimensions, not %u",
		               r->dim);
	return MX_OK;
}

mx_status mx_rope_context_set(const struct mx_plan_build *b, const struct mx_rope_config *rope)
{
	/* A context above the bound is a broken config. */
	if (!(rope->max_context <= MX_PLAN_MAX_POSITION))
		return mx_fail(b->err, MX_E_RANGE,
		               "max_position_embeddings: rope scaling stretches it to %g, more than %d",
		               rope->max_context, MX_PLAN_MAX_POSITION);
	b->plan->max_context = (uint32_t)(rope->max_context + 0.5);
	return MX_OK;
}

/* Reads rope_theta: beside the scaling, or in its dictionary. */
static mx_status read_theta(const struct rope_source *src, struct mx_rope_config *r)
{
	const struct mx_family *f = src->b->family;
	const struct mx_scope *from = mx_scope_get(&src->dict, "rope_theta") ? &src->dict : src->model;
	const char *key = src->local && f->local_theta_key ? f->local_theta_key : "rope_theta";
	bool local =
		f->default_local_theta > 0 && src->layers && !strcmp(src->layers, "sliding_attention");
	double def = local ? f->default_local_theta : f->default_theta > 0 ? f->default_theta : 10000;
	mx_status s = mx_scope_float(from, key, 1.0001, 1e18, def, &r->theta, src->b->err);
	/* ministral3 */
	return s ? s
	         : mx_scope_float(&src->dict, "llama_4_scaling_beta", -1e3, 1e3, 0, &r->q_beta,
	                          src->b->err);
}

/* Applies alpha, if there is one: it makes "dynamic" a "default" of another base. */
static mx_status stretch_base(const struct rope_source *src, struct mx_rope_config *r)
{
	double alpha = 0;
	mx_status s = mx_scope_float(&src->dict, "alpha", 0, 1e9, 0, &alpha, src->b->err);
	if (s || alpha <= 0 || strcmp(r->type, "dynamic"))
		return s;
	if (r->dim < 4)
		return mx_fail(src->b->err, MX_E_RANGE, "head_dim: alpha needs 4 dimensions, not %u",
		               r->dim);
	r->theta *= pow(alpha, (double)r->dim / (r->dim - 2));
	r->type = "default";
	return MX_OK;
}

/* Allocates and computes the unscaled frequencies of a theta; NULL if out of memory. */
static double *frequencies(const struct mx_plan_build *b, double theta, uint32_t dim)
{
	double *inv = mx_arena_alloc(b->arena, dim / 2 * sizeof *inv);
	for (uint32_t i = 0; inv && i < dim / 2; i++)
		inv[i] = 1 / (float)pow((float)theta, (float)(2 * i) / (float)dim);
	return inv;
}

mx_status mx_rope_config_theta(const struct mx_plan_build *b, const struct mx_rope_config *from,
                               double theta, struct mx_rope_config *out)
{
	struct mx_rope_config r = *from;
	if (strcmp(from->type, "default"))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "rope_parameters: '%s' with a theta for each layer is not supported",
		               from->type);
	r.theta = theta;
	r.inv_freq = frequencies(b, theta, r.dim);
	if (!r.inv_freq)
		return mx_plan_no_memory(b);
	*out = r;
	return MX_OK;
}

mx_status mx_rope_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const char *layers, uint32_t head_dim, struct mx_rope_config *out)
{
	struct rope_source src = {.model = scope, .b = b, .layers = layers};
	struct mx_rope_config r = {
		.factor = 1,
		.attention_factor = 1,
		.max_context = (double)b->max_position,
	};
	mx_status s = find_dict(&src);
	if (!s)
		s = read_type(&src, &r.type);
	if (s)
		return s;
	if (!strcmp(r.type, "none")) {
		*out = r;
		return MX_OK;
	}

	uint32_t turning = 0;
	s = read_dim(&src, head_dim, &turning);
	if (s)
		return s;
	bool proportional = !strcmp(r.type, "proportional");
	r.dim = proportional ? head_dim : turning;
	if (r.dim % 2)
		return mx_fail(b->err, MX_E_RANGE, "head_dim: rope over %u dimensions, which must be even",
		               r.dim);
	s = read_theta(&src, &r);
	if (!s && b->family->rope_alpha)
		s = stretch_base(&src, &r);
	if (!s && r.q_beta != 0)
		s = read_original(&src, &r.original);
	if (s)
		return s;
	double *inv = frequencies(b, r.theta, r.dim);
	if (!inv)
		return mx_plan_no_memory(b);
	if (proportional) { /* frequencies of the whole head, of which the last are 0 */
		r.type = "default";
		memset(inv + turning / 2, 0, (r.dim - turning) / 2 * sizeof *inv);
	} else {
		s = scale(&src, &r, inv);
	}
	if (s)
		return s;
	for (uint32_t i = 0; i < r.dim / 2; i++)
		if (!(inv[i] > 0 || proportional) || !isfinite(inv[i]) ||
		    (r.long_inv_freq && !(r.long_inv_freq[i] > 0 && isfinite(r.long_inv_freq[i]))))
			return mx_fail(b->err, MX_E_RANGE, "%srope_theta: frequency %u comes to %g",
			               src.dict.where, i, inv[i]);
	r.inv_freq = inv;
	*out = r;
	return MX_OK;
}
