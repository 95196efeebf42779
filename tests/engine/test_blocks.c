/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the engine's own part of a layer against a plain computation in double precision: mixers
 * side by side, multipliers, layers without feed-forward and with GELU, mixtures of experts, both
 * kinds of norm. The mixer is the moving average of tests/mixers/modules/ema.c, whose equation is
 * one line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/engine/engine_util.h"

enum { D = 32, VOCAB = 64, MLP = 48, EXPERT = 24, SHARED = 40, N = 40, LAYERS = 6 };
enum { NO_MLP, SWIGLU, GELU, GELU_BIAS };

#define HEAD                                                                                       \
	"{\"model_type\":\"mixd\",\"hidden_size\":32,\"vocab_size\":64,\"intermediate_size\":48,"      \
	"\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"

#define MODEL(norm)                                                                                \
	HEAD norm "\"embedding_scale\":3,\"logit_scale\":0.5,\"residual_scale\":0.7,"                  \
			  "\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,\"mixd_layers\":["           \
			  "{\"mixers\":[{\"mixer\":\"ema\",\"in_scale\":0.5,\"out_scale\":1.5},"               \
			  "{\"mixer\":\"ema\",\"out_scale\":-0.5}],\"mlp\":{\"num_experts\":5,"                \
			  "\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":40}},"                  \
			  "{\"mixer\":\"ema\",\"residual_scale\":1,\"mlp\":false},"                            \
			  "{\"mixer\":\"ema\",\"out_scale\":2,\"mlp\":{\"num_experts\":3}},"                   \
			  "{\"mixer\":\"ema\"},"                                                               \
			  "{\"mixer\":\"ema\",\"mlp\":{\"mlp_type\":\"gelu_tanh\",\"mlp_bias\":true}},"        \
			  "{\"mixer\":\"ema\",\"residual_scale\":1,\"mlp\":{\"mlp_type\":\"gelu_tanh\","       \
			  "\"intermediate_size\":37}}]}"

static const char config[] = MODEL("");
static const char config_layernorm[] =
	MODEL("\"norm_type\":\"layernorm\",\"layer_norm_eps\":0.01,");

/* The same layers for the reference. */
static const struct {
	double residual;
	int n_mixers;
	double in[2], out[2];
	const char *prefix[2];
	int mlp;
	int width, experts, shared;
	int normalize;
} layers[LAYERS] = {
	{0.7, 2, {0.5, 1}, {1.5, -0.5}, {"mixers.0.", "mixers.1."}, SWIGLU, 0, 5, 1, 1},
	{1, 1, {1}, {1}, {"mixer."}, NO_MLP, 0, 0, 0, 0},
	{0.7, 1, {1}, {2}, {"mixer."}, SWIGLU, 0, 3, 0, 0},
	{0.7, 1, {1}, {1}, {"mixer."}, SWIGLU, MLP, 0, 0, 0},
	{0.7, 1, {1}, {1}, {"mixer."}, GELU_BIAS, MLP, 0, 0, 0},
	{1, 1, {1}, {1}, {"mixer."}, GELU, 37, 0, 0, 0},
};

static char dir[64];

/* ---- the reference ---- */

static const struct mx_checkpoint *checkpoint;

static const float *tensor(int layer, const char *part, const char *name)
{
	char full[128];
	const struct mx_tensor *t = NULL;
	struct mx_err err = {0};
	if (layer < 0)
		snprintf(full, sizeof full, "%s", name);
	else
		snprintf(full, sizeof full, "model.layers.%d.%s%s", layer, part, name);
	if (mx_checkpoint_find(checkpoint, full, &t, &err) != MX_OK)
		fail_msg("%s", err.text);
	return t->data;
}

static void product(const float *w, const double *x, int rows, int cols, double *y)
{
	for (int i = 0; i < rows; i++) {
		y[i] = 0;
		for (int k = 0; k < cols; k++)
			y[i] += (double)w[i * cols + k] * x[k];
	}
}

/* `name` without ".weight" */
static void norm(bool layernorm, int layer, const char *name, const double *x, double *y)
{
	char full[64];
	double sum = 0, mean = 0;
	snprintf(full, sizeof full, "%s.weight", name);
	const float *w = tensor(layer, "", full), *b = NULL;
	snprintf(full, sizeof full, "%s.bias", name);
	if (layernorm)
		b = tensor(layer, "", full);
	for (int i = 0; i < D; i++)
		mean += layernorm ? x[i] / D : 0;
	for (int i = 0; i < D; i++)
		sum += (x[i] - mean) * (x[i] - mean);
	for (int i = 0; i < D; i++)
		y[i] = w[i] * (x[i] - mean) / sqrt(sum / D + (layernorm ? 0.01 : 1e-5)) + (b ? b[i] : 0);
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* y += scale * mixer(in * x). Updates the state. */
static void ema(int layer, const char *prefix, double in, double out, const double *x,
                double state[D], double *y)
{
	double scaled[D], u[D], v[D];
	const float *gate = tensor(layer, prefix, "gate");
	for (int i = 0; i < D; i++)
		scaled[i] = in * x[i];
	product(tensor(layer, prefix, "in_proj.weight"), scaled, D, D, u);
	for (int i = 0; i < D; i++) {
		double a = sigmoid(gate[i]);
		state[i] = a * state[i] + (1 - a) * u[i];
	}
	product(tensor(layer, prefix, "out_proj.weight"), state, D, D, v);
	for (int i = 0; i < D; i++)
		y[i] += out * v[i];
}

/* y += scale * mlp(x) */
static void mlp(int layer, const char *prefix, int width, double scale, const double *x, double *y)
{
	double gate[MLP], up[MLP], v[D];
	product(tensor(layer, prefix, "gate_proj.weight"), x, width, D, gate);
	product(tensor(layer, prefix, "up_proj.weight"), x, width, D, up);
	for (int i = 0; i < width; i++)
		gate[i] *= sigmoid(gate[i]) * up[i];
	product(tensor(layer, prefix, "down_proj.weight"), gate, D, width, v);
	for (int i = 0; i < D; i++)
		y[i] += scale * v[i];
}

/* y += down(gelu(up x)), with biases or without */
static void gelu_mlp(int layer, int width, bool bias, const double *x, double *y)
{
	double up[MLP], v[D];
	product(tensor(layer, "mlp.", "up_proj.weight"), x, width, D, up);
	for (int i = 0; i < width; i++) {
		double u = up[i] + (bias ? tensor(layer, "mlp.", "up_proj.bias")[i] : 0);
		up[i] = 0.5 * u * (1 + tanh(sqrt(2 / acos(-1)) * (u + 0.044715 * u * u * u)));
	}
	product(tensor(layer, "mlp.", "down_proj.weight"), up, D, width, v);
	for (int i = 0; i < D; i++)
		y[i] += v[i] + (bias ? tensor(layer, "mlp.", "down_proj.bias")[i] : 0);
}

/* y += two of n experts, and the shared expert if there is one. */
static void experts(int layer, int n, int normalize, int shared, const double *x, double *y)
{
	double p[8], sum = 0, share;
	int first = -1, second = -1;
	product(tensor(layer, "mlp.", "gate.weight"), x, n, D, p);
	for (int i = 0; i < n; i++)
		sum += p[i] = exp(p[i]);
	for (int i = 0; i < n; i++) {
		p[i] /= sum;
		if (first < 0 || p[i] > p[first]) {
			second = first;
			first = i;
		} else if (second < 0 || p[i] > p[second]) {
			second = i;
		}
	}
	double all = normalize ? p[first] + p[second] : 1;
	for (int k = 0; k < 2; k++) {
		char prefix[32];
		int i = k ? second : first;
		snprintf(prefix, sizeof prefix, "mlp.experts.%d.", i);
		mlp(layer, prefix, EXPERT, p[i] / all, x, y);
	}
	if (shared) {
		product(tensor(layer, "mlp.", "shared_expert_gate.weight"), x, 1, D, &share);
		mlp(layer, "mlp.shared_expert.", SHARED, sigmoid(share), x, y);
	}
}

static void feed_forward(int l, const double *x, double *y)
{
	if (layers[l].experts)
		experts(l, layers[l].experts, layers[l].normalize, layers[l].shared, x, y);
	else if (layers[l].mlp == SWIGLU)
		mlp(l, "mlp.", layers[l].width, 1, x, y);
	else
		gelu_mlp(l, layers[l].width, layers[l].mlp == GELU_BIAS, x, y);
}

/* Computes the log-probabilities of tokens 1 .. N-1. */
static void reference(bool layernorm, const int32_t *tokens, double *out)
{
	static double state[LAYERS][2][D];
	memset(state, 0, sizeof state);
	for (int t = 0; t + 1 < N; t++) {
		double h[D], x[D], y[D], logits[VOCAB], sum = 0;
		for (int i = 0; i < D; i++)
			h[i] = 3.0 * tensor(-1, "", "model.embed_tokens.weight")[tokens[t] * D + i];
		for (int l = 0; l < LAYERS; l++) {
			memset(y, 0, sizeof y);
			norm(layernorm, l, "input_layernorm", h, x);
			for (int m = 0; m < layers[l].n_mixers; m++)
				ema(l, layers[l].prefix[m], layers[l].in[m], layers[l].out[m], x, state[l][m], y);
			for (int i = 0; i < D; i++)
				h[i] += layers[l].residual * y[i];
			if (!layers[l].mlp)
				continue;
			memset(y, 0, sizeof y);
			norm(layernorm, l, "post_attention_layernorm", h, x);
			feed_forward(l, x, y);
			for (int i = 0; i < D; i++)
				h[i] += layers[l].residual * y[i];
		}
		norm(layernorm, -1, "model.norm", h, x);
		product(tensor(-1, "", "lm_head.weight"), x, VOCAB, D, logits);
		for (int i = 0; i < VOCAB; i++)
			sum += exp(0.5 * logits[i]);
		out[t + 1] = 0.5 * logits[tokens[t + 1]] - log(sum);
	}
}

/* ---- tests ---- */

static void blocks_agree_with_the_reference(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		bool layernorm = seed % 2;
		struct loaded l;
		int32_t tokens[N];
		double want[N], worst = 0;
		make_checkpoint(dir, layernorm ? config_layernorm : config, MX_F32, seed);
		loaded_start(dir, NULL, &l);
		checkpoint = l.checkpoint;
		for (int i = 0; i < N; i++)
			tokens[i] = (int32_t)((i * 37u + seed * 11) % VOCAB);
		reference(layernorm, tokens, want);
		for (uint32_t chunk = 1; chunk <= N; chunk += 13) {
			struct job job = {.prompt = tokens,
			                  .n_prompt = N,
			                  .total = N,
			                  .sampling = {.top_p = 1, .repetition_penalty = 1},
			                  .logprobs = -1,
			                  .prompt_logprobs = 0};
			struct outcome o;
			run_jobs(l.engine, &job, 1, chunk, &o);
			for (int i = 1; i < N; i++)
				worst = fmax(worst, fabs((double)o.logprobs[i].logprob - want[i]));
			outcome_free(&o);
		}
		print_message("largest difference %.2g\n", worst);
		assert_true(worst < 5e-6); /* 30 roundings of f32 in a row, at log-probabilities near 4 */
		loaded_close(&l);
		mx_random_model_remove(dir);
	}
}

/* A tensor that config.json asks for and the checkpoint lacks or has in another shape is named. */
static void tensors_of_blocks_are_checked(void **state)
{
	(void)state;
	static const struct {
		const char *from, *to, *names;
		mx_status status;
	} cases[] = {
		{"\"num_experts\":3", "\"num_experts\":4", "model.layers.2.mlp.gate.weight", MX_E_FORMAT},
		{"\"moe_intermediate_size\":24", "\"moe_intermediate_size\":25",
	     "model.layers.0.mlp.experts.0.gate_proj.weight", MX_E_FORMAT},
		{"\"mlp\":false", "\"mlp\":true ", "model.layers.1.post_attention_layernorm.weight",
	     MX_E_NOTFOUND},
		{"\"mixer\":\"ema\",\"out_scale\":2,", "\"mixers\":[{\"mixer\":\"ema\"}],",
	     "model.layers.2.mixers.0.in_proj.weight", MX_E_NOTFOUND},
		{"\"rms_norm_eps\":1e-5", "\"norm_type\":\"layernorm\"", "model.norm.bias", MX_E_NOTFOUND},
		{"gelu_tanh", "swiglu", "model.layers.4.mlp.gate_proj.weight", MX_E_NOTFOUND},
		{"\"intermediate_size\":37", "\"mlp_bias\":true", "model.layers.5.mlp.up_proj.weight",
	     MX_E_FORMAT},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[sizeof config + 64];
		struct loaded l;
		struct mx_err err = {0};
		struct mx_engine_config c = loaded_config();
		struct mx_memory_plan plan;
		make_checkpoint(dir, config, MX_F32, 1);
		const char *at = strstr(config, cases[i].from);
		assert_non_null(at);
		snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, cases[i].to,
		         at + strlen(cases[i].from));
		assert_int_equal(mx_random_config_write(dir, text, &err), MX_OK);
		loaded_open(dir, &l);
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &plan, &err),
		                 cases[i].status);
		if (!strstr(err.text, cases[i].names))
			fail_msg("\"%s\" does not name %s", err.text, cases[i].names);
		loaded_close(&l);
		mx_random_model_remove(dir);
	}
}

