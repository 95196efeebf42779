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

/* Rotates by the position, pairing i with i + dim/2 (Su et al. 2021, as Llama lays it out). */
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
		double a = x[i], b = x[i + half];
		x[i] = (float)(a * c - b * s);
		x[i + half] = (float)(b * c + a * s);
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
	const float *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
};

static struct tensors tensors_of(const struct mx_params *p, const float *const *w)
{
	struct tensors t = {.q = w[0], .k = w[1], .v = w[2], .o = w[3]};
	w += 4;
	if (mx_param_int(p, "bias", 0)) {
		t.q_bias = *w++;
		t.k_bias = *w++;
		t.v_bias = *w++;
	}
	if (mx_param_int(p, "o_bias", 0))
		t.o_bias = *w++;
	if (mx_param_int(p, "qk_norm", 0)) {
		t.q_norm = *w++;
		t.k_norm = *w++;
	}
	return t;
}

static void attention_reference(const struct mixer_case *c, uint32_t n, const float *x,
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
	mixer_product(n, heads * dim, c->width, t.q, t.q_bias, x, q);
	mixer_product(n, kv_heads * dim, c->width, t.k, t.k_bias, x, k);
	mixer_product(n, kv_heads * dim, c->width, t.v, t.v_bias, x, v);
	prepare_heads(&p, n, heads, dim, t.q_norm, q);
	prepare_heads(&p, n, kv_heads, dim, t.k_norm, k);
	mx_attention_ref(n, heads, kv_heads, dim, (uint32_t)mx_param_int(&p, "window", 0),
	                 mx_param_float(&p, "scale", 1 / sqrt(dim)), q, k, v, score, out);
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

#define ATTENTION(label, width, tokens, weights, state, tolerance, ...)                            \
	{                                                                                              \
		label, width, tokens, weights, state, PARAMS(__VA_ARGS__), NULL, tolerance,                \
			attention_reference, 0                                                                 \
	}

static const struct mixer_case cases[] = {
	ATTENTION("one head each, f32", 64, 600, MX_F32, MX_F32, EXACT, HEADS(4, 4, 16),
              ROPE("default", 16, freq8)),
	ATTENTION("groups, biases, qk-norm, bf16", 48, 300, MX_BF16, MX_BF16, ROUNDED, HEADS(8, 2, 64),
              BOOL("bias"), BOOL("o_bias"), BOOL("qk_norm"), FLOAT("norm_eps", 1e-5),
              ROPE("llama3", 8, freq4)),
	ATTENTION("window inside a chunk, odd head, f32", 48, 300, MX_F32, MX_F32, EXACT,
              HEADS(6, 2, 24), INT("window", 7), ROPE("linear", 16, freq8)),
	ATTENTION("window across blocks, bf16", 32, 600, MX_BF16, MX_BF16, ROUNDED, HEADS(2, 1, 128),
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
	ATTENTION("one matrix for q, k and v, f32", 48, 300, MX_F32, MX_F32, EXACT, HEADS(6, 2, 16),
              BOOL("fused"), BOOL("bias"), BOOL("o_bias"), BOOL("qk_norm"),
              ROPE("default", 16, freq8)),
	ATTENTION("one matrix for q, k and v, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED,
              HEADS(4, 4, 32), BOOL("fused"), ROPE("default", 16, freq8)),
	ATTENTION("head of 256, f32", 32, 300, MX_F32, MX_F32, EXACT, HEADS(1, 1, 256),
              ROPE("default", 16, freq8)),
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
};

const struct mixer_set mixer_set_attention = {"attention", SET(cases), SET(wrongs), 0};
