/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of a layer, named as flash-linear-attention names them. */
#include <math.h>

#include "mixers/gla/gla_layer.h"

#define MAX_HEADS 4096
#define MAX_DIM   8192
/* Elements of a stream: no product of sizes overflows. */
#define MAX_ROW (1 << 20)

/* ---- reading: only the first error is reported; values read after it are not used ---- */

struct reader {
	const struct mx_params *in;
	struct mx_err *err;
	mx_status status;
};

#define REFUSE(r, code, ...)                                                                       \
	do {                                                                                           \
		if ((r)->status == MX_OK)                                                                  \
			(r)->status = mx_mixer_fail((r)->err, code, "gla: " __VA_ARGS__);                      \
	} while (0)

/* Where the next error is written: NULL after the first. */
static struct mx_err *err_of(struct reader *r)
{
	return r->status == MX_OK ? r->err : NULL;
}

static void take_status(struct reader *r, mx_status status)
{
	if (r->status == MX_OK)
		r->status = status;
}

static double get_number(struct reader *r, const char *name, double lo, double hi, double def)
{
	double v = def;
	take_status(r, mx_param_read_number(r->in, "gla", name, def, lo, hi, &v, err_of(r)));
	return v;
}

/* Takes numbers such as 4.0 too, as Python's configurations have them. */
static uint32_t get_count(struct reader *r, const char *name, uint32_t lo, uint32_t hi,
                          uint32_t def)
{
	double v = get_number(r, name, lo, hi, def);
	if (v != floor(v)) {
		REFUSE(r, MX_E_INVALID, "%s must be a whole number, not %g", name, v);
		return def;
	}
	return (uint32_t)v;
}

static bool get_bool(struct reader *r, const char *name, bool def)
{
	bool v = def;
	take_status(r, mx_param_read_bool(r->in, "gla", name, def, &v, err_of(r)));
	return v;
}

static const char *get_string(struct reader *r, const char *name, const char *def)
{
	const struct mx_param *p = mx_param_find(r->in, name);
	if (!p)
		return def;
	if (p->type == MX_PARAM_STRING)
		return p->s;
	REFUSE(r, MX_E_INVALID, "%s must be a string", name);
	return def;
}

static bool get_option(struct reader *r, enum gla_option option, const char *key)
{
	if (option == GLA_NEVER || option == GLA_ALWAYS)
		return option == GLA_ALWAYS;
	return get_bool(r, key, option == GLA_ON);
}

/* Returns `all` / `parts`; refuses a remainder. `what` names `all` in the message. */
static uint32_t divide(struct reader *r, uint32_t all, uint32_t parts, const char *what)
{
	if (all && all % parts == 0)
		return all / parts;
	REFUSE(r, MX_E_RANGE, "%s come to %u, which is no multiple of %u heads", what, all, parts);
	return 1;
}

/* Returns size * ratio, rounded down unless it misses a whole number by rounding errors only. */
static uint32_t expand(struct reader *r, uint32_t size, const char *name, double def)
{
	double n = size * get_number(r, name, 1e-3, 256, def);
	n = fabs(n - round(n)) <= 1e-9 * n ? round(n) : floor(n);
	if (n >= 1 && n <= MAX_ROW)
		return (uint32_t)n;
	REFUSE(r, MX_E_RANGE, "%s of %u comes to %g", name, size, n);
	return 1;
}

/* ---- sizes ---- */

static void shape_expansion(struct reader *r, uint32_t width, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	uint32_t heads = get_count(r, "num_heads", 1, MAX_HEADS, v->heads);
	uint32_t kv = v->kv_heads ? get_count(r, "num_kv_heads", 1, heads, heads) : heads;
	if (heads % kv)
		REFUSE(r, MX_E_RANGE, "num_kv_heads %u does not divide num_heads %u", kv, heads);
	p->k_dim = divide(r, expand(r, width, "expand_k", v->expand_k), heads, "expand_k: keys");
	p->v_dim = divide(r, expand(r, width, "expand_v", v->expand_v), heads, "expand_v: values");
	p->recur.heads = p->recur.q_heads = heads;
	p->recur.k_heads = p->recur.v_heads = kv;
	p->recur.a_heads = v->vector ? kv : heads;
}

