/* SPDX-License-Identifier: Apache-2.0 */
/* The hyena mixer's parameters and tensors, and the filter that they describe. */
#include "mixers/hyena/hyena_params.h"
#include "mixers/hyena/implicit.h"
#include "mixers/hyena/longconv.h"
#include "mixers/hyena/modal.h"

#include <float.h>

/* Limits far above any model, so that no product of sizes overflows. */
#define MAX_LEN    (1 << 24)
#define MAX_KERNEL 8

static mx_status read_filter(const struct mx_params *in, struct hyena_params *p, struct mx_err *err)
{
	static const char *const implicit[] = {"filter",     "short_filter", "bias",
	                                       "filter_len", "emb_dim",      "filter_order",
	                                       "inner_mlps", "shift",        "modulate"};
	static const char *const modal[] = {"filter", "short_filter", "bias", "state_size", "heads"};
	const struct mx_param *q = mx_param_find(in, "filter");
	const char *filter = mx_param_string(in, "filter", q ? "" : "implicit");
	if (!strcmp(filter, "implicit")) {
		p->filter = HYENA_IMPLICIT;
		return mx_params_known(in, implicit, sizeof implicit / sizeof *implicit,
		                       "hyena with an implicit filter", err);
	}
	if (!strcmp(filter, "modal")) {
		p->filter = HYENA_MODAL;
		return mx_params_known(in, modal, sizeof modal / sizeof *modal, "hyena with a modal filter",
		                       err);
	}
	return mx_mixer_fail(err, MX_E_INVALID, "hyena: filter must be \"implicit\" or \"modal\"");
}

static mx_status read_shift(const struct mx_params *in, struct hyena_params *p, struct mx_err *err)
{
	double shift = 0;
	mx_status status = mx_param_read_number(in, "hyena", "shift", 0.05, -(double)FLT_MAX,
	                                        (double)FLT_MAX, &shift, err);
	p->shift = (float)shift;
	return status;
}

static mx_status read_implicit(const struct mx_layer_desc *layer, struct hyena_params *p,
                               struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	const struct {
		const char *name;
		int64_t def;
		uint32_t min, max, *to;
	} dims[] = {
		{"filter_len", -1, 1, MAX_LEN, &p->filter_len},
		{"emb_dim", -1, 1, IMPLICIT_MAX_ORDER, &p->emb_dim},
		{"filter_order", -1, 1, IMPLICIT_MAX_ORDER, &p->filter_order},
		{"inner_mlps", 2, 0, IMPLICIT_MAX_INNER, &p->inner_mlps},
	};
	mx_status status = MX_OK;
	p->heads = 1;
	for (size_t i = 0; status == MX_OK && i < sizeof dims / sizeof *dims; i++)
		status = mx_param_read_u32(in, "hyena", dims[i].name, dims[i].def, dims[i].min, dims[i].max,
		                           dims[i].to, err);
	if (status == MX_OK)
		status = read_shift(in, p, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "hyena", "modulate", true, &p->modulate, err);
	if (status != MX_OK)
		return status;
	if (layer->max_context > p->filter_len)
		return mx_mixer_fail(err, MX_E_RANGE, "hyena: a context of %u tokens, but a filter of %u",
		                     layer->max_context, p->filter_len);
	if (layer->max_draft > LC_MAX_DRAFT)
		return mx_mixer_fail(err, MX_E_RANGE, "hyena: drafts of %u tokens, but it takes at most %u",
		                     layer->max_draft, (unsigned)LC_MAX_DRAFT);
	return MX_OK;
}

static mx_status read_modal(const struct mx_layer_desc *layer, struct hyena_params *p,
                            struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	mx_status status =
		mx_param_read_u32(in, "hyena", "state_size", -1, 1, MODAL_MAX_STATE, &p->state_size, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "hyena", "heads", 1, 1, layer->width, &p->heads, err);
	if (status == MX_OK && layer->width % p->heads)
		return mx_mixer_fail(err, MX_E_RANGE, "hyena: heads %u does not divide the width %u",
		                     p->heads, layer->width);
	return status;
}

