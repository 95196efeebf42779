/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a layer and the places of their pointers: one list for weights() and create(). */
#include "mixers/gla/gla_layer.h"

struct lister {
	struct gla_tensor *out;
	size_t n;
};

static struct mx_weight_spec *add(struct lister *l, const char *name, enum mx_weight_form form,
                                  size_t offset)
{
	struct gla_tensor *t = &l->out[l->n++];
	*t = (struct gla_tensor){.spec = {.name = name, .form = form}, .offset = offset};
	return &t->spec;
}

static void vector(struct lister *l, const char *name, uint64_t n, size_t offset)
{
	struct mx_weight_spec *s = add(l, name, MX_WEIGHT_VECTOR, offset);
	s->ndim = 1;
	s->shape[0] = n;
}

static void matrix(struct lister *l, const char *name, uint64_t rows, uint64_t cols, size_t offset)
{
	struct mx_weight_spec *s = add(l, name, MX_WEIGHT_MATRIX, offset);
	s->ndim = 2;
	s->shape[0] = rows;
	s->shape[1] = cols;
}

#define AT(field) offsetof(struct gla_weights, field)

/* Names of Qwen3.5's tensors; Qwen3-Next's convolution and bias are named alike. */
static const struct gla_names qwen[MX_RECUR_STREAMS] = {
	[MX_RECUR_Q] = {.weight = "in_proj_qkv.weight", .conv = "conv1d.weight"},
	[MX_RECUR_K] = {.weight = "in_proj_qkv.weight", .conv = "conv1d.weight"},
	[MX_RECUR_V] = {.weight = "in_proj_qkv.weight", .conv = "conv1d.weight"},
	[MX_RECUR_A] = {.weight = "in_proj_a.weight", .bias = "dt_bias"},
	[MX_RECUR_BETA] = {.weight = "in_proj_b.weight"},
	[MX_RECUR_GATE] = {.weight = "in_proj_z.weight"},
};

/* Lists a stream of Qwen's gated delta net: q, k and v are rows of the tensors of all three. */
static void list_qwen_stream(struct lister *l, const struct gla_params *p, int s, uint32_t width)
{
	const struct mx_recur_stream_desc *shape = p->streams;
	const uint32_t n = shape[s].n,
				   all = shape[MX_RECUR_Q].n + shape[MX_RECUR_K].n + shape[MX_RECUR_V].n;
	const uint32_t first = s == MX_RECUR_Q ? 0 : s == MX_RECUR_K ? shape[MX_RECUR_Q].n : all - n;
	const bool part = s <= MX_RECUR_V;
	size_t at = AT(streams) + (size_t)s * sizeof(struct gla_stream_weights);
	if (p->form == GLA_TENSORS_QWEN3_5 && p->ba_joined && (s == MX_RECUR_BETA || s == MX_RECUR_A)) {
		matrix(l, "in_proj_ba.weight", 2 * n, width, at + offsetof(struct gla_stream_weights, w));
		l->out[l->n - 1].spec =
			mx_weight_spec_rows(l->out[l->n - 1].spec, s == MX_RECUR_BETA ? 0 : n, n);
	} else if (p->form == GLA_TENSORS_QWEN3_5) {
		matrix(l, qwen[s].weight, part ? all : n, width,
		       at + offsetof(struct gla_stream_weights, w));
		if (part)
			l->out[l->n - 1].spec = mx_weight_spec_rows(l->out[l->n - 1].spec, first, n);
	}
	if (qwen[s].bias)
		vector(l, qwen[s].bias, n, at + offsetof(struct gla_stream_weights, bias));
	if (part) {
		const struct mx_weight_spec spec =
			MX_WEIGHT_SPEC(qwen[s].conv, VECTOR, {all, 1, p->conv_size});
		*add(l, qwen[s].conv, MX_WEIGHT_VECTOR, at + offsetof(struct gla_stream_weights, conv)) =
			mx_weight_spec_rows(spec, first, n);
	}
}

static void list_stream(struct lister *l, const struct gla_params *p, int s, uint32_t width)
{
	const struct gla_names *names = &p->variant->streams[s];
	const struct mx_recur_stream_desc *shape = &p->streams[s];
	size_t at = AT(streams) + (size_t)s * sizeof(struct gla_stream_weights);
#define STREAM(field) at + offsetof(struct gla_stream_weights, field)
	matrix(l, names->weight, shape->rank ? shape->rank : shape->n, width, STREAM(w));
	if (shape->rank)
		matrix(l, names->up, shape->n, shape->rank, STREAM(up));
	if (names->bias)
		vector(l, names->bias, shape->n, STREAM(bias));
	if (shape->conv) {
		struct mx_weight_spec *spec = add(l, names->conv, MX_WEIGHT_VECTOR, STREAM(conv));
		spec->ndim = 3;
		spec->shape[0] = shape->n;
		spec->shape[1] = 1;
		spec->shape[2] = p->conv_size;
		vector(l, names->conv_bias, shape->n, STREAM(conv_bias));
		l->out[l->n - 1].spec.optional = true;
	}
#undef STREAM
}