static void shape_head_dim(struct reader *r, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	uint32_t k_heads = get_count(r, "num_heads", 1, MAX_HEADS, v->heads);
	uint32_t heads = get_count(r, "num_v_heads", 1, MAX_HEADS, k_heads);
	if (heads % k_heads)
		REFUSE(r, MX_E_RANGE, "num_v_heads %u is no multiple of num_heads %u", heads, k_heads);
	if (v->packed && heads != k_heads)
		REFUSE(r, MX_E_UNSUPPORTED, "num_v_heads: minimax has as many as num_heads, %u", k_heads);
	p->k_dim = get_count(r, "head_dim", 1, MAX_DIM, v->head_dim);
	p->v_dim = expand(r, p->k_dim, "expand_v", v->expand_v);
	if (fabs(p->k_dim * get_number(r, "expand_v", 0, 1e9, v->expand_v) - p->v_dim) > 1e-3)
		REFUSE(r, MX_E_RANGE, "expand_v of head_dim %u is no whole number", p->k_dim);
	if (p->v_dim > MAX_DIM)
		REFUSE(r, MX_E_LIMIT, "expand_v: heads of %u values", p->v_dim);
	p->recur.heads = p->recur.v_heads = p->recur.a_heads = heads;
	p->recur.q_heads = p->recur.k_heads = k_heads;
}

static void shape_ratio(struct reader *r, uint32_t width, struct gla_params *p)
{
	uint32_t dim = 128;
	if (!mx_param_find(r->in, "expand_ratio") && mx_param_find(r->in, "num_heads"))
		dim = divide(r, width, get_count(r, "num_heads", 1, MAX_HEADS, 1), "channels");
	dim = get_count(r, "expand_ratio", 1, MAX_DIM, dim);
	if (width % dim)
		REFUSE(r, MX_E_RANGE, "expand_ratio %u does not divide hidden_size %u", dim, width);
	uint32_t heads = width / dim ? width / dim : 1;
	p->k_dim = p->v_dim = dim;
	p->recur.heads = p->recur.q_heads = p->recur.k_heads = p->recur.v_heads = p->recur.a_heads =
		heads;
}

/* Channels are grouped in heads of 64, so that threads can share the work; else in one a rank; or
 * where that cannot be either, in heads of as many as divide them and give each rank one. */
