/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the mixer mla. The reference is the layer as DeepSeek-V2 defines it, in double
 * precision: keys and values of each head are computed from the latents, nothing is absorbed. */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

struct sizes {
	uint32_t heads, q_rank, rank, nope, rope, v;
	uint32_t skip; /* keys at the beginning that later rows do not see */
};

static struct sizes sizes_of(const struct mx_params *p)
{
	return (struct sizes){
		(uint32_t)mx_param_int(p, "heads", 0),
		(uint32_t)mx_param_int(p, "q_lora_rank", 0),
		(uint32_t)mx_param_int(p, "kv_lora_rank", 512),
		(uint32_t)mx_param_int(p, "qk_nope_head_dim", 128),
		(uint32_t)mx_param_int(p, "qk_rope_head_dim", 64),
		(uint32_t)mx_param_int(p, "v_head_dim", 128),
		mx_param_int(p, "skip_first", 0) != 0,
	};
}

static float *floats(size_t n)
{
	float *p = calloc(n, sizeof *p);
	if (!p)
		abort();
	return p;
}

static void norm_rows(float *x, uint32_t n, uint32_t dim, size_t ld, const float *w, double eps)
{
	for (uint32_t i = 0; i < n; i++, x += ld) {
		double sum = 0;
		for (uint32_t k = 0; k < dim; k++)
			sum += (double)x[k] * x[k];
		for (uint32_t k = 0; k < dim; k++)
			x[k] = (float)(x[k] / sqrt(sum / dim + eps) * w[k]);
	}
}

/* Rotates the rope elements of one head by its position. */
static void rotate(const struct mx_params *p, uint32_t rope, uint32_t pos, float *x)
{
	const struct mx_param *freq = mx_param_find(p, "rope_inv_freq");
	const struct mx_param *pairs = mx_param_find(p, "rope_pairs");
	double theta = mx_param_float(p, "rope_theta", 10000);
	double scale = mx_param_float(p, "rope_attention_factor", 1);
	if (!strcmp(mx_param_string(p, "rope", ""), "none"))
		return;
	for (uint32_t i = 0; i < rope / 2; i++) {
		double f = freq ? freq->v[i] : pow(theta, -2.0 * i / rope);
		double c = cos(pos * (double)(float)f) * scale, s = sin(pos * (double)(float)f) * scale;
		bool split = pairs && !pairs->i; /* pairs is the default */
		uint32_t lo = split ? i : 2 * i, hi = split ? i + rope / 2 : lo + 1;
		double a = x[lo], b = x[hi];
		x[lo] = (float)(a * c - b * s);
		x[hi] = (float)(b * c + a * s);
	}
}

/* Attends with row i of head h: y[v]. */
static void attend(const struct sizes *z, double scale, uint32_t i, uint32_t h, const float *q,
                   const float *kv, const float *latent, double *score, float *y)
{
	const uint32_t dq = z->nope + z->rope, dkv = z->nope + z->v;
	const uint32_t first = i ? z->skip : 0;
	double top = -INFINITY, total = 0;
	q += ((size_t)i * z->heads + h) * dq;
	for (uint32_t j = first; j <= i; j++) {
		const float *k = kv + ((size_t)j * z->heads + h) * dkv;
		const float *rope = latent + (size_t)j * (z->rank + z->rope) + z->rank;
		score[j] = 0;
		for (uint32_t d = 0; d < z->nope; d++)
			score[j] += (double)q[d] * k[d];
		for (uint32_t d = 0; d < z->rope; d++)
			score[j] += (double)q[z->nope + d] * rope[d];
		top = fmax(top, score[j] *= scale);
	}
	for (uint32_t j = first; j <= i; j++)
		total += score[j] = exp(score[j] - top);
	for (uint32_t d = 0; d < z->v; d++) {
		double sum = 0;
		for (uint32_t j = first; j <= i; j++)
			sum += score[j] * kv[((size_t)j * z->heads + h) * dkv + z->nope + d];
		y[d] = (float)(sum / total);
	}
}

