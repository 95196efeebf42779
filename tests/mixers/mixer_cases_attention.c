/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the attention mixer. The reference is the whole layer in double precision. */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"
#include "mixers/attention/attention_ref.h"

static void norm_head(float *x, uint32_t dim, const float *weight, double eps)
{
	double sum = 0;
	for (uint32_t i = 0; i < dim; i++)
		sum += (double)x[i] * x[i];
	for (uint32_t i = 0; i < dim; i++)
		x[i] = (float)(x[i] / sqrt(sum / dim + eps) * weight[i]);
}

/* Rotates by the position, pairing i with i + dim/2 (Su et al. 2021, as Llama lays it out), or 2i
 * with 2i + 1 (as Su et al. do). */
static void rotate_head(const struct mx_params *p, float *x, uint32_t pos)
{
	const struct mx_param *freq = mx_param_find(p, "rope_inv_freq");
	uint32_t half = (uint32_t)freq->n;
	double scale = mx_param_float(p, "rope_attention_factor", 1);
	double max = mx_param_float(p, "rope_max_position", INFINITY), dim = 2.0 * half;

	if (strcmp(mx_param_string(p, "rope", ""), "dynamic"))
		max = INFINITY;
	for (uint32_t i = 0; i < half; i++) {
		double f = freq->v[i];
		if (pos >= max) { /* dynamic NTK at length pos + 1 */
			double factor = mx_param_float(p, "rope_factor", 1);
			double base = mx_param_float(p, "rope_theta", 0) *
			              pow(factor * (pos + 1.0) / max - (factor - 1), dim / (dim - 2));
			f = pow(base, -2.0 * i / dim);
		}
		double c = cos(pos * (double)(float)f) * scale, s = sin(pos * (double)(float)f) * scale;
		bool pairs = mx_param_int(p, "rope_pairs", 0);
		uint32_t lo = pairs ? 2 * i : i, hi = pairs ? lo + 1 : i + half;
		double a = x[lo], b = x[hi];
		x[lo] = (float)(a * c - b * s);
		x[hi] = (float)(b * c + a * s);
	}
}

static void prepare_heads(const struct mx_params *p, uint32_t n, uint32_t heads, uint32_t dim,
                          const float *norm, float *x)
{
	for (uint32_t i = 0; i < n * heads; i++) {
		if (norm)
			norm_head(x + (size_t)i * dim, dim, norm, mx_param_float(p, "norm_eps", 1e-6));
		if (mx_param_find(p, "rope_inv_freq"))
			rotate_head(p, x + (size_t)i * dim, i / heads);
	}
}

/* The tensors of a layer, NULL where it has none. */
struct tensors {
	const float *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm, *sinks;
	const float *head_gate;
};

static struct tensors tensors_of(const struct mx_params *p, const float *const *w)
{
	struct tensors t = {.q = *w++};
	bool per_head = mx_param_int(p, "per_head", 0); /* q is all three */
	if (!per_head) {
		t.k = *w++;
		t.v = mx_param_int(p, "k_is_v", 0) ? t.k : *w++;
	}
	t.o = *w++;
	if (mx_param_int(p, "bias", 0))
		t.q_bias = *w++;
	if (mx_param_int(p, "bias", 0) && !per_head) {
		t.k_bias = *w++;
		t.v_bias = mx_param_int(p, "k_is_v", 0) ? t.k_bias : *w++;
	}
	if (mx_param_int(p, "o_bias", 0))
		t.o_bias = *w++;
	if (mx_param_int(p, "qk_norm", 0) || mx_param_int(p, "qk_norm_whole", 0)) {
		t.q_norm = *w++;
		t.k_norm = *w++;
	}
	if (mx_param_int(p, "sinks", 0))
		t.sinks = *w++;
	if (mx_param_int(p, "head_gate", 0))
		t.head_gate = *w++;
	return t;
}

/* A product whose output has `group` parts of `part` columns: takes part `which` of each. */
static void product_part(uint32_t n, uint32_t groups, uint32_t group, uint32_t which, uint32_t part,
                         uint32_t each, uint32_t width, const float *w, const float *b,
                         const float *x, float *y)
{
	uint32_t all = groups * group * part;
	float *whole = calloc((size_t)n * all, sizeof(*whole));
	if (!whole)
		abort();
	mixer_product(n, all, width, w, b, x, whole);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t g = 0; g < groups; g++)
			memcpy(y + ((size_t)i * groups + g) * each * part,
			       whole + (size_t)i * all + (g * group + which) * part,
			       (size_t)each * part * sizeof(*y));
	free(whole);
}