static void shape_channels(struct reader *r, const struct mx_layer_desc *layer,
                           struct gla_params *p)
{
	const uint32_t n = expand(r, layer->width, "expand_ratio", 1);
	const uint32_t ranks = layer->ranks > 1 ? layer->ranks : 1;
	uint32_t dim = 64;
	if (n % ranks == 0 && n % (64 * ranks))
		dim = n / ranks;
	else if (n < ranks)
		dim = n;
	while (n % dim || (n >= ranks && n / dim < ranks))
		dim--;
	p->v_dim = dim;
	p->recur.heads = p->recur.v_heads = p->recur.a_heads = n / dim;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
	while (b) {
		const uint32_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* Takes the rank's share of the heads: of those that share a key head all. */
static void take_share(struct reader *r, const struct mx_layer_desc *layer, struct gla_params *p)
{
	uint32_t *const heads[] = {&p->recur.heads, &p->recur.q_heads, &p->recur.k_heads,
	                           &p->recur.v_heads, &p->recur.a_heads};
	uint32_t units = 0;
	p->ranks = layer->ranks > 1 ? layer->ranks : 1;
	p->all_heads = p->recur.heads;
	for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
		units = common_divisor(*heads[i], units);
	units = units ? units : 1; /* none: the sizes are refused */
	if (units < p->ranks)
		REFUSE(r, MX_E_UNSUPPORTED, "%u heads cannot be split over %u ranks", units, p->ranks);
	p->units = units;
	p->share =
		units < p->ranks ? (struct mx_share){0, units} : mx_share_of(units, layer->rank, p->ranks);
	for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
		*heads[i] = *heads[i] / units * p->share.n;
}

/* ---- q and k ---- */

static void read_feature(struct reader *r, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	const char *name = v->feature_key ? get_string(r, v->feature_key, v->feature) : NULL;
	char known[128] = "";
	if (!name)
		return;
	for (const struct gla_feature_name *f = v->features; f->name; f++) {
		if (!strcmp(f->name, name)) {
			p->feature = f->feature;
			return;
		}
		size_t n = strlen(known);
		snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", f->name);
	}
	REFUSE(r, MX_E_UNSUPPORTED, "%s '%.60s' is none of %s", v->feature_key, name, known);
}

static void read_qk(struct reader *r, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	read_feature(r, p);
	if (v->l2)
		p->norm_q = p->norm_k = MX_RECUR_QK_L2;
	if (v->delta && v->shape == GLA_EXPANSION) {
		const char *norm = get_string(r, "qk_norm", "l2");
		if (!strcmp(norm, "sum"))
			p->norm_q = p->norm_k = MX_RECUR_QK_L1;
		else if (strcmp(norm, "l2"))
			REFUSE(r, MX_E_UNSUPPORTED, "qk_norm '%.60s' is none of l2, sum", norm);
	}
	if (v->feature_norms) {
		p->norm_q = get_bool(r, "norm_q", false) ? MX_RECUR_QK_SUM : MX_RECUR_QK_NONE;
		p->norm_k = get_bool(r, "norm_k", false) ? MX_RECUR_QK_SUM : MX_RECUR_QK_NONE;
		p->normalize = get_bool(r, "norm_feature_map", false);
		p->feature_tied = get_bool(r, "tie_feature_map_qk", false);
	}
	if (v->rope && p->k_dim % 2)
		REFUSE(r, MX_E_RANGE, "heads of %u keys cannot be rotated in pairs", p->k_dim);
	p->recur.k_dim = mx_recur_feature_dim(p->feature, p->k_dim);
	p->recur.v_dim = p->v_dim + p->normalize;
}

/* ---- gates and norm ---- */

static void read_decay(struct reader *r, struct gla_params *p)
{
	switch (p->variant->decay) {
	case GLA_LOGSIGMOID:
		p->normalizer = (float)get_number(r, "gate_logit_normalizer", 1e-3, 1e6, 16);
		p->clamp_min = (float)get_number(r, "clamp_min", -1e6, 0, -INFINITY);
		break;
	case GLA_SOFTPLUS:
		if (!p->variant->vector)
			break;
		p->has_bound = mx_param_find(r->in, "lower_bound");
		p->bound = (float)get_number(r, "lower_bound", -1e6, 0, 0);
		if (get_bool(r, "safe_gate", false) && !p->has_bound)
			REFUSE(r, MX_E_INVALID, "safe_gate needs lower_bound");
		break;
	case GLA_LOWER_BOUND: p->has_lower_bounds = get_bool(r, "use_lower_bound", true); break;
	case GLA_NO_DECAY:
	case GLA_RETENTION:
	case GLA_LIGHTNING:
	case GLA_SLOPES: break;
	}
	if (p->variant->decay != GLA_NO_DECAY)
		p->recur.decay = p->variant->shape == GLA_CHANNELS ? MX_RECUR_CHANNEL
		                 : p->variant->vector              ? MX_RECUR_VECTOR
		                                                   : MX_RECUR_SCALAR;
}

static void read_norm(struct reader *r, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	bool gated = get_option(r, v->gate, v->gate_key);
	bool fused = get_bool(r, "fuse_norm", true);
	p->gate = gated ? v->gate_function : MX_RECUR_GATE_NONE;
	if (gated && v->gate_activation) {
		const char *f = get_string(r, "output_gate_activation", "swish");
		if (!strcmp(f, "sigmoid"))
			p->gate = MX_RECUR_GATE_SIGMOID;
		else if (strcmp(f, "swish") && strcmp(f, "silu"))
			REFUSE(r, MX_E_UNSUPPORTED,
			       "output_gate_activation '%.60s' is none of swish, silu, sigmoid", f);
	}
	p->norm_name = gated && fused && v->norm_fused ? v->norm_fused : v->norm;
	/* The delta family's norms always have weights. */
	p->norm_affine = v->delta || get_bool(r, "elementwise_affine", true);
	p->norm_eps = (float)get_number(r, "norm_eps", 0, 1, v->norm_eps);
}

static uint32_t stream_size(const struct gla_params *p, int s)
{
	const struct mx_recur_spec *l = &p->recur;
	switch ((enum mx_recur_stream)s) {
	case MX_RECUR_Q: return l->q_heads * p->k_dim;
	case MX_RECUR_K: return l->k_heads * p->k_dim;
	case MX_RECUR_V: return l->v_heads * p->v_dim;
	case MX_RECUR_A:
		return l->a_heads * (l->decay == MX_RECUR_CHANNEL  ? p->v_dim
		                     : l->decay == MX_RECUR_VECTOR ? p->k_dim
		                                                   : 1);
	case MX_RECUR_BETA: return l->heads;
	case MX_RECUR_GATE: return l->heads * p->v_dim;
	case MX_RECUR_STREAMS: break;
	}
	return 0;
}

static void read_streams(struct reader *r, struct gla_params *p)
{
	const struct gla_variant *v = p->variant;
	bool conv = get_option(r, v->conv, "use_short_conv");
	bool beta = v->shape != GLA_EXPANSION || get_bool(r, "use_beta", true);
	bool silu = p->feature == MX_RECUR_FEATURE_SILU && v->delta;
	p->conv_size = conv ? get_count(r, "conv_size", 1, 8, 4) : 0;
	p->neg_eigval = v->delta && get_bool(r, "allow_neg_eigval", false);

	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		const struct gla_names *names = &v->streams[s];
		struct mx_recur_stream_desc *out = &p->streams[s];
		if (!names->weight || (s == MX_RECUR_BETA && !beta) || (s == MX_RECUR_GATE && !p->gate))
			continue;
		out->n = out->ld = stream_size(p, s);
		out->conv = conv && names->conv;
		out->silu = (out->conv && v->silu_conv) || (s == MX_RECUR_V && v->silu_v) ||
		            (s == MX_RECUR_Q && (v->silu_q || silu)) ||
		            (s == MX_RECUR_K && (v->silu_k || silu));
		if (names->up)
			out->rank = v->shape == GLA_HEAD_DIM
			                ? p->v_dim
			                : get_count(r, "gate_low_rank_dim", 1, MAX_DIM, 16);
		if (out->n > MAX_ROW)
			REFUSE(r, MX_E_LIMIT, "%s has %u rows", names->weight, out->n);
	}
	if (silu)
		p->feature = MX_RECUR_FEATURE_IDENTITY;
	p->streams[MX_RECUR_V].ld = p->recur.v_heads * p->recur.v_dim;
	/* HGRN2's k has no tensor, but memory. */
	if (v->shape == GLA_RATIO)
		p->streams[MX_RECUR_K].ld = stream_size(p, MX_RECUR_K);
}

static const struct gla_variant *find_variant(struct reader *r)
{
	const char *name = get_string(r, "variant", "");
	char known[256] = "";
	for (size_t i = 0; i < gla_n_variants; i++) {
		if (!strcmp(gla_variants[i].name, name))
			return &gla_variants[i];
		size_t n = strlen(known);
		snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", gla_variants[i].name);
	}
	REFUSE(r, MX_E_UNSUPPORTED, "variant '%.60s' is none of %s", name, known);
	return NULL;
}

/* The parameters of all variants: a checkpoint's config has keys that its variant does not use. */
static const char *const known[] = {
	"variant",
	"num_heads",
	"num_kv_heads",
	"num_v_heads",
	"head_dim",
	"expand_k",
	"expand_v",
	"expand_ratio",
	"feature_map",
	"norm_q",
	"norm_k",
	"norm_feature_map",
	"use_beta",
	"use_gate",
	"use_output_gate",
	"tie_feature_map_qk",
	"use_short_conv",
	"conv_size",
	"output_gate_activation",
	"qk_norm",
	"qk_activation",
	"allow_neg_eigval",
	"clamp_min",
	"safe_gate",
	"lower_bound",
	"use_lower_bound",
	"fuse_norm",
	"norm_eps",
	"elementwise_affine",
	"gate_logit_normalizer",
	"gate_low_rank_dim",
	"tensors",
	"by_turns",
};

static void read_form(struct reader *r, struct gla_params *p)
{
	static const struct {
		const char *name;
		enum gla_tensors_form form;
	} forms[] = {{"fla", GLA_TENSORS_FLA},
	             {"qwen3_5", GLA_TENSORS_QWEN3_5},
	             {"qwen3_5_ba", GLA_TENSORS_QWEN3_5},
	             {"qwen3_next", GLA_TENSORS_QWEN3_NEXT}};
	const size_t n = sizeof forms / sizeof *forms;
	const char *name = get_string(r, "tensors", forms[0].name);
	size_t i = 0;
	while (i < n && strcmp(forms[i].name, name))
		i++;
	if (i == n)
		REFUSE(r, MX_E_UNSUPPORTED,
		       "tensors '%.60s' is none of fla, qwen3_5, qwen3_next, qwen3_5_ba", name);
	else if (i && (strcmp(p->variant->name, "gated_deltanet") || !p->conv_size || !p->gate))
		REFUSE(r, MX_E_UNSUPPORTED,
		       "tensors '%s' are of a gated_deltanet with convolutions and a gate", name);
	p->form = p->variant->packed ? GLA_TENSORS_MINIMAX : forms[i % n].form;
	p->ba_joined = !strcmp(name, "qwen3_5_ba");
	if (get_bool(r, "by_turns", false))
		p->by_turns = p->recur.heads / p->recur.k_heads;
	if (p->by_turns && (p->form != GLA_TENSORS_QWEN3_5 || p->ranks > 1))
		REFUSE(r, MX_E_UNSUPPORTED, "by_turns: %s",
		       p->ranks > 1 ? "columns by turns cannot be split over ranks"
		                    : "only tensors of qwen3_5 have such columns");
	if (p->form)
		p->norm_name = "norm.weight";
}

mx_status gla_params_read(const struct mx_layer_desc *layer, struct gla_params *out,
                          struct mx_err *err)
{
	struct reader r = {&layer->params, err, MX_OK};
	mx_status status =
		mx_params_known(&layer->params, known, sizeof known / sizeof *known, "gla", err);
	if (status != MX_OK)
		return status;
	struct gla_params p = {.variant = find_variant(&r)};
	if (!p.variant)
		return r.status;
	p.recur.delta = p.variant->delta;
	p.recur.max_draft = layer->max_draft;
	switch (p.variant->shape) {
	case GLA_EXPANSION: shape_expansion(&r, layer->width, &p); break;
	case GLA_HEAD_DIM: shape_head_dim(&r, &p); break;
	case GLA_RATIO: shape_ratio(&r, layer->width, &p); break;
	case GLA_CHANNELS: shape_channels(&r, layer, &p); break;
	}
	take_share(&r, layer, &p);
	read_decay(&r, &p);
	read_qk(&r, &p);
	read_norm(&r, &p);
	if (r.status == MX_OK)
		read_streams(&r, &p);
	if (r.status == MX_OK)
		read_form(&r, &p);
	const uint32_t gates = p.streams[MX_RECUR_A].n / p.share.n * p.units;
	if (r.status == MX_OK && p.has_lower_bounds && gates != layer->width)
		REFUSE(&r, MX_E_UNSUPPORTED, "expand_ratio: %u gates cannot take use_lower_bound's %u",
		       gates, layer->width);
	if (r.status == MX_OK)
		*out = p;
	return r.status;
}