/* One slice of axis 0 is taken; others are refused, by the tensor's name, until layers are split.
 */
static void slices_that_engines_do_not_take_are_refused(void **state)
{
	static const struct {
		const char *params;
		mx_status status;
	} cases[] = {
		{"", MX_OK},
		{",\"slices\":2", MX_E_UNSUPPORTED},
		{",\"axis\":2", MX_E_UNSUPPORTED},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[512];
		struct loaded l;
		struct mx_err err = {0};
		struct mx_engine_config c = loaded_config();
		struct mx_memory_plan plan;
		snprintf(text, sizeof text, HEAD "\"mixd_layers\":[{\"mixer\":\"sliced\"%s}]}",
		         cases[i].params);
		make_checkpoint(dir, text, MX_F32, 1);
		loaded_open(dir, &l);
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &plan, &err),
		                 cases[i].status);
		if (cases[i].status != MX_OK && !strstr(err.text, "w.weight"))
			fail_msg("\"%s\" does not name the tensor", err.text);
		loaded_close(&l);
		mx_random_model_remove(dir);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_agree_with_the_reference),
		cmocka_unit_test(tensors_of_blocks_are_checked),
		cmocka_unit_test(slices_that_engines_do_not_take_are_refused),
	};
	mx_log_set_level(MX_LOG_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
