/* SPDX-License-Identifier: Apache-2.0 */
#include "mixers/recurrence/recurrence_ref.h"

#include <math.h>
#include <stdlib.h>

/* S <- diag(a) S; u = beta v or beta (v - S^T k); S <- S + k u^T; o = S^T q + d v. One head, one
 * token. S [k_dim][v_dim]; a: one factor or k_dim, NULL = 1. */
static void step(double *S, uint32_t k_dim, uint32_t v_dim, const float *q, const float *k,
                 const float *v, const float *a, bool vector, bool delta, double beta, double d,
                 double *o)
{
	for (uint32_t i = 0; a && i < k_dim; i++)
		for (uint32_t j = 0; j < v_dim; j++)
			S[i * v_dim + j] *= (double)a[vector ? i : 0];
	for (uint32_t j = 0; j < v_dim; j++) {
		double u = (double)v[j];
		for (uint32_t i = 0; delta && i < k_dim; i++)
			u -= S[i * v_dim + j] * (double)k[i];
		u *= beta;
		for (uint32_t i = 0; i < k_dim; i++)
			S[i * v_dim + j] += (double)k[i] * u;
		o[j] = d * (double)v[j];
		for (uint32_t i = 0; i < k_dim; i++)
			o[j] += S[i * v_dim + j] * (double)q[i];
	}
}

/* p = -S^T z; S <- diag(a) S + b p^T + k v^T; o = S^T q. One head, one token. */
static void removal_step(double *S, uint32_t k_dim, uint32_t v_dim, const float *q, const float *k,
                         const float *v, const float *a, const float *z, const float *b, double *o)
{
	for (uint32_t j = 0; j < v_dim; j++) {
		double p = 0;
		for (uint32_t i = 0; i < k_dim; i++)
			p -= S[i * v_dim + j] * (double)z[i];
		o[j] = 0;
		for (uint32_t i = 0; i < k_dim; i++) {
			S[i * v_dim + j] =
				(double)a[i] * S[i * v_dim + j] + (double)b[i] * p + (double)k[i] * (double)v[j];
			o[j] += S[i * v_dim + j] * (double)q[i];
		}
	}
}

/* S = a S + v, o = S, element by element. */
static void channel_step(double *S, uint32_t v_dim, const float *v, const float *a, double *o)
{
	for (uint32_t j = 0; j < v_dim; j++)
		o[j] = S[j] = (double)a[j] * S[j] + (double)v[j];
}

bool recur_ref(const struct mx_recur_spec *s, size_t n, const struct mx_recur_in *in, double *y)
{
	bool channel = s->decay == MX_RECUR_CHANNEL, vector = s->decay == MX_RECUR_VECTOR;
	uint32_t kd = channel ? 1 : s->k_dim, vd = s->v_dim, na = channel ? vd : vector ? kd : 1;
	size_t ldy = (size_t)s->heads * vd;
	double *S = malloc((size_t)kd * vd * sizeof(*S));
	if (!S)
		return false;
	for (uint32_t h = 0; h < s->heads; h++) {
		for (size_t i = 0; i < (size_t)kd * vd; i++)
			S[i] = 0;
		for (size_t t = 0; t < n; t++) {
			double *o = y + t * ldy + (size_t)h * vd;
			const float *v = in->v + t * in->ldv + (size_t)(h / (s->heads / s->v_heads)) * vd;
			const float *a = NULL;
			if (s->decay != MX_RECUR_NO_DECAY)
				a = in->a + t * in->lda + (size_t)(h / (s->heads / s->a_heads)) * na;
			if (channel) {
				channel_step(S, vd, v, a, o);
				continue;
			}
			const float *q = in->q + t * in->ldq + (size_t)(h / (s->heads / s->q_heads)) * kd;
			const size_t at = t * in->ldk + (size_t)(h / (s->heads / s->k_heads)) * kd;
			const float *k = in->k + at;
			if (s->removal) {
				removal_step(S, kd, vd, q, k, v, a, in->z + at, in->b + at, o);
				continue;
			}
			double beta = s->delta || s->gain ? (double)in->beta[t * in->ldbeta + h] : 1;
			step(S, kd, vd, q, k, v, a, vector, s->delta, beta, in->skip ? (double)in->skip[h] : 0,
			     o);
		}
	}
	free(S);
	return true;
}

double recur_ref_map(enum mx_recur_map f, double x)
{
	switch (f) {
	case MX_RECUR_SIGMOID: return 1 / (1 + exp(-x));
	case MX_RECUR_SILU: return x / (1 + exp(-x));
	case MX_RECUR_SOFTPLUS: return x > 20 ? x : log1p(exp(x));
	case MX_RECUR_EXP: return exp(x);
	case MX_RECUR_LOGSIGMOID: return x < -20 ? x - exp(x) : -log1p(exp(-x));
	case MX_RECUR_TANH: return tanh(x);
	}
	return NAN;
}

void recur_ref_conv(const struct mx_conv_spec *s, size_t n, const float *weight, const float *bias,
                    const float *x, size_t ldx, double *y)
{
	for (size_t t = 0; t < n; t++)
		for (uint32_t c = 0; c < s->channels; c++) {
			double sum = bias ? (double)bias[c] : 0;
			for (uint32_t i = 0; i < s->width; i++) {
				size_t back = s->width - 1 - i;
				if (t >= back)
					sum += (double)weight[c * s->width + i] * (double)x[(t - back) * ldx + c];
			}
			y[t * s->channels + c] = s->silu ? recur_ref_map(MX_RECUR_SILU, sum) : sum;
		}
}

static double gate_of(enum mx_recur_gate g, float x)
{
	if (g == MX_RECUR_GATE_NONE)
		return 1;
	return recur_ref_map(g == MX_RECUR_GATE_SILU ? MX_RECUR_SILU : MX_RECUR_SIGMOID, (double)x);
}

void recur_ref_norm(const struct mx_recur_norm *n, const float *gate, const float *x, double *y)
{
	for (uint32_t g = 0; g < n->groups; g++) {
		double sum = 0, mean = 0;
		for (uint32_t i = 0; i < n->dim; i++) {
			size_t at = (size_t)g * n->dim + i;
			y[at] = (double)x[at] * (n->gate_first ? gate_of(n->gate, gate[at]) : 1);
			mean += n->center ? y[at] / n->dim : 0;
		}
		for (uint32_t i = 0; i < n->dim; i++) {
			size_t at = (size_t)g * n->dim + i;
			y[at] -= mean;
			sum += y[at] * y[at];
		}
		double factor = 1 / sqrt(sum / n->dim + (double)n->eps);
		for (uint32_t i = 0; i < n->dim; i++) {
			size_t at = (size_t)g * n->dim + i;
			y[at] *= factor;
			if (n->weight)
				y[at] *= (double)n->weight[n->weight_per_group ? at : i];
			if (n->bias)
				y[at] += (double)n->bias[n->weight_per_group ? at : i];
			if (n->gate && !n->gate_first)
				y[at] *= gate_of(n->gate, gate[at]);
		}
	}
}

void recur_ref_l2norm(uint32_t heads, uint32_t dim, float eps, float scale, const float *x,
                      double *y)
{
	for (uint32_t h = 0; h < heads; h++, x += dim, y += dim) {
		double sum = 0;
		for (uint32_t i = 0; i < dim; i++)
			sum += (double)x[i] * (double)x[i];
		for (uint32_t i = 0; i < dim; i++)
			y[i] = (double)x[i] * (double)scale / sqrt(sum + (double)eps);
	}
}