/* Takes the rank's share of the channels: whole heads, or a part of each of a head's x0, x1, v. */
static mx_status take_share(const struct mx_layer_desc *layer, struct hyena_params *p,
                            struct mx_err *err)
{
	const uint32_t dim = layer->width / p->heads; /* channels of a head */
	struct mx_group_share own;
	if (!mx_share_of_groups(p->heads, dim, true, layer->rank, layer->ranks, &own))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "hyena: %u channels of %u heads cannot be split over %u ranks",
		                     layer->width, p->heads, layer->ranks);
	p->channels = own.members.n;
	p->first = own.members.first;
	p->n_parts = own.sharers > 1 ? 3 : 1;
	p->heads = own.groups.n;
	p->part_rows = 3 * p->channels / p->n_parts;
	const uint32_t begin = 3 * (p->first - p->first % dim) + p->first % dim;
	for (uint32_t i = 0; i < p->n_parts; i++)
		p->part_first[i] = p->n_parts == 1 ? 3 * p->first : begin + i * dim;
	return MX_OK;
}

mx_status hyena_read_params(const struct mx_layer_desc *layer, struct hyena_params *out,
                            struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	struct hyena_params p = {0};
	mx_status status = read_filter(in, &p, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "hyena", "short_filter", 3, 1, MAX_KERNEL, &p.taps, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "hyena", "bias", true, &p.bias, err);
	if (status == MX_OK)
		status =
			p.filter == HYENA_MODAL ? read_modal(layer, &p, err) : read_implicit(layer, &p, err);
	if (status == MX_OK)
		status = take_share(layer, &p, err);
	if (status == MX_OK)
		*out = p;
	return status;
}

/* ---- tensors ---- */

enum { IN_PROJ_BIAS = 4, OUT_PROJ_BIAS }; /* indices in common_names */

/* Tensors of both kinds of filter, with the names of safari and HyenaDNA or of StripedHyena. */
static const char *const common_names[][HYENA_COMMON_WEIGHTS] = {
	[HYENA_IMPLICIT] = {"in_proj.weight", "out_proj.weight", "short_filter.weight",
                        "short_filter.bias", "in_proj.bias", "out_proj.bias"},
	[HYENA_MODAL] = {"projections.weight", "out_filter_dense.weight", "filter.short_filter_weight",
                     "filter.short_filter_bias", "projections.bias", "out_filter_dense.bias"}};

/* Returns rows of the projection that are the rank's. */
static struct mx_weight_spec part_of_projection(const struct hyena_params *p, uint64_t width,
                                                uint32_t part)
{
	const struct mx_weight_spec whole =
		MX_WEIGHT_SPEC(common_names[p->filter][0], MATRIX, {3 * width, width});
	return mx_weight_spec_part(whole, 0, p->part_first[part], p->part_rows);
}

/* If `bias` is false, biases are listed as optional, so that hyena_check_weights can refuse a
 * checkpoint that has them. */
static size_t common_weights(const struct hyena_params *p, uint64_t width,
                             struct mx_weight_spec *specs)
{
	const char *const *name = common_names[p->filter];
	size_t n = 0;
	specs[n++] = part_of_projection(p, width, 0);
	specs[n++] = mx_weight_spec_part(MX_WEIGHT_SPEC(name[1], MATRIX, {width, width}), 1, p->first,
	                                 p->channels);
	specs[n++] = MX_WEIGHT_SPEC(name[2], VECTOR, {3 * width, 1, p->taps});
	specs[n++] = MX_WEIGHT_SPEC(name[3], VECTOR, {3 * width});
	specs[n++] = MX_WEIGHT_SPEC(name[IN_PROJ_BIAS], VECTOR, {3 * width});
	specs[n++] = MX_WEIGHT_SPEC(name[OUT_PROJ_BIAS], VECTOR, {width});
	for (size_t i = IN_PROJ_BIAS; i < n; i++)
		specs[i].optional = !p->bias;
	return n;
}

