/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a layer and the places of their pointers: one list for weights() and create(). */
#include "mixers/gla/gla.h"

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

static void list_stream(struct lister *l, const struct gla_params *p, int s, uint32_t width)
{
	const struct gla_names *names = &p->variant->streams[s];
	const struct gla_stream_shape *shape = &p->streams[s];
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
		for (int layer = 0; layer < gla_feature_layers(p->feature); layer++) {
			int name = p->feature == GLA_PRODUCT ? layer : 2;
			size_t i = (size_t)(qk * 2 + layer) * sizeof(void *), from = l->n;
			matrix(l, weights[qk][name], p->k_dim, p->k_dim, AT(feature) + i);
			if (p->feature != GLA_T2R)
				vector(l, biases[qk][name], p->k_dim, AT(feature_bias) + i);
			for (size_t k = from; k < l->n; k++)
				l->out[k].spec.optional = p->feature_tied;
		}
}

size_t gla_tensors(const struct mx_layer_desc *layer, const struct gla_params *p,
                   struct gla_tensor *out)
{
	struct lister l = {out, 0};
	for (int s = 0; s < GLA_STREAMS; s++)
		if (p->streams[s].n)
			list_stream(&l, p, s, layer->width);
	list_feature(&l, p);
	if (p->variant->decay == GLA_SOFTPLUS) {
		vector(&l, "A_log", p->recur.heads, AT(a_log));
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
	matrix(&l, "o_proj.weight", layer->width, (uint64_t)p->recur.heads * p->v_dim, AT(o));
	return l.n;
}
