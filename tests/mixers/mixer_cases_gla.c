/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of the gla mixer. The reference is the whole layer in double precision: each variant's
 * equations token by token, as in its paper (mixers/gla/README.md), without blocks.
 */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

/* The state of a reference while it runs. Weights are read in the order of the specs. */
struct layer {
	const struct mixer_case *c;
	struct mx_params p;
	const char *variant;
	const float *const *w; /* the next tensor */
	uint32_t n;
	const float *x;
	uint32_t heads, q_heads, k_heads, v_heads, k, v; /* k, v: sizes of a head */
	uint32_t taps;
	double *q, *key, *value, *a, *beta, *gate; /* [n, ...] */
};

static double *zeros(size_t n)
{
	double *p = calloc(n, sizeof(*p));
	if (!p)
		abort();
	return p;
}

static bool is(const struct layer *l, const char *variant)
{
	return !strcmp(l->variant, variant);
}

static bool says(const struct layer *l, const char *key, bool def)
{
	return mx_param_int(&l->p, key, def) != 0;
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double silu(double x)
{
	return x * sigmoid(x);
}

static void each(double *x, size_t n, double f(double))
{
	for (size_t i = 0; i < n; i++)
		x[i] = f(x[i]);
}

/* y[n, rows] = W x + b */
static double *product(uint32_t n, uint32_t rows, uint32_t cols, const float *w, const float *b,
                       const double *x)
{
	double *y = zeros((size_t)n * rows);
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t r = 0; r < rows; r++) {
			double sum = b ? b[r] : 0;
			for (uint32_t c = 0; c < cols; c++)
				sum += w[(size_t)r * cols + c] * x[(size_t)t * cols + c];
			y[(size_t)t * rows + r] = sum;
		}
	return y;
}

/* Returns a projection of the input, through a low rank if there is one, after a causal
 * convolution. */
static double *stream(struct layer *l, uint32_t rows, uint32_t rank, bool bias, uint32_t taps)
{
	uint32_t width = l->c->width;
	double *x = zeros((size_t)l->n * width), *y;
	for (size_t i = 0; i < (size_t)l->n * width; i++)
		x[i] = l->x[i];
	const float *w = *l->w++, *up = rank ? *l->w++ : NULL, *b = bias ? *l->w++ : NULL;
	y = product(l->n, rank ? rank : rows, width, w, rank ? NULL : b, x);
	free(x);
	if (rank) {
		x = y;
		y = product(l->n, rows, rank, up, b, x);
		free(x);
	}
	if (!taps)
		return y;
	w = *l->w++;
	b = mx_param_find(&l->p, "tensors") ? NULL : *l->w++; /* Qwen's have no bias */
	x = y;
	y = zeros((size_t)l->n * rows);
	for (uint32_t t = 0; t < l->n; t++)
		for (uint32_t r = 0; r < rows; r++) {
			double sum = b ? b[r] : 0;
			for (uint32_t i = 0; i < taps && i <= t; i++)
				sum += w[r * taps + taps - 1 - i] * x[(size_t)(t - i) * rows + r];
			y[(size_t)t * rows + r] = sum;
		}
	free(x);
	return y;
}

/* ---- the streams, in the order of their tensors: q, k, v, a, beta, gate ---- */

static bool is_delta(const struct layer *l)
{
	return is(l, "delta_net") || is(l, "gated_deltanet") || is(l, "kda");
}

static void read_sizes(struct layer *l)
{
	uint32_t width = l->c->width, heads = (uint32_t)mx_param_int(&l->p, "num_heads", 1);
	l->heads = l->q_heads = l->k_heads = l->v_heads = heads;
	if (is(l, "gated_deltanet") || is(l, "kda") || is(l, "minimax")) {
		l->heads = l->v_heads = (uint32_t)mx_param_int(&l->p, "num_v_heads", heads);
		l->k = (uint32_t)mx_param_int(&l->p, "head_dim", 0);
		l->v =
			(uint32_t)(l->k * mx_param_float(&l->p, "expand_v", is(l, "gated_deltanet") ? 2 : 1));
	} else if (is(l, "hgrn2")) {
		l->k = l->v = (uint32_t)mx_param_int(&l->p, "expand_ratio", 0);
		l->heads = l->q_heads = l->k_heads = l->v_heads = width / l->k;
	} else if (is(l, "hgrn")) {
		l->k = 1;
		l->v = 1;
		l->heads = l->v_heads = (uint32_t)(width * mx_param_float(&l->p, "expand_ratio", 1));
	} else {
		l->k_heads = l->v_heads = (uint32_t)mx_param_int(&l->p, "num_kv_heads", heads);
		l->k =
			(uint32_t)(width * mx_param_float(&l->p, "expand_k", is(l, "gla") ? 0.5 : 1)) / heads;
		l->v = (uint32_t)(width * mx_param_float(&l->p, "expand_v", 1)) / heads;
	}
	bool conv = is_delta(l) || is(l, "simple_gla");
	if (says(l, "use_short_conv", conv))
		l->taps = (uint32_t)mx_param_int(&l->p, "conv_size", 4);
}