static void scale_rows(const struct mx_params *p, uint32_t n, uint32_t ld, float *q)
{
	double beta = mx_param_float(p, "q_scale_beta", 0);
	int64_t length = mx_param_int(p, "q_scale_length", 1);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < ld; k++)
			q[(size_t)i * ld + k] *= (float)(1 + beta * log(1 + floor((double)i / (double)length)));
}

/* Multiplies outputs by their gates. */
static void gate_rows(uint32_t n, uint32_t heads, uint32_t dim, uint32_t width, const float *w,
                      const float *b, const float *x, float *y)
{
	float *gate = calloc((size_t)n * heads * dim, sizeof(*gate));
	if (!gate)
		abort();
	product_part(n, heads, 2, 1, dim, 1, width, w, b, x, gate);
	for (size_t i = 0; i < (size_t)n * heads * dim; i++)
		y[i] = (float)(y[i] / (1 + exp(-(double)gate[i])));
	free(gate);
}

/* Multiplies each head's outputs by the sigmoid of its number. */
static void gate_heads(uint32_t n, uint32_t heads, uint32_t dim, uint32_t width, const float *w,
                       const float *x, float *y)
{
	float *gate = calloc((size_t)n * heads, sizeof(*gate));
	if (!gate)
		abort();
	mixer_product(n, heads, width, w, NULL, x, gate);
	for (size_t i = 0; i < (size_t)n * heads * dim; i++)
		y[i] = (float)(y[i] / (1 + exp(-(double)gate[i / dim])));
	free(gate);
}

void mixer_attention_reference(const struct mixer_case *c, uint32_t n, const float *x,
                               const float *const *w, float *y)
{
	const struct mx_params p = {c->params, c->n_params};
	uint32_t heads = (uint32_t)mx_param_int(&p, "heads", 0);
	uint32_t kv_heads = (uint32_t)mx_param_int(&p, "kv_heads", 0);
	uint32_t dim = (uint32_t)mx_param_int(&p, "head_dim", 0);
	const struct tensors t = tensors_of(&p, w);
	float *q = calloc((size_t)n * heads * dim, 4), *out = calloc((size_t)n * heads * dim, 4);
	float *k = calloc((size_t)n * kv_heads * dim, 4), *v = calloc((size_t)n * kv_heads * dim, 4);
	double *score = calloc(n, sizeof(*score));

	if (!q || !out || !k || !v || !score)
		abort();
	float ones[512] = {0}; /* of a norm without a weight */
	bool gate = mx_param_int(&p, "gate", 0), whole = mx_param_int(&p, "qk_norm_whole", 0);
	uint32_t group = heads / kv_heads;
	if (mx_param_int(&p, "per_head", 0)) {
		const uint32_t all = group + 2;
		product_part(n, kv_heads, all, 0, dim, group, c->width, t.q, t.q_bias, x, q);
		product_part(n, kv_heads, all, group, dim, 1, c->width, t.q, t.q_bias, x, k);
		product_part(n, kv_heads, all, group + 1, dim, 1, c->width, t.q, t.q_bias, x, v);
	} else {
		product_part(n, heads, gate ? 2 : 1, 0, dim, 1, c->width, t.q, t.q_bias, x, q);
		mixer_product(n, kv_heads * dim, c->width, t.k, t.k_bias, x, k);
		mixer_product(n, kv_heads * dim, c->width, t.v, t.v_bias, x, v);
	}
	for (uint32_t d = 0; d < dim && mx_param_int(&p, "v_norm", 0); d++)
		ones[d] = 1;
	for (uint32_t i = 0; i < n * kv_heads && ones[0] > 0; i++)
		norm_head(v + (size_t)i * dim, dim, ones, mx_param_float(&p, "norm_eps", 1e-6));
	for (uint32_t i = 0; whole && i < n; i++) {
		double eps = mx_param_float(&p, "norm_eps", 1e-6);
		norm_head(q + (size_t)i * heads * dim, heads * dim, t.q_norm, eps);
		norm_head(k + (size_t)i * kv_heads * dim, kv_heads * dim, t.k_norm, eps);
	}
	prepare_heads(&p, n, heads, dim, whole ? NULL : t.q_norm, q);
	prepare_heads(&p, n, kv_heads, dim, whole ? NULL : t.k_norm, k);
	scale_rows(&p, n, heads * dim, q);
	/* with skip_first row 0 is alone, and so are the others */
	const uint32_t skip = n && mx_param_int(&p, "skip_first", 0);
	for (uint32_t from = 0, end = skip ? 1 : n; from < n; from = end, end = n)
		mx_attention_ref(end - from, heads, kv_heads, dim, (uint32_t)mx_param_int(&p, "window", 0),
		                 mx_param_float(&p, "scale", 1 / sqrt(dim)),
		                 mx_param_float(&p, "softcap", 0), t.sinks, q + (size_t)from * heads * dim,
		                 k + (size_t)from * kv_heads * dim, v + (size_t)from * kv_heads * dim,
		                 score, out + (size_t)from * heads * dim);
	if (gate)
		gate_rows(n, heads, dim, c->width, t.q, t.q_bias, x, out);
	if (t.head_gate)
		gate_heads(n, heads, dim, c->width, t.head_gate, x, out);
	mixer_product(n, c->width, heads * dim, t.o, t.o_bias, out, y);
	free(q);
	free(out);
	free(k);
	free(v);
	free(score);
}

