/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of a hyena layer, on any device: pure functions of the layer. */
#ifndef MX_MIXERS_HYENA_HYENA_PARAMS_H
#define MX_MIXERS_HYENA_HYENA_PARAMS_H

#include "mixers/mixer.h"

enum hyena_filter { HYENA_IMPLICIT, HYENA_MODAL };

/* The layer's parameters, checked. */
struct hyena_params {
	enum hyena_filter filter;
	uint32_t taps;  /* of the short convolution */
	uint32_t heads; /* groups of rows x0, x1, v in the projection */
	bool bias;      /* of both projections */
	/* implicit */
	uint32_t filter_len, emb_dim, filter_order, inner_mlps;
	float shift;
	bool modulate;
	/* modal */
	uint32_t state_size;
};

/* Reads and checks the parameters, as probe does; *err (may be NULL) tells what is wrong. */
mx_status hyena_read_params(const struct mx_layer_desc *layer, struct hyena_params *out,
                            struct mx_err *err);

/* mx_mixer_ops.weights. First come HYENA_COMMON_WEIGHTS tensors that both kinds of filter have. */
#define HYENA_COMMON_WEIGHTS 6
mx_status hyena_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n);

/* Refuses biases that the checkpoint has although `bias` is false: without them the layer would not
 * be the one that was trained. weights: in the order of hyena_weights. */
mx_status hyena_check_weights(const struct hyena_params *p, uint32_t layer,
                              const void *const *weights, struct mx_err *err);

/* Computes the first n lags of a layer with an implicit filter, h[n, width] in host memory, with
 * the skip in the first. vectors: the filter's tensors in host memory, in the order of
 * hyena_weights. */
mx_status hyena_implicit_lags(const struct hyena_params *p, uint32_t width, struct mx_device *d,
                              const float *const *vectors, uint32_t n, float *h);

#endif