/* MiniMax: q, k and v of a head are rows of one tensor. */
static void read_packed(struct layer *l)
{
	uint32_t heads = l->heads, k = l->k, v = l->v, each_head = 2 * k + v;
	double *qkv = stream(l, heads * each_head, 0, false, 0);
	each(qkv, (size_t)l->n * heads * each_head, silu);
	l->q = zeros((size_t)l->n * heads * k);
	l->key = zeros((size_t)l->n * heads * k);
	l->value = zeros((size_t)l->n * heads * v);
	for (size_t h = 0; h < (size_t)l->n * heads; h++) {
		memcpy(l->q + h * k, qkv + h * each_head, k * sizeof *qkv);
		memcpy(l->key + h * k, qkv + h * each_head + k, k * sizeof *qkv);
		memcpy(l->value + h * v, qkv + h * each_head + 2 * k, v * sizeof *qkv);
	}
	free(qkv);
	l->gate = stream(l, heads * v, 0, false, 0);
}

static void read_streams(struct layer *l)
{
	if (is(l, "minimax")) {
		read_packed(l);
		return;
	}
	uint32_t q = l->q_heads * l->k, k = l->k_heads * l->k, v = l->v_heads * l->v, n = l->n;
	uint32_t out = l->heads * l->v;

	if (!is(l, "hgrn"))
		l->q = stream(l, q, 0, false, l->taps);
	if (!is(l, "hgrn") && !is(l, "hgrn2"))
		l->key = stream(l, k, 0, false, l->taps);
	l->value = stream(l, v, 0, false, l->taps);
	if (is(l, "gla"))
		l->a = stream(l, k, (uint32_t)mx_param_int(&l->p, "gate_low_rank_dim", 16), true, 0);
	else if (is(l, "hgrn") || is(l, "hgrn2"))
		l->a = stream(l, out, 0, false, l->taps);
	else if (is(l, "simple_gla") || is(l, "gated_deltanet"))
		l->a = stream(l, l->heads, 0, true, 0);
	else if (is(l, "kda"))
		l->a = stream(l, l->heads * l->k, l->v, true, 0);
	if (is_delta(l) && says(l, "use_beta", true)) {
		l->beta = stream(l, l->heads, 0, false, 0);
		each(l->beta, (size_t)n * l->heads, sigmoid);
	}
	if (is(l, "kda"))
		l->gate = stream(l, out, l->v, true, 0);
	else if (!is(l, "hgrn2") && !is(l, "linear_attn") &&
	         says(l, is_delta(l) ? "use_gate" : "use_output_gate", !is(l, "delta_net")))
		l->gate = stream(l, out, 0, false, 0);

	const char *act = mx_param_string(&l->p, "qk_activation", "silu");
	bool silu_qk = is_delta(l) ? !strcmp(act, "silu") : !is(l, "hgrn2") && l->taps;
	if (l->q && (silu_qk || is(l, "hgrn2")))
		each(l->q, (size_t)n * q, silu);
	if (l->key && silu_qk)
		each(l->key, (size_t)n * k, silu);
	if (is_delta(l) || is(l, "hgrn") || (l->taps && !is(l, "hgrn2")))
		each(l->value, (size_t)n * v, silu);
}

/* ---- features of q and k ---- */

static double relu(double x)
{
	return fmax(x, 0);
}

static double elu_1(double x)
{
	return x > 0 ? x + 1 : exp(x);
}