static size_t implicit_weights(const struct hyena_params *p, uint64_t width,
                               struct mx_weight_spec *specs)
{
#define LINEAR(i) "filter_fn.implicit_filter." #i
	static const char *const linears[IMPLICIT_LINEARS][2] = {
		{LINEAR(0.weight), LINEAR(0.bias)},   {LINEAR(2.weight), LINEAR(2.bias)},
		{LINEAR(4.weight), LINEAR(4.bias)},   {LINEAR(6.weight), LINEAR(6.bias)},
		{LINEAR(8.weight), LINEAR(8.bias)},   {LINEAR(10.weight), LINEAR(10.bias)},
		{LINEAR(12.weight), LINEAR(12.bias)}, {LINEAR(14.weight), LINEAR(14.bias)},
		{LINEAR(16.weight), LINEAR(16.bias)}, {LINEAR(18.weight), NULL}};
#undef LINEAR
	const uint64_t order = p->filter_order, first = p->first, own = p->channels;
	const struct mx_weight_spec last =
		MX_WEIGHT_SPEC(linears[p->inner_mlps + 1][0], VECTOR, {width, order});
	const struct mx_weight_spec deltas =
		MX_WEIGHT_SPEC("filter_fn.modulation.deltas", VECTOR, {1, 1, width});
	size_t n = 0;
	specs[n++] =
		mx_weight_spec_part(MX_WEIGHT_SPEC("filter_fn.bias", VECTOR, {width}), 0, first, own);
	specs[n++] = MX_WEIGHT_SPEC("filter_fn.pos_emb.z", VECTOR, {1, p->filter_len, p->emb_dim});
	specs[n] = MX_WEIGHT_SPEC("filter_fn.pos_emb.t", VECTOR, {1, p->filter_len, 1});
	specs[n++].optional = true;
	specs[n++] = MX_WEIGHT_SPEC("filter_fn.implicit_filter.1.freq", VECTOR, {1, order});
	if (p->modulate)
		specs[n++] = mx_weight_spec_part(deltas, 2, first, own);
	for (uint32_t l = 0; l <= p->inner_mlps; l++) {
		specs[n++] = MX_WEIGHT_SPEC(linears[l][0], VECTOR, {order, l ? order : p->emb_dim});
		specs[n++] = MX_WEIGHT_SPEC(linears[l][1], VECTOR, {order});
	}
	specs[n++] = mx_weight_spec_part(last, 0, first, own);
	return n;
}

static size_t modal_weights(const struct hyena_params *p, uint64_t width,
                            struct mx_weight_spec *specs)
{
	const struct mx_weight_spec whole[] = {
		MX_WEIGHT_SPEC("filter.D", VECTOR, {width}),
		MX_WEIGHT_SPEC("filter.poles", VECTOR, {width, p->state_size, 1, 2}),
		MX_WEIGHT_SPEC("filter.residues", VECTOR, {width, p->state_size, 1, 2}),
	};
	size_t n = 0;
	for (; n < sizeof whole / sizeof *whole; n++)
		specs[n] = mx_weight_spec_part(whole[n], 0, p->first, p->channels);
	return n;
}

/* take_weights and create_filter in hyena.c rely on this order. */
mx_status hyena_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n)
{
	struct hyena_params p;
	mx_status status = hyena_read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	size_t n = common_weights(&p, layer->width, specs);
	n += p.filter == HYENA_MODAL ? modal_weights(&p, layer->width, specs + n)
	                             : implicit_weights(&p, layer->width, specs + n);
	for (uint32_t i = 1; i < p.n_parts; i++)
		specs[n++] = part_of_projection(&p, layer->width, i);
	*out_n = n;
	return MX_OK;
}

mx_status hyena_check_weights(const struct hyena_params *p, uint32_t layer,
                              const void *const *weights, struct mx_err *err)
{
	for (size_t i = IN_PROJ_BIAS; !p->bias && i <= OUT_PROJ_BIAS; i++)
		if (weights[i])
			return mx_mixer_fail(err, MX_E_INVALID,
			                     "hyena: layer %u: %s is there, but bias is false", layer,
			                     common_names[p->filter][i]);
	return MX_OK;
}

/* ---- the implicit filter ---- */

mx_status hyena_implicit_lags(const struct hyena_params *p, uint32_t width, struct mx_device *d,
                              const float *const *w, uint32_t n, float *h)
{
	const float *skip = *w++;
	struct implicit_filter f = {
		.len = p->filter_len,
		.emb_dim = p->emb_dim,
		.order = p->filter_order,
		.inner = p->inner_mlps,
		.width = width,
		.shift = p->shift,
	};
	f.z = *w++;
	f.t = *w++;
	f.freq = *w++;
	if (p->modulate)
		f.deltas = *w++;
	for (uint32_t l = 0; l <= p->inner_mlps; l++) {
		f.weight[l] = *w++;
		f.bias[l] = *w++;
	}
	f.weight[p->inner_mlps + 1] = *w++;
	mx_status status = implicit_filter(&f, d, n, h);
	for (uint32_t c = 0; status == MX_OK && c < width; c++)
		h[c] += skip[c];
	return status;
}