/* If q and k share a map, a file holds one, under either name. */
static void list_feature(struct lister *l, const struct gla_params *p)
{
	static const char *const weights[2][3] = {
		{"feature_map_q.layer1.weight", "feature_map_q.layer2.weight",
	     "feature_map_q.layer.weight"},
		{"feature_map_k.layer1.weight", "feature_map_k.layer2.weight",
	     "feature_map_k.layer.weight"},
	};
	static const char *const biases[2][3] = {
		{"feature_map_q.layer1.bias", "feature_map_q.layer2.bias", "feature_map_q.layer.bias"},
		{"feature_map_k.layer1.bias", "feature_map_k.layer2.bias", "feature_map_k.layer.bias"},
	};
	for (int qk = 0; qk < 2; qk++)
		for (int layer = 0; layer < mx_recur_feature_layers(p->feature); layer++) {
			int name = p->feature == MX_RECUR_FEATURE_PRODUCT ? layer : 2;
			size_t i = (size_t)(qk * 2 + layer) * sizeof(void *), from = l->n;
			matrix(l, weights[qk][name], p->k_dim, p->k_dim, AT(feature) + i);
			if (p->feature != MX_RECUR_FEATURE_T2R)
				vector(l, biases[qk][name], p->k_dim, AT(feature_bias) + i);
			for (size_t k = from; k < l->n; k++)
				l->out[k].spec.optional = p->feature_tied;
		}
}

size_t gla_tensors(const struct mx_layer_desc *layer, const struct gla_params *p,
                   struct gla_tensor *out)
{
	struct lister l = {out, 0};
	const bool packed = p->form == GLA_TENSORS_MINIMAX, qwen_names = p->form && !packed;
	if (packed)
		matrix(&l, "qkv_proj.weight",
		       p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_K].n + p->streams[MX_RECUR_V].n,
		       layer->width, AT(qkvz));
	for (int s = packed ? MX_RECUR_A : MX_RECUR_Q; s < MX_RECUR_STREAMS; s++)
		if (p->streams[s].n)
			(qwen_names ? list_qwen_stream : list_stream)(&l, p, s, layer->width);
	if (p->form == GLA_TENSORS_QWEN3_NEXT) {
		const struct mx_recur_stream_desc *shape = p->streams;
		matrix(&l, "in_proj_qkvz.weight",
		       shape[MX_RECUR_Q].n + shape[MX_RECUR_K].n + shape[MX_RECUR_V].n +
		           shape[MX_RECUR_GATE].n,
		       layer->width, AT(qkvz));
		matrix(&l, "in_proj_ba.weight", 2 * p->recur.heads, layer->width, AT(ba));
	}
	list_feature(&l, p);
	if (p->variant->decay == GLA_SOFTPLUS) {
		vector(&l, "A_log", p->recur.heads, AT(a_log));
		if (p->variant->a_log_4d)
			l.out[l.n - 1].spec = MX_WEIGHT_SPEC("A_log", VECTOR, {1, 1, p->recur.heads, 1});
		l.out[l.n - 1].on_host = true;
	}
	if (p->has_lower_bounds) {
		struct mx_weight_spec *s =
			add(&l, "/model.lower_bounds", MX_WEIGHT_VECTOR, AT(lower_bounds));
		s->ndim = 2;
		s->shape[0] = layer->n_layers;
		s->shape[1] = layer->width;
		l.out[l.n - 1].on_host = true;
	}
	if (p->norm_affine)
		vector(&l, p->norm_name, p->variant->norm_whole ? p->recur.heads * p->v_dim : p->v_dim,
		       AT(norm));
	matrix(&l, p->form ? "out_proj.weight" : "o_proj.weight", layer->width,
	       (uint64_t)p->recur.heads * p->v_dim, AT(o));
	return l.n;
}

mx_status gla_list_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                           size_t *out_n)
{
	struct mx_layer_desc one = *layer;
	struct gla_params p, share;
	struct gla_tensor all[MX_MIXER_MAX_WEIGHTS], own[MX_MIXER_MAX_WEIGHTS];
	one.rank = 0;
	one.ranks = 1;
	mx_status status = gla_params_read(&one, &p, NULL);
	if (status == MX_OK)
		status = gla_params_read(layer, &share, NULL);
	if (status != MX_OK)
		return status;
	*out_n = gla_tensors(layer, &p, all);
	gla_tensors(layer, &share, own);
	for (size_t i = 0; i < *out_n; i++)
		specs[i] = mx_weight_spec_share(all[i].spec, &own[i].spec, share.share);
	return MX_OK;
}