/* softmax(2x, -2x) */
static double *hedgehog(size_t heads, uint32_t dim, const double *x)
{
	double *y = zeros(heads * dim * 2);
	for (size_t h = 0; h < heads; h++) {
		double sum = 0;
		for (uint32_t i = 0; i < dim; i++)
			sum += 2 * cosh(2 * x[h * dim + i]);
		for (uint32_t i = 0; i < dim; i++) {
			y[h * dim * 2 + i] = exp(2 * x[h * dim + i]) / sum;
			y[h * dim * 2 + dim + i] = exp(-2 * x[h * dim + i]) / sum;
		}
	}
	return y;
}

static double *dpfp(size_t heads, uint32_t dim, const double *x)
{
	uint32_t both = 2 * dim;
	double *y = zeros(heads * both * 4), *z = zeros(both);
	for (size_t h = 0; h < heads; h++) {
		for (uint32_t i = 0; i < dim; i++) {
			z[i] = relu(x[h * dim + i]);
			z[dim + i] = relu(-x[h * dim + i]);
		}
		for (uint32_t j = 1; j <= 4; j++)
			for (uint32_t i = 0; i < both; i++)
				y[(h * 4 + j - 1) * both + i] = z[i] * z[(i + both - j) % both];
	}
	free(z);
	return y;
}

/* Maps x[n, heads * dim] to features. The map's tensors are the next ones; *dim may grow. */
static double *map_features(struct layer *l, const char *map, uint32_t heads, uint32_t *dim,
                            double *x)
{
	size_t all = (size_t)l->n * heads;
	uint32_t d = *dim, rows = (uint32_t)all;
	double *y = NULL, *z;
	if (!strcmp(map, "elementwise_product")) {
		y = product(rows, d, d, l->w[0], l->w[1], x);
		z = product(rows, d, d, l->w[2], l->w[3], x);
		l->w += 4;
		for (size_t i = 0; i < all * d; i++)
			y[i] *= z[i];
		free(z);
	} else if (!strcmp(map, "t2r")) {
		y = product(rows, d, d, *l->w++, NULL, x);
		each(y, all * d, relu);
	} else if (!strcmp(map, "hedgehog")) {
		z = product(rows, d, d, l->w[0], l->w[1], x);
		l->w += 2;
		y = hedgehog(all, d, z);
		*dim = 2 * d;
		free(z);
	} else if (!strcmp(map, "dpfp")) {
		y = dpfp(all, d, x);
		*dim = 8 * d;
	} else {
		each(x, all * d,
		     !strcmp(map, "relu")      ? relu
		     : !strcmp(map, "elu")     ? elu_1
		     : !strcmp(map, "sigmoid") ? sigmoid
		     : !strcmp(map, "silu")    ? silu
		                               : fabs); /* no other */
		return x;
	}
	free(x);
	return y;
}

/* Su et al. 2021, half-split, base 10000. */
static void rotate(uint32_t dim, uint32_t pos, double *x)
{
	for (uint32_t i = 0; i < dim / 2; i++) {
		float freq = 1 / (float)pow(10000, (float)(2 * i) / (float)dim);
		double angle = (double)((float)pos * freq), c = cos(angle), s = sin(angle);
		double a = x[i], b = x[i + dim / 2];
		x[i] = a * c - b * s;
		x[i + dim / 2] = b * c + a * s;
	}
}

static double *prepare(struct layer *l, double *x, uint32_t heads, uint32_t *dim, const char *norm)
{
	const char *map = mx_param_string(&l->p, "feature_map", NULL);
	if (!map)
		map = is(l, "linear_attn")      ? "elementwise_product"
		      : is(l, "lightning_attn") ? "silu"
		                                : "identity";
	if (is(l, "delta_net"))
		map = mx_param_string(&l->p, "qk_activation", "silu");
	if (strcmp(map, "identity") && !(is(l, "delta_net") && !strcmp(map, "silu")))
		x = map_features(l, map, heads, dim, x);
	const char *kind = mx_param_string(&l->p, "qk_norm", "l2");
	for (size_t h = 0; h < (size_t)l->n * heads; h++) {
		double sum = 0, size = 0, squares = 0, by = 1, *y = x + h * *dim;
		if (is(l, "retnet"))
			rotate(*dim, (uint32_t)(h / heads), y);
		for (uint32_t i = 0; i < *dim; i++) {
			sum += y[i];
			size += fabs(y[i]);
			squares += y[i] * y[i];
		}
		if (is_delta(l))
			by = !strcmp(kind, "sum") ? fmax(size, 1e-6) : sqrt(squares + 1e-6);
		else if (is(l, "linear_attn") && says(l, norm, false))
			by = sum + 1e-4;
		for (uint32_t i = 0; i < *dim; i++)
			y[i] /= by;
	}
	return x;
}

