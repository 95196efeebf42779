/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the mixer shortconv, for its modules for CPUs and for CUDA devices. */
#ifndef MX_MIXERS_SHORTCONV_H
#define MX_MIXERS_SHORTCONV_H

#include "mixers/mixer.h"

#define SHORTCONV_MAX_TAPS 8

struct shortconv_params {
	uint32_t channels, first; /* the rank's share of the width */
	uint32_t taps;
	bool bias;     /* of in_proj, conv and out_proj */
	bool out_bias; /* of out_proj: the first rank's */
};

/* Reads and checks a layer's parameters; *err tells which one is wrong. */
mx_status shortconv_params_read(const struct mx_layer_desc *layer, struct shortconv_params *out,
                                struct mx_err *err);

/* mx_mixer_ops.weights: B, C and x of in_proj, out_proj, conv, then the biases of in_proj (whole),
 * conv and out_proj. */
mx_status shortconv_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                   size_t *out_n);

#endif