/* 10000^(-2i/8) and so on: any frequencies will do, these reach from 1 to 1e-4. */
static const double freq4[] = {1, 0.1, 0.01, 0.001};
static const double freq8[] = {1,    0.31622776601683794,   0.1,   0.031622776601683794,
                               0.01, 0.0031622776601683794, 0.001, 0.00031622776601683794};

#define HEADS(h, k, d) INT("heads", h), INT("kv_heads", k), INT("head_dim", d)
#define ROPE(type, dim, freq)                                                                      \
	STRING("rope", type), INT("rope_dim", dim), FLOATS("rope_inv_freq", freq)

/* 1 / 254 of the largest element of a key or a value */
#define EIGHT_BITS 3e-2

#define ATTENTION(label, width, tokens, weights, state, tolerance, ...)                            \
	{                                                                                              \
		label, width, tokens, weights, state, PARAMS(__VA_ARGS__), NULL, tolerance,                \
			mixer_attention_reference, 0                                                           \
	}

static const struct mixer_case cases[] = {
	ATTENTION("one head each, f32", 64, 600, MX_F32, MX_F32, EXACT, HEADS(4, 4, 16),
              ROPE("default", 16, freq8)),
	ATTENTION("groups, biases, qk-norm, bf16", 48, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(8, 2, 64),
              BOOL("bias"), BOOL("o_bias"), BOOL("qk_norm"), FLOAT("norm_eps", 1e-5),
              ROPE("llama3", 8, freq4)),
	ATTENTION("window inside a chunk, odd head, f32", 48, 300, MX_F32, MX_F32, EXACT,
              HEADS(6, 2, 24), INT("window", 7), ROPE("linear", 16, freq8)),
	ATTENTION("skip_first, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(6, 2, 24),
              BOOL("skip_first"), ROPE("linear", 16, freq8)),
	ATTENTION("skip_first and a window, bf16", 48, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(2, 1, 32),
              BOOL("skip_first"), INT("window", 9), ROPE("linear", 16, freq8)),
	ATTENTION("window across blocks, bf16", 32, 600, MX_BF16, MX_BF16, ROUNDED, HEADS(2, 1, 128),
              INT("window", 400), ROPE("default", 16, freq8)),
	ATTENTION("keys and values in int8", 48, 600, MX_F32, MX_I8, EIGHT_BITS, HEADS(4, 2, 48),
              INT("window", 400), ROPE("default", 16, freq8)),
	ATTENTION("window across blocks, f32", 64, 600, MX_F32, MX_F32, EXACT, HEADS(2, 1, 96),
              INT("window", 256), ROPE("default", 16, freq8)),
	ATTENTION("dynamic rope, f32", 32, 300, MX_F32, MX_F32, EXACT, HEADS(2, 2, 16),
              ROPE("dynamic", 16, freq8), FLOAT("rope_theta", 10000), FLOAT("rope_factor", 2),
              INT("rope_max_position", 64)),
	ATTENTION("yarn, f16 weights, f32 state", 32, 300, MX_F16, MX_F32, EXACT, HEADS(2, 1, 8),
              ROPE("yarn", 8, freq4), FLOAT("rope_attention_factor", 1.2)),
	ATTENTION("no rope, odd head, bf16", 48, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(3, 3, 80),
              STRING("rope", "none"), FLOAT("scale", 0.2)),
	ATTENTION("one key head for many, bf16", 32, 270, MX_BF16, MX_BF16, ROUNDED, HEADS(20, 1, 32),
              ROPE("default", 16, freq8)),
	ATTENTION("more heads than go through a block together, bf16", 32, 300, MX_BF16, MX_BF16,
              ROUNDED, HEADS(20, 20, 16), ROPE("default", 16, freq8)),
	ATTENTION("one matrix for q, k and v, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(6, 2, 16),
              BOOL("fused"), BOOL("bias"), BOOL("o_bias"), BOOL("qk_norm"),
              ROPE("default", 16, freq8)),
	ATTENTION("one matrix for q, k and v, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED,
              HEADS(4, 4, 32), BOOL("fused"), ROPE("default", 16, freq8)),
	ATTENTION("softcap, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(4, 2, 16),
              FLOAT("softcap", 0.7), INT("window", 90), ROPE("default", 16, freq8)),
	ATTENTION("softcap, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(4, 1, 64),
              FLOAT("softcap", 2), ROPE("default", 16, freq8)),
	ATTENTION("sinks, f32", 48, 600, MX_F32, MX_F32, EXACT, HEADS(6, 2, 16), BOOL("sinks"),
              INT("window", 40), ROPE("default", 16, freq8)),
	ATTENTION("sinks, bf16", 32, 600, MX_BF16, MX_BF16, ROUNDED, HEADS(8, 1, 32), BOOL("sinks"),
              BOOL("bias"), ROPE("default", 16, freq8)),
	ATTENTION("gates, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(4, 2, 24), BOOL("gate"),
              BOOL("qk_norm"), BOOL("bias"), ROPE("default", 8, freq4)),
	ATTENTION("gates of heads, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(4, 2, 24),
              BOOL("head_gate"), BOOL("qk_norm"), BOOL("o_bias"), ROPE("default", 8, freq4)),
	ATTENTION("gates of heads, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(8, 4, 32),
              BOOL("head_gate"), ROPE("default", 16, freq8)),
	ATTENTION("gates, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(4, 2, 32), BOOL("gate"),
              ROPE("default", 16, freq8)),
	ATTENTION("norm of all heads together, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(6, 2, 16),
              BOOL("qk_norm_whole"), FLOAT("norm_eps", 1e-5), ROPE("default", 16, freq8)),
	ATTENTION("rope of pairs, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(3, 1, 24),
              BOOL("rope_pairs"), ROPE("default", 16, freq8)),
	ATTENTION("one matrix by heads, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(3, 3, 16),
              BOOL("fused"), BOOL("per_head"), BOOL("bias"), BOOL("o_bias"),
              STRING("names", "gpt_neox"), ROPE("default", 8, freq4)),
	ATTENTION("one matrix by groups, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(4, 2, 32),
              BOOL("fused"), BOOL("per_head"), STRING("names", "gpt_neox"),
              ROPE("default", 16, freq8)),
	ATTENTION("queries scaled by position, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(4, 2, 16),
              FLOAT("q_scale_beta", 0.3), INT("q_scale_length", 30), ROPE("default", 16, freq8)),
	ATTENTION("values are keys, norms of values, f32", 48, 300, MX_F32, MX_F32, EXACT,
              HEADS(4, 2, 16), BOOL("k_is_v"), BOOL("v_norm"), BOOL("qk_norm"), BOOL("bias"),
              ROPE("default", 16, freq8)),
	ATTENTION("values are keys, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(4, 1, 32),
              BOOL("k_is_v"), ROPE("default", 16, freq8)),
	ATTENTION("head of 256, f32", 32, 300, MX_F32, MX_F32, EXACT, HEADS(1, 1, 256),
              ROPE("default", 16, freq8)),
	ATTENTION("head of 512, f32", 32, 300, MX_F32, MX_F32, EXACT, HEADS(2, 1, 512),
              ROPE("default", 16, freq8)),
	ATTENTION("head of 400, norms of values, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED,
              HEADS(4, 2, 400), BOOL("qk_norm"), BOOL("v_norm"), ROPE("default", 16, freq8)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("heads", 0), "heads"},
	{INT("heads", -1), "heads"},
	{INT("heads", 1000000000), "heads"},
	{INT("kv_heads", 3), "kv_heads"},
	{INT("kv_heads", 16), "kv_heads"},
	{INT("kv_heads", 0), "kv_heads"},
	{INT("head_dim", 0), "head_dim"},
	{INT("head_dim", 100000), "head_dim"},
	{INT("window", -5), "window"},
	{INT("rope_dim", 15), "rope_dim"},
	{INT("rope_dim", 18), "rope_dim"},
	{INT("rope_dim", 0), "rope_dim"},
	{INT("rope_dim", 4), "rope_inv_freq"},
	{STRING("names", "mine"), "names"},
	{FLOAT("softcap", -1), "softcap"},
	{INT("q_scale_length", 0), "q_scale_length"},
	{STRING("rope", "longrope"), "rope_long_inv_freq"},
	{BOOL("per_head"), "per_head"},
};

const struct mixer_set mixer_set_attention = {"attention", SET(cases), SET(wrongs), 0};