/* ---- decay ---- */

/* Returns the lower bound of a decay: a softmax over the layers, summed (Qin et al. 2023). */
static double lower_bound(const struct layer *l, const float *all, uint32_t i)
{
	double sum = 0, upto = 0;
	for (uint32_t j = 0; j < CASE_LAYERS; j++) {
		double e = exp(all[(size_t)j * l->c->width + i]);
		sum += e;
		upto += j >= 1 && j <= CASE_LAYER ? e : 0;
	}
	return upto / sum;
}

static void apply_decay(struct layer *l)
{
	const float *a_log = is(l, "gated_deltanet") || is(l, "kda") ? *l->w++ : NULL;
	const float *bounds = NULL;
	bool hgrn = is(l, "hgrn") || is(l, "hgrn2");
	uint32_t width = is(l, "gla")           ? l->k_heads * l->k
	                 : is(l, "kda") || hgrn ? l->heads * l->k
	                                        : l->heads;
	if (hgrn && says(l, "use_lower_bound", true))
		bounds = *l->w++;
	for (size_t i = 0; l->a && i < (size_t)l->n * width; i++) {
		uint32_t column = (uint32_t)(i % width), head = is(l, "kda") ? column / l->k : column;
		double z = l->a[i], lb = bounds ? lower_bound(l, bounds, column) : 0;
		if (hgrn)
			l->a[i] = lb + (1 - lb) * sigmoid(z);
		else if (a_log && mx_param_find(&l->p, "lower_bound"))
			l->a[i] = exp(mx_param_float(&l->p, "lower_bound", 0) * sigmoid(exp(a_log[head]) * z));
		else if (a_log)
			l->a[i] = exp(-exp(a_log[head]) * log1p(exp(z)));
		else
			l->a[i] = exp(fmax(log(sigmoid(z)) / mx_param_float(&l->p, "gate_logit_normalizer", 16),
			                   mx_param_float(&l->p, "clamp_min", -1e9)));
	}
}

/* Returns the decay a of token t, head h, key i. */
static double factor(const struct layer *l, uint32_t t, uint32_t h, uint32_t i)
{
	if (is(l, "retnet"))
		return 1 - pow(2, -5.0 - h);
	if (is(l, "lightning_attn"))
		return exp(-8.0 / l->heads * (1 - (double)CASE_LAYER / CASE_LAYERS) * h);
	if (is(l, "minimax"))
		return exp(-pow(2, -8.0 * (h + 1) / l->heads) *
		           (1 - CASE_LAYER / (CASE_LAYERS - 1 + 1e-5) + 1e-5));
	if (!l->a)
		return 1;
	if (is(l, "gla"))
		return l->a[((size_t)t * l->k_heads + h / (l->heads / l->k_heads)) * l->k + i];
	if (is(l, "kda") || is(l, "hgrn2"))
		return l->a[((size_t)t * l->heads + h) * l->k + i];
	return l->a[(size_t)t * l->heads + h];
}

/* ---- the recurrence ---- */

/* Runs one token of one head: S [k, v] is the state, z [k] the sum of the keys for a denominator.
 */
static void step(const struct layer *l, uint32_t t, uint32_t h, uint32_t k, const double *q,
                 const double *key, const double *v, double *S, double *z, double *o)
{
	double scale = is(l, "minimax") ? 1 : 1 / sqrt(k);
	double beta = !is_delta(l) ? 1 : l->beta ? l->beta[(size_t)t * l->heads + h] : 1, sum = 1e-10;
	if (says(l, "allow_neg_eigval", false))
		beta *= 2;
	for (uint32_t i = 0; i < k; i++) {
		for (uint32_t j = 0; j < l->v; j++)
			S[i * l->v + j] *= factor(l, t, h, i);
		z[i] += key[i];
		sum += q[i] / sqrt(k) * z[i];
	}
	for (uint32_t j = 0; j < l->v; j++) {
		double u = v[j];
		for (uint32_t i = 0; is_delta(l) && i < k; i++)
			u -= S[i * l->v + j] * key[i];
		o[j] = 0;
		for (uint32_t i = 0; i < k; i++) {
			S[i * l->v + j] += beta * key[i] * u;
			o[j] += S[i * l->v + j] * q[i] * scale;
		}
		if (says(l, "norm_feature_map", false))
			o[j] /= sum;
	}
}