/* Multiplies outputs [n, heads, v] by the sigmoids of w x, w [heads, width]. */
static void gate_heads(const struct sizes *z, uint32_t n, uint32_t width, const float *w,
                       const float *x, float *out)
{
	float *gates = floats((size_t)n * z->heads);
	mixer_product(n, z->heads, width, w, NULL, x, gates);
	for (size_t i = 0; i < (size_t)n * z->heads * z->v; i++)
		out[i] = (float)(out[i] / (1 + exp(-(double)gates[i / z->v])));
	free(gates);
}

static void mla_reference(const struct mixer_case *c, uint32_t n, const float *x,
                          const float *const *w, float *y)
{
	const struct mx_params p = {c->params, c->n_params};
	const struct sizes z = sizes_of(&p);
	const uint32_t dq = z.nope + z.rope, dkv = z.nope + z.v, dl = z.rank + z.rope;
	const bool bias = mx_param_int(&p, "bias", 0);
	const double eps = mx_param_float(&p, "norm_eps", 1e-6);
	const double scale = mx_param_float(&p, "scale", 1 / sqrt((double)dq));
	const float *const *first = w;
	w += z.q_rank ? 3 : 1;
	const float *kv_a = w[0], *kv_norm = w[1], *kv_b = w[2], *o = w[3];
	const float *const *biases = w + 4;
	const float *q_bias = bias && z.q_rank ? *biases++ : NULL;
	float *q = floats((size_t)n * z.heads * dq), *kv = floats((size_t)n * z.heads * dkv);
	float *latent = floats((size_t)n * dl), *normed = floats((size_t)n * z.rank);
	float *out = floats((size_t)n * z.heads * z.v);
	double *score = calloc(n, sizeof *score);
	if (!score)
		abort();

	if (z.q_rank) {
		float *low = floats((size_t)n * z.q_rank);
		mixer_product(n, z.q_rank, c->width, first[0], q_bias, x, low);
		norm_rows(low, n, z.q_rank, z.q_rank, first[1], eps);
		mixer_product(n, z.heads * dq, z.q_rank, first[2], NULL, low, q);
		free(low);
	} else {
		mixer_product(n, z.heads * dq, c->width, first[0], NULL, x, q);
	}
	mixer_product(n, dl, c->width, kv_a, bias ? biases[0] : NULL, x, latent);
	norm_rows(latent, n, z.rank, dl, kv_norm, eps);
	for (uint32_t i = 0; i < n; i++) {
		memcpy(normed + (size_t)i * z.rank, latent + (size_t)i * dl, z.rank * sizeof *normed);
		rotate(&p, z.rope, i, latent + (size_t)i * dl + z.rank);
		for (uint32_t h = 0; h < z.heads; h++)
			rotate(&p, z.rope, i, q + ((size_t)i * z.heads + h) * dq + z.nope);
	}
	mixer_product(n, z.heads * dkv, z.rank, kv_b, NULL, normed, kv);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < z.heads; h++)
			attend(&z, scale, i, h, q, kv, latent, score, out + ((size_t)i * z.heads + h) * z.v);
	if (mx_param_int(&p, "head_gate", 0))
		gate_heads(&z, n, c->width, biases[bias ? 2 : 0], x, out);
	mixer_product(n, c->width, z.heads * z.v, o, bias ? biases[1] : NULL, out, y);
	free(q);
	free(kv);
	free(latent);
	free(normed);
	free(out);
	free(score);
}

static const double freq8[] = {1,    0.31622776601683794,   0.1,   0.031622776601683794,
                               0.01, 0.0031622776601683794, 0.001, 0.00031622776601683794};

static const double freq3[] = {1, 0.1, 0.01};

#define SIZES(h, rank, nope, rope, v)                                                              \
	INT("heads", h), INT("kv_lora_rank", rank), INT("qk_nope_head_dim", nope),                     \
		INT("qk_rope_head_dim", rope), INT("v_head_dim", v)
