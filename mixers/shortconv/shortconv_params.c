/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the mixer shortconv. */
#include "mixers/shortconv/shortconv.h"

mx_status shortconv_params_read(const struct mx_layer_desc *layer, struct shortconv_params *out,
                                struct mx_err *err)
{
	static const char *const known[] = {"conv_L_cache", "conv_bias"};
	const struct mx_params *in = &layer->params;
	struct shortconv_params p = {0};
	mx_status status = mx_params_known(in, known, sizeof known / sizeof *known, "shortconv", err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "shortconv", "conv_L_cache", 3, 1, SHORTCONV_MAX_TAPS,
		                           &p.taps, err);
	if (status == MX_OK)
		status = mx_param_read_bool(in, "shortconv", "conv_bias", false, &p.bias, err);
	const struct mx_share own = mx_share_of_channels(layer->width, layer->rank, layer->ranks);
	if (status == MX_OK && layer->width < layer->ranks)
		status = mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                       "shortconv: %u channels cannot be split over %u ranks", layer->width,
		                       layer->ranks);
	if (status != MX_OK)
		return status;
	p.channels = own.n;
	p.first = own.first;
	p.out_bias = p.bias && !layer->rank;
	*out = p;
	return MX_OK;
}

mx_status shortconv_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                   size_t *out_n)
{
	struct shortconv_params p;
	mx_status status = shortconv_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const uint64_t width = layer->width, taps = p.taps, own = p.channels, first = p.first;
	size_t n = 0;

	const struct mx_weight_spec in = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {3 * width, width});
	const struct mx_weight_spec out = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {width, width});
	const struct mx_weight_spec conv = MX_WEIGHT_SPEC("conv.weight", VECTOR, {width, 1, taps});
	const struct mx_weight_spec conv_bias = MX_WEIGHT_SPEC("conv.bias", VECTOR, {width});
	for (uint64_t i = 0; i < 3; i++) /* B, C, x */
		specs[n++] = mx_weight_spec_rows(in, i * width + first, own);
	specs[n++] = mx_weight_spec_part(out, 1, first, own);
	specs[n++] = mx_weight_spec_part(conv, 0, first, own);
	if (p.bias) {
		specs[n++] = MX_WEIGHT_SPEC("in_proj.bias", VECTOR, {3 * width});
		specs[n++] = mx_weight_spec_part(conv_bias, 0, first, own);
	}
	if (p.out_bias)
		specs[n++] = MX_WEIGHT_SPEC("out_proj.bias", VECTOR, {width});
	*out_n = n;
	return MX_OK;
}