/* Returns o[n, heads, v]; k is the number of features. */
static double *recur(const struct layer *l, uint32_t k)
{
	size_t size = (size_t)k * l->v;
	double *o = zeros((size_t)l->n * l->heads * l->v), *S = zeros(l->heads * size);
	double *z = zeros((size_t)l->heads * k);
	for (uint32_t t = 0; t < l->n; t++)
		for (uint32_t h = 0; h < l->heads; h++) {
			size_t hq = (size_t)t * l->q_heads + h / (l->heads / l->q_heads);
			size_t hk = (size_t)t * l->k_heads + h / (l->heads / l->k_heads);
			size_t hv = (size_t)t * l->v_heads + h / (l->heads / l->v_heads);
			step(l, t, h, k, l->q + hq * k, l->key + hk * k, l->value + hv * l->v, S + h * size,
			     z + (size_t)h * k, o + ((size_t)t * l->heads + h) * l->v);
		}
	free(S);
	free(z);
	return o;
}

/* HGRN: h = a h + (1 - a) v for each channel. */
static double *recur_channels(const struct layer *l)
{
	double *o = zeros((size_t)l->n * l->heads);
	for (size_t i = 0; i < (size_t)l->n * l->heads; i++)
		o[i] = (i < l->heads ? 0 : l->a[i] * o[i - l->heads]) + (1 - l->a[i]) * l->value[i];
	return o;
}

static void normalise(struct layer *l, double *o)
{
	bool whole = is(l, "hgrn") || is(l, "hgrn2") || is(l, "minimax"),
		 affine = says(l, "elementwise_affine", true);
	uint32_t size = whole ? l->heads * l->v : l->v;
	const float *w = affine ? *l->w++ : NULL;
	const char *activation = mx_param_string(&l->p, "output_gate_activation", "swish");
	double eps = mx_param_float(&l->p, "norm_eps", is(l, "hgrn2") ? 1e-5 : 1e-6);
	for (size_t g = 0; g < (size_t)l->n * l->heads * l->v / size; g++) {
		double sum = 0;
		for (uint32_t i = 0; i < size; i++)
			sum += o[g * size + i] * o[g * size + i];
		for (uint32_t i = 0; i < size; i++) {
			double *y = &o[g * size + i], gate = l->gate ? l->gate[g * size + i] : 0;
			*y *= (w ? w[i] : 1) / sqrt(sum / size + eps);
			if (l->gate)
				*y *= is(l, "kda") || is(l, "minimax") || !strcmp(activation, "sigmoid")
				          ? sigmoid(gate)
				          : silu(gate);
		}
	}
}

static void gla_reference(const struct mixer_case *c, uint32_t n, const float *x,
                          const float *const *w, float *y)
{
	struct layer l = {.c = c, .p = {c->params, c->n_params}, .w = w, .n = n, .x = x};
	l.variant = mx_param_string(&l.p, "variant", "");
	read_sizes(&l);
	read_streams(&l);
	double *o, *out;
	uint32_t q_dim = l.k, k_dim = l.k;
	if (l.q && !is(&l, "hgrn2")) {
		const float *const *map = l.w, *const * map_k;
		l.q = prepare(&l, l.q, l.q_heads, &q_dim, "norm_q");
		map_k = l.w;
		if (says(&l, "tie_feature_map_qk", false)) /* absent for k */
			l.w = map;
		l.key = prepare(&l, l.key, l.k_heads, &k_dim, "norm_k");
		l.w = map_k + (map_k - map);
	}
	apply_decay(&l);
	if (is(&l, "hgrn2")) {
		l.key = zeros((size_t)n * l.heads * l.k);
		for (size_t i = 0; i < (size_t)n * l.heads * l.k; i++)
			l.key[i] = 1 - l.a[i];
	}
	o = is(&l, "hgrn") ? recur_channels(&l) : recur(&l, k_dim);
	normalise(&l, o);
	out = product(n, c->width, l.heads * l.v, *l.w, NULL, o);
	for (size_t i = 0; i < (size_t)n * c->width; i++)
		y[i] = (float)out[i];
	free(out);
	free(o);
	free(l.q);
	free(l.key);
	free(l.value);
	free(l.a);
	free(l.beta);
	free(l.gate);
}