#define NO(key)                                                                                    \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define MLA(label, width, tokens, weights, state, tolerance, ...)                                  \
	{                                                                                              \
		label, width, tokens, weights, state, PARAMS(__VA_ARGS__), NULL, tolerance, mla_reference, \
			0                                                                                      \
	}

static const struct mixer_case cases[] = {
	MLA("one query matrix, f32", 48, 600, MX_F32, MX_F32, EXACT, SIZES(4, 24, 16, 16, 12)),
	MLA("low-rank queries, biases, f32", 48, 300, MX_F32, MX_F32, EXACT, SIZES(6, 40, 12, 8, 24),
        INT("q_lora_rank", 20), BOOL("bias"), FLOAT("norm_eps", 1e-5), FLOAT("scale", 0.3)),
	MLA("low-rank queries, bf16", 64, 600, MX_BF16, MX_BF16, ROUNDED, SIZES(16, 64, 32, 16, 32),
        INT("q_lora_rank", 48), STRING("rope", "yarn"), FLOATS("rope_inv_freq", freq8),
        FLOAT("rope_attention_factor", 1.2)),
	MLA("no rope, bf16", 48, 300, MX_BF16, MX_BF16, ROUNDED, SIZES(3, 32, 16, 8, 40),
        STRING("rope", "none")),
	MLA("halves, f16 weights, f32 state", 48, 300, MX_F16, MX_F32, EXACT, SIZES(2, 33, 15, 6, 7),
        NO("rope_pairs"), FLOAT("rope_theta", 500)),
	MLA("skip_first, f32", 48, 300, MX_F32, MX_F32, EXACT, SIZES(4, 24, 16, 16, 12),
        BOOL("skip_first")),
	MLA("skip_first, bf16", 64, 600, MX_BF16, MX_BF16, ROUNDED, SIZES(16, 64, 32, 16, 32),
        BOOL("skip_first"), INT("q_lora_rank", 48)),
	MLA("head_gate, biases, f32", 48, 100, MX_F32, MX_F32, EXACT, SIZES(4, 24, 16, 16, 12),
        BOOL("head_gate"), BOOL("bias")),
	MLA("head_gate, low-rank queries, bf16", 48, 70, MX_BF16, MX_BF16, ROUNDED,
        SIZES(5, 32, 16, 8, 16), BOOL("head_gate"), INT("q_lora_rank", 20)),
	MLA("more heads than a tile, f32", 32, 300, MX_F32, MX_F32, EXACT, SIZES(40, 16, 8, 4, 8)),
	MLA("more heads than an item, bf16", 32, 270, MX_BF16, MX_BF16, ROUNDED,
        SIZES(130, 32, 8, 4, 8)),
	MLA("latents of 512, f32", 128, 270, MX_F32, MX_F32, EXACT, SIZES(2, 512, 128, 64, 128)),
	MLA("latents of 512, bf16", 128, 270, MX_BF16, MX_BF16, ROUNDED, SIZES(2, 512, 128, 64, 128)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("heads", 0), "heads"},
	{INT("heads", 1000000000), "heads"},
	{INT("q_lora_rank", -1), "q_lora_rank"},
	{INT("kv_lora_rank", 0), "kv_lora_rank"},
	{INT("kv_lora_rank", 513), "kv_lora_rank"},
	{INT("qk_nope_head_dim", 49), "qk_nope_head_dim"},
	{INT("qk_rope_head_dim", 15), "qk_rope_head_dim"},
	{INT("v_head_dim", 0), "v_head_dim"},
	{FLOAT("scale", 0), "scale"},
	{STRING("rope", "dynamic"), "rope"},
	{STRING("rope", "yarn"), "rope_inv_freq"},
	{FLOATS("rope_inv_freq", freq3), "rope_inv_freq"},
	{FLOAT("rope_theta", 0), "rope_theta"},
	{INT("window", 3), "window"},
};

const struct mixer_set mixer_set_mla = {"mla", SET(cases), SET(wrongs), 0};
