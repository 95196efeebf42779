/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer's parameters and weights say once: its description, and vectors for the decay. */
#include <math.h>
#include <stdlib.h>

#include "mixers/gla/gla_layer.h"

static enum mx_recur_decay_map decay_map(const struct gla_params *p)
{
	switch (p->variant->decay) {
	case GLA_NO_DECAY: return MX_RECUR_A_ONE;
	case GLA_RETENTION:
	case GLA_LIGHTNING:
	case GLA_SLOPES: return MX_RECUR_A_FIXED;
	case GLA_LOGSIGMOID: return MX_RECUR_A_LOGSIGMOID;
	case GLA_SOFTPLUS: return p->has_bound ? MX_RECUR_A_BOUND : MX_RECUR_A_SOFTPLUS;
	case GLA_LOWER_BOUND: return MX_RECUR_A_SIGMOID;
	}
	return MX_RECUR_A_ONE;
}

void gla_describe(const struct gla_params *p, struct mx_recur_layer *out)
{
	const bool whole = p->variant->norm_whole;
	struct mx_recur_layer l = {
		.core = p->recur,
		.k_dim = p->k_dim,
		.v_dim = p->v_dim,
		.taps = p->conv_size,
		.feature = p->feature,
		.norm_q = p->norm_q,
		.norm_k = p->norm_k,
		.rope = p->variant->rope,
		.q_scale = p->variant->unscaled || !p->recur.k_dim ? 1 : 1 / sqrtf((float)p->recur.k_dim),
		.decay = decay_map(p),
		.decay_min = p->variant->decay == GLA_LOGSIGMOID ? p->clamp_min : -INFINITY,
		.beta = p->streams[MX_RECUR_BETA].n ? MX_RECUR_BETA_SIGMOID : MX_RECUR_BETA_FIXED,
		.beta_scale = p->neg_eigval ? 2 : 1,
		.k_is_rest = p->variant->shape == GLA_RATIO,
		.v_times_rest = p->variant->shape == GLA_CHANNELS,
		.normalize = p->normalize,
		.norm = true,
		.out = {.groups = whole ? 1 : p->recur.heads,
	            .dim = whole ? p->recur.heads * p->v_dim : p->v_dim,
	            .eps = p->norm_eps,
	            .gate = p->gate},
		.share_groups = whole && p->ranks > 1 ? 1 : 0,
		.share_dim = p->all_heads * p->v_dim,
		.gate_scale = 1,
		.by_turns = p->by_turns,
	};
	memcpy(l.streams, p->streams, sizeof l.streams);
	*out = l;
}

/* If q and k share a feature map, the one that the file has serves both. */
mx_status gla_take_weights(const struct mx_mixer_init *init, const struct gla_params *p,
                           struct gla_weights *w, struct mx_err *err)
{
	struct gla_tensor tensors[MX_MIXER_MAX_WEIGHTS];
	size_t n = gla_tensors(init->layer, p, tensors);

	for (size_t i = 0; i < n; i++) {
		const void *at = tensors[i].on_host ? init->host_vectors[i] : init->weights[i];
		memcpy((unsigned char *)w + tensors[i].offset, &at, sizeof(at));
	}
	for (int i = 0; p->feature_tied && i < mx_recur_feature_layers(p->feature); i++) {
		int has = w->feature[0][i] ? 0 : 1;
		w->feature[!has][i] = w->feature[has][i];
		w->feature_bias[!has][i] = w->feature_bias[has][i];
		if (!w->feature[has][i] || (p->feature != MX_RECUR_FEATURE_T2R && !w->feature_bias[has][i]))
			return mx_mixer_fail(err, MX_E_FORMAT, "gla: the tied feature map has no tensors");
	}
	return MX_OK;
}

/* ---- factors and vectors that depend only on parameters and weights ---- */

static bool alloc(float **out, size_t n)
{
	*out = calloc(n, sizeof(float));
	return *out != NULL;
}