/* Decays from a few tokens to hundreds; convolutions that keep the size of a row. */
#define CONVS                                                                                      \
	{"q_conv1d.weight", 0, 0.5f}, {"k_conv1d.weight", 0, 0.5f}, {"v_conv1d.weight", 0, 0.5f},      \
		{"i_conv1d.weight", 0, 0.5f}, {"f_conv1d.weight", 0, 0.5f}, {"q_conv1d.bias", 0, 0.2f},    \
		{"k_conv1d.bias", 0, 0.2f}, {"v_conv1d.bias", 0, 0.2f}, {"i_conv1d.bias", 0, 0.2f},        \
	{                                                                                              \
		"f_conv1d.bias", 3, 2                                                                      \
	}
static const struct mixer_weight trained[] = {CONVS,
                                              {"gk_proj.1.bias", 2, 3},
                                              {"gk_proj.bias", 2, 3},
                                              {"dt_bias", -4, 1.5f},
                                              {"A_log", 1, 1},
                                              {"/model.lower_bounds", 0, 2},
                                              {NULL, 0, 0}};
/* As published: no biases in convolutions. */
static const struct mixer_weight published[] = {{"q_conv1d.weight", 0, 0.5f},
                                                {"k_conv1d.weight", 0, 0.5f},
                                                {"v_conv1d.weight", 0, 0.5f},
                                                ABSENT("q_conv1d.bias"),
                                                ABSENT("k_conv1d.bias"),
                                                ABSENT("v_conv1d.bias"),
                                                {"dt_bias", -4, 1.5f},
                                                {"gk_proj.bias", 2, 3},
                                                {"A_log", 1, 1},
                                                {NULL, 0, 0}};
static const struct mixer_weight tied[] = {ABSENT("feature_map_k.layer1.weight"),
                                           ABSENT("feature_map_k.layer1.bias"),
                                           ABSENT("feature_map_k.layer2.weight"),
                                           ABSENT("feature_map_k.layer2.bias"),
                                           {NULL, 0, 0}};
/* With a bound on the decay, which the gate reaches in some channels. */
static const struct mixer_weight bounded[] = {
	CONVS, {"dt_bias", -3, 3}, {"A_log", 0, 0.3f}, {NULL, 0, 0}};
/* Factors down to 0. */
static const struct mixer_weight fast[] = {CONVS, {"dt_bias", 0, 4}, {"A_log", 2, 2}, {NULL, 0, 0}};

#define GLA(label, width, tokens, type, tolerance, weights, variant, ...)                          \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(STRING("variant", variant), __VA_ARGS__),       \
			weights, tolerance, gla_reference, 0                                                   \
	}
#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}

