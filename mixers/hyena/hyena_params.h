/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of a hyena layer, on any device: pure functions of the layer. */
#ifndef MX_MIXERS_HYENA_HYENA_PARAMS_H
#define MX_MIXERS_HYENA_HYENA_PARAMS_H

#include "mixers/mixer.h"

enum hyena_filter { HYENA_IMPLICIT, HYENA_MODAL };

/* The layer's parameters, checked. */
struct hyena_params {
	enum hyena_filter filter;
	uint32_t taps;            /* of the short convolution */
	uint32_t heads;           /* groups of rows x0, x1, v in the projection, of the rank's share */
	uint32_t channels, first; /* the rank's share of the width */
	/* A rank has n_parts parts of part_rows rows of the projection; with one rank, one part. */
	uint32_t n_parts, part_rows;
	uint32_t part_first[3];
	bool bias; /* of both projections */
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

/* mx_mixer_ops.weights. First come HYENA_COMMON_WEIGHTS tensors that both kinds of filter have: the
 * projection's first part, out_proj, the short convolution and its bias, the biases of both
 * projections; then the filter's, then the other parts of the projection. Biases, and the short
 * convolution, are those of all ranks. */
#define HYENA_COMMON_WEIGHTS 6
mx_status hyena_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                        size_t *out_n);

/* Refuses biases that the checkpoint has although `bias` is false: without them the layer would not
 * be the one that was trained. weights: in the order of hyena_weights. */
mx_status hyena_check_weights(const struct hyena_params *p, uint32_t layer,
                              const void *const *weights, struct mx_err *err);

/* Returns the channel of the layer's short convolution that is the rank's channel c. */
static inline size_t hyena_channel(const struct hyena_params *p, uint32_t c)
{
	return p->part_first[c / p->part_rows] + (size_t)(c % p->part_rows);
}

/* Computes the first n lags of a layer with an implicit filter, h[n, width] in host memory, of the
 * rank's `width` channels, with the skip in the first. vectors: the filter's tensors in host
 * memory, in the order of hyena_weights. */
mx_status hyena_implicit_lags(const struct hyena_params *p, uint32_t width, struct mx_device *d,
                              const float *const *vectors, uint32_t n, float *h);

#endif