/* Returns a of head h, which no token changes. */
static double fixed_factor(enum gla_decay decay, const struct mx_layer_desc *layer, uint32_t h,
                           uint32_t heads)
{
	const double at = layer->index, n = layer->n_layers;
	if (decay == GLA_RETENTION)
		return 1 - exp2(-5.0 - h);
	if (decay == GLA_SLOPES)
		return exp(-exp2(-8.0 * (h + 1) / heads) * (1 - at / (n - 1 + 1e-5) + 1e-5));
	return exp(-8.0 / heads * (1 - at / n) * h);
}

static bool fill_fixed(const struct mx_layer_desc *layer, const struct gla_params *p,
                       struct mx_recur_tables *t)
{
	const uint32_t heads = p->recur.heads, first = heads / p->share.n * p->share.first;
	const uint32_t half = p->variant->rope ? p->k_dim / 2 : 0;

	if (!alloc(&t->inv_freq, half + 1) || !alloc(&t->fixed_a, heads))
		return false;
	for (uint32_t i = 0; i < half; i++)
		t->inv_freq[i] = 1 / (float)pow(10000, (float)(2 * i) / (float)p->k_dim);
	for (uint32_t h = 0; h < heads; h++)
		t->fixed_a[h] = (float)fixed_factor(p->variant->decay, layer, first + h, p->all_heads);
	return true;
}

/* The lower bounds [own] of this layer, from column `all` of the table on: the softmax over the
 * layers, summed from the second layer to this one (Qin et al. 2023). */
static void lower_bounds(const struct mx_layer_desc *layer, const float *all, uint32_t own,
                         float *mul, float *add)
{
	const uint32_t n = layer->width;
	for (uint32_t i = 0; i < own; i++) {
		float max = -INFINITY;
		double sum = 0, upto = 0;
		for (uint32_t l = 0; l < layer->n_layers; l++)
			max = fmaxf(max, all[(size_t)l * n + i]);
		for (uint32_t l = 0; l < layer->n_layers; l++) {
			double e = exp((double)all[(size_t)l * n + i] - max);
			sum += e;
			upto += l && l <= layer->index ? e : 0;
		}
		add[i] = (float)(upto / sum);
		mul[i] = (float)(1 - upto / sum);
	}
}

static bool fill_decay(const struct mx_layer_desc *layer, const struct gla_params *p,
                       const struct gla_weights *w, struct mx_recur_tables *t)
{
	uint32_t n = p->streams[MX_RECUR_A].n, group = n / p->recur.a_heads;

	switch (p->variant->decay) {
	case GLA_NO_DECAY:
	case GLA_RETENTION:
	case GLA_LIGHTNING:
	case GLA_SLOPES: break;
	case GLA_LOGSIGMOID:
		if (!alloc(&t->mul, n))
			return false;
		for (uint32_t i = 0; i < n; i++)
			t->mul[i] = 1 / p->normalizer;
		break;
	case GLA_SOFTPLUS:
		if (!alloc(&t->mul, n) || (p->has_bound && !alloc(&t->pre, n)))
			return false;
		for (uint32_t i = 0; i < n; i++) {
			float a = expf(w->a_log[i / group]);
			t->mul[i] = p->has_bound ? p->bound : -a;
			if (p->has_bound)
				t->pre[i] = a;
		}
		break;
	case GLA_LOWER_BOUND:
		if (!p->has_lower_bounds)
			break;
		if (!alloc(&t->mul, n) || !alloc(&t->add, n))
			return false;
		lower_bounds(layer, w->lower_bounds + n / p->share.n * p->share.first, n, t->mul, t->add);
		break;
	}
	return true;
}

mx_status gla_tables_fill(const struct mx_layer_desc *layer, const struct gla_params *p,
                          const struct gla_weights *w, struct mx_recur_tables *out)
{
	return fill_fixed(layer, p, out) && fill_decay(layer, p, w, out) ? MX_OK : MX_E_NOMEM;
}

void gla_tables_free(struct mx_recur_tables *t)
{
	free(t->inv_freq);
	free(t->fixed_a);
	free(t->pre);
	free(t->mul);
	free(t->add);
}
