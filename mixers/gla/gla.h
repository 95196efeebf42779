/* SPDX-License-Identifier: Apache-2.0 */
/* The gla mixer's instance on CPUs, shared by gla.c, gla_forward.c and gla_rows.c. */
#ifndef MX_MIXERS_GLA_GLA_H
#define MX_MIXERS_GLA_GLA_H

#include "mixers/gla/gla_layer.h"
#include "mixers/recurrence/slots.h"

struct mx_mixer {
	struct mx_recur_mixer common; /* a slot: the recurrence's part, then one for each of convs */
	const struct mx_recur_kernels *kernels;
	struct gla_params params;
	struct gla_weights w;
	struct mx_comm *comm; /* NULL = one rank */
	uint32_t width, max_rows;
	struct mx_conv_spec convs[MX_RECUR_STREAMS]; /* of the streams that have one */
	struct mx_recur_tables tables;               /* owned */
	float *beta_scale; /* [heads] factor of sigmoid; without a stream BETA, beta itself */
};

/* Returns the convolution of a stream. A slot and a snapshot are the recurrence's part, then a part
 * for each stream with a convolution. */
struct mx_conv_spec gla_conv_spec(const struct gla_params *p, int stream);

/* The step's scratch memory. */
struct gla_buffers {
	float *streams[MX_RECUR_STREAMS],
		*low[MX_RECUR_STREAMS]; /* low: first products of low-rank streams */
	float *features[2];         /* features of q and k, if larger than those */
	float *layers[2];           /* products of a feature map */
	float *y;                   /* [rows, heads * recur.v_dim] */
	float *sums;                /* [rows] of squares, for a norm that ranks share */
	float *qkvz, *ba;           /* products that streams are taken from, key head by key head */
	void *core;
};

/* Places the buffers in `base` (NULL: computes the size only) and returns their bytes. */
size_t gla_layout(const struct gla_params *p, size_t max_rows, unsigned threads,
                  unsigned char *base, struct gla_buffers *out);

mx_status gla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

/* ---- functions of rows that the core lacks; in gla_rows.c ---- */

/* x <- max(x * mul + add, min), columns n of each row; add NULL = 0. */
void gla_affine(struct mx_device *d, size_t n_rows, size_t n, const float *mul, const float *add,
                float min, float *x);

/* y <- scale * f(x): maps each of `heads` groups of `dim` elements to one of mx_recur_feature_dim
 * elements and divides it as `norm` says (not MX_RECUR_QK_L2). x2 is the second factor of
 * MX_RECUR_FEATURE_PRODUCT. y may be x if the sizes are equal. */
struct gla_features {
	enum mx_recur_feature feature;
	uint32_t heads, dim;
	enum mx_recur_qk_norm norm;
	float scale;
};
void gla_apply_features(struct mx_device *d, const struct gla_features *f, size_t n_rows,
                        const float *x, const float *x2, float *y);

/* Takes the streams q, k, v, gate, beta and a of `n_rows` rows from qkvz [rows, k_heads,
 * q|k|v|gate] and ba [rows, k_heads, beta|a], and adds bias [heads] to a. */
void gla_unpack(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                const struct gla_buffers *b, const float *bias);

/* Takes the streams q, k and v from qkv [rows, heads, q|k|v]. */
void gla_unpack_qkv(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                    const struct gla_buffers *b);

/* Copies the heads of y [rows, heads, v_dim] to `to` in the order that p->by_turns says. */
void gla_heads_by_turns(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                        const float *y, float *to);

/* k <- 1 - a */
void gla_complement(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *k);
/* v <- v * (1 - a) */
void gla_input_gate(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *v);
/* Appends a 1 to each of `heads` groups of dim elements: a row becomes groups of dim + 1. */
void gla_append_ones(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *v);
/* The reverse: divides each group of dim + 1 by its last element + 1e-10; rows do not move. */
void gla_divide(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *y);

#endif