static const struct mixer_case cases[] = {
	GLA("gla, f32", 64, 300, MX_F32, EXACT, trained, "gla", INT("num_heads", 2)),
	GLA("gla, bf16", 64, 150, MX_BF16, ROUNDED, trained, "gla", INT("num_heads", 2)),
	GLA("gla, heads of 160 x 144, bf16", 64, 90, MX_BF16, ROUNDED, trained, "gla",
        INT("num_heads", 1), FLOAT("expand_k", 2.5), FLOAT("expand_v", 2.25)),
	GLA("simple_gla, heads of 192 x 96, bf16", 64, 90, MX_BF16, ROUNDED, trained, "simple_gla",
        INT("num_heads", 2), FLOAT("expand_k", 6), FLOAT("expand_v", 3)),
	GLA("gla, all options, f32", 48, 150, MX_F32, EXACT, trained, "gla", INT("num_heads", 4),
        INT("num_kv_heads", 2), FLOAT("expand_k", 1.5), FLOAT("expand_v", 2.5),
        STRING("feature_map", "relu"), BOOL("use_short_conv"), INT("conv_size", 3),
        FLOAT("clamp_min", -0.05), FLOAT("gate_logit_normalizer", 8), OFF("use_output_gate"),
        INT("gate_low_rank_dim", 5)),
	GLA("gla, sigmoid features, no weights in the norm, f32", 32, 150, MX_F32, EXACT, trained,
        "gla", INT("num_heads", 2), STRING("feature_map", "sigmoid"), OFF("elementwise_affine"),
        OFF("fuse_norm")),
	GLA("simple_gla, f32", 48, 150, MX_F32, EXACT, published, "simple_gla", INT("num_heads", 4),
        INT("num_kv_heads", 2)),
	GLA("simple_gla, no convolution, odd sizes, f32", 42, 150, MX_F32, EXACT, trained, "simple_gla",
        INT("num_heads", 3), OFF("use_short_conv"), FLOAT("expand_v", 1.5)),
	GLA("lightning_attn, f32", 64, 150, MX_F32, EXACT, trained, "lightning_attn",
        INT("num_heads", 4), OFF("use_output_gate")),
	GLA("retnet, f32", 64, 300, MX_F32, EXACT, trained, "retnet", INT("num_heads", 4),
        FLOAT("expand_v", 2)),
	GLA("retnet, shared keys, bf16", 48, 150, MX_BF16, ROUNDED, trained, "retnet",
        INT("num_heads", 4), INT("num_kv_heads", 1), FLOAT("expand_v", 2),
        STRING("feature_map", "silu")),
	GLA("linear_attn, f32", 48, 150, MX_F32, EXACT, trained, "linear_attn", INT("num_heads", 2)),
	GLA("linear_attn, denominator, shared keys, f32", 48, 150, MX_F32, EXACT, trained,
        "linear_attn", INT("num_heads", 4), INT("num_kv_heads", 2), STRING("feature_map", "elu"),
        BOOL("norm_feature_map")),
	GLA("linear_attn, hedgehog, f32", 32, 150, MX_F32, EXACT, trained, "linear_attn",
        INT("num_heads", 2), STRING("feature_map", "hedgehog"), BOOL("norm_q"), BOOL("norm_k")),
	GLA("linear_attn, t2r, f32", 32, 150, MX_F32, EXACT, trained, "linear_attn",
        INT("num_heads", 2), STRING("feature_map", "t2r"), BOOL("norm_feature_map"), BOOL("norm_q"),
        FLOAT("norm_eps", 1e-5)),
	GLA("linear_attn, dpfp, f32", 32, 150, MX_F32, EXACT, trained, "linear_attn",
        INT("num_heads", 4), STRING("feature_map", "dpfp")),
	GLA("linear_attn, one map for q and k, f32", 32, 150, MX_F32, EXACT, tied, "linear_attn",
        INT("num_heads", 2), BOOL("tie_feature_map_qk"), BOOL("norm_k")),
	GLA("linear_attn, relu, f32", 32, 150, MX_F32, EXACT, trained, "linear_attn",
        INT("num_heads", 2), STRING("feature_map", "relu"), BOOL("norm_feature_map")),
	GLA("linear_attn, no map, f32", 32, 150, MX_F32, EXACT, trained, "linear_attn",
        INT("num_heads", 2), STRING("feature_map", "identity")),
	GLA("hgrn2, f32", 64, 300, MX_F32, EXACT, trained, "hgrn2", INT("expand_ratio", 16)),
	GLA("hgrn2, convolution, no lower bound, bf16", 48, 150, MX_BF16, ROUNDED, trained, "hgrn2",
        INT("expand_ratio", 24), BOOL("use_short_conv"), OFF("use_lower_bound")),
	GLA("hgrn, f32", 128, 300, MX_F32, EXACT, trained, "hgrn", INT("expand_ratio", 1)),
	GLA("hgrn, convolution, odd size, f32", 50, 150, MX_F32, EXACT, trained, "hgrn",
        BOOL("use_short_conv")),
	GLA("hgrn, expanded, no lower bound, bf16", 64, 150, MX_BF16, ROUNDED, trained, "hgrn",
        INT("expand_ratio", 2), BOOL("use_short_conv"), OFF("use_lower_bound")),
	GLA("delta_net, f32", 64, 300, MX_F32, EXACT, published, "delta_net", INT("num_heads", 2)),
	GLA("delta_net, gate, negative eigenvalues, bf16", 64, 150, MX_BF16, ROUNDED, trained,
        "delta_net", INT("num_heads", 4), BOOL("use_gate"), BOOL("allow_neg_eigval")),
	GLA("delta_net, sums, no beta, f32", 32, 150, MX_F32, EXACT, trained, "delta_net",
        INT("num_heads", 2), STRING("qk_norm", "sum"), OFF("use_beta"), FLOAT("expand_v", 1.5)),
	GLA("delta_net, elu, no convolution, f32", 32, 150, MX_F32, EXACT, trained, "delta_net",
        INT("num_heads", 1), STRING("qk_activation", "elu"), OFF("use_short_conv")),
	GLA("delta_net, no activation, f32", 32, 150, MX_F32, EXACT, trained, "delta_net",
        INT("num_heads", 2), STRING("qk_activation", "identity")),
	GLA("gated_deltanet, f32", 64, 300, MX_F32, EXACT, published, "gated_deltanet",
        INT("num_heads", 2), INT("head_dim", 32)),
	GLA("gated_deltanet, heads of 128 x 128, bf16", 64, 150, MX_BF16, ROUNDED, trained,
        "gated_deltanet", INT("num_heads", 1), INT("num_v_heads", 2), INT("head_dim", 128),
        INT("expand_v", 1)),
	GLA("gated_deltanet, value heads, no gate, f32", 48, 300, MX_F32, EXACT, trained,
        "gated_deltanet", INT("num_heads", 2), INT("num_v_heads", 6), INT("head_dim", 12),
        OFF("use_gate"), BOOL("allow_neg_eigval")),
	GLA("gated_deltanet, Qwen3.5's tensors, f32", 48, 300, MX_F32, EXACT, trained, "gated_deltanet",
        STRING("tensors", "qwen3_5"), INT("num_heads", 2), INT("num_v_heads", 4),
        INT("head_dim", 12), INT("expand_v", 2)),
	GLA("gated_deltanet, decay to nothing, f32", 48, 150, MX_F32, EXACT, fast, "gated_deltanet",
        INT("num_heads", 8), INT("head_dim", 16), OFF("use_short_conv"),
        STRING("output_gate_activation", "sigmoid")),
	GLA("minimax, f32", 48, 300, MX_F32, EXACT, published, "minimax", INT("num_heads", 4),
        INT("head_dim", 16)),
	GLA("minimax, odd sizes, bf16", 42, 150, MX_BF16, ROUNDED, trained, "minimax",
        INT("num_heads", 3), INT("head_dim", 10)),
	GLA("kda, f32", 64, 300, MX_F32, EXACT, published, "kda", INT("num_heads", 2),
        INT("head_dim", 32)),
	GLA("kda, bounded decay, value heads, f32", 48, 150, MX_F32, EXACT, bounded, "kda",
        INT("num_heads", 2), INT("num_v_heads", 4), INT("head_dim", 16), FLOAT("expand_v", 1.5),
        FLOAT("lower_bound", -5), BOOL("safe_gate")),
	GLA("kda, bf16", 64, 150, MX_BF16, ROUNDED, trained, "kda", INT("num_heads", 2),
        INT("head_dim", 64)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("num_head", 2), "unknown parameter 'num_head'"},
	{STRING("variant", "mamba"), "variant 'mamba' is none of"},
	{INT("variant", 1), "variant must be a string"},
	{INT("num_heads", 0), "num_heads"},
	{INT("num_heads", 5), "expand_k"},
	{INT("num_heads", 1000000000), "num_heads"},
	{FLOAT("num_heads", 2.5), "num_heads must be a whole number"},
	{STRING("num_heads", "2"), "num_heads must be a number"},
	{INT("num_kv_heads", 4), "num_kv_heads"},
	{FLOAT("expand_k", 0), "expand_k"},
	{FLOAT("expand_v", 1000), "expand_v"},
	{FLOAT("expand_v", NAN), "expand_v"},
	{FLOAT("expand_v", 0.02), "expand_v"},
	{STRING("feature_map", "gelu"), "feature_map 'gelu' is none of relu, sigmoid"},
	{INT("use_short_conv", 1), "use_short_conv must be true or false"},
	{STRING("tensors", "qwen"), "none of fla, qwen3_5, qwen3_next"},
	{STRING("use_output_gate", "yes"), "use_output_gate"},
	{INT("gate_low_rank_dim", 0), "gate_low_rank_dim"},
	{FLOAT("clamp_min", 0.5), "clamp_min"},
	{FLOAT("gate_logit_normalizer", 0), "gate_logit_normalizer"},
	{FLOAT("norm_eps", -1), "norm_eps"},
};

const struct mixer_set mixer_set_gla = {"gla", SET(cases), SET(wrongs), 0};
